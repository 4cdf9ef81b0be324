//! Data leases: becoming reader or sole writer of an open file, and reporting what was written.

use crate::call::{Who, unexpected};
use crate::client::Client;
use crate::close_to_open::Version;
use crate::file::{Asked, Data, File, FileState, InFlight, Unreported};
use crate::names::Found;
use ashlar_types::message::{LeaseSet, MetaReply, MetaRequest, Recall};
use ashlar_types::{Attr, Errno, InodeId};
use parking_lot::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// What a read or write needs of a file's leases.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// READ or WRITE. WRITE serves for READ.
    lease: LeaseSet,
    /// Whether it writes back pages of a mapping, which take no file capabilities away.
    is_writeback: bool,
    /// Whether it goes past the page cache, to or from a place that it knows, so that SHARE serves as well.
    may_share: bool,
    /// Whether recalls are answered while it waits ([`crate::WriteFlags::yields`]).
    yields: bool,
    /// Whether the file leaves its inode with it, unless another client has had it do so.
    outgrows_inode: bool,
}

impl Need {
    /// Of `lease`, READ or WRITE.
    pub(crate) fn of(lease: LeaseSet) -> Need {
        Need { lease, is_writeback: false, may_share: false, yields: false, outgrows_inode: false }
    }

    /// To write back pages of a mapping, if `is_writeback`.
    pub(crate) fn for_writeback(self, is_writeback: bool) -> Need {
        Need { is_writeback, ..self }
    }

    /// Past the page cache, if `may_share`.
    pub(crate) fn past_cache(self, may_share: bool) -> Need {
        Need { may_share, ..self }
    }

    /// Of a write for which recalls do not wait, if `yields`.
    pub(crate) fn yielding(self, yields: bool) -> Need {
        Need { yields, ..self }
    }

    /// Of what the file is too long for its inode with.
    pub(crate) fn outgrowing_inode(self) -> Need {
        Need { outgrows_inode: true, ..self }
    }

    fn asked(self) -> Asked {
        match self.lease.has(LeaseSet::WRITE) {
            true if self.is_writeback => Asked::WriteBack,
            true => Asked::Write,
            false => Asked::Read,
        }
    }

    fn is_met(self, leases: LeaseSet) -> bool {
        leases.has(self.lease) || leases.has(LeaseSet::WRITE) || self.may_share && leases.has(LeaseSet::SHARE)
    }
}

/// A file this client has for itself: WRITE is held, nothing of this client is under way, and a recall waits until this is dropped.
pub(crate) struct Exclusive<'a> {
    file: &'a File,
    _in_flight: InFlight<'a>,
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        let mut state = self.file.state.lock();
        state.is_draining = false;
        state.doubt_if_panicking();
        drop(state);
        self.file.changed.notify_all();
    }
}

