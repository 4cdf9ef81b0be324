//! Requests on open files.

use super::late::{Rest, Sync};
use super::{Adaptor, convert, identity, name};
use crate::errno::Errno;
use crate::id::LockOwner;
use crate::protocol::{
    CopyFileRange, Create, Fallocate, Flush, Fsync, Lseek, Open, OpenReplyFlags, Read, Release, Write,
};
use crate::reply::{Created, Opened, ReplyBuffer};
use crate::request::Request;
use crate::transport::region::page_size;
use crate::{Deferral, Ended, Written};
use ashlar_client::{
    AllocateMode, Handle, Left, OpenFlags, Seek, Taken, ThroughPages, ToDrop, Who, WriteFlags,
};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// What is allocated, punched or zeroed by a worker itself, bytes: some milliseconds on memory, much less on a disk.
const SHORT_ALLOCATION_BYTES: u64 = 16 << 20;

/// `__FMODE_EXEC`, which the kernel passes in the flags of an open for execution.
const FMODE_EXEC: u32 = 0x20;

/// The client's flags for those of `open(2)`.
pub(super) fn open_flags(flags: u32) -> OpenFlags {
    let has = |flag: i32| flags & flag as u32 == flag as u32;
    let access = flags & libc::O_ACCMODE as u32;
    OpenFlags {
        read: access != libc::O_WRONLY as u32,
        write: access == libc::O_WRONLY as u32 || access == libc::O_RDWR as u32,
        append: has(libc::O_APPEND),
        truncate: has(libc::O_TRUNC),
        sync: has(libc::O_DSYNC),
        exec: flags & FMODE_EXEC != 0,
        no_atime: has(libc::O_NOATIME),
        past_cache: false,
    }
}

/// Of a write(2) through the page cache the part that fills whole pages of `page` bytes: where it begins, and its length. The others, if they were not in the cache
/// before, the kernel has locked until the write is answered, and they do not count as read then (`fuse_fill_write_pages`, `fuse_send_write_pages`).
fn whole_pages(offset: u64, bytes: u64, page: u64) -> Option<(u64, u64)> {
    let first = offset.checked_next_multiple_of(page)?;
    let behind = offset.checked_add(bytes)? / page * page;
    let bytes = behind.checked_sub(first).filter(|bytes| *bytes > 0)?;
    Some((first, bytes))
}

/// The page that the kernel may have locked while such a write is not answered: the last one, if that is not filled whole (see [`ashlar_client::ThroughPages`]). Where it begins, and its length.
fn last_page(offset: u64, bytes: u64, page: u64) -> Option<(u64, u64)> {
    let end = offset.checked_add(bytes)?;
    let last = end.checked_sub(1)? / page * page;
    let is_whole = offset <= last && end == last + page;
    (!is_whole).then_some((last, page))
}

/// The kernel bounds a write by max_write, far below 4 GiB.
fn bytes(taken: Taken) -> u32 {
    taken.bytes as u32
}

impl Adaptor {
    /// How the kernel is to use an open file.
    ///
    /// A handle that cannot read writes past the page cache: its pages would be copied twice and kept twice (the storage service's pages
    /// hold them, too), and the first buffered write to a file costs a GETXATTR round trip for `security.capability`, which the service
    /// clears by itself. So does one opened with `O_DIRECT`, where that does not forbid to map it: then writes that do not extend the file
    /// go on beside each other, and the chunk store keeps overlapping ones apart block by block.
    ///
    /// A file that is open here for reading, too, is written through the page cache: its pages are used, and a write past them costs more (see
    /// [`super::late`]).
    fn opened(&self, opened: &ashlar_client::Opened) -> Opened {
        let flags = &opened.handle.flags;
        // The kernel of a client that is close-to-open drops pages whenever it learns of another time of change. Where that met a write through
        // its cache which is on its way, the page would be filled with what was there before.
        let is_loose = self.client.is_close_to_open();
        let wants_direct = is_loose && flags.write && self.maps_direct.load(Relaxed);
        let is_direct =
            opened.handle.is_shared || wants_direct || (flags.write && !flags.read && !opened.has_readers);
        let flags = OpenReplyFlags::PARALLEL_DIRECT_WRITES
            | OpenReplyFlags::when(OpenReplyFlags::DIRECT_IO, is_direct)
            | OpenReplyFlags::when(OpenReplyFlags::KEEP_CACHE, opened.keep_cache && !opened.handle.is_shared);
        Opened { fh: self.handles.insert(opened.handle.clone(), false), flags, backing: None }
    }

    /// As [`open_flags`], for an open.
    fn flags_of_open(&self, flags: u32) -> OpenFlags {
        let past_cache = flags & libc::O_DIRECT as u32 != 0 && self.maps_direct.load(Relaxed);
        OpenFlags { past_cache, ..open_flags(flags) }
    }

