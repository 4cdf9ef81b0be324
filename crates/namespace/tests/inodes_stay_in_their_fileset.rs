//! Goal: an inode's fileset says on which side of a border it is, for good; and who may reach one fileset finds nothing of any other, whichever verb he uses.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ashlar_namespace::testing::{World, name};
use ashlar_namespace::verb;
use ashlar_types::message::RenameFlags;
use ashlar_types::testing::map_of_shards;
use ashlar_types::{ClusterMap, Errno, Fileset, FilesetId, InodeId};

const ROOT: InodeId = InodeId::ROOT;
const WHOLE: FilesetId = FilesetId(0);
const OUTER: FilesetId = FilesetId(1);
const INNER: FilesetId = FilesetId(2);

/// `outer` and `outer/inner` are filesets; each of the three has a directory `d` and a file `f`.
struct Bordered {
    world: World,
    outer: InodeId,
    inner: InodeId,
}

fn set(world: &mut World, inode: InodeId, from: FilesetId, to: FilesetId) -> Result<(), Errno> {
    world.as_root(|txn, _| verb::set_fileset(txn, inode, (from, to), 0))
}

fn map(outer: InodeId, inner: InodeId) -> ClusterMap {
    let filesets = vec![
        Fileset { id: OUTER, parent: WHOLE, root: outer },
        Fileset { id: INNER, parent: OUTER, root: inner },
    ];
    ClusterMap { filesets, ..map_of_shards(&[1, 1, 1], &[1]) }
}

fn bordered() -> Bordered {
    let mut world = World::new();
    let outer = world.make_directory(ROOT, "outer");
    let inner = world.make_directory(outer, "inner");
    set(&mut world, outer, WHOLE, OUTER).unwrap();
    set(&mut world, inner, WHOLE, INNER).unwrap();
    for directory in [ROOT, outer, inner] {
        world.make_directory(directory, "d");
        world.make_file(directory, "f");
    }
    Bordered { world, outer, inner }
}

impl Bordered {
    fn find(&mut self, directory: InodeId, text: &str) -> InodeId {
        self.world.find(directory, text).unwrap()
    }

    fn rename(&mut self, from: InodeId, text: &str, to: InodeId, new: &str) -> Result<(), Errno> {
        self.rename_with(from, text, to, new, RenameFlags::Replace)
    }

    fn rename_with(
        &mut self,
        from: InodeId,
        text: &str,
        to: InodeId,
        new: &str,
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        let renamed = self
            .world
            .as_root(|txn, context| verb::rename(txn, context, from, name(text), to, name(new), flags));
        renamed.map(drop)
    }

    fn link(&mut self, inode: InodeId, parent: InodeId) -> Result<(), Errno> {
        self.world.as_root(|txn, context| verb::link(txn, context, inode, parent, name("l"))).map(drop)
    }
}

#[test]
fn a_directory_that_is_split_as_it_is_taken_in_is_taken_with_its_slices() {
    for at_once in [0, verb::SPLIT_ENTRIES_MAX] {
        let mut world = World::new();
        world.placement.shard_count = 4;
        let directory = world.make_directory(ROOT, "d");
        world.make_file(directory, "f");
        // The caller has looked at it, and does not know.
        world.as_root(|txn, context| verb::split_above(txn, context, directory, 2, at_once)).unwrap();
        assert_eq!(set(&mut world, directory, WHOLE, OUTER), Err(Errno::EAGAIN));
        assert_eq!(world.inode(directory).fileset, WHOLE);
        let slices = world.inode(directory).slices().to_vec();
        slices.iter().for_each(|slice| set(&mut world, *slice, WHOLE, OUTER).unwrap());
        world.as_root(|txn, _| verb::set_fileset(txn, directory, (WHOLE, OUTER), 2)).unwrap();
        assert_eq!(set(&mut world, directory, WHOLE, OUTER), Ok(()), "it is so already");
        assert!([directory, slices[0], slices[1]].iter().all(|part| world.inode(*part).fileset == OUTER));
    }
}