impl Client {
    /// Counts a read or write of `file` as begun under `lease` (READ or WRITE), acquiring it first if need be. WRITE serves for READ.
    ///
    /// # Errors
    /// What acquiring answers; `ETIMEDOUT` when the file stays busy, `ENOTCONN` when the session ends.
    pub(crate) fn begin<'a>(
        &self,
        file: &'a File,
        lease: LeaseSet,
    ) -> Result<(InFlight<'a>, MutexGuard<'a, FileState>), Errno> {
        self.begin_as(file, Need::of(lease))
    }

    /// As [`Client::begin`], for what `need` says.
    ///
    /// # Errors
    /// As [`Client::begin`].
    pub(crate) fn begin_as<'a>(
        &self,
        file: &'a File,
        need: Need,
    ) -> Result<(InFlight<'a>, MutexGuard<'a, FileState>), Errno> {
        let write = need.lease.has(LeaseSet::WRITE);
        let mut state = file.state.lock();
        // LIMIT: the service bounds one acquisition; this bounds all of them, should the lease be lost again each time before it is used.
        let mut give_up = None;
        loop {
            if self.is_ending.load(SeqCst) {
                return Err(Errno::ENOTCONN);
            }
            // ORDER: what others may have in their pages is given back before a write for which recalls do not wait: who waits for its end reads nothing older.
            let is_too_early = state.may_be_early && need.yields;
            let is_for_another = state.is_for_writeback && !need.is_writeback;
            let must_ask = write && (is_for_another || is_too_early && state.leases.has(LeaseSet::WRITE));
            if !state.is_draining && !must_ask && need.is_met(state.leases) && self.is_current(&state) {
                let in_flight = file.begin(&mut state);
                return Ok((in_flight, state));
            }
            if state.is_draining || state.asking[need.asked() as usize] {
                file.wait(&mut state)?;
                continue;
            }
            let now = self.env.clock.monotonic();
            if now > *give_up.get_or_insert(now.saturating_add(self.wait_max)) {
                return Err(Errno::ETIMEDOUT);
            }
            if state.leases.has(LeaseSet::SHARE) {
                // ORDER: before READ or WRITE is asked for. Who waits for one of them may hold a page; so nobody may wait for what is held besides.
                drop(state);
                self.give_back_share(file)?;
                state = file.state.lock();
                continue;
            }
            state = self.acquire(file, state, need)?;
        }
    }

    /// Whether to ask for SHARE where others write, too: nothing of the file may be in the page cache, or come there without being asked for here. A write(2) through
    /// the page cache does put pages there before it is heard of; those go with it before it is carried out ([`Client::write_beside`]), where the kernel lets them.
    fn may_ask_to_share(&self, state: &FileState, need: Need) -> bool {
        need.may_share
            && need.lease.has(LeaseSet::WRITE)
            && (matches!(state.data, Data::Chunks(_)) || need.outgrows_inode)
            && (state.cachers.is_empty() || self.frees_filled.load(SeqCst))
            && !state.pages.may_exist()
            && !self.is_close_to_open()
    }

    /// Asks for READ or WRITE on the content. What has a lease goes on meanwhile; nothing else asks for the same.
    fn acquire<'a>(
        &self,
        file: &'a File,
        mut state: MutexGuard<'a, FileState>,
        need: Need,
    ) -> Result<MutexGuard<'a, FileState>, Errno> {
        let Need { is_writeback, .. } = need;
        let write = need.lease.has(LeaseSet::WRITE);
        // ORDER: SHARE is not asked for beside anything else, and given up if something else is asked for meanwhile. Who is granted that has nothing else, and whoever is granted READ or WRITE
        // has it no more: of two answers nobody would know which the service gave first. What reads a page must not wait instead: somebody's answer may wait for that.
        let to_share = !state.is_asking() && self.may_ask_to_share(&state, need);
        let (era, asked_at) = (self.era(), self.env.clock.monotonic());
        let acquiring = file.begin_acquiring(&mut state, need.asked());
        (state.is_asking_to_share, state.asks) = (to_share, state.asks + 1);
        let (ask, epoch, gains) = (state.asks, state.lease_epoch, state.gains);
        drop(state);
        // ORDER: before the call. While a recall of the file is being answered the service would say "keep what you have", which is nothing.
        let asked = self.answering.wait(file.inode, self.wait_max);
        let request = match to_share {
            true => MetaRequest::AcquireShared { inode: file.inode },
            false => MetaRequest::AcquireData { inode: file.inode, write, is_writeback },
        };
        let who = Who::system().yielding(need.yields);
        let reply = asked.and_then(|()| self.call(&who, request));
        let mut state = file.state.lock();
        let may_share = state.is_asking_to_share;
        acquiring.end(&mut state);
        let reply = reply?;
        let MetaReply::Granted { attr, data, leases, recall_mark } = reply else {
            return Err(unexpected(&reply));
        };
        // A recall that was answered while this reply was on its way has taken the lease back already: one that began after the grant, as
        // its mark tells, or one that was under way when the grant said to keep what there was, as the epoch tells. A draining that began
        // meanwhile changes what the reply tells.
        // So does a start of the service: what was noted here after it was told what this client has, it does not know.
        let is_old = self.is_overtaken(file.inode, recall_mark) || self.era() != era;
        // What was gained by another ask meanwhile takes nothing away.
        let has_lost = state.lease_epoch - epoch != state.gains - gains;
        if is_old || has_lost || state.is_draining || leases.has(LeaseSet::SHARE) && !may_share {
            return Ok(state);
        }
        if write {
            state.is_for_writeback = is_writeback;
            state.may_be_early = !need.yields;
        }
        // That one told what there is to know, and more may have happened since.
        if state.gains != gains && state.leases.has(leases) {
            return Ok(state);
        }
        state.leases = state.leases.with(leases);
        state.mtime_shared = leases.has(LeaseSet::SHARE).then_some(attr.mtime);
        (state.learnt, state.version) = (asked_at, Version::of(&attr));
        (state.lease_epoch, state.gains) = (state.lease_epoch + 1, state.gains + 1);
        // What has not been reported, or was written with the inode meanwhile, is newer than the reply.
        let known = if state.is_dirty { state.size } else { 0 };
        // Of a session that has ended only this is left; others may have written since.
        if !state.is_dirty && state.unreported.mtime.is_some_and(|own| own < attr.mtime) {
            state.unreported.mtime = None;
        }
        let written = state.inline_written.filter(|(_, asks)| *asks >= ask);
        state.size = attr.size.max(known).max(written.map_or(0, |(size, _)| size));
        state.data = match Data::from(data) {
            Data::Inline(_) if written.is_some() => Data::Inline(None),
            data => data,
        };
        Ok(state)
    }

    /// Whether a recall of content was answered after a grant on `inode` that carries `recall_mark`.
    pub(crate) fn is_overtaken(&self, inode: InodeId, recall_mark: u64) -> bool {
        self.recall_floor(inode).is_some_and(|floor| floor.load(SeqCst) > recall_mark)
    }

    /// Notes that a recall is answered, or about to be.
    pub(crate) fn note_recall_floor(&self, recall: &Recall) {
        if let Some(floor) = self.recall_floor(recall.inode) {
            floor.fetch_max(recall.id, SeqCst);
        }
    }

    fn recall_floor(&self, inode: InodeId) -> Option<&AtomicU64> {
        self.recall_floors.get(usize::from(inode.home().0))
    }

    /// Has the file for itself: WRITE, and nothing under way.
    ///
    /// # Errors
    /// As [`Client::begin`].
    pub(crate) fn exclusive<'a>(&self, file: &'a File) -> Result<Exclusive<'a>, Errno> {
        self.exclusive_as(file, Need::of(LeaseSet::WRITE))
    }

    /// As [`Client::exclusive`], for what `need` says.
    ///
    /// # Errors
    /// As [`Client::begin`].
    pub(crate) fn exclusive_as<'a>(&self, file: &'a File, need: Need) -> Result<Exclusive<'a>, Errno> {
        let give_up = self.env.clock.monotonic().saturating_add(self.wait_max);
        // LIMIT: each turn more is a write with the inode that ended during the one before.
        loop {
            let (in_flight, mut state) = self.begin_as(file, need)?;
            state.is_draining = true;
            let exclusive = Exclusive { file, _in_flight: in_flight };
            // The one under way that counts is this call's own. It keeps the lease: a recall waits for it.
            let mut waited = Ok(());
            while waited.is_ok() && (state.in_flight > 1 || state.inline_writes > 0) {
                waited = file.wait(&mut state);
            }
            // What was under way may have found that the content known here is from before it.
            let is_known = state.leases.has(LeaseSet::WRITE);
            drop(state);
            waited?;
            if is_known {
                return Ok(exclusive);
            }
            drop(exclusive);
            if self.env.clock.monotonic() > give_up {
                return Err(Errno::ETIMEDOUT);
            }
        }
    }

    /// Reports what was written, as a recall must, but no mere access time: noting that may recall leases of others, whose recalls may
    /// wait for this one.
    ///
    /// # Errors
    /// As [`Client::report`].
    pub(crate) fn report_written(&self, file: &File) -> Result<(), Errno> {
        let mut state = file.state.lock();
        while state.is_report_on_its_way() {
            file.wait(&mut state)?;
        }
        if !state.is_written() {
            return Ok(());
        }
        drop(state);
        self.report(file, false)
    }

    /// Reports, and gives WRITE or SHARE back. Reads and writes of this client wait meanwhile, or they would ask for WRITE, be told to keep it, and
    /// then lose it to this report.
    ///
    /// # Errors
    /// As [`Client::report`].
    pub(crate) fn report_and_give_back(&self, file: &File) -> Result<(), Errno> {
        if file.state.lock().leases.has(LeaseSet::WRITE) {
            let _drained = file.drain_all()?;
            // Looked at anew: without WRITE the report of an access time may wait for others, and nobody may wait for them and be waited for.
            if file.state.lock().leases.has(LeaseSet::WRITE) {
                return self.report(file, true);
            }
        }
        self.give_back_share(file)?;
        self.report(file, false)
    }

    /// Reports, and gives SHARE back if it is held, when the writes under way have ended. These wait for storage alone; writes with the inode are not waited
    /// for, as they may be waiting for somebody who waits for this.
    fn give_back_share(&self, file: &File) -> Result<(), Errno> {
        if !file.state.lock().leases.has(LeaseSet::SHARE) {
            return Ok(());
        }
        let _drained = file.drain()?;
        if file.state.lock().leases.has(LeaseSet::SHARE) {
            return self.report(file, true);
        }
        Ok(())
    }

    /// Reports size, blocks and times to metadata if they differ from what it knows; `done` gives WRITE and SHARE back if there is one. Only
    /// one report of a file is under way at a time, and writes go on meanwhile.
    ///
    /// # Errors
    /// What `CommitWrite` answers; then what was to be reported is kept for the next try.
    pub(crate) fn report(&self, file: &File, done: bool) -> Result<(), Errno> {
        let (session, size, generation, taken, gives_back, _reporting) = {
            let mut state = file.state.lock();
            // ORDER: what another report has taken and not delivered yet is known to nobody else; a recall is not answered before it is.
            while state.reporting.is_some() {
                file.wait(&mut state)?;
            }
            let gives_back = done && state.leases.meets(LeaseSet::WRITING);
            if !state.is_written() && state.unreported.atime.is_none() && !gives_back {
                return Ok(());
            }
            // Only a writer knows the size; a reader's idea of it may be old and must not stretch the file.
            let size = if std::mem::take(&mut state.is_dirty) { state.size } else { 0 };
            if gives_back {
                state.leases = state.leases.without(LeaseSet::WRITING);
            }
            let generation = match &state.data {
                Data::Chunks(layout) => Some(layout.generation),
                Data::Inline(_) => None,
            };
            let taken = std::mem::take(&mut state.unreported);
            let reporting = file.begin_report(&mut state, (size, taken));
            (self.session(), size, generation, taken, gives_back, reporting)
        };
        let is_known = self.call_of(
            session,
            MetaRequest::CommitWrite {
                inode: file.inode,
                generation,
                size_at_least: size,
                blocks_delta: taken.blocks_delta,
                mtime: taken.mtime,
                atime: taken.atime,
                kill_set_id: false,
                keeps_capability: !taken.is_of_a_call,
                done: gives_back,
            },
        );
        self.reports.note(file.inode);
        match is_known {
            Ok(_) => Ok(()),
            Err(errno) => {
                let mut state = file.state.lock();
                if state.reporting != Some((size, taken)) {
                    // The file was emptied meanwhile; there is nothing left to report.
                    return Err(errno);
                }
                // As what was not taken by a report: metadata has asked the targets.
                let is_of_ended = self.is_of_ended(&state, session);
                let (size, taken) =
                    if is_of_ended { (0, Unreported { blocks_delta: 0, ..taken }) } else { (size, taken) };
                state.unreported = taken.merged(state.unreported);
                state.is_dirty |= size > 0;
                Err(errno)
            }
        }
    }

    /// Makes a call that tells attributes, and makes it again if a report of that inode ended before what is only known here was added: the answer may be
    /// from before it, and nothing here would tell any more what it lacks. Any other answer is passed on.
    ///
    /// # Errors
    /// Those of the call.
    pub(crate) fn ask_for_attr(
        &self,
        who: &Who,
        request: &MetaRequest<'_>,
    ) -> Result<Result<Found, MetaReply>, Errno> {
        // LIMIT: each turn more is one report more; a writer that reports all the time is as good as unordered with this call.
        for turn in 1.. {
            let before = self.reports.count();
            match self.call(who, request.clone())? {
                MetaReply::Attr { attr, leases } => {
                    let found = self.found_attr(attr, leases);
                    if turn == 8 || !self.reports.has_since(before, found.attr.inode) {
                        return Ok(Ok(found));
                    }
                }
                other => return Ok(Err(other)),
            }
        }
        unreachable!("the last turn returns")
    }

    /// `found`, or what the attributes are now if a report of the inode ended since `reports_before` were counted: see [`Client::ask_for_attr`].
    pub(crate) fn refreshed(&self, who: &Who, reports_before: u64, found: Found) -> Found {
        if !self.reports.has_since(reports_before, found.attr.inode) {
            return found;
        }
        // The call itself has succeeded; should the file be gone by now, its own answer is the last word.
        let Ok(Found { attr: now, .. }) = self.getattr(who, found.attr.inode) else { return found };
        let (size, blocks, mtime, ctime) = (now.size, now.blocks, now.mtime, now.ctime);
        Found { attr: Attr { size, blocks, mtime, ctime, ..found.attr }, ..found }
    }

    /// Attributes as metadata told them, with what is only known here on top.
    pub(crate) fn overlay(&self, attr: Attr) -> Attr {
        let mut attr = self.overlay_of_open(attr.for_programs());
        // ORDER: after the file, from which a close takes it. As the service does, which notes no read from before a change.
        let is_noted = |atime: &ashlar_types::Timespec| *atime > attr.atime && *atime >= attr.ctime;
        if let Some(atime) = self.closes.read_of(attr.inode).filter(is_noted) {
            attr.atime = atime;
        }
        attr
    }

    fn overlay_of_open(&self, mut attr: Attr) -> Attr {
        let Some(file) = self.open_file(attr.inode) else { return attr };
        let state = file.state.lock();
        if let Some((size, taken)) = state.reporting {
            // Metadata knows it, or will in a moment. Blocks would count twice in the first case.
            attr.size = attr.size.max(size);
            if let Some(mtime) = taken.mtime {
                attr.mtime = state.newest_change(attr.mtime, mtime);
                attr.ctime = attr.ctime.max(attr.mtime);
            }
        }
        if state.is_dirty {
            attr.size = attr.size.max(state.size);
        }
        attr.blocks = attr.blocks.saturating_add_signed(state.unreported.blocks_delta);
        if let Some(mtime) = state.unreported.mtime {
            attr.mtime = state.newest_change(attr.mtime, mtime);
            attr.ctime = attr.ctime.max(attr.mtime);
        }
        if let Some(atime) = state.unreported.atime.filter(|&atime| atime > attr.atime) {
            attr.atime = atime;
        }
        attr
    }
}
