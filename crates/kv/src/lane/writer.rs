//! Changes to a lane.

use super::segments::STATE_LOCK;
use super::{Background, Shared, State};
use crate::{Frame, Group, GroupNumber, KEY_BYTES_MAX, KvError, Position, Snapshot, VALUE_BYTES_MAX};
use ashlar_env::NoWaiting;
use ashlar_types::ShardId;
use bytes::Bytes;
use parking_lot::RwLockWriteGuard;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a group is taken when space is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Refused while space is below the reserve.
    Normal,
    /// Taken as long as anything can be written: deletes, truncates, what a repair needs, and notes of bounded number about
    /// space that is taken already.
    FreesSpace,
}

/// The one writer of a lane. What it commits is seen by its own reads and by every later reader.
pub struct LaneWriter<'a> {
    shared: &'a Shared,
    is_withdrawn: &'a AtomicBool,
    state: RwLockWriteGuard<'a, State>,
    /// The overlay was full when the writer began, and stayed so.
    is_stalled: bool,
    _held: NoWaiting,
}

impl<'a> LaneWriter<'a> {
    pub(super) fn new(shared: &'a Shared, is_withdrawn: &'a AtomicBool) -> LaneWriter<'a> {
        if shared.config.background == Background::Manual {
            shared.checkpoint_if_full();
        }
        let (state, is_stalled) = loop {
            let (state, is_stalled) = shared.lock_with_room();
            // Under the lock, nothing changes.
            match shared.copies.get() {
                Some(copies) if copies.is_undecided() && !is_withdrawn.load(Ordering::SeqCst) => {
                    drop(state);
                    copies.await_turn();
                }
                _ => break (state, is_stalled),
            }
        };
        LaneWriter { shared, is_withdrawn, state, is_stalled, _held: NoWaiting::begin(STATE_LOCK) }
    }

    /// Appends `frames` to the log as one group and makes them visible. The group is atomic: after a crash all of its frames
    /// are there or none, and only if every earlier group is. It is durable after [`crate::Lane::flush`] of the position
    /// returned, or after [`crate::LaneConfig::flush_interval`]. No frames: nothing happens.
    ///
    /// # Errors
    /// [`KvError::Invalid`], [`KvError::NoSpace`], [`KvError::Stalled`]: nothing was changed, nor where [`crate::Copies::epoch`] refuses. [`KvError::Io`]: the log could
    /// not be written; the lane is stopped, and whether the group is in the log is found out by opening it again.
    pub fn commit(&mut self, mut frames: Vec<Frame>, urgency: Urgency) -> Result<Position, KvError> {
        let shared = self.shared;
        shared.health.check()?;
        if frames.is_empty() {
            return Ok(shared.flusher.appended());
        }
        if self.is_withdrawn.load(Ordering::SeqCst) {
            return Err(KvError::NotPrimary { what: "whoever commits has ended".to_owned() });
        }
        validate(&frames)?;
        shared.admit(&self.state, self.is_stalled, urgency)?;
        let copies = shared.copies.get();
        let last = self.state.last;
        let number = match copies {
            Some(copies) => GroupNumber { sequence: last.sequence + 1, epoch: copies.epoch()? },
            None => last.next(frames.iter().map(|frame| frame.epoch)),
        };
        frames.iter_mut().for_each(|frame| frame.epoch = number.epoch);
        let sequences = self.state.number(&frames);
        let appended = match shared.append(&mut self.state, &frames, &sequences, (urgency, copies.is_some()))
        {
            Ok((position, body)) => {
                let group = body.map(|body| Group { number, frames: frames.len() as u32, body });
                if let (Some(copies), Some(group)) = (copies, group) {
                    copies.appended(group);
                }
                position
            }
            Err(error) => {
                self.state.take_back_numbers(&frames);
                return Err(error);
            }
        };
        self.state.last = number;
        let active = &mut self.state.active;
        for frame in frames {
            for (key, value) in frame.writes.0 {
                active.insert(key, value);
            }
        }
        shared.flusher.publish(appended);
        shared.counters.appended_groups.fetch_add(1, Ordering::Relaxed);
        shared.request_work(&self.state);
        Ok(appended)
    }
}

