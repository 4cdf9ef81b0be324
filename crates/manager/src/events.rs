//! The event log: what happened to the file system, for its administrators.
//!
//! It is kept beside the state, not in it: the state is small and changes seldom, and every change of it is one of everybody's. The newest events
//! are in a ring of [`SEGMENTS`] values, each under compare-and-set of its own, so that an event costs the writing of one value of
//! some kilobytes, and several managers may write. What has happened waits in memory for the store, which nobody else waits for.

mod changes;
mod segment;
#[cfg(test)]
mod tests;

pub(crate) use changes::events_of;

use crate::ManagerError;
use ashlar_coord::{Coord, CoordError};
use ashlar_env::Clock;
use ashlar_types::{Event, EventKind, Happening, NodeId};
use parking_lot::Mutex;
use segment::{Segment, SegmentError};
use std::collections::VecDeque;
use std::sync::Arc;

/// Values that the newest events are in.
pub const SEGMENTS: usize = 32;
/// LIMIT: events that are kept: those of all segments, the oldest of which is overwritten.
pub const EVENTS_MAX: usize = SEGMENTS * segment::EVENTS_MAX;
/// LIMIT: events that wait for the store, which may be away for long; more are counted, and lost.
const WAITING_MAX: usize = 1024;
/// LIMIT: tries of one writing, when other managers write at the same time.
const CONFLICTS_MAX: u32 = 50;

/// See the module.
pub struct EventLog {
    segments: Vec<Box<dyn Coord>>,
    is_shared: bool,
    clock: Arc<dyn Clock>,
    /// Held by whoever asks the store.
    asking: Mutex<()>,
    kept: Mutex<Kept>,
    waiting: Mutex<Waiting>,
}

/// What the store had when it was asked last.
struct Kept {
    segments: Vec<(u64, Segment)>,
    is_loaded: bool,
}

#[derive(Default)]
struct Waiting {
    events: VecDeque<(NodeId, Happening)>,
    lost: u64,
}

impl Kept {
    /// Which segment has the newest event; the first one when there are none.
    fn newest(&self) -> usize {
        let newest_of = |at: &usize| self.segments[*at].1.newest();
        (0..self.segments.len()).rev().max_by_key(newest_of).unwrap_or_default()
    }
}

impl EventLog {
    /// The events in `segments`, [`SEGMENTS`] of them. Nothing is read yet.
    pub fn new(segments: Vec<Box<dyn Coord>>, clock: Arc<dyn Clock>) -> EventLog {
        let kept = segments.iter().map(|_| (0, Segment::default())).collect();
        EventLog {
            is_shared: segments.iter().any(|segment| segment.is_shared()),
            segments,
            clock,
            asking: Mutex::new(()),
            kept: Mutex::new(Kept { segments: kept, is_loaded: false }),
            waiting: Mutex::default(),
        }
    }

    /// Notes that something happened now; `node` is where, or whose doing it was. Returns at once.
    pub fn note(&self, node: NodeId, kind: EventKind, subject: &str, text: &str) {
        self.take(node, Happening::new(self.clock.now(), kind, subject, text));
    }

    /// Notes what `node` tells. Returns at once.
    pub fn take(&self, node: NodeId, what: Happening) {
        tracing::info!(%node, kind = %what.kind, subject = what.subject, text = what.text, "event");
        let mut waiting = self.waiting.lock();
        if waiting.events.len() >= WAITING_MAX {
            waiting.lost += 1;
            return;
        }
        if waiting.lost > 0 {
            let text = format!("{} could not be kept: their number, or a store that was away", waiting.lost);
            let lost = Happening::new(self.clock.now(), EventKind::EventsLost, "events", &text);
            waiting.lost = 0;
            waiting.events.push_back((node, lost));
        }
        waiting.events.push_back((node, what));
    }

