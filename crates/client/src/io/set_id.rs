//! Set-id bits of a file with chunks that is written: the kernel says with every write of the unprivileged that they must go.
//!
//! Metadata is asked only where there may be some. Whoever sets them through another session takes WRITE or SHARE away first, so what metadata
//! said under one of them holds as long as it is kept, but for a change of mode by this very client.

use super::write::WriteFlags;
use crate::call::{Who, unexpected};
use crate::client::Client;
use crate::file::{File, FileState};
use ashlar_types::attr::{MODE_SETGID, MODE_SETUID};
use ashlar_types::message::{LeaseSet, MetaReply, MetaRequest, SetAttr};
use ashlar_types::{Credentials, Errno, InodeId};

const SET_ID: u32 = MODE_SETUID | MODE_SETGID;

/// What is known of the set-id bits of an open file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SetId {
    /// The lease epoch under which metadata said, while WRITE or SHARE was held, that there are none.
    absent_in: Option<u64>,
    /// Times that this client may have set some; an answer from before the newest says nothing.
    times_set: u64,
}

/// When an answer of metadata was asked for; one that comes later is worth nothing.
type Moment = (u64, u64);

impl FileState {
    fn has_no_set_id(&self) -> bool {
        self.leases.meets(LeaseSet::WRITING) && self.set_id.absent_in == Some(self.lease_epoch)
    }

    /// Now, if what metadata says can be kept.
    fn moment(&self) -> Option<Moment> {
        self.leases.meets(LeaseSet::WRITING).then_some((self.lease_epoch, self.set_id.times_set))
    }
}

impl Client {
    /// Clears the set-id bits of a file with chunks ahead of a write, as [`WriteFlags::kill_set_id`] says. Asks metadata for the first write
    /// under such a lease, and for those before the lease is there.
    ///
    /// # Errors
    /// As `chmod(2)`, for files that went meanwhile, and what a broken connection answers.
    pub(super) fn clear_set_id(&self, who: &Who, file: &File, flags: WriteFlags) -> Result<(), Errno> {
        if !flags.kill_set_id {
            return Ok(());
        }
        let asked = {
            let state = file.state.lock();
            if state.has_no_set_id() {
                return Ok(());
            }
            state.moment()
        };
        let changes = SetAttr { kill_set_id: true, has_handle: true, ..SetAttr::default() };
        let who = &who.clone().yielding(flags.yields);
        let attr = match self.call_for_write(who, MetaRequest::Setattr { inode: file.inode, changes })? {
            MetaReply::Attr { attr, .. } => attr,
            other => return Err(unexpected(&other)),
        };
        let mut state = file.state.lock();
        // What a group means by the set-group-id bit is for metadata to say anew, for each writer.
        if attr.mode & SET_ID == 0 && asked.is_some() && state.moment() == asked {
            state.set_id.absent_in = Some(state.lease_epoch);
        }
        Ok(())
    }

    /// Notes that this client has set `mode` on `inode`, once metadata has answered and before anybody is told. The file may have been opened
    /// since metadata was asked.
    pub(crate) fn note_mode_set(&self, inode: InodeId, mode: Option<u32>) {
        if mode.is_some_and(|mode| mode & SET_ID != 0)
            && let Some(file) = self.open_file(inode)
        {
            let mut state = file.state.lock();
            state.set_id.absent_in = None;
            state.set_id.times_set += 1;
        }
    }

    /// A call that clears set-id bits for a write of `who`. A write does not fail for groups that cannot be found out (`EPERM`): who is not
    /// known to be a member is an outsider.
    pub(super) fn call_for_write(&self, who: &Who, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        match self.call(who, request.clone()) {
            Err(Errno::EPERM) => {
                let creds = Credentials { complete: true, ..who.creds.clone() };
                self.call(&Who { creds, pid: 0, yields: who.yields }, request)
            }
            other => other,
        }
    }
}
