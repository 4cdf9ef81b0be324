//! Model of transactions between two shards. What a shard's log does is taken from what [`crate::log`] shows: entries are committed in order, a
//! new primary has all committed ones and maybe some of the others, and a primary that was replaced may go on talking for as long
//! as it likes but commits nothing more.
//!
//! Two scenes: a file that is moved back and forth between directories of two shards, which every observer sees in exactly one of them;
//! and two directories that are moved below each other at the same time, which never become a loop. In both, when nothing is
//! left to do, no lock is left behind.

use crate::explorer::Model;
use crate::network::Network;
use ashlar_replication::transaction::{Command, Message, Part, Record, TransactionId, Transactions};
use ashlar_types::ShardId;

/// What goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scene {
    /// A file, in the directory of shard 0 at first, is moved to that of shard 1 and back.
    File,
    /// Directory x of shard 0 is moved into directory y of shard 1, and y into x.
    Loop,
}

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// Readers do not wait for a transaction that may have happened.
    ReadLocked,
    /// A machine speaks of entries that are not committed.
    SayBeforeLogged,
    /// Directory moves do without the move key.
    NoMoveKey,
    /// A replaced primary answers that what it has not decided, or does not know, did not happen.
    AnsweredInIgnorance,
    /// Take-overs do not begin another era.
    EraReused,
    /// A participant takes a decision whatever vote it names.
    AnyTicketCounts,
}

/// Bounds of an exploration.
#[derive(Clone, Debug)]
pub struct TransactionModel {
    /// What goes on.
    pub scene: Scene,
    /// Operations that are begun.
    pub attempts_max: u8,
    /// Primaries that are replaced.
    pub take_overs_max: u8,
    /// How often a shard prepares: a `Prepare` that arrives again later is prepared again, without end.
    pub prepares_max: usize,
    /// Whether a service may give up what is not decided, at any time.
    pub gives_up: bool,
    /// What is broken on purpose.
    pub broken: Option<Broken>,
}

type Key = u8;
type Writes = Vec<(Key, u8)>;
type Machine = Transactions<Key, Writes>;
type Commands = Vec<Command<Key, Writes>>;

/// A move that begins at the directory of this shard, to the directory of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Move {
    from: usize,
}

