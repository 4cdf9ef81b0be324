//! Goal: a manager gives the start of a directory to nobody but who has it, as far as it can know; and answers, however many servers ask at the same time.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ashlar_coord::local_file::LocalFile;
use ashlar_coord::{Coord, CoordError};
use ashlar_env::sim::SimDisk;
use ashlar_env::{Disk, Env};
use ashlar_manager::{Manager, ManagerService};
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{Holding, NodeId, PeerId, Role, Start, StartPlace, Timespec};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// More than a loaded machine takes for what these tests do.
const PATIENCE: Duration = Duration::from_secs(120);

fn manager() -> Arc<ManagerService> {
    let (env, _) = Env::simulated(1, Timespec::new(1, 0));
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let draft = Manager::draft(&disk, "", &env).unwrap();
    let manager = Manager::create(draft, Box::new(LocalFile::new(disk.clone(), ""))).unwrap();
    Arc::new(ManagerService::new(manager, env, String::new()).unwrap())
}

fn peer(service: &ManagerService, node: u32) -> PeerId {
    let roles = [Role::Meta, Role::Storage].into_iter().collect();
    PeerId { cluster: service.manager().identity().cluster, node: NodeId(node), roles, host: None }
}

/// The directory `inode` of a machine, with the target `uuid` in it.
fn directory(uuid: u8, inode: u64, start: Start) -> Holding {
    let place = StartPlace { boot: [1; 16], device: 1, inode };
    Holding { uuid: [uuid; 16], start, path: format!("/disk{inode}"), place }
}

/// Makes the target `uuid` part of the file system, of `node`, so that it is not forgotten.
fn promise(service: &ManagerService, node: u32, uuid: u8) {
    let request =
        ManagerRequest::NewTarget { uuid: [uuid; 16], path: "/disk".to_owned(), pool: String::new() };
    assert!(matches!(service.call(peer(service, node), None, request), ManagerReply::Target(_)));
}

fn claim(service: &ManagerService, node: u32, found: &Holding, tag: u64, flags: [bool; 2]) -> ManagerReply {
    let [is_older_accepted, is_taking_over] = flags;
    let found = found.clone();
    let request =
        ManagerRequest::ClaimStart { role: Role::Storage, found, tag, is_older_accepted, is_taking_over };
    service.call(peer(service, node), None, request)
}

fn hold(service: &ManagerService, node: u32, held: &[Holding], is_ending: bool) -> usize {
    let request = ManagerRequest::HoldStarts { role: Role::Storage, held: held.to_vec(), is_ending };
    match service.call(peer(service, node), None, request) {
        ManagerReply::StartsHeld { lost } => lost.len(),
        other => panic!("{other:?}"),
    }
}

/// Starts a server of `found` on `node`, which notes what it is told.
#[track_caller]
fn start(service: &ManagerService, node: u32, found: &mut Holding, tag: u64, flags: [bool; 2]) {
    match claim(service, node, found, tag, flags) {
        ManagerReply::StartClaimed { start, .. } => found.start = start,
        other => panic!("{other:?}"),
    }
    assert_eq!(hold(service, node, std::slice::from_ref(found), false), 0);
}

#[test]
fn who_serves_is_followed_by_another_one_when_it_has_stopped_or_by_word_and_by_itself_at_once() {
    let service = manager();
    promise(&service, 1, 7);
    let mut own = directory(7, 1, Start::default());
    start(&service, 1, &mut own, 10, [false; 2]);
    let mut copy = Holding { start: own.start, ..directory(7, 2, Start::default()) };
    for node in [1, 2] {
        let refused = claim(&service, node, &copy, 11, [false; 2]);
        let ManagerReply::StartTaken(text) = refused else { panic!("{refused:?}") };
        assert!(text.contains("/disk2 is served by") && text.contains("at /disk1"), "{text}");
    }
    // The same directory, on the same machine, has been locked by who asks: its server was killed.
    let before = own.start;
    start(&service, 1, &mut own, 12, [false; 2]);
    assert_eq!(own.start.number, before.number + 1);
    // The copy is older now, and no word but the right one helps.
    let refused = claim(&service, 2, &copy, 13, [false, true]);
    let ManagerReply::Refused(text) = refused else { panic!("{refused:?}") };
    assert!(text.contains("is an older copy: it says start 1") && text.contains("in start 2"), "{text}");
    assert!(matches!(claim(&service, 2, &copy, 13, [true, false]), ManagerReply::StartTaken(_)));
    start(&service, 2, &mut copy, 14, [true, true]);
    assert_eq!(copy.start.number, 3);
    assert_eq!(hold(&service, 1, std::slice::from_ref(&own), false), 1, "who had it has to stop");
    // One that has stopped, and said so, is followed at once.
    assert_eq!(hold(&service, 2, std::slice::from_ref(&copy), true), 0);
    let mut moved = Holding { start: copy.start, ..directory(7, 3, Start::default()) };
    start(&service, 3, &mut moved, 15, [false; 2]);
}

