//! The index: a lane of the key-value layer with the tables of [`crate::key`].

use crate::error::ChunkError;
use crate::key::{self, Placement};
use crate::stop::StopSwitch;
use ashlar_kv::{Frame, Key, Lane, LaneStats, Position, Snapshot, Urgency, WriteSet};
use ashlar_types::{ChunkId, Epoch, OpId, ShardId};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Pairs read under one lock of the lane. LIMIT: a longer scan is made of several.
const SCAN_PAIRS_MAX: usize = 512;

/// Changes of one commit, in the order of their keys.
pub(crate) type Changes = BTreeMap<Key, Option<Bytes>>;

/// What a commit is for; kept in the log for people who read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Open = 1,
    Create = 2,
    Fill = 3,
    Delete = 4,
    MarkDirty = 5,
    ClearDirty = 6,
    Sync = 7,
    Recover = 8,
    Rebuild = 9,
    Confirm = 10,
    NoteChain = 11,
    NoteCopy = 12,
    NoteLost = 13,
}

/// The lane and how its errors stop the target.
pub(crate) struct Index {
    lane: Lane,
    stop: Arc<StopSwitch>,
}

impl Index {
    pub(crate) fn new(lane: Lane, stop: Arc<StopSwitch>) -> Index {
        Index { lane, stop }
    }

    fn error(&self, error: ashlar_kv::KvError) -> ChunkError {
        self.stop.observe(error.into())
    }

    /// The value of `key`.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, ChunkError> {
        self.lane.read().get(key).map_err(|error| self.error(error))
    }

    /// Where a chunk is.
    pub(crate) fn placement(&self, id: ChunkId) -> Result<Option<Placement>, ChunkError> {
        self.get(&key::chunk(id))?.map(|value| Placement::decode(&value)).transpose()
    }

    /// Up to `max` pairs with keys in `[from, to)`, ascending; at most 512.
    pub(crate) fn page(&self, from: &[u8], to: &[u8], max: usize) -> Result<Vec<(Key, Bytes)>, ChunkError> {
        let max = max.min(SCAN_PAIRS_MAX);
        let mut pairs = Vec::new();
        if max == 0 {
            return Ok(pairs);
        }
        let mut visit = |key: &[u8], value: &[u8]| {
            pairs.push((Key::from_slice(key), Bytes::copy_from_slice(value)));
            if pairs.len() < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        self.lane.read().scan(from, to, &mut visit).map_err(|error| self.error(error))?;
        Ok(pairs)
    }

    /// Calls `visit` with every pair in `[from, to)`, ascending; what changes meanwhile is seen or not.
    pub(crate) fn for_each(
        &self,
        from: &[u8],
        to: &[u8],
        mut visit: impl FnMut(&[u8], &Bytes) -> Result<(), ChunkError>,
    ) -> Result<(), ChunkError> {
        let mut from = Key::from_slice(from);
        loop {
            let pairs = self.page(&from, to, SCAN_PAIRS_MAX)?;
            for (key, value) in &pairs {
                visit(key, value)?;
            }
            match pairs.last() {
                Some((key, _)) if pairs.len() == SCAN_PAIRS_MAX => {
                    from = key.clone();
                    from.push(0);
                }
                _ => return Ok(()),
            }
        }
    }

    /// Commits the changes that `plan` makes; it runs while nobody else commits.
    pub(crate) fn commit(
        &self,
        verb: Verb,
        urgency: Urgency,
        plan: impl FnOnce(&mut Changes),
    ) -> Result<Position, ChunkError> {
        self.commit_or(verb, urgency, plan, || ())
    }

    /// As [`Index::commit`]; `undo` takes back what `plan` changed elsewhere when the commit is refused, before anybody else
    /// commits.
    pub(crate) fn commit_or(
        &self,
        verb: Verb,
        urgency: Urgency,
        plan: impl FnOnce(&mut Changes),
        undo: impl FnOnce(),
    ) -> Result<Position, ChunkError> {
        let mut writer = self.lane.write();
        let mut changes = Changes::new();
        plan(&mut changes);
        if changes.is_empty() {
            return Ok(self.lane.appended());
        }
        let frame = Frame {
            shard: ShardId(0),
            epoch: Epoch(0),
            op: OpId::default(),
            verb: verb as u8,
            writes: WriteSet(changes.into_iter().collect()),
            reply: Bytes::new(),
        };
        writer.commit(vec![frame], urgency).map_err(|error| {
            undo();
            self.error(error)
        })
    }

    /// Makes everything up to `position` durable.
    pub(crate) fn flush(&self, position: Position) -> Result<(), ChunkError> {
        self.lane.flush(position).map_err(|error| self.error(error))
    }

    /// Everything up to here is durable.
    pub(crate) fn durable(&self) -> Position {
        self.lane.durable()
    }

    /// Behind the last commit.
    pub(crate) fn appended(&self) -> Position {
        self.lane.appended()
    }

    /// Background work of a lane without threads.
    pub(crate) fn tick(&self) -> Result<(), ChunkError> {
        self.lane.tick().map_err(|error| self.error(error))
    }

    pub(crate) fn stats(&self) -> LaneStats {
        self.lane.stats()
    }

    /// Flushes, checkpoints and closes the lane.
    pub(crate) fn close(&self) -> Result<(), ChunkError> {
        self.lane.close().map_err(|error| self.error(error))
    }
}
