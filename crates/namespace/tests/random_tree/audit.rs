//! What must hold of a stored tree at any time, computed from every record.

use ashlar_kv::Key;
use ashlar_namespace::check::{CheckArgs, check};
use ashlar_namespace::record::{Account, month};
use ashlar_namespace::testing::{HASH_KEY, World};
use ashlar_namespace::{Bucket, Inode, key};
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
        let holder = inode_of(key);
        let directory = inodes.get(&holder).expect("entries are in a directory").shown_as(holder);
        let bucket: Bucket = codec::decode(value, "bucket").expect("buckets decode");
        assert!(!bucket.entries.is_empty(), "empty buckets are not kept");
        for entry in bucket.entries {
            let target = inodes.get(&entry.inode).expect("entries point to inodes");
            assert_eq!(target.file_type(), entry.file_type);
            let hash = key::bucket_hash(key).expect("a hash");
            let is_below = hash < inodes[&directory].border();
            assert_eq!(holder != directory, is_below, "{entry:?} is where a client looks for it");
            names.entry(entry.inode).or_default().push(directory);
            *sizes.entry(holder).or_default() += 1;
        }
    }
    let orphans: BTreeSet<InodeId> = world.store.table(b'O').map(|(key, _)| inode_of(key)).collect();
    let targets: BTreeSet<InodeId> = world.store.table(b'L').map(|(key, _)| inode_of(key)).collect();
    for (id, inode) in &inodes {
        let found = names.remove(id).unwrap_or_default();
        if let Ok((parent, _)) = inode.as_directory() {
            assert_eq!(inode.size, sizes.remove(id).unwrap_or(0), "size of {id}");
            if inode.kind.is_slice() {
                assert!(found.is_empty() && inodes[&parent].slices().contains(id), "slice {id}");
            } else if *id == InodeId::ROOT {
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
    let is_slice = |inode: &Inode| inode.kind.is_slice();
    for (id, inode) in inodes {
        if let Ok((parent, _)) = inode.as_directory()
            && !is_slice(inode)
            && inode.nlink > 0
            && *id != InodeId::ROOT
        {
            *below.entry(parent).or_default() += 1;
        }
    }
    let is_directory = |inode: &Inode| inode.is_directory() && inode.nlink > 0 && !is_slice(inode);
    for (id, inode) in inodes.iter().filter(|(_, inode)| is_directory(inode)) {
        let in_slices = inode.slices().iter().map(|slice| inodes[slice].nlink - 2);
        assert_eq!(
            inode.nlink + in_slices.sum::<u32>(),
            2 + below.get(id).copied().unwrap_or(0),
            "links of directory {id}"
        );
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
