//! `write`.

use crate::call::{Who, unexpected};
use crate::client::Client;
use crate::data::Need;
use crate::file::{Data, File, FileState, Handle};
use crate::io::BlockDoubt;
use crate::pages::Stretch;
use ashlar_types::message::{LeaseSet, MetaReply, MetaRequest};
use ashlar_types::{Capabilities, Durability, Errno};
use parking_lot::MutexGuard;

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
    /// A call of a program that goes past the kernel's page cache, which may have pages of the file all the same.
    pub is_past_cache: bool,
    /// Recalls of the file are answered while it waits for a lease ([`crate::ThroughPages::yields`]), so nobody goes ahead of their answers.
    pub yields: bool,
}

impl WriteFlags {
    /// Of a call for which the kernel does not say whether set-id bits must be cleared: they must unless `who` is privileged.
    pub(super) fn on_behalf_of(who: &Who) -> WriteFlags {
        WriteFlags { kill_set_id: !who.creds.caps.has(Capabilities::FSETID), ..WriteFlags::default() }
    }
}

/// What a write has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Where its first byte is.
    pub offset: u64,
    /// How many bytes were taken.
    pub bytes: usize,
}

/// How a write went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is done, but for what is left.
    Done(Taken, Left),
    /// Nothing is done, because the kernel may have pages: [`Client::write_over_pages`] does it. Only of writes past the page cache.
    MeetsPages,
}

/// What the caller is to do before a write is answered, in this order; both may take long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Have the kernel drop pages that may be from before the write ([`crate::KernelCache::drop_range`]), also where making it durable fails. Only of
    /// writes past the page cache.
    pub drop_pages: bool,
    /// Make it durable ([`Client::fsync`]).
    pub sync: bool,
}

