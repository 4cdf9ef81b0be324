//! Which steps can be taken, what they do, and what must hold.

use super::{Action, Broken, ChainMoveModel, Map, Mover, Side, State, What, epoch_of};
use crate::explorer::Model;
use crate::network::Network;
use ashlar_replication::hand_over::chain::{Copier, Giving, Told};
use ashlar_types::Epoch;

impl Model for ChainMoveModel {
    type State = State;
    type Action = Action;

    fn initial(&self) -> Vec<State> {
        let side = |content: Option<u8>| Side {
            map: 0,
            kept: 0,
            content,
            durable: content,
            note: None,
            mover: None,
            doubt: None,
            waits: None,
            asks: None,
            taking: None,
            seals: Vec::new(),
            life: 0,
        };
        vec![State {
            history: vec![Map { head: 0, moving: None }],
            sides: [side(Some(0)), side(None)],
            calls: Network::default(),
            questions: Network::default(),
            written: 0,
            acknowledged: 0,
            moves: 0,
            attempts: 0,
            starts: 0,
            unkept: 0,
        }]
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        let newest = state.history[state.newest()];
        if state.moves < self.moves_max {
            out.push(if newest.moving.is_none() { Action::Plan } else { Action::Cancel });
        }
        for (at, (to, call)) in state.calls.messages().iter().enumerate() {
            let side = &state.sides[*to];
            // Asked for again until the map is there, and kept: what is noted of the chain goes; and an attempt begins when nothing of one before it is under way.
            let is_kept = side.kept >= side.map || self.is(Broken::ThrownAwayByUnkeptMap);
            let is_early = epoch_of(side.map) < call.by.since || !is_kept;
            let is_busy = side.taking.is_some_and(|taking| side.seals.iter().any(|by| taking.takes(by)));
            // LIMIT: seals of one attempt that wait for the disk at the same time.
            let is_full = side.seals.iter().filter(|by| **by == call.by).count() >= 2;
            let can_come = match call.what {
                What::Begin => !is_early && !is_busy,
                What::Put(_) => true,
                What::Seal => !is_full,
            };
            if can_come {
                out.push(Action::Deliver(at));
            }
        }
        for (at, question) in state.questions.messages().iter().enumerate() {
            let is_awaited = state.sides[question.from]
                .asks
                .as_ref()
                .is_some_and(|(asked, answer)| asked == question && answer.is_none());
            let views = if self.is(Broken::ToldFromMemory) { 0 } else { state.newest() };
            for view in views..=state.newest() {
                out.push(Action::CarryOut(at, view, false));
                if is_awaited {
                    out.push(Action::CarryOut(at, view, true));
                }
            }
        }
        (0..2).for_each(|at| self.actions_of(state, at, out));
    }

