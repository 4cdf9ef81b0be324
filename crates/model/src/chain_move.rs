//! Model of a chain that goes back and forth between two targets while it is written to (ADR 0017), over the production decisions of
//! `ashlar_replication::hand_over::chain`.
//!
//! What is around them here: maps that come late, or cannot be kept; managers that carry questions out at any time, any number of times, and whose answers are lost; calls between
//! the two servers that arrive once at most, at any time, also long after their caller has given them up; a seal that waits for its disk; starts of either server at any moment, with what
//! was not durable lost or not.

mod steps;

use crate::explorer::Model;
use crate::network::Network;
use ashlar_replication::hand_over::chain::{
    Copier, Ending, Giving, Note, Seen, Step, Taking, Told, answers, arrived, end, is_coming, is_left_over,
    is_over,
};
use ashlar_types::map::Move;
use ashlar_types::{Epoch, TargetId};

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The giver asks without having noted it.
    AskedBeforeNoted,
    /// The giver answers again when it does not know what has become of its question.
    ReopenedWithoutProof,
    /// A manager tells what it knows, without a compare-and-set.
    ToldFromMemory,
    /// What came, or is left, is thrown away by a map that is not kept.
    ThrownAwayByUnkeptMap,
    /// A seal that comes to its end late takes the place of what was noted since.
    SealedOverLaterNote,
    /// A start believes a map from before the move that the chain has gone.
    AnyMapProves,
    /// The taker takes changes of whoever copies.
    AnyCopierCounts,
    /// The giver asks before the taker has made durable what it has.
    AskedBeforeSealed,
    /// A process that has ended begins after the chain was sealed for the one after it.
    AnyProcessBegins,
}

/// Bounds of an exploration.
#[derive(Clone, Debug)]
pub struct ChainMoveModel {
    /// Moves that managers begin, or give up by themselves.
    pub moves_max: u8,
    /// Attempts to carry them out.
    pub attempts_max: u8,
    /// Writes of clients.
    pub writes_max: u8,
    /// Starts of servers.
    pub starts_max: u8,
    /// Whether a start may come after a power cut.
    pub power_cuts: bool,
    /// Maps that a server cannot keep at first.
    pub unkept_max: u8,
    /// What is broken on purpose.
    pub broken: Option<Broken>,
}

/// A map: whose the chain is, and where it goes by the move of which epoch. Its own epoch is its place in the history, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Map {
    head: usize,
    moving: Option<(usize, Epoch)>,
}

/// What a giver says to the taker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum What {
    Begin,
    Put(u8),
    Seal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Call {
    by: Copier<u8>,
    what: What,
}

impl Ord for Call {
    fn cmp(&self, other: &Call) -> std::cmp::Ordering {
        let key = |call: &Call| (call.by.owner, call.by.number, call.by.since, call.what);
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for Call {
    fn partial_cmp(&self, other: &Call) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// A question to the managers: who, by which move, and whether it is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Question {
    from: usize,
    since: Epoch,
    is_given_up: bool,
}

/// A mover.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Mover {
    by: Copier<u8>,
    is_begun: bool,
    is_copied: bool,
    is_broken: bool,
    is_sealed_early: bool,
    giving: Giving,
}

/// A target and its server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Side {
    /// Which maps it goes by, and has kept.
    map: usize,
    kept: usize,
    /// The newest write that it has, and has durably.
    content: Option<u8>,
    durable: Option<u8>,
    note: Option<Note>,
    // In memory.
    mover: Option<Mover>,
    /// A chain that may be gone since before the start.
    doubt: Option<Giving>,
    /// The call of the mover or of a write that is under way, and its answer.
    waits: Option<(Call, Option<bool>)>,
    /// The same for a question to the managers.
    asks: Option<(Question, Option<bool>)>,
    taking: Option<Taking<u8>>,
    seals: Vec<Copier<u8>>,
    /// Of the process.
    life: u8,
}

/// See [`ChainMoveModel`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    history: Vec<Map>,
    sides: [Side; 2],
    /// Calls on their way; each is taken out as it arrives.
    calls: Network<(usize, Call)>,
    /// Questions that managers have, for good.
    questions: Network<Question>,
    written: u8,
    acknowledged: u8,
    moves: u8,
    attempts: u8,
    starts: u8,
    unkept: u8,
}