    /// Whether there is something to be written.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.lock().events.is_empty()
    }

    /// Writes what waits, and sees what other managers have written.
    ///
    /// # Errors
    /// [`ManagerError`] when the store fails, or others were faster again and again; what waits goes on waiting.
    pub fn write(&self) -> Result<(), ManagerError> {
        let _asking = self.asking.lock();
        if !self.kept.lock().is_loaded {
            (0..self.segments.len()).try_for_each(|at| self.see(at).map(drop))?;
            self.kept.lock().is_loaded = true;
        } else if self.is_shared {
            self.see_newer()?;
        }
        let mut conflicts = 0;
        while self.has_waiting() {
            match self.append() {
                Ok(()) => {}
                Err((at, CoordError::Conflict { .. })) if conflicts < CONFLICTS_MAX => {
                    conflicts += 1;
                    self.see(at)?;
                }
                Err((_, other)) => return Err(other.into()),
            }
        }
        Ok(())
    }

    /// Whether there is an event that `is_it`, also among those that wait.
    pub(crate) fn has_noted(&self, is_it: impl Fn(&Happening) -> bool) -> bool {
        let is_waiting = self.waiting.lock().events.iter().any(|(_, what)| is_it(what));
        let kept = self.kept.lock();
        is_waiting
            || kept.segments.iter().flat_map(|(_, segment)| &segment.events).any(|event| is_it(&event.what))
    }

    /// Events after the one numbered `after`, the oldest first, those that wait not among them.
    pub fn after(&self, after: u64) -> Vec<Event> {
        let kept = self.kept.lock();
        let all = kept.segments.iter().flat_map(|(_, segment)| &segment.events);
        let mut events: Vec<Event> = all.filter(|event| event.number > after).cloned().collect();
        events.sort_by_key(|event| event.number);
        events
    }

    /// Reads one segment, if it has changed; tells whether it has.
    fn see(&self, at: usize) -> Result<bool, ManagerError> {
        let known = self.kept.lock().segments[at].0;
        let Some((revision, bytes)) = self.segments[at].changed_since(known)? else { return Ok(false) };
        let segment = match Segment::decode(&bytes) {
            Ok(segment) => segment,
            Err(SegmentError::Newer(what)) => return Err(ManagerError::Invalid(what)),
            // Nothing but what happened is lost, and the next event writes it anew.
            Err(SegmentError::Damaged(what)) => {
                tracing::error!(segment = at, what, "a part of the event log is damaged, and is given up");
                Segment::default()
            }
        };
        self.kept.lock().segments[at] = (revision, segment);
        Ok(true)
    }

    /// Sees what other managers have written since.
    fn see_newer(&self) -> Result<(), ManagerError> {
        let (mut at, before) = {
            let kept = self.kept.lock();
            (kept.newest(), kept.segments[kept.newest()].1.before())
        };
        self.see(at)?;
        if self.kept.lock().segments[at].1.before() != before {
            // The ring has gone round since.
            return (0..self.segments.len()).try_for_each(|at| self.see(at).map(drop));
        }
        // LIMIT: once around the ring.
        for _ in 0..self.segments.len() {
            let next = (at + 1) % self.segments.len();
            if !self.kept.lock().segments[at].1.is_full() || !self.see(next)? {
                break;
            }
            at = next;
        }
        Ok(())
    }

    /// Writes as much of what waits as goes into one segment.
    fn append(&self) -> Result<(), (usize, CoordError)> {
        let (at, revision, mut segment) = {
            let kept = self.kept.lock();
            let newest = kept.newest();
            let (revision, segment) = &kept.segments[newest];
            match segment.is_full() {
                false => (newest, *revision, segment.clone()),
                true => {
                    let next = (newest + 1) % kept.segments.len();
                    (next, kept.segments[next].0, Segment::after(segment.newest()))
                }
            }
        };
        let taken = {
            let waiting = self.waiting.lock();
            let room = segment::EVENTS_MAX - segment.events.len();
            let first: Vec<(NodeId, Happening)> = waiting.events.iter().take(room).cloned().collect();
            let taken = first.len();
            first.into_iter().for_each(|(node, what)| segment.push(node, what));
            taken
        };
        let revision =
            self.segments[at].compare_and_set(revision, &segment.encode()).map_err(|error| (at, error))?;
        self.kept.lock().segments[at] = (revision, segment);
        // Whoever asks the store is alone, so the first ones are those that were written.
        self.waiting.lock().events.drain(..taken);
        Ok(())
    }
}
