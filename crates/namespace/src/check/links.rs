//! Stage 3: directory entries against the inodes they point to. Links are counted for a bounded range of inode ids at a time, with
//! one pass over all entries for each range; the ranges together are all ids there can be.

use super::{Checker, EntryName, Finding, Stop, table_from};
use crate::key;
use crate::record::{Bucket, BucketEntry, Inode, Kind};
use ashlar_types::{FileType, InodeId, ShardId, codec};
use rustc_hash::FxHashSet;
use std::ops::ControlFlow;

/// Most second names of directories that are kept to tell the right one; more are told at once.
// LIMIT: about 300 bytes each.
const STRAYS_MAX: usize = 1 << 16;
/// Deepest nesting of directories that is followed.
// LIMIT: a walk remembers this many ids. It gives up beyond: it is in a loop further up, told at that loop's own members.
const DEPTH_MAX: usize = 1 << 16;

/// An inode whose links are counted.
struct Target {
    id: InodeId,
    /// `None` when the record does not decode: nothing is told about it here.
    file_type: Option<FileType>,
    nlink: u32,
    /// Of a directory: what its record says.
    parent: InodeId,
    names: u32,
    /// Of a directory: entries in the directory that its record names, 0 or 1; others are strays.
    names_at_home: u32,
    is_held: bool,
    /// A slice of a directory, which has no name.
    is_slice: bool,
}

/// A range of ids: from the first to the last, both included.
type Ids = (u64, u64);

/// Checks all shards, which are in ascending order.
pub(super) fn check(checker: &mut Checker<'_>, shards: &[ShardId]) -> Result<(), Stop> {
    let mut reachable = Reachable::default();
    let mut from = 0;
    loop {
        let (mut targets, last) = read_targets(checker, shards, from)?;
        let mut strays = Vec::new();
        for &shard in shards {
            count_entries(checker, shard, (from, last), &mut targets, &mut strays)?;
        }
        tell_strays(checker, &mut targets, strays)?;
        for target in &targets {
            check_target(checker, target, &mut reachable)?;
        }
        match last.checked_add(1) {
            Some(next) => from = next,
            None => return Ok(()),
        }
    }
}

