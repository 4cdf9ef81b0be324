//! `write`.

use crate::call::{Who, unexpected};
use crate::client::Client;
use crate::file::{Data, File, Handle};
use ashlar_types::message::{LeaseSet, MetaReply, MetaRequest, SetAttr};
use ashlar_types::{Credentials, Durability, Errno};

/// How a write came about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteFlags {
    /// Set-id bits must be cleared (the kernel knows that the writer is not privileged).
    pub kill_set_id: bool,
    /// It is the kernel writing back pages of a mapping, not a call of a program: it goes where the page is.
    pub is_writeback: bool,
    /// Whether it goes to the end; unless told, as the file was opened. A program may have changed that since (`F_SETFL`).
    pub append: Option<bool>,
    /// Durable before it is answered, however the file was opened (`RWF_DSYNC`).
    pub is_sync: bool,
}

/// What a write has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Where its first byte is.
    pub offset: u64,
    /// How many bytes were taken.
    pub bytes: usize,
}

/// Largest file size, bytes (`s_maxbytes` of 64-bit file systems).
pub(crate) const FILE_BYTES_MAX: u64 = i64::MAX as u64;

impl Client {
    /// Writes `data` at `offset` (or at the end for `O_APPEND`); tells how many bytes were taken: all, or those before a failure.
    ///
    /// # Errors
    /// `EFBIG`, `ENOSPC`, `EDQUOT`, `EIO`, when no byte was.
    pub fn write(
        &self,
        handle: &Handle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize, Errno> {
        Ok(self.write_as(&Who::system(), handle, offset, data, flags)?.bytes)
    }

    /// As [`Client::write`], on behalf of `who`, whose groups decide about some set-id bits, and tells where the bytes are. The right to write
    /// came with `handle`.
    ///
    /// # Errors
    /// As [`Client::write`].
    pub fn write_as(
        &self,
        who: &Who,
        handle: &Handle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<Taken, Errno> {
        let file = &handle.file;
        let append = flags.append.unwrap_or(handle.flags.append) && !flags.is_writeback;
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > FILE_BYTES_MAX) {
            return Err(Errno::EFBIG);
        }
        if data.is_empty() {
            return Ok(Taken { offset, bytes: 0 });
        }
        // LIMIT: a file leaves its inode once, and comes back only by a truncation that races with this very write.
        for _ in 0..8 {
            let is_inline = matches!(file.state.lock().data, Data::Inline(_));
            let taken = if is_inline {
                self.write_inline(who, file, offset, data, (append, flags))?
            } else {
                if flags.kill_set_id {
                    let changes = SetAttr { kill_set_id: true, has_handle: true, ..SetAttr::default() };
                    self.call_for_write(who, MetaRequest::Setattr { inode: file.inode, changes })?;
                }
                self.write_to_chunks(file, offset, data, (append, flags.is_writeback))?
            };
            if let Some(taken) = taken {
                if handle.flags.sync || flags.is_sync || file.state.lock().durability == Durability::Sync {
                    self.fsync(handle)?;
                }
                if taken.bytes < data.len() && flags.is_writeback {
                    // The kernel takes a page that was written back in part for a clean one: it must hear of the failure.
                    let rest = offset + taken.bytes as u64;
                    let rest = self.write_as(who, handle, rest, &data[taken.bytes..], flags)?;
                    return Ok(Taken { offset, bytes: taken.bytes + rest.bytes });
                }
                return Ok(taken);
            }
            if is_inline {
                self.spill(file)?;
            }
        }
        Err(Errno::EIO)
    }

    /// A call that clears set-id bits for a write of `who`. A write does not fail for groups that cannot be found out (`EPERM`): who is not
    /// known to be a member is an outsider.
    fn call_for_write(&self, who: &Who, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        match self.call(who, request.clone()) {
            Err(Errno::EPERM) => {
                let creds = Credentials { complete: true, ..who.creds.clone() };
                self.call(&Who { creds, pid: 0 }, request)
            }
            other => other,
        }
    }

    /// Writes with the inode; nothing when the file has (or must get) chunks.
    fn write_inline(
        &self,
        who: &Who,
        file: &File,
        offset: u64,
        data: &[u8],
        (append, flags): (bool, WriteFlags),
    ) -> Result<Option<Taken>, Errno> {
        let WriteFlags { kill_set_id, is_writeback, .. } = flags;
        let (writing, lease_epoch) = file.begin_inline()?;
        let inode = file.inode;
        let request = MetaRequest::WriteInline { inode, offset, data, append, kill_set_id, is_writeback };
        let reply = if kill_set_id {
            self.call_for_write(who, request)?
        } else {
            self.call(&Who::system(), request)?
        };
        let taken = match reply {
            MetaReply::WrittenInline { attr, .. } => {
                let mut state = file.state.lock();
                state.inline_written = state.inline_written.max(Some(attr.size));
                if state.lease_epoch != lease_epoch {
                    // Leases changed hands meanwhile; what is known now may be from before or after this write.
                    state.leases = LeaseSet::NONE;
                } else if let Data::Inline(body) = &mut state.data {
                    *body = None;
                    state.size = state.size.max(attr.size);
                    state.times.1 = attr.mtime.max(attr.ctime);
                }
                // What was appended ends where the file ended then.
                let offset = if append { attr.size.saturating_sub(data.len() as u64) } else { offset };
                Some(Taken { offset, bytes: data.len() })
            }
            MetaReply::NeedsChunks => None,
            other => return Err(unexpected(&other)),
        };
        drop(writing);
        Ok(taken)
    }

    /// Writes to chunks under WRITE; tells how many bytes are there, or nothing when the file turns out to be with its inode.
    ///
    /// # Errors
    /// What storage answers, when not even the first bytes could be written.
    fn write_to_chunks(
        &self,
        file: &File,
        offset: u64,
        data: &[u8],
        (append, is_writeback): (bool, bool),
    ) -> Result<Option<Taken>, Errno> {
        let (in_flight, mut state) = self.begin_as(file, LeaseSet::WRITE, is_writeback)?;
        let Data::Chunks(layout) = &state.data else { return Ok(None) };
        let layout = layout.clone();
        let at = if append { state.size.max(state.appends.end) } else { offset };
        let end =
            at.checked_add(data.len() as u64).filter(|&end| end <= FILE_BYTES_MAX).ok_or(Errno::EFBIG)?;
        if append {
            // The place is taken before the bytes are there, so that appends of other threads go behind it.
            state.appends.begin(end);
        }
        drop(state);
        let written = self.write_chunks(file.inode, &layout, at, data);
        let now = self.env.clock.now();
        let mut state = file.state.lock();
        let written_end = at + written.bytes as u64;
        if append {
            state.appends.finish(end, written_end);
        }
        if written.bytes > 0 {
            state.is_dirty = true;
            state.unreported.mtime = Some(now);
            state.unreported.is_of_a_call |= !is_writeback;
            state.times.1 = now;
            state.size = state.size.max(written_end);
            state.unreported.blocks_delta += written.blocks_delta;
        }
        drop(state);
        drop(in_flight);
        match written.outcome {
            Err(errno) if written.bytes == 0 => Err(errno),
            _ => Ok(Some(Taken { offset: at, bytes: written.bytes })),
        }
    }
}
