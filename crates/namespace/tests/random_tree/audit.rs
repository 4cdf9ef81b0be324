//! What must hold of a stored tree at any time, computed from every record.

use ashlar_kv::Key;
use ashlar_namespace::check::{CheckArgs, check};
use ashlar_namespace::record::{Account, month};
use ashlar_namespace::testing::{HASH_KEY, World};
use ashlar_namespace::{Bucket, Inode, Kind, key};
use ashlar_types::{InodeId, codec};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// Checks links, sizes, parents, orphans, symbolic links and accounting of the whole store.
///
/// # Panics
/// When something does not hold.
pub fn audit(world: &World) {
    let inode_of = |key: &Key| key::inode_of(key).expect("the key names an inode");
    let inodes: BTreeMap<InodeId, Inode> = world
        .store
        .table(b'I')
        .map(|(key, value)| (inode_of(key), codec::decode(value, "inode").expect("inodes decode")))
        .collect();
    let mut names: BTreeMap<InodeId, Vec<InodeId>> = BTreeMap::new();
    let mut sizes: BTreeMap<InodeId, u64> = BTreeMap::new();
    for (key, value) in world.store.table(b'D') {
        let bucket: Bucket = codec::decode(value, "bucket").expect("buckets decode");
        assert!(!bucket.entries.is_empty(), "empty buckets are not kept");
        for entry in bucket.entries {
            let target = inodes.get(&entry.inode).expect("entries point to inodes");
            assert_eq!(target.file_type(), entry.file_type);
            names.entry(entry.inode).or_default().push(inode_of(key));
            *sizes.entry(inode_of(key)).or_default() += 1;
        }
    }
    let orphans: BTreeSet<InodeId> = world.store.table(b'O').map(|(key, _)| inode_of(key)).collect();
    let targets: BTreeSet<InodeId> = world.store.table(b'L').map(|(key, _)| inode_of(key)).collect();
    for (id, inode) in &inodes {
        let found = names.remove(id).unwrap_or_default();
        if let Kind::Directory { parent, .. } = inode.kind {
            assert_eq!(inode.size, sizes.remove(id).unwrap_or(0), "size of {id}");
            if *id == InodeId::ROOT {
                assert!(found.is_empty() && parent == *id);
            } else if inode.nlink > 0 {
                assert_eq!(found, [parent], "one name, in the parent, of {id}");
            }
        } else {
            assert_eq!(inode.nlink as usize, found.len(), "links of {id}");
        }
        assert_eq!(inode.nlink == 0, orphans.contains(id), "orphan records of {id}");
        assert_eq!(inode.kind.is_symlink(), targets.contains(id), "target of {id}");
    }
    assert!(sizes.is_empty(), "entries of what is no directory: {sizes:?}");
    assert!(orphans.iter().chain(&targets).all(|id| inodes.contains_key(id)), "records of no inode");
    check_subdirectories(&inodes);
    check_accounts(world, &inodes);
    check_with_fsck(world);
}

/// The consistency check of the crate finds nothing either.
fn check_with_fsck(world: &World) {
    let args = CheckArgs::new(world.placement.shard_count, &HASH_KEY);
    let mut findings = Vec::new();
    let report = check(&world.store, &args, &mut |finding| {
        findings.push(finding);
        ControlFlow::Continue(())
    });
    assert!(report.is_ok() && findings.is_empty(), "{report:?}: {findings:?}");
}

fn check_subdirectories(inodes: &BTreeMap<InodeId, Inode>) {
    let mut below: BTreeMap<InodeId, u32> = BTreeMap::new();
    for (id, inode) in inodes {
        if let Kind::Directory { parent, .. } = inode.kind
            && inode.nlink > 0
            && *id != InodeId::ROOT
        {
            *below.entry(parent).or_default() += 1;
        }
    }
    for (id, inode) in inodes.iter().filter(|(_, inode)| inode.is_directory() && inode.nlink > 0) {
        assert_eq!(inode.nlink, 2 + below.get(id).copied().unwrap_or(0), "links of directory {id}");
    }
}

fn check_accounts(world: &World, inodes: &BTreeMap<InodeId, Inode>) {
    let mut sums: BTreeMap<Key, Account> = BTreeMap::new();
    for (id, inode) in inodes {
        let key = key::account(id.home(), inode.fileset, inode.uid, inode.gid, month(inode.mtime));
        let sum = sums.entry(key).or_default();
        sum.inodes += 1;
        sum.bytes += if inode.is_directory() { 0 } else { inode.size };
        sum.blocks += inode.blocks;
    }
    let stored: BTreeMap<Key, Account> = world
        .store
        .table(b'A')
        .map(|(key, value)| (key.clone(), codec::decode(value, "account").expect("accounts decode")))
        .collect();
    assert_eq!(stored, sums);
}
