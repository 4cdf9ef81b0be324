//! What a server tells the event log of the file system: it waits here for a manager, and nobody waits for that.

use super::ManagerCalls;
use crate::Reports;
use crate::net::NetError;
use ashlar_env::Clock;
use ashlar_types::message::ManagerRequest;
use ashlar_types::{EventKind, Happening};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// LIMIT: of what waits while no manager answers; more is counted, and the count is told.
const WAITING_MAX: usize = 256;
/// For how long the same damage is not told again: everybody who reads it meets it.
const SAME_DAMAGE: Duration = Duration::from_secs(10 * 60);
/// LIMIT: of damages that are remembered for that.
const DAMAGES_MAX: usize = 256;

/// See the module.
pub struct Reporter {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Happening>,
    lost: u64,
    /// Damages that were told, with when.
    damages: VecDeque<(Duration, EventKind, String, String)>,
}

impl Reporter {
    /// One that nothing was told to yet.
    pub fn new(clock: Arc<dyn Clock>) -> Reporter {
        Reporter { clock, state: Mutex::default() }
    }

    /// Tells a manager what waits, if there is something.
    ///
    /// # Errors
    /// [`NetError`]; what was not told goes on waiting.
    pub fn send(&self, managers: &ManagerCalls, deadline: Instant) -> Result<(), NetError> {
        loop {
            let what: Vec<Happening> = {
                let state = self.state.lock();
                state.waiting.iter().take(ManagerRequest::REPORTS_MAX).cloned().collect()
            };
            if what.is_empty() {
                return Ok(());
            }
            let count = what.len();
            match managers.call(&ManagerRequest::Report { what }, deadline) {
                Ok(_) => self.forget(count),
                Err(NetError::Refused(text)) => {
                    tracing::warn!(text, "a manager does not take what has happened here; it is dropped");
                    self.forget(count);
                }
                Err(other) => return Err(other),
            }
        }
    }

    fn forget(&self, count: usize) {
        let mut state = self.state.lock();
        // Only one thread sends, so the first ones are those that were told.
        let count = count.min(state.waiting.len());
        state.waiting.drain(..count);
        if state.lost > 0 {
            let text = format!("{} could not be told while no manager answered", state.lost);
            state.lost = 0;
            state.waiting.push_back(Happening::new(self.clock.now(), EventKind::EventsLost, "events", &text));
        }
    }
}

impl Reports for Reporter {
    fn report(&self, kind: EventKind, subject: &str, text: &str) {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        if kind == EventKind::DamageFound {
            state.damages.retain(|(since, ..)| now.saturating_sub(*since) < SAME_DAMAGE);
            let is_known = |(_, known, about, what): &(Duration, EventKind, String, String)| {
                *known == kind && about == subject && what == text
            };
            if state.damages.iter().any(is_known) {
                return;
            }
            if state.damages.len() >= DAMAGES_MAX {
                state.damages.pop_front();
            }
            state.damages.push_back((now, kind, subject.to_owned(), text.to_owned()));
        }
        if state.waiting.len() >= WAITING_MAX {
            state.lost += 1;
            return;
        }
        state.waiting.push_back(Happening::new(self.clock.now(), kind, subject, text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_env::Env;
    use ashlar_types::Timespec;

    #[test]
    fn damage_is_told_once_in_a_while_and_what_does_not_fit_is_counted() {
        let (env, clock) = Env::simulated(1, Timespec::default());
        let reporter = Reporter::new(env.clock.clone());
        let damage = |text| reporter.report(EventKind::DamageFound, "target-1", text);
        let waiting = || reporter.state.lock().waiting.len();
        damage("block 1");
        damage("block 1");
        damage("block 2");
        assert_eq!(waiting(), 2);
        clock.advance(SAME_DAMAGE);
        damage("block 1");
        assert_eq!(waiting(), 3);
        for _ in 0..WAITING_MAX + 7 {
            reporter.report(EventKind::SessionSilent, "c1", "silent");
        }
        assert_eq!((waiting(), reporter.state.lock().lost), (WAITING_MAX, 10));
        reporter.forget(ManagerRequest::REPORTS_MAX);
        let told = reporter.state.lock().waiting.back().cloned();
        assert!(told.is_some_and(|told| told.kind == EventKind::EventsLost && told.text.starts_with("10 ")));
    }
}
