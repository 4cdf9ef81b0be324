//! What a storage server does around the machine of a chain. What may come between two of its steps is a step of its own; what makes no difference is in one: to begin a
//! change and to note it, to make it and to call the next one, to end it and to answer, a read (the chunk is locked against changes meanwhile).

use super::{
    Answer, Asking, Begins, Broken, Call, ChainModel, Crash, Disk, Lack, NOW, Origin, Replica, State, Task,
    What, id_of,
};
use crate::network::{Network, Request, Store};
use ashlar_replication::chain::{ChainReplica, Command, InFront, Outcome, Whole};
use ashlar_replication::membership::{self, Change, Content, LeaseTerms, Proposer, Stored};
use ashlar_types::membership::Membership;
use ashlar_types::{ChunkId, Epoch, NodeId};
use std::collections::BTreeSet;

impl Disk {
    /// What `replica` lacks, if that is known of one who was in sync at `in_sync_at`.
    pub fn covers(&self, replica: NodeId, in_sync_at: Option<Epoch>) -> Option<&BTreeSet<ChunkId>> {
        let lack = self.lacks.iter().find(|lack| lack.replica == replica)?;
        in_sync_at.is_some_and(|at| (lack.from..=lack.to).contains(&at)).then_some(&lack.chunks)
    }

    fn note_lack(&mut self, chunk: ChunkId) {
        self.lacks.iter_mut().for_each(|lack| {
            lack.chunks.insert(chunk);
        });
    }

    /// Makes a change; of a write maybe the first half only.
    fn make(&mut self, chunk: u8, what: &What, is_torn: bool, empties: bool) {
        let halves = &mut self.chunks[usize::from(chunk)];
        match what {
            What::Write(id) => {
                halves.iter_mut().take(if is_torn { 1 } else { 2 }).for_each(|half| half.push(*id))
            }
            What::Piece(at, half) => {
                if *at == 0 && empties {
                    halves[1].clear();
                }
                halves[usize::from(*at)].clone_from(half);
            }
            What::Part(at, half) => halves[usize::from(*at)].clone_from(half),
            What::Settled | What::Empty => {}
        }
    }
}

impl ChainModel {
    /// The first state.
    pub(super) fn begin(&self) -> State {
        let chunks = vec![<[Vec<u8>; 2]>::default(); usize::from(self.chunks)];
        let replica = Replica {
            machine: None,
            storing: None,
            disk: Disk { chunks: chunks.clone(), synced: chunks.clone(), ..Disk::default() },
            tasks: vec![None; usize::from(self.chunks)],
            asking: None,
        };
        let mut state = State {
            replicas: self.ids().map(|_| replica.clone()).collect(),
            calls: Network::default(),
            store: Store::new(Membership::new(Epoch(1), (0..self.in_sync).map(NodeId))),
            asked: 0,
            crashes: 0,
            failures: 0,
            power_cuts: 0,
            lost: Default::default(),
            witnessed: chunks,
            served: Vec::new(),
            broken: None,
        };
        for id in self.ids().take(self.in_sync as usize) {
            self.learn(&mut state, id, 0);
            self.stored(&mut state, id);
        }
        let (by, away) = match self.begins {
            Begins::Together => return state,
            Begins::FirstAway => (NodeId(1), NodeId(0)),
            Begins::LastAway => (NodeId(0), NodeId(self.in_sync - 1)),
        };
        // A caller knows of one write, which all have.
        state.asked = 1;
        let written = [vec![0], vec![0]];
        state.witnessed[0].clone_from(&written);
        for replica in state.replicas.iter_mut().take(self.in_sync as usize) {
            replica.disk.chunks[0].clone_from(&written);
            replica.disk.synced[0].clone_from(&written);
        }
        if self.begins == Begins::FirstAway {
            state.asked = 2;
            let replica = &mut state.replicas[away.0 as usize];
            replica.disk.make(0, &What::Write(1), false, false);
            replica.disk.noted.insert(id_of(0));
        }
        // The one that is removed hears of it when it starts again.
        state.replicas[away.0 as usize].machine = None;
        let (by, change) = (Proposer::Replica(by), Change::Remove(away));
        state.store.carry_out(&Request { expected: Epoch(1), by, change });
        for id in self.ids().take(self.in_sync as usize).filter(|id| *id != away) {
            self.learn(&mut state, id, 1);
            self.stored(&mut state, id);
        }
        if self.begins == Begins::LastAway {
            state.replicas.iter_mut().skip(1).for_each(|replica| replica.disk.lacks.clear());
        }
        state
    }

