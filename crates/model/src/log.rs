//! Model of log replication: replicas with disks that may lose what was not stored, messages that are lost, late and repeated, any
//! removal at any time (no clock takes part: what is acknowledged must be kept whatever clocks do), crashes, joins.
//!
//! Properties, in every state: each acknowledged entry is stored by every replica in sync at the newest epoch; no two entries were
//! acknowledged at one position; one replica acknowledges at an epoch; what replicas know to be committed is the same.

use crate::explorer::Model;
use crate::network::{Network, Request, Store};
use ashlar_replication::log::{
    Command, EntryRun, LogIndex, LogPosition, LogReplica, Message, Recovered, Sequence,
};
use ashlar_replication::membership::{self, Change, Content, LeaseTerms, Proposer, Stored};
use ashlar_types::membership::Membership;
use ashlar_types::{Epoch, NodeId};
use std::time::Duration;

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A replica takes messages of older epochs as if they were of its own.
    OlderEpochTaken,
    /// A replica reports entries that are not stored.
    ReportBeforeStored,
    /// A manager promotes a replica without the primary having asked.
    PromotedUnasked,
    /// A manager overwrites the map without comparing.
    WriteWithoutCompare,
    /// A removed replica is put back in sync without catching up.
    ReturnsInSync,
    /// A restarted replica goes on at the epoch it stopped in.
    RestartAtSameEpoch,
    /// A new primary asks for a promotion when the replica has what it *knows* to be committed.
    PromotedTooEarly,
    /// A primary does not wait for its backups.
    AcknowledgeAlone,
    /// A replica that has lost what it had reported goes on as if it had not.
    LossForgotten,
    /// A replica whose disk was replaced passes for one of a new group.
    EmptyInSync,
}

/// Bounds of an exploration.
#[derive(Clone, Debug)]
pub struct LogModel {
    /// Replicas in sync at first.
    pub in_sync: u32,
    /// Replicas that can be admitted.
    pub spare: u32,
    /// Entries that callers ask for, all in all.
    pub entries_max: u8,
    /// Changes of the membership.
    pub changes_max: u64,
    /// Crashes; each may lose what was not stored.
    pub crashes_max: u8,
    /// Whether replicas make checkpoints.
    pub checkpoints: bool,
    /// Whether entries are reported when they are written and not when they are stored: a crash may lose what was acknowledged.
    pub is_async: bool,
    /// Disks that are replaced by empty ones.
    pub replacements_max: u8,
    /// What is broken on purpose.
    pub broken: Option<Broken>,
}

