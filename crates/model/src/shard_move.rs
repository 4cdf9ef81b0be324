//! Model of a metadata shard that goes back and forth between two servers (ADR 0016), over the production decisions of `ashlar_replication::hand_over::shard`.
//!
//! What is around them here: maps that come late, and epochs that change for other reasons; managers that carry questions out at any time, any number of times, and whose answers are lost; what
//! the servers say to each other, which arrives any number of times, at any later time, or never; servers that stop in good order or are killed, at any moment.

use crate::explorer::Model;
use crate::network::Network;
use ashlar_replication::hand_over::shard::{
    Deciding, Found, Step, Told, does_not_come, found_at_start, transfer,
};
use ashlar_types::Epoch;

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The sender serves again when it does not know what has become of its question.
    ServedWithoutProof,
    /// A sender that stops has the receiver forget the shard although its question may be carried out yet.
    GaveUpWithoutProof,
    /// A manager refuses by what it remembers, without a compare-and-set.
    RefusedFromMemory,
    /// A server starts without a new epoch.
    NoNewEpoch,
    /// The epoch is looked at after the receiver was asked.
    LookedAfterwards,
    /// A question that is asked once more has a newer epoch.
    AskedByNewerMap,
    /// A manager does not compare epochs.
    AnyEpochCounts,
    /// A shard comes back to a server that has not heard yet that it has gone.
    CameBackTooSoon,
    /// A receiver believes a sender that knows of no move, by an older map than the sender's.
    ForgottenByOldMap,
}

/// Bounds of an exploration.
#[derive(Clone, Debug)]
pub struct ShardMoveModel {
    /// Attempts to send the shard.
    pub attempts_max: u8,
    /// Writes of clients.
    pub writes_max: u8,
    /// Starts of servers.
    pub starts_max: u8,
    /// Maps that are made for other reasons.
    pub others_max: u8,
    /// What is broken on purpose.
    pub broken: Option<Broken>,
}

/// A sender, from the moment at which its shard is closed, or before that.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Sender {
    attempt: u8,
    is_begun: bool,
    /// Its gate is closed.
    is_closed: bool,
    is_whole: bool,
    /// The epoch that was looked at, before the receiver was asked.
    looked: Option<Epoch>,
    deciding: Deciding,
    /// The question that is asked, and its answer.
    asks: Option<(Question, Option<bool>)>,
}

