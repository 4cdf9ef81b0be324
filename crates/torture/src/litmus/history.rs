//! What the clients of one run did, and when.

use std::fmt;
use std::time::{Duration, Instant};

/// One call.
#[derive(Clone, Debug)]
pub struct Event {
    /// Who made it.
    pub client: usize,
    /// When it began.
    pub begin: Instant,
    /// When it returned.
    pub end: Instant,
    /// The statement.
    pub statement: String,
    /// What came back.
    pub answer: String,
}

/// All calls of one run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// In any order.
    pub events: Vec<Event>,
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut events: Vec<&Event> = self.events.iter().collect();
        events.sort_by_key(|event| event.begin);
        let Some(start) = events.first().map(|event| event.begin) else { return Ok(()) };
        let micros = |at: Instant| at.duration_since(start).as_nanos() as f64 / 1000.0;
        for event in events {
            writeln!(
                f,
                "    {:10.1} - {:10.1} us  client {}  {:32} {}",
                micros(event.begin),
                micros(event.end),
                event.client,
                event.statement,
                event.answer
            )?;
        }
        Ok(())
    }
}

impl History {
    /// The longest call, for reports of calls that take too long.
    #[must_use]
    pub fn longest(&self) -> Duration {
        let took = self.events.iter().map(|event| event.end.duration_since(event.begin));
        took.max().unwrap_or_default()
    }
}
