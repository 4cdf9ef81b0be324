//! `fsync`.

use crate::call::Who;
use crate::client::Client;
use crate::file::{Data, Handle};
use ashlar_types::message::MetaRequest;
use ashlar_types::{Errno, FileLayout};

impl Client {
    /// Makes content and attributes of a file durable.
    ///
    /// # Errors
    /// What storage and metadata answer; final, as of `fsync(2)`.
    pub fn fsync(&self, handle: &Handle) -> Result<(), Errno> {
        let layout = {
            let mut state = handle.file.state.lock();
            state.is_unpromised = false;
            match &state.data {
                Data::Chunks(layout) => Some(layout.clone()),
                Data::Inline(_) => None,
            }
        };
        // ORDER: chunks first, then size and layout, then the log that holds them: a durable size never covers bytes that are not.
        if let Some(layout) = layout {
            self.sync_layout(&layout)?;
        }
        self.report(&handle.file, false)?;
        self.call_done(&Who::system(), MetaRequest::Sync)
    }

    /// Makes everything the targets of `layout` have acknowledged durable.
    pub(crate) fn sync_layout(&self, layout: &FileLayout) -> Result<(), Errno> {
        let map = self.map.read().clone();
        let targets = map.targets_of(layout);
        targets.into_iter().try_for_each(|target| self.sync_target(target))
    }

    /// `fsync` of a directory: entries are durable.
    ///
    /// # Errors
    /// What metadata answers; final.
    pub fn fsyncdir(&self) -> Result<(), Errno> {
        self.call_done(&Who::system(), MetaRequest::Sync)
    }
}
