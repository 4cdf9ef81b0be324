//! Model of a chain: chunks that are overwritten in place, one change at a time, on replicas whose disks may tear a change that a crash
//! interrupts; calls that nobody waits for any more and that are carried out late; any removal at any time (no clock takes part), joins,
//! replicas that come back, power cuts, and reads from any replica.
//!
//! A chunk has two halves, so that there is a half-copied and a half-written one. The content of a half is the list of writes that made it. Properties, in every state:
//! - what a caller was told, by an acknowledgement or a read, is what each replica in sync at the newest epoch has, or the beginning of it,
//! - no two callers know of contents that exclude each other,
//! - no replica that may serve reads has less than a caller knows of. Whether a replica may serve is taken from what [`crate::membership`] shows: not after a
//!   replica has served at a later epoch at which this one is not in sync,
//! - if nothing fails from now on, all that began ends, whoever is admitted gets in sync, and all in sync have the same.
//!
//! `host` has what a storage server does around the machine, step by step; `heal` does it without failures.

mod heal;
mod host;

use crate::explorer::Model;
use crate::network::{Network, Request, Store};
use ashlar_replication::chain::{Begun, ChainReplica, InFront, Whole};
use ashlar_replication::membership::{Change, Content, Proposer, Stored};
use ashlar_types::membership::Membership;
use ashlar_types::{ChunkId, Epoch, InodeId, NodeId};
use std::collections::BTreeSet;
use std::time::Duration;

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A replica takes calls of older epochs as if they were of its own.
    OlderEpochTaken,
    /// A replica takes calls that were given up after it has taken later ones.
    GivenUpTaken,
    /// A chunk is read while it is changed, or was not sent behind.
    ReadUnsettled,
    /// A replica that was removed goes on serving reads.
    ReadWithoutLease,
    /// A replica forgets in a crash which chunks are noted.
    NoteNotDurable,
    /// A change is answered before those behind have answered.
    AnsweredBeforeBehind,
    /// A manager promotes a replica without anybody having asked.
    PromotedUnasked,
    /// A restarted replica goes on at the epoch it stopped in.
    RestartAtSameEpoch,
    /// What others lack is not noted.
    LackNotNoted,
    /// It is noted after the change.
    LackNotedAfter,
    /// A half-copied chunk is taken for whole, and the doubt forgotten.
    DoubtForgotten,
    /// The first piece takes away what the next one brings.
    PieceEmpties,
    /// A replica that has been emptied tells when it was in sync before that.
    InSyncAtTrusted,
    /// A replica that has lost what it had reported goes on as if it had not.
    LossForgotten,
}

/// How it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begins {
    /// All are in sync.
    Together,
    /// All have one write. The first was removed when it had made another one, which nobody else has.
    FirstAway,
    /// All have one write. The last was removed, and only the first of the others knows what it lacks.
    LastAway,
}

/// Bounds of an exploration.
#[derive(Clone, Debug)]
pub struct ChainModel {
    /// Replicas in sync at first.
    pub in_sync: u32,
    /// Replicas that can be admitted.
    pub spare: u32,
    /// Chunks.
    pub chunks: u8,
    /// Writes that callers ask for, all in all.
    pub writes_max: u8,
    /// Changes of the membership.
    pub changes_max: u64,
    /// Crashes; each may tear the change in hand.
    pub crashes_max: u8,
    /// Calls that are given up, and changes that fail at a disk.
    pub failures_max: u8,
    /// Power cuts, each of which may take what was not stored, as under `async` durability.
    pub power_cuts_max: u8,
    /// How it begins.
    pub begins: Begins,
    /// Whether it is tried, in every state in which no chunk is locked, that all comes to its end.
    pub heals: bool,
    /// What is broken on purpose.
    pub broken: Option<Broken>,
}

/// The writes that made a half, in their order.
type Half = Vec<u8>;
type Halves = [Half; 2];

/// Of another replica, as the host notes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Lack {
    replica: NodeId,
    from: Epoch,
    to: Epoch,
    chunks: BTreeSet<ChunkId>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct Disk {
    member: Option<Stored<NodeId>>,
    /// The last epoch at which it stored that it is in sync, if it has had everything since.
    in_sync_at: Option<Epoch>,
    noted: BTreeSet<ChunkId>,
    lacks: Vec<Lack>,
    chunks: Vec<Halves>,
    /// What a power cut leaves of them.
    synced: Vec<Halves>,
}

