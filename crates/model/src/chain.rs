//! Model of a chain: one chunk that is overwritten in place on replicas whose disks may tear a write that a crash interrupts, any removal at
//! any time (no clock takes part), joins, crashes, and reads from any replica.
//!
//! The content of the chunk is the list of writes that made it. Properties, in every state: what a caller was told, by an
//! acknowledgement or a read, is what each replica in sync at the newest epoch has, or the beginning of it; and no replica that may
//! serve reads has less. Whether a replica may serve is taken from what [`crate::membership`] shows: not after a replica has served at
//! a later epoch at which this one is not in sync.

use crate::explorer::Model;
use crate::network::{Network, Request, Store};
use ashlar_replication::chain::{ChainReplica, ChunkVersion, Command, Holding, Holdings, Message};
use ashlar_replication::membership::{self, Change, LeaseTerms, Proposer, Stored};
use ashlar_types::membership::Membership;
use ashlar_types::{ChunkId, Epoch, InodeId, NodeId};
use std::collections::VecDeque;
use std::time::Duration;

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A replica takes messages of older epochs as if they were of its own.
    OlderEpochTaken,
    /// A chunk is read while a write of it is under way.
    ReadUncertain,
    /// A replica that was removed goes on serving reads.
    ReadWithoutLease,
    /// A replica forgets in a crash that a chunk is uncertain.
    MarkNotDurable,
    /// A replica reports a write before it is applied.
    ReportBeforeApplied,
    /// A manager promotes a replica without the head having asked.
    PromotedUnasked,
    /// A restarted replica goes on at the epoch it stopped in.
    RestartAtSameEpoch,
    /// A head does not wait for the replicas behind it.
    AcknowledgeAtHead,
    /// Nothing is sent again.
    SentOnce,
}

/// Bounds of an exploration.
#[derive(Clone, Debug)]
pub struct ChainModel {
    /// Replicas in sync at first.
    pub in_sync: u32,
    /// Replicas that can be admitted.
    pub spare: u32,
    /// Writes that callers ask for, all in all.
    pub writes_max: u8,
    /// Changes of the membership.
    pub changes_max: u64,
    /// Crashes; each may tear the write in hand.
    pub crashes_max: u8,
    /// Whether a message is delivered once or never. Then nothing may be waiting once everybody has sent again what was not answered.
    pub is_lossy: bool,
    /// What is broken on purpose.
    pub broken: Option<Broken>,
}

/// A write as it is in the content, or its part that a crash left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Written {
    version: ChunkVersion,
    id: u8,
    is_torn: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Payload {
    None,
    Bytes(u8),
    Whole(Vec<Written>),
}

/// What a disk was told to do and has not done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Job {
    version: ChunkVersion,
    payload: Payload,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct Disk {
    member: Option<Stored<NodeId>>,
    version: ChunkVersion,
    content: Vec<Written>,
    is_uncertain: bool,
    jobs: VecDeque<Job>,
}

impl Disk {
    fn holding(&self) -> Holding {
        Holding { chunk: CHUNK, version: self.version, is_uncertain: self.is_uncertain }
    }

    fn complete(&mut self, job: Job) {
        match job.payload {
            Payload::None => {}
            Payload::Bytes(id) => self.content.push(Written { version: job.version, id, is_torn: false }),
            Payload::Whole(content) => self.content = content,
        }
        (self.version, self.is_uncertain) = (job.version, true);
    }
}

