//! Reads from a lane.

use super::segments::STATE_LOCK;
use super::{Shared, State};
use crate::engine::LastingSnapshot;
use crate::overlay::{MergedChanges, Overlay};
use crate::{Copies, KvError, Snapshot};
use ashlar_env::NoWaiting;
use ashlar_types::ShardId;
use bytes::Bytes;
use parking_lot::RwLockReadGuard;
use std::ops::ControlFlow;
use std::sync::Arc;

/// A view of a lane that does not change while it is held.
pub struct LaneReader<'a> {
    shared: &'a Shared,
    state: RwLockReadGuard<'a, State>,
    _held: NoWaiting,
}

impl<'a> LaneReader<'a> {
    pub(super) fn new(shared: &'a Shared) -> LaneReader<'a> {
        LaneReader { shared, state: shared.read_state(), _held: NoWaiting::begin(STATE_LOCK) }
    }
}

impl LaneReader<'_> {
    /// The number of the last frame of `shard`; 0 when it has had none.
    pub fn shard_sequence(&self, shard: ShardId) -> u64 {
        self.state.sequence(shard)
    }
}

impl Snapshot for LaneReader<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.shared.get(&self.state, key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut crate::Visit<'_>) -> Result<(), KvError> {
        self.shared.scan(&self.state, from, to, visit)
    }
}

/// What a lane held at one moment.
struct LaneSnapshot {
    active: Overlay,
    frozen: Option<Arc<Overlay>>,
    engine: LastingSnapshot,
    copies: Option<Arc<dyn Copies>>,
}

impl Snapshot for LaneSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        get((&self.active, self.frozen.as_deref()), key, |key| self.engine.get(key))
            .map_err(|error| answered_elsewhere(self.copies.as_ref(), error))
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut crate::Visit<'_>) -> Result<(), KvError> {
        let read = |visit: &mut crate::Visit<'_>| self.engine.scan(from, to, visit);
        scan(MergedChanges::new(&self.active, self.frozen.as_deref(), from, to), read, visit)
            .map_err(|error| answered_elsewhere(self.copies.as_ref(), error))
    }
}

impl Shared {
    /// What the lane holds now.
    pub(super) fn snapshot(&self) -> Result<LastingSnapshot, KvError> {
        let state = self.read_state();
        self.health.check()?;
        let (active, frozen) = (state.active.clone(), state.frozen.clone());
        // ORDER: under the lock, like a read. While a checkpoint is being applied, the engine may have a change of the frozen overlay or not.
        let (engine, copies) = (self.engine.snapshot()?, self.copies.get().cloned());
        Ok(Box::new(LaneSnapshot { active, frozen, engine, copies }))
    }

    pub(super) fn get(&self, state: &State, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.health.check()?;
        get((&state.active, state.frozen.as_deref()), key, |key| self.engine.get(key))
            .map_err(|error| answered_elsewhere(self.copies.get(), error))
    }

    pub(super) fn scan(
        &self,
        state: &State,
        from: &[u8],
        to: &[u8],
        visit: &mut crate::Visit<'_>,
    ) -> Result<(), KvError> {
        self.health.check()?;
        let read = |visit: &mut crate::Visit<'_>| self.engine.scan(from, to, visit);
        scan(MergedChanges::new(&state.active, state.frozen.as_deref(), from, to), read, visit)
            .map_err(|error| answered_elsewhere(self.copies.get(), error))
    }
}

/// What the `error` of a read of the engine is for callers: what is damaged here, or cannot be read, is none where others have all of it.
pub(super) fn answered_elsewhere(copies: Option<&Arc<dyn Copies>>, error: KvError) -> KvError {
    let Some(copies) = copies.filter(|_| error.is_damage()) else { return error };
    let what = error.to_string();
    match copies.give_up_damaged(&what) {
        true => KvError::NotPrimary { what: format!("another machine answers: {what}") },
        false => error,
    }
}

/// The value of a key by the overlays, the newer one first, and by the engine.
fn get(
    (active, frozen): (&Overlay, Option<&Overlay>),
    key: &[u8],
    engine: impl FnOnce(&[u8]) -> Result<Option<Bytes>, KvError>,
) -> Result<Option<Bytes>, KvError> {
    if let Some(value) = active.get(key) {
        return Ok(value.clone());
    }
    if let Some(value) = frozen.and_then(|frozen| frozen.get(key)) {
        return Ok(value.clone());
    }
    // While a checkpoint is being applied, the engine may have a change of the frozen overlay or not: both were asked first.
    engine(key)
}

/// Visits what `engine` visits, and `changes` in its place.
fn scan(
    mut changes: MergedChanges<'_>,
    engine: impl FnOnce(&mut crate::Visit<'_>) -> Result<(), KvError>,
    visit: &mut crate::Visit<'_>,
) -> Result<(), KvError> {
    let mut is_done = false;
    engine(&mut |stored_key, stored| {
        while let Some(key) = changes.peek_key()
            && key.as_slice() <= stored_key
        {
            let Some((key, change)) = changes.next() else { break };
            if let Some(value) = change
                && visit(key, value).is_break()
            {
                is_done = true;
                return ControlFlow::Break(());
            }
            if key.as_slice() == stored_key {
                return ControlFlow::Continue(());
            }
        }
        let flow = visit(stored_key, stored);
        is_done = flow.is_break();
        flow
    })?;
    if is_done {
        return Ok(());
    }
    for (key, change) in changes {
        if let Some(value) = change
            && visit(key, value).is_break()
        {
            break;
        }
    }
    Ok(())
}