/// What one waits for that has called another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Answer {
    Awaited,
    Done,
    /// Refused, or lost with the process.
    Not,
}

/// Who wants a change made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Origin {
    Caller,
    /// The replica in front, which may have given up.
    Call {
        from: InFront<NodeId>,
        is_awaited: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum What {
    Write(u8),
    Piece(u8, Half),
    /// What was a piece in front, where the chunk was the same before.
    Part(u8, Half),
    Settled,
    Empty,
}

/// What has a chunk locked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Task {
    Change { origin: Origin, what: What, begun: Begun<NodeId>, is_made: bool, answer: Option<Answer> },
    Settle { whole: Whole<NodeId>, sent: u8, answer: Answer },
}

/// The replica in front finds out what the one behind lacks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Asking {
    Compared { epoch: Epoch, to: NodeId, theirs: BTreeSet<ChunkId>, in_sync_at: Option<Epoch> },
    Emptying { whole: Whole<NodeId>, theirs: BTreeSet<ChunkId>, answer: Answer },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Replica {
    /// `None` while it is down.
    machine: Option<ChainReplica<NodeId>>,
    /// What it wants to be on the disk.
    storing: Option<Stored<NodeId>>,
    disk: Disk,
    /// By chunk.
    tasks: Vec<Option<Task>>,
    asking: Option<Asking>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Call {
    to: NodeId,
    from: InFront<NodeId>,
    /// `None` of one for all.
    chunk: Option<u8>,
    what: What,
    is_awaited: bool,
}

/// See [`ChainModel`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    replicas: Vec<Replica>,
    calls: Network<Call>,
    store: Store,
    asked: u8,
    crashes: u8,
    failures: u8,
    power_cuts: u8,
    /// By half, writes that a disk lost while no other that counts was whole: that loss is allowed.
    lost: [BTreeSet<u8>; 2],
    /// Of each chunk, the most that a caller knows of.
    witnessed: Vec<Halves>,
    /// Epochs at which somebody was answered.
    served: Vec<Epoch>,
    broken: Option<&'static str>,
}

/// What a crash leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// All that was done.
    Plain,
    /// And the first half of the change of this chunk.
    Torn(u8),
    /// And the membership that was to be stored.
    Stored,
    /// Of what was done, only what was stored.
    PowerCut,
}

/// A step.
#[derive(Clone, Debug)]
pub enum Action {
    /// A caller asks a head for a change, which begins.
    Ask(NodeId, u8),
    /// A change is made on the disk, and the one behind is called.
    Make(NodeId, u8),
    /// It fails there, after the first half.
    Fail(NodeId, u8),
    /// A call is carried out, or a change that it is for begins.
    Deliver(usize),
    /// What has a chunk locked goes on when it is done here and behind.
    End(NodeId, u8),
    /// Somebody does not wait for an answer any more.
    GiveUp(NodeId, u8),
    /// The same, of one who has another emptied.
    GiveUpEmptying(NodeId),
    /// A chunk is sent whole.
    Settle(NodeId, u8),
    /// The one behind is asked what it has, and answers.
    Compare(NodeId),
    /// The answer is taken; or that it is empty.
    Compared(NodeId),
    /// Whoever is behind and has everything is to be promoted.
    Promote(NodeId),
    /// All that is on a disk is durable.
    Sync(NodeId),
    /// A caller reads.
    Read(NodeId, u8),
    /// A replica reads the map, maybe an old one.
    Learn(NodeId, usize),
    /// The membership is durable.
    Stored(NodeId),
    /// A manager carries a request out.
    CarryOut(Request),
    /// A replica stops.
    Crash(NodeId, Crash),
    /// It starts again.
    Restart(NodeId),
}

/// Clocks take no part in this model.
const NOW: Duration = Duration::ZERO;

fn id_of(chunk: u8) -> ChunkId {
    ChunkId { inode: InodeId::ROOT, generation: 0, index: chunk.into() }
}

/// Whether `more` has all of `less`, which came before.
fn has(more: &Halves, less: &Halves) -> bool {
    more.iter().zip(less).all(|(more, less)| more.starts_with(less))
}

impl ChainModel {
    /// Two replicas within small bounds.
    pub fn small() -> ChainModel {
        ChainModel {
            in_sync: 2,
            spare: 0,
            chunks: 1,
            writes_max: 2,
            changes_max: 1,
            crashes_max: 1,
            failures_max: 1,
            power_cuts_max: 0,
            begins: Begins::Together,
            heals: true,
            broken: None,
        }
    }

    fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.in_sync + self.spare).map(NodeId)
    }

    fn is_broken(&self, rule: Broken) -> bool {
        self.broken == Some(rule)
    }

    /// A caller learns what `id` has of `chunk`.
    fn witness(&self, state: &mut State, id: NodeId, chunk: u8) {
        let replica = &state.replicas[id.0 as usize];
        let epoch = replica.machine.as_ref().expect("it runs").member().epoch();
        // What is lost already is told by one who was removed.
        let left = |at: usize| {
            let half = &replica.disk.chunks[usize::from(chunk)][at];
            half.iter().take_while(|written| !state.lost[at].contains(written)).copied().collect()
        };
        let content: Halves = [left(0), left(1)];
        let witnessed = &mut state.witnessed[usize::from(chunk)];
        if has(&content, witnessed) {
            *witnessed = content;
        } else if !has(witnessed, &content) {
            state.broken = Some("two callers know of contents that exclude each other");
        }
        if !state.served.contains(&epoch) {
            state.served.push(epoch);
        }
    }

    /// Whether the lease of `replica` may be valid: nobody has served at a later epoch at which it is not in sync.
    fn may_serve(&self, state: &State, replica: &Replica, chunk: u8) -> bool {
        let Some(machine) = &replica.machine else { return false };
        let member = machine.member();
        let excludes = |epoch: &Epoch| {
            let membership = state.store.history().iter().find(|known| known.epoch == *epoch);
            *epoch > member.epoch() && !membership.is_some_and(|known| known.is_in_sync(member.id()))
        };
        let is_leased = !state.served.iter().any(excludes) || self.is_broken(Broken::ReadWithoutLease);
        let is_unlocked = replica.tasks[usize::from(chunk)].is_none();
        let is_certain = is_unlocked && machine.may_read(id_of(chunk), NOW);
        is_leased && member.may_serve(NOW) && (is_certain || self.is_broken(Broken::ReadUnsettled))
    }

    /// When no replica in sync is whole any more, because the last one was lost or went, the loss is one that is allowed.
    fn forgive(&self, state: &mut State) {
        let in_sync = &state.store.current().in_sync;
        let disks: Vec<&Disk> = in_sync.iter().map(|id| &state.replicas[id.0 as usize].disk).collect();
        let is_whole =
            |disk: &&Disk| disk.member.as_ref().is_some_and(|stored| stored.content == Content::Whole);
        if self.power_cuts_max == 0 || disks.iter().any(is_whole) {
            return;
        }
        for (at, lost) in state.lost.iter_mut().enumerate() {
            let has = |disk: &&Disk, id: u8| disk.chunks.iter().any(|halves| halves[at].contains(&id));
            *lost = (0..state.asked).filter(|id| !disks.iter().all(|disk| has(disk, *id))).collect();
        }
        for (chunk, witnessed) in state.witnessed.iter_mut().enumerate() {
            for (at, half) in witnessed.iter_mut().enumerate() {
                let common = |disk: &&Disk| {
                    let theirs = &disk.chunks[chunk][at];
                    half.iter().zip(theirs).take_while(|(a, b)| a == b).count()
                };
                half.truncate(disks.iter().map(common).min().unwrap_or(0));
            }
        }
    }

    /// Changes that may be made at any time: clocks, pauses and partitions make any replica suspect any other.
    fn changes(&self, state: &State, out: &mut Vec<Action>) {
        let current = state.store.current();
        let last = Proposer::Replica(*current.in_sync.last().expect("never empty"));
        let expected = current.epoch;
        let mut ask = |by, change| out.push(Action::CarryOut(Request { expected, by, change }));
        ask(last, Change::Renew);
        for id in current.members().filter(|id| !current.is_alone(*id)) {
            ask(last, Change::Remove(id));
        }
        for id in self.ids().filter(|id| !current.is_member(*id)) {
            ask(Proposer::Operator, Change::Admit(id));
        }
        if self.is_broken(Broken::PromotedUnasked) {
            for &id in &current.catching_up {
                ask(Proposer::Replica(current.primary()), Change::Promote(id));
            }
        }
    }

    fn actions_of(&self, state: &State, id: NodeId, out: &mut Vec<Action>) {
        let replica = &state.replicas[id.0 as usize];
        let Some(machine) = &replica.machine else {
            if replica.disk.member.is_some() {
                out.push(Action::Restart(id));
            } else if state.store.current().is_member(id) {
                out.push(Action::Learn(id, state.store.history().len() - 1));
            }
            return;
        };
        for chunk in 0..self.chunks {
            self.actions_on(state, id, chunk, out);
        }
        if self.asks(state, id) {
            out.push(Action::Compare(id));
        }
        match &replica.asking {
            Some(Asking::Emptying { answer: Answer::Awaited, .. }) => {
                out.extend((state.failures < self.failures_max).then_some(Action::GiveUpEmptying(id)));
            }
            Some(_) => out.push(Action::Compared(id)),
            None => {}
        }
        if machine.has_caught_up().is_some_and(|to| state.replicas[to.0 as usize].machine.is_some()) {
            out.push(Action::Promote(id));
        }
        if self.power_cuts_max > 0 && replica.disk.synced != replica.disk.chunks {
            out.push(Action::Sync(id));
        }
        let is_newer = |at: &usize| state.store.history()[*at].epoch > machine.member().epoch();
        out.extend((0..state.store.history().len()).filter(is_newer).map(|at| Action::Learn(id, at)));
        if replica.storing.is_some() {
            out.push(Action::Stored(id));
        }
        if state.crashes < self.crashes_max {
            out.push(Action::Crash(id, Crash::Plain));
            if replica.storing.is_some() {
                out.push(Action::Crash(id, Crash::Stored));
            }
        }
        if state.power_cuts < self.power_cuts_max {
            out.push(Action::Crash(id, Crash::PowerCut));
        }
    }

    /// What can happen to `chunk` at `id`, which runs.
    fn actions_on(&self, state: &State, id: NodeId, chunk: u8, out: &mut Vec<Action>) {
        let replica = &state.replicas[id.0 as usize];
        let may_fail = state.failures < self.failures_max;
        match &replica.tasks[usize::from(chunk)] {
            None => {
                if state.asked < self.writes_max && self.takes(replica, chunk) {
                    out.push(Action::Ask(id, chunk));
                }
                if self.settles(state, id, chunk) {
                    out.push(Action::Settle(id, chunk));
                }
            }
            Some(Task::Change { is_made: false, what, .. }) => {
                out.push(Action::Make(id, chunk));
                if matches!(what, What::Write(_)) {
                    if may_fail {
                        out.push(Action::Fail(id, chunk));
                    }
                    if state.crashes < self.crashes_max {
                        out.push(Action::Crash(id, Crash::Torn(chunk)));
                    }
                }
            }
            Some(
                Task::Change { answer: Some(Answer::Awaited), .. }
                | Task::Settle { answer: Answer::Awaited, .. },
            ) => {
                if may_fail {
                    out.push(Action::GiveUp(id, chunk));
                }
            }
            Some(_) => {
                out.push(Action::End(id, chunk));
                if may_fail {
                    // The answer is lost.
                    out.push(Action::GiveUp(id, chunk));
                }
            }
        }
        let is_news = replica.disk.chunks[usize::from(chunk)] != state.witnessed[usize::from(chunk)];
        if is_news && self.may_serve(state, replica, chunk) {
            out.push(Action::Read(id, chunk));
        }
    }
}

