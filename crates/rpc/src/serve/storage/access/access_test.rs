//! What a storage server lets clients do, with time under the test's control.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::capability::{checking_keys, ready, root_key, seal, sealing_keys, server_key};
use ashlar_env::sim::SimClock;
use ashlar_types::map::Shard;
use ashlar_types::{
    Capability, ChainId, ChunkId, ClusterId, Epoch, InodeId, Node, NodePolicy, OfChains, PeerId, Rights,
    Role, Roles, Seal, SessionId, ShardId, TargetId, Timespec,
};

const CLUSTER: ClusterId = ClusterId([1; 16]);
const META: NodeId = NodeId(1);
const HERE: NodeId = NodeId(2);
const CLIENT: NodeId = NodeId(3);
const S: SessionId = SessionId(7);
const FILE: InodeId = InodeId(9);

struct World {
    access: Access,
    clock: Arc<SimClock>,
    newest: u64,
}

fn keys(newest: u64) -> KeySet {
    sealing_keys(&root_key(b"secret", CLUSTER), newest)
}

fn peer(node: NodeId, instance: u8) -> Peer {
    let id = PeerId { cluster: CLUSTER, node, roles: Roles::default().with(Role::Client), host: None };
    Peer { id, role: Role::Client, instance: [instance; 16], token: None }
}

fn request(generation: u32, write: bool) -> StorageRequest {
    let (target, chunk_bytes, offset) = (TargetId(1), 1 << 20, 0);
    let chunk = ChunkId { inode: FILE, generation, index: 0 };
    match write {
        true => {
            StorageRequest::Write { target, chunk, chain: ChainId(0), chunk_bytes, offset, sums: Vec::new() }
        }
        false => StorageRequest::Read {
            target,
            chunk,
            chain: ChainId(0),
            chunk_bytes,
            offset,
            len: 1,
            want_sums: false,
        },
    }
}

impl World {
    /// One in which the metadata server is heeded.
    fn new() -> World {
        let clock = Arc::new(SimClock::new(Timespec::new(0, 0)));
        clock.advance(Duration::from_secs(1000));
        let node = |id: NodeId| Node {
            id,
            name: id.to_string(),
            roles: Roles::default(),
            listening: Vec::new(),
            policy: NodePolicy::default(),
            domain: String::new(),
        };
        let map = ClusterMap {
            cluster: CLUSTER,
            epoch: Epoch(1),
            pools: Vec::new(),
            targets: Vec::new(),
            chains: Vec::new(),
            shards: vec![Shard { id: ShardId(0), primary: META }],
            moves: Default::default(),
            filesets: Vec::new(),
            nodes: [META, HERE, CLIENT].map(node).into(),
        };
        let env = Env { clock: clock.clone(), ..Env::os() };
        let map = Arc::new(RwLock::new(Arc::new(map)));
        let access = Access::new(HERE, map, checking_keys(&keys(5), HERE), env);
        let world = World { access, clock, newest: 5 };
        world.attend(Vec::new());
        world
    }

    /// The metadata server says twice that it is there, as it does at the beginning; tells the standing.
    fn attend(&self, fences: Vec<SessionId>) -> (u64, u64) {
        let first = self.access.attend(META, &Attend { echo: None, fences });
        let echo = Some((first.standing, first.now_ms));
        let second = self.access.attend(META, &Attend { echo, fences: Vec::new() });
        (second.standing, second.now_ms)
    }

    fn capability(&self, generation: u32, rights: Rights) -> Capability {
        let owner = SessionOwner { node: CLIENT, instance: [1; 16] };
        let term_s = Capability::TERM.as_secs() as u32;
        Capability {
            cluster: CLUSTER,
            granter: META,
            session: S,
            owner,
            inode: FILE,
            generation,
            rights,
            term_s,
        }
    }

    fn sealed(&self, capability: Capability) -> Under {
        let (standing, since_ms) = self.attend(Vec::new());
        let key_epoch = self.newest;
        let unsealed = Seal { server: HERE, standing, since_ms, key_epoch, mac: [0; 32] };
        let key = server_key(keys(key_epoch).key(key_epoch).unwrap(), HERE);
        let seal = seal(&ready(&key), &capability, unsealed);
        Under::Capability(Box::new(SealedCapability { capability, seal }))
    }

    fn good(&self, generation: u32) -> Under {
        self.sealed(self.capability(generation, Rights::of_open(true)))
    }

    fn run(&self, under: &Under, request: &StorageRequest) -> Result<(), Errno> {
        self.access.run(&peer(CLIENT, 1), under, request, || Ok(()))
    }

    fn again(&self, generation: u32) -> Result<(), Errno> {
        self.run(&Under::Session(S), &request(generation, false))
    }

    /// Time goes by, and the metadata server says that it is there.
    fn pass(&self, time: Duration) {
        let step = Duration::from_secs(2);
        let mut left = time;
        while !left.is_zero() {
            let (standing, now_ms) = self.attend(Vec::new());
            self.clock.advance(step.min(left));
            left = left.saturating_sub(step);
            self.access.attend(META, &Attend { echo: Some((standing, now_ms)), fences: Vec::new() });
        }
    }
}

