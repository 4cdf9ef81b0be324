//! The beginning of an epoch: what may differ between neighbours is found out and copied, from the head on.

use super::replica::{Active, ChainReplica, Successor};
use super::{ChunkVersion, Command, Holding, Holdings, Message};
use crate::membership::ReplicaId;
use ashlar_types::ChunkId;
use std::collections::BTreeSet;

impl<R: ReplicaId> ChainReplica<R> {
    /// Takes its place in the chain. Writes that were ordered at the epoch before go on being applied.
    pub(super) fn enter_epoch(&mut self, holdings: &impl Holdings, out: &mut Vec<Command<R>>) {
        self.is_known = false;
        let id = self.member.id();
        let members: Vec<R> = self.member.membership().members().collect();
        let place = members.iter().position(|member| *member == id);
        self.predecessor = place.and_then(|place| members.get(place.checked_sub(1)?)).copied();
        self.successor = place.and_then(|place| members.get(place + 1)).map(|&id| Successor {
            id,
            is_compared: false,
            unsettled: BTreeSet::new(),
        });
        let active = &mut self.active;
        holdings.for_each_uncertain(&mut |Holding { chunk, version, .. }| {
            active.entry(chunk).or_insert(Active::new(version));
        });
        for active in active.values_mut() {
            (active.reported, active.committed, active.is_ordered) = (None, None, false);
        }
        if self.is_head() {
            self.restamp(out);
        } else if self.predecessor.is_some() {
            self.send_inventory(holdings, out);
        }
    }

    /// The head's content counts, whatever a crash made of it: it gets a version that nobody else can have.
    fn restamp(&mut self, out: &mut Vec<Command<R>>) {
        let epoch = self.epoch();
        for (&chunk, active) in &mut self.active {
            // A head that is alone goes on at its epoch; the number grows all the same.
            active.version = ChunkVersion { epoch, number: active.version.number + 1 };
            (active.barrier, active.is_ordered) = (Some(active.version), true);
            out.push(Command::Restamp { chunk, version: active.version });
        }
    }

    /// Sends again what was not answered: after a new connection, and when nothing came for a while. A message can come before its receiver takes part in
    /// its epoch, and is lost then.
    pub fn resend(&mut self, holdings: &impl Holdings, out: &mut Vec<Command<R>>) {
        if !self.member.is_active() {
            return;
        }
        if self.predecessor.is_some() && !self.is_known {
            self.send_inventory(holdings, out);
        }
        let chunks: Vec<ChunkId> = self.active.keys().copied().collect();
        for chunk in chunks {
            self.offer(chunk, out);
            self.progress(chunk, out);
        }
        if let Some(successor) = self.successor.as_ref().filter(|successor| successor.is_compared) {
            for &chunk in successor.unsettled.iter().filter(|chunk| self.is_certain(**chunk)) {
                self.copy_on(chunk, holdings.version(chunk), out);
            }
        }
        self.report_caught_up(out);
    }

    /// Sends a chunk that is uncertain here whole to a successor that has not reported it: the bytes of writes are gone.
    fn offer(&mut self, chunk: ChunkId, out: &mut Vec<Command<R>>) {
        let Some(active) = self.active.get(&chunk).filter(|active| active.is_ordered) else { return };
        let (version, is_quiet) = (active.version, active.is_quiet());
        let is_missing = active.reported != Some(version);
        if let Some(successor) = self.successor.as_mut().filter(|_| is_missing) {
            successor.unsettled.insert(chunk);
            // Else it is copied when it is quiet.
            if is_quiet {
                self.copy_on(chunk, version, out);
            }
        }
    }

    fn send_inventory(&self, holdings: &impl Holdings, out: &mut Vec<Command<R>>) {
        // What is under way may not be on disk at all yet.
        let active = self.active.iter();
        let mut list: Vec<Holding> = active
            .map(|(&chunk, active)| Holding { chunk, version: active.version, is_uncertain: true })
            .collect();
        if !self.member.membership().is_in_sync(self.member.id()) {
            holdings.for_each(&mut |holding| {
                if self.is_certain(holding.chunk) {
                    list.push(Holding { is_uncertain: false, ..holding });
                }
            });
        }
        self.send_back(Message::Inventory { epoch: self.epoch(), holdings: list }, out);
    }

    /// The successor's inventory: what it may not have as it is here is copied. Writes that come meanwhile go whole.
    pub(super) fn compare(
        &mut self,
        theirs: &[Holding],
        holdings: &impl Holdings,
        out: &mut Vec<Command<R>>,
    ) {
        let membership = self.member.membership();
        let Some(successor) = &mut self.successor else { return };
        if successor.is_compared {
            return;
        }
        successor.is_compared = true;
        let is_catching_up = !membership.is_in_sync(successor.id);
        let mut unsettled: BTreeSet<ChunkId> = self.active.keys().copied().collect();
        for holding in theirs {
            if holding.is_uncertain || holding.version != holdings.version(holding.chunk) {
                unsettled.insert(holding.chunk);
            }
        }
        if is_catching_up {
            let has = |holding: &Holding| theirs.iter().any(|their| their.chunk == holding.chunk);
            holdings.for_each(&mut |holding| {
                if !has(&holding) {
                    unsettled.insert(holding.chunk);
                }
            });
        }
        // What it reported since the epoch began, it has.
        unsettled.retain(|chunk| {
            self.active.get(chunk).is_none_or(|active| active.reported != Some(active.version))
        });
        successor.unsettled = unsettled;
        for &chunk in &self.successor.as_ref().expect("it is there").unsettled {
            // What is uncertain here is not final before it was replaced or given a new version at this epoch, which is reported
            // and copied then.
            if self.is_certain(chunk) {
                self.copy_on(chunk, holdings.version(chunk), out);
            }
        }
        self.report_caught_up(out);
    }

    /// A copy came from the predecessor. It is taken unless what is here came later at this epoch.
    pub(super) fn take_copy(
        &mut self,
        chunk: ChunkId,
        version: ChunkVersion,
        holdings: &impl Holdings,
        out: &mut Vec<Command<R>>,
    ) {
        let newest = self.newest(chunk, holdings);
        if newest == version {
            let active = self.order(chunk, version, version);
            if active.is_quiet() {
                self.copy_on(chunk, version, out);
            }
            self.progress(chunk, out);
        } else if newest.epoch < self.epoch() || newest < version {
            let active = self.order(chunk, version, newest);
            (active.barrier, active.reported) = (Some(version), None);
            if let Some(successor) = &mut self.successor {
                successor.unsettled.insert(chunk);
            }
            out.push(Command::Replace { chunk, version });
        }
    }

    /// Tells the head when a successor that was catching up has everything. It stays so: writes go to it like to any other.
    pub(super) fn report_caught_up(&mut self, out: &mut Vec<Command<R>>) {
        let membership = self.member.membership();
        let Some(successor) = &self.successor else { return };
        let is_next = membership.is_in_sync(self.member.id()) && !membership.is_in_sync(successor.id);
        if !is_next || !successor.is_compared || !successor.unsettled.is_empty() {
            return;
        }
        let (replica, head) = (successor.id, membership.primary());
        if self.is_head() {
            self.member.promote(replica, out);
        } else {
            out.push(Command::Send { to: head, message: Message::CaughtUp { epoch: self.epoch(), replica } });
        }
    }
}
