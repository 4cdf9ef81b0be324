//! A file outgrows its inode (`design.md` D4): its bytes go to chunks first, then one operation binds the layout.

use crate::call::{Who, unexpected};
use crate::client::Client;
use crate::file::{Data, File};
use ashlar_types::Errno;
use ashlar_types::message::{DataGrant, LeaseSet, MetaReply, MetaRequest};
use std::sync::Arc;

impl Client {
    /// Moves the content of an inline file to chunks. Does nothing when it has chunks already.
    ///
    /// # Errors
    /// `ENOSPC` when the pool has no usable target; what storage and metadata answer. The file is as before then.
    pub(crate) fn spill(&self, file: &File) -> Result<(), Errno> {
        let _drained = file.drain_all()?;
        let reply = self.call(&Who::system(), MetaRequest::AcquireData { inode: file.inode, write: true })?;
        let MetaReply::Granted { attr, data, leases } = reply else { return Err(unexpected(&reply)) };
        if !leases.has(LeaseSet::WRITE) {
            return Err(Errno::EAGAIN);
        }
        let layout = match data {
            DataGrant::Chunks { layout } => layout,
            DataGrant::Inline { body } => {
                let body = match body {
                    Some(body) => body,
                    None => {
                        let len = u32::try_from(attr.size)
                            .unwrap_or(u32::MAX)
                            .min(ashlar_types::LayoutPolicy::INLINE_BYTES_MAX);
                        self.call_bytes(
                            &Who::system(),
                            MetaRequest::ReadInline { inode: file.inode, offset: 0, len },
                        )?
                    }
                };
                let reply = self.call(&Who::system(), MetaRequest::ProposeLayout { inode: file.inode })?;
                let MetaReply::Layout { layout } = reply else { return Err(unexpected(&reply)) };
                // ORDER: the bytes are in the chunks before the layout that points to them is bound; durably so if somebody may have
                // been promised that they are, because the binding drops the inline copy and may become durable on its own.
                let blocks = self.write_chunks(file.inode, &layout, 0, &body)?;
                if !file.state.lock().is_unpromised {
                    self.sync_layout(&layout)?;
                }
                self.call_done(
                    &Who::system(),
                    MetaRequest::SetLayout {
                        inode: file.inode,
                        layout: layout.clone(),
                        blocks: u64::try_from(blocks).unwrap_or(0),
                    },
                )?;
                layout
            }
        };
        let mut state = file.state.lock();
        state.leases = state.leases.with(leases);
        state.lease_epoch += 1;
        state.size = attr.size;
        state.data = Data::Chunks(Arc::new(layout));
        Ok(())
    }
}
