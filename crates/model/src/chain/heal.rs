//! From any state on, without any failure: every server runs, every call is answered, replicas learn what there is and get the epochs they ask for.

use super::{Answer, Asking, ChainModel, NOW, State, Task};
use ashlar_replication::chain::Command;
use ashlar_replication::membership;
use ashlar_types::NodeId;
use std::panic::{self, AssertUnwindSafe};
use std::time::Duration;

/// LIMIT: each brings everything one step further; the longest way is that of several replicas that are brought up to date one after the other.
const ROUNDS_MAX: u32 = 80;

impl ChainModel {
    /// What does not come to its end although nothing fails any more.
    pub(super) fn does_not_heal(&self, state: &State) -> Option<String> {
        let heal = || {
            let mut state = state.clone();
            for round in 0..ROUNDS_MAX {
                self.waiting(&state)?;
                self.round(&mut state, round);
            }
            self.waiting(&state).map(|what| format!("nothing fails any more, and {what}"))
        };
        panic::catch_unwind(AssertUnwindSafe(heal))
            .unwrap_or_else(|_| Some("assertion, once nothing fails any more".to_owned()))
    }

    fn round(&self, state: &mut State, round: u32) {
        state.calls.retain(|call| call.is_awaited);
        let newest = state.store.history().len() - 1;
        for id in self.ids() {
            let replica = &state.replicas[id.0 as usize];
            let is_member = state.store.current().is_member(id);
            match &replica.machine {
                None if replica.disk.member.is_some() => self.restart(state, id),
                None if is_member => self.learn(state, id, newest),
                None => continue,
                Some(machine) if machine.member().epoch() < state.store.current().epoch => {
                    self.learn(state, id, newest);
                }
                Some(_) => {}
            }
            if state.replicas[id.0 as usize].storing.is_some() {
                self.stored(state, id);
            }
            self.ask_to_take_part(state, id, round);
        }
        for request in state.store.requests().to_vec() {
            state.store.carry_out(&request);
        }
        state.store.forget_refused();
        for id in self.ids() {
            self.go_on(state, id);
        }
        while let Some(at) = state.calls.messages().iter().position(|call| self.is_heard(state, call)) {
            self.deliver(state, at);
        }
    }

    fn ask_to_take_part(&self, state: &mut State, id: NodeId, round: u32) {
        let mut out: Vec<Command<NodeId>> = Vec::new();
        let machine = state.replicas[id.0 as usize].machine.as_mut();
        if let Some(machine) = machine.filter(|machine| !machine.member().is_active()) {
            machine.member_mut().tick(NOW + Duration::from_secs(round.into()), &mut out);
        }
        self.ask_who_is_there(state, id, &out);
        self.run(state, id, out);
    }

    /// Whoever takes no part asks the others for nothing else.
    fn ask_who_is_there(&self, state: &mut State, id: NodeId, asked: &[Command<NodeId>]) {
        for command in asked {
            let Command::Member(membership::Command::Beacon { to, epoch, sent_at }) = *command else {
                continue;
            };
            let mut granted: Vec<Command<NodeId>> = Vec::new();
            if let Some(other) = &mut state.replicas[to.0 as usize].machine {
                other.member_mut().beacon(id, epoch, sent_at, NOW, &mut granted);
            }
            let machine = state.replicas[id.0 as usize].machine.as_mut();
            if let Some(machine) = machine.filter(|_| !granted.is_empty()) {
                machine.member_mut().granted(to, epoch, sent_at, &mut Vec::<Command<NodeId>>::new());
            }
        }
    }

    /// Everything that `id` does by itself.
    fn go_on(&self, state: &mut State, id: NodeId) {
        if state.replicas[id.0 as usize].machine.is_none() {
            return;
        }
        for chunk in 0..self.chunks {
            match &state.replicas[id.0 as usize].tasks[usize::from(chunk)] {
                None if self.settles(state, id, chunk) => self.settle(state, id, chunk),
                None => {}
                Some(Task::Change { is_made: false, .. }) => self.make(state, id, chunk),
                Some(Task::Change { answer: Some(Answer::Awaited), .. }) => {}
                Some(Task::Settle { answer: Answer::Awaited, .. }) => {}
                Some(_) => self.end(state, id, chunk),
            }
        }
        match &state.replicas[id.0 as usize].asking {
            Some(Asking::Emptying { answer: Answer::Awaited, .. }) => {}
            Some(_) => self.compared(state, id),
            None if self.asks(state, id) => self.compare(state, id),
            None => {}
        }
        let machine = state.replicas[id.0 as usize].machine.as_ref();
        if machine.is_some_and(|machine| machine.has_caught_up().is_some()) {
            self.promote(state, id);
        }
    }

    /// What is not as it is to be in the end.
    fn waiting(&self, state: &State) -> Option<&'static str> {
        let current = state.store.current();
        if !current.catching_up.is_empty() {
            return Some("a replica is not promoted");
        }
        if !state.calls.messages().iter().all(|call| !call.is_awaited)
            || state.replicas.iter().any(|replica| replica.tasks.iter().any(Option::is_some))
        {
            return Some("a call is not answered");
        }
        for id in &current.in_sync {
            let replica = &state.replicas[id.0 as usize];
            let Some(machine) = &replica.machine else { return Some("a replica is down") };
            if !machine.member().is_active() || machine.member().epoch() != current.epoch {
                return Some("a replica does not take part");
            }
            if machine.to_compare().is_some() || machine.unsettled_count() > 0 {
                return Some("a chunk is not settled");
            }
            if !machine.uncertain().is_empty() {
                return Some("a chunk is doubtful");
            }
            if replica.disk.chunks != state.replicas[current.primary().0 as usize].disk.chunks {
                return Some("replicas differ");
            }
        }
        None
    }
}