/// A step.
#[derive(Clone, Debug)]
pub enum Action {
    /// A manager has the chain go to the other target.
    Plan,
    /// A manager gives the move up by itself.
    Cancel,
    /// A server gets a map, and keeps it or cannot.
    Learn(usize, usize, bool),
    /// A server keeps the map that it goes by.
    Keep(usize),
    /// A mover begins.
    Begin(usize),
    /// A mover does what is next.
    Go(usize),
    /// A mover has the taker make durable what it has, while the chain is answered for.
    SealEarly(usize),
    /// A mover finds that the chain is not to be moved any more, or that its copy is of no use.
    Abandon(usize),
    /// A call arrives.
    Deliver(usize),
    /// A seal comes to its end.
    Sealed(usize, usize),
    /// A giver hears the answer to its call.
    Hear(usize),
    /// It hears nothing, and does not wait any longer.
    TimeOut(usize),
    /// A giver asks a manager, or reaches none.
    Ask(usize, bool),
    /// A manager carries a question out, by a map that may be old; its answer gets there or not.
    CarryOut(usize, usize, bool),
    /// A giver hears a manager's answer, or none.
    HearManager(usize),
    /// A server looks whether a chain that may be gone is, by its map.
    See(usize),
    /// A server forgets a move that is over.
    ForgetTaking(usize),
    /// Chunks that are left over go, and then the note.
    RemoveLeftovers(usize),
    /// A client writes.
    Write(usize),
    /// A server is started anew, after a power cut or a kill.
    Start(usize, bool),
}

fn target(side: usize) -> TargetId {
    TargetId(side as u32)
}

fn epoch_of(map: usize) -> Epoch {
    Epoch(map as u64 + 1)
}

impl State {
    fn newest(&self) -> usize {
        self.history.len() - 1
    }

    fn seen(&self, map: usize) -> Seen {
        let Map { head, moving } = self.history[map];
        let moving = moving.map(|(to, since)| Move { to: target(to), since });
        Seen { epoch: epoch_of(map), head: Some(target(head)), moving }
    }

    fn seen_by(&self, side: usize) -> Seen {
        self.seen(self.sides[side].map)
    }

    fn is_closed(&self, side: usize) -> bool {
        let Side { mover, doubt, .. } = &self.sides[side];
        doubt.is_some() || mover.as_ref().is_some_and(|mover| mover.giving.is_closed())
    }

    fn answers(&self, side: usize) -> bool {
        answers(self.seen_by(side), target(side), self.is_closed(side))
    }
}

impl ChainMoveModel {
    /// A move that may be tried twice, with a write, and a start of either server.
    pub fn small() -> ChainMoveModel {
        ChainMoveModel {
            moves_max: 1,
            attempts_max: 2,
            writes_max: 1,
            starts_max: 1,
            power_cuts: true,
            unkept_max: 0,
            broken: None,
        }
    }

    fn is(&self, broken: Broken) -> bool {
        self.broken == Some(broken)
    }

    /// What a mover does next, if that is nothing that is waited for.
    fn may_go(&self, state: &State, at: usize) -> bool {
        let side = &state.sides[at];
        let Some(mover) = &side.mover else { return false };
        if side.waits.is_some() || side.asks.is_some() {
            return false;
        }
        let is_gone = mover.giving.is_ended_by(state.seen_by(at), target(at));
        match mover.giving.step() {
            Step::Note | Step::Close | Step::Seal => !mover.is_broken,
            Step::Ask { .. } => false,
            Step::AwaitMap => is_gone,
            Step::Reopen => true,
        }
    }

    fn call(&self, state: &mut State, at: usize, by: Copier<u8>, what: What) {
        let call = Call { by, what };
        state.calls.send((1 - at, call));
        state.sides[at].waits = Some((call, None));
    }