    pub(super) fn on_open(&self, request: &Request<'_>, args: &Open) -> Result<Opened, Errno> {
        let flags = self.flags_of_open(args.flags);
        let opened = self.client.open(&identity::who(request), self.inode(request.node), flags);
        Ok(self.opened(&opened.map_err(convert::found_by_name)?))
    }

    pub(super) fn on_create(&self, request: &Request<'_>, args: &Create<'_>) -> Result<Created, Errno> {
        let place = (self.inode(request.node), name::checked(args.name)?);
        // One that is sent once more may have made the file already.
        let is_exclusive = args.flags & libc::O_EXCL as u32 != 0 && !request.unique.is_resent();
        let flags = self.flags_of_open(args.flags);
        let modes = (args.mode, args.umask);
        let opened = self.client.create(&identity::who(request), place, modes, is_exclusive, flags)?;
        Ok(Created { entry: self.entry(&opened.found), opened: self.opened(&opened) })
    }

    pub(super) fn on_tmpfile(&self, request: &Request<'_>, args: &Create<'_>) -> Result<Created, Errno> {
        let parent = self.inode(request.node);
        let flags = self.flags_of_open(args.flags);
        let opened = self.client.tmpfile(&identity::who(request), parent, (args.mode, args.umask), flags)?;
        Ok(Created { entry: self.entry(&opened.found), opened: self.opened(&opened) })
    }

    pub(super) fn on_read(
        &self,
        _request: &Request<'_>,
        args: &Read,
        reply: &mut ReplyBuffer<'_>,
    ) -> Result<(), Errno> {
        let handle = self.handles.find(args.fh)?;
        // A read(2) past the cache comes with the owner of its locks; what fills pages does not.
        let fills_pages = args.lock_owner.is_none();
        let spare = reply.spare();
        let want = spare.len().min(args.size as usize);
        let out = &mut spare[..want];
        let len = if fills_pages {
            self.client.fill_pages(&handle, args.offset, out)?
        } else {
            self.client.read_past_cache(&handle, args.offset, out)?
        };
        reply.advance(len);
        Ok(())
    }

    pub(super) fn on_write(
        &self,
        request: &Request<'_>,
        args: &Write<'_>,
        deferral: &Deferral<'_>,
    ) -> Result<Written, Errno> {
        let handle = self.handles.find(args.fh)?;
        // What holds for this write comes with it: O_APPEND may have changed since the open, and RWF_DSYNC is of one write.
        let asked = open_flags(args.flags);
        // A write past the cache comes with the owner of its locks. One through the cache does not, and has pages locked meanwhile.
        let is_past_cache = args.lock_owner.is_some() && !args.from_cache;
        let flags = WriteFlags {
            kill_set_id: args.kill_suid_gid,
            is_writeback: args.from_cache,
            append: Some(asked.append),
            is_sync: asked.sync,
            is_past_cache,
            yields: is_past_cache && self.client.answers_beside_writes(),
        };
        if !is_past_cache && !args.from_cache {
            return self.write_through(request, handle, args, flags, deferral);
        }
        let who = identity::who(request);
        let written = self.client.write_as(&who, &handle, args.offset, args.data, flags)?;
        self.written(who, handle, args, flags, written, deferral)
    }

    /// A write(2) that has come through the page cache: whatever it then waits for, recalls of the file do not wait for it.
    fn write_through(
        &self,
        request: &Request<'_>,
        handle: Arc<Handle>,
        args: &Write<'_>,
        flags: WriteFlags,
        deferral: &Deferral<'_>,
    ) -> Result<Written, Errno> {
        let len = args.data.len() as u64;
        let last = last_page(args.offset, len, page_size() as u64);
        let is_resent = request.unique.is_resent();
        let through = self.client.begin_through_pages(&handle, (args.offset, len), last, is_resent);
        let flags = WriteFlags { yields: through.yields(), ..flags };
        let (who, append) = (&identity::who(request), flags.append.unwrap_or_default());
        let through = if self.client.goes_beside(&handle, append) {
            match self.write_beside(who, &handle, args, flags, through, deferral) {
                Ok(written) => return written,
                Err(through) => through,
            }
        } else {
            through
        };
        self.client.begin_pages_through(&through)?;
        let written = self.client.write_as(who, &handle, args.offset, args.data, flags)?;
        let pages = through.end();
        match written {
            ashlar_client::Written::Done(taken, left) if !pages.is_empty() => {
                self.drop_pages(handle, pages, bytes(taken), left.sync, deferral)
            }
            written => self.written(who.clone(), handle, args, flags, written, deferral),
        }
    }

