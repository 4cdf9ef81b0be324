//! `fsync`.

use crate::call::Who;
use crate::client::Client;
use crate::file::{Data, Handle};
use crate::unsynced::{self, Synced};
use ashlar_types::message::{LeaseSet, SyncScope};
use ashlar_types::{ChainId, Errno, FileLayout, InodeId};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Client {
    /// Makes content and attributes of a file durable.
    ///
    /// # Errors
    /// What storage and metadata answer; final, as of `fsync(2)`. `EIO` also when a storage server may have lost what was written before: once through each handle.
    pub fn fsync(&self, handle: &Handle) -> Result<(), Errno> {
        let (known, has_lease) = {
            let mut state = handle.file.state.lock();
            state.is_unpromised = false;
            let known = match &state.data {
                Data::Chunks(layout) => Some(layout.clone()),
                Data::Inline(_) => None,
            };
            (known, state.leases.meets(LeaseSet::CONTENT))
        };
        let inode = handle.file.inode;
        // Without a lease somebody else may have moved the file to chunks, or to others, and what was written there counts too.
        let mut layout = if has_lease { known } else { self.layout_now(inode)? };
        let mut is_lost = false;
        // LIMIT: each turn more is one move of the content more, to chunks or by a truncation, while this call was under way.
        for _ in 0..8 {
            // ORDER: chunks first, then size and layout, then the log that holds them: a durable size never covers bytes that are not.
            if let Some(layout) = &layout {
                is_lost |= self.sync_layout(inode, layout)? == Synced::Lost;
            }
            self.count_if_unsure(&handle.file);
            self.report(&handle.file, false)?;
            let generation = layout.as_ref().map(|layout| layout.generation);
            match self.sync_meta(SyncScope::File { inode, generation }) {
                Err(Errno::EAGAIN) => layout = self.layout_now(inode)?,
                done => return done.and(self.tell_loss(handle, is_lost)),
            }
        }
        Err(Errno::EIO)
    }

    /// Tells whoever has synced a file through `handle` what a server has lost of it, that is found now, or was found through another handle since this one was asked last: each hears of it once.
    fn tell_loss(&self, handle: &Handle, is_found: bool) -> Result<(), Errno> {
        let losses = {
            let mut state = handle.file.state.lock();
            state.losses += u32::from(is_found);
            state.losses
        };
        if is_found {
            tracing::error!(inode = %handle.file.inode, "a storage server has lost what was written and not synced");
        }
        let told = handle.losses_told.swap(losses, Ordering::Relaxed);
        if told == losses { Ok(()) } else { Err(Errno::EIO) }
    }

    /// Makes all durable that this client remembers to have changed in chunks.
    ///
    /// # Errors
    /// What storage answers; `EIO` when a server has lost something of a file that is open, which its next sync is to tell.
    pub(crate) fn sync_changes(&self) -> Result<(), Errno> {
        let changed = self.unsynced.all();
        let mut chains: SmallVec<[ChainId; 4]> =
            changed.iter().flat_map(|(_, marks)| marks).map(|(chain, _)| *chain).collect();
        chains.sort_unstable();
        chains.dedup();
        if chains.is_empty() {
            return Ok(());
        }
        // All of them at once, as if they were of one file.
        let all = FileLayout { chunk_bytes: 0, generation: 0, chains };
        let synced = self.sync_places(&all)?;
        let mut outcome = Ok(());
        for ((inode, generation), changed) in changed {
            let is_lost = unsynced::compare(&all, &changed, &synced) == Synced::Lost;
            if is_lost && self.files.all().iter().any(|file| file.inode == inode) {
                outcome = Err(Errno::EIO);
            } else {
                drop(self.unsynced.take(inode, generation));
            }
        }
        outcome
    }

    /// Where the chunks of a file are at this moment, if it has any.
    fn layout_now(&self, inode: InodeId) -> Result<Option<Arc<FileLayout>>, Errno> {
        match self.layout_show(&Who::system(), inode) {
            // What has no data at all: a pipe, a device.
            Err(Errno::EINVAL) => Ok(None),
            other => Ok(other?.1.map(Arc::new)),
        }
    }

    /// `fsync` of a directory: entries are durable.
    ///
    /// # Errors
    /// What metadata answers; final.
    pub fn fsyncdir(&self) -> Result<(), Errno> {
        self.sync_meta(SyncScope::Names)
    }
}