    fn go(&self, state: &mut State, at: usize) {
        let content = state.sides[at].content;
        let Some(mover) = &mut state.sides[at].mover else { return };
        let by = mover.by;
        if !mover.is_begun {
            return self.call(state, at, by, What::Begin);
        }
        if !mover.is_copied {
            return self.call(state, at, by, What::Put(content.unwrap_or(0)));
        }
        match mover.giving.step() {
            Step::Note => {
                let is_noted = !self.is(Broken::AskedBeforeNoted);
                mover.giving.noted();
                if is_noted {
                    state.sides[at].note = Some(Note::Leaving(by.since));
                }
            }
            Step::Close => {
                mover.giving.closed();
            }
            Step::Seal if self.is(Broken::AskedBeforeSealed) => mover.giving.sealed(),
            Step::Seal => self.call(state, at, by, What::Seal),
            Step::Ask { .. } => {}
            Step::AwaitMap => state.sides[at].mover = None,
            Step::Reopen => Self::reopen(&mut state.sides[at]),
        }
    }

    /// As a mover that ends without having moved its chain.
    fn reopen(side: &mut Side) {
        let Some(mover) = side.mover.take() else { return };
        if side.note == Some(Note::Leaving(mover.by.since)) {
            side.note = None;
        }
    }

    fn hear(&self, state: &mut State, at: usize, outcome: Option<bool>) {
        let Some((call, _)) = state.sides[at].waits.take() else { return };
        let is_write = matches!(call.what, What::Put(_));
        let Some(mover) = &mut state.sides[at].mover else { return };
        match (call.what, outcome) {
            (What::Begin, Some(true)) => mover.is_begun = true,
            (What::Put(_), Some(true)) => mover.is_copied = true,
            (What::Seal, Some(true)) if mover.giving.is_closed() => mover.giving.sealed(),
            (What::Seal, Some(true)) => {}
            // Its disk is busy: the chain is answered for meanwhile.
            (What::Seal, None) if mover.giving.is_closed() => mover.giving.not_yet(),
            _ => mover.is_broken = true,
        }
        if is_write && let What::Put(value) = call.what {
            // Here it was made in any case.
            state.acknowledged = state.acknowledged.max(value);
        }
    }

    fn deliver(&self, state: &mut State, at: usize) {
        let (to, call) = state.calls.take(at);
        let seen = state.seen_by(to);
        let side = &mut state.sides[to];
        let takes = side.taking.is_some_and(|taking| taking.takes(&call.by));
        let is_copier = takes || self.is(Broken::AnyCopierCounts);
        let is_done = match call.what {
            What::Begin => {
                let is_coming = is_coming(seen, target(to), call.by.since);
                let mut taking = side.taking.unwrap_or(Taking::new(call.by));
                if is_coming && self.is(Broken::AnyProcessBegins) && !taking.takes(&call.by) {
                    taking = Taking::new(call.by);
                }
                let is_good = is_coming && taking.begin(call.by);
                if is_good {
                    (side.taking, side.note) = (Some(taking), None);
                    (side.content, side.durable) = (None, None);
                }
                is_good
            }
            What::Put(value) => {
                if is_copier {
                    side.content = Some(value);
                }
                is_copier
            }
            What::Seal if is_copier => {
                if let Some(taking) = &mut side.taking {
                    taking.seal(&call.by);
                }
                return side.seals.push(call.by);
            }
            What::Seal => false,
        };
        self.answer(state, 1 - to, call, is_done);
    }

    fn answer(&self, state: &mut State, to: usize, call: Call, is_done: bool) {
        if let Some((waiting, answer)) = &mut state.sides[to].waits
            && *waiting == call
        {
            *answer = Some(is_done);
        }
    }

    fn seal_ends(&self, state: &mut State, at: usize, which: usize) {
        let side = &mut state.sides[at];
        let by = side.seals.remove(which);
        side.durable = side.content;
        side.note = Some(match self.is(Broken::SealedOverLaterNote) {
            true => Note::Arrived(by.since),
            false => arrived(side.note, by.since),
        });
        self.answer(state, 1 - at, Call { by, what: What::Seal }, true);
    }

    /// The question of the mover, or of a chain in doubt, that is to be asked next.
    fn question(&self, state: &State, at: usize) -> Option<Question> {
        let side = &state.sides[at];
        let giving = side.doubt.as_ref().or(side.mover.as_ref().map(|mover| &mover.giving))?;
        match giving.step() {
            Step::Ask { is_given_up } if side.asks.is_none() => {
                Some(Question { from: at, since: giving.since(), is_given_up })
            }
            _ => None,
        }
    }

