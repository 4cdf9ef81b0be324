//! Reads from a lane.

use super::segments::STATE_LOCK;
use super::{Shared, State};
use crate::overlay::MergedChanges;
use crate::{KvError, Snapshot};
use ashlar_env::NoWaiting;
use ashlar_types::ShardId;
use bytes::Bytes;
use parking_lot::RwLockReadGuard;
use std::ops::ControlFlow;

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

impl Shared {
    pub(super) fn get(&self, state: &State, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.health.check()?;
        if let Some(value) = state.active.get(key) {
            return Ok(value.clone());
        }
        if let Some(value) = state.frozen.as_ref().and_then(|frozen| frozen.get(key)) {
            return Ok(value.clone());
        }
        // While a checkpoint is being applied, the engine may have a change of the frozen overlay or not: both were asked first.
        self.engine.get(key)
    }

    pub(super) fn scan(
        &self,
        state: &State,
        from: &[u8],
        to: &[u8],
        visit: &mut crate::Visit<'_>,
    ) -> Result<(), KvError> {
        self.health.check()?;
        let mut changes = MergedChanges::new(&state.active, state.frozen.as_deref(), from, to);
        let mut is_done = false;
        self.engine.scan(from, to, &mut |stored_key, stored| {
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
}
