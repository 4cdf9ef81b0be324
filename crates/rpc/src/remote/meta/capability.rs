//! Capabilities for storage servers: they come with answers of metadata, and are asked for when one is missing or not good any more.

use super::{LATER_PAUSE, RemoteMeta, exchange_in, primary, wait_longer};
use crate::net::NetError;
use crate::remote::wallet::{Shown, Wanted};
use crate::wire::{CapabilityWanted, MetaAnswer, MetaCall};
use ashlar_types::message::{LeaseSet, MetaReply};
use ashlar_types::{Attr, Errno, SessionId};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

impl RemoteMeta {
    /// Keeps the capability that came with an answer, puts the proof of an open into it, and what it says of a directory into `directory`.
    pub(super) fn keep_capability(
        &self,
        answer: Result<MetaAnswer, NetError>,
        directory: Option<&OnceLock<(Attr, LeaseSet)>>,
    ) -> Result<MetaAnswer, NetError> {
        match answer {
            Ok(MetaAnswer::InDirectory(mut reply, proof, granted, attr, leases)) => {
                if let Some(told) = directory {
                    // A call is answered once.
                    let _ = told.set((attr, leases));
                }
                granted.into_iter().for_each(|granted| self.wallet.keep(granted));
                if let MetaReply::Opened { open, .. } = &mut reply {
                    open.proof = proof;
                }
                Ok(MetaAnswer::Reply(reply))
            }
            Ok(MetaAnswer::Granted(reply, granted)) => {
                self.wallet.keep(granted);
                Ok(MetaAnswer::Reply(reply))
            }
            Ok(MetaAnswer::Opened(mut reply, proof, granted)) => {
                granted.into_iter().for_each(|granted| self.wallet.keep(granted));
                if let MetaReply::Opened { open, .. } = &mut reply {
                    open.proof = Some(proof);
                }
                Ok(MetaAnswer::Reply(reply))
            }
            other => other,
        }
    }

    /// How often metadata was asked for a capability by itself, and how often a storage server has refused a call for lack of one.
    pub fn capability_counts(&self) -> (u64, u64) {
        self.wallet.counts()
    }

    /// The session, while there is one that has not ended.
    pub(in crate::remote) fn current_session(&self) -> Option<SessionId> {
        let session = self.session.lock().clone()?;
        (!session.shared.is_ended.load(SeqCst)).then_some(session.shared.id)
    }

    /// What to show a storage server; asked for at metadata if there is nothing. `refused`: the seal that the server has refused last.
    ///
    /// # Errors
    /// `ENOTCONN` when the session has ended, `EBADF` when it does not have the file open, `ESTALE` when the file has other chunks now.
    pub(in crate::remote) fn show(
        &self,
        wanted: &Wanted,
        refused: Option<(u64, u64)>,
        deadline: Instant,
    ) -> Result<Shown, NetError> {
        let mut pause = LATER_PAUSE;
        loop {
            // Each time: its shard may have moved.
            let granter = || self.routes.map().primary(wanted.inode.home()).unwrap_or_default();
            if let Some(shown) = self.wallet.shown(wanted, granter()) {
                return Ok(shown);
            }
            self.wallet.note_asked();
            let answer = self.ask_for_capability(wanted, refused, deadline)?;
            match answer {
                MetaAnswer::Capability(granted) => {
                    let is_enough = granted.capability.rights.has(wanted.rights);
                    self.wallet.keep(granted);
                    if !is_enough {
                        return Err(NetError::Errno(Errno::EACCES));
                    }
                    // Unless another thread has replaced it already.
                    if let Some(shown) = self.wallet.shown(wanted, granter()) {
                        return Ok(shown);
                    }
                }
                MetaAnswer::Failed(errno) => return Err(NetError::Errno(errno)),
                MetaAnswer::Later | MetaAnswer::NotHere | MetaAnswer::MustReclaim(_) => {}
                _ => return Err(NetError::Malformed("an answer of the wrong kind")),
            }
            if Instant::now() + pause >= deadline {
                return Err(NetError::Stuck);
            }
            wait_longer(&mut pause);
        }
    }

    fn ask_for_capability(
        &self,
        wanted: &Wanted,
        refused: Option<(u64, u64)>,
        deadline: Instant,
    ) -> Result<MetaAnswer, NetError> {
        let Wanted { session, inode, generation, server, .. } = *wanted;
        let home = primary(&self.routes, inode.home(), deadline)?;
        let presence = self.presence(session, home, deadline).map_err(NetError::Errno)?;
        let call = MetaCall::Capability(CapabilityWanted { session, inode, generation, server, refused });
        // Urgent: a recall waits for what is under way, which waits for this.
        let at = (home, inode.home());
        let answer = exchange_in(&self.routes, at, &call, (false, true), deadline)?;
        if let MetaAnswer::MustReclaim(incarnation) = answer {
            self.live_session(session).map_err(NetError::Errno)?;
            presence.reclaim(&self.routes, incarnation, deadline);
        }
        Ok(answer)
    }

    /// A storage server has carried out what `shown` was for.
    pub(in crate::remote) fn note_seen(&self, wanted: &Wanted, shown: &Shown) {
        self.wallet.note_seen(wanted, shown);
    }

    /// A storage server has refused what `shown` was for; tells whether it may have forgotten it, and is to see it once more.
    pub(in crate::remote) fn note_refused(&self, wanted: &Wanted, shown: &Shown) -> bool {
        self.wallet.note_refused(wanted, shown)
    }
}