    fn hear_manager(&self, state: &mut State, at: usize, told: Told) {
        let side = &mut state.sides[at];
        side.asks = None;
        let Some(giving) = side.doubt.as_mut().or(side.mover.as_mut().map(|mover| &mut mover.giving)) else {
            return;
        };
        if told == Told::Unknown && self.is(Broken::ReopenedWithoutProof) {
            side.doubt = None;
            return Self::reopen(side);
        }
        giving.told(told);
        if side.doubt.as_ref().is_some_and(|doubt| doubt.step() == Step::Reopen) {
            let since = side.doubt.take().map(|doubt| doubt.since());
            if side.note == since.map(Note::Leaving) {
                side.note = None;
            }
        }
    }

    fn carry_out(&self, state: &mut State, which: usize, view: usize, is_heard: bool) {
        let question = state.questions.messages()[which];
        let asked = (target(question.from), question.since);
        let decide = |map: usize| {
            let seen = state.seen(map);
            (end(&[seen.head.unwrap_or_default()], seen.moving, asked, question.is_given_up), seen)
        };
        let (mut ending, mut seen) = decide(view);
        // Nothing to be changed: one that does not prove it tells what it knows.
        if ending != Ending::Nothing || !self.is(Broken::ToldFromMemory) {
            (ending, seen) = decide(state.newest());
        }
        let mut head = seen.head;
        if let Ending::Finish(to) = ending {
            head = Some(to);
        }
        if ending != Ending::Nothing {
            let head = if head == Some(target(0)) { 0 } else { 1 };
            state.history.push(Map { head, moving: None });
        }
        let is_finished = head != Some(target(question.from));
        if let Some((asked, answer)) = &mut state.sides[question.from].asks
            && *asked == question
            && is_heard
        {
            *answer = Some(is_finished);
        }
    }

    fn is_left_over(&self, state: &State, at: usize) -> bool {
        let side = &state.sides[at];
        if side.kept < side.map && !self.is(Broken::ThrownAwayByUnkeptMap) {
            return false;
        }
        is_left_over(state.seen_by(at), target(at), side.note, side.taking.is_some())
    }

    fn see(&self, state: &mut State, at: usize) {
        let mut seen = state.seen_by(at);
        let side = &mut state.sides[at];
        let Some(doubt) = &mut side.doubt else { return };
        if self.is(Broken::AnyMapProves) {
            seen.epoch = Epoch(u64::MAX);
        }
        doubt.see(seen, target(at));
        if doubt.step() == Step::AwaitMap && doubt.is_ended_by(seen, target(at)) {
            (side.doubt, side.asks) = (None, None);
        }
    }

    fn write(&self, state: &mut State, at: usize) {
        state.written += 1;
        let value = state.written;
        let side = &mut state.sides[at];
        (side.content, side.durable) = (Some(value), Some(value));
        match side.mover.as_ref().filter(|mover| mover.is_copied && !mover.is_broken) {
            Some(mover) => {
                let by = mover.by;
                self.call(state, at, by, What::Put(value));
            }
            None => state.acknowledged = value,
        }
    }

    fn start(&self, state: &mut State, at: usize, is_power_cut: bool) {
        state.starts += 1;
        // What was said to the process that has ended, and is not said again, is gone with its connections.
        let waits = state.sides[1 - at].waits;
        state.calls.retain(|(to, call)| *to != at || waits.is_some_and(|(waiting, _)| waiting == *call));
        let side = &mut state.sides[at];
        if is_power_cut {
            side.content = side.durable;
        } else {
            side.durable = side.content;
        }
        *side = Side {
            map: side.kept,
            mover: None,
            doubt: side.note.and_then(Giving::recovered),
            waits: None,
            asks: None,
            taking: None,
            seals: Vec::new(),
            life: side.life + 1,
            ..side.clone()
        };
    }

