//! Verbs on names: lookup, create, link, rename, remove, open and close.

use crate::call::{Who, unexpected};
use crate::client::Client;
use crate::close_to_open::Version;
use crate::file::{Data, File, FileState, Handle, OpenFlags, Unreported};
use crate::io::BlockDoubt;
use crate::pages::Pages;
use ashlar_types::message::{LeaseSet, MetaReply, MetaRequest, OpenReply, RenameFlags};
use ashlar_types::{Attr, DescriptionId, Errno, InodeId, Name};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// An inode and for how long what was told may be cached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its attributes.
    pub attr: Attr,
    /// How long the kernel may keep the attributes.
    pub attr_valid: Duration,
    /// How long the kernel may keep the name.
    pub entry_valid: Duration,
    /// Whether the attributes are all there is to say. Those of a directory that is split are not where they come with a name: how many entries it has, and
    /// when one changed, is to be asked for.
    pub is_whole: bool,
}

/// A file that was opened, perhaps made.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The file.
    pub found: Found,
    /// The open file.
    pub handle: Arc<Handle>,
    /// Whether pages the kernel still has from before are good.
    pub keep_cache: bool,
    /// Whether the file did not exist before.
    pub created: bool,
    /// Whether another open file of this client can read it.
    pub has_readers: bool,
}

/// A file that is being opened.
struct Opening {
    handle: DescriptionId,
    flags: OpenFlags,
    /// When it began.
    era: u64,
    at: Duration,
}

impl Client {
    fn valid(&self, leases: LeaseSet, lease: LeaseSet) -> Duration {
        if leases.has(lease) { self.lease_term } else { Duration::ZERO }
    }