#[test]
fn what_is_made_is_of_its_directory_and_nothing_crosses_a_border() {
    let mut tree = bordered();
    let (outer, inner) = (tree.outer, tree.inner);
    for (directory, fileset) in [(ROOT, WHOLE), (outer, OUTER), (inner, INNER)] {
        let made = [tree.find(directory, "d"), tree.find(directory, "f")];
        assert!(made.into_iter().all(|inode| tree.world.inode(inode).fileset == fileset));
        for other in [ROOT, outer, inner].into_iter().filter(|other| *other != directory) {
            let file = tree.find(directory, "f");
            assert_eq!(tree.rename(directory, "f", other, "moved"), Err(Errno::EXDEV));
            assert_eq!(tree.rename(directory, "d", other, "moved"), Err(Errno::EXDEV));
            assert_eq!(
                tree.rename_with(directory, "f", other, "f", RenameFlags::Exchange),
                Err(Errno::EXDEV)
            );
            assert_eq!(tree.link(file, other), Err(Errno::EXDEV));
        }
    }
    // Within one everything goes, and a fileset goes with its directory.
    tree.rename(outer, "inner", outer, "renamed").unwrap();
    let below = tree.find(outer, "d");
    tree.rename(outer, "renamed", below, "moved").unwrap();
    assert_eq!(tree.world.inode(inner).fileset, INNER);
    assert_eq!(tree.rename(below, "moved", ROOT, "out"), Err(Errno::EXDEV));
}

#[test]
fn an_inode_goes_from_the_fileset_that_was_named_and_takes_its_account_along() {
    let mut tree = bordered();
    let file = tree.find(ROOT, "f");
    assert_eq!(set(&mut tree.world, file, OUTER, INNER), Err(Errno::EXDEV), "it is of another one");
    assert_eq!(set(&mut tree.world, ROOT, WHOLE, OUTER), Err(Errno::EINVAL));
    assert_eq!(set(&mut tree.world, InodeId(0x77), WHOLE, OUTER), Err(Errno::ESTALE));
    let before = tree.world.accounted();
    set(&mut tree.world, file, WHOLE, OUTER).unwrap();
    assert_eq!(tree.world.outcome.writes.len(), 1);
    set(&mut tree.world, file, WHOLE, OUTER).unwrap();
    assert!(tree.world.outcome.writes.is_empty(), "said again it is so already");
    assert_eq!((tree.world.inode(file).fileset, tree.world.accounted()), (OUTER, before));
}

