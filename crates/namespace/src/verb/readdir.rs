//! `readdir(3)`: the entries of a directory, in the order of their cookies.
//!
//! A cookie is a property of the name (its hash, and a number that tells equal hashes apart), not a position. So an entry that is
//! there throughout a listing appears in it exactly once, whatever comes and goes between two calls, and any server can continue.

use super::permission;
use crate::context::OpContext;
use crate::error::NsError;
use crate::key::{self, Cookie, NameHash};
use crate::record::{Bucket, BucketEntry, Kind};
use crate::txn::Txn;
use ashlar_types::codec::{self, CodecError};
use ashlar_types::{Attr, Errno, FileType, InodeId};
use std::ops::ControlFlow;

/// Cookie of the entry `.`.
pub const COOKIE_DOT: Cookie = Cookie(1);
/// Cookie of the entry `..`.
pub const COOKIE_DOT_DOT: Cookie = Cookie(2);

/// Entries read from the store before their attributes are.
// LIMIT: entries in memory at a time; about as many as fit a reply.
const BATCH_ENTRIES: usize = 128;

/// An entry, as it is handed to the visitor of [`readdir`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Where to continue behind this entry.
    pub cookie: Cookie,
    /// Its name.
    pub name: &'a [u8],
    /// What it points to.
    pub inode: InodeId,
    /// Its type.
    pub file_type: FileType,
    /// Its attributes, if they were asked for.
    pub attr: Option<Attr>,
}

/// Takes the entries of a listing; an entry for which it breaks counts as not taken.
pub type Emit<'e> = dyn FnMut(DirEntry<'_>) -> ControlFlow<()> + 'e;

/// Lists `directory` behind the cookie `after` (0 to begin), with `.` and `..`, until `emit` breaks; returns whether nothing
/// is left behind the last entry that was taken.
///
/// `with_attributes` gives the attributes of all entries but `..` to callers who may search the directory. A session that has the directory
/// open was checked when it opened it and may go on listing. A directory that is split lists `.` and `..`, and each of its slices its entries; one that is being
/// split also those that it still has, behind the last cookie of those in slices.
///
/// # Errors
/// `ENOTDIR`, `EACCES` without read permission, `ESTALE`; `EREMOTE` for names of a directory that is split.
pub fn readdir(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    directory: InodeId,
    after: Cookie,
    with_attributes: bool,
    emit: &mut Emit<'_>,
) -> Result<bool, NsError> {
    let record = txn.inode(directory)?.clone();
    let (parent, _) = record.as_directory()?;
    let shown = record.shown_as(directory);
    if !(context.open_in)(shown).contains(&context.session) {
        permission::check(context, &record, permission::READ)?;
    }
    let with_attributes = with_attributes && permission::check(context, &record, permission::EXECUTE).is_ok();
    // Attributes of the parent are never given: nobody uses them, and telling them would disturb its lease holders.
    let dots = [(COOKIE_DOT, &b"."[..], directory), (COOKIE_DOT_DOT, &b".."[..], parent)];
    for (cookie, name, inode) in dots {
        if cookie <= after || shown != directory {
            continue;
        }
        let attr = (with_attributes && cookie == COOKIE_DOT).then(|| record.attr(directory));
        let is_told = attr.is_some();
        if emit(DirEntry { cookie, name, inode, file_type: FileType::Directory, attr }).is_break() {
            return Ok(false);
        }
        if is_told {
            txn.reveal(directory);
        }
    }
    let is_split = !record.slices().is_empty();
    if is_split && after < COOKIE_DOT_DOT {
        return Ok(false);
    }
    // What is in slices comes first. Of a directory that is being split the rest is here.
    let is_in_split = matches!(record.kind, Kind::DirectoryInSplit { .. });
    if is_split && (!is_in_split || after < Cookie::before(record.border())) {
        return Err(Errno::EREMOTE.into());
    }
    if record.size == 0 {
        return Ok(true);
    }
    let after = after.max(COOKIE_DOT_DOT);
    if with_attributes {
        list_with_attributes(txn, directory, after, emit)
    } else {
        list(txn, directory, after, emit)
    }
}

/// Lists names and types, straight from the scan.
fn list(txn: &Txn<'_>, directory: InodeId, after: Cookie, emit: &mut Emit<'_>) -> Result<bool, NsError> {
    let mut is_end = true;
    visit_entries(txn, directory, after, &mut |cookie, entry| {
        let BucketEntry { inode, file_type, name, .. } = &entry;
        let flow = emit(DirEntry { cookie, name, inode: *inode, file_type: *file_type, attr: None });
        is_end = flow.is_continue();
        flow
    })?;
    Ok(is_end)
}

/// Lists with attributes: a batch of entries, then their inodes, since a store need not allow reads from within a scan.
fn list_with_attributes(
    txn: &mut Txn<'_>,
    directory: InodeId,
    mut after: Cookie,
    emit: &mut Emit<'_>,
) -> Result<bool, NsError> {
    loop {
        let mut batch: Vec<(Cookie, BucketEntry)> = Vec::new();
        visit_entries(txn, directory, after, &mut |cookie, entry| {
            batch.push((cookie, entry));
            if batch.len() < BATCH_ENTRIES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        let is_last_batch = batch.len() < BATCH_ENTRIES;
        for (cookie, entry) in batch {
            let id = entry.inode;
            // Whoever wants those of what another server has asks there.
            let found = if txn.is_elsewhere(id) { None } else { txn.peek_inode(id)? };
            let attr = found.map(|inode| inode.attr(id));
            let is_told = attr.is_some();
            let entry = DirEntry { cookie, name: &entry.name, inode: id, file_type: entry.file_type, attr };
            if emit(entry).is_break() {
                return Ok(false);
            }
            if is_told {
                txn.reveal(id);
            }
            after = cookie;
        }
        if is_last_batch {
            return Ok(true);
        }
    }
}

/// Visits the entries of `directory` behind `after` in the order of their cookies until `visit` breaks.
fn visit_entries(
    txn: &Txn<'_>,
    directory: InodeId,
    after: Cookie,
    visit: &mut dyn FnMut(Cookie, BucketEntry) -> ControlFlow<()>,
) -> Result<(), NsError> {
    let from = key::bucket(directory, after.hash());
    // The smallest key above that of the largest hash.
    let mut to = key::bucket(directory, NameHash(u64::MAX >> 8));
    to.push(0);
    let mut damage: Option<CodecError> = None;
    txn.scan(&from, &to, &mut |key, value| {
        let decoded = key::bucket_hash(key)
            .ok_or(CodecError::Malformed { what: "key of a directory bucket" })
            .and_then(|hash| Ok((hash, codec::decode::<Bucket>(value, "directory bucket")?)));
        let (hash, bucket) = match decoded {
            Ok(decoded) => decoded,
            Err(error) => {
                damage = Some(error);
                return ControlFlow::Break(());
            }
        };
        for entry in bucket.entries {
            let cookie = Cookie::new(hash, entry.collision);
            if cookie > after {
                visit(cookie, entry)?;
            }
        }
        ControlFlow::Continue(())
    })?;
    damage.map_or(Ok(()), |error| Err(error.into()))
}
