//! Data leases: becoming reader or sole writer of an open file, and reporting what was written.

use crate::call::{Who, unexpected};
use crate::client::Client;
use crate::file::{Data, File, FileState, InFlight, Unreported};
use ashlar_types::message::{LeaseSet, MetaReply, MetaRequest};
use ashlar_types::{Attr, Errno};
use parking_lot::MutexGuard;

impl Client {
    /// Counts a read or write of `file` as begun under `lease` (READ or WRITE), acquiring it first if need be. WRITE serves for READ.
    ///
    /// # Errors
    /// What acquiring answers; `ETIMEDOUT` when the file stays busy.
    pub(crate) fn begin<'a>(
        &self,
        file: &'a File,
        lease: LeaseSet,
    ) -> Result<(InFlight<'a>, MutexGuard<'a, FileState>), Errno> {
        let mut state = file.state.lock();
        loop {
            if state.is_draining {
                file.wait(&mut state)?;
                continue;
            }
            if state.leases.has(lease) || state.leases.has(LeaseSet::WRITE) {
                let in_flight = file.begin(&mut state);
                return Ok((in_flight, state));
            }
            // LIMIT: each turn of this loop is one acquisition, which the service bounds; a grant that is lost again before
            // it is used needs another session that wants the file just as much, and recalls alternate.
            drop(state);
            self.acquire(file, lease.has(LeaseSet::WRITE))?;
            state = file.state.lock();
        }
    }

    /// Asks for READ or WRITE on the content, with nothing under way meanwhile, so that what comes back is the newest.
    fn acquire(&self, file: &File, write: bool) -> Result<(), Errno> {
        let drained = file.drain()?;
        let wanted = if write { LeaseSet::WRITE } else { LeaseSet::READ };
        {
            let state = file.state.lock();
            if state.leases.has(wanted) || state.leases.has(LeaseSet::WRITE) {
                return Ok(());
            }
        }
        let reply = self.call(&Who::system(), MetaRequest::AcquireData { inode: file.inode, write })?;
        let MetaReply::Granted { attr, data, leases } = reply else { return Err(unexpected(&reply)) };
        let mut state = file.state.lock();
        state.leases = state.leases.with(leases);
        state.lease_epoch += 1;
        state.data = Data::from(data);
        state.size = attr.size;
        drop(state);
        drop(drained);
        if leases.has(wanted) { Ok(()) } else { Err(Errno::EAGAIN) }
    }

    /// Reports size, blocks and times to metadata if they differ from what it knows; `done` gives the WRITE lease back. Only
    /// one report of a file is under way at a time, and writes go on meanwhile.
    ///
    /// # Errors
    /// What `CommitWrite` answers; then what was to be reported is kept for the next try.
    pub(crate) fn report(&self, file: &File, done: bool) -> Result<(), Errno> {
        let (size, generation, taken) = {
            let mut state = file.state.lock();
            let gives_back = done && state.leases.has(LeaseSet::WRITE);
            let has_atime = state.unreported.atime.is_some();
            if !state.is_dirty && !has_atime && !gives_back {
                return Ok(());
            }
            // Only a writer knows the size; a reader's idea of it may be old and must not stretch the file.
            let size = if std::mem::take(&mut state.is_dirty) { state.size } else { 0 };
            if gives_back {
                state.leases = state.leases.without(LeaseSet::WRITE);
            }
            let generation = match &state.data {
                Data::Chunks(layout) => Some(layout.generation),
                Data::Inline(_) => None,
            };
            (size, generation, std::mem::take(&mut state.unreported))
        };
        let is_known = self.call(
            &Who::system(),
            MetaRequest::CommitWrite {
                inode: file.inode,
                generation,
                size_at_least: size,
                blocks_delta: taken.blocks_delta,
                mtime: taken.mtime,
                atime: taken.atime,
                kill_set_id: false,
                done,
            },
        );
        match is_known {
            Ok(_) => Ok(()),
            Err(errno) => {
                let mut state = file.state.lock();
                state.unreported = merge(taken, state.unreported);
                state.is_dirty |= size > 0;
                Err(errno)
            }
        }
    }

    /// Attributes as metadata told them, with what is only known here on top.
    pub(crate) fn overlay(&self, mut attr: Attr) -> Attr {
        let Some(file) = self.open_file(attr.inode) else { return attr };
        let state = file.state.lock();
        if state.is_dirty || state.unreported.atime.is_some() {
            if state.is_dirty {
                attr.size = attr.size.max(state.size);
            }
            attr.blocks = attr.blocks.saturating_add_signed(state.unreported.blocks_delta);
            if let Some(mtime) = state.unreported.mtime {
                // Times are reported before they are set, so what is not reported yet is newer, whatever the clock says.
                (attr.mtime, attr.ctime) = (mtime, attr.ctime.max(mtime));
            }
            if let Some(atime) = state.unreported.atime.filter(|&atime| atime > attr.atime) {
                attr.atime = atime;
            }
        }
        attr
    }
}

fn merge(older: Unreported, newer: Unreported) -> Unreported {
    Unreported {
        blocks_delta: older.blocks_delta.saturating_add(newer.blocks_delta),
        mtime: newer.mtime.or(older.mtime),
        atime: newer.atime.or(older.atime),
    }
}
