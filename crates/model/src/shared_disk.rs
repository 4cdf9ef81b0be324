//! Model of a disk that two servers reach (ADR 0031), over the production decisions of `ashlar_replication::shared_disk`.
//!
//! What is around them here: managers that tell any earlier state of the disk at any time, and carry any word out at any later time, any number of times; silence that is supposed of servers that
//! are there; servers that are paused at any moment, whose process is killed and started anew with the disk still mounted, that are switched off and on, and fenced. Grants are answered once or
//! never, as calls are.

use crate::explorer::Model;
use ashlar_replication::shared_disk::{self, AtServer, Do};
use ashlar_types::{DiskState, DiskWord, NodeId, SharedDisk};
use std::collections::BTreeSet;

const SERVERS: [NodeId; 2] = [NodeId(0), NodeId(1)];

/// A rule that is broken, to see that the exploration notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// Silence alone gives the disk to the other one.
    SilenceGives,
    /// A server says that it has fenced before the other one is off.
    FencedUnseen,
    /// A word of before a server was told to let go counts.
    OldWords,
    /// A server mounts by what it is told, and does not ask.
    NotAsked,
    /// A process that was started anew does not look whether the disk is mounted.
    NotLooked,
    /// What a process has begun to mount before it died is mounted after the next one has begun.
    LateMount,
    /// The answer to an earlier question counts for a later one.
    LateGrant,
}

/// What is explored.
#[derive(Clone, Debug)]
pub struct SharedDiskModel {
    /// Highest turn.
    pub turns_max: u64,
    /// Processes that die or are switched off.
    pub deaths_max: u8,
    /// The rule that is broken.
    pub broken: Option<Broken>,
}

impl SharedDiskModel {
    /// Small enough for every run of the tests.
    pub fn small() -> SharedDiskModel {
        SharedDiskModel { turns_max: 5, deaths_max: 1, broken: None }
    }
}

/// What a thread of a server is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Work {
    Nothing,
    Asking,
    /// It has been granted, and is about to be mounted.
    Mounting,
    LettingGo,
    /// At this turn; the other one is off by now, or is not.
    Fencing {
        turn: u64,
        is_done: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Server {
    is_on: bool,
    /// In the kernel.
    is_mounted: bool,
    at: AtServer,
    work: Work,
    serves: bool,
    /// What was granted to it and is on its way.
    answer: Option<SharedDisk>,
    /// A mount that a dead process has begun ([`Broken::LateMount`]).
    has_stray_mount: bool,
}

type Word = (usize, u64, bool, Option<u64>);

/// Everything there is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The disk at each turn; the last one is that which is stored.
    history: Vec<SharedDisk>,
    servers: [Server; 2],
    /// Words on their way: of which server, the turn that it has seen, whether it has the disk mounted, and when it has fenced.
    words: BTreeSet<Word>,
    deaths: u8,
    has_been_fenced: bool,
    has_let_go: bool,
}

impl State {
    fn disk(&self) -> &SharedDisk {
        &self.history[self.history.len() - 1]
    }

    fn store(&mut self, next: Option<SharedDisk>) {
        self.history.extend(next);
    }

    fn die(&mut self, server: usize) {
        self.deaths += 1;
        let known = &mut self.servers[server];
        (known.work, known.serves, known.answer) = (Work::Nothing, false, None);
    }
}

/// A step.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// A manager tells a server of the disk at the turn of this place in its history.
    Tell(usize, usize, bool),
    /// A server says that it has not mounted it, or has fenced.
    Say(usize),
    /// A word arrives.
    Hear(Word),
    /// The question of a server arrives.
    Grant(usize),
    /// The answer arrives, or the server has given up waiting for it.
    Answer(usize, bool),
    /// A server does what it is at.
    Work(usize),
    /// A process dies and is started anew.
    Restart(usize),
    /// A server is switched off; it is on again at any later time.
    Off(usize),
    /// It is on again.
    On(usize),
    /// A mount that was begun by a process that is dead.
    StrayMount(usize),
    /// The user of the disk is taken for silent by the other one.
    Suspect(usize),
    /// An administrator wants the other one to have it.
    Move(usize),
}

