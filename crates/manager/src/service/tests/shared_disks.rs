//! Disks that two storage servers reach: who gets one, who has to let go of it, and who is fenced.

use super::{FIRST, Site, refused};
use crate::ClusterState;
use ashlar_types::map::TargetState;
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{DiskState, DiskWord, NodeId, PeerId, Role, SharedDisk, TargetId};
use std::time::Duration;

const STORAGE: &[Role] = &[Role::Storage];
const A: NodeId = NodeId(2);
const B: NodeId = NodeId(3);
const DISK: [u8; 16] = [4; 16];
const LONG: Duration = Duration::from_secs(3600);

/// What a server does with the disk.
#[derive(Clone, Copy)]
struct Server {
    node: NodeId,
    word: DiskWord,
}

impl Server {
    fn new(node: NodeId) -> Server {
        let word = DiskWord {
            id: DISK,
            seen: 0,
            is_mounted: false,
            fenced: None,
            is_failing: false,
            is_preferred: node == A,
            can_fence: true,
            target: None,
        };
        Server { node, word }
    }

    fn ask(self, site: &Site, request: ManagerRequest) -> ManagerReply {
        let cluster = site.0.manager.identity().cluster;
        let peer = PeerId { cluster, node: self.node, roles: STORAGE.iter().copied().collect(), host: None };
        site.0.call(peer, None, request)
    }

    /// Says what it does, and hears what is so, and whether it is to ask for the disk.
    fn say(&mut self, site: &Site) -> (DiskState, bool) {
        let reply = self.ask(site, ManagerRequest::ShareDisks { words: vec![self.word] });
        let ManagerReply::DiskOrders(orders) = reply else { panic!("{reply:?}") };
        self.word.seen = orders[0].disk.turn;
        (orders[0].disk.state, orders[0].is_to_take)
    }

    fn take(&mut self, site: &Site) {
        let reply = self.ask(site, ManagerRequest::UseDisk { disk: DISK });
        let ManagerReply::DiskGranted(disk) = reply else { panic!("{reply:?}") };
        (self.word.seen, self.word.is_mounted, self.word.target) = (disk.turn, true, Some(TargetId(7)));
    }

    fn is_refused(&self, site: &Site) -> bool {
        matches!(self.ask(site, ManagerRequest::UseDisk { disk: DISK }), ManagerReply::Refused(_))
    }
}

/// Both servers have been there for long, and the first one has the disk.
fn start() -> (Site, Server, Server) {
    let mut site = Site::with(&[("oss1", STORAGE), ("oss2", STORAGE), ("mds", &[Role::Meta])]);
    site.0.suppose_it_can_tell();
    let (mut a, mut b) = (Server::new(A), Server::new(B));
    assert!(a.say(&site).1, "the disk is to be its own");
    a.take(&site);
    assert_eq!(b.say(&site), (DiskState::Used { by: A }, false));
    a.say(&site);
    for node in [A, B] {
        site.0.suppose_disk_words(node, LONG, Duration::ZERO);
    }
    (site, a, b)
}

fn disk(site: &Site) -> SharedDisk {
    site.0.manager.state().shared_disks[0].clone()
}

#[test]
fn a_disk_is_kept_for_the_server_whose_it_is_to_be_for_a_while() {
    let mut site = Site::with(&[("oss1", STORAGE), ("oss2", STORAGE)]);
    site.0.suppose_it_can_tell();
    let (mut a, mut b) = (Server::new(A), Server::new(B));
    assert!(b.say(&site).1, "nobody knows yet that it is another one's");
    a.say(&site);
    assert!(!b.say(&site).1 && a.say(&site).1);
    site.0.suppose_disk_words(A, LONG, LONG);
    assert!(!b.say(&site).1, "it may be about to come");
    site.0.suppose_disk_words(B, Duration::from_secs(16), Duration::ZERO);
    assert!(b.say(&site).1);
    b.take(&site);
    assert!(a.is_refused(&site));
}

#[test]
fn a_server_that_is_silent_is_fenced_before_another_one_has_the_disk() {
    let (site, mut a, mut b) = start();
    site.0.suppose_disk_words(A, LONG, Duration::from_secs(5));
    assert_eq!(b.say(&site).0, DiskState::Used { by: A });
    site.0.suppose_disk_words(A, LONG, Duration::from_secs(7));
    assert_eq!(b.say(&site), (DiskState::Fencing { from: A, by: B }, false));
    assert!(b.is_refused(&site) && a.is_refused(&site));
    let turn = b.word.seen;
    b.word.fenced = Some(turn - 1);
    assert_eq!(b.say(&site).0, DiskState::Fencing { from: A, by: B }, "that was another time");
    b.word.fenced = Some(turn);
    assert_eq!(b.say(&site), (DiskState::Free { next: Some(B) }, true));
    b.take(&site);
    // It is back, and has seen nothing.
    a = Server::new(A);
    assert_eq!(a.say(&site), (DiskState::Used { by: B }, false));
    assert!(a.is_refused(&site));
    site.0.suppose_disk_words(A, Duration::from_secs(59), Duration::ZERO);
    assert_eq!(b.say(&site).0, DiskState::Used { by: B }, "not at once");
    site.0.suppose_disk_words(A, Duration::from_secs(61), Duration::ZERO);
    assert_eq!(b.say(&site).0, DiskState::Leaving { from: B, to: A });
    b.word.is_mounted = false;
    b.say(&site);
    assert!(a.say(&site).1);
    a.take(&site);
    assert_eq!(disk(&site).target, Some(TargetId(7)));
}