const REFUSED: Result<(), Errno> = Err(Errno::EACCES);

#[test]
fn a_capability_is_good_until_its_time_is_over_by_the_clock_here() {
    let world = World::new();
    let under = world.good(1);
    assert_eq!(world.again(1), REFUSED, "nothing was shown");
    assert_eq!(world.run(&under, &request(1, true)), Ok(()));
    world.pass(Capability::TERM - Duration::from_millis(1));
    assert_eq!((world.again(1), world.run(&under, &request(1, false))), (Ok(()), Ok(())));
    world.pass(Duration::from_millis(1));
    assert_eq!((world.again(1), world.run(&under, &request(1, false))), (REFUSED, REFUSED));
    // Not from when it was shown, but from when it was made.
    let under = world.good(1);
    world.pass(Capability::TERM);
    assert_eq!(world.run(&under, &request(1, false)), REFUSED);
    // The wall clock has nothing to do with it.
    let under = world.good(1);
    world.clock.set_now(Timespec::new(i64::MAX / 2, 0));
    assert_eq!(world.run(&under, &request(1, false)), Ok(()));
}

#[test]
fn rights_are_what_the_capability_says() {
    let world = World::new();
    let read = world.sealed(world.capability(1, Rights::READ));
    assert_eq!(world.run(&read, &request(1, false)), Ok(()));
    assert_eq!(world.run(&read, &request(1, true)), REFUSED);
    assert_eq!(world.run(&Under::Session(S), &request(1, true)), REFUSED);
    assert_eq!(world.run(&world.good(1), &request(1, true)), Ok(()));
    assert_eq!(world.run(&Under::Session(S), &request(1, true)), Ok(()));
    assert_eq!(world.access.counts(), (3, 2), "each time it was shown; two calls were refused");
    let sync = StorageRequest::Sync { target: TargetId(1), chains: OfChains::All };
    assert_eq!(world.run(&Under::Role, &sync), Ok(()), "of no file");
}

#[test]
fn it_is_good_for_the_process_it_was_given_to() {
    let world = World::new();
    let under = world.good(1);
    for stranger in [peer(CLIENT, 2), peer(META, 1), peer(NodeId(99), 1)] {
        let outcome = world.access.run(&stranger, &under, &request(1, false), || Ok(()));
        assert_eq!(outcome, REFUSED, "{stranger:?}");
    }
    assert_eq!(world.run(&under, &request(1, false)), Ok(()));
    for stranger in [peer(CLIENT, 2), peer(META, 1), peer(NodeId(99), 1)] {
        let outcome = world.access.run(&stranger, &Under::Session(S), &request(1, false), || Ok(()));
        assert_eq!(outcome, REFUSED, "{stranger:?}");
    }
    // It has not been heard of for long, and comes back.
    world.access.forget(&peer(CLIENT, 1));
    assert_eq!(world.again(1), REFUSED);
    assert_eq!(world.run(&under, &request(1, false)), Ok(()));
}

#[test]
fn of_three_epochs_of_keys_two_are_good() {
    let mut world = World::new();
    let of_5 = world.good(1);
    assert_eq!(world.run(&of_5, &request(1, false)), Ok(()));
    // Metadata has newer keys than are here.
    world.newest = 6;
    let of_6 = world.good(1);
    assert_eq!(world.run(&of_6, &request(1, false)), REFUSED);
    assert!(world.access.wants_keys() && !world.access.wants_keys(), "asked for once");
    assert_eq!(world.again(1), Ok(()), "what was shown before counts");
    world.access.set_keys(checking_keys(&keys(6), HERE));
    assert_eq!((world.again(1), world.run(&of_5, &request(1, false))), (Ok(()), Ok(())));
    assert_eq!(world.run(&of_6, &request(1, false)), Ok(()));
    assert_eq!(world.run(&of_5, &request(1, false)), Ok(()));
    world.access.set_keys(checking_keys(&keys(7), HERE));
    assert_eq!((world.again(1), world.run(&of_5, &request(1, false))), (REFUSED, REFUSED));
    assert_eq!(world.run(&of_6, &request(1, false)), Ok(()));
    // Keys of another storage server.
    world.access.set_keys(checking_keys(&keys(7), NodeId(4)));
    assert_eq!(world.run(&of_6, &request(1, false)), REFUSED);
}

#[test]
fn nothing_is_done_for_a_session_that_is_over_also_if_it_shows_everything_anew() {
    let world = World::new();
    let under = world.good(1);
    assert_eq!(world.run(&under, &request(1, true)), Ok(()));
    assert_eq!(world.access.attend(META, &Attend { echo: None, fences: vec![S] }).fenced, [S]);
    assert_eq!((world.again(1), world.run(&under, &request(1, true))), (REFUSED, REFUSED));
    assert_eq!(world.run(&world.good(1), &request(1, true)), REFUSED, "sealed while it was ended");
    world.pass(Capability::TERM);
    assert_eq!(world.again(1), REFUSED);
}

