//! Attributes, access and space of inodes.

use crate::call::{Who, unexpected};
use crate::client::Client;
use crate::file::{Data, Handle};
use crate::names::Found;
use ashlar_types::message::{LeaseSet, MetaReply, MetaRequest, SetAttr};
use ashlar_types::{Attr, Errno, FileLayout, InodeId, LayoutPolicy, StatFs};
use bytes::Bytes;

impl Client {
    /// `getattr`: attributes of an inode.
    ///
    /// # Errors
    /// `ESTALE` when there is no such inode.
    pub fn getattr(&self, who: &Who, inode: InodeId) -> Result<Found, Errno> {
        let (before, reports) = (self.era(), self.reports.count());
        let ahead = self.ahead.take(inode, before, || self.env.clock.monotonic());
        // A split directory is asked about with its slices.
        if let Some((attr, leases)) = ahead.filter(|(attr, _)| attr.slices() == 0) {
            // ORDER: noted, then looked, as for an answer of the service.
            let reply = MetaReply::Attr { attr: attr.clone(), leases };
            self.attributes_told.note(&reply, &*self.env.clock);
            let found = self.found_attr(attr, leases);
            // ORDER: and looked once more whether what is only known here has been told meanwhile: then neither may have had it.
            if self.era() == before && !self.reports.has_since(reports, inode) {
                return Ok(found);
            }
        }
        // With a name a split directory is told without what its slices know, and for no time: asking all of them each time a path leads there would cost more
        // than the call at its end. This is where it is asked for.
        let is_passing = || who.pid != 0 && self.credentials.is_passing(who.pid);
        match self.split_directories.find(inode) {
            Some(known) if is_passing() => return self.getattr_in_part(who, &known),
            Some(known) => return self.getattr_whole(who, &known),
            None => {}
        }
        match self.ask_for_attr(who, &MetaRequest::Getattr { inode })? {
            // ORDER: known before a slice is asked, so that what is told of it can be taken back.
            Ok(found) if !found.is_whole => match self.split_of(inode)? {
                Some(known) if !is_passing() => self.getattr_whole(who, &known),
                _ => Ok(found),
            },
            Ok(found) => Ok(found),
            Err(other) => Err(unexpected(&other)),
        }
    }

    /// `setattr`: changes attributes. A change of size waits for reads and writes of this client and reports before.
    ///
    /// # Errors
    /// As `chmod(2)`, `chown(2)`, `utimensat(2)` and `truncate(2)`.
    pub fn setattr(
        &self,
        who: &Who,
        inode: InodeId,
        handle: Option<&Handle>,
        mut changes: SetAttr,
    ) -> Result<Found, Errno> {
        changes.has_handle = handle.is_some_and(|handle| handle.flags.write);
        self.settle_closes(inode)?;
        let Some(file) = self.open_file(inode) else {
            let reply = self.call(who, MetaRequest::Setattr { inode, changes });
            self.note_mode_set(inode, changes.mode);
            return self.found(reply?);
        };
        if changes.size.is_none() {
            // What this client knows of times is older than what is being set.
            self.report(&file, false)?;
            let reply = self.call(who, MetaRequest::Setattr { inode, changes });
            self.note_mode_set(inode, changes.mode);
            let found = self.found(reply?)?;
            let mut state = file.state.lock();
            state.times = (found.attr.atime, found.attr.mtime.max(found.attr.ctime));
            if changes.mtime.is_some() {
                state.mtime_shared = state.mtime_shared.map(|_| found.attr.mtime);
            }
            drop(state);
            return Ok(found);
        }
        let _exclusive = match self.exclusive(&file) {
            // Nobody may write it, because a target is missing or an earlier cut fails at a damaged block. None of that matters to empty it.
            Err(Errno::ENODEV | Errno::EIO) if changes.size == Some(0) => None,
            exclusive => Some(exclusive?),
        };
        self.report(&file, false)?;
        let reply = self.call(who, MetaRequest::Setattr { inode, changes });
        self.note_mode_set(inode, changes.mode);
        if reply.is_err() {
            // A cut may have been noted and not be carried out. ORDER: it comes before anything is written, or it would take that with it: who
            // asks for the lease again waits for it. Given back in good order: a writer that just ends would leave the size to be asked of
            // targets, one of which may be missing. If it cannot be, the end of the session does that.
            if let Err(errno) = self.report(&file, true) {
                tracing::warn!(%errno, %inode, "could not report size and times after a truncation that failed");
            }
            let mut state = file.state.lock();
            state.leases = LeaseSet::NONE;
            state.lease_epoch += 1;
            state.is_unpromised = false;
        }
        let found = self.found(reply?)?;
        let mut state = file.state.lock();
        state.times = (found.attr.atime, found.attr.mtime.max(found.attr.ctime));
        state.size = found.attr.size;
        // What was asked for before, while nobody had the file for itself, tells the old content.
        state.lease_epoch += 1;
        if found.attr.size == 0 {
            // An emptied file is back with its inode; whatever was held on its chunks is void.
            state.data = Data::Inline(None);
            state.leases = state.leases.without(LeaseSet::WRITE);
        } else if let Data::Inline(body) = &mut state.data {
            *body = None;
        }
        Ok(found)
    }