    /// Does what is left of a write.
    fn written(
        &self,
        who: Who,
        handle: Arc<Handle>,
        args: &Write<'_>,
        flags: WriteFlags,
        written: ashlar_client::Written,
        deferral: &Deferral<'_>,
    ) -> Result<Written, Errno> {
        match written {
            ashlar_client::Written::Done(taken, Left { drop_pages: true, sync }) => {
                let pages = ToDrop::range(taken.offset, taken.bytes as u64);
                self.drop_pages(handle, pages, bytes(taken), sync, deferral)
            }
            // What the kernel writes back is of the requests that reads may wait for.
            ashlar_client::Written::Done(taken, left) if left.sync && args.from_cache => {
                self.client.fsync(&handle)?;
                Ok(Written::Bytes(bytes(taken)))
            }
            ashlar_client::Written::Done(taken, left) if left.sync => {
                let bytes = bytes(taken);
                Ok(match self.sync(Sync::File(handle), Some(bytes), deferral)? {
                    Ended::Now => Written::Bytes(bytes),
                    Ended::Deferred => Written::Deferred,
                })
            }
            ashlar_client::Written::Done(taken, _) => Ok(Written::Bytes(bytes(taken))),
            ashlar_client::Written::MeetsPages => self.write_over_pages(who, handle, args, flags, deferral),
        }
    }

    /// Answers a write that is done once the pages are dropped that were read beside it, and then, if it `is_to_sync`, once it is durable.
    fn drop_pages(
        &self,
        handle: Arc<Handle>,
        pages: ToDrop,
        written: u32,
        is_to_sync: bool,
        deferral: &Deferral<'_>,
    ) -> Result<Written, Errno> {
        let replier = deferral.defer_write();
        // LIMIT: where the transport has no room to keep the request, it is answered by this worker, and the pages go a moment later.
        let is_kept = replier.is_some();
        self.late.add(Rest::DropPages {
            handle: handle.clone(),
            pages,
            written,
            is_to_sync: is_to_sync && is_kept,
            replier,
        });
        if is_kept {
            return Ok(Written::Deferred);
        }
        if is_to_sync {
            self.client.fsync(&handle)?;
        }
        Ok(Written::Bytes(written))
    }

    /// Has a write done by a thread that may wait for the kernel's pages.
    fn write_over_pages(
        &self,
        who: Who,
        handle: Arc<Handle>,
        args: &Write<'_>,
        flags: WriteFlags,
        deferral: &Deferral<'_>,
    ) -> Result<Written, Errno> {
        let Some(replier) = deferral.defer_write() else {
            // LIMIT: as above; such a write can be undone by a store into one of its pages.
            let flags = WriteFlags { is_past_cache: false, ..flags };
            let ashlar_client::Written::Done(taken, left) =
                self.client.write_as(&who, &handle, args.offset, args.data, flags)?
            else {
                return Err(Errno::EIO);
            };
            let pages = ToDrop::range(taken.offset, taken.bytes as u64);
            return self.drop_pages(handle, pages, bytes(taken), left.sync, deferral);
        };
        self.late.add(Rest::Write {
            who,
            handle,
            offset: args.offset,
            data: args.data.into(),
            flags,
            replier,
        });
        Ok(Written::Deferred)
    }

    /// Carries out a write that comes through the cache as if it did not, beside those of other clients. What it was given where it cannot be kept for as long as its pages
    /// take to go: then they stay, and other clients wait for this one.
    fn write_beside(
        &self,
        who: &Who,
        handle: &Arc<Handle>,
        args: &Write<'_>,
        flags: WriteFlags,
        through: ThroughPages,
        deferral: &Deferral<'_>,
    ) -> Result<Result<Written, Errno>, ThroughPages> {
        let Some(filled) = whole_pages(args.offset, args.data.len() as u64, page_size() as u64) else {
            let mut outcome = (Err(ashlar_types::Errno::EIO), false);
            let put = (args.offset, args.data);
            let answer = |taken, stays| outcome = (taken, stays);
            self.client.write_beside(who, handle, put, flags, None, answer);
            let pages = through.end();
            return Ok(match outcome {
                (Err(errno), _) => Err(errno.into()),
                (Ok(taken), true) if !pages.is_empty() => {
                    self.drop_pages(handle.clone(), pages, bytes(taken), false, deferral)
                }
                (Ok(taken), _) => Ok(Written::Bytes(bytes(taken))),
            });
        };
        // LIMIT: as in `write_over_pages`.
        let Some(replier) = deferral.defer_write() else { return Err(through) };
        let (who, handle) = (who.clone(), handle.clone());
        let (offset, data) = (args.offset, args.data.into());
        self.late.add(Rest::WriteBeside { who, handle, offset, data, filled, through, flags, replier });
        Ok(Ok(Written::Deferred))
    }