/// What the sender says, or the receiver answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Word {
    Begin {
        attempt: u8,
        epoch: Epoch,
    },
    Begun {
        attempt: u8,
    },
    Whole {
        attempt: u8,
        content: u8,
    },
    /// Asked after the map of `looked` was looked at.
    IsWhole {
        attempt: u8,
        looked: Epoch,
    },
    /// The answer to either; `None`: to the first.
    ItIs {
        attempt: u8,
        looked: Option<Epoch>,
    },
    GiveUp {
        attempt: u8,
    },
    /// A receiver asks whether it still comes.
    IsSending {
        attempt: u8,
    },
    NoSuchMove {
        attempt: u8,
        epoch: Epoch,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Question {
    from: usize,
    seen: Epoch,
    attempt: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Arriving {
    attempt: u8,
    is_whole: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Side {
    is_up: bool,
    map: usize,
    /// The newest write that its log has of the shard.
    content: Option<u8>,
    /// Whether the shard is noted as coming, and whole.
    note: Option<bool>,
    sender: Option<Sender>,
    arriving: Option<Arriving>,
}

/// See [`ShardMoveModel`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Whose the shard is, by map.
    history: Vec<usize>,
    sides: [Side; 2],
    words: Network<(usize, Word)>,
    questions: Network<Question>,
    written: u8,
    acknowledged: u8,
    attempts: u8,
    starts: u8,
    others: u8,
    what_must_not_be: Option<&'static str>,
}

/// A step.
#[derive(Clone, Debug)]
pub enum Action {
    /// A map is made for another reason.
    Other,
    /// A server gets a map.
    Learn(usize, usize),
    /// A server begins to send the shard.
    Begin(usize),
    /// It closes the gate.
    Close(usize),
    /// It says what is next, or says it once more.
    Say(usize),
    /// What was said arrives.
    Deliver(usize),
    /// The sender asks a manager, or reaches none.
    Ask(usize, bool),
    /// A manager carries a question out, by a map that may be old; its answer gets there or not.
    CarryOut(usize, usize, bool),
    /// The sender hears a manager's answer, or none.
    HearManager(usize),
    /// The sender has a newer map than the one by which it was refused.
    Newer(usize),
    /// The sender keeps the shard.
    Keep(usize),
    /// The sender finds that its map says that the shard is given.
    Given(usize),
    /// The receiver serves what has come.
    Serve(usize),
    /// The receiver asks whether the shard still comes.
    Wonder(usize),
    /// What is left of a shard that is elsewhere goes.
    Clear(usize),
    /// A client writes.
    Write(usize),
    /// A server ends, in good order (`true`) or not.
    End(usize, bool),
    /// It is started anew.
    Start(usize),
}

fn epoch_of(map: usize) -> Epoch {
    Epoch(map as u64 + 1)
}

impl State {
    fn newest(&self) -> usize {
        self.history.len() - 1
    }

    fn epoch(&self, side: usize) -> Epoch {
        epoch_of(self.sides[side].map)
    }

    fn is_mine(&self, side: usize) -> bool {
        self.history[self.sides[side].map] == side
    }

    fn serves(&self, at: usize) -> bool {
        let side = &self.sides[at];
        let is_closed = side.sender.as_ref().is_some_and(|sender| sender.is_closed);
        side.is_up && self.is_mine(at) && !is_closed && side.arriving.is_none()
    }
}

impl ShardMoveModel {
    /// An attempt, a write, and a start of either server.
    pub fn small() -> ShardMoveModel {
        ShardMoveModel { attempts_max: 1, writes_max: 1, starts_max: 1, others_max: 1, broken: None }
    }

    fn is(&self, broken: Broken) -> bool {
        self.broken == Some(broken)
    }

    /// What the sender says next.
    fn word(&self, state: &State, at: usize) -> Option<Word> {
        let sender = state.sides[at].sender.as_ref()?;
        let attempt = sender.attempt;
        if !sender.is_begun {
            return Some(Word::Begin { attempt, epoch: state.epoch(at) });
        }
        if !sender.is_closed {
            return None;
        }
        if !sender.is_whole {
            return Some(Word::Whole { attempt, content: state.sides[at].content.unwrap_or(0) });
        }
        let looked = sender.looked.unwrap_or(state.epoch(at));
        (sender.deciding.step() == Step::Look).then_some(Word::IsWhole { attempt, looked })
    }

    fn say(&self, state: &mut State, at: usize) {
        let Some(word) = self.word(state, at) else { return };
        if let (Word::IsWhole { looked, .. }, Some(sender)) = (word, &mut state.sides[at].sender) {
            // ORDER: before the receiver is asked.
            sender.looked = Some(looked);
        }
        state.words.send((1 - at, word));
    }

    fn deliver(&self, state: &mut State, which: usize) {
        let (to, word) = state.words.messages()[which];
        if !state.sides[to].is_up {
            return;
        }
        match word {
            Word::Begun { .. } | Word::ItIs { .. } => self.hear(state, to, word),
            Word::Begin { attempt, epoch } => self.begin_arriving(state, to, attempt, epoch),
            Word::Whole { attempt, content } => {
                let side = &mut state.sides[to];
                let Some(arriving) = side.arriving.as_mut().filter(|known| known.attempt == attempt) else {
                    return;
                };
                if !arriving.is_whole {
                    (arriving.is_whole, side.content, side.note) = (true, Some(content), Some(true));
                }
                state.words.send((1 - to, Word::ItIs { attempt, looked: None }));
            }
            Word::IsWhole { attempt, looked } => {
                let known = state.sides[to].arriving.as_ref();
                if known.is_some_and(|known| known.attempt == attempt && known.is_whole) {
                    state.words.send((1 - to, Word::ItIs { attempt, looked: Some(looked) }));
                }
            }
            Word::GiveUp { attempt } => Self::forget(&mut state.sides[to], attempt),
            Word::IsSending { attempt } => {
                let is_sending =
                    state.sides[to].sender.as_ref().is_some_and(|known| known.attempt == attempt);
                if !is_sending {
                    let epoch = state.epoch(to);
                    state.words.send((1 - to, Word::NoSuchMove { attempt, epoch }));
                }
            }
            Word::NoSuchMove { attempt, epoch } => {
                let told = if self.is(Broken::ForgottenByOldMap) { Epoch(0) } else { epoch };
                if does_not_come(state.epoch(to), told, state.is_mine(to)) {
                    Self::forget(&mut state.sides[to], attempt);
                }
            }
        }
    }

    fn begin_arriving(&self, state: &mut State, to: usize, attempt: u8, epoch: Epoch) {
        let is_giving = state.sides[to].sender.is_some() && !self.is(Broken::CameBackTooSoon);
        if state.epoch(to) < epoch || state.history[state.sides[to].map] != 1 - to || is_giving {
            return;
        }
        let side = &mut state.sides[to];
        let known = side.arriving.as_ref().map(|known| known.attempt);
        // Said once more; or an attempt from before, which comes late.
        if known.is_some_and(|known| known > attempt) {
            return;
        }
        if known != Some(attempt) {
            side.arriving = Some(Arriving { attempt, is_whole: false });
            (side.content, side.note) = (None, Some(false));
        }
        state.words.send((1 - to, Word::Begun { attempt }));
    }

    fn forget(side: &mut Side, attempt: u8) {
        if side.arriving.as_ref().is_some_and(|known| known.attempt == attempt) {
            (side.arriving, side.note, side.content) = (None, None, None);
        }
    }

    fn hear(&self, state: &mut State, at: usize, word: Word) {
        let epoch = state.epoch(at);
        let Some(sender) = &mut state.sides[at].sender else { return };
        match word {
            Word::Begun { attempt } if attempt == sender.attempt => sender.is_begun = true,
            Word::ItIs { attempt, looked: None } if attempt == sender.attempt => sender.is_whole = true,
            Word::ItIs { attempt, looked } if attempt == sender.attempt && looked == sender.looked => {
                if let (Step::Look, Some(seen)) = (sender.deciding.step(), sender.looked.take()) {
                    sender.deciding.whole(if self.is(Broken::LookedAfterwards) { epoch } else { seen });
                }
            }
            _ => {}
        }
    }

    fn question(&self, state: &State, at: usize) -> Option<Question> {
        let sender = state.sides[at].sender.as_ref()?;
        let Step::Ask(seen) = sender.deciding.step() else { return None };
        let seen = if self.is(Broken::AskedByNewerMap) { state.epoch(at) } else { seen };
        sender.asks.is_none().then_some(Question { from: at, seen, attempt: sender.attempt })
    }

    fn carry_out(&self, state: &mut State, which: usize, view: usize, is_heard: bool) {
        let question = state.questions.messages()[which];
        let (from, to) = (question.from, 1 - question.from);
        let decide = |map: usize| {
            let epoch = if self.is(Broken::AnyEpochCounts) { question.seen } else { epoch_of(map) };
            transfer(epoch, &state.history[map], &from, question.seen)
        };
        let mut decided = decide(view);
        if decided.is_some() || !self.is(Broken::RefusedFromMemory) {
            decided = decide(state.newest());
        }
        if decided == Some(true) {
            state.history.push(to);
        }
        if let Some(sender) = &mut state.sides[from].sender
            && let Some((asked, answer)) = &mut sender.asks
            && *asked == question
            && is_heard
        {
            *answer = Some(decided.is_some());
        }
    }

    fn hear_manager(&self, state: &mut State, at: usize, told: Told) {
        let Some(sender) = &mut state.sides[at].sender else { return };
        sender.asks = None;
        sender.deciding.told(told);
        let is_not_asked = told == Told::NotAsked && sender.deciding.may_keep();
        if is_not_asked || told == Told::Unknown && self.is(Broken::ServedWithoutProof) {
            self.keep(state, at);
        }
    }

    /// The shard stays, and the receiver is told.
    fn keep(&self, state: &mut State, at: usize) {
        if let Some(sender) = state.sides[at].sender.take() {
            state.words.send((1 - at, Word::GiveUp { attempt: sender.attempt }));
        }
    }

    fn start(&self, state: &mut State, at: usize) {
        if !self.is(Broken::NoNewEpoch) {
            state.history.push(state.history[state.newest()]);
        }
        state.sides[at].map = state.newest();
        let is_mine = state.is_mine(at);
        let side = &mut state.sides[at];
        side.is_up = true;
        if let Some(is_whole) = side.note.take() {
            match found_at_start(is_whole, is_mine) {
                Found::Come => {}
                Found::NotWhole => state.what_must_not_be = Some("a shard that is not whole was given"),
                Found::DoesNotCome => side.content = None,
            }
        }
    }

    fn actions_of(&self, state: &State, at: usize, out: &mut Vec<Action>) {
        let side = &state.sides[at];
        if !side.is_up {
            return out.push(Action::Start(at));
        }
        out.extend((side.map + 1..=state.newest()).map(|map| Action::Learn(at, map)));
        if state.starts < self.starts_max {
            out.extend([Action::End(at, true), Action::End(at, false)]);
        }
        if state.serves(at) && side.sender.is_none() && state.attempts < self.attempts_max {
            out.push(Action::Begin(at));
        }
        if let Some(sender) = &side.sender {
            if sender.is_begun && !sender.is_closed {
                out.push(Action::Close(at));
            }
            if self.word(state, at).is_some() {
                out.push(Action::Say(at));
            }
            if self.question(state, at).is_some() {
                out.extend([Action::Ask(at, true), Action::Ask(at, false)]);
            }
            if sender.asks.is_some() {
                out.push(Action::HearManager(at));
            }
            if matches!(sender.deciding.step(), Step::AwaitNewer(seen) if state.epoch(at) > seen) {
                out.push(Action::Newer(at));
            }
            if sender.deciding.may_keep() && sender.asks.is_none() {
                out.push(Action::Keep(at));
            }
            if !state.is_mine(at) {
                out.push(Action::Given(at));
            }
        }
        if let Some(arriving) = &side.arriving {
            out.push(Action::Wonder(at));
            if arriving.is_whole && state.is_mine(at) {
                out.push(Action::Serve(at));
            }
        }
        if side.content.is_some() && !state.is_mine(at) && side.arriving.is_none() && side.sender.is_none() {
            out.push(Action::Clear(at));
        }
        if state.serves(at) && state.written < self.writes_max {
            out.push(Action::Write(at));
        }
    }

    /// Whether somebody serves once nothing fails any more.
    fn comes_to_rest(&self, state: &State) -> bool {
        let mut state = state.clone();
        // LIMIT: of steps; what does not come to rest within them counts as never.
        for _ in 0..100 {
            for at in 0..2 {
                if !state.sides[at].is_up {
                    self.start(&mut state, at);
                }
                state.sides[at].map = state.newest();
            }
            if (0..2).any(|at| state.serves(at)) {
                return true;
            }
            let asks = (0..2).find_map(|at| {
                Some((at, state.sides[at].sender.as_ref()?.asks.as_ref().map(|(asked, _)| *asked)?))
            });
            if let Some((at, asked)) = asks {
                let which = state.questions.messages().iter().position(|known| *known == asked);
                self.carry_out(&mut state, which.unwrap_or(0), 0, true);
                self.apply(&mut state, &Action::HearManager(at));
                continue;
            }
            let mut actions = Vec::new();
            self.actions(&state, &mut actions);
            let good = actions.into_iter().find(|action| {
                let is_good = matches!(
                    action,
                    Action::Serve(_)
                        | Action::Given(_)
                        | Action::Ask(_, true)
                        | Action::Newer(_)
                        | Action::Keep(_)
                );
                is_good && {
                    let mut next = state.clone();
                    self.apply(&mut next, action);
                    next != state
                }
            });
            match good {
                Some(action) => self.apply(&mut state, &action),
                None => return false,
            }
        }
        false
    }
}

impl Model for ShardMoveModel {
    type State = State;
    type Action = Action;

    fn initial(&self) -> Vec<State> {
        let side = |content| Side { is_up: true, map: 0, content, note: None, sender: None, arriving: None };
        vec![State {
            history: vec![0],
            sides: [side(Some(0)), side(None)],
            words: Network::default(),
            questions: Network::default(),
            written: 0,
            acknowledged: 0,
            attempts: 0,
            starts: 0,
            others: 0,
            what_must_not_be: None,
        }]
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        if state.others < self.others_max {
            out.push(Action::Other);
        }
        out.extend((0..state.words.messages().len()).map(Action::Deliver));
        for (which, question) in state.questions.messages().iter().enumerate() {
            let asks = state.sides[question.from].sender.as_ref().and_then(|sender| sender.asks.as_ref());
            let is_awaited = asks.is_some_and(|(asked, answer)| asked == question && answer.is_none());
            let first = if self.is(Broken::RefusedFromMemory) { 0 } else { state.newest() };
            for view in first..=state.newest() {
                out.push(Action::CarryOut(which, view, false));
                if is_awaited {
                    out.push(Action::CarryOut(which, view, true));
                }
            }
        }
        (0..2).for_each(|at| self.actions_of(state, at, out));
    }

    fn apply(&self, state: &mut State, action: &Action) {
        match *action {
            Action::Other => {
                state.others += 1;
                state.history.push(state.history[state.newest()]);
            }
            Action::Learn(at, map) => state.sides[at].map = map,
            Action::Begin(at) => {
                state.attempts += 1;
                state.sides[at].sender = Some(Sender {
                    attempt: state.attempts,
                    is_begun: false,
                    is_closed: false,
                    is_whole: false,
                    looked: None,
                    deciding: Deciding::default(),
                    asks: None,
                });
            }
            Action::Close(at) => {
                if let Some(sender) = &mut state.sides[at].sender {
                    sender.is_closed = true;
                }
            }
            Action::Say(at) => self.say(state, at),
            Action::Deliver(which) => self.deliver(state, which),
            Action::Ask(at, is_sent) => {
                let Some(question) = self.question(state, at) else { return };
                if !is_sent {
                    if let Some(sender) = &mut state.sides[at].sender {
                        sender.deciding.asking();
                    }
                    return self.hear_manager(state, at, Told::NotAsked);
                }
                state.questions.send(question);
                if let Some(sender) = &mut state.sides[at].sender {
                    sender.deciding.asking();
                    sender.asks = Some((question, None));
                }
            }
            Action::CarryOut(which, view, is_heard) => self.carry_out(state, which, view, is_heard),
            Action::HearManager(at) => {
                let asks = state.sides[at].sender.as_ref().and_then(|sender| sender.asks.as_ref());
                let told = match asks.and_then(|(_, answer)| *answer) {
                    Some(true) => Told::Done,
                    Some(false) => Told::Refused,
                    None => Told::Unknown,
                };
                self.hear_manager(state, at, told);
            }
            Action::Newer(at) => {
                if let Some(sender) = &mut state.sides[at].sender {
                    sender.deciding.newer();
                }
            }
            Action::Keep(at) => self.keep(state, at),
            Action::Given(at) => state.sides[at].sender = None,
            Action::Serve(at) => (state.sides[at].arriving, state.sides[at].note) = (None, None),
            Action::Wonder(at) => {
                if let Some(arriving) = &state.sides[at].arriving {
                    let attempt = arriving.attempt;
                    state.words.send((1 - at, Word::IsSending { attempt }));
                }
            }
            Action::Clear(at) => state.sides[at].content = None,
            Action::Write(at) => {
                state.written += 1;
                (state.sides[at].content, state.acknowledged) = (Some(state.written), state.written);
            }
            Action::End(at, is_in_order) => {
                state.starts += 1;
                let may_tell =
                    |sender: &Sender| sender.deciding.may_keep() || self.is(Broken::GaveUpWithoutProof);
                if is_in_order && state.sides[at].sender.as_ref().is_some_and(may_tell) {
                    self.keep(state, at);
                }
                let side = &mut state.sides[at];
                (side.is_up, side.sender, side.arriving) = (false, None, None);
            }
            Action::Start(at) => self.start(state, at),
        }
    }

    fn violation(&self, state: &State) -> Option<String> {
        if let Some(what) = state.what_must_not_be {
            return Some(what.to_owned());
        }
        let both = (0..2).filter(|at| state.serves(*at)).count();
        if both == 2 {
            return Some("two servers serve one shard".to_owned());
        }
        for at in (0..2).filter(|at| state.serves(*at)) {
            let content = state.sides[at].content;
            if content.is_none_or(|content| content < state.acknowledged) {
                return Some(format!("acknowledged was {}, and served is {content:?}", state.acknowledged));
            }
        }
        (both == 0 && !self.comes_to_rest(state)).then(|| "nobody serves any more".to_owned())
    }

    fn milestones(&self, state: &State, reached: &mut dyn FnMut(&'static str)) {
        if state.serves(1) {
            reached("the shard has moved");
            if state.acknowledged > 0 {
                reached("the shard has moved with what was written");
            }
            if state.starts > 0 {
                reached("the shard has moved in spite of a start");
            }
        }
        if state.serves(0) && state.history.contains(&1) {
            reached("the shard has come back");
        }
        if state.serves(0) && state.attempts > 0 {
            reached("the shard has stayed after all");
        }
    }

    /// Words of attempts that both have forgotten.
    fn canonicalize(&self, state: &mut State) {
        let sides = state.sides.clone();
        state.words.retain(|(to, word)| {
            let sends = |attempt: u8| {
                sides.iter().any(|side| side.sender.as_ref().is_some_and(|known| known.attempt == attempt))
            };
            let comes =
                |attempt: u8| sides[*to].arriving.as_ref().is_some_and(|known| known.attempt == attempt);
            match *word {
                Word::Begin { .. } => true,
                Word::Begun { attempt } | Word::ItIs { attempt, .. } => sends(attempt),
                Word::Whole { attempt, .. }
                | Word::IsWhole { attempt, .. }
                | Word::GiveUp { attempt }
                | Word::NoSuchMove { attempt, .. } => comes(attempt),
                Word::IsSending { attempt } => {
                    sides[1 - to].arriving.as_ref().is_some_and(|known| known.attempt == attempt)
                }
            }
        });
    }
}
