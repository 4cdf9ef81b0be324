//! What the lane of the primary tells and asks (`ashlar_kv::Copies`).

use super::Replica;
use super::message::{number_of, position_of};
use ashlar_kv::{Copies, Group, KvError};
use ashlar_types::Epoch;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// For how long copies are waited for that are to make something durable. One that is dead is removed long before.
const FLUSH_MAX: Duration = Duration::from_secs(30);
/// Time between looks.
const LOOK: Duration = Duration::from_millis(100);
/// For how long the service waits, after a change of the epoch, until this machine decides again: one exchange with the copies, if they are there.
const UNDECIDED_MAX: Duration = Duration::from_secs(10);

/// The lane has this; it does not keep the replica alive.
pub(super) struct Hook(pub(super) Weak<Replica>);

fn not_primary(what: &str) -> KvError {
    KvError::NotPrimary { what: what.to_owned() }
}

impl Hook {
    fn replica(&self) -> Option<Arc<Replica>> {
        self.0.upgrade()
    }
}

impl Copies for Hook {
    fn await_turn(&self) {
        let Some(replica) = self.replica() else { return };
        let clock = &replica.config.env.clock;
        let mut core = replica.core.lock();
        if !core.is_undecided() {
            return;
        }
        let end = clock.monotonic() + UNDECIDED_MAX;
        while core.is_undecided() {
            let left = end.saturating_sub(clock.monotonic());
            if left.is_zero() {
                core.end_service("copies on other machines do not answer");
                replica.turned.notify_all();
            } else {
                replica.turned.wait_for(&mut core, LOOK.min(left));
            }
        }
    }

    fn is_undecided(&self) -> bool {
        self.replica().is_some_and(|replica| replica.core.lock().is_undecided())
    }

    fn epoch(&self) -> Result<Epoch, KvError> {
        let replica = self.replica().ok_or_else(|| not_primary("the copy was closed"))?;
        let core = replica.core.lock();
        match core.may_decide() {
            true => Ok(core.machine.member().epoch()),
            false => Err(not_primary("another machine decides, or nobody for now")),
        }
    }

    fn appended(&self, group: Group) {
        let Some(replica) = self.replica() else { return };
        let mut core = replica.core.lock();
        // Whoever has made something ready before delivers it, or the next tick does.
        let was_ready = core.held.is_any_ready();
        let mut out = std::mem::take(&mut core.out);
        let position = core.machine.append(&mut out);
        // INVARIANT: the epoch was asked for under the same lock of the lane, and changes under it alone.
        assert_eq!(position.map(number_of), Some(group.number), "a group that the machine does not expect");
        if !core.peers.is_empty() {
            core.recent.push(group.clone());
        }
        // In the log it survives the death of the process, which is what is promised of what was not flushed.
        core.machine.stored(position_of(group.number), &mut out);
        replica.obey(&mut core, &mut out);
        core.out = out;
        if core.held.is_any_ready() && !was_ready {
            replica.ticker.notify_all();
        }
    }

    fn committed(&self) -> u64 {
        self.replica().map_or(0, |replica| replica.core.lock().machine.checkpoint_max().0)
    }

    fn begin_flush(&self, sequence: u64) {
        let Some(replica) = self.replica() else { return };
        replica.core.lock().want_flush(sequence);
    }

    fn end_flush(&self, sequence: u64) -> Result<(), KvError> {
        let replica = self.replica().ok_or_else(|| not_primary("the copy was closed"))?;
        let clock = &replica.config.env.clock;
        let end = clock.monotonic() + FLUSH_MAX;
        let mut core = replica.core.lock();
        let service = core.service_here();
        loop {
            // One that has ended does not end the next one.
            let has_ended = service == 0 || core.service_here() != service;
            if has_ended || !core.is_named_primary() || core.is_stopping {
                if !has_ended {
                    core.end_service("it is not known what of its log is durable");
                }
                return Err(not_primary("another machine decides, or nobody for now"));
            }
            let epoch = core.machine.member().epoch();
            let has = |id| core.peers.iter().any(|peer| peer.node == id && peer.has_flushed(epoch, sequence));
            let is_durable = core.machine.member().required().all(has);
            let now = clock.monotonic();
            let may_tell = core.machine.member().may_acknowledge(now);
            if is_durable && may_tell && core.machine.committed().0 >= sequence {
                return Ok(());
            }
            // One that has come since the flush was begun was not asked yet.
            core.want_flush(sequence);
            if now >= end {
                // ORDER: before the caller hears of it: what it decides then is not committed, whatever it makes of this.
                core.end_service("copies on other machines do not make its log durable");
                return Err(not_primary("copies on other machines do not answer"));
            }
            replica.flushed.wait_for(&mut core, LOOK);
        }
    }

    fn give_up_damaged(&self, what: &str) -> bool {
        self.replica().is_some_and(|replica| replica.give_up_damaged(what))
    }

    fn held_up_at(&self) -> Duration {
        let Some(replica) = self.replica() else { return Duration::ZERO };
        let now = replica.config.env.clock.monotonic();
        replica.core.lock().held.held_up_at(now)
    }
}