    /// Carries out what the machine of `id` wants.
    pub(super) fn run(&self, state: &mut State, id: NodeId, commands: Vec<Command<NodeId>>) {
        let replica = &mut state.replicas[id.0 as usize];
        for command in commands {
            match command {
                Command::Member(membership::Command::Store(stored)) => replica.storing = Some(stored),
                Command::Member(membership::Command::Propose { expected, change }) => {
                    state.store.ask(Request { expected, by: Proposer::Replica(id), change });
                }
                Command::Member(_) => {}
                Command::Lacks { replica: other, from, to, chunks } => {
                    let chunks = chunks.into_iter().collect();
                    replica.disk.lacks.retain(|lack| lack.replica != other);
                    replica.disk.lacks.push(Lack { replica: other, from, to, chunks });
                    replica.disk.lacks.sort();
                }
            }
        }
    }

    pub(super) fn learn(&self, state: &mut State, id: NodeId, at: usize) {
        let membership = state.store.history()[at].clone();
        let mut out = Vec::new();
        let machine = &mut state.replicas[id.0 as usize].machine;
        match machine {
            Some(machine) => machine.learn(&membership, NOW, &mut out),
            None => *machine = Some(ChainReplica::join(id, LeaseTerms::DEFAULT, membership, NOW, &mut out)),
        }
        self.run(state, id, out);
    }

    /// What was to be stored is durable, and when it was in sync with it.
    fn store(replica: &mut Replica, id: NodeId) -> Option<Epoch> {
        let stored = replica.storing.take()?;
        let epoch = stored.membership.epoch;
        if stored.membership.is_in_sync(id) && stored.content == Content::Whole {
            replica.disk.in_sync_at = Some(epoch);
        }
        replica.disk.member = Some(stored);
        Some(epoch)
    }

    pub(super) fn stored(&self, state: &mut State, id: NodeId) {
        self.give_up(state, id, None);
        let replica = &mut state.replicas[id.0 as usize];
        replica.asking = None;
        let Some(epoch) = Self::store(replica, id) else { return };
        let machine = replica.machine.as_mut().expect("it runs");
        let mut out = Vec::new();
        machine.membership_stored(epoch, &mut out);
        let membership = machine.member().membership().clone();
        // Leases are the model's own: see `may_serve`.
        for peer in membership.members().filter(|peer| *peer != id) {
            machine.member_mut().granted::<Command<NodeId>>(peer, epoch, NOW, &mut Vec::new());
        }
        self.run(state, id, out);
        let is_in_sync = membership.is_in_sync(id);
        let lacks = &mut state.replicas[id.0 as usize].disk.lacks;
        lacks.retain(|lack| is_in_sync && !membership.is_in_sync(lack.replica));
    }

    /// Whether a caller's change of `chunk` would begin.
    pub(super) fn takes(&self, replica: &Replica, chunk: u8) -> bool {
        let machine = replica.machine.as_ref().filter(|machine| machine.member().is_primary());
        machine.is_some_and(|machine| machine.clone().begin(id_of(chunk), None, &mut Vec::new()).is_ok())
    }

    pub(super) fn ask(&self, state: &mut State, id: NodeId, chunk: u8) {
        let what = What::Write(state.asked);
        state.asked += 1;
        self.begin_change(state, id, chunk, (what, None), Origin::Caller);
    }

