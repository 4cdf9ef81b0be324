//! A directory says where those go that are made in it: to the next shard, where it is itself, or to one shard. They say the same then, and nothing that is
//! there moves.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

use ashlar_namespace::check::Finding;
use ashlar_namespace::key::NameHash;
use ashlar_namespace::testing::{HASH_KEY, World, name};
use ashlar_namespace::verb;
use ashlar_namespace::{FileData, Kind};
use ashlar_types::message::RenameFlags;
use ashlar_types::{Credentials, DirectoryChoice, Errno, InodeId, LayoutPolicy, ShardId};
use std::collections::BTreeSet;

const ROOT: InodeId = InodeId::ROOT;
const SHARDS: u16 = 6;
const INHERIT: DirectoryChoice = DirectoryChoice::Inherit;
const PINNED: DirectoryChoice = DirectoryChoice::Pinned(ShardId(4));

fn world() -> World {
    let mut world = World::new();
    world.placement.shard_count = SHARDS;
    world
}

fn choose_as(
    world: &mut World,
    who: &Credentials,
    id: InodeId,
    choice: DirectoryChoice,
) -> Result<LayoutPolicy, Errno> {
    let changes = LayoutPolicy { directories: Some(choice), ..LayoutPolicy::default() };
    world.run(who, |txn, context| verb::layout_set(txn, context, id, &changes))
}

fn choose(world: &mut World, id: InodeId, choice: DirectoryChoice) {
    choose_as(world, &Credentials::root(), id, choice).unwrap();
}

/// Makes as many directories as there are shards; the shards in which they are.
fn shards_of_new(world: &mut World, parent: InodeId) -> BTreeSet<ShardId> {
    let made = world.store.pairs().count();
    (0..SHARDS).map(|at| make(world, parent, &format!("{made}-{at}")).home()).collect()
}

/// Makes a directory, with its name where a client asks for it.
fn make(world: &mut World, parent: InodeId, text: &str) -> InodeId {
    let holder = holder(world, parent, text);
    world.make_directory(holder, text)
}

/// Where the name is.
fn holder(world: &World, directory: InodeId, text: &str) -> InodeId {
    let inode = world.inode(directory);
    let hash = NameHash::of(name(text), &HASH_KEY);
    let slice = inode.slices().get(hash.slice(inode.slices().len()));
    slice.filter(|_| hash < inode.border()).copied().unwrap_or(directory)
}

fn directories_of(world: &World, id: InodeId) -> Option<DirectoryChoice> {
    world.inode(id).as_directory().unwrap().1.directories
}

#[test]
fn they_go_to_all_shards_in_turn_unless_something_else_was_chosen() {
    let mut world = world();
    assert_eq!(shards_of_new(&mut world, ROOT).len(), usize::from(SHARDS));
    let tree = world.make_directory(ROOT, "tree");
    assert_eq!(shards_of_new(&mut world, tree).len(), usize::from(SHARDS));
    choose(&mut world, tree, PINNED);
    choose(&mut world, tree, DirectoryChoice::RoundRobin);
    assert_eq!(shards_of_new(&mut world, tree).len(), usize::from(SHARDS), "chosen again");
    assert_eq!(world.findings(), []);
}

#[test]
fn a_tree_stays_where_its_first_directory_is_when_they_inherit() {
    let mut world = world();
    world.make_directory(ROOT, "another");
    let tree = world.make_directory(ROOT, "tree");
    assert_ne!(tree.home(), ROOT.home());
    choose(&mut world, tree, INHERIT);
    let mut below = tree;
    for depth in 0..3 {
        assert_eq!(shards_of_new(&mut world, below), [tree.home()].into(), "{depth} below");
        below = make(&mut world, below, "below");
    }
    assert_eq!(world.findings(), []);
}

#[test]
fn all_below_a_pinned_directory_goes_to_its_shard_and_what_is_there_stays() {
    let mut world = world();
    let tree = world.make_directory(ROOT, "tree");
    let before = world.make_directory(tree, "before");
    assert!(tree.home() != ShardId(4) && before.home() != ShardId(4));
    choose(&mut world, tree, PINNED);
    let first = make(&mut world, tree, "first");
    assert_eq!(shards_of_new(&mut world, tree), [ShardId(4)].into());
    assert_eq!(shards_of_new(&mut world, first), [ShardId(4)].into());
    assert_eq!(directories_of(&world, before), None, "it has the settings of before");
    assert_eq!(shards_of_new(&mut world, before).len(), usize::from(SHARDS));
    assert_eq!(world.make_file(first, "file").home(), ShardId(4), "files are with their directory");
    assert_eq!(world.findings(), []);
}