    /// Splits a directory into so many slices, or begins to if it has many entries, or, `of_new`, has directories split so that are made in it from now on.
    ///
    /// # Errors
    /// `EINVAL` for a number out of range, `EPERM` for somebody else's directory, `EEXIST` for one that is split
    /// otherwise.
    pub fn split(&self, who: &Who, directory: InodeId, slices: u16, of_new: bool) -> Result<(), Errno> {
        self.call_done(who, MetaRequest::Split { directory, slices, of_new })?;
        if !of_new && let Some(kernel) = self.kernel.get() {
            // What this session was told of the directory others do not take back any more: they change its slices.
            kernel.drop_entries(directory);
            kernel.drop_attributes(directory);
        }
        Ok(())
    }

    /// What [`Client::setattr`] would make of `last`, the last attributes of an inode that is gone. Nothing is stored.
    ///
    /// # Errors
    /// As `chmod(2)`, `chown(2)` and `utimensat(2)`; `ESTALE` for a change of size.
    pub fn setattr_removed(&self, who: &Who, last: Attr, changes: SetAttr) -> Result<Attr, Errno> {
        match self.call(who, MetaRequest::SetattrRemoved { last, changes })? {
            MetaReply::Attr { attr, .. } => Ok(attr),
            other => Err(unexpected(&other)),
        }
    }

    /// `access`: whether the caller has the permissions in `mask` (4 read, 2 write, 1 execute).
    ///
    /// # Errors
    /// `EACCES` if not.
    pub fn access(&self, who: &Who, inode: InodeId, mask: u32) -> Result<(), Errno> {
        self.call_done(who, MetaRequest::Access { inode, mask })
    }

    /// `readlink`: the target of a symbolic link.
    ///
    /// # Errors
    /// `EINVAL` for anything else.
    pub fn readlink(&self, who: &Who, inode: InodeId) -> Result<Bytes, Errno> {
        match self.call(who, MetaRequest::Readlink { inode })? {
            MetaReply::Bytes(target) => Ok(target),
            other => Err(unexpected(&other)),
        }
    }

    /// `statfs`: space and inodes.
    ///
    /// # Errors
    /// `EIO` when a target does not answer.
    pub fn statfs(&self) -> Result<StatFs, Errno> {
        match self.call(&Who::system(), MetaRequest::Statfs)? {
            MetaReply::StatFs(statfs) => Ok(statfs),
            other => Err(unexpected(&other)),
        }
    }

    /// Layout settings of a directory or file, and where its chunks are if it has any.
    ///
    /// # Errors
    /// `EINVAL` for what has no data.
    pub fn layout_show(
        &self,
        who: &Who,
        inode: InodeId,
    ) -> Result<(LayoutPolicy, Option<FileLayout>), Errno> {
        match self.call(who, MetaRequest::LayoutShow { inode })? {
            MetaReply::Policy { policy, layout } => Ok((policy, layout)),
            other => Err(unexpected(&other)),
        }
    }

    /// Changes the layout settings that are set in `policy`.
    ///
    /// # Errors
    /// `EINVAL` for a value out of range, `EPERM` for somebody else's directory.
    pub fn layout_set(&self, who: &Who, inode: InodeId, policy: LayoutPolicy) -> Result<(), Errno> {
        self.call_done(who, MetaRequest::LayoutSet { inode, policy })?;
        if let (Some(file), Some(bytes)) = (self.files.find(inode), policy.inline_bytes) {
            file.state.lock().inline_bytes = bytes.into();
        }
        Ok(())
    }
}