    /// Begins a change, which is noted.
    fn begin_change(
        &self,
        state: &mut State,
        id: NodeId,
        chunk: u8,
        (what, from): (What, Option<InFront<NodeId>>),
        origin: Origin,
    ) -> bool {
        let replica = &mut state.replicas[id.0 as usize];
        let machine = replica.machine.as_mut().expect("it runs");
        let mut out = Vec::new();
        let is_piece = matches!(what, What::Piece(..));
        let begun = match from.filter(|_| is_piece) {
            Some(from) => machine.begin_piece(id_of(chunk), from, &mut out),
            None => machine.begin(id_of(chunk), from, &mut out),
        };
        if let Ok(begun) = begun {
            replica.disk.noted.insert(id_of(chunk));
            if !self.is_broken(Broken::LackNotNoted) && !self.is_broken(Broken::LackNotedAfter) {
                replica.disk.note_lack(id_of(chunk));
            }
            replica.tasks[usize::from(chunk)] =
                Some(Task::Change { origin, what, begun, is_made: false, answer: None });
        }
        self.run(state, id, out);
        begun.is_ok()
    }

    pub(super) fn make(&self, state: &mut State, id: NodeId, chunk: u8) {
        let Replica { disk, tasks, .. } = &mut state.replicas[id.0 as usize];
        let Some(Task::Change { what, begun, is_made, answer, .. }) = &mut tasks[usize::from(chunk)] else {
            unreachable!("only of those that have one");
        };
        disk.make(chunk, what, false, self.is_broken(Broken::PieceEmpties));
        *is_made = true;
        let Some(to) = begun.on else { return };
        let from = InFront { id, epoch: begun.epoch, turn: begun.turn };
        let is_awaited = !self.is_broken(Broken::AnsweredBeforeBehind);
        *answer = Some(if is_awaited { Answer::Awaited } else { Answer::Done });
        // What is a piece here is a change behind, where the chunk is as it was here.
        let what = match what.clone() {
            What::Piece(at, half) => What::Part(at, half),
            what => what,
        };
        state.calls.send(Call { to, from, chunk: Some(chunk), what, is_awaited });
    }

    pub(super) fn fail(&self, state: &mut State, id: NodeId, chunk: u8) {
        state.failures += 1;
        let Replica { disk, tasks, .. } = &mut state.replicas[id.0 as usize];
        let Some(Task::Change { what, .. }) = &tasks[usize::from(chunk)] else {
            unreachable!("only of those that have one");
        };
        disk.make(chunk, what, true, false);
        self.end(state, id, chunk);
    }

    /// Whether a call can be carried out now: the chunk is not locked.
    pub(super) fn is_heard(&self, state: &State, call: &Call) -> bool {
        let Replica { machine, tasks, .. } = &state.replicas[call.to.0 as usize];
        let is_free = match call.chunk {
            Some(chunk) => tasks[usize::from(chunk)].is_none(),
            None => tasks.iter().all(Option::is_none),
        };
        machine.is_some() && is_free
    }

    pub(super) fn deliver(&self, state: &mut State, at: usize) {
        let Call { to, mut from, chunk, what, is_awaited } = state.calls.take(at);
        let replica = &mut state.replicas[to.0 as usize];
        let machine = replica.machine.as_mut().expect("it is heard");
        if self.is_broken(Broken::OlderEpochTaken) {
            from.epoch = machine.member().epoch();
        }
        if self.is_broken(Broken::GivenUpTaken) && matches!(what, What::Write(_)) {
            from.turn = u64::MAX;
        }
        let mut out = Vec::new();
        let is_done = match (&what, chunk) {
            (What::Settled, Some(chunk)) => {
                let is_settled = machine.settled_in_front(id_of(chunk), from, &mut out);
                if !machine.is_noted(id_of(chunk)) {
                    replica.disk.noted.remove(&id_of(chunk));
                }
                is_settled
            }
            (What::Empty, _) => {
                let is_for_here = machine.empties_here(from, &mut out);
                if is_for_here {
                    if !self.is_broken(Broken::InSyncAtTrusted) {
                        // ORDER: first.
                        replica.disk.in_sync_at = None;
                    }
                    replica.disk.chunks.iter_mut().flatten().for_each(Vec::clear);
                }
                is_for_here
            }
            (_, Some(chunk)) => {
                let origin = Origin::Call { from, is_awaited };
                if self.begin_change(state, to, chunk, (what, Some(from)), origin) {
                    return;
                }
                false
            }
            (_, None) => unreachable!("changes are of one chunk"),
        };
        self.run(state, to, out);
        if is_awaited {
            self.answer(state, from.id, chunk, if is_done { Answer::Done } else { Answer::Not });
        }
    }