impl Holdings for Disk {
    fn version(&self, _: ChunkId) -> ChunkVersion {
        self.version
    }
    fn for_each_uncertain(&self, visit: &mut dyn FnMut(Holding)) {
        if self.is_uncertain {
            visit(self.holding());
        }
    }
    fn for_each(&self, visit: &mut dyn FnMut(Holding)) {
        if self.version != ChunkVersion::default() {
            visit(self.holding());
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Replica {
    /// `None` while it is down.
    machine: Option<ChainReplica<NodeId>>,
    disk: Disk,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Envelope {
    to: NodeId,
    from: NodeId,
    message: Message<NodeId>,
    payload: Payload,
}

/// See [`ChainModel`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    replicas: Vec<Replica>,
    network: Network<Envelope>,
    store: Store,
    asked: u8,
    crashes: u8,
    /// The longest content that a caller knows of.
    witnessed: Vec<Written>,
    /// Epochs at which somebody was answered.
    served: Vec<Epoch>,
    acknowledged: u8,
    broken: Option<&'static str>,
}

/// How far a write had come that a crash interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupted {
    /// It had not begun.
    Before,
    /// It was marked, and some of its bytes were written.
    Torn,
    /// It was done, and nobody was told.
    Done,
}

/// A step.
#[derive(Clone, Debug)]
pub enum Action {
    /// A caller asks a head for a write.
    Ask(NodeId),
    /// A disk does the next thing it was told.
    Disk(NodeId),
    /// A caller reads.
    Read(NodeId),
    /// A message arrives.
    Deliver(usize),
    /// A message is lost.
    Lose(usize),
    /// A replica reads the map, maybe an old one.
    Learn(NodeId, usize),
    /// A manager carries a request out.
    CarryOut(Request),
    /// A replica stops, with the write in hand so far.
    Crash(NodeId, Interrupted),
    /// It starts again.
    Restart(NodeId),
}

/// Clocks take no part in this model.
const NOW: Duration = Duration::ZERO;
/// Each brings an answer one replica further, there and back, and there are few replicas.
const HEALING_ROUNDS: u32 = 8;
const CHUNK: ChunkId = ChunkId { inode: InodeId::ROOT, generation: 0, index: 0 };

impl ChainModel {
    /// Two replicas within small bounds.
    pub fn small() -> ChainModel {
        ChainModel {
            in_sync: 2,
            spare: 0,
            writes_max: 2,
            changes_max: 1,
            crashes_max: 1,
            is_lossy: false,
            broken: None,
        }
    }

    fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.in_sync + self.spare).map(NodeId)
    }

    /// Carries out what the machine of `id` wants; `carried` is what came with the message or write in hand.
    fn run(&self, state: &mut State, id: NodeId, mut commands: Vec<Command<NodeId>>, carried: &Payload) {
        let mut at = 0;
        while let Some(command) = commands.get(at).cloned() {
            at += 1;
            let replica = &mut state.replicas[id.0 as usize];
            let (machine, disk) = (replica.machine.as_mut().expect("it runs"), &mut replica.disk);
            match command {
                Command::Member(membership::Command::Store(stored)) => {
                    let epoch = stored.membership.epoch;
                    disk.member = Some(stored);
                    machine.membership_stored(epoch, disk, &mut commands);
                }
                Command::Member(membership::Command::Propose { expected, change }) => {
                    state.store.ask(Request { expected, by: Proposer::Replica(id), change });
                }
                Command::Member(_) => {}
                Command::Send { to, message } => {
                    let payload = match &message {
                        Message::Write { .. } => carried.clone(),
                        Message::Copy { .. } => Payload::Whole(disk.content.clone()),
                        _ => Payload::None,
                    };
                    state.network.send(Envelope { to, from: id, message, payload });
                }
                Command::Apply { chunk, version } | Command::Replace { chunk, version } => {
                    disk.jobs.push_back(Job { version, payload: carried.clone() });
                    if self.broken == Some(Broken::ReportBeforeApplied) {
                        machine.applied(chunk, version, &mut commands);
                    }
                }
                Command::Restamp { version, .. } => {
                    disk.jobs.push_back(Job { version, payload: Payload::None });
                }
                Command::Settle { version, .. } => {
                    if disk.version == version && disk.jobs.is_empty() {
                        disk.is_uncertain = false;
                    }
                }
                Command::Acknowledge { version, .. } => {
                    let told = disk.content.iter().take_while(|written| written.version <= version);
                    let told = told.copied().collect();
                    state.acknowledged += 1;
                    self.witness(state, id, told);
                }
            }
        }
    }

