//! What mounts that had not ended left behind: the same that a start does, before the check looks.

use super::files::Stores;
use crate::node;
use crate::node::state::root_settings;
use anyhow::{Context, Result};
use ashlar_kv::{Lane, Snapshot};
use ashlar_meta::{MetaConfig, MetaService};
use ashlar_namespace::key;
use ashlar_storage::StorageService;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Whether sessions that had not ended have left records.
///
/// # Errors
/// When the metadata cannot be read.
pub fn is_unsettled(state: &node::State, lane: &Lane) -> Result<bool> {
    let (map, reader) = (state.manager.map().read().clone(), lane.read());
    let mut is_unsettled = false;
    for shard in &map.shards {
        for table in [b'O', b'W'] {
            let (from, to) = key::table_range(shard.id, table);
            reader
                .scan(&from, &to, &mut |_, _| {
                    is_unsettled = true;
                    ControlFlow::Break(())
                })
                .context("cannot read the metadata")?;
        }
    }
    Ok(is_unsettled)
}

/// Settles sizes and removes orphans as a start does. Takes the lane and opens it anew.
///
/// # Errors
/// When the lane cannot be opened again. That something could not be settled is logged: the check goes on with what there is.
pub fn settle(state: &node::State, lane: Lane, stores: &Stores) -> Result<Lane> {
    let storage = Arc::new(StorageService::new());
    for (id, store) in stores {
        storage.add_target(*id, store.clone());
    }
    let config = MetaConfig {
        keeps_sessions: false,
        lane,
        env: state.env.clone(),
        name_hash_key: state.manager.identity().name_hash_key,
        map: state.manager.map(),
        storage,
        peers: None,
    };
    match MetaService::start(config, root_settings()) {
        Ok((service, report)) => {
            tracing::info!(?report, "settled what mounts had left");
            service.stop().context("cannot close the metadata")?;
        }
        Err(errno) => {
            eprintln!("ashlar: could not settle all that mounts had left ({errno}); the log has details")
        }
    }
    state.open_lane(None)
}
