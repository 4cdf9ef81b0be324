//! What mounts that had not ended left behind, and operations across servers that had not: the same that a start does, before the check looks.

use super::files::Stores;
use super::whole::Whole;
use crate::node;
use crate::node::state::root_settings;
use anyhow::{Context, Result};
use ashlar_chunkstore::ChunkStore;
use ashlar_kv::{Lane, Snapshot};
use ashlar_meta::{MetaConfig, MetaService, Unfinished};
use ashlar_namespace::key;
use ashlar_rpc::MetaPeers;
use ashlar_storage::StorageService;
use ashlar_types::{Errno, NodeId, TargetId};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// Whether sessions that had not ended have left records.
///
/// # Errors
/// When the metadata cannot be read.
pub fn is_unsettled(whole: &Whole<'_>) -> Result<bool> {
    let (snapshot, mut is_unsettled) = (whole.snapshot()?, false);
    for shard in whole.shards() {
        for table in [b'O', b'W'] {
            let (from, to) = key::table_range(shard, table);
            snapshot
                .scan(&from, &to, &mut |_, _| {
                    is_unsettled = true;
                    ControlFlow::Break(())
                })
                .context("cannot read the metadata")?;
        }
    }
    Ok(is_unsettled)
}

/// Finishes operations across servers: those that were decided everywhere, the others nowhere. Tells how many parts there were that happen, and that do not.
///
/// # Errors
/// When the metadata cannot be read or written.
pub fn finish_operations(whole: &Whole<'_>) -> Result<(u64, u64)> {
    let unfinished = Unfinished::find(&whole.snapshot()?, &whole.shards())
        .context("cannot read what operations across servers have left")?;
    let (mut done, mut dropped) = (0, 0);
    for one in unfinished {
        match one.happens() {
            Some(true) => done += 1,
            Some(false) => dropped += 1,
            None => {}
        }
        whole
            .change(|txn, context| one.finish(txn, context).map(|()| true))
            .context("an operation across servers cannot be finished")?;
    }
    Ok((done, dropped))
}

/// Settles sizes and removes orphans as a start does. Takes the lane and opens it anew.
///
/// # Errors
/// When the lane cannot be opened again. That something could not be settled is logged: the check goes on with what there is.
pub fn settle(state: &node::State, lane: Lane, stores: &Stores) -> Result<Lane> {
    let targets: Vec<_> = stores.iter().map(|(id, store)| (*id, store.clone())).collect();
    settle_lane(state, lane, &targets, None);
    state.open_lane(None)
}

/// The same with the lane of `node`, one of many metadata servers. It is closed afterwards.
pub fn settle_lane(
    state: &node::State,
    lane: Lane,
    targets: &[(TargetId, Arc<ChunkStore>)],
    node: Option<NodeId>,
) {
    let storage = Arc::new(StorageService::new());
    for (id, store) in targets {
        storage.add_target(*id, store.clone());
    }
    let config = MetaConfig {
        has_lost: false,
        keeps_sessions: false,
        lane: Arc::new(lane),
        env: state.env.clone(),
        name_hash_key: state.manager.identity().name_hash_key,
        map: state.manager.map(),
        storage,
        peers: node.map(|node| (Arc::new(NobodyElse) as Arc<dyn MetaPeers>, node)),
    };
    let settled = match MetaService::start(config, root_settings()) {
        Ok((service, report)) => {
            tracing::info!(?report, "settled what mounts had left");
            service.stop().context("cannot close the metadata")
        }
        Err(errno) => Err(errno.into()),
    };
    if let Err(error) = settled {
        eprintln!("ashlar: could not settle all that mounts had left ({error:#}); the log has details");
    }
}

/// Other metadata servers are stopped, and nothing is to be asked of them: what was under way is finished.
struct NobodyElse;

impl MetaPeers for NobodyElse {
    fn ask(&self, _: NodeId, _: &[u8], _: bool, _: Duration) -> Result<Vec<u8>, Errno> {
        Err(Errno::EHOSTDOWN)
    }
}