impl Model for ChainModel {
    type State = State;
    type Action = Action;

    fn initial(&self) -> Vec<State> {
        vec![self.begin()]
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        let calls = state.calls.messages().iter().enumerate();
        out.extend(calls.filter(|(_, call)| self.is_heard(state, call)).map(|(at, _)| Action::Deliver(at)));
        if state.store.current().epoch.0 <= self.changes_max {
            out.extend(state.store.requests().iter().map(|request| Action::CarryOut(*request)));
            self.changes(state, out);
        }
        for id in self.ids() {
            self.actions_of(state, id, out);
        }
    }

    fn apply(&self, state: &mut State, action: &Action) {
        match action {
            Action::Ask(id, chunk) => self.ask(state, *id, *chunk),
            Action::Make(id, chunk) => self.make(state, *id, *chunk),
            Action::Fail(id, chunk) => self.fail(state, *id, *chunk),
            Action::Deliver(at) => self.deliver(state, *at),
            Action::End(id, chunk) => self.end(state, *id, *chunk),
            Action::GiveUp(id, chunk) => {
                state.failures += 1;
                self.give_up(state, *id, Some(*chunk));
                self.answer(state, *id, Some(*chunk), Answer::Not);
                self.end(state, *id, *chunk);
            }
            Action::GiveUpEmptying(id) => {
                state.failures += 1;
                self.give_up_emptying(state, *id);
            }
            Action::Settle(id, chunk) => self.settle(state, *id, *chunk),
            Action::Compare(id) => self.compare(state, *id),
            Action::Compared(id) => self.compared(state, *id),
            Action::Promote(id) => self.promote(state, *id),
            Action::Sync(id) => self.sync(state, *id),
            Action::Read(id, chunk) => self.witness(state, *id, *chunk),
            Action::Learn(id, at) => self.learn(state, *id, *at),
            Action::Stored(id) => self.stored(state, *id),
            Action::CarryOut(request) => {
                state.store.carry_out(request);
                self.forgive(state);
            }
            Action::Crash(id, how) => self.crash(state, *id, *how),
            Action::Restart(id) => self.restart(state, *id),
        }
    }

