//! One value of the event log: magic `ASHLEVT1`, the number of the event before it, and its events.

use ashlar_coord::local_file::newer_format;
use ashlar_types::codec;
use ashlar_types::{Event, Happening, NodeId};
use serde::{Deserialize, Serialize};

const MAGIC: &[u8; 8] = b"ASHLEVT1";
/// LIMIT: events of one value: 22 KiB of it at the most.
pub(super) const EVENTS_MAX: usize = 64;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Segment {
    before: u64,
    pub(super) events: Vec<Event>,
}

/// Why bytes are no segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SegmentError {
    /// A newer software has written it.
    Newer(String),
    /// They are something else.
    Damaged(String),
}

impl Segment {
    /// An empty one, behind the event numbered `before`.
    pub(super) fn after(before: u64) -> Segment {
        Segment { before, events: Vec::new() }
    }

    /// The number of the event before its first one.
    pub(super) fn before(&self) -> u64 {
        self.before
    }

    /// The number of its newest event, or of the one before it.
    pub(super) fn newest(&self) -> u64 {
        self.events.last().map_or(self.before, |event| event.number)
    }

    pub(super) fn is_full(&self) -> bool {
        self.events.len() >= EVENTS_MAX
    }

    pub(super) fn push(&mut self, node: NodeId, what: Happening) {
        let number = self.newest() + 1;
        self.events.push(Event { number, node, what });
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        codec::encode_into(self, &mut out);
        out
    }

    /// Reads what [`Segment::encode`] wrote; nothing is a segment without events.
    pub(super) fn decode(bytes: &[u8]) -> Result<Segment, SegmentError> {
        if bytes.is_empty() {
            return Ok(Segment::default());
        }
        if let Some(what) = newer_format("a part of the event log", bytes, MAGIC) {
            return Err(SegmentError::Newer(what));
        }
        let damaged = |what: &str| SegmentError::Damaged(what.to_owned());
        let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| damaged("it begins with something else"))?;
        let segment: Segment =
            codec::decode(rest, "segment of events").map_err(|error| damaged(&error.to_string()))?;
        let numbers = segment.events.iter().map(|event| event.number);
        if !numbers.clone().is_sorted_by(|one, next| one < next)
            || numbers.clone().next().is_some_and(|first| first <= segment.before)
            || segment.events.len() > EVENTS_MAX
        {
            return Err(damaged("its numbers contradict each other"));
        }
        Ok(segment)
    }
}
