//! Paths of inodes: one pass over all entries for the inodes themselves, then up by the directories' notes of their parents.

use crate::terminal::shown_bytes;
use anyhow::{Context, Result};
use ashlar_kv::Snapshot;
use ashlar_namespace::{Bucket, Inode, key};
use ashlar_types::{InodeId, ShardId, codec};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// Deepest directory whose path is told.
// LIMIT: also the end for directories that contain each other.
const DEPTH_MAX: usize = 2048;

/// Where an inode has its name: the directory and the name in it.
type Place = (InodeId, Vec<u8>);

/// Paths, from the root of the file system, of those of `wanted` that have one. Of several names of a file one is told.
///
/// # Errors
/// When the snapshot cannot be read.
pub fn paths_of(
    snapshot: &dyn Snapshot,
    shards: &[ShardId],
    wanted: impl IntoIterator<Item = InodeId>,
) -> Result<BTreeMap<InodeId, String>> {
    let wanted: BTreeSet<InodeId> = wanted.into_iter().collect();
    if wanted.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut places = BTreeMap::new();
    for &shard in shards {
        let (from, to) = key::table_range(shard, b'D');
        find_entries(snapshot, (&from, &to), &mut |place, inode| {
            if wanted.contains(&inode) {
                places.entry(inode).or_insert(place);
            }
            true
        })?;
    }
    let mut paths = BTreeMap::new();
    for inode in wanted {
        if let Some(path) = path_of(snapshot, inode, &mut places)? {
            paths.insert(inode, path);
        }
    }
    Ok(paths)
}

/// Visits the entries in a range of buckets until `visit` says no. Buckets that do not decode are passed over.
fn find_entries(
    snapshot: &dyn Snapshot,
    (from, to): (&[u8], &[u8]),
    visit: &mut dyn FnMut(Place, InodeId) -> bool,
) -> Result<()> {
    snapshot
        .scan(from, to, &mut |record_key, value| {
            let (Some(directory), Ok(bucket)) =
                (key::inode_of(record_key), codec::decode::<Bucket>(value, "directory bucket"))
            else {
                return ControlFlow::Continue(());
            };
            let goes_on =
                bucket.entries.iter().all(|entry| visit((directory, entry.name.to_vec()), entry.inode));
            if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
        .context("cannot read directories")
}

fn path_of(
    snapshot: &dyn Snapshot,
    inode: InodeId,
    places: &mut BTreeMap<InodeId, Place>,
) -> Result<Option<String>> {
    let mut names = Vec::new();
    let mut at = inode;
    while at != InodeId::ROOT {
        if names.len() >= DEPTH_MAX {
            return Ok(None);
        }
        let place = match places.get(&at) {
            Some(place) => Some(place.clone()),
            None => place_of_directory(snapshot, at)?,
        };
        let Some(place) = place else { return Ok(None) };
        names.push(shown_bytes(&place.1));
        places.insert(at, place.clone());
        at = shown(snapshot, place.0)?;
    }
    names.reverse();
    Ok(Some(format!("/{}", names.join("/"))))
}

/// Where a directory has its name, by its own note of its parent.
fn place_of_directory(snapshot: &dyn Snapshot, directory: InodeId) -> Result<Option<Place>> {
    let Some(bytes) = snapshot.get(&key::inode(directory)).context("cannot read an inode")? else {
        return Ok(None);
    };
    let Ok(inode) = codec::decode::<Inode>(&bytes, "inode record") else { return Ok(None) };
    let Ok((parent, _)) = inode.as_directory() else { return Ok(None) };
    let mut found = None;
    for holder in holders(snapshot, parent)? {
        let prefix = key::bucket_prefix(holder);
        find_entries(snapshot, (&prefix, &key::after_prefix(&prefix)), &mut |(_, name), inode| {
            if inode == directory {
                found = Some((parent, name));
            }
            found.is_none()
        })?;
    }
    Ok(found)
}

/// The directory that `inode` is, or is a slice of.
fn shown(snapshot: &dyn Snapshot, inode: InodeId) -> Result<InodeId> {
    let bytes = snapshot.get(&key::inode(inode)).context("cannot read an inode")?;
    let record = bytes.and_then(|bytes| codec::decode::<Inode>(&bytes, "inode record").ok());
    Ok(record.map_or(inode, |record| record.shown_as(inode)))
}

/// The inodes that may have entries of `directory`: its slices and itself.
fn holders(snapshot: &dyn Snapshot, directory: InodeId) -> Result<Vec<InodeId>> {
    let bytes = snapshot.get(&key::inode(directory)).context("cannot read an inode")?;
    let inode = bytes.and_then(|bytes| codec::decode::<Inode>(&bytes, "inode record").ok());
    let mut holders = inode.map(|inode| inode.slices().to_vec()).unwrap_or_default();
    // Only one that is being split has both, and nothing is found in another's.
    holders.push(directory);
    Ok(holders)
}
