//! Calls about a file that go to several targets: to each with those chains of the file that it has.

use ashlar_env::Tasks;
use ashlar_types::{ChainId, ClusterMap, Errno, FileLayout, OfChains, TargetId};
use parking_lot::RwLock;
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;

/// Time between two attempts while a chain is on its way to another target, and how many there are.
const PAUSE: Duration = Duration::from_millis(10);
// LIMIT: of one call: a minute.
const ATTEMPTS_MAX: u32 = 6000;

/// Calls `call` once for the chains of `layout` on each target that `map` says, in the order of targets. Chains that the target does not have any
/// more (`EREMCHG`) are asked for where they are, so that in the end each was asked for once.
///
/// # Errors
/// The first error of `call`, and `ETIMEDOUT` when a chain is nowhere for a minute.
pub fn at_each_place(
    map: &RwLock<Arc<ClusterMap>>,
    tasks: &dyn Tasks,
    layout: &FileLayout,
    mut call: impl FnMut(TargetId, OfChains) -> Result<(), Errno>,
) -> Result<(), Errno> {
    at_all_places(map, tasks, layout, |places| {
        let mut done = Vec::with_capacity(places.len());
        for (target, chains) in places {
            let outcome = call(target, chains);
            done.push(outcome);
            if outcome.is_err_and(|errno| errno != Errno::EREMCHG) {
                break;
            }
        }
        done
    })
}

/// As [`at_each_place`], with `call` for all targets in one go; it tells what came of each, in the same order, up to an error that ends it at the least.
///
/// # Errors
/// As [`at_each_place`].
pub fn at_all_places(
    map: &RwLock<Arc<ClusterMap>>,
    tasks: &dyn Tasks,
    layout: &FileLayout,
    mut call: impl FnMut(Vec<(TargetId, OfChains)>) -> Vec<Result<(), Errno>>,
) -> Result<(), Errno> {
    let mut rest = layout.clone();
    for _ in 0..ATTEMPTS_MAX {
        let places = map.read().places_of(&rest);
        let asked = places.iter().map(|(target, chains)| (*target, OfChains::Only(chains.clone())));
        let done = call(asked.collect());
        let mut moved: SmallVec<[ChainId; 4]> = SmallVec::new();
        for ((_, chains), outcome) in places.into_iter().zip(done) {
            match outcome {
                Ok(()) => {}
                Err(Errno::EREMCHG) => moved.extend(chains),
                Err(other) => return Err(other),
            }
        }
        if moved.is_empty() {
            return Ok(());
        }
        rest.chains = moved;
        tasks.pause(PAUSE);
    }
    Err(Errno::ETIMEDOUT)
}