    /// `id`, which waits for it, is answered.
    pub(super) fn answer(&self, state: &mut State, id: NodeId, chunk: Option<u8>, with: Answer) {
        let Replica { tasks, asking, .. } = &mut state.replicas[id.0 as usize];
        match chunk.map(|chunk| &mut tasks[usize::from(chunk)]) {
            Some(Some(Task::Change { answer: Some(answer), .. } | Task::Settle { answer, .. })) => {
                *answer = with
            }
            None => {
                if let Some(Asking::Emptying { answer, .. }) = asking {
                    *answer = with;
                }
            }
            _ => {}
        }
    }

    /// `id` does not wait any more for an answer about `chunk`; what it has called may be carried out all the same.
    pub(super) fn give_up(&self, state: &mut State, id: NodeId, chunk: Option<u8>) {
        let calls = state.calls.messages().iter();
        let is_its = |call: &&Call| call.from.id == id && call.chunk == chunk && call.is_awaited;
        if let Some(call) = calls.clone().find(is_its).cloned() {
            state.calls.retain(|other| *other != call);
            state.calls.send(Call { is_awaited: false, ..call });
        }
        let Some(chunk) = chunk else { return };
        for replica in &mut state.replicas {
            if let Some(Task::Change { origin: Origin::Call { from, is_awaited }, .. }) =
                &mut replica.tasks[usize::from(chunk)]
            {
                *is_awaited &= from.id != id;
            }
        }
    }

    pub(super) fn end(&self, state: &mut State, id: NodeId, chunk: u8) {
        let replica = &mut state.replicas[id.0 as usize];
        let task = replica.tasks[usize::from(chunk)].take().expect("only of those that have one");
        let machine = replica.machine.as_mut().expect("it runs");
        match task {
            Task::Change { origin, what, begun, is_made, answer } => {
                let outcome = match answer {
                    _ if !is_made => Outcome::Failed,
                    None | Some(Answer::Done) => Outcome::Made,
                    Some(Answer::Not | Answer::Awaited) => Outcome::NotBehind,
                };
                let may_answer = machine.end(id_of(chunk), begun, outcome);
                if let (Some(Broken::DoubtForgotten), What::Piece(..), Origin::Call { from, .. }) =
                    (self.broken, &what, origin)
                {
                    machine.settled_in_front(id_of(chunk), from, &mut Vec::new());
                }
                if !machine.is_noted(id_of(chunk)) {
                    replica.disk.noted.remove(&id_of(chunk));
                }
                if self.is_broken(Broken::LackNotedAfter) {
                    replica.disk.note_lack(id_of(chunk));
                }
                match origin {
                    Origin::Caller if may_answer => self.witness(state, id, chunk),
                    Origin::Call { from, is_awaited: true } => {
                        let with = if may_answer { Answer::Done } else { Answer::Not };
                        self.answer(state, from.id, Some(chunk), with);
                    }
                    _ => {}
                }
            }
            Task::Settle { whole, sent: 2, answer: Answer::Done } => {
                machine.settled(id_of(chunk), whole.epoch);
                if !machine.is_noted(id_of(chunk)) {
                    replica.disk.noted.remove(&id_of(chunk));
                }
            }
            Task::Settle { whole, sent, answer: Answer::Done } => {
                self.send_piece(state, id, chunk, whole, sent + 1);
            }
            Task::Settle { whole, .. } => machine.gave_up(whole),
        }
    }

