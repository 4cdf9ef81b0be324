//! Goal: a directory whose new directories are pinned to a shard of a server that does not answer holds up nobody else who makes something in it, and one whose new directories are pinned is not
//! split by itself. Method: two services, the way to the second of which hangs for as long as the test wants.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_rpc::MetaPeers;
use ashlar_types::message::{MetaReply, MetaRequest};
use ashlar_types::{DirectoryChoice, Errno, InodeId, LayoutPolicy, Name, NodeId, SessionId, ShardId};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use support::{Hanging, Nowhere, PART_BYTES_MIN, Server, wait_until};

const SERVERS: [NodeId; 2] = [NodeId(1), NodeId(2)];

/// A way that does not answer the first part of a transaction in time, and hangs altogether from then on.
#[derive(Default)]
struct Way {
    way: Hanging,
    hangs: Mutex<bool>,
    goes_on: Condvar,
    /// Parts that were not answered, and messages that hang.
    unanswered: AtomicUsize,
    hanging: AtomicUsize,
}

impl MetaPeers for Way {
    fn ask(&self, to: NodeId, message: &[u8], is_urgent: bool, wait: Duration) -> Result<Vec<u8>, Errno> {
        let mut hangs = self.hangs.lock();
        if *hangs && message.len() >= PART_BYTES_MIN && self.unanswered.fetch_add(1, SeqCst) == 0 {
            drop(hangs);
            // Long enough to count as not answering.
            std::thread::sleep(Duration::from_millis(1500));
            return Err(Errno::EHOSTDOWN);
        }
        self.hanging.fetch_add(usize::from(*hangs), SeqCst);
        self.goes_on.wait_while(&mut hangs, |hangs| *hangs);
        drop(hangs);
        self.way.ask(to, message, is_urgent, wait)
    }
}

/// It goes on when this ends.
struct GoesOn<'a>(&'a Way);

impl Drop for GoesOn<'_> {
    fn drop(&mut self) {
        *self.0.hangs.lock() = false;
        self.0.goes_on.notify_all();
    }
}

fn servers() -> (Arc<Way>, Server, Server) {
    let way = Arc::new(Way::default());
    let first = Server::start_as(NodeId(1), &SERVERS, way.clone());
    let second = Server::start_as(NodeId(2), &SERVERS, Arc::new(Nowhere));
    *way.way.other.lock() = Some(second.meta.clone());
    (way, first, second)
}

/// A directory at the first server, which has the even shards.
fn directory(server: &Server, session: SessionId, name: &str) -> InodeId {
    let mut made = (0..4).map(|at| server.mkdir(session, &format!("{name}{at}")).unwrap());
    made.find(|directory| directory.home().0 % 2 == 0).unwrap()
}

fn choose(server: &Server, session: SessionId, inode: InodeId, choice: DirectoryChoice) {
    let policy = LayoutPolicy { directories: Some(choice), ..LayoutPolicy::default() };
    assert_eq!(server.call(session, &MetaRequest::LayoutSet { inode, policy }), Ok(MetaReply::Done));
}

fn symlink(server: &Server, session: SessionId, parent: InodeId, name: &str) {
    let name = Name::new(name.as_bytes()).unwrap();
    let made = server.call(session, &MetaRequest::Symlink { parent, name, target: b"to" });
    assert!(matches!(made, Ok(MetaReply::Attr { .. })), "{made:?}");
}

/// Each try to make one held the parent for as long as it waited.
#[test]
fn who_makes_something_else_in_the_parent_does_not_wait_for_the_server_of_a_pin() {
    let (way, first, _second) = servers();
    let session = first.open(2);
    let parent = directory(&first, session, "parent");
    choose(&first, session, parent, DirectoryChoice::Pinned(ShardId(1)));
    // Numbers for more of them are in stock from now on.
    assert_eq!(first.mkdir_in(session, parent, "before").unwrap().home(), ShardId(1));
    *way.hangs.lock() = true;
    std::thread::scope(|threads| {
        let goes_on = GoesOn(&way);
        let waits = threads.spawn(|| first.mkdir_in(session, parent, "waits"));
        // It is tried once more, beside the message that the first try has come to nothing.
        wait_until("it waits for the server", || way.hanging.load(SeqCst) > 1);
        let others = threads.spawn(|| {
            (0..20).for_each(|at| symlink(&first, session, parent, &format!("link{at}")));
        });
        wait_until("others go on", || others.is_finished());
        others.join().unwrap();
        assert!(!waits.is_finished(), "it is to be where it was pinned to");
        drop(goes_on);
        assert_eq!(waits.join().unwrap().unwrap().home(), ShardId(1));
    });
}

#[test]
fn a_directory_whose_new_ones_are_pinned_is_not_split_by_itself() {
    let (_way, first, _second) = servers();
    let session = first.open(2);
    first.meta.split_in_steps(0, 1);
    first.meta.start_splitter(10).unwrap();
    let [pinned, other] = ["pinned", "other"].map(|name| directory(&first, session, name));
    choose(&first, session, pinned, DirectoryChoice::Pinned(ShardId(0)));
    // The first one grows first.
    for directory in [pinned, other] {
        (0..20).for_each(|at| symlink(&first, session, directory, &format!("link{at}")));
    }
    let ended = || first.meta.measures().splits.ended;
    wait_until("the other one is split", || ended() == 1);
    // A split ends sessions that do not answer its recalls, as those here.
    let slices = |number, directory| match first.call(first.open(number), &MetaRequest::Slices { directory })
    {
        Ok(MetaReply::Slices(split)) => split.slices.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!((slices(3, pinned), slices(4, other)), (0, 2));
    // That was why.
    let session = first.open(5);
    choose(&first, session, pinned, DirectoryChoice::RoundRobin);
    symlink(&first, session, pinned, "one more");
    wait_until("it is split as well", || ended() == 2);
    assert_eq!(slices(6, pinned), 2);
}
