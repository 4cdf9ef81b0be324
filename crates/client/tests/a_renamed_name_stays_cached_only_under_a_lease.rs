//! Goal: what the kernel has cached of a name moves with the name, and is good for as long as before. So it is kept only if the session has a lease on the names
//! of the directory where it is now; nobody has one on a directory that is being split.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_client::{Client, KernelCache, Who};
use ashlar_types::message::RenameFlags;
use ashlar_types::{InodeId, Name};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use support::World;

/// Names are good that were looked up since the last time names were dropped.
#[derive(Default)]
struct Kernel(AtomicU64);

impl KernelCache for Kernel {
    fn drop_attributes(&self, _: InodeId) {}
    fn drop_content(&self, _: InodeId) {}
    fn drop_range(&self, _: InodeId, _: u64, _: u64) {}
    fn drop_unless_locked(&self, _: InodeId, _: u64, _: u64) -> bool {
        true
    }
    fn drop_entries(&self, _: InodeId) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

/// Two mounts.
struct Mounts {
    _world: World,
    one: Arc<Client>,
    kernel: Arc<Kernel>,
    other: Arc<Client>,
    from: InodeId,
    to: InodeId,
}

impl Mounts {
    fn new() -> Mounts {
        let world = World::new(64 << 20);
        world.meta.split_in_steps(0, 1);
        let (one, other) = (world.client(), world.client());
        let kernel = Arc::new(Kernel::default());
        one.set_kernel_cache(kernel.clone());
        let mut mounts = Mounts { _world: world, one, kernel, other, from: InodeId::ROOT, to: InodeId::ROOT };
        (mounts.from, mounts.to) = (mounts.mkdir(InodeId::ROOT, "p"), mounts.mkdir(InodeId::ROOT, "d"));
        for text in ["x", "x2"] {
            mounts.mkdir(mounts.from, text);
        }
        mounts
    }

    fn mkdir(&self, parent: InodeId, text: &str) -> InodeId {
        self.other.mkdir(&Who::system(), parent, name(text), 0o755, 0).unwrap().attr.inode
    }

    /// Looks a name up at the first mount; whether the answer, that there is none as well, is kept.
    fn look_up(&self, parent: InodeId, text: &str) -> bool {
        match self.one.lookup(&Who::system(), parent, name(text)).unwrap() {
            Ok(found) => !found.entry_valid.is_zero(),
            Err(valid) => !valid.is_zero(),
        }
    }

    fn rename(&self, from: (InodeId, &str), to: (InodeId, &str), flags: RenameFlags) {
        let (from, to) = ((from.0, name(from.1)), (to.0, name(to.1)));
        self.one.rename(&Who::system(), from, to, flags).unwrap();
    }

    fn move_away(&self, from: (InodeId, &str)) {
        let (from, to) = ((from.0, name(from.1)), (from.0, name("elsewhere")));
        self.other.rename(&Who::system(), from, to, RenameFlags::Replace).unwrap();
    }

    fn drops(&self) -> u64 {
        self.kernel.0.load(SeqCst)
    }
}

#[test]
fn a_name_moved_into_a_directory_that_is_being_split_is_not_seen_after_somebody_moved_it_on() {
    let mounts = Mounts::new();
    mounts.mkdir(mounts.to, "there");
    mounts.other.split(&Who::system(), mounts.to, 2, false).unwrap();
    assert!(mounts.look_up(mounts.from, "x") && !mounts.look_up(mounts.to, "y"));
    let before = mounts.drops();
    mounts.rename((mounts.from, "x"), (mounts.to, "y"), RenameFlags::Replace);
    mounts.move_away((mounts.to, "y"));
    assert_ne!(mounts.drops(), before, "the first mount still has it as d/y");

    assert!(mounts.look_up(mounts.from, "x2"));
    let before = mounts.drops();
    mounts.rename((mounts.to, "there"), (mounts.from, "x2"), RenameFlags::Exchange);
    mounts.move_away((mounts.to, "there"));
    assert_ne!(mounts.drops(), before, "the first mount still has it as d/there");
}

#[test]
fn a_name_moved_to_where_the_mount_has_a_lease_stays_cached_until_that_is_taken_back() {
    let mounts = Mounts::new();
    assert!(mounts.look_up(mounts.from, "x") && mounts.look_up(mounts.to, "y"));
    let before = mounts.drops();
    mounts.rename((mounts.from, "x"), (mounts.to, "y"), RenameFlags::Replace);
    mounts.rename((mounts.to, "y"), (mounts.to, "y2"), RenameFlags::Replace);
    mounts.rename((mounts.to, "y2"), (mounts.from, "x2"), RenameFlags::Exchange);
    assert_eq!(mounts.drops(), before);
    mounts.move_away((mounts.to, "y2"));
    assert_ne!(mounts.drops(), before);
}

#[test]
fn a_name_moved_to_where_the_mount_has_looked_nothing_up_is_looked_up_there() {
    let mounts = Mounts::new();
    assert!(mounts.look_up(mounts.from, "x"));
    let before = mounts.drops();
    mounts.rename((mounts.from, "x"), (mounts.to, "y"), RenameFlags::Replace);
    mounts.move_away((mounts.to, "y"));
    assert_ne!(mounts.drops(), before);
}