impl LaneWriter<'_> {
    /// Whether a group that frees no space would be refused now for lack of it.
    pub fn is_space_low(&self) -> bool {
        self.shared.space.is_low()
    }

    /// The number of the last frame of `shard`; 0 when it has had none.
    pub fn shard_sequence(&self, shard: ShardId) -> u64 {
        self.state.sequence(shard)
    }
}

impl Snapshot for LaneWriter<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.shared.get(&self.state, key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut crate::Visit<'_>) -> Result<(), KvError> {
        self.shared.scan(&self.state, from, to, visit)
    }
}

impl State {
    /// Numbers frames in their shards.
    fn number(&mut self, frames: &[Frame]) -> SmallVec<[u64; 8]> {
        let mut next = |frame: &Frame| {
            let last = self.sequences.entry(frame.shard).or_insert(0);
            *last += 1;
            *last
        };
        frames.iter().map(&mut next).collect()
    }

    /// Undoes [`State::number`].
    fn take_back_numbers(&mut self, frames: &[Frame]) {
        for frame in frames {
            if let Some(last) = self.sequences.get_mut(&frame.shard) {
                *last -= 1;
            }
        }
    }
}

impl Shared {
    fn admit(&self, state: &State, is_stalled: bool, urgency: Urgency) -> Result<(), KvError> {
        if urgency == Urgency::Normal && self.space.is_low() {
            return Err(self.refuse_for_space(self.space.describe()));
        }
        // LIMIT: a writer that commits on and on without letting go may fill the active overlay alone to the maximum.
        if is_stalled || state.active.bytes() as u64 >= self.config.overlay_bytes_max {
            let what = format!("{} MiB of changes wait for a checkpoint", state.active.bytes() >> 20);
            if self.checkpoints.is_held_back() {
                return Err(self.refuse_for_space(what + ", for which there is no room"));
            }
            return Err(KvError::Stalled { what });
        }
        Ok(())
    }

    fn refuse_for_space(&self, what: String) -> KvError {
        self.counters.refused_for_space.fetch_add(1, Ordering::Relaxed);
        KvError::NoSpace { what }
    }

    pub(super) fn append(
        &self,
        state: &mut RwLockWriteGuard<'_, State>,
        frames: &[Frame],
        sequences: &[u64],
        (urgency, wants_body): (Urgency, bool),
    ) -> Result<(Position, Option<Bytes>), KvError> {
        let append = |state: &mut RwLockWriteGuard<'_, State>| {
            self.make_segment_for(state, frames)?;
            state.log.append(frames, sequences, self.flusher.durable().0, wants_body)
        };
        let mut appended = append(state);
        if matches!(appended, Err(KvError::NoSpace { .. })) {
            self.space.set_low();
            if urgency == Urgency::FreesSpace && self.behind_gate(state, || self.space.release_reserve()) {
                appended = append(state);
            }
        }
        if let Some(segment) = state.log.take_begun() {
            self.flusher.add_segment(segment);
        }
        match appended {
            Ok((end, body)) => Ok((Position(end), body)),
            Err(KvError::NoSpace { what }) => Err(self.refuse_for_space(what)),
            Err(error) => Err(self.stop_on(error)),
        }
    }
}

pub(super) fn validate(frames: &[Frame]) -> Result<(), KvError> {
    let invalid = |what: String| Err(KvError::Invalid { what });
    for frame in frames {
        let shard = frame.shard.0.to_be_bytes();
        let mut previous: &[u8] = &[];
        for (key, value) in &frame.writes.0 {
            if key.len() > KEY_BYTES_MAX {
                return invalid(format!("a key of {} bytes, {KEY_BYTES_MAX} are the most", key.len()));
            }
            if key.len() < shard.len() || key[..shard.len()] != shard {
                return invalid(format!("key {} is not of {}", key.escape_ascii(), frame.shard));
            }
            if key.as_slice() <= previous {
                return invalid(format!("key {} is not above the one before", key.escape_ascii()));
            }
            let len = value.as_ref().map_or(0, Bytes::len);
            if len > VALUE_BYTES_MAX {
                return invalid(format!("a value of {len} bytes, {VALUE_BYTES_MAX} are the most"));
            }
            previous = key;
        }
    }
    Ok(())
}