    fn actions_of(&self, state: &State, at: usize, out: &mut Vec<Action>) {
        let side = &state.sides[at];
        let seen = state.seen_by(at);
        out.extend((side.map + 1..=state.newest()).map(|map| Action::Learn(at, map, true)));
        if state.unkept < self.unkept_max {
            out.extend((side.map + 1..=state.newest()).map(|map| Action::Learn(at, map, false)));
        }
        if side.kept < side.map {
            out.push(Action::Keep(at));
        }
        let moves = seen.head == Some(target(at)) && seen.moving.is_some();
        if moves && side.mover.is_none() && side.doubt.is_none() && state.attempts < self.attempts_max {
            out.push(Action::Begin(at));
        }
        if let Some(mover) = &side.mover {
            if self.may_go(state, at) {
                out.push(Action::Go(at));
            }
            let may_seal = mover.giving.may_seal() && !mover.is_broken && !mover.is_sealed_early;
            if may_seal && side.waits.is_none() {
                out.push(Action::SealEarly(at));
            }
            let is_wanted = seen.moving.is_some_and(|moving| moving.since == mover.by.since);
            let may_end = mover.giving.may_reopen() && mover.giving.step() != Step::Reopen;
            if may_end && side.waits.is_none() && side.asks.is_none() && (mover.is_broken || !is_wanted) {
                out.push(Action::Abandon(at));
            }
        }
        match &side.waits {
            Some((_, Some(_))) => out.push(Action::Hear(at)),
            Some((_, None)) => out.push(Action::TimeOut(at)),
            None => {}
        }
        if self.question(state, at).is_some() {
            out.extend([Action::Ask(at, true), Action::Ask(at, false)]);
        }
        if side.asks.is_some() {
            out.push(Action::HearManager(at));
        }
        if side.doubt.is_some() {
            out.push(Action::See(at));
        }
        if side.taking.is_some_and(|taking| is_over(seen, target(at), taking.since())) {
            out.push(Action::ForgetTaking(at));
        }
        if (side.content.is_some() || side.note.is_some()) && self.is_left_over(state, at) {
            out.push(Action::RemoveLeftovers(at));
        }
        out.extend((0..side.seals.len()).map(|which| Action::Sealed(at, which)));
        if state.written < self.writes_max && state.answers(at) && side.waits.is_none() {
            out.push(Action::Write(at));
        }
        if state.starts < self.starts_max {
            out.push(Action::Start(at, false));
            if self.power_cuts {
                out.push(Action::Start(at, true));
            }
        }
    }

    /// Whether somebody answers once nothing fails any more: all that is under way arrives, managers answer, maps come and are kept.
    fn comes_to_rest(&self, state: &State) -> bool {
        let mut state = state.clone();
        // LIMIT: of steps; what does not come to rest within them counts as never.
        for _ in 0..200 {
            for side in &mut state.sides {
                side.map = side.map.max(state.history.len() - 1);
                side.kept = side.map;
            }
            if (0..2).any(|at| state.answers(at)) {
                return true;
            }
            let mut actions = Vec::new();
            self.actions(&state, &mut actions);
            let is_good = |action: &&Action| {
                matches!(
                    action,
                    Action::See(_)
                        | Action::Hear(_)
                        | Action::Sealed(..)
                        | Action::Deliver(_)
                        | Action::Abandon(_)
                        | Action::Ask(_, true)
                )
            };
            let asks = (0..2).find(|at| state.sides[*at].asks.is_some());
            let next = actions.iter().find(|action| {
                is_good(action) && {
                    let mut next = state.clone();
                    self.apply(&mut next, action);
                    next != state
                }
            });
            match (next, asks) {
                (Some(action), _) => self.apply(&mut state, &action.clone()),
                (None, Some(at)) => {
                    let asked = state.sides[at].asks.as_ref().map(|(question, _)| *question);
                    let which = state.questions.messages().iter().position(|known| Some(*known) == asked);
                    self.carry_out(&mut state, which.unwrap_or(0), 0, true);
                    self.apply(&mut state, &Action::HearManager(at));
                }
                (None, None) => {
                    let go =
                        actions.iter().find(|action| matches!(action, Action::Go(_) | Action::TimeOut(_)));
                    match go {
                        Some(action) => self.apply(&mut state, &action.clone()),
                        None => return false,
                    }
                }
            }
        }
        false
    }
}