    pub(crate) fn found(&self, reply: MetaReply) -> Result<Found, Errno> {
        match reply {
            MetaReply::Attr { attr, leases } => Ok(self.found_attr(attr, leases)),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn found_attr(&self, attr: Attr, leases: LeaseSet) -> Found {
        if self.is_close_to_open() {
            return self.found_loosely(attr);
        }
        // Without what its slices know the attributes of a split directory are good for nothing but its mode and owner.
        let is_whole = attr.slices() == 0;
        let of_attr = if is_whole { leases } else { LeaseSet::NONE };
        Found {
            is_whole,
            attr: self.overlay(attr),
            attr_valid: self.valid(of_attr, LeaseSet::ATTR),
            entry_valid: self.valid(leases, LeaseSet::ENTRIES),
        }
    }

    /// `lookup`: one step of path resolution; `Err` side of the inner result tells for how long the absence may be cached.
    ///
    /// # Errors
    /// As the verb; `ENOENT` is told by the inner result.
    pub fn lookup(
        &self,
        who: &Who,
        parent: InodeId,
        name: Name<'_>,
    ) -> Result<Result<Found, Duration>, Errno> {
        match self.ask_for_attr(who, &MetaRequest::Lookup { parent, name })? {
            Ok(found) => Ok(Ok(found)),
            Err(MetaReply::NoEntry { leases }) => Ok(Err(self.valid(leases, LeaseSet::ENTRIES))),
            Err(other) => Err(unexpected(&other)),
        }
    }

    /// `mkdir`.
    ///
    /// # Errors
    /// As `mkdir(2)`.
    pub fn mkdir(
        &self,
        who: &Who,
        parent: InodeId,
        name: Name<'_>,
        mode: u32,
        umask: u32,
    ) -> Result<Found, Errno> {
        let reply = self.call(who, MetaRequest::Mkdir { parent, name, mode, umask })?;
        self.found(reply)
    }

    /// `mknod`.
    ///
    /// # Errors
    /// As `mknod(2)`.
    pub fn mknod(
        &self,
        who: &Who,
        (parent, name): (InodeId, Name<'_>),
        mode: u32,
        umask: u32,
        rdev: u32,
    ) -> Result<Found, Errno> {
        let reply = self.call(who, MetaRequest::Mknod { parent, name, mode, umask, rdev })?;
        self.found(reply)
    }

    /// `symlink`.
    ///
    /// # Errors
    /// As `symlink(2)`.
    pub fn symlink(&self, who: &Who, parent: InodeId, name: Name<'_>, target: &[u8]) -> Result<Found, Errno> {
        let reply = self.call(who, MetaRequest::Symlink { parent, name, target })?;
        self.found(reply)
    }

    /// `link`.
    ///
    /// # Errors
    /// As `link(2)`.
    pub fn link(&self, who: &Who, inode: InodeId, parent: InodeId, name: Name<'_>) -> Result<Found, Errno> {
        let before = self.reports.count();
        let reply = self.call(who, MetaRequest::Link { inode, parent, name })?;
        Ok(self.refreshed(who, before, self.found(reply)?))
    }

    /// `unlink`; tells the last attributes of the inode when it is gone with this name.
    ///
    /// # Errors
    /// As `unlink(2)`.
    pub fn unlink(&self, who: &Who, parent: InodeId, name: Name<'_>) -> Result<Option<Attr>, Errno> {
        let reply = self.call(who, MetaRequest::Unlink { parent, name })?;
        removed(reply)
    }

    /// `rmdir`; tells the last attributes of the directory when nobody has it open.
    ///
    /// # Errors
    /// As `rmdir(2)`.
    pub fn rmdir(&self, who: &Who, parent: InodeId, name: Name<'_>) -> Result<Option<Attr>, Errno> {
        let reply = self.call(who, MetaRequest::Rmdir { parent, name })?;
        let last = removed(reply)?;
        last.iter().for_each(|last| self.split_directories.forget(last.inode));
        Ok(last)
    }

    /// `renameat2`; tells the last attributes of what was replaced when it is gone with this name.
    ///
    /// # Errors
    /// As `rename(2)`.
    pub fn rename(
        &self,
        who: &Who,
        (from_parent, from_name): (InodeId, Name<'_>),
        (to_parent, to_name): (InodeId, Name<'_>),
        flags: RenameFlags,
    ) -> Result<Option<Attr>, Errno> {
        let reply =
            self.call(who, MetaRequest::Rename { from_parent, from_name, to_parent, to_name, flags })?;
        if matches!(reply, MetaReply::Removed { leases, .. } if !leases.has(LeaseSet::ENTRIES))
            && let Some(kernel) = self.kernel.get()
        {
            // What the kernel has moved it keeps for as long as where it was; where it is now nobody would take it back.
            kernel.drop_entries(to_parent);
        }
        removed(reply)
    }

    /// `open` with `O_CREAT`: makes the file or finds it, and opens it.
    ///
    /// # Errors
    /// As `open(2)`.
    pub fn create(
        &self,
        who: &Who,
        (parent, name): (InodeId, Name<'_>),
        (mode, umask): (u32, u32),
        exclusive: bool,
        flags: OpenFlags,
    ) -> Result<Opened, Errno> {
        let OpenFlags { read, write, truncate, .. } = flags;
        let opening = self.begin_open(flags);
        let handle = opening.handle;
        let request =
            MetaRequest::Create { parent, name, mode, umask, exclusive, read, write, truncate, handle };
        let before = self.reports.count();
        let reply = self.call(who, request)?;
        self.opened_refreshed(who, before, self.opened(reply, &opening)?)
    }

    /// `open` with `O_TMPFILE`: makes a file without a name and opens it.
    ///
    /// # Errors
    /// As `open(2)`.
    pub fn tmpfile(
        &self,
        who: &Who,
        parent: InodeId,
        (mode, umask): (u32, u32),
        flags: OpenFlags,
    ) -> Result<Opened, Errno> {
        let opening = self.begin_open(flags);
        let handle = opening.handle;
        let reply = self.call(who, MetaRequest::Tmpfile { parent, mode, umask, handle })?;
        self.opened(reply, &opening)
    }

    /// `open` of an existing file.
    ///
    /// # Errors
    /// As `open(2)`.
    pub fn open(&self, who: &Who, inode: InodeId, flags: OpenFlags) -> Result<Opened, Errno> {
        if flags.truncate
            && let Some(file) = self.open_file(inode)
        {
            // What this client has not reported about the old content must not arrive after the truncation.
            self.report_and_give_back(&file)?;
        }
        let opening = self.begin_open(flags);
        let request = MetaRequest::Open {
            inode,
            read: flags.read || flags.exec,
            write: flags.write,
            truncate: flags.truncate,
            handle: opening.handle,
        };
        let before = self.reports.count();
        let reply = self.call(who, request)?;
        self.opened_refreshed(who, before, self.opened(reply, &opening)?)
    }

    fn opened_refreshed(&self, who: &Who, reports_before: u64, opened: Opened) -> Result<Opened, Errno> {
        Ok(Opened { found: self.refreshed(who, reports_before, opened.found.clone()), ..opened })
    }

    /// A file is about to be opened.
    fn begin_open(&self, flags: OpenFlags) -> Opening {
        let handle = DescriptionId(self.handles_made.fetch_add(1, SeqCst));
        // Costs a look at the clock, which only such a session needs.
        let at = if self.is_close_to_open() { self.env.clock.monotonic() } else { Duration::ZERO };
        Opening { handle, flags, era: self.era(), at }
    }

    fn opened(&self, reply: MetaReply, opening: &Opening) -> Result<Opened, Errno> {
        let flags = opening.flags;
        let MetaReply::Opened { open, created } = reply else { return Err(unexpected(&reply)) };
        let OpenReply {
            attr,
            data,
            inline_bytes,
            leases,
            recall_mark,
            is_shared,
            kept_read,
            durability,
            proof,
        } = open;
        let is_shared = is_shared || flags.past_cache;
        let granted = leases.and(LeaseSet::CONTENT);
        let times = (attr.atime, attr.mtime.max(attr.ctime));
        let (size, fresh_data) = (attr.size, Data::from(data));
        let update_data = fresh_data.clone();
        let (is_loose, version) = (self.is_close_to_open(), Version::of(&attr));
        let pages = Pages::of(&attr);
        let is_fresh = Cell::new(false);
        let made = || FileState {
            leases: granted,
            learnt: opening.at,
            version,
            data: fresh_data,
            inline_bytes,
            size,
            is_unpromised: size == 0 && granted != LeaseSet::NONE && !is_loose,
            times,
            pages,
            durability,
            ..FileState::unknown()
        };
        let fresh = || {
            is_fresh.set(true);
            made()
        };
        let update = |state: &mut FileState| {
            // With a lease of its own the file knows at least as much as this reply; without, the reply is news.
            // What has not been reported yet is newer than any reply.
            // A session that is close-to-open has what it knows without a lease, unless it writes.
            let has_none = match is_loose {
                true => !state.leases.has(LeaseSet::WRITE) && state.learnt <= opening.at,
                false => state.leases == LeaseSet::NONE,
            };
            let is_news = has_none && granted != LeaseSet::NONE && !state.is_dirty;
            if flags.truncate {
                // Blocks and size of what was emptied are nobody's any more.
                (state.is_dirty, state.unreported) = (false, Unreported::default());
                // So is what is on its way: metadata takes a report about emptied content for nothing.
                state.reporting = state.reporting.map(|_| (0, Unreported::default()));
            }
            if flags.truncate || is_news {
                state.data = update_data;
                state.size = size;
                (state.learnt, state.version) = (opening.at, version);
            }
            state.inline_bytes = inline_bytes;
            state.leases = state.leases.with(granted);
            state.times = times;
        };
        let (file, has_readers) =
            self.files.open(attr.inode, (opening.handle, flags, is_shared), proof, fresh, update);
        let is_known = self.era() == opening.era;
        // ORDER: looked at when the file can be found by the recall: either it sees the lease, or this sees the recall.
        if self.is_overtaken(file.inode, recall_mark) || !is_known {
            let mut state = file.state.lock();
            state.leases = state.leases.without(granted);
            state.lease_epoch += 1;
            state.is_unpromised = false;
        }
        if !is_known {
            self.tell_open(&file)?;
        }
        let handle = Arc::new(Handle::new(opening.handle.0, file, flags, is_shared));
        let keep_cache = self.keeps_pages(&attr, kept_read);
        if keep_cache && is_fresh.get() {
            handle.file.state.lock().pages.note_kept();
        }
        Ok(Opened { found: self.found_attr(attr, leases), handle, keep_cache, created, has_readers })
    }

    /// `close` of one descriptor: reports what is known here, so that it is seen by whoever opens next.
    ///
    /// # Errors
    /// The first error of reporting.
    pub fn flush(&self, handle: &Handle) -> Result<(), Errno> {
        match self.closes.is_used() {
            // When it was read is told with the last close.
            true => self.report_written(&handle.file),
            false => self.report(&handle.file, false),
        }
    }

    /// The last `close` of an open file description; tells the last attributes of a file without a name that is gone with it.
    pub fn release(&self, handle: &Handle) -> Option<Attr> {
        self.drop_description_locks(handle);
        let inode = handle.file.inode;
        // Whoever opens the file next is to have it for himself, and of a large one that is worth a call.
        let is_large = matches!(handle.file.state.lock().data, Data::Chunks(_));
        let may_wait = !(is_large && handle.flags.write);
        let mut is_told_later = false;
        if self.files.begin_close(&handle.file, DescriptionId(handle.number), handle.flags) {
            is_told_later = may_wait && self.close_read_later(&handle.file, handle.number);
            // ORDER: before the file is forgotten. Whoever opens it in between goes on with what is known here; with a lease of his own he
            // would lose it to the report below, which gives back what the session has.
            if let Err(errno) = self.count_and_give_back(&handle.file) {
                tracing::error!(%errno, inode = %handle.file.inode, "could not report size and times at close");
            }
            self.files.end_close(&handle.file);
        }
        if is_told_later || may_wait && self.close_later(inode, handle.number, None) {
            return None;
        }
        let request = MetaRequest::Release { inode, handle: DescriptionId(handle.number) };
        self.call(&Who::system(), request).and_then(removed).unwrap_or_else(|errno| {
            tracing::warn!(%errno, %inode, "could not report a close");
            None
        })
    }

    /// Has a close be told later with when `file` was read last, if that is all there is to report of it.
    fn close_read_later(&self, file: &File, handle: u64) -> bool {
        // ORDER: under the lock. When it was read is known with the file or with its close.
        let mut state = file.state.lock();
        let is_all = !state.is_dirty
            && state.reporting.is_none()
            && state.block_doubt == BlockDoubt::None
            && state.unreported == Unreported { atime: state.unreported.atime, ..Unreported::default() }
            && !state.leases.meets(LeaseSet::WRITING);
        let is_told = is_all
            && state.unreported.atime.is_some()
            && self.close_later(file.inode, handle, state.unreported.atime);
        if is_told {
            state.unreported.atime = None;
        }
        is_told
    }

    /// What is not known of its blocks keeps its writer's record, as when the client ends: metadata counts by that.
    fn count_and_give_back(&self, file: &File) -> Result<(), Errno> {
        // ORDER: the lock is let go before the count, which takes it.
        let doubt = file.state.lock().block_doubt;
        if doubt == BlockDoubt::MadeAgain {
            self.count_if_unsure(file);
        }
        let is_known = file.state.lock().block_doubt == BlockDoubt::None;
        if is_known { self.report_and_give_back(file) } else { self.report(file, false) }
    }
}

fn removed(reply: MetaReply) -> Result<Option<Attr>, Errno> {
    match reply {
        MetaReply::Removed { last, .. } => Ok(last),
        other => Err(unexpected(&other)),
    }
}