impl Model for SharedDiskModel {
    type State = State;
    type Action = Action;

    fn initial(&self) -> Vec<State> {
        let mut disk = SharedDisk::new([1; 16]);
        disk.servers = SERVERS.to_vec();
        let server = |node| Server {
            is_on: true,
            is_mounted: false,
            at: AtServer::new(node, false),
            work: Work::Nothing,
            serves: false,
            answer: None,
            has_stray_mount: false,
        };
        vec![State {
            history: vec![disk],
            servers: SERVERS.map(server),
            words: BTreeSet::new(),
            deaths: 0,
            has_been_fenced: false,
            has_let_go: false,
        }]
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        let may_turn = state.disk().turn < self.turns_max;
        for (server, known) in state.servers.iter().enumerate() {
            if !known.is_on {
                out.push(Action::On(server));
                continue;
            }
            if known.has_stray_mount {
                out.push(Action::StrayMount(server));
            }
            if known.work == Work::Nothing {
                for at in 0..state.history.len() {
                    out.extend([false, true].map(|is_to_take| Action::Tell(server, at, is_to_take)));
                }
            }
            let word = (server, known.at.seen(), known.at.is_mounted(), known.at.fenced());
            if self.may_count(state.disk().turn, &word) && !state.words.contains(&word) {
                out.push(Action::Say(server));
            }
            if known.work == Work::Asking && may_turn {
                out.push(Action::Grant(server));
            }
            if known.work == Work::Asking {
                out.push(Action::Answer(server, true));
            }
            if known.work == Work::Asking && known.answer.is_some() {
                out.push(Action::Answer(server, false));
            }
            if !matches!(known.work, Work::Nothing | Work::Asking) {
                out.push(Action::Work(server));
            }
            if state.deaths < self.deaths_max {
                out.extend([Action::Restart(server), Action::Off(server)]);
            }
        }
        if may_turn {
            out.extend(state.words.iter().map(|word| Action::Hear(*word)));
            out.extend([0, 1].map(Action::Suspect));
            out.extend([0, 1].map(Action::Move));
        }
    }

    fn apply(&self, state: &mut State, action: &Action) {
        match *action {
            Action::Tell(server, at, is_to_take) => self.tell(state, server, at, is_to_take),
            Action::Say(server) => {
                let at = &state.servers[server].at;
                let word = (server, at.seen(), at.is_mounted(), at.fenced());
                state.words.insert(word);
            }
            Action::Hear(word) => self.hear(state, word),
            Action::Grant(server) => {
                if let Ok(next) = shared_disk::use_by(state.disk(), SERVERS[server]) {
                    state.servers[server].answer = Some(next.clone());
                    state.store(Some(next));
                }
            }
            Action::Answer(server, is_late) => {
                let known = &mut state.servers[server];
                let answer = match is_late && self.broken == Some(Broken::LateGrant) {
                    true => known.answer.clone(),
                    false => known.answer.take(),
                };
                let is_granted = !is_late && answer.is_some_and(|disk| known.at.granted(&disk));
                known.work = if is_granted { Work::Mounting } else { Work::Nothing };
            }
            Action::Work(server) => self.work(state, server),
            Action::Restart(server) => {
                let was_mounting = state.servers[server].work == Work::Mounting;
                state.die(server);
                let known = &mut state.servers[server];
                let is_mounted = known.is_mounted && self.broken != Some(Broken::NotLooked);
                known.at = AtServer::new(SERVERS[server], is_mounted);
                // The program that mounts goes on without the one that has started it.
                known.has_stray_mount |= was_mounting && self.broken == Some(Broken::LateMount);
            }
            Action::Off(server) => {
                state.die(server);
                off(&mut state.servers[server]);
            }
            Action::On(server) => {
                let known = &mut state.servers[server];
                known.is_on = true;
                known.at = AtServer::new(SERVERS[server], false);
            }
            Action::StrayMount(server) => {
                let known = &mut state.servers[server];
                (known.is_mounted, known.has_stray_mount) = (true, false);
            }
            Action::Suspect(by) => {
                let next = match self.broken {
                    Some(Broken::SilenceGives) => {
                        let is_other = state.disk().user().is_some_and(|user| user != SERVERS[by]);
                        is_other.then(|| SharedDisk {
                            turn: state.disk().turn + 1,
                            state: DiskState::Free { next: Some(SERVERS[by]) },
                            ..state.disk().clone()
                        })
                    }
                    _ => shared_disk::silent(state.disk(), SERVERS[by]),
                };
                state.store(next);
            }
            Action::Move(to) => state.store(shared_disk::leave(state.disk(), SERVERS[to])),
        }
    }

