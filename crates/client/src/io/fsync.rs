//! `fsync`.

use crate::call::Who;
use crate::client::Client;
use crate::file::{Data, Handle};
use crate::unsynced_meta::{Before, DurableAt};
use ashlar_types::message::{LeaseSet, SyncScope};
use ashlar_types::{Durability, Errno, FileLayout, InodeId, NodeId};
use std::sync::Arc;

impl Client {
    /// Makes content and attributes of a file durable.
    ///
    /// # Errors
    /// What storage and metadata answer; final, as of `fsync(2)`. `EIO` also when a server may have lost what was written or changed before: once through each handle.
    pub fn fsync(&self, handle: &Handle) -> Result<(), Errno> {
        match self.sync_file(handle) {
            // Gone though it is open: with what its server has lost, which is told first.
            Err(Errno::ESTALE) => self.tell_loss_of_gone(handle).and(Err(Errno::ESTALE)),
            other => other,
        }
    }

    fn sync_file(&self, handle: &Handle) -> Result<(), Errno> {
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
        // LIMIT: each turn more is one move of the content more, to chunks or by a truncation, or of the shard, while this call was under way.
        for _ in 0..8 {
            // ORDER: chunks first, then size and layout, then the log that holds them: a durable size never covers bytes that are not.
            if let Some(layout) = &layout {
                // Told at the end, and by the next one if this one does not come to it.
                let _ = self.sync_layout(&handle.file, layout)?;
            }
            self.count_if_unsure(&handle.file);
            self.report(&handle.file, false)?;
            let generation = layout.as_ref().map(|layout| layout.generation);
            let (before, home) = (self.unsynced_meta.begin(), self.server_of(inode));
            self.ask_where_unknown(DurableAt::Server(home))?;
            match self.sync_meta(SyncScope::File { inode, generation }) {
                Err(Errno::EAGAIN) => layout = self.layout_now(inode)?,
                Ok(()) if self.server_of(inode) == home => return self.tell_synced(handle, before, home),
                // It has moved to another server, which has answered: what else was changed at that one is not durable.
                Ok(()) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::EIO)
    }

    /// Tells what may have been lost of a file which is durable now as it was when the sync began.
    fn tell_synced(&self, handle: &Handle, before: Before, home: NodeId) -> Result<(), Errno> {
        let mut state = handle.file.state.lock();
        let is_lost = self.unsynced_meta.synced(handle.file.inode, before, DurableAt::Server(home));
        // What is to be durable before it is answered is not lost.
        if is_lost && state.durability != Durability::Sync {
            state.note_loss();
        }
        state.tell_loss(handle.description())
    }

    /// Tells what may have been lost of a file that its server does not know any more.
    fn tell_loss_of_gone(&self, handle: &Handle) -> Result<(), Errno> {
        let inode = handle.file.inode;
        // As above.
        for _ in 0..8 {
            let (before, home) = (self.unsynced_meta.begin(), self.server_of(inode));
            self.ask_where_unknown(DurableAt::Server(home))?;
            self.sync_meta(SyncScope::File { inode, generation: None })?;
            if self.server_of(inode) == home {
                return self.tell_synced(handle, before, home);
            }
        }
        Err(Errno::EIO)
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
    /// What metadata answers; final. `EIO` also when a metadata server may have lost what was changed of it before: once.
    pub fn fsyncdir(&self, directory: InodeId) -> Result<(), Errno> {
        let before = self.unsynced_meta.begin();
        self.ask_where_unknown(DurableAt::All)?;
        self.sync_meta(SyncScope::Names)?;
        let is_lost = self.unsynced_meta.synced(directory, before, DurableAt::All);
        if is_lost { Err(Errno::EIO) } else { Ok(()) }
    }
}