/// Everything that is stored.
fn stored(world: &World) -> Vec<(Vec<u8>, Vec<u8>)> {
    world.store.pairs().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

/// Verbs on an inode outside, each answered as if it were not there.
fn verbs_outside(tree: &mut Bordered, x: InodeId, inside: InodeId) -> Vec<(&'static str, Result<(), Errno>)> {
    let f = || name("f");
    let fresh = || name("fresh");
    let replace = RenameFlags::Replace;
    let world = &mut tree.world;
    vec![
        ("lookup", world.as_root(|txn, context| verb::lookup(txn, context, x, f())).map(drop)),
        ("getattr", world.as_root(|txn, _| verb::getattr(txn, x)).map(drop)),
        ("mkdir", world.as_root(|txn, context| verb::mkdir(txn, context, x, fresh(), 0, 0)).map(drop)),
        ("symlink", world.as_root(|txn, context| verb::symlink(txn, context, x, fresh(), b"/")).map(drop)),
        ("unlink", world.as_root(|txn, context| verb::unlink(txn, context, x, f())).map(drop)),
        ("rmdir", world.as_root(|txn, context| verb::rmdir(txn, context, x, name("d"))).map(drop)),
        ("link of it", world.as_root(|txn, context| verb::link(txn, context, x, inside, fresh())).map(drop)),
        (
            "rename from it",
            world
                .as_root(|txn, context| verb::rename(txn, context, x, f(), inside, fresh(), replace))
                .map(drop),
        ),
        (
            "rename to it",
            world
                .as_root(|txn, context| verb::rename(txn, context, inside, f(), x, fresh(), replace))
                .map(drop),
        ),
        (
            "whether a name is there",
            world
                .as_root(|txn, context| {
                    verb::rename(txn, context, inside, f(), x, f(), RenameFlags::NoReplace)
                })
                .map(drop),
        ),
        ("access", world.as_root(|txn, context| verb::access(txn, context, x, 4))),
        (
            "open",
            world.as_root(|txn, context| verb::open(txn, context, x, &verb::OpenArgs::default())).map(drop),
        ),
        ("set_fileset", world.as_root(|txn, _| verb::set_fileset(txn, x, (WHOLE, OUTER), 0))),
    ]
}

#[test]
fn who_may_reach_one_fileset_finds_nothing_of_any_other() {
    let mut tree = bordered();
    let (outer, inner) = (tree.outer, tree.inner);
    let all: Vec<(FilesetId, InodeId)> = [(WHOLE, ROOT), (OUTER, outer), (INNER, inner)]
        .into_iter()
        .flat_map(|(fileset, directory)| {
            let inodes = [directory, tree.find(directory, "d"), tree.find(directory, "f")];
            inodes.map(|inode| (fileset, inode))
        })
        .collect();
    for (reach, directory, outside) in [(OUTER, outer, &[WHOLE][..]), (INNER, inner, &[WHOLE, OUTER])] {
        tree.world.reach = Some((map(outer, inner), reach));
        let before = stored(&tree.world);
        for (_, x) in all.iter().filter(|(fileset, _)| outside.contains(fileset)) {
            for (what, answer) in verbs_outside(&mut tree, *x, directory) {
                assert_eq!(answer, Err(Errno::ESTALE), "{what} of {x} by who reaches {reach}");
            }
        }
        assert_eq!(stored(&tree.world), before);
        // Inside all is as ever, also renames of directories, which look at what is above.
        assert!(tree.world.find(directory, "f").is_some());
        let below = tree.find(directory, "d");
        let made = tree.world.make_directory(directory, "made");
        tree.rename(directory, "made", below, "moved").unwrap();
        assert_eq!(tree.rename(directory, "d", made, "loop"), Err(Errno::EINVAL));
        tree.world.reach = None;
    }
    // Who reaches the outer one reaches what is inside.
    tree.world.reach = Some((map(outer, inner), OUTER));
    assert!(tree.world.find(inner, "f").is_some());
}

/// An entry for something outside, as there is one while a directory is becoming a fileset, shows nothing of it.
#[test]
fn an_entry_that_leads_outside_leads_nowhere() {
    let mut tree = bordered();
    let (outer, inner) = (tree.outer, tree.inner);
    let file = tree.find(outer, "f");
    tree.world.edit(file, |inode| inode.fileset = WHOLE);
    tree.world.reach = Some((map(outer, inner), OUTER));
    let answer = tree.world.as_root(|txn, context| verb::lookup(txn, context, outer, name("f")));
    assert_eq!(answer.map(drop), Err(Errno::ESTALE));
    let mut seen = Vec::new();
    tree.world
        .as_root(|txn, context| {
            verb::readdir(txn, context, outer, verb::COOKIE_DOT_DOT, true, &mut |entry| {
                seen.push((entry.name.to_vec(), entry.attr.is_some()));
                std::ops::ControlFlow::Continue(())
            })
        })
        .unwrap();
    assert!(seen.contains(&(b"f".to_vec(), false)) && seen.contains(&(b"d".to_vec(), true)), "{seen:?}");
    let args = verb::CreateArgs { mode: 0o666, umask: 0, exclusive: false };
    let answer = tree.world.as_root(|txn, context| {
        let made = verb::create(txn, context, outer, name("f"), args)?;
        verb::open(txn, context, made.inode, &verb::OpenArgs::default())
    });
    assert_eq!(answer.map(drop), Err(Errno::ESTALE));
}