    fn apply(&self, state: &mut State, action: &Action) {
        match *action {
            Action::Plan => {
                state.moves += 1;
                let (map, since) = (state.history[state.newest()], epoch_of(state.history.len()));
                state.history.push(Map { head: map.head, moving: Some((1 - map.head, since)) });
            }
            Action::Cancel => {
                state.moves += 1;
                let map = state.history[state.newest()];
                state.history.push(Map { head: map.head, moving: None });
            }
            Action::Learn(at, map, is_kept) => {
                state.sides[at].map = map;
                if is_kept {
                    state.sides[at].kept = map;
                } else {
                    state.unkept += 1;
                }
            }
            Action::Keep(at) => state.sides[at].kept = state.sides[at].map,
            Action::Begin(at) => {
                state.attempts += 1;
                let since = state.seen_by(at).moving.map_or(Epoch(0), |moving| moving.since);
                let by = Copier { owner: state.sides[at].life, number: u64::from(state.attempts), since };
                state.sides[at].mover = Some(Mover {
                    by,
                    is_begun: false,
                    is_copied: false,
                    is_broken: false,
                    is_sealed_early: false,
                    giving: Giving::new(since),
                });
            }
            Action::Go(at) => self.go(state, at),
            Action::SealEarly(at) => {
                let Some(mover) = &mut state.sides[at].mover else { return };
                mover.is_sealed_early = true;
                let by = mover.by;
                self.call(state, at, by, What::Seal);
            }
            Action::Abandon(at) => Self::reopen(&mut state.sides[at]),
            Action::Deliver(which) => self.deliver(state, which),
            Action::Sealed(at, which) => self.seal_ends(state, at, which),
            Action::Hear(at) => {
                let outcome = state.sides[at].waits.and_then(|(_, answer)| answer);
                self.hear(state, at, outcome);
            }
            Action::TimeOut(at) => self.hear(state, at, None),
            Action::Ask(at, is_sent) => {
                let Some(question) = self.question(state, at) else { return };
                if is_sent {
                    state.questions.send(question);
                    state.sides[at].asks = Some((question, None));
                } else {
                    self.hear_manager(state, at, Told::NotAsked);
                }
            }
            Action::CarryOut(which, view, is_heard) => self.carry_out(state, which, view, is_heard),
            Action::HearManager(at) => {
                let answer = state.sides[at].asks.as_ref().and_then(|(_, answer)| *answer);
                let told = answer.map_or(Told::Unknown, |is_finished| Told::Ended { is_finished });
                self.hear_manager(state, at, told);
            }
            Action::See(at) => self.see(state, at),
            Action::ForgetTaking(at) => state.sides[at].taking = None,
            Action::RemoveLeftovers(at) => {
                let side = &mut state.sides[at];
                if side.content.is_some() {
                    (side.content, side.durable) = (None, None);
                } else {
                    side.note = None;
                }
            }
            Action::Write(at) => self.write(state, at),
            Action::Start(at, is_power_cut) => self.start(state, at, is_power_cut),
        }
    }

    fn violation(&self, state: &State) -> Option<String> {
        let both = (0..2).filter(|at| state.answers(*at)).count();
        if both == 2 {
            return Some("two targets answer for one chain".to_owned());
        }
        for at in (0..2).filter(|at| state.answers(*at)) {
            let content = state.sides[at].content;
            if content.is_none_or(|content| content < state.acknowledged) {
                return Some(format!("acknowledged was {}, and answered is {content:?}", state.acknowledged));
            }
        }
        (both == 0 && !self.comes_to_rest(state)).then(|| "nobody answers any more".to_owned())
    }

    fn milestones(&self, state: &State, reached: &mut dyn FnMut(&'static str)) {
        if state.answers(1) {
            reached("the chain has moved");
            if state.acknowledged > 0 {
                reached("the chain has moved with what was written");
            }
            if state.starts > 0 {
                reached("the chain has moved in spite of a start");
            }
        }
        if state.answers(0)
            && state.history.iter().any(|map| map.head == 1)
            && state.history.last().is_some_and(|map| map.head == 0)
        {
            reached("the chain has come back");
        }
        if state.sides[0].doubt.is_some() {
            reached("a start does not know whether the chain is gone");
        }
    }

    /// Calls that nobody waits for, and of which their receiver takes nothing any more, make no difference.
    fn canonicalize(&self, state: &mut State) {
        let sides = state.sides.clone();
        if !self.is(Broken::ToldFromMemory) {
            let moving = state.history[state.newest()].moving.map(|(_, since)| since);
            state.questions.retain(|question| {
                let asks = sides[question.from].asks.as_ref();
                moving == Some(question.since) || asks.is_some_and(|(asked, _)| asked == question)
            });
        }
        if self.is(Broken::AnyCopierCounts) {
            return;
        }
        state.calls.retain(|(to, call)| {
            let is_awaited = sides[1 - to].waits.is_some_and(|(waiting, _)| waiting == *call);
            let is_taken = sides[*to].taking.is_some_and(|taking| taking.takes(&call.by));
            let is_dead = !is_taken && call.what != What::Begin;
            is_awaited || !is_dead
        });
    }
}