    fn violation(&self, state: &State) -> Option<String> {
        if let Some(what) = state.broken {
            return Some(what.to_owned());
        }
        let has_witnessed = |replica: &Replica, chunk: u8| {
            let chunk = usize::from(chunk);
            has(&replica.disk.chunks[chunk], &state.witnessed[chunk])
        };
        for chunk in 0..self.chunks {
            for id in &state.store.current().in_sync {
                let replica = &state.replicas[id.0 as usize];
                let knows = |stored: &Stored<NodeId>| stored.content != Content::Whole;
                let has_lost = replica.disk.member.as_ref().is_some_and(knows);
                if !has_lost && !has_witnessed(replica, chunk) {
                    return Some("what a caller knows of is missing on a replica in sync".to_owned());
                }
            }
            let mut serving = state.replicas.iter().filter(|replica| self.may_serve(state, replica, chunk));
            if !serving.all(|replica| has_witnessed(replica, chunk)) {
                return Some("a replica may serve a read of less than a caller knows of".to_owned());
            }
        }
        // What has a chunk locked ends by itself, in states that are looked at, too.
        let is_free = |replica: &Replica| replica.tasks.iter().all(Option::is_none);
        let heals = || {
            let is_tried = self.heals && state.replicas.iter().all(is_free);
            if is_tried { self.does_not_heal(state) } else { None }
        };
        state.store.violation().or_else(heals)
    }

    fn milestones(&self, state: &State, reached: &mut dyn FnMut(&'static str)) {
        let known: BTreeSet<u8> = state.witnessed.iter().flatten().flatten().copied().collect();
        if known.len() == usize::from(state.asked) && state.asked == self.writes_max {
            reached("every write is known to a caller");
            if state.crashes > 0 && state.served.len() > 1 {
                reached("every write is known in spite of a crash and at two epochs");
            }
        }
        if state.witnessed.iter().any(|[first, second]| first != second) {
            reached("a torn write was kept");
        }
        if state.power_cuts > 0 && !known.is_empty() && state.lost.iter().all(BTreeSet::is_empty) {
            reached("a replica has lost what it had reported, and nothing is lost");
        }
        let current = state.store.current();
        let was_in = |id: &NodeId, known: &Membership<NodeId>| known.is_in_sync(*id);
        let is_promoted = |id: &&NodeId| !state.store.history().iter().all(|known| was_in(id, known));
        if current.in_sync.iter().any(|id| is_promoted(&id)) && !known.is_empty() {
            reached("a replica joined and was promoted");
        }
        for replica in &state.replicas {
            match &replica.asking {
                Some(Asking::Emptying { .. }) => reached("one began with nothing"),
                Some(Asking::Compared { to, in_sync_at, .. })
                    if !current.is_in_sync(*to) && replica.disk.covers(*to, *in_sync_at).is_some() =>
                {
                    reached("one came back, and what it lacks was known");
                }
                _ => {}
            }
        }
        if state.calls.messages().iter().any(|call| !call.is_awaited) && !known.is_empty() {
            reached("a call was given up and may be carried out yet");
        }
    }

    fn canonicalize(&self, state: &mut State) {
        state.store.forget_refused();
        if self.is_broken(Broken::OlderEpochTaken) {
            return;
        }
        // A replica refuses what is older than the epoch it has stored, also after a restart.
        let replicas = &state.replicas;
        state.calls.retain(|call| {
            let stored = replicas[call.to.0 as usize].disk.member.as_ref();
            call.is_awaited || stored.is_none_or(|stored| call.from.epoch >= stored.membership.epoch)
        });
    }
}
