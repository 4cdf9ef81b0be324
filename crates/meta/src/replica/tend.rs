//! Time, and changes of the membership.

use super::store::Kept;
use super::{Core, Replica};
use ashlar_kv::KvError;
use ashlar_replication::log::{Command, Sequence};
use ashlar_replication::membership::{self, Change, Content, Member};
use ashlar_types::NodeId;
use ashlar_types::membership::Membership;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// For how long a copy is waited for that takes nothing although it answers.
const STALL_MAX: Duration = Duration::from_secs(10);
/// A look at the clock that comes so much after the one before is late.
const LATE_MIN: Duration = Duration::from_secs(1);
/// Time between looks at the clock.
const TICK: Duration = Duration::from_millis(50);
/// For how long others are waited for before that is said: they may be just starting.
const WAIT_SAID_AFTER: Duration = Duration::from_secs(30);
/// Turns of the clock between looks at what the log has.
const FLOOR_EVERY: u32 = 20;
/// Time between looks whether the thread is to end.
const LOOK: Duration = Duration::from_millis(500);

impl Replica {
    /// The map says that the copies are those of `newer`; an older one than is known changes nothing.
    ///
    /// # Errors
    /// When it cannot be stored: the copy takes no part any more then.
    pub fn learn(self: &Arc<Self>, newer: &Membership<NodeId>) -> Result<(), KvError> {
        // ORDER: one at a time, or an older membership could be stored over a newer one that is acted on.
        {
            let mut core = self.core.lock();
            while core.is_learning {
                self.turned.wait_for(&mut core, LOOK);
            }
            core.is_learning = true;
        }
        let learned = self.learn_and_store(newer);
        self.core.lock().is_learning = false;
        if let Err(error) = &learned {
            self.core.lock().give_up(format!("its membership could not be stored: {error}"));
        }
        self.deliver_ready();
        self.turned.notify_all();
        learned
    }

    /// See [`super::Tenure::loss_noted`].
    pub(super) fn loss_noted(&self) -> Result<(), KvError> {
        // ORDER: as in `learn`.
        let stored = {
            let mut core = self.core.lock();
            while core.is_learning {
                self.turned.wait_for(&mut core, LOOK);
            }
            core.is_learning = true;
            core.machine.member().to_store()
        };
        let kept = self.config.store.keep(&Kept::new(stored, self.config.store.continuity(), false).encode());
        let mut core = self.core.lock();
        core.is_learning = false;
        core.is_left_short &= kept.is_err();
        drop(core);
        self.turned.notify_all();
        kept
    }

    fn learn_and_store(self: &Arc<Self>, newer: &Membership<NodeId>) -> Result<(), KvError> {
        let now = || self.config.env.clock.monotonic();
        // Stored beforehand as it will most likely be, so that between two groups there is no disk to wait for.
        let (mut written, is_left_short) = {
            let core = self.core.lock();
            if core.broken.is_some() {
                return Ok(());
            }
            let (mut probe, is_left_short) = (core.machine.clone(), core.is_short());
            drop(core);
            probe.learn(newer, now(), &mut Vec::new());
            if !probe.member().is_storing() {
                return Ok(());
            }
            (probe.member().to_store(), is_left_short && newer.is_in_sync(self.config.node))
        };
        // Until somebody was told, the next start is to find that something is missing.
        let span = || if is_left_short { None } else { self.config.store.continuity() };
        loop {
            let kept = Kept::new(written.clone(), span(), false);
            self.config.store.keep(&kept.encode())?;
            let missing = self.lane().between_groups(|| {
                let mut core = self.core.lock();
                let mut out = Vec::new();
                let is_short = core.is_short();
                core.machine.learn(newer, now(), &mut out);
                // Out of sync it is given what it lacks, by whoever is left. One that was promoted without having heard of it was so because of what it had reported before the power was cut.
                core.is_left_short =
                    is_short && core.machine.member().membership().is_in_sync(self.config.node);
                let wanted = core.machine.member().to_store();
                let missing = (written != wanted).then_some(wanted);
                if missing.is_none() {
                    let epoch = core.machine.member().epoch();
                    core.machine.membership_stored(epoch, &mut out);
                    self.changed(&mut core);
                }
                self.obey(&mut core, &mut out);
                missing
            });
            match missing {
                None => return Ok(()),
                Some(wanted) => written = wanted,
            }
        }
    }

    /// The membership is another one.
    fn changed(self: &Arc<Self>, core: &mut Core) {
        self.follow_members(core);
        if !core.is_named_primary() {
            core.end_service("another machine is primary");
        }
        if !core.machine.member().is_primary() {
            core.held.refuse_all();
            core.recent.clear();
        }
        for peer in &mut core.peers {
            peer.outbox.clear();
            peer.beacon = None;
            // It may have been of entries that were taken back; who waits for one asks again.
            peer.flush_wanted = 0;
        }
        core.proposal = None;
    }

    /// Goes by itself, so that nobody waits for its leases: the next in order becomes primary. The service here has ended.
    pub fn leave(&self) {
        let now = self.config.env.clock.monotonic();
        let mut core = self.core.lock();
        let mut out = Vec::new();
        // To nobody who may be dead: who is left would be the only one.
        if !core.machine.member().may_serve(now) {
            return;
        }
        core.machine.member_mut().leave(&mut out);
        self.obey(&mut core, &mut out);
        core.held.refuse_all();
        drop(core);
        self.deliver_ready();
    }