/// The inodes from id `from` on, as many as fit, and the last id of the range they stand for.
fn read_targets(
    checker: &mut Checker<'_>,
    shards: &[ShardId],
    from: u64,
) -> Result<(Vec<Target>, u64), Stop> {
    let fit = checker.args.inodes_per_pass.max(1);
    let mut targets: Vec<Target> = Vec::new();
    for &shard in shards.iter().filter(|shard| **shard >= InodeId(from).home()) {
        let start = table_from(shard, b'I', from);
        let (_, end) = key::table_range(shard, b'I');
        checker.scan(&start, &end, &mut |_, record_key, value| {
            let Some(id) = key::inode_of(record_key).filter(|_| record_key.len() == 11) else {
                return Ok(ControlFlow::Continue(()));
            };
            targets.push(target(id, codec::decode(value, "inode record").ok()));
            Ok(if targets.len() < fit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        mark_held(checker, shard, &mut targets)?;
        if targets.len() >= fit {
            break;
        }
    }
    let last = targets.last().filter(|_| targets.len() >= fit).map_or(u64::MAX, |target| target.id.0);
    Ok((targets, last))
}

fn target(id: InodeId, inode: Option<Inode>) -> Target {
    let mut target = Target {
        id,
        file_type: inode.as_ref().map(Inode::file_type),
        nlink: inode.as_ref().map_or(0, |inode| inode.nlink),
        parent: id,
        names: 0,
        names_at_home: 0,
        is_held: false,
        is_slice: false,
    };
    match inode.map(|inode| inode.kind) {
        Some(
            Kind::Directory { parent, .. }
            | Kind::WideDirectory { parent, .. }
            | Kind::DirectoryInSplit { parent, .. },
        ) => target.parent = parent,
        Some(Kind::Slice { .. } | Kind::SliceInSplit { .. }) => target.is_slice = true,
        _ => {}
    }
    target
}

fn find(targets: &mut [Target], id: InodeId) -> Option<&mut Target> {
    let at = targets.binary_search_by_key(&id, |target| target.id).ok()?;
    targets.get_mut(at)
}

/// Notes which targets of the shard have orphan records.
fn mark_held(checker: &mut Checker<'_>, shard: ShardId, targets: &mut [Target]) -> Result<(), Stop> {
    let (from, to) = key::table_range(shard, b'O');
    checker.scan(&from, &to, &mut |_, record_key, _| {
        if let Some(target) = key::inode_of(record_key).and_then(|id| find(targets, id)) {
            target.is_held = true;
        }
        Ok(ControlFlow::Continue(()))
    })
}

/// Counts the entries of a shard's directories that point into the range.
fn count_entries(
    checker: &mut Checker<'_>,
    shard: ShardId,
    ids: Ids,
    targets: &mut [Target],
    strays: &mut Vec<(EntryName, InodeId, InodeId)>,
) -> Result<(), Stop> {
    let (from, to) = key::table_range(shard, b'D');
    // The directory as its subdirectories name it, which is another inode if it is split; none if it is no directory.
    let mut current: Option<(InodeId, Option<InodeId>)> = None;
    checker.scan(&from, &to, &mut |checker, record_key, value| {
        let (Some(directory), Some(hash)) = (key::inode_of(record_key), key::bucket_hash(record_key)) else {
            return Ok(ControlFlow::Continue(()));
        };
        let shown = match current {
            Some((known, shown)) if known == directory => shown,
            _ => match checker.inode(directory)? {
                Some(Some(inode)) => inode.is_directory().then(|| inode.shown_as(directory)),
                // Entries of a damaged directory still name what they point to; those of none are stray records.
                Some(None) => Some(directory),
                None => None,
            },
        };
        current = Some((directory, shown));
        let Some(shown) = shown else { return Ok(ControlFlow::Continue(())) };
        let Ok(bucket) = codec::decode::<Bucket>(value, "directory bucket") else {
            return Ok(ControlFlow::Continue(()));
        };
        let in_range = |entry: &&BucketEntry| (ids.0..=ids.1).contains(&entry.inode.0);
        for entry in bucket.entries.iter().filter(in_range) {
            let name = EntryName { directory, hash, name: entry.name.clone() };
            count_entry(checker, (name, shown), entry, targets, strays)?;
        }
        Ok(ControlFlow::Continue(()))
    })
}

fn count_entry(
    checker: &mut Checker<'_>,
    (name, directory): (EntryName, InodeId),
    entry: &BucketEntry,
    targets: &mut [Target],
    strays: &mut Vec<(EntryName, InodeId, InodeId)>,
) -> Result<(), Stop> {
    let Some(target) = find(targets, entry.inode) else {
        return checker.found(Finding::EntryDangling { entry: name, inode: entry.inode });
    };
    if target.is_slice {
        return checker.found(Finding::EntryExtra { entry: name, inode: target.id });
    }
    let Some(actual) = target.file_type else { return Ok(()) };
    if entry.file_type != actual {
        let stored = entry.file_type;
        checker.found(Finding::EntryType { entry: name.clone(), stored, actual })?;
    }
    target.names = target.names.saturating_add(1);
    if actual != FileType::Directory {
        return Ok(());
    }
    if target.id != InodeId::ROOT && target.parent == directory && target.names_at_home == 0 {
        target.names_at_home = 1;
    } else if strays.len() < STRAYS_MAX {
        strays.push((name, directory, target.id));
    } else {
        checker.found(Finding::EntryExtra { entry: name, inode: target.id })?;
    }
    Ok(())
}

/// Tells entries of directories that are not where the directory says it is: the first one is right if there is no other.
fn tell_strays(
    checker: &mut Checker<'_>,
    targets: &mut [Target],
    strays: Vec<(EntryName, InodeId, InodeId)>,
) -> Result<(), Stop> {
    for (entry, found, inode) in strays {
        let Some(target) = find(targets, inode) else { continue };
        if inode != InodeId::ROOT && target.names_at_home == 0 {
            target.names_at_home = 1;
            let stored = target.parent;
            target.parent = found;
            checker.found(Finding::Parent { inode, stored, found })?;
        } else {
            checker.found(Finding::EntryExtra { entry, inode })?;
        }
    }
    Ok(())
}

fn check_target(checker: &mut Checker<'_>, target: &Target, reachable: &mut Reachable) -> Result<(), Stop> {
    let Some(file_type) = target.file_type else { return Ok(()) };
    let inode = target.id;
    if target.is_slice {
        return Ok(());
    }
    if inode == InodeId::ROOT {
        let (stored, found) = (target.parent, inode);
        return if stored == found {
            Ok(())
        } else {
            checker.found(Finding::Parent { inode, stored, found })
        };
    }
    if target.names == 0 {
        return match target.nlink {
            0 if target.is_held => Ok(()),
            0 => checker.found(Finding::Forgotten { inode }),
            _ => checker.found(Finding::Unreachable { inode }),
        };
    }
    if file_type == FileType::Directory {
        return reachable.check(checker, target);
    }
    if target.nlink != target.names {
        let (stored, counted) = (target.nlink, target.names);
        return checker.found(Finding::Nlink { inode, stored, counted });
    }
    Ok(())
}

/// Directories that are known to end at the root (or at damage that is told elsewhere).
#[derive(Default)]
struct Reachable {
    known: FxHashSet<InodeId>,
}

impl Reachable {
    /// Walks from a directory up to the root and tells a loop, once, at its smallest id.
    fn check(&mut self, checker: &mut Checker<'_>, target: &Target) -> Result<(), Stop> {
        let mut path = vec![target.id];
        let mut at = target.parent;
        while at != InodeId::ROOT && !self.known.contains(&at) {
            if at == target.id && path.iter().min() == Some(&target.id) {
                return checker.found(Finding::Loop { inode: target.id });
            }
            if at == target.id || path.len() >= DEPTH_MAX {
                return Ok(());
            }
            path.push(at);
            match checker.inode(at)? {
                Some(Some(Inode {
                    kind:
                        Kind::Directory { parent, .. }
                        | Kind::WideDirectory { parent, .. }
                        | Kind::DirectoryInSplit { parent, .. },
                    ..
                })) if parent != at => at = parent,
                _ => break,
            }
        }
        if self.known.len() + path.len() > checker.args.inodes_per_pass.max(DEPTH_MAX) {
            self.known.clear();
        }
        self.known.extend(path);
        Ok(())
    }
}
