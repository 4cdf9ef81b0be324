//! Receives all that a metadata server's lane holds, in the place of what is here.

use super::message::{Heard, number_of};
use super::{Replica, hook};
use ashlar_kv::{Engine, GroupNumber, Import, Key, KvError, Lane};
use ashlar_replication::log::{Command, Message};
use ashlar_types::{Epoch, NodeId};
use bytes::Bytes;
use std::sync::Arc;

/// What has come so far.
pub(super) struct Incoming {
    from: NodeId,
    epoch: Epoch,
    at: GroupNumber,
    /// Parts that have come.
    pages: u64,
    engine: Box<dyn Engine>,
}

impl Replica {
    pub(super) fn take_page(
        &self,
        from: NodeId,
        epoch: Epoch,
        (at, number): (GroupNumber, u64),
        pairs: &[(Key, Bytes)],
    ) -> Option<Heard> {
        let incoming = {
            let mut core = self.core.lock();
            if !core.follows(from, epoch) {
                return None;
            }
            core.incoming.take()
        };
        let is_next = |incoming: &Incoming| {
            (incoming.from, incoming.epoch, incoming.at, incoming.pages) == (from, epoch, at, number)
        };
        let mut incoming = match incoming {
            Some(incoming) if is_next(&incoming) => incoming,
            // What was begun is of no use; the first part begins anew.
            before => {
                if number != 0 {
                    self.core.lock().incoming = before;
                    return None;
                }
                drop(before);
                let begun = self.config.store.begin();
                Incoming {
                    from,
                    epoch,
                    at,
                    pages: 0,
                    engine: self.or_give_up("a copy could not be begun", begun)?,
                }
            }
        };
        match Import::add(&*incoming.engine, pairs) {
            Ok(()) => {}
            Err(KvError::Invalid { .. }) => return None,
            // Nobody is to send all of it again and again to a disk that is full.
            added => self.or_give_up("a part of a copy could not be stored", added)?,
        }
        incoming.pages += 1;
        self.core.lock().incoming = Some(incoming);
        Some(Heard::Messages(Vec::new()))
    }

    /// All parts were sent.
    pub(super) fn take_checkpoint(
        &self,
        from: NodeId,
        message: Message,
        import: &Import,
        pages: u64,
    ) -> Option<Heard> {
        let Message::Checkpoint { epoch, at, .. } = message else { return None };
        let incoming = self.core.lock().incoming.take();
        let is_whole = |incoming: &Incoming| {
            (incoming.from, incoming.epoch, incoming.at, incoming.pages)
                == (from, epoch, number_of(at), pages)
                && import.last == incoming.at
        };
        let incoming = incoming.filter(is_whole)?;
        // ORDER: the machine hears of it when it can be installed at once, for it takes nothing else meanwhile.
        let mut out = Vec::new();
        self.core.lock().machine.receive(from, &message, &mut out);
        let is_wanted = out.iter().any(|command| matches!(command, Command::Install { .. }));
        // What replaces everything needs nothing to be taken away before.
        if !is_wanted && out.iter().any(|command| matches!(command, Command::Discard)) {
            self.discard()?;
        }
        if is_wanted {
            let (cluster, lane) = self.config.store.identity();
            let finished = import.finish(&*incoming.engine, cluster, lane);
            self.or_give_up("a copy could not be completed", finished)?;
            self.replace_lane(incoming.engine)?;
            let mut core = self.core.lock();
            core.machine.installed(at, &mut out);
        }
        let said = out.iter().filter_map(|command| match command {
            Command::Send { to, message } if *to == from => Some(message.clone()),
            _ => None,
        });
        let said = said.collect();
        out.retain(|command| matches!(command, Command::Member(_) | Command::Commit { .. }));
        self.obey(&mut self.core.lock(), &mut out);
        Some(Heard::Messages(said))
    }

    /// Has nothing any more.
    pub(super) fn discard(&self) -> Option<()> {
        tracing::warn!("what this copy of metadata has is lost elsewhere: it begins anew");
        let (cluster, lane) = self.config.store.identity();
        let begun = self.config.store.begin();
        let engine = self.or_give_up("a copy could not be begun", begun)?;
        let nothing = Import { last: GroupNumber::default(), sequences: Vec::new() };
        let finished = nothing.finish(&*engine, cluster, lane);
        self.or_give_up("a copy could not be begun", finished)?;
        self.replace_lane(engine)
    }

    /// Has the lane of `engine` in the place of the one there is.
    fn replace_lane(&self, engine: Box<dyn Engine>) -> Option<()> {
        // Whatever it answers: nothing of it is used any more.
        if let Err(error) = self.lane().close() {
            tracing::debug!(%error, "a lane that is replaced was not closed in good order");
        }
        let replaced = self.config.store.replace(engine);
        let lane: Lane = self.or_give_up("a copy could not be put in its place", replaced)?;
        let this = self.this.upgrade()?;
        let hooked = lane.replicate_with(Arc::new(hook::Hook(Arc::downgrade(&this))));
        self.or_give_up("a copy could not be put in its place", hooked)?;
        *self.lane.write() = Arc::new(lane);
        Some(())
    }
}