    /// Lets time pass.
    pub(super) fn tick_on(weak: &Weak<Replica>) {
        let (mut turn, mut looked): (u32, Option<Duration>) = (0, None);
        let mut waits = Waits::default();
        while let Some(replica) = weak.upgrade() {
            turn = turn.wrapping_add(1);
            if turn.is_multiple_of(FLOOR_EVERY) {
                replica.note_floor();
            }
            let mut core = replica.core.lock();
            if core.is_stopping {
                return;
            }
            let now = replica.config.env.clock.monotonic();
            // While something is heard, the lane may be one that is about to be replaced; whoever hears notices by himself.
            let stopped = if core.is_hearing { None } else { replica.lane.read().stopped() };
            if let Some(why) = stopped.filter(|_| core.broken.is_none()) {
                core.give_up(format!("its log takes nothing any more: {why}"));
            }
            if core.broken.is_none() {
                let mut out = Vec::new();
                core.machine.member_mut().tick(now, &mut out);
                waits.look(core.machine.member(), now);
                // Who was held up himself has heard nobody for so long, and nobody is to blame.
                let late = looked.map_or(Duration::ZERO, |looked| now.saturating_sub(looked + LATE_MIN));
                looked = Some(now);
                core.peers.iter_mut().flat_map(|peer| &mut peer.progress).for_each(|(_, at)| *at += late);
                core.find_stalled(now, &mut out);
                replica.obey(&mut core, &mut out);
            }
            core.held.refuse_old(now);
            drop(core);
            replica.deliver_ready();
            let mut core = replica.core.lock();
            if !core.is_stopping && !core.held.is_any_ready() {
                replica.ticker.wait_for(&mut core, TICK);
            }
        }
    }

    /// Tells the machine what the log does not have any more.
    pub(super) fn note_floor(&self) {
        let lane = self.lane();
        let floor = lane.first_group().saturating_sub(1);
        let mut core = self.core.lock();
        let through = Sequence(floor).min(core.machine.checkpoint_max());
        if through > core.machine.index().floor().sequence {
            core.machine.checkpointed(through);
        }
        core.recent.forget(floor);
    }

    /// Asks managers.
    pub(super) fn propose_on(weak: &Weak<Replica>) {
        while let Some(replica) = weak.upgrade() {
            let (proposal, wants_refresh) = {
                let mut core = replica.core.lock();
                if core.is_stopping {
                    return;
                }
                if core.proposal.is_none() && !core.wants_refresh {
                    replica.proposer.wait_for(&mut core, LOOK);
                }
                (core.proposal.take(), std::mem::take(&mut core.wants_refresh))
            };
            if wants_refresh {
                replica.config.agreement.refresh();
            }
            if let Some((expected, change)) = proposal {
                replica.config.agreement.propose(expected, change);
            }
        }
    }
}

/// Since when the others are waited for, after a power cut, and whether that was said.
#[derive(Default)]
struct Waits(Option<(Duration, bool)>);

impl Waits {
    /// Says it, once.
    fn look(&mut self, member: &Member<NodeId>, now: Duration) {
        if member.waits_for(now).next().is_none() {
            self.0 = None;
            return;
        }
        let (since, is_said) = self.0.get_or_insert((now, false));
        if now - *since < WAIT_SAID_AFTER || std::mem::replace(is_said, true) {
            return;
        }
        for lost in member.waits_for(now) {
            tracing::warn!(
                waits_for = %lost,
                "since a power cut a copy of metadata waits for a machine that may have what is lost here: start it, or `ashlar copies lost` if it never comes back"
            );
        }
    }
}

impl Core {
    /// Whether it lacks something that it had reported, and nobody was told or has given it since.
    fn is_short(&self) -> bool {
        self.is_left_short || self.machine.member().content() == Content::Short
    }

    /// A copy that grants leases and takes nothing, as its disk does not answer: it is asked to be removed, so that nobody waits for it.
    fn find_stalled(&mut self, now: Duration, out: &mut Vec<Command<NodeId>>) {
        let member = self.machine.member();
        if !member.is_primary() {
            // Whoever becomes primary begins to wait then.
            self.peers.iter_mut().flat_map(|peer| &mut peer.progress).for_each(|(_, at)| *at = now);
            return;
        }
        let (last, epoch) = (self.machine.index().last().sequence.0, member.epoch());
        let required: Vec<NodeId> = member.required().collect();
        for i in 0..self.peers.len() {
            if !required.contains(&self.peers[i].node) {
                self.peers[i].progress.iter_mut().for_each(|(_, at)| *at = now);
                continue;
            }
            let peer = &mut self.peers[i];
            let matched = self.machine.matched(peer.node);
            let has = matched.map_or(0, |sequence| sequence.0);
            // Logs were not compared yet: then the same goes for that.
            let has_all = has >= last && matched.is_some();
            let flushed = peer.flushed_at(epoch);
            let has_flushed = flushed >= peer.flush_wanted.min(has);
            // Each for itself: the cache of a disk that hangs takes entries for long.
            let stalled = peer.progress.iter_mut().zip([(has, has_all), (flushed, has_flushed)]).any(
                |((seen, at), (now_seen, is_all))| {
                    if is_all || *seen != now_seen {
                        (*seen, *at) = (now_seen, now);
                    }
                    now.saturating_sub(*at) > STALL_MAX
                },
            );
            if stalled {
                peer.progress.iter_mut().for_each(|(_, at)| *at = now);
                let (node, change) = (peer.node, Change::Remove(peer.node));
                tracing::warn!(%node, "a copy of metadata takes nothing any more: it is to be removed");
                out.push(membership::Command::Propose { expected: epoch, change }.into());
            }
        }
    }
}
