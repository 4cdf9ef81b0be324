//! Goal: a server that knows a mount only because another one has told of it, with a shard, does not end its session when it hears nothing of it: the mount does not know that it is to be heard there. Once it
//! is there, or has something there, it is one as any other. Method: two production services with what serves them, over simulated disks and with a clock that is set.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_meta::{MetaService, Transferred};
use ashlar_rpc::LastingSessions;
use ashlar_rpc::serve::MetaEndpoint;
use ashlar_rpc::wire::{MetaAnswer, MetaCall};
use ashlar_types::message::{MetaReply, MetaRequest};
use ashlar_types::node::SessionOwner;
use ashlar_types::{
    Credentials, DescriptionId, Epoch, Errno, InodeId, Name, NodeId, OpId, SessionId, ShardId,
};
use std::sync::Arc;
use std::time::Duration;
use support::restarted::{MOUNT, Machine, OTHER, SECOND, ask_as};

/// After that long without a word a session counts as silent.
const SILENCE: Duration = Duration::from_secs(25);
/// That of the root, in which the mount has something.
const SHARD: ShardId = ShardId(0);

type Running = (Arc<MetaService>, Arc<MetaEndpoint>);

struct Pair {
    machines: [Machine; 2],
    first: Running,
    second: Option<Running>,
    session: SessionId,
}

impl Pair {
    /// A mount has a file open at the first server; the second one has never heard of it.
    fn new() -> Pair {
        let machines = Machine::pair();
        let [first, second] = [0, 1].map(|at| machines[at].start_among());
        let MetaAnswer::Session(session, _) = ask_as(MOUNT, &first.1, MetaCall::Open(None)) else {
            panic!("no session")
        };
        let (parent, handle) = (InodeId::ROOT, DescriptionId(1));
        let name = Name::new(b"f").unwrap();
        // Nothing in the log tells of it: it has a name, and is not written.
        let request = MetaRequest::Create {
            parent,
            name,
            mode: 0o644,
            umask: 0,
            exclusive: true,
            read: true,
            write: false,
            truncate: false,
            handle,
        };
        let op = OpId { session, sequence: 2 };
        let call = MetaCall::Call { op, creds: Credentials::root(), slot: Some(0), request };
        let opened = ask_as(MOUNT, &first.1, call);
        assert!(matches!(opened, MetaAnswer::Opened(MetaReply::Opened { .. }, ..)), "{opened:?}");
        Pair { machines, first, second: Some(second), session }
    }

    fn second(&self) -> &Running {
        self.second.as_ref().unwrap()
    }

    /// Has the shard sent; `at_the_end` is asked what the manager says once the second server has nearly everything.
    fn send(&self, at_the_end: impl Fn(&Pair) -> Transferred) {
        self.send_one(SHARD, at_the_end);
    }

    fn send_one(&self, shard: ShardId, at_the_end: impl Fn(&Pair) -> Transferred) {
        let asker = SessionOwner { node: NodeId(99), instance: [9; 16] };
        self.first.0.move_shards(&[shard], SECOND, asker).unwrap();
        self.first.0.carry_out_moves(&|shards, _, to, _| match at_the_end(self) {
            Transferred::Done if !shards.is_empty() => {
                let mut map = (**self.machines[0].map.read()).clone();
                map.epoch = Epoch(map.epoch.0 + 1);
                map.shards
                    .iter_mut()
                    .filter(|shard| shards.contains(&shard.id))
                    .for_each(|shard| shard.primary = to);
                *self.machines[0].map.write() = Arc::new(map);
                Transferred::Done
            }
            told => told,
        });
        self.second().0.tend_shards().unwrap();
    }

    /// The shard does not come: an administrator has it stay.
    fn begin_in_vain(&self) {
        self.send(|pair| {
            assert_eq!(pair.second().1.sessions(), 1, "it comes along");
            pair.first.0.withdraw_moves(&[SHARD]);
            Transferred::NotAsked
        });
        assert!(self.first.0.has_home_of(InodeId::ROOT) && !self.second().0.has_home_of(InodeId::ROOT));
    }

    /// The shard comes, with what the mount has in it.
    fn give(&self) {
        self.send(|_| Transferred::Done);
        assert!(self.second().0.has_home_of(InodeId::ROOT));
    }

    fn restart_second(&mut self) {
        self.machines[1].part();
        let (meta, endpoint) = self.second.take().unwrap();
        meta.prepare_stop();
        meta.stop().unwrap();
        drop((meta, endpoint));
        self.second = Some(self.machines[1].start_among());
    }