    fn violation(&self, state: &State) -> Option<String> {
        let mounted = state.servers.iter().filter(|server| server.is_on && server.is_mounted).count();
        (mounted > 1).then(|| "both servers have the disk mounted".to_owned())
    }

    fn canonicalize(&self, state: &mut State) {
        let turn = state.disk().turn;
        state.words.retain(|word| self.may_count(turn, word));
    }

    fn milestones(&self, state: &State, reached: &mut dyn FnMut(&'static str)) {
        let [first, second] = &state.servers;
        if state.has_let_go && (first.serves || second.serves) {
            reached("the disk has moved in good order");
        }
        if state.has_been_fenced && (first.serves || second.serves) {
            reached("the disk was taken over");
        }
        if state.deaths > 0 && first.serves {
            reached("the disk is served after a death");
        }
    }
}

impl SharedDiskModel {
    /// Whether a word makes a difference at `turn` or later, by the rules of `ashlar_replication::shared_disk::heard`: turns grow.
    fn may_count(&self, turn: u64, &(_, seen, is_mounted, fenced): &Word) -> bool {
        let is_of_now = seen >= turn || self.broken == Some(Broken::OldWords);
        !is_mounted && seen > 0 && is_of_now || fenced == Some(turn)
    }

    fn tell(&self, state: &mut State, server: usize, at: usize, is_to_take: bool) {
        let disk = state.history[at].clone();
        let known = &mut state.servers[server];
        let serves = known.serves;
        known.work = match known.at.told(&disk, serves, is_to_take) {
            None => return,
            Some(Do::Ask)
                if self.broken == Some(Broken::NotAsked) && disk.user() == Some(SERVERS[server]) =>
            {
                match known.at.granted(&disk) {
                    true => Work::Mounting,
                    false => Work::Nothing,
                }
            }
            Some(Do::Ask) => Work::Asking,
            Some(Do::LetGo) => Work::LettingGo,
            Some(Do::Fence { turn, .. }) => Work::Fencing { turn, is_done: false },
        };
    }

    fn hear(&self, state: &mut State, (server, seen, is_mounted, fenced): Word) {
        let disk = state.disk();
        let seen = if self.broken == Some(Broken::OldWords) { disk.turn } else { seen };
        let word = DiskWord {
            id: disk.id,
            seen,
            is_mounted,
            fenced,
            is_failing: false,
            is_preferred: false,
            can_fence: true,
            target: None,
        };
        state.store(shared_disk::heard(disk, SERVERS[server], &word));
    }

    fn work(&self, state: &mut State, server: usize) {
        let known = &mut state.servers[server];
        match known.work {
            Work::Mounting => {
                (known.is_mounted, known.serves, known.work) = (true, true, Work::Nothing);
            }
            Work::LettingGo => {
                (known.is_mounted, known.serves, known.work) = (false, false, Work::Nothing);
                known.at.let_go();
                state.has_let_go = true;
            }
            Work::Fencing { turn, is_done: false } => {
                known.work = Work::Fencing { turn, is_done: true };
                if self.broken == Some(Broken::FencedUnseen) {
                    known.at.has_fenced(turn);
                    return;
                }
                let other = &mut state.servers[1 - server];
                (other.work, other.serves, other.answer) = (Work::Nothing, false, None);
                off(other);
                state.has_been_fenced = true;
            }
            Work::Fencing { turn, is_done: true } => {
                known.at.has_fenced(turn);
                known.work = Work::Nothing;
            }
            Work::Nothing | Work::Asking => {}
        }
    }
}

fn off(server: &mut Server) {
    (server.is_on, server.is_mounted, server.has_stray_mount) = (false, false, false);
}