/// An entry on a disk: the epoch it was written at, and what it says.
type Entry = (Epoch, u8);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Disk {
    member: Option<Stored<NodeId>>,
    /// From the first entry on: those under the floor are the state of the checkpoint.
    entries: Vec<Entry>,
    /// How many of them are under the checkpoint.
    floor: usize,
    /// How many of them are stored.
    stored: usize,
    /// It has replaced the one that the replica was admitted with.
    is_another: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Replica {
    /// `None` while it is down.
    machine: Option<LogReplica<NodeId>>,
    disk: Disk,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Envelope {
    to: NodeId,
    from: NodeId,
    message: Message,
    /// The entries, or the state of the checkpoint.
    payload: Vec<Entry>,
}

/// See [`LogModel`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    replicas: Vec<Replica>,
    network: Network<Envelope>,
    store: Store,
    asked: u8,
    crashes: u8,
    replacements: u8,
    /// Entries that a disk lost while no other that counts was whole, ascending: that loss is allowed.
    lost: Vec<u8>,
    /// What callers were told, by sequence.
    acknowledged: Vec<Option<u8>>,
    /// Who acknowledged at which epoch.
    acknowledged_by: Vec<(Epoch, NodeId)>,
    broken: Option<&'static str>,
}

/// A step.
#[derive(Clone, Debug)]
pub enum Action {
    /// A caller asks a primary for an entry.
    Ask(NodeId),
    /// A disk completes a sync.
    Sync(NodeId),
    /// A replica makes a checkpoint of what is committed.
    Checkpoint(NodeId),
    /// A message arrives.
    Deliver(usize),
    /// A replica reads the map, maybe an old one.
    Learn(NodeId, usize),
    /// A manager carries a request out.
    CarryOut(Request),
    /// A replica stops; what was not stored is lost, or is not.
    Crash(NodeId, bool),
    /// It stops, and starts with an empty disk.
    Replace(NodeId),
    /// It starts again.
    Restart(NodeId),
}

/// Clocks take no part in this model.
const NOW: Duration = Duration::ZERO;

impl LogModel {
    /// Two replicas within small bounds.
    pub fn small() -> LogModel {
        LogModel {
            in_sync: 2,
            spare: 0,
            entries_max: 2,
            changes_max: 2,
            crashes_max: 1,
            checkpoints: false,
            is_async: false,
            replacements_max: 0,
            broken: None,
        }
    }

    fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.in_sync + self.spare).map(NodeId)
    }

    /// Carries out what the machine of `id` wants; `carried` are the entries that came with the message in hand.
    fn run(&self, state: &mut State, id: NodeId, mut commands: Vec<Command<NodeId>>, carried: &[Entry]) {
        let mut at = 0;
        while let Some(command) = commands.get(at).cloned() {
            at += 1;
            let replica = &mut state.replicas[id.0 as usize];
            let (machine, disk) = (replica.machine.as_mut().expect("it runs"), &mut replica.disk);
            match command {
                Command::Member(membership::Command::Store(stored)) => {
                    let epoch = stored.membership.epoch;
                    disk.member = Some(stored);
                    machine.membership_stored(epoch, &mut commands);
                }
                Command::Member(membership::Command::Propose { expected, change }) => {
                    state.store.ask(Request { expected, by: Proposer::Replica(id), change });
                }
                Command::Member(_) => {}
                Command::Send { to, message } => {
                    let payload = match &message {
                        Message::Prepare { previous, entries, .. } => {
                            let first = previous.sequence.0 as usize;
                            let count: u64 = entries.iter().map(|run| run.count).sum();
                            disk.entries[first..first + count as usize].to_vec()
                        }
                        Message::Checkpoint { at, .. } => disk.entries[..at.sequence.0 as usize].to_vec(),
                        _ => Vec::new(),
                    };
                    state.network.send(Envelope { to, from: id, message, payload });
                }
                Command::Truncate { after } => {
                    disk.entries.truncate(after.0 as usize);
                    disk.stored = disk.stored.min(disk.entries.len());
                }
                Command::Append { skip } => {
                    disk.entries.extend(&carried[skip as usize..]);
                    if self.is_async || self.broken == Some(Broken::ReportBeforeStored) {
                        machine.stored(machine.index().last(), &mut commands);
                    }
                }
                Command::Discard => {
                    disk.entries.clear();
                    (disk.floor, disk.stored) = (0, 0);
                }
                Command::Install { at } => {
                    disk.entries = carried.to_vec();
                    (disk.floor, disk.stored) = (carried.len(), carried.len());
                    machine.installed(at, &mut commands);
                }
                Command::Acknowledge { through } => self.acknowledge(state, id, through),
                Command::Commit { .. } => {}
            }
        }
    }

    /// The primary answers the callers of all entries up to `through`.
    fn acknowledge(&self, state: &mut State, id: NodeId, through: Sequence) {
        let replica = &state.replicas[id.0 as usize];
        let epoch = replica.machine.as_ref().expect("it runs").member().epoch();
        let entries = &replica.disk.entries[..through.0 as usize];
        state.acknowledged.resize(state.acknowledged.len().max(entries.len()), None);
        for (slot, (_, says)) in state.acknowledged.iter_mut().zip(entries) {
            // It is lost already, and who tells was removed.
            if state.lost.contains(says) {
                continue;
            }
            if slot.is_some_and(|told| told != *says && !state.lost.contains(&told)) {
                state.broken = Some("two entries were acknowledged at one position");
            }
            *slot = Some(*says);
        }
        if state.acknowledged_by.iter().any(|(at, by)| *at == epoch && *by != id) {
            state.broken = Some("two replicas acknowledged at one epoch");
        }
        if !state.acknowledged_by.contains(&(epoch, id)) {
            state.acknowledged_by.push((epoch, id));
        }
    }

    fn deliver(&self, state: &mut State, at: usize) {
        let mut envelope = state.network.messages()[at].clone();
        let mut out = Vec::new();
        let Some(machine) = &mut state.replicas[envelope.to.0 as usize].machine else { return };
        if self.broken == Some(Broken::OlderEpochTaken) {
            let mine = machine.member().epoch();
            match &mut envelope.message {
                Message::Prepare { epoch, .. }
                | Message::Prepared { epoch, .. }
                | Message::Mismatch { epoch, .. }
                | Message::Checkpoint { epoch, .. } => *epoch = mine,
            }
        }
        machine.receive(envelope.from, &envelope.message, &mut out);
        if let (Some(Broken::PromotedTooEarly), Message::Prepared { through, .. }) =
            (self.broken, &envelope.message)
            && *through >= machine.committed()
        {
            machine.member_mut().promote(envelope.from, &mut out);
        }
        self.run(state, envelope.to, out, &envelope.payload);
    }

    fn learn(&self, state: &mut State, id: NodeId, at: usize) {
        let membership = state.store.history()[at].clone();
        let mut out = Vec::new();
        let Replica { machine, disk } = &mut state.replicas[id.0 as usize];
        match machine {
            Some(machine) => machine.learn(&membership, NOW, &mut out),
            None if disk.is_another && self.broken != Some(Broken::EmptyInSync) => {
                *machine = Some(LogReplica::replaced(id, LeaseTerms::DEFAULT, membership, NOW));
            }
            None => *machine = Some(LogReplica::join(id, LeaseTerms::DEFAULT, membership, NOW, &mut out)),
        }
        self.run(state, id, out, &[]);
    }

    /// A replica has lost something that it had reported.
    fn lose(&self, state: &mut State, id: NodeId) {
        let replica = &mut state.replicas[id.0 as usize];
        if let Some(stored) =
            replica.disk.member.as_mut().filter(|_| self.broken != Some(Broken::LossForgotten))
        {
            stored.content = Content::Short;
        }
        self.forgive(state);
    }

    /// When no replica in sync is whole any more, because the last one was lost or went, the loss is one that is allowed.
    fn forgive(&self, state: &mut State) {
        let disks: Vec<&Disk> =
            state.store.current().in_sync.iter().map(|id| &state.replicas[id.0 as usize].disk).collect();
        let is_whole =
            |disk: &&Disk| disk.member.as_ref().is_some_and(|stored| stored.content == Content::Whole);
        if disks.iter().any(is_whole) {
            return;
        }
        let has = |disk: &&Disk, id: u8| disk.entries.iter().any(|(_, says)| *says == id);
        state.lost = (0..state.asked).filter(|id| !disks.iter().all(|disk| has(disk, *id))).collect();
    }

    fn restart(&self, state: &mut State, id: NodeId) {
        let replica = &mut state.replicas[id.0 as usize];
        let disk = &replica.disk;
        let Some(member) = disk.member.clone() else { return };
        let position = |count: usize| LogPosition {
            sequence: Sequence(count as u64),
            epoch: count.checked_sub(1).map_or(Epoch(0), |last| disk.entries[last].0),
        };
        let runs = disk.entries[disk.floor..].iter().map(|(epoch, _)| EntryRun { epoch: *epoch, count: 1 });
        let index = LogIndex::new(position(disk.floor), runs);
        let committed = index.floor().sequence;
        let mut out = Vec::new();
        if self.broken == Some(Broken::RestartAtSameEpoch) {
            // It takes the epoch it stopped in for a new one.
            let membership = member.membership;
            let before = Membership { epoch: Epoch(membership.epoch.0 - 1), ..membership.clone() };
            let recovered = Recovered {
                member: Stored { membership: before, content: Content::Whole },
                index,
                committed,
            };
            let mut machine = LogReplica::recover(id, LeaseTerms::DEFAULT, recovered, NOW, &mut out);
            machine.learn(&membership, NOW, &mut out);
            replica.machine = Some(machine);
        } else {
            let recovered = Recovered { member, index, committed };
            replica.machine = Some(LogReplica::recover(id, LeaseTerms::DEFAULT, recovered, NOW, &mut out));
        }
        self.run(state, id, out, &[]);
    }

    fn ask(&self, state: &mut State, id: NodeId) {
        let mut out = Vec::new();
        let replica = &mut state.replicas[id.0 as usize];
        let machine = replica.machine.as_mut().expect("only of those that run");
        let Some(position) = machine.append(&mut out) else { return };
        // ORDER: the primary writes its log before messages name the entry.
        replica.disk.entries.push((position.epoch, state.asked));
        state.asked += 1;
        if self.is_async {
            machine.stored(position, &mut out);
        }
        if self.broken == Some(Broken::AcknowledgeAlone) {
            out.push(Command::Acknowledge { through: position.sequence });
        }
        self.run(state, id, out, &[]);
    }

    /// Changes that may be made at any time: clocks, pauses and partitions make any replica suspect any other.
    fn changes(&self, state: &State, out: &mut Vec<Action>) {
        let current = state.store.current();
        let last = Proposer::Replica(*current.in_sync.last().expect("never empty"));
        let mut ask = |read: &Membership<NodeId>, by, change| {
            out.push(Action::CarryOut(Request { expected: read.epoch, by, change }));
        };
        ask(current, last, Change::Renew);
        for id in current.members().filter(|id| !current.is_alone(*id)) {
            ask(current, last, Change::Remove(id));
        }
        for id in self.ids().filter(|id| !current.is_member(*id)) {
            ask(current, Proposer::Operator, Change::Admit(id));
        }
        if self.broken == Some(Broken::WriteWithoutCompare) {
            for read in state.store.history() {
                let by = *read.in_sync.last().expect("never empty");
                ask(read, Proposer::Replica(by), Change::Remove(read.primary()));
            }
        }
        if self.broken == Some(Broken::PromotedUnasked) {
            for &id in &current.catching_up {
                ask(current, Proposer::Replica(current.primary()), Change::Promote(id));
            }
        }
    }

    /// Each acknowledged entry is stored by each replica in sync, or under `async` durability written, but by those that know that they are behind.
    fn is_kept(&self, state: &State) -> bool {
        state.store.current().in_sync.iter().all(|id| {
            let disk = &state.replicas[id.0 as usize].disk;
            let counts = if self.is_async { disk.entries.len() } else { disk.stored };
            let stored = &disk.entries[..counts];
            // An empty disk has not been told yet that it is in sync.
            let knows = disk.member.as_ref().is_none_or(|stored| stored.content != Content::Whole);
            if knows && (self.is_async || state.replacements > 0) {
                return true;
            }
            state.acknowledged.iter().enumerate().all(|(at, told)| {
                let told = told.filter(|told| !state.lost.contains(told));
                told.is_none_or(|told| stored.get(at).is_some_and(|(_, says)| *says == told))
            })
        })
    }
}

