//! A full file system: before somebody is told so, what removed files still hold is given back, within a bounded time.

use crate::MetaService;
use ashlar_env::{Signal, Tasks};
use ashlar_rpc::Payload;
use ashlar_types::Errno;
use ashlar_types::map::TargetState;
use ashlar_types::message::StorageRequest;
use parking_lot::Mutex;
use std::time::Duration;

/// Longest time somebody waits for room; then the answer is that there is none.
const MAKE_ROOM_MAX: Duration = Duration::from_secs(5);
/// Freed units of 512 bytes that are enough to let those who wait try again, 64 MiB.
const ENOUGH_BLOCKS: u64 = (64 << 20) / 512;

/// Whether somebody makes room.
pub(crate) struct MakingRoom {
    is_under_way: Mutex<bool>,
    ended: Signal,
}

/// Somebody makes room, until dropped.
struct UnderWay<'a>(&'a MakingRoom);

impl MakingRoom {
    pub(crate) fn new(tasks: &dyn Tasks) -> MakingRoom {
        MakingRoom { is_under_way: Mutex::new(false), ended: tasks.signal() }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        *self.0.is_under_way.lock() = false;
        self.0.ended.notify_all();
    }
}

impl MetaService {
    /// Becomes the one who makes room; `None` when the time is over first.
    fn begin_making_room(&self, deadline: Duration) -> Option<UnderWay<'_>> {
        let mut is_under_way = self.making_room.is_under_way.lock();
        while *is_under_way {
            let left = deadline.saturating_sub(self.env.clock.monotonic());
            if left.is_zero() || self.making_room.ended.wait_for(&mut is_under_way, left) {
                return None;
            }
        }
        *is_under_way = true;
        Some(UnderWay(&self.making_room))
    }

    /// Deletes chunks of removed files until enough is free, none is left, or the time is over, and has the targets give back what
    /// deleted chunks hold. Nothing to answer: whoever asked tries again, once.
    pub(crate) fn make_room(&self) {
        let deadline = self.env.clock.monotonic() + MAKE_ROOM_MAX;
        // One makes room, the others find it made.
        let Some(_making) = self.begin_making_room(deadline) else { return };
        let is_enough =
            |blocks_freed: u64| blocks_freed >= ENOUGH_BLOCKS || self.env.clock.monotonic() >= deadline;
        if let Err(errno) = self.collect_until(is_enough) {
            tracing::warn!(%errno, "could not delete chunks of removed files to make room");
        }
        let map = self.map.read().clone();
        for target in map.targets.iter().filter(|target| target.state == TargetState::Online) {
            match self.storage.call(&StorageRequest::GiveBack { target: target.id }, Payload::None) {
                Ok(_) | Err(Errno::ENODEV) => {}
                Err(errno) => {
                    tracing::warn!(%errno, target_id = %target.id, "could not free what deleted chunks hold")
                }
            }
        }
        self.placement.forget_space();
        if let Err(error) = self.lane.is_space_low_now() {
            tracing::error!(%error, "could not look for space for metadata");
        }
    }
}
