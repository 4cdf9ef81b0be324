//! `commit_write`: a writer of chunks reports what has become of the file (`design.md` D7).

use super::privilege;
use super::resize::SIZE_MAX;
use crate::context::OpContext;
use crate::error::NsError;
use crate::key;
use crate::record::{FileData, Kind};
use crate::txn::Txn;
use ashlar_types::{Attr, Errno, InodeId, Timespec};

/// What a writer reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitWrite {
    /// Generation of the chunks it wrote; `None` when the caller knows that it is the file's.
    pub generation: Option<u32>,
    /// The file is at least this long, bytes.
    pub size_at_least: u64,
    /// Units of 512 bytes that writing added, or punching took away.
    pub blocks_delta: i64,
    /// When the content was last changed; `None` when it was not.
    pub mtime: Option<Timespec>,
    /// When it was last read.
    pub atime: Option<Timespec>,
    /// Whether set-id bits go.
    pub kill_set_id: bool,
    /// Whether file capabilities stay although the content was changed: only pages of mappings were written back.
    pub keeps_capability: bool,
    /// Whether the session writes no more: its writer record goes.
    pub done: bool,
}

/// Takes over what the calling session reports. A report about another generation than the file's (it was emptied since) is
/// about bytes that are gone: only `done` counts. The times of a report never lie ahead of the server's.
///
/// # Errors
/// `EFBIG` for a length beyond 2^63-1, `EINVAL` for a malformed time, `ESTALE` when it is gone.
pub fn commit_write(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    id: InodeId,
    report: &CommitWrite,
) -> Result<Attr, NsError> {
    if report.size_at_least > SIZE_MAX {
        return Err(Errno::EFBIG.into());
    }
    if [report.mtime, report.atime].iter().flatten().any(|time| time.nanos >= 1_000_000_000) {
        return Err(Errno::EINVAL.into());
    }
    let is_lazy = context.session.is_close_to_open()
        && report.mtime.is_none()
        && report.size_at_least == 0
        && !report.done;
    if is_lazy {
        txn.note_lazily(id);
    }
    // What is reported has happened: it must be possible to note it on a full file system too.
    txn.mark_frees_space();
    let is_current = match &txn.inode(id)?.kind {
        Kind::Regular(FileData::Chunks { layout, .. }) => {
            report.generation.is_none_or(|wrote| wrote == layout.generation)
        }
        // Of a directory, and of a file that is with its inode, there is only an access time to report.
        _ => false,
    };
    if is_current {
        apply(txn, context, id, report)?;
    } else if let Some(atime) = report.atime {
        advance_atime(txn, context, id, atime)?;
    }
    let writer_key = key::writer_of(id, context.session);
    if report.done && txn.get(&writer_key)?.is_some() {
        txn.delete(writer_key);
    }
    if !is_lazy {
        txn.reveal(id);
    }
    Ok(txn.inode(id)?.attr(id))
}

fn apply(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    id: InodeId,
    report: &CommitWrite,
) -> Result<(), NsError> {
    if report.mtime.is_some() && !report.keeps_capability || report.kill_set_id {
        privilege::drop_for_write(txn, context, id, report.kill_set_id)?;
    }
    let is_beside = txn.is_beside(id);
    let inode = txn.inode_mut(id)?;
    inode.size = inode.size.max(report.size_at_least);
    inode.blocks = inode.blocks.saturating_add_signed(report.blocks_delta);
    if let Some(mtime) = report.mtime {
        let reported = mtime.min(context.now);
        // Reports of writers beside each other come in any order. A time that is still to come nobody has reported: a program has set it, before this.
        let is_late = is_beside && (reported..=context.now).contains(&inode.mtime);
        inode.mtime = if is_late { inode.mtime } else { reported };
        inode.ctime = inode.ctime.max(inode.mtime);
    }
    match report.atime {
        Some(atime) => advance_atime(txn, context, id, atime),
        None => Ok(()),
    }
}

/// Lazy access times arrive late and must not undo a newer one.
fn advance_atime(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    id: InodeId,
    atime: Timespec,
) -> Result<(), NsError> {
    let atime = atime.min(context.now);
    if txn.inode(id)?.atime < atime {
        txn.inode_mut(id)?.atime = atime;
    }
    Ok(())
}