    /// A caller learns of `content` from `id`.
    fn witness(&self, state: &mut State, id: NodeId, content: Vec<Written>) {
        let epoch = state.replicas[id.0 as usize].machine.as_ref().expect("it runs").member().epoch();
        if !state.served.contains(&epoch) {
            state.served.push(epoch);
        }
        if content.starts_with(&state.witnessed) {
            state.witnessed = content;
        } else if !state.witnessed.starts_with(&content) {
            state.broken = Some("two callers know of contents that exclude each other");
        }
    }

    /// Whether the lease of `replica` may be valid: nobody has served at a later epoch at which it is not in sync.
    fn may_serve(&self, state: &State, replica: &Replica) -> bool {
        let Some(machine) = &replica.machine else { return false };
        let member = machine.member();
        let is_in_sync = member.is_active() && member.membership().is_in_sync(member.id());
        let excludes = |epoch: &Epoch| {
            let membership = state.store.history().iter().find(|known| known.epoch == *epoch);
            *epoch > member.epoch() && !membership.is_some_and(|known| known.is_in_sync(member.id()))
        };
        let is_leased = !state.served.iter().any(excludes) || self.broken == Some(Broken::ReadWithoutLease);
        let is_certain = machine.is_certain(CHUNK) || self.broken == Some(Broken::ReadUncertain);
        is_in_sync && is_leased && is_certain
    }

    fn deliver(&self, state: &mut State, at: usize) {
        let mut envelope =
            if self.is_lossy { state.network.take(at) } else { state.network.messages()[at].clone() };
        let replica = &mut state.replicas[envelope.to.0 as usize];
        let Some(machine) = &mut replica.machine else { return };
        if self.broken == Some(Broken::OlderEpochTaken) {
            let mine = machine.member().epoch();
            match &mut envelope.message {
                Message::Write { epoch, .. }
                | Message::Copy { epoch, .. }
                | Message::Applied { epoch, .. }
                | Message::Committed { epoch, .. }
                | Message::Inventory { epoch, .. }
                | Message::Compared { epoch }
                | Message::CaughtUp { epoch, .. } => *epoch = mine,
            }
        }
        let mut out = Vec::new();
        machine.receive(envelope.from, &envelope.message, &replica.disk, &mut out);
        self.run(state, envelope.to, out, &envelope.payload);
    }

    /// Everybody sends again what was not answered, and nothing is lost any more, for some rounds.
    fn heal(&self, state: &mut State) {
        for _ in 0..HEALING_ROUNDS {
            for id in self.ids().filter(|_| self.broken != Some(Broken::SentOnce)) {
                let Replica { machine, disk } = &mut state.replicas[id.0 as usize];
                let mut out = Vec::new();
                if let Some(machine) = machine {
                    machine.resend(disk, &mut out);
                }
                self.run(state, id, out, &Payload::None);
            }
            while !state.network.messages().is_empty() {
                self.deliver(state, 0);
                self.drain_disks(state);
            }
        }
    }

    /// Disks do all that they were told.
    fn drain_disks(&self, state: &mut State) {
        for id in self.ids() {
            while !state.replicas[id.0 as usize].disk.jobs.is_empty() {
                self.complete(state, id);
            }
        }
    }

    /// A disk does the next thing it was told.
    fn complete(&self, state: &mut State, id: NodeId) {
        let Replica { machine, disk } = &mut state.replicas[id.0 as usize];
        let job = disk.jobs.pop_front().expect("only of those that have one");
        let version = job.version;
        disk.complete(job);
        let mut out = Vec::new();
        machine.as_mut().expect("it runs").applied(CHUNK, version, &mut out);
        self.run(state, id, out, &Payload::None);
    }

    fn learn(&self, state: &mut State, id: NodeId, at: usize) {
        let membership = state.store.history()[at].clone();
        let mut out = Vec::new();
        let machine = &mut state.replicas[id.0 as usize].machine;
        match machine {
            Some(machine) => machine.learn(&membership, NOW, &mut out),
            None => *machine = Some(ChainReplica::join(id, LeaseTerms::DEFAULT, membership, NOW, &mut out)),
        }
        self.run(state, id, out, &Payload::None);
    }