/// How one try went.
pub(super) enum Tried {
    Written(Taken),
    /// Beside a request for pages.
    BesidePages(Taken),
    /// Not at all.
    MeetsPages,
    /// The content is not where it was: with the inode, or in chunks.
    IsElsewhere,
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
        self.write_whole(&Who::system(), handle, offset, data, flags)
    }

    /// As [`Client::write`], on behalf of `who`.
    pub(super) fn write_whole(
        &self,
        who: &Who,
        handle: &Handle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize, Errno> {
        let flags = WriteFlags { is_past_cache: false, ..flags };
        let Written::Done(taken, left) = self.write_as(who, handle, offset, data, flags)? else {
            return Err(Errno::EIO);
        };
        if left.sync {
            self.fsync(handle)?;
        }
        Ok(taken.bytes)
    }

    /// As [`Client::write`], on behalf of `who`, whose groups decide about some set-id bits; tells where the bytes are, and what is left to do. The right
    /// to write came with `handle`.
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
    ) -> Result<Written, Errno> {
        let file = &handle.file;
        let append = flags.append.unwrap_or(handle.flags.append) && !flags.is_writeback;
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > FILE_BYTES_MAX) {
            return Err(Errno::EFBIG);
        }
        if data.is_empty() {
            return Ok(Written::Done(Taken { offset, bytes: 0 }, Left::default()));
        }
        if !flags.is_writeback {
            self.check_locks(handle)?;
        }
        let _back = flags.is_writeback.then(|| file.begin_writing_back(offset, data.len() as u64));
        // LIMIT: a file leaves its inode once, and comes back only by a truncation that races with this very write.
        for _ in 0..8 {
            let (is_inline, outgrows_inode) = {
                let state = file.state.lock();
                let end_at_least = data.len() as u64 + if append { 0 } else { offset };
                (matches!(state.data, Data::Inline(_)), end_at_least > state.inline_bytes)
            };
            let tried = if is_inline && outgrows_inode {
                Tried::IsElsewhere
            } else if is_inline {
                self.write_inline(who, file, offset, data, (append, flags))?
            } else {
                self.clear_set_id(who, file, flags)?;
                self.write_to_chunks(file, offset, data, (append, flags))?
            };
            let (taken, drop_pages) = match tried {
                Tried::Written(taken) => (taken, false),
                Tried::BesidePages(taken) => (taken, true),
                Tried::MeetsPages => return Ok(Written::MeetsPages),
                Tried::IsElsewhere => {
                    if is_inline && !(outgrows_inode && self.has_left_inode(file, (append, flags))?) {
                        self.spill(file, flags)?;
                    }
                    continue;
                }
            };
            let left = Left { drop_pages, sync: self.must_sync(handle, flags) };
            if taken.bytes < data.len() && flags.is_writeback {
                // The kernel takes a page that was written back in part for a clean one: it must hear of the failure.
                self.write(handle, offset + taken.bytes as u64, &data[taken.bytes..], flags)?;
                return Ok(Written::Done(Taken { offset, bytes: data.len() }, left));
            }
            return Ok(Written::Done(taken, left));
        }
        Err(Errno::EIO)
    }

    /// Whether another client has had the file leave its inode. Of many that begin to write it at the same time one does that, and all others go on beside each
    /// other from their first write on: each would have to be alone otherwise to find it done, and then write a first time before the next one's turn.
    fn has_left_inode(&self, file: &File, (append, flags): (bool, WriteFlags)) -> Result<bool, Errno> {
        if !flags.is_past_cache || append {
            return Ok(false);
        }
        let need = Need::of(LeaseSet::WRITE).past_cache(true).yielding(flags.yields).outgrowing_inode();
        let (_in_flight, state) = self.begin_as(file, need)?;
        Ok(matches!(state.data, Data::Chunks(_)))
    }

    /// Whether a write is to be durable before it is answered.
    pub(super) fn must_sync(&self, handle: &Handle, flags: WriteFlags) -> bool {
        handle.flags.sync
            || flags.is_sync
            || self.session().durability() == Durability::Sync
            || handle.file.state.lock().durability == Durability::Sync
    }

    /// Writes with the inode, beside other such writes. It needs no lease; but what a program writes through the kernel's page cache stays there, and only
    /// from a session that has READ are pages recalled.
    fn write_inline(
        &self,
        who: &Who,
        file: &File,
        offset: u64,
        data: &[u8],
        (append, flags): (bool, WriteFlags),
    ) -> Result<Tried, Errno> {
        if !flags.is_past_cache && !flags.is_writeback {
            // ORDER: the pages are there already, and a recall whose dropping of pages came before them sees that something began since. It must not wait
            // for this write, which may itself wait for leases of others.
            // Under WRITE the service does not wait for what others have in their pages; so those are waited for here, if that WRITE came before they had gone.
            let is_early = flags.yields && file.state.lock().may_be_early;
            let lease = if is_early { LeaseSet::WRITE } else { LeaseSet::READ };
            let (begun, state) = self.begin_as(file, Need::of(lease).yielding(flags.yields))?;
            drop(state);
            drop(begun);
        }
        let writing = file.begin_inline()?;
        let beside = if flags.is_past_cache {
            let beside = file.state.lock().pages.begin_beside(file, Stretch::ALL, true);
            let Some(beside) = beside else { return Ok(Tried::MeetsPages) };
            Some(beside)
        } else {
            None
        };
        let tried = self.send_inline(who, file, offset, data, (append, flags))?;
        drop(writing);
        // A request for pages that came meanwhile does not wait for long.
        let meets_pages = beside.is_some() && file.state.lock().pages.may_exist();
        Ok(match tried {
            Tried::Written(taken) if meets_pages => Tried::BesidePages(taken),
            tried => tried,
        })
    }

    /// Writes with the inode; the caller is counted as doing so, or has the file for itself.
    pub(super) fn send_inline(
        &self,
        who: &Who,
        file: &File,
        offset: u64,
        data: &[u8],
        (append, flags): (bool, WriteFlags),
    ) -> Result<Tried, Errno> {
        let WriteFlags { kill_set_id, is_writeback, .. } = flags;
        let lease_epoch = {
            let mut state = file.state.lock();
            self.note_length(&mut state, is_writeback, offset + data.len() as u64);
            state.lease_epoch
        };
        let inode = file.inode;
        let request = MetaRequest::WriteInline { inode, offset, data, append, kill_set_id, is_writeback };
        let who = if kill_set_id { who.clone() } else { Who::system() }.yielding(flags.yields);
        let reply = if kill_set_id { self.call_for_write(&who, request)? } else { self.call(&who, request)? };
        match reply {
            MetaReply::WrittenInline { attr, .. } => {
                let mut state = file.state.lock();
                state.note_inline_written(attr.size);
                if state.lease_epoch != lease_epoch {
                    // Leases changed hands meanwhile; what is known now may be from before or after this write. Who waits for its end to have the file
                    // for itself asks anew, too ([`Client::exclusive`]).
                    state.leases = LeaseSet::NONE;
                } else if let Data::Inline(body) = &mut state.data {
                    *body = None;
                    state.size = state.size.max(attr.size);
                    state.times.1 = attr.mtime.max(attr.ctime);
                }
                // What was appended ends where the file ended then.
                let offset = if append { attr.size.saturating_sub(data.len() as u64) } else { offset };
                Ok(Tried::Written(Taken { offset, bytes: data.len() }))
            }
            MetaReply::NeedsChunks => Ok(Tried::IsElsewhere),
            other => Err(unexpected(&other)),
        }
    }

    /// Writes to chunks under WRITE, or past the page cache under SHARE.
    ///
    /// # Errors
    /// What storage answers, when not even the first bytes could be written.
    fn write_to_chunks(
        &self,
        file: &File,
        offset: u64,
        data: &[u8],
        (append, flags): (bool, WriteFlags),
    ) -> Result<Tried, Errno> {
        // An append has to know the end, which nobody does beside others.
        let need = Need::of(LeaseSet::WRITE)
            .for_writeback(flags.is_writeback)
            .past_cache(flags.is_past_cache && !append)
            .yielding(flags.yields);
        let (_in_flight, mut state) = self.begin_as(file, need)?;
        let _beside = if flags.is_past_cache {
            let range = Stretch::of_pages(state.place(append, offset), data.len() as u64);
            let Some(beside) = state.pages.begin_beside(file, range, false) else {
                return Ok(Tried::MeetsPages);
            };
            Some(beside)
        } else {
            None
        };
        self.send_to_chunks(file, state, offset, data, (append, flags.is_writeback))
    }

    /// Writes to chunks; the caller is counted as doing so.
    ///
    /// # Errors
    /// As [`Client::write_to_chunks`].
    pub(super) fn send_to_chunks(
        &self,
        file: &File,
        mut state: MutexGuard<'_, FileState>,
        offset: u64,
        data: &[u8],
        (append, is_writeback): (bool, bool),
    ) -> Result<Tried, Errno> {
        let Data::Chunks(layout) = &state.data else { return Ok(Tried::IsElsewhere) };
        let layout = layout.clone();
        let at = state.place(append, offset);
        let end =
            at.checked_add(data.len() as u64).filter(|&end| end <= FILE_BYTES_MAX).ok_or(Errno::EFBIG)?;
        if at == offset {
            self.note_length(&mut state, is_writeback, end);
        }
        // The place is taken before the bytes are there, so that appends of other threads go behind it.
        let writing = file.begin_write(&mut state, end, append);
        // ORDER: read while the lease is known to be held. Leases are dropped, under this lock, before another session is taken.
        let session = self.session();
        drop(state);
        let mut written = self.write_chunks(session, (file.inode, &layout), at, data);
        let now = self.env.clock.now();
        let written_end = at + written.bytes as u64;
        let must_have = self.take_back(session, (file, &layout), &written.behind, &mut written.grown);
        let mut state = file.state.lock();
        writing.end(&mut state, written_end);
        // What a write has left whose session or lease is lost is no matter of the next one: others may have cut the file since. Metadata finds out how long it is when it ends the
        // session.
        let is_of_ended = self.is_of_ended(&state, session);
        let has_file = !is_of_ended && state.leases.meets(LeaseSet::WRITING);
        let must_have = if has_file { must_have } else { 0 };
        if written.bytes > 0 || must_have > 0 {
            state.unreported.mtime = Some(now);
            state.unreported.is_of_a_call |= !is_writeback;
            state.times.1 = now;
        }
        if is_of_ended {
            state.doubt_blocks(BlockDoubt::MadeAgain);
        } else {
            state.note_grown(written.grown);
            if written.bytes > 0 || must_have > 0 {
                state.is_dirty = true;
                state.size = state.size.max(written_end).max(must_have);
            }
        }
        drop(state);
        match written.outcome {
            Err(errno) if written.bytes == 0 => Err(errno),
            _ => Ok(Tried::Written(Taken { offset: at, bytes: written.bytes })),
        }
    }
}
