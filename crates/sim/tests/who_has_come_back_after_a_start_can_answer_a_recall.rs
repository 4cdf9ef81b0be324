//! Goal: after a start of a metadata server, a mount that does not come back costs another one that does nothing: that is asked for what it has written beside it, can tell that although others are still
//! waited for, and is not ended for silence. Method: the production service and what serves it, with a clock that is set; two mounts write one file, the service is started anew, one of them comes back, and the
//! time of the other passes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_rpc::serve::MetaEndpoint;
use ashlar_rpc::wire::{MetaAnswer, MetaCall};
use ashlar_types::message::{LeaseSet, MetaReply, MetaRequest, Recall, Reclaim, ReclaimedFile, SessionEvent};
use ashlar_types::{Credentials, DescriptionId, InodeId, Name, NodeId, OpId, SessionId};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::restarted::{MOUNT, Machine, OTHER, SERVER, ask_as};

/// More than the service waits for the answer to a recall.
const HEARD_MAX: Duration = Duration::from_secs(10);

/// A mount with a session.
struct Mount<'a> {
    node: NodeId,
    session: SessionId,
    endpoint: &'a MetaEndpoint,
    /// The last event that it has heard.
    seen: AtomicU64,
}

impl Mount<'_> {
    fn open(node: NodeId, endpoint: &MetaEndpoint) -> Mount<'_> {
        let MetaAnswer::Session(session, _) = ask_as(node, endpoint, MetaCall::Open(None)) else {
            panic!("no session")
        };
        Mount { node, session, endpoint, seen: AtomicU64::new(0) }
    }

    fn ask(&self, request: MetaRequest<'_>) -> MetaAnswer {
        let op = OpId { session: self.session, sequence: 2 };
        let call = MetaCall::Call { op, creds: Credentials::root(), slot: None, request };
        ask_as(self.node, self.endpoint, call)
    }

    /// What it is asked for next, if there is anything.
    fn next_recall(&self) -> Option<Recall> {
        let call = MetaCall::Events { session: self.session, seen: self.seen.load(SeqCst) };
        let asked = ask_as(self.node, self.endpoint, call);
        let MetaAnswer::Events(events) = asked else { panic!("{asked:?}") };
        for (number, event) in events {
            self.seen.store(number, SeqCst);
            if let SessionEvent::Recall(recall) = event {
                return Some(recall);
            }
        }
        None
    }

    /// The same, which comes within [`HEARD_MAX`].
    fn recall(&self) -> Recall {
        let begun = Instant::now();
        loop {
            if let Some(recall) = self.next_recall() {
                return recall;
            }
            assert!(begun.elapsed() < HEARD_MAX, "nothing is recalled");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn give_back(&self, recall: &Recall) {
        let answer = self.ask(MetaRequest::RecallDone { inode: recall.inode, id: recall.id });
        assert!(matches!(answer, MetaAnswer::Reply(MetaReply::Done)), "{answer:?}");
    }
}

/// A file in chunks that `first` writes.
fn written_by(first: &Mount<'_>) -> InodeId {
    let (parent, name, handle) = (InodeId::ROOT, Name::new(b"f").unwrap(), DescriptionId(1));
    let (mode, umask) = (0o644, 0);
    let (exclusive, read, write, truncate) = (true, true, true, false);
    let create = MetaRequest::Create { parent, name, mode, umask, exclusive, read, write, truncate, handle };
    let answer = first.ask(create);
    let MetaAnswer::Opened(MetaReply::Opened { open, .. }, ..) = answer else { panic!("{answer:?}") };
    let inode = open.attr.inode;
    first.ask(MetaRequest::ProposeLayout { inode });
    first.ask(MetaRequest::AcquireData { inode, write: true, is_writeback: false });
    inode
}

/// What `who` is answered while all give back what is asked of them.
fn ask_of_all(who: &Mount<'_>, all: [&Mount<'_>; 2], request: MetaRequest<'_>) -> MetaAnswer {
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| who.ask(request));
        while !asked.is_finished() {
            for mount in all {
                mount.next_recall().iter().for_each(|recall| mount.give_back(recall));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let answer = asked.join().unwrap();
        assert!(!matches!(answer, MetaAnswer::Failed(_)), "{answer:?}");
        answer
    })
}

#[test]
fn who_has_come_back_after_a_start_can_answer_a_recall() {
    let machine = Machine::new();
    let (meta, endpoint) = machine.start();
    let (first, second) = (Mount::open(MOUNT, &endpoint), Mount::open(OTHER, &endpoint));
    let inode = written_by(&first);
    let (all, handle) = ([&first, &second], DescriptionId(1));
    let open = MetaRequest::Open { inode, read: true, write: true, truncate: false, handle };
    let answer = ask_of_all(&second, all, open);
    let MetaAnswer::Opened(_, proof, _) = answer else { panic!("{answer:?}") };
    // Both are writers then.
    ask_of_all(&second, all, MetaRequest::AcquireShared { inode });
    ask_of_all(&first, all, MetaRequest::AcquireShared { inode });
    let session = second.session;
    meta.prepare_stop();
    meta.stop().unwrap();
    drop((meta, endpoint));

    let (_meta, endpoint) = machine.start();
    let second = Mount { node: OTHER, session, endpoint: &endpoint, seen: AtomicU64::new(0) };
    let answer = ask_as(OTHER, &endpoint, MetaCall::Open(Some(session)));
    let MetaAnswer::MustReclaim(incarnation) = answer else { panic!("{answer:?}") };
    let file = ReclaimedFile {
        inode,
        handles: vec![(DescriptionId(1), true)],
        leases: LeaseSet::SHARE,
        proof: Some(proof),
    };
    for part in [Reclaim::Files(vec![file]), Reclaim::Done] {
        let answer = second.ask(MetaRequest::Reclaim { server: SERVER, incarnation, part });
        assert!(matches!(answer, MetaAnswer::Reply(_)), "{answer:?}");
    }
    assert!(matches!(second.ask(MetaRequest::Getattr { inode }), MetaAnswer::Later), "the other is awaited");
    machine.clock.advance(Duration::from_secs(25));
    ask_as(OTHER, &endpoint, MetaCall::Renew { session, busy: Vec::new() });
    std::thread::scope(|scope| {
        let tidy = scope.spawn(|| endpoint.tidy());
        let recall = second.recall();
        assert!(recall.leases.has(LeaseSet::SHARE), "{recall:?}");
        let report = MetaRequest::CommitWrite {
            inode,
            generation: None,
            size_at_least: 7,
            blocks_delta: 8,
            mtime: None,
            atime: None,
            kill_set_id: false,
            keeps_capability: false,
            done: true,
        };
        let reported = second.ask(report);
        let given_back = second.ask(MetaRequest::RecallDone { inode, id: recall.id });
        while !tidy.is_finished() {
            std::thread::sleep(Duration::from_millis(5));
            machine.clock.advance(Duration::from_secs(1));
        }
        assert!(!matches!(reported, MetaAnswer::Later | MetaAnswer::Failed(_)), "{reported:?}");
        assert!(matches!(given_back, MetaAnswer::Reply(MetaReply::Done)), "{given_back:?}");
    });
    assert_eq!(endpoint.sessions(), 1, "only the other has ended");
    let answer = second.ask(MetaRequest::Getattr { inode });
    let MetaAnswer::Reply(MetaReply::Attr { attr, .. }) = answer else { panic!("{answer:?}") };
    assert_eq!(attr.size, 7);
}