#[test]
fn a_server_that_does_not_have_a_directory_takes_it_from_nobody_and_stops_nobody() {
    let service = manager();
    promise(&service, 1, 7);
    // Before it was served for the first time, and afterwards.
    let mut own = directory(7, 1, Start::default());
    for round in 0..2 {
        for number in [0, 1, 2, 3, 1_000_000_000, u64::MAX / 2 - 1, u64::MAX] {
            for flags in [[false, false], [true, false], [false, true], [true, true]] {
                let made_up = directory(7, 2, Start { number, tag: 99 });
                let refused = claim(&service, 2, &made_up, 11, flags);
                assert!(matches!(refused, ManagerReply::Refused(_)), "{made_up:?} {flags:?}: {refused:?}");
                hold(&service, 2, std::slice::from_ref(&made_up), false);
                // That another one has stopped is not his to say.
                hold(&service, 2, &[Holding { place: own.place, ..made_up }], true);
                if round > 0 {
                    assert_eq!(hold(&service, 1, std::slice::from_ref(&own), false), 0, "{flags:?}");
                }
            }
        }
        if round > 0 {
            let copy = Holding { start: own.start, ..directory(7, 3, Start::default()) };
            let taken = claim(&service, 3, &copy, 12, [false; 2]);
            assert!(matches!(taken, ManagerReply::StartTaken(_)), "it is there: {taken:?}");
        }
        start(&service, 1, &mut own, 20 + round, [false; 2]);
    }
    assert_eq!(own.start.number, 2);
}

#[test]
fn who_is_about_to_serve_is_not_followed_by_a_copy_that_starts_at_the_same_moment() {
    let service = manager();
    promise(&service, 1, 7);
    let mut own = directory(7, 1, Start::default());
    start(&service, 1, &mut own, 10, [false; 2]);
    hold(&service, 1, std::slice::from_ref(&own), true);
    let mut copy = Holding { start: own.start, ..directory(7, 2, Start::default()) };
    let ManagerReply::StartClaimed { start: next, .. } = claim(&service, 1, &own, 11, [false; 2]) else {
        panic!("it has the directory");
    };
    let refused = claim(&service, 2, &copy, 12, [false; 2]);
    assert!(
        matches!(&refused, ManagerReply::StartTaken(text) if text.contains("is about to be served by")),
        "{refused:?}"
    );
    // By word it is followed, and has to stop before it serves.
    let ManagerReply::StartClaimed { start: taken, .. } = claim(&service, 2, &copy, 12, [false, true]) else {
        panic!("an administrator says so");
    };
    own.start = next;
    assert_eq!(hold(&service, 1, std::slice::from_ref(&own), false), 1);
    copy.start = taken;
    assert_eq!(hold(&service, 2, std::slice::from_ref(&copy), false), 0);
    assert_eq!(hold(&service, 1, std::slice::from_ref(&own), false), 1);
}

#[test]
fn a_manager_that_was_just_started_takes_who_served_last_for_somebody_who_is_there() {
    let service = manager();
    promise(&service, 1, 7);
    let mut own = directory(7, 1, Start::default());
    start(&service, 1, &mut own, 10, [false; 2]);
    let (env, _) = Env::simulated(2, Timespec::new(2, 0));
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    // Another one with the same state, which has heard nothing yet.
    let draft = Manager::draft(&disk, "", &env).unwrap();
    let other = Manager::create(draft, Box::new(LocalFile::new(disk.clone(), ""))).unwrap();
    let state = service.manager().state();
    other
        .change(|held| {
            *held = state.clone();
            Ok(())
        })
        .unwrap();
    let other = ManagerService::new(other, env, String::new()).unwrap();
    let copy = Holding { start: own.start, ..directory(7, 2, Start::default()) };
    let refused = claim(&other, 2, &copy, 11, [false; 2]);
    assert!(
        matches!(&refused, ManagerReply::StartTaken(text) if text.contains("a moment ago")),
        "{refused:?}"
    );
    start(&other, 1, &mut own, 12, [false; 2]);
}

