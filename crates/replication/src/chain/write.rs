//! The way of a write: ordered by the head, applied by all, reported from the tail back, committed from the head on.

use super::replica::ChainReplica;
use super::{ChunkVersion, Command, Holdings, Message};
use crate::membership::ReplicaId;
use ashlar_types::ChunkId;

impl<R: ReplicaId> ChainReplica<R> {
    /// The head takes a write of `chunk` and tells the version it makes; the caller answers when that is acknowledged. `None`: this
    /// is not the head.
    pub fn write(
        &mut self,
        chunk: ChunkId,
        holdings: &impl Holdings,
        out: &mut Vec<Command<R>>,
    ) -> Option<ChunkVersion> {
        if !self.is_head() {
            return None;
        }
        let previous = self.newest(chunk, holdings);
        let version = ChunkVersion { epoch: self.epoch(), number: previous.number + 1 };
        self.accept(chunk, version, previous, out);
        Some(version)
    }

    /// A write came from the predecessor.
    pub(super) fn take_write(
        &mut self,
        chunk: ChunkId,
        version: ChunkVersion,
        previous: ChunkVersion,
        holdings: &impl Holdings,
        out: &mut Vec<Command<R>>,
    ) {
        let newest = self.newest(chunk, holdings);
        let is_compared = self.active.get(&chunk).is_none_or(|active| active.is_ordered);
        if !is_compared {
            return;
        }
        if newest == previous {
            self.accept(chunk, version, previous, out);
        } else if newest >= version {
            self.progress(chunk, out);
        }
        // Else writes before it have not arrived; the predecessor sends them again.
    }

    fn accept(
        &mut self,
        chunk: ChunkId,
        version: ChunkVersion,
        previous: ChunkVersion,
        out: &mut Vec<Command<R>>,
    ) {
        self.order(chunk, version, previous);
        out.push(Command::Apply { chunk, version });
        if self.successor.as_ref().is_some_and(|successor| successor.is_settled(chunk)) {
            self.send_on(Message::Write { epoch: self.epoch(), chunk, version, previous }, out);
        }
    }

    /// The version of `chunk` is on disk, as durable as the setting asks.
    pub fn applied(&mut self, chunk: ChunkId, version: ChunkVersion, out: &mut Vec<Command<R>>) {
        let Some(active) = self.active.get_mut(&chunk) else { return };
        if active.barrier.is_some_and(|barrier| barrier != version) {
            return;
        }
        (active.barrier, active.applied) = (None, version);
        // A copy is read when no write is being applied, so that it is the version's content and no other.
        if active.is_quiet() && active.is_ordered {
            self.copy_on(chunk, version, out);
        }
        self.progress(chunk, out);
    }

    /// Sends the whole chunk to a successor that may not have it as it is here.
    pub(super) fn copy_on(&self, chunk: ChunkId, version: ChunkVersion, out: &mut Vec<Command<R>>) {
        if self.member.is_active()
            && self.successor.as_ref().is_some_and(|successor| !successor.is_settled(chunk))
        {
            self.send_on(Message::Copy { epoch: self.epoch(), chunk, version }, out);
        }
    }

    /// The successor and all behind it have `version` of `chunk`.
    pub(super) fn reported(
        &mut self,
        chunk: ChunkId,
        version: ChunkVersion,
        holdings: &impl Holdings,
        out: &mut Vec<Command<R>>,
    ) {
        let newest = self.newest(chunk, holdings);
        let Some(successor) = &mut self.successor else { return };
        let was_unsettled = version == newest && successor.unsettled.remove(&chunk);
        match self.active.get_mut(&chunk) {
            Some(active) => {
                active.reported = active.reported.max(Some(version));
                self.progress(chunk, out);
            }
            // It was certain here, and is now there.
            None if version == newest => {
                self.send_on(Message::Committed { epoch: self.epoch(), chunk, version }, out);
            }
            None => {}
        }
        if was_unsettled {
            self.report_caught_up(out);
        }
    }

    /// Reports, or at the head commits, what this replica and all behind it have.
    pub(super) fn progress(&mut self, chunk: ChunkId, out: &mut Vec<Command<R>>) {
        let epoch = self.epoch();
        if !self.member.is_active() {
            return;
        }
        let Some(active) = self.active.get(&chunk).filter(|active| active.is_ordered) else { return };
        if active.barrier.is_some() {
            return;
        }
        let behind = if self.successor.is_some() { active.reported } else { Some(active.applied) };
        let Some(version) = behind.map(|version| version.min(active.applied)) else { return };
        if self.is_head() {
            // What is older than the epoch is given a new version first.
            if version.epoch == epoch && active.committed < Some(version) {
                out.push(Command::Acknowledge { chunk, version });
                self.commit(chunk, version, out);
            }
        } else {
            self.send_back(Message::Applied { epoch, chunk, version }, out);
        }
    }

    /// All have `version` of `chunk`.
    pub(super) fn commit(&mut self, chunk: ChunkId, version: ChunkVersion, out: &mut Vec<Command<R>>) {
        let Some(active) = self.active.get_mut(&chunk) else { return };
        if !active.is_ordered || active.barrier.is_some() || version > active.applied {
            return;
        }
        active.committed = active.committed.max(Some(version));
        let is_settled = version == active.version;
        self.send_on(Message::Committed { epoch: self.epoch(), chunk, version }, out);
        if is_settled {
            self.active.remove(&chunk);
            out.push(Command::Settle { chunk, version });
        }
    }
}
