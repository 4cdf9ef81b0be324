//! Answers that wait until what they tell is in all copies that count.

use super::{Replica, Service};
use ashlar_rpc::DeliverOnce;
use ashlar_rpc::net::Answers;
use std::collections::VecDeque;
use std::time::Duration;

/// For how long an answer is held back.
const HELD_MAX: Duration = Duration::from_secs(20);

/// An answer that is held back for so long is late: whoever is told of it has had no time to answer before.
const LATE_MIN: Duration = Duration::from_millis(500);

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
    /// When the last one that was late was told, or refused.
    late_at: Duration,
    /// To be delivered by whoever has let go of the locks.
    ready: Vec<(DeliverOnce, bool)>,
}

impl Held {
    /// What is up to `committed` may be told.
    pub(super) fn release(&mut self, committed: u64, now: Duration) {
        self.late_at = self.held_up_at(now);
        while self.waiting.front().is_some_and(|answer| answer.sequence <= committed) {
            self.ready.extend(self.waiting.pop_front().map(|answer| (answer.deliver, true)));
        }
    }

    /// When one was held back for long the last time: now, if one is.
    pub(super) fn held_up_at(&self, now: Duration) -> Duration {
        let is_late = |answer: &Answer| now.saturating_sub(answer.since) >= LATE_MIN;
        if self.waiting.front().is_some_and(is_late) { now } else { self.late_at }
    }

    /// Nothing may be told any more.
    pub(super) fn refuse_all(&mut self) {
        self.ready.extend(self.waiting.drain(..).map(|answer| (answer.deliver, false)));
    }

    /// What has waited for long is not told.
    pub(super) fn refuse_old(&mut self, now: Duration) {
        self.late_at = self.held_up_at(now);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn what_is_held_back_for_long_has_been_held_up_until_it_was_told() {
        let mut held = Held::default();
        let hold = |held: &mut Held, sequence, since| {
            held.waiting.push_back(Answer { sequence, since, deliver: Box::new(|_, _| ()) });
        };
        hold(&mut held, 1, at(1000));
        held.release(1, at(1400));
        assert_eq!((held.take_ready().len(), held.held_up_at(at(9000))), (1, Duration::ZERO), "that is soon");
        hold(&mut held, 2, at(10_000));
        hold(&mut held, 3, at(10_400));
        assert_eq!(held.held_up_at(at(10_499)), Duration::ZERO);
        assert_eq!(held.held_up_at(at(12_000)), at(12_000), "it is so yet");
        held.release(3, at(16_000));
        assert_eq!((held.take_ready().len(), held.held_up_at(at(19_000))), (2, at(16_000)));
        hold(&mut held, 4, at(20_000));
        held.refuse_old(at(20_000) + HELD_MAX + at(1));
        assert_eq!(held.held_up_at(at(90_000)), at(20_001) + HELD_MAX);
    }
}