#[test]
fn servers_that_start_and_serve_at_the_same_time_are_all_answered() {
    let service = manager();
    (1..=8).for_each(|uuid| promise(&service, u32::from(uuid), uuid));
    let (done, ended) = channel();
    for node in 1..=8u8 {
        let (service, done) = (service.clone(), done.clone());
        // Not waited for by a join: one that hangs is what this is about.
        std::thread::spawn(move || {
            let mut own = directory(node, u64::from(node), Start::default());
            for tag in 1..=40 {
                start(&service, u32::from(node), &mut own, tag, [false; 2]);
                (0..200).for_each(|_| {
                    assert_eq!(hold(&service, u32::from(node), std::slice::from_ref(&own), false), 0);
                });
            }
            done.send(own.start.number).unwrap();
        });
    }
    for _ in 0..8 {
        assert_eq!(ended.recv_timeout(PATIENCE), Ok(40), "every start has its number");
    }
}

/// A store that several managers use.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<(u64, Vec<u8>)>>);

impl Coord for Shared {
    fn load(&self) -> Result<(u64, Vec<u8>), CoordError> {
        Ok(self.0.lock().unwrap().clone())
    }

    fn compare_and_set(&self, expected: u64, value: &[u8]) -> Result<u64, CoordError> {
        let mut held = self.0.lock().unwrap();
        if held.0 != expected {
            return Err(CoordError::Conflict { expected, found: held.0 });
        }
        *held = (expected + 1, value.to_vec());
        Ok(held.0)
    }

    fn is_shared(&self) -> bool {
        true
    }
}

#[test]
fn a_manager_that_another_one_is_ahead_of_refuses_nothing_that_is_in_order() {
    let (env, _) = Env::simulated(1, Timespec::new(1, 0));
    let (disk, store): (Arc<dyn Disk>, Shared) = (Arc::new(SimDisk::new()), Shared::default());
    let draft = Manager::draft(&disk, "", &env).unwrap();
    let first = Manager::create(draft, Box::new(store.clone())).unwrap();
    let behind = || {
        let manager = Manager::open(&disk, "", Box::new(store.clone())).unwrap();
        ManagerService::new(manager, env.clone(), String::new()).unwrap()
    };
    let service = ManagerService::new(first, env.clone(), String::new()).unwrap();
    promise(&service, 1, 7);
    let mut own = directory(7, 1, Start::default());
    start(&service, 1, &mut own, 10, [false; 2]);
    let others: Vec<ManagerService> = (0..2).map(|_| behind()).collect();
    // Its disk goes to another machine, where it is started twice; and metadata is made.
    hold(&service, 1, std::slice::from_ref(&own), true);
    let mut moved = Holding { start: own.start, ..directory(7, 2, Start::default()) };
    start(&service, 2, &mut moved, 11, [false, true]);
    start(&service, 2, &mut moved, 12, [false; 2]);
    let meta = |service: &ManagerService, uuid| {
        let request = ManagerRequest::MetaIdentity { uuid: [uuid; 16], path: "/meta".to_owned() };
        service.call(peer(service, 1), None, request)
    };
    assert!(matches!(meta(&service, 5), ManagerReply::MetaIdentity { .. }));
    // What they are asked is about what they have not heard of.
    assert_eq!(hold(&others[0], 2, std::slice::from_ref(&moved), false), 0);
    start(&others[0], 2, &mut moved, 13, [false; 2]);
    assert!(matches!(meta(&others[1], 5), ManagerReply::MetaIdentity { .. }));
    assert!(matches!(meta(&others[1], 6), ManagerReply::Refused(_)), "it has another one");
    // A copy that a manager hears of first, right after the directory was served.
    let copy = Holding { start: moved.start, ..directory(7, 4, Start::default()) };
    let taken = claim(&others[1], 4, &copy, 14, [false; 2]);
    assert!(matches!(&taken, ManagerReply::StartTaken(text) if text.contains("a moment ago")), "{taken:?}");
}