impl Model for LogModel {
    type State = State;
    type Action = Action;

    fn initial(&self) -> Vec<State> {
        let disk = Disk { member: None, entries: Vec::new(), floor: 0, stored: 0, is_another: false };
        let mut state = State {
            replicas: self.ids().map(|_| Replica { machine: None, disk: disk.clone() }).collect(),
            network: Network::default(),
            store: Store::new(Membership::new(Epoch(1), (0..self.in_sync).map(NodeId))),
            asked: 0,
            crashes: 0,
            replacements: 0,
            lost: Vec::new(),
            acknowledged: Vec::new(),
            acknowledged_by: Vec::new(),
            broken: None,
        };
        for id in self.ids().take(self.in_sync as usize) {
            self.learn(&mut state, id, 0);
        }
        vec![state]
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        out.extend((0..state.network.messages().len()).map(Action::Deliver));
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
            if state.asked < self.entries_max && machine.member().is_primary() {
                out.push(Action::Ask(id));
            }
            let is_unstored = replica.disk.stored < replica.disk.entries.len();
            if is_unstored {
                out.push(Action::Sync(id));
            }
            if self.checkpoints && machine.checkpoint_max().0 as usize > replica.disk.floor {
                out.push(Action::Checkpoint(id));
            }
            let is_newer = |at: &usize| state.store.history()[*at].epoch > machine.member().epoch();
            out.extend((0..state.store.history().len()).filter(is_newer).map(|at| Action::Learn(id, at)));
            if state.replacements < self.replacements_max && state.store.current().in_sync.len() > 1 {
                out.push(Action::Replace(id));
            }
            if state.crashes < self.crashes_max {
                out.push(Action::Crash(id, false));
                if is_unstored {
                    out.push(Action::Crash(id, true));
                }
            }
        }
    }

    fn apply(&self, state: &mut State, action: &Action) {
        match action {
            Action::Ask(id) => self.ask(state, *id),
            Action::Sync(id) => {
                let replica = &mut state.replicas[id.0 as usize];
                replica.disk.stored = replica.disk.entries.len();
                let machine = replica.machine.as_mut().expect("only of those that run");
                let mut out = Vec::new();
                machine.stored(machine.index().last(), &mut out);
                self.run(state, *id, out, &[]);
            }
            Action::Checkpoint(id) => {
                let replica = &mut state.replicas[id.0 as usize];
                let machine = replica.machine.as_mut().expect("only of those that run");
                machine.checkpointed(machine.checkpoint_max());
                replica.disk.floor = machine.checkpoint_max().0 as usize;
                // A checkpoint is durable before the log is cut.
                replica.disk.stored = replica.disk.stored.max(replica.disk.floor);
            }
            Action::Deliver(at) => self.deliver(state, *at),
            Action::Learn(id, at) => self.learn(state, *id, *at),
            Action::CarryOut(request) => match self.broken {
                Some(Broken::WriteWithoutCompare) => state.store.carry_out_without_comparing(request),
                Some(Broken::ReturnsInSync) if matches!(request.change, Change::Admit(_)) => {
                    state.store.carry_out(request);
                    let (expected, by) = (state.store.current().epoch, state.store.current().primary());
                    if let Change::Admit(id) = request.change {
                        let by = Proposer::Replica(by);
                        state.store.carry_out(&Request { expected, by, change: Change::Promote(id) });
                    }
                }
                _ => {
                    state.store.carry_out(request);
                    self.forgive(state);
                }
            },
            Action::Crash(id, loses) => {
                let replica = &mut state.replicas[id.0 as usize];
                replica.machine = None;
                state.crashes += 1;
                if *loses {
                    replica.disk.entries.truncate(replica.disk.stored);
                    if self.is_async {
                        self.lose(state, *id);
                    }
                } else {
                    replica.disk.stored = replica.disk.entries.len();
                }
            }
            Action::Replace(id) => {
                let disk = Disk { member: None, entries: Vec::new(), floor: 0, stored: 0, is_another: true };
                state.replicas[id.0 as usize] = Replica { machine: None, disk };
                state.replacements += 1;
                self.lose(state, *id);
            }
            Action::Restart(id) => self.restart(state, *id),
        }
    }

    fn violation(&self, state: &State) -> Option<String> {
        if let Some(what) = state.broken {
            return Some(what.to_owned());
        }
        if !self.is_kept(state) {
            return Some("an acknowledged entry is missing on a replica in sync".to_owned());
        }
        let committed = |replica: &Replica| {
            // What was lost where it counts is found out when a replica catches up.
            let id = replica.machine.as_ref().map(|machine| machine.member().id());
            if !state.lost.is_empty() && !id.is_some_and(|id| state.store.current().is_in_sync(id)) {
                return Vec::new();
            }
            let count = replica.machine.as_ref().map_or(0, |machine| machine.committed().0 as usize);
            replica.disk.entries[..count].to_vec()
        };
        let logs: Vec<_> = state.replicas.iter().map(committed).collect();
        let differ = |a: &Vec<Entry>, b: &Vec<Entry>| a.iter().zip(b).any(|(a, b)| a != b);
        if logs.iter().any(|a| logs.iter().any(|b| differ(a, b))) {
            return Some("replicas differ in what they know to be committed".to_owned());
        }
        // Without comparing, memberships do not follow each other; what comes of that is looked at here.
        if self.broken == Some(Broken::WriteWithoutCompare) { None } else { state.store.violation() }
    }

    /// When nobody has to be restarted or to ask for an epoch, everything a primary has is acknowledged.
    fn stuck(&self, state: &State) -> Option<String> {
        let current = state.store.current();
        let machine = |id: NodeId| state.replicas[id.0 as usize].machine.as_ref();
        let takes_part = |id: NodeId| {
            machine(id).is_some_and(|machine| {
                machine.member().is_active() && machine.member().epoch() == current.epoch
            })
        };
        let is_behind = |machine: &LogReplica<NodeId>| {
            !machine.is_serving() || machine.committed() < machine.index().last().sequence
        };
        (current.members().all(takes_part) && machine(current.primary()).is_some_and(is_behind))
            .then(|| "nothing is left to do, and the primary waits".to_owned())
    }

    fn milestones(&self, state: &State, reached: &mut dyn FnMut(&'static str)) {
        let told = state.acknowledged.len();
        if told == usize::from(self.entries_max) {
            reached("everything was acknowledged");
        }
        if state.acknowledged_by.len() > 1 && told > 1 {
            reached("two primaries acknowledged, at two epochs");
        }
        let joined = |id: &NodeId| id.0 >= self.in_sync;
        if state.store.current().in_sync.iter().any(joined) && told > 0 {
            reached("a replica joined and was promoted");
            if joined(&state.store.current().primary()) {
                reached("the replica that joined is primary");
            }
        }
        if self.is_async && state.store.current().epoch.0 > 1 && told > 0 {
            let is_short = |replica: &Replica| {
                replica.disk.member.as_ref().is_some_and(|stored| stored.content == Content::Short)
            };
            if state.lost.is_empty() && state.replicas.iter().any(is_short) {
                reached("a replica has lost what it had reported, and nothing is lost");
            }
            if state.acknowledged.iter().flatten().any(|told| state.lost.contains(told)) {
                reached("what was acknowledged was lost by all");
            }
        }
        if state.crashes > 0 && told == usize::from(self.entries_max) && state.acknowledged_by.len() > 1 {
            reached("two primaries acknowledged everything in spite of a crash");
        }
    }

    fn canonicalize(&self, state: &mut State) {
        if self.broken != Some(Broken::WriteWithoutCompare) {
            state.store.forget_refused();
        }
        if self.broken == Some(Broken::OlderEpochTaken) || self.broken == Some(Broken::WriteWithoutCompare) {
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
