//! Records of stopped servers, changed behind their back.
#![allow(dead_code, reason = "shared by test files that each use a part")]

use ashlar_chunkstore::ChunkStore;
use ashlar_env::Env;
use ashlar_env::os::OsDisk;
use ashlar_kv::{FjallEngine, FjallOptions, Frame, Key, Lane, LaneConfig, Snapshot, Urgency, WriteSet};
use ashlar_namespace::key::shard_of;
use ashlar_types::{Epoch, OpId};
use std::path::Path;
use std::sync::Arc;

/// A lane that nobody has open: its engine, and the directory `name` of `root` for its log.
pub struct Place<'a> {
    pub engine: &'a Path,
    pub root: &'a Path,
    pub name: &'a str,
}

/// Puts and removes the records that `change` names, with no regard for the rules of whoever has them. `target` is a target of the same file system.
#[track_caller]
pub fn edit(
    target: &Path,
    place: &Place<'_>,
    change: impl FnOnce(&dyn Snapshot) -> Vec<(Key, Option<bytes::Bytes>)>,
) {
    let cluster = ChunkStore::header(&OsDisk::new(target)).unwrap().identity.cluster;
    let engine = Box::new(FjallEngine::open(place.engine, FjallOptions::default()).unwrap());
    let disk = Arc::new(OsDisk::new(place.root));
    let lane = Lane::open(disk, place.name, engine, &Env::os(), cluster, LaneConfig::default()).unwrap();
    let mut changes = change(&lane.read());
    assert!(!changes.is_empty(), "nothing is to be changed");
    changes.sort();
    let mut frames: Vec<Frame> = Vec::new();
    for change in changes {
        let shard = shard_of(&change.0);
        match frames.last_mut() {
            Some(frame) if frame.shard == shard => frame.writes.0.push(change),
            _ => frames.push(Frame {
                shard,
                epoch: Epoch(1),
                op: OpId::default(),
                verb: 0,
                writes: WriteSet(vec![change]),
                reply: bytes::Bytes::new(),
            }),
        }
    }
    lane.write().commit(frames, Urgency::Normal).unwrap();
    lane.close().unwrap();
}