    /// The mount is heard of at the first server alone.
    fn be_silent_at_second(&self) {
        for _ in 0..5 {
            self.machines[0].clock.advance(SILENCE / 5);
            let renewed =
                ask_as(MOUNT, &self.first.1, MetaCall::Renew { session: self.session, busy: Vec::new() });
            assert!(matches!(renewed, MetaAnswer::Renewed(_)), "{renewed:?}");
            self.first.1.tidy();
            self.second().1.tidy();
        }
    }

    fn open_at_second(&self) -> MetaAnswer {
        ask_as(MOUNT, &self.second().1, MetaCall::Open(Some(self.session)))
    }
}

#[track_caller]
fn require_session(answer: &MetaAnswer) {
    assert!(matches!(answer, MetaAnswer::Session(..)), "{answer:?}");
}

#[test]
fn one_whose_shard_does_not_come_is_forgotten_and_goes_there_later_as_anywhere() {
    let pair = Pair::new();
    pair.begin_in_vain();
    pair.be_silent_at_second();
    assert_eq!(pair.second().1.sessions(), 0, "nothing is kept of it for ever");
    require_session(&pair.open_at_second());
    assert_eq!(pair.first.1.sessions(), 1);
}

#[test]
fn one_whose_shard_does_not_come_is_waited_for_by_nobody_after_a_start() {
    let mut pair = Pair::new();
    pair.begin_in_vain();
    pair.restart_second();
    assert_eq!(pair.second().1.sessions(), 1, "its answers are kept for a while");
    require_session(&ask_as(OTHER, &pair.second().1, MetaCall::Open(None)));
    pair.be_silent_at_second();
    require_session(&pair.open_at_second());
}

#[test]
fn one_stays_while_its_shard_is_on_its_way_for_long() {
    let pair = Pair::new();
    pair.send(|pair| {
        pair.machines[0].clock.advance(SILENCE);
        pair.second().1.tidy();
        assert_eq!(pair.second().1.sessions(), 1, "what it has comes yet");
        Transferred::Done
    });
    require_session(&pair.open_at_second());
    assert!(pair.second().0.holds()[&pair.session].opens == 1, "it has its file open");
}

#[test]
fn one_that_has_something_in_a_shard_that_has_come_is_waited_for_after_a_start() {
    let mut pair = Pair::new();
    pair.give();
    pair.restart_second();
    let again = pair.open_at_second();
    assert!(matches!(again, MetaAnswer::MustReclaim(_)), "{again:?}");
}

#[test]
fn one_that_has_something_in_a_shard_that_has_come_and_is_silent_is_ended() {
    let pair = Pair::new();
    pair.give();
    pair.machines[0].clock.advance(SILENCE);
    pair.second().1.tidy();
    assert_eq!(pair.second().1.sessions(), 0, "others want what it has");
    let again = pair.open_at_second();
    assert!(matches!(again, MetaAnswer::Failed(Errno::ENOTCONN)), "{again:?}");
}

#[test]
fn one_whose_shard_has_come_late_has_its_time_to_come_as_well() {
    let pair = Pair::new();
    pair.send(|pair| {
        // The manager was away.
        pair.machines[0].clock.advance(SILENCE);
        Transferred::Done
    });
    pair.second().1.tidy();
    require_session(&pair.open_at_second());
    assert!(pair.second().0.holds()[&pair.session].opens == 1, "it has its file open");
}

#[test]
fn one_that_has_something_and_is_silent_is_ended_although_another_shard_is_on_its_way() {
    let pair = Pair::new();
    pair.give();
    pair.send_one(ShardId(1), |pair| {
        pair.machines[0].clock.advance(SILENCE);
        pair.second().1.tidy();
        assert_eq!(pair.second().1.sessions(), 0, "others want what it has");
        pair.first.0.withdraw_moves(&[]);
        Transferred::NotAsked
    });
}

#[test]
fn one_that_has_come_is_waited_for_after_a_start() {
    let mut pair = Pair::new();
    pair.begin_in_vain();
    require_session(&pair.open_at_second());
    pair.restart_second();
    let again = pair.open_at_second();
    assert!(matches!(again, MetaAnswer::MustReclaim(_)), "{again:?}");
}

#[test]
fn one_that_has_come_and_is_silent_is_ended_and_told_so_though_it_has_nothing() {
    let pair = Pair::new();
    pair.begin_in_vain();
    require_session(&pair.open_at_second());
    pair.be_silent_at_second();
    // Storage servers do nothing for it any more: it must not go on with it.
    let again = pair.open_at_second();
    assert!(matches!(again, MetaAnswer::Failed(Errno::ENOTCONN)), "{again:?}");
}
