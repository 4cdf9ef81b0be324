//! Answers that wait until what they tell is in all copies that count.

use super::{Replica, Service};
use ashlar_rpc::DeliverOnce;
use ashlar_rpc::net::Answers;
use std::collections::VecDeque;
use std::time::Duration;

/// For how long an answer is held back.
const HELD_MAX: Duration = Duration::from_secs(20);

struct Answer {
    sequence: u64,
    since: Duration,
    deliver: DeliverOnce,
}

/// See the module.
#[derive(Default)]
pub(super) struct Held {
    /// By sequence, as the end of the log only grows while this machine answers.
    // LIMIT: calls under way, which the server bounds.
    waiting: VecDeque<Answer>,
    /// To be delivered by whoever has let go of the locks.
    ready: Vec<(DeliverOnce, bool)>,
}

impl Held {
    /// What is up to `committed` may be told.
    pub(super) fn release(&mut self, committed: u64) {
        while self.waiting.front().is_some_and(|answer| answer.sequence <= committed) {
            self.ready.extend(self.waiting.pop_front().map(|answer| (answer.deliver, true)));
        }
    }

    /// Nothing may be told any more.
    pub(super) fn refuse_all(&mut self) {
        self.ready.extend(self.waiting.drain(..).map(|answer| (answer.deliver, false)));
    }

    /// What has waited for long is not told.
    pub(super) fn refuse_old(&mut self, now: Duration) {
        while self.waiting.front().is_some_and(|answer| now.saturating_sub(answer.since) > HELD_MAX) {
            self.ready.extend(self.waiting.pop_front().map(|answer| (answer.deliver, false)));
        }
    }

    pub(super) fn is_any_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(super) fn take_ready(&mut self) -> Vec<(DeliverOnce, bool)> {
        std::mem::take(&mut self.ready)
    }
}

impl Replica {
    /// Holds back what the `service`th service tells; false, too, when this machine does not surely answer for the metadata server any more.
    pub(super) fn hold(&self, service: u64, deliver: DeliverOnce) {
        let now = self.config.env.clock.monotonic();
        let mut core = self.core.lock();
        let is_here = core.service == Service::Here(service);
        let machine = &core.machine;
        let is_told =
            if !machine.member().is_primary() || core.broken.is_some() || !is_here || core.is_stopping {
                false
            } else if machine.committed() >= machine.index().last().sequence
                && machine.member().may_acknowledge(now)
            {
                true
            } else {
                let sequence = machine.index().last().sequence.0;
                core.held.waiting.push_back(Answer { sequence, since: now, deliver });
                return;
            };
        drop(core);
        deliver(is_told, &mut Answers::default());
    }
}

impl Replica {
    /// Delivers what may be. To be called without a lock.
    pub(super) fn deliver_ready(&self) {
        let ready = self.core.lock().held.take_ready();
        let mut answers = Answers::default();
        for (deliver, is_told) in ready {
            deliver(is_told, &mut answers);
        }
    }
}