/// The service's part of a transaction under way, lost with the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Working {
    /// The transaction that holds the move key, if that is one of its own.
    key_holder: Option<TransactionId>,
    /// The move, once it has begun.
    id: Option<TransactionId>,
    what: Move,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Primary {
    machine: Machine,
    working: Vec<Working>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Shard {
    log: Vec<Record<Key, Writes>>,
    committed: usize,
    era: u64,
    primary: Primary,
    /// A primary that was replaced and does not know.
    replaced: Option<Primary>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Envelope {
    to: usize,
    from: usize,
    message: Message<Key, Writes>,
}

/// See [`TransactionModel`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    shards: Vec<Shard>,
    network: Network<Envelope>,
    attempts: u8,
    take_overs: u8,
}

/// A step.
#[derive(Clone, Debug)]
pub enum Action {
    /// A caller asks for a move.
    Begin(Move),
    /// The log of a shard commits its next entry.
    Commit(usize),
    /// A message arrives, at the primary or (`true`) at one that was replaced.
    Deliver(usize, bool),
    /// A primary asks and tells again.
    Resume(usize),
    /// A service gives up what has not been decided.
    GiveUp(usize, TransactionId),
    /// Another replica becomes primary of a shard, with a log of so many entries.
    TakeOver(usize, usize),
}

/// The entry of the file in the directory of its shard, 0 or 1; or whether the directory of its shard is in the other.
const ENTRY: Key = 0;
/// The place in a directory that another is moved to.
const PLACE: Key = 1;
/// The one key of directory moves; it is in shard 0.
const MOVE: Key = 2;

fn shard_id(at: usize) -> ShardId {
    ShardId(at as u16)
}

impl Shard {
    fn new(at: usize) -> Shard {
        let primary = Primary { machine: Machine::recover(shard_id(at), 1, []), working: Vec::new() };
        Shard { log: Vec::new(), committed: 0, era: 1, primary, replaced: None }
    }

    /// What the first `count` entries of the log make of `key`.
    fn value(&self, key: Key, first: u8, count: usize) -> u8 {
        let mut writes = self.log[..count].iter().filter_map(Record::writes).flatten();
        writes.rfind(|(written, _)| *written == key).map_or(first, |(_, value)| *value)
    }

    fn side(&mut self, is_replaced: bool) -> &mut Primary {
        if is_replaced { self.replaced.as_mut().expect("it talks") } else { &mut self.primary }
    }
}

impl TransactionModel {
    /// One move and one failure.
    pub fn small(scene: Scene) -> TransactionModel {
        TransactionModel {
            scene,
            attempts_max: 1,
            take_overs_max: 1,
            prepares_max: 2,
            gives_up: true,
            broken: None,
        }
    }

    fn needs_key(&self) -> bool {
        self.scene == Scene::Loop && self.broken != Some(Broken::NoMoveKey)
    }

    /// What an observer reads; `None` if he has to wait.
    fn read(&self, state: &State, at: usize, key: Key) -> Option<u8> {
        let shard = &state.shards[at];
        let first = u8::from(self.scene == Scene::File && at == 0 && key == ENTRY);
        let value = shard.value(key, first, shard.log.len());
        let is_committed = value == shard.value(key, first, shard.committed);
        let is_blocked =
            shard.primary.machine.is_read_blocked(&key) && self.broken != Some(Broken::ReadLocked);
        (is_committed && !is_blocked).then_some(value)
    }

    /// A caller asks: the move key first, where it is needed and elsewhere.
    fn begin(&self, state: &mut State, what: Move) {
        let mut out = Commands::new();
        state.attempts += 1;
        if self.needs_key() && what.from != 0 {
            let primary = &mut state.shards[what.from].primary;
            let id = primary.machine.begin(&[]).expect("it locks nothing here");
            primary.working.push(Working { key_holder: Some(id), id: None, what });
            let part = Part { keys: vec![MOVE], writes: Vec::new() };
            primary.machine.add_part(id, shard_id(0), part, &mut out);
        } else {
            self.begin_move(state, what, None, false, &mut out);
        }
        self.run(state, what.from, false, out);
    }

    /// The move itself. With the move key in hand it is looked for loops, or whether the file is there.
    fn begin_move(
        &self,
        state: &mut State,
        what: Move,
        key_holder: Option<TransactionId>,
        is_replaced: bool,
        out: &mut Commands,
    ) {
        let (from, to) = (what.from, 1 - what.from);
        let own: &[Key] = if self.needs_key() && from == 0 { &[ENTRY, MOVE] } else { &[ENTRY] };
        let begun = state.shards[from].side(is_replaced).machine.begin(own);
        // ORDER: locks before the look.
        let is_possible = match self.scene {
            Scene::File => self.read(state, from, ENTRY) == Some(1),
            Scene::Loop => self.read(state, to, ENTRY) == Some(0),
        };
        let primary = state.shards[from].side(is_replaced);
        let Ok(id) = begun else {
            if let Some(holder) = key_holder {
                primary.machine.abort(holder, out);
            }
            return;
        };
        primary.working.push(Working { key_holder, id: Some(id), what });
        if is_possible {
            let key = if self.scene == Scene::File { ENTRY } else { PLACE };
            primary.machine.add_part(id, shard_id(to), Part { keys: vec![key], writes: vec![(key, 1)] }, out);
        } else {
            primary.machine.abort(id, out);
        }
    }

    /// Carries out what a primary of shard `at` wants.
    fn run(&self, state: &mut State, at: usize, is_replaced: bool, mut commands: Commands) {
        let mut next = 0;
        while let Some(command) = commands.get(next).cloned() {
            next += 1;
            match command {
                Command::Send { to, message } => {
                    state.network.send(Envelope { to: usize::from(to.0), from: at, message });
                }
                // What a replaced primary appends is never committed.
                Command::Append(_) if is_replaced => {}
                Command::Append(record) => {
                    state.shards[at].log.push(record.clone());
                    if self.broken == Some(Broken::SayBeforeLogged) {
                        self.logged(state, at, &record, &mut commands);
                    }
                }
                Command::Ready(id) => self.ready(state, at, is_replaced, id, &mut commands),
                Command::Aborted(id) => Self::ended(state.shards[at].side(is_replaced), id, &mut commands),
            }
        }
    }

    fn logged(&self, state: &mut State, at: usize, record: &Record<Key, Writes>, out: &mut Commands) {
        let primary = &mut state.shards[at].primary;
        primary.machine.logged(record, out);
        if let Record::Decided { id, .. } = record {
            Self::ended(primary, *id, out);
        }
    }

    /// All votes are there: what held the move key begins the move, the move is committed.
    fn ready(&self, state: &mut State, at: usize, is_replaced: bool, id: TransactionId, out: &mut Commands) {
        let primary = state.shards[at].side(is_replaced);
        let holder =
            primary.working.iter().position(|working| working.id.is_none() && working.key_holder == Some(id));
        if let Some(i) = holder {
            let working = primary.working.remove(i);
            self.begin_move(state, working.what, Some(id), is_replaced, out);
        } else {
            let left = if self.scene == Scene::File { 0 } else { 1 };
            primary.machine.commit(id, vec![(ENTRY, left)], out);
        }
    }

    /// A move is decided: the move key is given back.
    fn ended(primary: &mut Primary, id: TransactionId, out: &mut Commands) {
        let is_it = |working: &Working| working.id.or(working.key_holder) == Some(id);
        let Some(i) = primary.working.iter().position(is_it) else { return };
        if let Some(holder) = primary.working.remove(i).key_holder {
            primary.machine.abort(holder, out);
        }
    }

    fn deliver(&self, state: &mut State, message: usize, is_replaced: bool) {
        let Envelope { to, from, mut message } = state.network.messages()[message].clone();
        if let (Some(Broken::AnyTicketCounts), Message::Commit { id, ticket }) = (self.broken, &mut message) {
            // The newest that the participant's log has.
            let newest = state.shards[to].log.iter().rev().find_map(|record| match record {
                Record::Prepared { id: known, ticket, .. } if known == id => Some(*ticket),
                _ => None,
            });
            *ticket = newest.unwrap_or(*ticket);
        }
        let machine = &mut state.shards[to].side(is_replaced).machine;
        let mut out = Commands::new();
        machine.receive(shard_id(from), message.clone(), &mut out);
        if let (true, Some(Broken::AnsweredInIgnorance), Message::Ask { id, .. }) =
            (is_replaced, self.broken, &message)
            && out.is_empty()
        {
            let message = Message::Abort { id: *id, ticket: None };
            out.push(Command::Send { to: shard_id(from), message });
        }
        self.run(state, to, is_replaced, out);
    }

    fn take_over(&self, state: &mut State, at: usize, count: usize) {
        let shard = &mut state.shards[at];
        state.take_overs += 1;
        shard.log.truncate(count);
        shard.committed = count;
        shard.era += u64::from(self.broken != Some(Broken::EraReused));
        let machine = Machine::recover(shard_id(at), shard.era, &shard.log);
        let primary = Primary { machine, working: Vec::new() };
        shard.replaced = Some(std::mem::replace(&mut shard.primary, primary));
        self.resume(state, at);
    }

    fn resume(&self, state: &mut State, at: usize) {
        let mut out = Commands::new();
        state.shards[at].primary.machine.resume(&mut out);
        self.run(state, at, false, out);
    }
}

impl Model for TransactionModel {
    type State = State;
    type Action = Action;

    fn initial(&self) -> Vec<State> {
        let shards = (0..2).map(Shard::new).collect();
        vec![State { shards, network: Network::default(), attempts: 0, take_overs: 0 }]
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        let is_prepared = |record: &&Record<Key, Writes>| matches!(record, Record::Prepared { .. });
        for (at, envelope) in state.network.messages().iter().enumerate() {
            let prepares = state.shards[envelope.to].log.iter().filter(is_prepared).count();
            if prepares >= self.prepares_max && matches!(envelope.message, Message::Prepare { .. }) {
                continue;
            }
            out.push(Action::Deliver(at, false));
            if state.shards[envelope.to].replaced.is_some() {
                out.push(Action::Deliver(at, true));
            }
        }
        for (at, shard) in state.shards.iter().enumerate() {
            if state.attempts < self.attempts_max {
                out.push(Action::Begin(Move { from: at }));
            }
            if shard.committed < shard.log.len() {
                out.push(Action::Commit(at));
            }
            out.push(Action::Resume(at));
            if self.gives_up {
                // The move, or what is to hold the move key for it: never the holder alone once the move has begun.
                let under_way =
                    shard.primary.working.iter().filter_map(|working| working.id.or(working.key_holder));
                out.extend(under_way.map(|id| Action::GiveUp(at, id)));
            }
            if state.take_overs < self.take_overs_max {
                out.extend((shard.committed..=shard.log.len()).map(|count| Action::TakeOver(at, count)));
            }
        }
    }

    fn apply(&self, state: &mut State, action: &Action) {
        match action {
            Action::Begin(what) => self.begin(state, *what),
            Action::Commit(at) => {
                let shard = &mut state.shards[*at];
                let record = shard.log[shard.committed].clone();
                shard.committed += 1;
                let mut out = Commands::new();
                self.logged(state, *at, &record, &mut out);
                self.run(state, *at, false, out);
            }
            Action::Deliver(message, is_replaced) => self.deliver(state, *message, *is_replaced),
            Action::Resume(at) => self.resume(state, *at),
            Action::GiveUp(at, id) => {
                let mut out = Commands::new();
                state.shards[*at].primary.machine.abort(*id, &mut out);
                self.run(state, *at, false, out);
            }
            Action::TakeOver(at, count) => self.take_over(state, *at, *count),
        }
    }

    fn violation(&self, state: &State) -> Option<String> {
        let seen = (self.read(state, 0, ENTRY)?, self.read(state, 1, ENTRY)?);
        match (self.scene, seen) {
            (Scene::File, (1, 1)) => Some("an observer sees the file twice".to_owned()),
            (Scene::File, (0, 0)) => Some("an observer does not see the file".to_owned()),
            (Scene::Loop, (1, 1)) => Some("two directories are in each other".to_owned()),
            _ => None,
        }
    }

    fn stuck(&self, state: &State) -> Option<String> {
        let is_left = state.shards.iter().any(|shard| !shard.primary.machine.is_idle());
        is_left.then(|| "nothing is left to do, and something is locked".to_owned())
    }

    fn milestones(&self, state: &State, reached: &mut dyn FnMut(&'static str)) {
        let is_committed = |shard: &Shard| {
            shard.log[..shard.committed]
                .iter()
                .filter(|record| matches!(record, Record::Decided { .. }))
                .count()
        };
        let moves: usize = state.shards.iter().map(is_committed).sum();
        let is_idle = state.shards.iter().all(|shard| shard.primary.machine.is_idle());
        if is_idle && moves > 0 {
            reached("a move is complete");
            if state.take_overs > 0 {
                reached("a move is complete in spite of a take-over");
            }
        }
        if is_idle && moves > 1 {
            reached("two moves are complete");
        }
    }
}