    /// Whether `chunk` is to be sent whole, to somebody who takes it. Who would refuse is not asked: he would be again and again.
    pub(super) fn settles(&self, state: &State, id: NodeId, chunk: u8) -> bool {
        let machine = state.replicas[id.0 as usize].machine.as_ref();
        let Some(whole) = machine.and_then(|machine| machine.clone().settles(id_of(chunk))) else {
            return false;
        };
        let to = &state.replicas[whole.to.0 as usize];
        let Some(mut probe) = to.machine.clone() else { return false };
        if to.tasks[usize::from(chunk)].is_some() {
            return true;
        }
        // One that can send it on itself does that first.
        if probe.is_noted(id_of(chunk)) && probe.settles(id_of(chunk)).is_some() {
            return false;
        }
        let from = InFront { id, epoch: whole.epoch, turn: whole.turn };
        probe.begin_piece(id_of(chunk), from, &mut Vec::new()).is_ok()
    }

    pub(super) fn settle(&self, state: &mut State, id: NodeId, chunk: u8) {
        let machine = state.replicas[id.0 as usize].machine.as_mut().expect("it runs");
        let whole = machine.settles(id_of(chunk)).expect("only what is to be sent");
        self.send_piece(state, id, chunk, whole, 0);
    }

    fn send_piece(&self, state: &mut State, id: NodeId, chunk: u8, whole: Whole<NodeId>, sent: u8) {
        let Replica { disk, tasks, .. } = &mut state.replicas[id.0 as usize];
        let half = disk.chunks[usize::from(chunk)].get(usize::from(sent));
        let what = half.map_or(What::Settled, |half| What::Piece(sent, half.clone()));
        tasks[usize::from(chunk)] = Some(Task::Settle { whole, sent, answer: Answer::Awaited });
        let from = InFront { id, epoch: whole.epoch, turn: whole.turn };
        state.calls.send(Call { to: whole.to, from, chunk: Some(chunk), what, is_awaited: true });
    }

    /// Whether the one behind is to be asked what it has, and takes part at the same epoch.
    pub(super) fn asks(&self, state: &State, id: NodeId) -> bool {
        let Replica { machine, asking, .. } = &state.replicas[id.0 as usize];
        let Some((machine, (to, _))) =
            machine.as_ref().and_then(|machine| Some((machine, machine.to_compare()?)))
        else {
            return false;
        };
        asking.is_none()
            && state.replicas[to.0 as usize].machine.as_ref().is_some_and(|other| {
                other.member().admits::<Command<NodeId>>(machine.member().epoch(), &mut Vec::new())
                    && other.predecessor() == Some(id)
            })
    }

    pub(super) fn compare(&self, state: &mut State, id: NodeId) {
        let machine = state.replicas[id.0 as usize].machine.as_ref().expect("it runs");
        let (to, _) = machine.to_compare().expect("only of those that are to");
        let epoch = machine.member().epoch();
        let Replica { machine: other, disk, .. } = &state.replicas[to.0 as usize];
        let mut theirs = other.as_ref().expect("it answers").uncertain();
        theirs.extend(&disk.noted);
        let in_sync_at = disk.in_sync_at;
        state.replicas[id.0 as usize].asking = Some(Asking::Compared { epoch, to, theirs, in_sync_at });
    }

    pub(super) fn compared(&self, state: &mut State, id: NodeId) {
        let Replica { machine, disk, asking, .. } = &mut state.replicas[id.0 as usize];
        let machine = machine.as_mut().expect("it runs");
        match asking.take().expect("only of those that ask") {
            Asking::Compared { epoch, to, theirs, in_sync_at } => {
                let lacks = match machine.to_compare() {
                    Some((behind, true)) if behind == to => Some(BTreeSet::new()),
                    _ => disk.covers(to, in_sync_at).cloned(),
                };
                if let Some(lacks) = lacks {
                    machine.compared(epoch, theirs.into_iter().chain(lacks));
                } else if let Some(whole) = machine.empties() {
                    *asking = Some(Asking::Emptying { whole, theirs, answer: Answer::Awaited });
                    let from = InFront { id, epoch: whole.epoch, turn: whole.turn };
                    state.calls.send(Call {
                        to: whole.to,
                        from,
                        chunk: None,
                        what: What::Empty,
                        is_awaited: true,
                    });
                }
            }
            Asking::Emptying { whole, theirs, answer: Answer::Done } => {
                let all =
                    (0..self.chunks).filter(|chunk| !disk.chunks[usize::from(*chunk)].concat().is_empty());
                machine.compared(whole.epoch, all.map(id_of).chain(theirs));
            }
            Asking::Emptying { whole, .. } => machine.gave_up(whole),
        }
    }

