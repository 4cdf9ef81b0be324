//! Removing what is left of a shard that is not here: bounded steps, so that nobody waits for long.

use super::send::behind;
use crate::MetaService;
use crate::call::verb as number;
use ashlar_kv::{Key, Snapshot, Urgency, WriteSet};
use ashlar_namespace::key;
use ashlar_types::{Errno, OpId, ShardId};
use std::ops::ControlFlow;

/// Keys removed under one hold of the lane.
const KEYS_PER_STEP: usize = 512;
/// Steps of one look.
const STEPS: usize = 16;

impl MetaService {
    /// Removes some of what is left; whether there may be more.
    pub(super) fn clear_left_behind(&self) -> Result<bool, Errno> {
        for _ in 0..STEPS {
            let first = self
                .across
                .hands
                .lock()
                .left_behind
                .first_key_value()
                .map(|(shard, from)| (*shard, from.clone()));
            let Some((shard, before)) = first else { return Ok(false) };
            let mut from = before.clone();
            // ORDER: asked under the lane's lock. One that comes here is noted before anything of it is written.
            let is_left = || {
                !self.is_here(shard) && {
                    let hands = self.across.hands.lock();
                    !hands.arriving.contains_key(&shard) && !hands.frozen.contains(&shard)
                }
            };
            let is_done = self.clear_step(shard, &mut from, is_left)?;
            let mut hands = self.across.hands.lock();
            // Something may have come of it and been given up meanwhile: then it is begun anew.
            if hands.left_behind.get(&shard) == Some(&before) {
                match is_done {
                    true => drop(hands.left_behind.remove(&shard)),
                    false => drop(hands.left_behind.insert(shard, from)),
                }
            }
        }
        Ok(!self.across.hands.lock().left_behind.is_empty())
    }

    /// Removes a part of what there is of `shard` from `from` on, if it `may`; whether nothing is left to be removed. Else `from` is where to go on: a search from
    /// the beginning would pass over all that has been removed, each time.
    pub(super) fn clear_step(
        &self,
        shard: ShardId,
        from: &mut Key,
        may: impl FnOnce() -> bool,
    ) -> Result<bool, Errno> {
        let mut writer = self.lane.write();
        if !may() {
            return Ok(true);
        }
        let mut found: Vec<Key> = Vec::new();
        let prefix = key::shard_prefix(shard);
        let mut visit = |found_key: &[u8], _: &[u8]| {
            if !key::is_of_server(found_key) {
                found.push(Key::from_slice(found_key));
            }
            if found.len() < KEYS_PER_STEP { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        writer
            .scan(from, &key::after_prefix(&prefix), &mut visit)
            .map_err(|error| self.answer(&error.into()))?;
        let Some(last) = found.last() else { return Ok(true) };
        *from = behind(last.clone());
        let writes = WriteSet(found.into_iter().map(|found| (found, None)).collect());
        let writes = vec![(shard, writes)];
        self.append(&mut writer, OpId::default(), number::CLEAR_SHARD, writes, Urgency::FreesSpace)?;
        Ok(false)
    }
}
