//! Capabilities for storage servers: they go with every answer that tells where the content of an open file is, and are given anew when one is not good
//! any more.

use super::{MetaEndpoint, RemoteSession};
use crate::remote::Granting;
use crate::wire::{CapabilityWanted, MetaAnswer};
use ashlar_types::message::{DataGrant, MetaReply};
use ashlar_types::{Errno, FileLayout, InodeId, Rights, SessionId};

impl MetaEndpoint {
    /// `reply`, with a capability for the chunks that it tells of. `asked_about` is the inode that the call was about.
    pub(super) fn with_capability(
        &self,
        session: &RemoteSession,
        (id, asked_about): (SessionId, Option<InodeId>),
        reply: MetaReply,
    ) -> MetaAnswer {
        let Some((inode, layout)) = told_layout(&reply, asked_about) else { return MetaAnswer::Reply(reply) };
        // A truncation by name has nothing open, and leaves the chunks to the servers.
        let Some(may_write) = self.meta.opened(id, inode) else { return MetaAnswer::Reply(reply) };
        let granting = Granting {
            session: id,
            owner: session.owner,
            inode,
            generation: layout.generation,
            rights: rights(session, may_write),
        };
        // ORDER: looked at last. A session that is revoked after this is fenced with what it was given.
        if session.state.lock().is_revoked {
            return MetaAnswer::Reply(reply);
        }
        let granted = self.granter.grant(granting, layout);
        MetaAnswer::Granted(reply, granted)
    }

    /// A capability that a session asks for.
    pub(super) fn capability(&self, session: &RemoteSession, wanted: CapabilityWanted) -> MetaAnswer {
        let CapabilityWanted { session: id, inode, generation, server, refused } = wanted;
        if self.must_reclaim(id) {
            return MetaAnswer::MustReclaim(self.meta.incarnation());
        }
        if self.meta.is_awaiting() {
            return MetaAnswer::Later;
        }
        if !self.meta.has_home_of(inode) {
            return MetaAnswer::NotHere;
        }
        let may_write = match self.meta.may_use(id, inode, generation) {
            Ok(may_write) => may_write,
            Err(errno) => return MetaAnswer::Failed(errno),
        };
        let granting = Granting {
            session: id,
            owner: session.owner,
            inode,
            generation,
            rights: rights(session, may_write),
        };
        // ORDER: as above.
        if session.state.lock().is_revoked {
            return MetaAnswer::Failed(Errno::ENOTCONN);
        }
        match self.granter.grant_at(granting, server, refused) {
            Some(granted) => MetaAnswer::Capability(granted),
            // It is not heard of at this moment.
            None => MetaAnswer::Later,
        }
    }
}

fn rights(session: &RemoteSession, may_write: bool) -> Rights {
    Rights::of_open(may_write && !session.policy.read().read_only)
}

/// Where the content of which file is, if `reply` says so to somebody who may use it.
fn told_layout(reply: &MetaReply, asked_about: Option<InodeId>) -> Option<(InodeId, &FileLayout)> {
    match reply {
        MetaReply::Opened { open, .. } => match &open.data {
            DataGrant::Chunks { layout } => Some((open.attr.inode, layout)),
            DataGrant::Inline { .. } => None,
        },
        MetaReply::Granted { attr, data: DataGrant::Chunks { layout }, .. } => Some((attr.inode, layout)),
        MetaReply::Layout { layout, .. } => Some((asked_about?, layout)),
        _ => None,
    }
}