    fn crash(&self, state: &mut State, id: NodeId, how: Interrupted) {
        let Replica { machine, disk } = &mut state.replicas[id.0 as usize];
        *machine = None;
        state.crashes += 1;
        let mut jobs = std::mem::take(&mut disk.jobs);
        let was_uncertain = disk.is_uncertain;
        match (how, jobs.pop_front()) {
            (Interrupted::Done, Some(job)) => disk.complete(job),
            (Interrupted::Torn, Some(Job { version, payload: Payload::Bytes(id) })) => {
                disk.content.push(Written { version, id, is_torn: true });
                (disk.version, disk.is_uncertain) = (version, true);
            }
            _ => {}
        }
        if self.broken == Some(Broken::MarkNotDurable) {
            disk.is_uncertain = was_uncertain && how == Interrupted::Before;
        }
    }

    fn restart(&self, state: &mut State, id: NodeId) {
        let replica = &mut state.replicas[id.0 as usize];
        let Some(member) = replica.disk.member.clone() else { return };
        let membership = member.membership.clone();
        let mut out = Vec::new();
        let is_broken = self.broken == Some(Broken::RestartAtSameEpoch);
        // Broken, it takes the epoch it stopped in for a new one.
        let epoch = if is_broken { Epoch(membership.epoch.0 - 1) } else { membership.epoch };
        let known = Stored { membership: Membership { epoch, ..membership.clone() }, ..member };
        let mut machine = ChainReplica::recover(id, LeaseTerms::DEFAULT, known, &replica.disk, NOW, &mut out);
        machine.learn(&membership, NOW, &mut out);
        replica.machine = Some(machine);
        self.run(state, id, out, &Payload::None);
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
        if self.broken == Some(Broken::PromotedUnasked) {
            for &id in &current.catching_up {
                ask(Proposer::Replica(current.primary()), Change::Promote(id));
            }
        }
    }
}

impl Model for ChainModel {
    type State = State;
    type Action = Action;

    fn initial(&self) -> Vec<State> {
        let mut state = State {
            replicas: self.ids().map(|_| Replica { machine: None, disk: Disk::default() }).collect(),
            network: Network::default(),
            store: Store::new(Membership::new(Epoch(1), (0..self.in_sync).map(NodeId))),
            asked: 0,
            crashes: 0,
            witnessed: Vec::new(),
            served: Vec::new(),
            acknowledged: 0,
            broken: None,
        };
        for id in self.ids().take(self.in_sync as usize) {
            self.learn(&mut state, id, 0);
        }
        vec![state]
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        out.extend((0..state.network.messages().len()).map(Action::Deliver));
        if self.is_lossy {
            out.extend((0..state.network.messages().len()).map(Action::Lose));
        }
        if state.store.current().epoch.0 <= self.changes_max {
            out.extend(state.store.requests().iter().map(|request| Action::CarryOut(*request)));
            self.changes(state, out);
        }
        for (id, replica) in self.ids().zip(&state.replicas) {
            let Some(machine) = &replica.machine else {
                if replica.disk.member.is_some() {
                    out.push(Action::Restart(id));
                } else if state.store.current().is_member(id) {
                    out.push(Action::Learn(id, state.store.history().len() - 1));
                }
                continue;
            };
            if state.asked < self.writes_max && machine.member().is_primary() {
                out.push(Action::Ask(id));
            }
            if let Some(job) = replica.disk.jobs.front() {
                out.push(Action::Disk(id));
                if state.crashes < self.crashes_max {
                    out.push(Action::Crash(id, Interrupted::Done));
                    if matches!(job.payload, Payload::Bytes(_)) {
                        out.push(Action::Crash(id, Interrupted::Torn));
                    }
                }
            }
            if self.may_serve(state, replica) && replica.disk.content != state.witnessed {
                out.push(Action::Read(id));
            }
            let is_newer = |at: &usize| state.store.history()[*at].epoch > machine.member().epoch();
            out.extend((0..state.store.history().len()).filter(is_newer).map(|at| Action::Learn(id, at)));
            if state.crashes < self.crashes_max {
                out.push(Action::Crash(id, Interrupted::Before));
            }
        }
    }

