//! Pools of targets.

use super::{ManagerService, refused};
use crate::ManagerError;
use ashlar_types::map::Pool;
use ashlar_types::message::ManagerReply;
use ashlar_types::{ClusterMap, Node, PoolId};

// LIMIT: of pools.
const POOLS_MAX: usize = 64;

/// The pool of this name for a target that is about to be made; the first one if it is empty.
pub(super) fn of_new_target(map: &ClusterMap, name: &str) -> Result<PoolId, ManagerError> {
    if name.is_empty() {
        return Ok(map.pools.first().map(|pool| pool.id).unwrap_or_default());
    }
    find(map, name).map(|pool| pool.id)
}

pub(super) fn find<'m>(map: &'m ClusterMap, name: &str) -> Result<&'m Pool, ManagerError> {
    map.pools.iter().find(|pool| pool.name == name).ok_or_else(|| {
        let names: Vec<&str> = map.pools.iter().map(|pool| pool.name.as_str()).collect();
        refused(format!(
            "there is no pool `{}`, only {}; `ashlar pool add NAME` makes one",
            name.escape_debug(),
            names.join(", ")
        ))
    })
}

impl ManagerService {
    pub(super) fn new_pool(&self, name: &str) -> Result<ManagerReply, ManagerError> {
        if !Node::is_name(name) {
            return Err(refused(format!(
                "`{}` cannot be the name of a pool: letters, digits, `-`, `_` and `.`, {} at the most",
                name.escape_debug(),
                Node::NAME_BYTES_MAX
            )));
        }
        self.manager.change(|state| {
            let pools = &mut state.map.pools;
            if pools.iter().any(|pool| pool.name == name) {
                return Ok(());
            }
            if pools.len() >= POOLS_MAX {
                return Err(refused(format!("a file system has {POOLS_MAX} pools at the most")));
            }
            // Directories name pools by their ids. So an id is given again only if all behind it are gone.
            let id = PoolId(pools.last().map_or(0, |pool| pool.id.0 + 1));
            pools.push(Pool { id, name: name.to_owned() });
            Ok(())
        })?;
        Ok(ManagerReply::Done)
    }

    pub(super) fn remove_pool(&self, name: &str) -> Result<ManagerReply, ManagerError> {
        self.manager.change(|state| {
            let id = find(&state.map, name)?.id;
            if id == PoolId(0) {
                return Err(refused(format!("{name} is the pool of all directories that say nothing else")));
            }
            let map = &mut state.map;
            if let Some(target) = map.targets.iter().find(|target| target.pool == id) {
                return Err(refused(format!(
                    "{} is in {name}: drain and remove its targets first",
                    target.id
                )));
            }
            if state.promised.iter().any(|known| known.pool == id) {
                return Err(refused(format!("a target is just being made in {name}")));
            }
            // Files name chains for ever, and a chain is never without a target.
            if map.chains.iter().any(|chain| chain.pool == id) {
                return Err(refused(format!("files have content in {name}")));
            }
            map.moves.rebalancing.retain(|pool| *pool != id);
            map.pools.retain(|pool| pool.id != id);
            Ok(())
        })?;
        Ok(ManagerReply::Done)
    }
}
