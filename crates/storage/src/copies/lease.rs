//! Leases between targets that keep copies of the same chains, and what their groups ask of managers: both of many chains at a time.

use super::{AtTarget, BEACON_MAX, Copies, Group};
use ashlar_replication::membership;
use ashlar_rpc::Payload;
use ashlar_rpc::wire::CopyUnder;
use ashlar_types::message::{ChainChange, StorageReply, StorageRequest};
use ashlar_types::{ChainId, Epoch, TargetId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

type Command = ashlar_replication::chain::Command<TargetId>;

/// For how long groups may be busy, all together, that are asked for leases.
const GRANT_MAX: Duration = Duration::from_millis(300);

/// What two targets have between them.
type Chains = Vec<(ChainId, Epoch)>;

/// For how long others are waited for before that is said: they may be just starting.
const WAIT_SAID_AFTER: Duration = Duration::from_secs(30);

/// Says, of each once, for whom chains of `at` wait since a power cut.
fn say_who_is_waited_for(at: &AtTarget, waited_for: &BTreeMap<TargetId, usize>, now: Duration) {
    let mut waits = at.waits.lock();
    if waited_for.is_empty() {
        *waits = None;
        return;
    }
    let (since, said) = waits.get_or_insert_with(|| (now, BTreeSet::new()));
    if now - *since < WAIT_SAID_AFTER {
        return;
    }
    for (lost, chains) in waited_for {
        if !said.insert(*lost) {
            continue;
        }
        tracing::warn!(
            target = %at.id, waits_for = %lost, chains,
            "since a power cut chains wait for a target that may have what is lost here: start its server, or `ashlar target lost` if it never comes back"
        );
    }
}

impl Copies {
    /// Has time pass for all groups of a target: they ask for leases, and managers for changes.
    pub(super) fn pass_time(self: &Arc<Self>, at: &Arc<AtTarget>) {
        let now = self.outside.env.clock.monotonic();
        let is_out = self.is_out(at);
        let mut asked: BTreeMap<TargetId, Chains> = BTreeMap::new();
        let mut proposals: Vec<ChainChange> = Vec::new();
        let mut waited_for: BTreeMap<TargetId, usize> = BTreeMap::new();
        for group in at.groups() {
            let mut state = group.state.lock();
            let mut out = Vec::new();
            let waits = state.replica.member().waits_for(now);
            waits.for_each(|target| *waited_for.entry(target).or_default() += 1);
            state.replica.member_mut().set_out(is_out);
            state.replica.member_mut().tick(now, &mut out);
            if let Err(error) = group.carry_out(&mut state, out) {
                tracing::error!(%error, chain = %group.chain, target = %at.id, "notes about a copy cannot be made");
            }
            for (to, epoch) in std::mem::take(&mut state.beacons) {
                asked.entry(to).or_default().push((group.chain, epoch));
            }
            proposals.append(&mut state.proposals);
        }
        for (to, chains) in asked {
            self.ask_for_leases(at, to, chains);
        }
        self.propose(at, proposals);
        say_who_is_waited_for(at, &waited_for, now);
    }

    /// Asks `to` for leases, by a thread of its own: it may not answer.
    fn ask_for_leases(self: &Arc<Self>, at: &Arc<AtTarget>, to: TargetId, chains: Chains) {
        if !at.asking.lock().insert(to) {
            return;
        }
        let (copies, own) = (self.clone(), at.clone());
        let run = Box::new(move || {
            let sent_at = copies.outside.env.clock.monotonic();
            let request = StorageRequest::CopyBeacon { target: to, from: own.id, chains };
            let under = CopyUnder::between_servers(own.id, 0);
            let answer = copies.outside.peers.call_of_copy(under, &request, Payload::None, BEACON_MAX);
            own.asking.lock().remove(&to);
            let Ok(StorageReply::CopyGranted(granted)) = answer else { return };
            for (chain, epoch, is_granted) in granted {
                let Some(group) = own.group(chain) else { continue };
                let mut state = group.state.lock();
                if is_granted {
                    state.replica.member_mut().granted(to, epoch, sent_at, &mut Vec::<Command>::new());
                }
            }
        });
        if self.outside.env.tasks.spawn("ashlar-lease", run).is_err() {
            at.asking.lock().remove(&to);
        }
    }

    /// What a target that asks for leases is answered: for each chain the epoch here, and whether the lease is granted.
    pub(super) fn grant(
        &self,
        at: &AtTarget,
        from: TargetId,
        chains: &[(ChainId, Epoch)],
    ) -> Vec<(ChainId, Epoch, bool)> {
        let now = self.outside.env.clock.monotonic();
        let give_up = Instant::now() + GRANT_MAX;
        // Others are to do without it; that they are there it hears all the same.
        let is_out = self.is_out(at);
        let grant = |&(chain, epoch): &(ChainId, Epoch)| {
            let group = at.group(chain)?;
            // Whoever holds it for long waits for a disk that does not answer, and must not hold up those who ask.
            let mut state = group.state.try_lock_until(give_up)?;
            let mut out: Vec<Command> = Vec::new();
            let member = state.replica.member_mut();
            member.beacon(from, epoch, Duration::ZERO, now, &mut out);
            let is_grant =
                |command: &Command| matches!(command, Command::Member(membership::Command::Grant { .. }));
            let is_granted = !is_out && out.iter().any(is_grant);
            Some((chain, member.epoch(), is_granted))
        };
        chains.iter().filter_map(grant).collect()
    }

    /// Asks a manager for changes, by a thread of its own.
    fn propose(self: &Arc<Self>, at: &Arc<AtTarget>, changes: Vec<ChainChange>) {
        if changes.is_empty() || at.is_proposing.swap(true, SeqCst) {
            return;
        }
        let (copies, own) = (self.clone(), at.clone());
        let run = Box::new(move || {
            for some in changes.chunks(ChainChange::AT_ONCE_MAX) {
                (copies.outside.change_chains)(own.id, some.to_vec());
            }
            own.is_proposing.store(false, SeqCst);
        });
        if self.outside.env.tasks.spawn("ashlar-propose", run).is_err() {
            at.is_proposing.store(false, SeqCst);
        }
    }

    /// Has a target whose disk does not work leave its chains, where it is not the last one in sync.
    pub(super) fn leave_all(self: &Arc<Self>, at: &Arc<AtTarget>) {
        let now = self.outside.env.clock.monotonic();
        let (mut proposals, mut count) = (Vec::new(), 0);
        for group in at.groups() {
            // Somebody may have it who waits for the disk: others remove the target then, which grants them nothing.
            let Some(mut state) = group.state.try_lock() else { continue };
            // Not in favour of somebody who is not there.
            if state.replica.member().is_leaving() || !state.replica.member().may_serve(now) {
                continue;
            }
            let mut out: Vec<Command> = Vec::new();
            state.replica.member_mut().leave(&mut out);
            count += usize::from(!out.is_empty());
            if let Err(error) = group.carry_out(&mut state, out) {
                tracing::error!(%error, chain = %group.chain, target = %at.id, "notes about a copy cannot be made");
            }
            proposals.append(&mut state.proposals);
        }
        if count > 0 {
            tracing::warn!(target = %at.id, chains = count, "the target leaves its chains: its disk does not work");
        }
        self.propose(at, proposals);
    }

    /// Has a target of a chain with more copies than are wanted leave it: it is drained.
    pub(super) fn leave(&self, at: &AtTarget, group: &Group, wanted: u8) {
        let is_draining = self.map().target(at.id).is_some_and(|target| target.is_draining);
        let mut state = group.state.lock();
        let has_more = state.replica.member().membership().in_sync.len() > usize::from(wanted);
        if is_draining && has_more && !state.replica.member().is_leaving() {
            let mut out = Vec::new();
            state.replica.member_mut().leave(&mut out);
            if let Err(error) = group.carry_out(&mut state, out) {
                tracing::error!(%error, chain = %group.chain, target = %at.id, "notes about a copy cannot be made");
            }
        }
    }
}