#[test]
fn a_directory_that_is_moved_stays_in_its_shard_and_says_what_it_said() {
    let mut world = world();
    let (pinned, other) = (world.make_directory(ROOT, "pinned"), world.make_directory(ROOT, "other"));
    choose(&mut world, pinned, PINNED);
    choose(&mut world, other, INHERIT);
    let moved = world.make_directory(pinned, "d");
    let flags = RenameFlags::NoReplace;
    let renamed =
        world.as_root(|txn, context| verb::rename(txn, context, pinned, name("d"), other, name("d"), flags));
    assert_eq!(renamed.unwrap().moved, moved);
    assert_eq!(moved.home(), ShardId(4));
    assert_eq!(directories_of(&world, moved), Some(PINNED));
    assert_eq!(shards_of_new(&mut world, moved), [ShardId(4)].into());
    assert_eq!(shards_of_new(&mut world, other), [other.home()].into());
}

#[test]
fn in_a_split_directory_they_are_with_their_names_or_where_they_are_pinned_to() {
    let mut world = world();
    let directory = world.make_directory(ROOT, "d");
    choose(&mut world, directory, INHERIT);
    world.as_root(|txn, context| verb::split(txn, context, directory, 3)).unwrap();
    let slices = world.inode(directory).slices().to_vec();
    for at in 0..20 {
        let text = format!("inherits {at}");
        let (slice, made) = (holder(&world, directory, &text), make(&mut world, directory, &text));
        assert_eq!(made.home(), slice.home());
        assert_eq!(directories_of(&world, made), Some(INHERIT));
    }
    choose(&mut world, directory, PINNED);
    assert!(slices.iter().all(|slice| directories_of(&world, *slice) == Some(PINNED)), "slices know");
    assert_eq!(shards_of_new(&mut world, directory), [ShardId(4)].into());
    assert_eq!(world.findings(), []);
}

/// A directory that is made split is where it was chosen, and its slices are for spreading.
#[test]
fn slices_are_spread_whatever_was_chosen_and_a_pinned_directory_gets_none_by_itself() {
    let mut world = world();
    let tree = world.make_directory(ROOT, "tree");
    assert!(world.inode(tree).splits_when_large());
    choose(&mut world, tree, INHERIT);
    assert!(world.inode(tree).splits_when_large());
    choose(&mut world, tree, PINNED);
    assert!(!world.inode(tree).splits_when_large());
    world.as_root(|txn, context| verb::split_new(txn, context, tree, 3)).unwrap();
    assert!(!world.inode(tree).splits_when_large());
    let made = make(&mut world, tree, "made");
    assert_eq!(made.home(), ShardId(4));
    let shards: BTreeSet<ShardId> = world.inode(made).slices().iter().map(|slice| slice.home()).collect();
    assert!(shards.len() == 3 && !shards.contains(&ShardId(4)), "{shards:?}");
    assert_eq!(world.findings(), []);
}

#[test]
fn who_may_set_other_settings_may_choose_and_files_have_no_choice() {
    let mut world = world();
    let tree = world.make_directory(ROOT, "tree");
    choose(&mut world, tree, PINNED);
    world.edit(tree, |inode| (inode.uid, inode.gid) = (500, 500));
    let user = |uid| Credentials { complete: true, ..Credentials::user(uid, 500) };
    assert_eq!(choose_as(&mut world, &user(501), tree, INHERIT), Err(Errno::EPERM));
    assert_eq!(directories_of(&world, tree), Some(PINNED));
    assert_eq!(choose_as(&mut world, &user(500), tree, INHERIT).unwrap().directories, Some(INHERIT));
    let file = world.make_file(tree, "file");
    assert_eq!(choose_as(&mut world, &Credentials::root(), file, INHERIT), Err(Errno::ENOTDIR));
    let Kind::Regular(FileData::Inline { policy, .. }) = world.inode(file).kind else { panic!("a file") };
    assert_eq!(policy, World::root_policy(), "nothing that is about directories");
    // Other settings leave the choice as it is.
    let stripe = LayoutPolicy { stripe_count: Some(7), ..LayoutPolicy::default() };
    let policy = world.as_root(|txn, context| verb::layout_set(txn, context, tree, &stripe)).unwrap();
    assert_eq!((policy.stripe_count, policy.directories), (Some(7), Some(INHERIT)));
}

#[test]
fn a_pin_to_a_shard_that_is_not_there_is_found_and_so_is_a_file_with_a_choice() {
    let mut world = world();
    let (tree, file) = (world.make_directory(ROOT, "tree"), world.make_file(ROOT, "file"));
    let choice = DirectoryChoice::Pinned(ShardId(SHARDS));
    choose(&mut world, tree, choice);
    world.edit(file, |inode| {
        let policy = LayoutPolicy { directories: Some(INHERIT), ..World::root_policy() };
        inode.kind = Kind::Regular(FileData::Inline { policy, generation: 0 });
    });
    let what = "its layout settings are not whole or out of range";
    let mut found = world.findings();
    found.sort_by_key(|finding| format!("{finding}"));
    let mut wanted = [file, tree].map(|inode| Finding::InodeMalformed { inode, what });
    wanted.sort_by_key(|finding| format!("{finding}"));
    assert_eq!(found, wanted);
}
