//! Another copy, as this one sees it, and the threads that talk to it.

use super::message::{Heard, Say};
use super::{Core, Replica};
use ashlar_env::{Signal, Tasks};
use ashlar_kv::KvError;
use ashlar_replication::log::{Message, Sequence};
use ashlar_replication::membership::Change;
use ashlar_types::codec::{decode, encode};
use ashlar_types::{Epoch, NodeId};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// For how long a lease is waited for; later it is worth little.
const BEACON_MAX: Duration = Duration::from_secs(2);
/// For how long a copy is waited for that is to make something durable.
const FLUSH_WAIT: Duration = Duration::from_secs(10);
/// Time between looks whether the thread is to end.
const LOOK: Duration = Duration::from_millis(500);
/// Time between tries of what was not done.
pub(super) const AGAIN: Duration = Duration::from_millis(20);

/// See the module.
pub(super) struct Peer {
    pub(super) node: NodeId,
    // LIMIT: OUTBOX_MAX.
    pub(super) outbox: VecDeque<Message>,
    /// Something was lost: everything that was not answered is sent again.
    pub(super) must_resend: bool,
    /// A lease to be asked for.
    pub(super) beacon: Option<(Epoch, Duration)>,
    /// What it has durably, at which epoch that was told.
    pub(super) flushed: (Epoch, u64),
    pub(super) flush_wanted: u64,
    /// What it is to have durably before it is in sync: all there was when its promotion was first wanted, at that epoch.
    pub(super) owed: Option<(Epoch, u64)>,
    /// Of entries, and of what is durable: what it was known to have when it was looked at last, and when that was something else, or all it was to have.
    pub(super) progress: [(u64, Duration); 2],
    pub(super) sender: Arc<Signal>,
    pub(super) caller: Arc<Signal>,
    pub(super) flusher: Arc<Signal>,
}

impl Peer {
    /// One that is looked at from `now` on.
    fn new(node: NodeId, now: Duration, tasks: &dyn Tasks) -> Peer {
        Peer {
            node,
            outbox: VecDeque::new(),
            must_resend: false,
            beacon: None,
            flushed: Default::default(),
            flush_wanted: 0,
            owed: None,
            progress: [(0, now); 2],
            sender: Arc::new(tasks.signal()),
            caller: Arc::new(tasks.signal()),
            flusher: Arc::new(tasks.signal()),
        }
    }

    /// Whether it has durably what it is to have before it is in sync at an epoch after `epoch`; `last` is the end of the log. If it has not, it is asked to.
    ///
    /// What was flushed was so where it counted: after a power cut of all, which any one of those in sync may go on from, a copy that was never asked would have less. What is flushed from here on
    /// waits for it, as [`ashlar_replication::membership::Member::required`] has it.
    fn may_be_in_sync(&mut self, epoch: Epoch, last: u64) -> bool {
        let owed = self.owed.filter(|owed| owed.0 == epoch).map_or(last, |owed| owed.1);
        self.owed = Some((epoch, owed));
        if self.has_flushed(epoch, owed) {
            return true;
        }
        self.flush_wanted = self.flush_wanted.max(owed);
        self.flusher.notify_all();
        false
    }

    /// Whether it has told at `epoch` that all up to `through` is durable there.
    pub(super) fn has_flushed(&self, epoch: Epoch, through: u64) -> bool {
        self.flushed_at(epoch) >= through
    }

    /// Up to where it has told at `epoch` that all is durable there; 0 when it has told nothing at that one.
    pub(super) fn flushed_at(&self, epoch: Epoch) -> u64 {
        if self.flushed.0 == epoch { self.flushed.1 } else { 0 }
    }

    pub(super) fn wake(&self) {
        [&self.sender, &self.caller, &self.flusher].into_iter().for_each(|signal| signal.notify_all());
    }
}

impl Replica {
    /// Has threads talk to each other member, and to nobody else.
    pub(super) fn follow_members(self: &Arc<Self>, core: &mut Core) {
        let own = core.machine.member().id();
        let members: Vec<NodeId> =
            core.machine.member().membership().members().filter(|node| *node != own).collect();
        let is_member = core.machine.member().membership().is_member(own);
        core.peers.retain(|peer| {
            let stays = is_member && members.contains(&peer.node);
            if !stays {
                peer.wake();
            }
            stays
        });
        for node in members {
            if !is_member || core.peers.iter().any(|peer| peer.node == node) {
                continue;
            }
            let peer = Peer::new(node, self.config.env.clock.monotonic(), &*self.config.env.tasks);
            if let Err(error) = self.begin_peer(&peer) {
                core.give_up(format!("no thread could be started: {error}"));
                return;
            }
            core.peers.push(peer);
        }
    }

    fn begin_peer(self: &Arc<Self>, peer: &Peer) -> std::io::Result<()> {
        let (tasks, node) = (&self.config.env.tasks, peer.node);
        let (weak, signal) = (Arc::downgrade(self), peer.sender.clone());
        let sender = tasks.spawn("ashlar-copy", Box::new(move || Replica::send_on(&weak, node, &signal)))?;
        let (weak, signal) = (Arc::downgrade(self), peer.caller.clone());
        let caller = tasks.spawn("ashlar-lease", Box::new(move || Replica::call_on(&weak, node, &signal)))?;
        let (weak, signal) = (Arc::downgrade(self), peer.flusher.clone());
        let flusher =
            tasks.spawn("ashlar-flush", Box::new(move || Replica::flush_on(&weak, node, &signal)))?;
        self.threads.lock().extend([sender, caller, flusher]);
        Ok(())
    }