    pub(super) fn on_flush(&self, args: &Flush) -> Result<(), Errno> {
        let handle = self.handles.find(args.fh)?;
        let reported = self.client.flush(&handle);
        self.client.lock_release(&handle, ashlar_types::LockOwner(args.lock_owner.0), false)?;
        Ok(reported?)
    }

    pub(super) fn on_release(&self, args: &Release) -> Result<(), Errno> {
        let handle = self.handles.remove(args.fh)?;
        let unlocked = self.end_flock(&handle, args);
        // The file is closed in any case: nobody knows the handle any more.
        let Ok(()) = self.removed.during(|| Ok::<_, Infallible>(self.client.release(&handle)));
        Ok(unlocked?)
    }

    /// Drops what flock(2) has locked through a description that is closed.
    pub(super) fn end_flock(&self, handle: &Handle, args: &Release) -> Result<(), ashlar_types::Errno> {
        args.flock_unlock.map_or(Ok(()), |LockOwner(owner)| {
            self.client.lock_release(handle, ashlar_types::LockOwner(owner), true)
        })
    }

    pub(super) fn on_fsync(&self, args: &Fsync, deferral: &Deferral<'_>) -> Result<Ended, Errno> {
        self.sync(Sync::File(self.handles.find(args.fh)?), None, deferral)
    }

    /// Makes something durable, and answers a write that took `written` bytes, or what says no more than that it went well. One at a time is a worker's
    /// own doing where there are others: a program that syncs alone is answered sooner.
    pub(super) fn sync(
        &self,
        what: Sync,
        written: Option<u32>,
        deferral: &Deferral<'_>,
    ) -> Result<Ended, Errno> {
        let own = if self.has_other_workers.load(Relaxed) { self.worker_sync.try_lock() } else { None };
        let replier = match written {
            _ if own.is_some() => None,
            // It may be a background request, of which reads that have pages locked need their part.
            Some(_) => deferral.defer_write(),
            None => deferral.defer_long(),
        };
        let Some(replier) = replier else {
            what.carry_out(&self.client)?;
            return Ok(Ended::Now);
        };
        self.late.add(Rest::Sync { what, written, replier });
        Ok(Ended::Deferred)
    }

    pub(super) fn on_fallocate(
        &self,
        request: &Request<'_>,
        args: &Fallocate,
        deferral: &Deferral<'_>,
    ) -> Result<Ended, Errno> {
        let handle = self.handles.find(args.fh)?;
        let mode = AllocateMode::from_bits(args.mode)?;
        let range = (args.offset, args.length);
        let who = identity::who(request);
        let replier = if args.length > SHORT_ALLOCATION_BYTES { deferral.defer_long() } else { None };
        let Some(replier) = replier else {
            self.client.fallocate(&who, &handle, mode, range)?;
            return Ok(Ended::Now);
        };
        self.late.add(Rest::Allocate { who, handle: handle.clone(), mode, range, replier });
        Ok(Ended::Deferred)
    }

    pub(super) fn on_lseek(&self, args: &Lseek) -> Result<u64, Errno> {
        let handle = self.handles.find(args.fh)?;
        let what = match args.whence as i32 {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno::EINVAL),
        };
        Ok(self.client.seek(&handle, args.offset, what)?)
    }

    pub(super) fn on_copy_file_range(
        &self,
        request: &Request<'_>,
        args: &CopyFileRange,
    ) -> Result<u64, Errno> {
        let (from, to) = (self.handles.find(args.fh_in)?, self.handles.find(args.fh_out)?);
        // After the copy the kernel throws away the target's pages, and what was stored into other bytes of them meanwhile with them
        // (`fuse_copy_file_range`). Told this, it copies through its cache.
        if self.client.may_be_stored_into(&to, args.offset_out, args.length) {
            return Err(Errno::EOPNOTSUPP);
        }
        let who = identity::who(request);
        Ok(self.client.copy_file_range(&who, (&from, args.offset_in), (&to, args.offset_out), args.length)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_a_write_fills_whole_are_those_between_its_ends() {
        assert_eq!(whole_pages(0, 8192, 4096), Some((0, 8192)));
        assert_eq!(whole_pages(1, 8192, 4096), Some((4096, 4096)));
        assert_eq!(whole_pages(4095, 4098, 4096), Some((4096, 4096)));
        assert_eq!(whole_pages(100, 200, 4096), None, "within a page");
        assert_eq!(whole_pages(4000, 200, 4096), None, "over a border");
        assert_eq!(whole_pages(0, 4096, 65536), None);
        assert_eq!(whole_pages(u64::MAX - 1, 1, 4096), None);
    }
}