    /// Whoever has another emptied does not wait any more.
    pub(super) fn give_up_emptying(&self, state: &mut State, id: NodeId) {
        self.give_up(state, id, None);
        self.answer(state, id, None, Answer::Not);
        self.compared(state, id);
    }

    /// A step towards it.
    pub(super) fn promote(&self, state: &mut State, id: NodeId) {
        let machine = state.replicas[id.0 as usize].machine.as_mut().expect("it runs");
        let to = machine.has_caught_up().expect("only of those that have");
        let mut out = Vec::new();
        if machine.is_behind_required() {
            machine.promote(to, machine.member().epoch(), &mut out);
        } else {
            machine.require(to);
        }
        self.sync(state, to);
        self.run(state, id, out);
    }

    pub(super) fn sync(&self, state: &mut State, id: NodeId) {
        if self.power_cuts_max > 0 {
            let disk = &mut state.replicas[id.0 as usize].disk;
            disk.synced.clone_from(&disk.chunks);
        }
    }

    pub(super) fn crash(&self, state: &mut State, id: NodeId, how: Crash) {
        let replica = &mut state.replicas[id.0 as usize];
        match how {
            Crash::Plain => {}
            Crash::Torn(chunk) => {
                if let Some(Task::Change { what, .. }) = &replica.tasks[usize::from(chunk)] {
                    replica.disk.make(chunk, what, true, false);
                }
            }
            Crash::Stored => drop(Self::store(replica, id)),
            Crash::PowerCut => {
                let disk = &mut replica.disk;
                disk.chunks.clone_from(&disk.synced);
                if !self.is_broken(Broken::LossForgotten) {
                    (disk.in_sync_at, disk.lacks, disk.noted) = (None, Vec::new(), BTreeSet::new());
                    disk.member.iter_mut().for_each(|stored| stored.content = Content::Short);
                }
            }
        }
        if how == Crash::PowerCut {
            state.power_cuts += 1
        } else {
            state.crashes += 1
        }
        if self.is_broken(Broken::NoteNotDurable) {
            replica.disk.noted.clear();
        }
        (replica.machine, replica.storing, replica.asking) = (None, None, None);
        self.give_up(state, id, None);
        for chunk in 0..self.chunks {
            self.give_up(state, id, Some(chunk));
            // Whoever waits for it hears that it is gone.
            let task = state.replicas[id.0 as usize].tasks[usize::from(chunk)].take();
            if let Some(Task::Change { origin: Origin::Call { from, is_awaited: true }, .. }) = task {
                self.answer(state, from.id, Some(chunk), Answer::Not);
            }
        }
        self.forgive(state);
    }

    pub(super) fn restart(&self, state: &mut State, id: NodeId) {
        let replica = &mut state.replicas[id.0 as usize];
        let Some(stored) = replica.disk.member.clone() else { return };
        let noted = replica.disk.noted.clone();
        let mut out = Vec::new();
        if self.is_broken(Broken::RestartAtSameEpoch) {
            // It takes the epoch it stopped in for a new one.
            let membership = stored.membership.clone();
            let before = Membership { epoch: Epoch(membership.epoch.0 - 1), ..membership.clone() };
            let known = Stored { membership: before, ..stored };
            let mut machine = ChainReplica::recover(id, LeaseTerms::DEFAULT, known, noted, NOW, &mut out);
            machine.learn(&membership, NOW, &mut out);
            replica.machine = Some(machine);
        } else {
            let machine = ChainReplica::recover(id, LeaseTerms::DEFAULT, stored, noted, NOW, &mut out);
            if machine.member().is_active() {
                replica.disk.member = Some(machine.member().to_store());
            }
            replica.machine = Some(machine);
        }
        self.run(state, id, out);
    }
}