    fn apply(&self, state: &mut State, action: &Action) {
        match action {
            Action::Ask(id) => {
                let (mut out, bytes) = (Vec::new(), Payload::Bytes(state.asked));
                let Replica { machine, disk } = &mut state.replicas[id.0 as usize];
                let version = machine.as_mut().and_then(|machine| machine.write(CHUNK, disk, &mut out));
                state.asked += 1;
                if let (Some(Broken::AcknowledgeAtHead), Some(version)) = (self.broken, version) {
                    disk.complete(Job { version, payload: bytes.clone() });
                    out = vec![Command::Acknowledge { chunk: CHUNK, version }];
                }
                self.run(state, *id, out, &bytes);
            }
            Action::Disk(id) => self.complete(state, *id),
            Action::Read(id) => {
                let content = state.replicas[id.0 as usize].disk.content.clone();
                self.witness(state, *id, content);
            }
            Action::Deliver(at) => self.deliver(state, *at),
            Action::Lose(at) => drop(state.network.take(*at)),
            Action::Learn(id, at) => self.learn(state, *id, *at),
            Action::CarryOut(request) => state.store.carry_out(request),
            Action::Crash(id, how) => self.crash(state, *id, *how),
            Action::Restart(id) => self.restart(state, *id),
        }
    }

    fn violation(&self, state: &State) -> Option<String> {
        if let Some(what) = state.broken {
            return Some(what.to_owned());
        }
        let has_witnessed = |replica: &Replica| replica.disk.content.starts_with(&state.witnessed);
        let mut in_sync = state.store.current().in_sync.iter().map(|id| &state.replicas[id.0 as usize]);
        if !in_sync.all(has_witnessed) {
            return Some("what a caller knows of is missing on a replica in sync".to_owned());
        }
        let mut serving = state.replicas.iter().filter(|replica| self.may_serve(state, replica));
        if !serving.all(has_witnessed) {
            return Some("a replica may serve a read of less than a caller knows of".to_owned());
        }
        state.store.violation()
    }

    /// When nobody has to be restarted or to ask for an epoch, all replicas have the same, and are certain of it.
    fn stuck(&self, state: &State) -> Option<String> {
        let mut healed = state.clone();
        if self.is_lossy {
            self.heal(&mut healed);
        }
        let state = &healed;
        let current = state.store.current();
        let replica = |id: NodeId| &state.replicas[id.0 as usize];
        let takes_part = |id: NodeId| {
            let machine = replica(id).machine.as_ref();
            machine.is_some_and(|machine| {
                machine.member().is_active() && machine.member().epoch() == current.epoch
            })
        };
        let head = &replica(current.primary()).disk;
        let is_behind = |id: NodeId| {
            let Replica { machine, disk } = replica(id);
            disk.content != head.content || !machine.as_ref().is_some_and(|machine| machine.is_certain(CHUNK))
        };
        (current.members().all(takes_part) && current.members().any(is_behind))
            .then(|| "nothing is left to do, and replicas differ or wait".to_owned())
    }

    fn milestones(&self, state: &State, reached: &mut dyn FnMut(&'static str)) {
        if state.witnessed.len() == usize::from(self.writes_max) {
            reached("every write is known to a caller");
            if state.crashes > 0 && state.served.len() > 1 {
                reached("every write is known in spite of a crash and at two epochs");
            }
        }
        if state.witnessed.iter().any(|written| written.is_torn) {
            reached("a torn write was kept");
        }
        let joined = |id: &NodeId| id.0 >= self.in_sync;
        if state.store.current().in_sync.iter().any(joined) && !state.witnessed.is_empty() {
            reached("a replica joined and was promoted");
        }
    }

    fn canonicalize(&self, state: &mut State) {
        state.store.forget_refused();
        if self.broken == Some(Broken::OlderEpochTaken) {
            return;
        }
        // A replica refuses what is older than the epoch it has stored, also after a restart.
        let replicas = &state.replicas;
        state.network.retain(|envelope| {
            let stored = replicas[envelope.to.0 as usize].disk.member.as_ref();
            stored.is_none_or(|stored| envelope.message.epoch() >= stored.membership.epoch)
        });
    }
}