#[test]
fn nobody_is_fenced_by_one_that_cannot_or_by_a_manager_that_has_just_begun() {
    let (site, _, mut b) = start();
    b.word.can_fence = false;
    site.0.suppose_disk_words(A, LONG, LONG);
    assert_eq!(b.say(&site).0, DiskState::Used { by: A });
    let confirm = |node| site.ask(FIRST, ManagerRequest::ConfirmFenced { node });
    refused(confirm(B), &["oss2 has no shared disk"]);
    confirm(A).unwrap();
    assert!(b.say(&site).1, "an administrator vouches for it");
    // By a manager that cannot tell who is there.
    let site = Site::with(&[("oss1", STORAGE), ("oss2", STORAGE)]);
    let (mut a, mut b) = (Server::new(A), Server::new(B));
    a.say(&site);
    a.take(&site);
    b.say(&site);
    site.0.suppose_disk_words(A, LONG, LONG);
    assert_eq!(b.say(&site).0, DiskState::Used { by: A });
}

#[test]
fn nobody_vouches_for_a_server_that_is_there() {
    let (site, _, _) = start();
    let confirm = || site.ask(FIRST, ManagerRequest::ConfirmFenced { node: A });
    refused(confirm(), &["oss1 is there", "Stop it"]);
    site.0.suppose_disk_words(A, LONG, Duration::from_secs(7));
    confirm().unwrap();
}

#[test]
fn a_disk_goes_to_another_server_when_it_is_told_to_fails_or_does_not_let_go() {
    let (site, mut a, mut b) = start();
    let move_to = |to| site.ask(FIRST, ManagerRequest::MoveDisk { disk: DISK, to });
    refused(move_to(FIRST), &["has not said that it reaches the disk", "--standby"]);
    move_to(B).unwrap();
    assert_eq!(a.say(&site).0, DiskState::Leaving { from: A, to: B });
    assert!(!b.say(&site).1 && b.is_refused(&site));
    site.0.suppose_turns(Duration::from_secs(61));
    assert_eq!(b.say(&site).0, DiskState::Fencing { from: A, by: B }, "it does not let go of it");
    a.say(&site);
    a.word.is_mounted = false;
    assert_eq!(a.say(&site).0, DiskState::Free { next: Some(B) }, "it does after all");
    assert!(b.say(&site).1 && !a.say(&site).1);
    b.take(&site);
    // The disk fails at the other one: it comes back, and does not go there again by itself.
    b.word.is_failing = true;
    assert_eq!(b.say(&site).0, DiskState::Leaving { from: B, to: A });
    (b.word.is_mounted, b.word.is_failing) = (false, false);
    b.say(&site);
    a.say(&site);
    a.take(&site);
    assert_eq!(disk(&site).failed, Some(B));
    site.0.suppose_disk_words(A, LONG, LONG);
    b.say(&site);
    assert!(matches!(disk(&site).state, DiskState::Fencing { .. }), "better than nothing");
    move_to(B).unwrap();
    assert_eq!(disk(&site).failed, None, "an administrator has seen to it");
}

#[test]
fn a_server_that_cannot_mount_it_leaves_it_to_another_one() {
    let (site, mut a, mut b) = start();
    (a.word.is_mounted, a.word.is_failing) = (false, true);
    assert_eq!(a.say(&site), (DiskState::Free { next: None }, false));
    assert!(b.say(&site).1);
    b.take(&site);
    a.say(&site);
    assert_eq!(b.say(&site).0, DiskState::Used { by: B }, "it is not given back to one that has failed");
    // Nobody else is there: it tries again.
    b.word.is_mounted = false;
    b.say(&site);
    site.0.suppose_disk_words(B, LONG, LONG);
    assert!(a.say(&site).1);
    // Its process was started anew.
    a = Server::new(A);
    a.say(&site);
    assert_eq!(disk(&site).failed, None);
}

#[test]
fn a_node_with_a_shared_disk_stays_and_software_of_before_says_that_the_state_is_newer() {
    let (site, mut a, _) = start();
    refused(site.remove(FIRST, A), &["oss1 has the shared disk 04040404-", "ashlar disk move"]);
    let stored = site.0.manager.state().encode();
    assert!(stored.starts_with(b"ASHLSTAA"));
    let state: ClusterState = site.0.manager.state().clone();
    assert_eq!(ClusterState::decode(&stored).unwrap(), state);
    a.word.is_mounted = false;
    a.say(&site);
    site.remove(FIRST, A).unwrap();
    assert_eq!(disk(&site).servers, [B]);
    site.remove(FIRST, B).unwrap();
    assert!(site.0.manager.state().encode().starts_with(b"ASHLSTA6"));
}

#[test]
fn a_target_on_a_shared_disk_is_not_missing_while_nobody_has_it() {
    let (site, mut a, _) = start();
    let target = TargetId(7);
    let state = |id: TargetId| site.0.map().read().target(id).unwrap().state;
    site.add_target(A);
    let own = TargetId(1);
    site.0
        .manager
        .change(|state| {
            let mut shared = state.map.targets[0].clone();
            (shared.id, shared.uuid) = (target, [7; 16]);
            state.map.targets.push(shared);
            state.last_target = target;
            Ok(())
        })
        .unwrap();
    a.say(&site);
    assert_eq!(disk(&site).target, Some(target));
    // It was started anew, and has mounted nothing yet.
    site.ask(A, ManagerRequest::Serve { targets: Vec::new() }).unwrap();
    assert_eq!((state(own), state(target)), (TargetState::Offline, TargetState::Online));
}
