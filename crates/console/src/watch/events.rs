//! The event log, followed.

use super::Watch;
use ashlar_types::Event;
use ashlar_types::message::{ManagerReply, ManagerRequest};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time between two questions.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// LIMIT: for how long one may take.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// LIMIT: events that are kept, as many as managers keep.
const EVENTS_MAX: usize = 2048;

/// See the module.
#[derive(Default)]
pub(super) struct Events {
    /// The oldest first.
    all: VecDeque<Event>,
    /// Why some may be missing; empty when none are.
    trouble: String,
    heard: Option<Instant>,
}

impl Events {
    fn take(&mut self, events: Vec<Event>, trouble: String) {
        let newest = self.newest();
        self.all.extend(events.into_iter().filter(|event| event.number > newest));
        while self.all.len() > EVENTS_MAX {
            self.all.pop_front();
        }
        (self.trouble, self.heard) = (trouble, Some(Instant::now()));
    }

    fn newest(&self) -> u64 {
        self.all.back().map_or(0, |event| event.number)
    }
}

impl Watch {
    pub(super) fn follow_events(&self) {
        while self.rest(Instant::now() + ASK_EVERY) {
            let after = self.events.lock().newest();
            let asked =
                self.cluster.managers.call(&ManagerRequest::Events { after }, Instant::now() + ANSWER_MAX);
            match asked {
                Ok(ManagerReply::Events { events, trouble }) => self.events.lock().take(events, trouble),
                Ok(_) => tracing::debug!("a manager gave an answer of the wrong kind"),
                Err(error) => tracing::debug!(%error, "no manager tells what has happened; asking again"),
            }
        }
    }

    /// Events behind number `after`, the newest `max` of them, the oldest first.
    pub fn events(&self, after: u64, max: usize) -> Vec<Event> {
        let events = self.events.lock();
        let begin = events.all.partition_point(|event| event.number <= after);
        events.all.iter().skip(begin.max(events.all.len().saturating_sub(max))).cloned().collect()
    }

    /// Why events may be missing, and how long ago managers told of them last.
    pub fn events_state(&self) -> (String, Option<Duration>) {
        let events = self.events.lock();
        (events.trouble.clone(), events.heard.map(|heard| heard.elapsed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_types::{EventKind, Happening, NodeId, Timespec};

    fn event(number: u64) -> Event {
        let what = Happening::new(Timespec::default(), EventKind::NodeJoined, "x", "");
        Event { number, node: NodeId(1), what }
    }

    #[test]
    fn the_newest_events_are_kept_and_none_twice() {
        let mut events = Events::default();
        events.take((1..=10).map(event).collect(), String::new());
        events.take((5..=EVENTS_MAX as u64 + 20).map(event).collect(), "away".into());
        assert_eq!((events.all.len(), events.newest()), (EVENTS_MAX, EVENTS_MAX as u64 + 20));
        let numbers: Vec<u64> = events.all.iter().map(|event| event.number).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]));
        assert_eq!(events.trouble, "away");
    }
}