    /// Waits until `look` finds something to do for the peer that waits at `signal`; `None` when the peer or this copy is gone.
    pub(super) fn next_for<T>(
        &self,
        node: NodeId,
        signal: &Arc<Signal>,
        pick: fn(&Peer) -> &Arc<Signal>,
        mut look: impl FnMut(&mut Core, usize) -> Option<T>,
    ) -> Option<T> {
        let mut core = self.core.lock();
        loop {
            let is_it = |peer: &Peer| peer.node == node && Arc::ptr_eq(pick(peer), signal);
            let at = core.peers.iter().position(is_it).filter(|_| !core.is_stopping)?;
            if let Some(found) = look(&mut core, at) {
                return Some(found);
            }
            signal.wait_for(&mut core, LOOK);
        }
    }

    /// Asks a peer for leases.
    fn call_on(weak: &Weak<Replica>, node: NodeId, signal: &Arc<Signal>) {
        while let Some(replica) = weak.upgrade() {
            let next =
                replica.next_for(node, signal, |peer| &peer.caller, |core, at| core.peers[at].beacon.take());
            let Some((epoch, sent_at)) = next else { return };
            let heard = replica.ask(node, &Say::Beacon { epoch, sent_at }, &[], BEACON_MAX);
            // Of what was asked for, and of nothing else.
            if heard == Some(Heard::Grant { epoch, sent_at }) {
                let mut core = replica.core.lock();
                let mut out = Vec::new();
                core.machine.member_mut().granted(node, epoch, sent_at, &mut out);
                replica.obey(&mut core, &mut out);
                replica.release(&mut core);
            }
            replica.deliver_ready();
        }
    }

    /// Has a peer make durable what it has.
    fn flush_on(weak: &Weak<Replica>, node: NodeId, signal: &Arc<Signal>) {
        while let Some(replica) = weak.upgrade() {
            let next = replica.next_for(
                node,
                signal,
                |peer| &peer.flusher,
                |core, at| {
                    let (epoch, peer) = (core.machine.member().epoch(), &core.peers[at]);
                    let is_wanted = core.machine.member().is_primary()
                        && (peer.flushed.0 != epoch || peer.flushed.1 < peer.flush_wanted)
                        && peer.flush_wanted > 0;
                    is_wanted.then_some((epoch, Sequence(peer.flush_wanted)))
                },
            );
            let Some((epoch, through)) = next else { return };
            let heard = replica.ask(node, &Say::Flush { epoch, through }, &[], FLUSH_WAIT);
            let is_done = match heard {
                Some(Heard::Flushed { epoch, through: flushed }) => {
                    replica.note_flushed(node, epoch, flushed);
                    replica.flushed.notify_all();
                    flushed >= through
                }
                _ => false,
            };
            // What it lacks is on its way to it.
            if !is_done {
                replica.config.env.tasks.pause(AGAIN);
            }
        }
    }

    /// A peer has told at `epoch` that all up to `through` is durable there.
    fn note_flushed(&self, node: NodeId, epoch: Epoch, through: Sequence) {
        let mut core = self.core.lock();
        let is_asked_for = core.machine.member().may_be_promoted(node);
        let is_now = core.machine.member().epoch() == epoch;
        let Some(peer) = core.peer(node) else { return };
        let owed = peer.owed.filter(|owed| owed.0 == epoch && !peer.has_flushed(epoch, owed.1));
        peer.flushed = (epoch, peer.flushed_at(epoch).max(through.0));
        let is_waited_for = owed.is_some_and(|owed| peer.has_flushed(epoch, owed.1));
        if is_now && is_asked_for && is_waited_for && core.proposal.is_none() {
            self.propose(&mut core, epoch, Change::Promote(node));
        }
    }

    /// Has a peer hear something; nothing when it does not answer in time, or not what it may.
    pub(super) fn ask(&self, node: NodeId, say: &Say, payload: &[u8], wait: Duration) -> Option<Heard> {
        let answer = self.config.peers.ask(node, &encode(say), payload, wait).ok()?;
        decode(&answer, "answer of a copy").ok()
    }

    /// Starts what works beside calls.
    pub(super) fn begin_threads(self: &Arc<Self>) -> Result<(), KvError> {
        let tasks = &self.config.env.tasks;
        let weak = Arc::downgrade(self);
        let ticker = tasks.spawn("ashlar-member", Box::new(move || Replica::tick_on(&weak)));
        let weak = Arc::downgrade(self);
        let proposer = tasks.spawn("ashlar-propose", Box::new(move || Replica::propose_on(&weak)));
        for thread in [ticker, proposer] {
            let thread = thread
                .map_err(|source| KvError::Io { what: "start a thread of a copy".to_owned(), source })?;
            self.threads.lock().push(thread);
        }
        Ok(())
    }
}

impl Core {
    /// See [`Peer::may_be_in_sync`]. While nobody was told what is lost here nobody else is to go on with it, who would not know.
    pub(super) fn may_be_in_sync(&mut self, node: NodeId, epoch: Epoch) -> bool {
        let last = self.machine.index().last().sequence.0;
        !self.is_left_short && self.peer(node).is_some_and(|peer| peer.may_be_in_sync(epoch, last))
    }
}