#[test]
fn what_is_under_way_is_waited_for_before_a_session_is_said_to_be_over() {
    let world = World::new();
    let under = world.good(1);
    let outcome = world.access.run(&peer(CLIENT, 1), &under, &request(1, true), || {
        let attended = world.access.attend(META, &Attend { echo: None, fences: vec![S] });
        assert!(attended.fenced.is_empty(), "it is under way");
        assert_eq!(world.again(1), REFUSED);
        Ok(())
    });
    assert_eq!(outcome, Ok(()));
    assert_eq!(world.access.attend(META, &Attend { echo: None, fences: vec![S] }).fenced, [S]);
}

#[test]
fn a_metadata_server_that_is_not_heard_of_has_given_nothing() {
    let world = World::new();
    let under = world.good(1);
    assert_eq!(world.run(&under, &request(1, false)), Ok(()));
    world.clock.advance(crate::wire::HEED_TERM);
    assert_eq!((world.again(1), world.run(&under, &request(1, false))), (REFUSED, REFUSED));
    world.attend(Vec::new());
    assert_eq!((world.again(1), world.run(&under, &request(1, false))), (REFUSED, REFUSED), "of before");
    assert_eq!(world.run(&world.good(1), &request(1, false)), Ok(()));
}

#[test]
fn who_has_handed_the_shard_over_has_given_nothing() {
    let world = World::new();
    let under = world.good(1);
    assert_eq!(world.run(&under, &request(1, false)), Ok(()));
    let to = |primary| {
        let mut map = ClusterMap::clone(&world.access.map.read());
        map.shards[0].primary = primary;
        *world.access.map.write() = Arc::new(map);
    };
    to(CLIENT);
    assert_eq!((world.again(1), world.run(&under, &request(1, false))), (REFUSED, REFUSED));
    to(META);
    assert_eq!(world.again(1), Ok(()));
}

#[test]
fn an_older_generation_is_nobody_s_until_metadata_says_that_it_is_current() {
    let world = World::new();
    let delete = |generation| {
        let (target, inode, from_index) = (TargetId(1), FILE, 0);
        world.access.note(&StorageRequest::DeleteGeneration {
            target,
            inode,
            generation,
            chains: OfChains::All,
            from_index,
        });
    };
    let (first, second) = (world.good(1), world.good(2));
    assert_eq!(world.run(&first, &request(1, false)), Ok(()));
    assert_eq!(
        world.run(&first, &request(2, false)),
        REFUSED,
        "of another generation than the capability is"
    );
    assert_eq!(world.run(&second, &request(2, false)), Ok(()));
    assert_eq!((world.again(1), world.run(&first, &request(1, false))), (REFUSED, REFUSED));
    delete(1);
    assert_eq!(world.again(2), Ok(()), "the current one is not touched");
    world.clock.advance(Duration::from_millis(1));
    delete(2);
    assert_eq!((world.again(2), world.run(&second, &request(2, false))), (REFUSED, REFUSED));
    // After a power cut metadata does not know that there was a second one.
    world.clock.advance(Duration::from_millis(1));
    assert_eq!(world.run(&world.good(1), &request(1, false)), Ok(()));
    // A cut is no deletion.
    let (target, inode, generation, from_index) = (TargetId(1), FILE, 1, 3);
    world.access.note(&StorageRequest::DeleteGeneration {
        target,
        inode,
        generation,
        chains: OfChains::All,
        from_index,
    });
    assert_eq!(world.again(1), Ok(()));
}

#[test]
fn many_files_are_remembered_within_a_bound_and_shown_again() {
    let world = World::new();
    let (standing, since_ms) = world.attend(Vec::new());
    let key = ready(&server_key(keys(5).key(5).unwrap(), HERE));
    let show = |inode: u64| {
        let capability = Capability { inode: InodeId(inode), ..world.capability(1, Rights::READ) };
        let unsealed = Seal { server: HERE, standing, since_ms, key_epoch: 5, mac: [0; 32] };
        let sealed = SealedCapability { capability, seal: seal(&key, &capability, unsealed) };
        let (target, chunk) = (TargetId(1), ChunkId { inode: InodeId(inode), generation: 1, index: 0 });
        let read = StorageRequest::Read {
            target,
            chunk,
            chain: ChainId(0),
            chunk_bytes: 1 << 20,
            offset: 0,
            len: 1,
            want_sums: false,
        };
        (Under::Capability(Box::new(sealed)), read)
    };
    // All in one part of the table.
    for file in 1..20_000 {
        let (under, read) = show(file * 64);
        assert_eq!(world.run(&under, &read), Ok(()));
    }
    let remembered =
        (1..20_000).filter(|file| world.run(&Under::Session(S), &show(file * 64).1) == Ok(())).count();
    assert!(remembered > 0 && remembered <= 8192, "{remembered}");
    let (under, read) = show(64);
    assert_eq!(world.run(&under, &read), Ok(()), "what was forgotten is shown once more");
}
