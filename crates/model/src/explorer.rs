//! Exhaustive exploration, breadth first: every state that a model can reach, each looked at once.
//!
//! A state is known by a 64-bit fingerprint (SipHash of its whole value). Two states that share one would hide one of them; with
//! n states the chance is below n² / 2⁶⁵, one in a million at six million states. What is kept of a state that was expanded is its
//! fingerprint and where it came from; the way to a violation is found by walking it again.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::panic::{self, AssertUnwindSafe};
use std::time::{Duration, Instant};

/// Something to explore.
pub trait Model {
    /// All there is: replicas, disks, messages under way, and what an observer has seen.
    type State: Clone + Hash;
    /// One step of one party.
    type Action: Clone + Debug;

    /// Where it begins.
    fn initial(&self) -> Vec<Self::State>;

    /// Every step that can be taken next.
    fn actions(&self, state: &Self::State, out: &mut Vec<Self::Action>);

    /// Takes a step.
    fn apply(&self, state: &mut Self::State, action: &Self::Action);

    /// The property that does not hold in this state, if one does not.
    fn violation(&self, state: &Self::State) -> Option<String>;

    /// What should not be so in a state that no step changes any more: all that was sent has arrived, all that is down is up again.
    fn stuck(&self, _state: &Self::State) -> Option<String> {
        None
    }

    /// What is worth counting about a state, so that a model that explores nothing of interest is noticed.
    fn milestones(&self, _state: &Self::State, _reached: &mut dyn FnMut(&'static str)) {}

    /// Drops what can make no difference any more, so that fewer states differ. Must not hide a step.
    fn canonicalize(&self, _state: &mut Self::State) {}
}

/// What an exploration found.
#[derive(Debug)]
pub struct Outcome<A> {
    /// Different states.
    pub states: u64,
    /// Steps taken, those to known states included.
    pub steps: u64,
    /// Steps of the longest of the shortest ways to a state.
    pub depth: u32,
    /// How long it took.
    pub elapsed: Duration,
    /// Whether every reachable state was looked at.
    pub is_complete: bool,
    /// How many states had each milestone.
    pub milestones: Vec<(&'static str, u64)>,
    /// The first violation in breadth-first order, with the shortest way to it.
    pub violation: Option<Violation<A>>,
}

/// A broken property and the steps that break it.
#[derive(Debug)]
pub struct Violation<A> {
    /// The property.
    pub what: String,
    /// From an initial state on.
    pub steps: Vec<A>,
}

impl<A: Debug> Outcome<A> {
    /// How often `milestone` was reached.
    pub fn count(&self, milestone: &str) -> u64 {
        self.milestones.iter().find(|(name, _)| *name == milestone).map_or(0, |(_, count)| *count)
    }

    /// How much was explored, in a line.
    pub fn summary(&self) -> String {
        let Outcome { states, steps, depth, .. } = self;
        let seconds = self.elapsed.as_secs_f64();
        let end = match (&self.violation, self.is_complete) {
            (Some(_), _) => "violation",
            (None, true) => "all states",
            (None, false) => "not all states",
        };
        format!("{end}: {states} states, {steps} steps, depth {depth}, {seconds:.1} s, {:?}", self.milestones)
    }

    /// The violation as numbered lines.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        if let Some(violation) = &self.violation {
            text.push_str(&violation.what);
            for (number, step) in violation.steps.iter().enumerate() {
                text.push_str(&format!("\n  {}. {step:?}", number + 1));
            }
        }
        text
    }
}

/// Fingerprints are hashes already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only fingerprints are hashed");
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// Parent of each state that was seen; an initial state is its own.
type Seen = HashMap<u64, u64, BuildHasherDefault<Identity>>;

fn fingerprint<S: Hash>(state: &S) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

/// Explores `model` until nothing new is found, a property is broken, or `states_max` states were seen.
pub fn explore<M: Model>(model: &M, states_max: u64) -> Outcome<M::Action> {
    let start = Instant::now();
    let mut search = Search::new(model);
    let found = search.run(states_max);
    let Search { mut outcome, seen, .. } = search;
    outcome.violation = found.map(|Found { what, print, last }| {
        let mut steps = retrace(model, &seen, print);
        steps.extend(last);
        Violation { what, steps }
    });
    outcome.is_complete &= outcome.violation.is_none();
    outcome.elapsed = start.elapsed();
    outcome
}

/// A violation in the state with `print`, or by a step from there.
struct Found<A> {
    what: String,
    print: u64,
    last: Option<A>,
}

/// A search under way.
struct Search<'a, M: Model> {
    model: &'a M,
    seen: Seen,
    /// States that are known and were not looked at, with fingerprint and depth.
    queue: VecDeque<(M::State, u64, u32)>,
    outcome: Outcome<M::Action>,
}

impl<'a, M: Model> Search<'a, M> {
    fn new(model: &'a M) -> Search<'a, M> {
        let outcome = Outcome {
            states: 0,
            steps: 0,
            depth: 0,
            elapsed: Duration::ZERO,
            is_complete: true,
            milestones: Vec::new(),
            violation: None,
        };
        let mut search = Search { model, seen: Seen::default(), queue: VecDeque::new(), outcome };
        for mut state in model.initial() {
            model.canonicalize(&mut state);
            let print = fingerprint(&state);
            search.add(state, print, print, 0);
        }
        search
    }

    fn add(&mut self, state: M::State, print: u64, parent: u64, depth: u32) {
        if let Entry::Vacant(entry) = self.seen.entry(print) {
            entry.insert(parent);
            self.queue.push_back((state, print, depth));
        }
    }

    fn run(&mut self, states_max: u64) -> Option<Found<M::Action>> {
        let mut actions = Vec::new();
        while let Some((state, print, depth)) = self.queue.pop_front() {
            self.outcome.states += 1;
            self.outcome.depth = depth;
            self.model.milestones(&state, &mut |name| count(&mut self.outcome.milestones, name));
            if let Some(what) = self.model.violation(&state) {
                return Some(Found { what, print, last: None });
            }
            if self.outcome.states >= states_max {
                self.outcome.is_complete = self.queue.is_empty();
                return None;
            }
            actions.clear();
            self.model.actions(&state, &mut actions);
            let mut is_stuck = true;
            for action in &actions {
                self.outcome.steps += 1;
                let next = match step(self.model, &state, action) {
                    Ok(next) => next,
                    Err(what) => return Some(Found { what, print, last: Some(action.clone()) }),
                };
                let next_print = fingerprint(&next);
                is_stuck &= next_print == print;
                self.add(next, next_print, print, depth + 1);
            }
            if is_stuck && let Some(what) = self.model.stuck(&state) {
                return Some(Found { what, print, last: None });
            }
        }
        None
    }
}

/// The state after `action`. An assertion of a machine that fails breaks a property, too.
fn step<M: Model>(model: &M, state: &M::State, action: &M::Action) -> Result<M::State, String> {
    let take = || {
        let mut next = state.clone();
        model.apply(&mut next, action);
        model.canonicalize(&mut next);
        next
    };
    panic::catch_unwind(AssertUnwindSafe(take)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        format!("assertion: {}", text.unwrap_or("without a text"))
    })
}

fn count(milestones: &mut Vec<(&'static str, u64)>, name: &'static str) {
    match milestones.iter_mut().find(|(known, _)| *known == name) {
        Some((_, count)) => *count += 1,
        None => milestones.push((name, 1)),
    }
}

/// The steps from an initial state to the one with `print`.
fn retrace<M: Model>(model: &M, seen: &Seen, mut print: u64) -> Vec<M::Action> {
    let mut prints = vec![print];
    while seen[&print] != print {
        print = seen[&print];
        prints.push(print);
    }
    prints.reverse();
    let canonical = |mut state: M::State| {
        model.canonicalize(&mut state);
        state
    };
    let mut state = model
        .initial()
        .into_iter()
        .map(canonical)
        .find(|state| fingerprint(state) == prints[0])
        .expect("the way begins with an initial state");
    let mut steps = Vec::new();
    let mut actions = Vec::new();
    for &wanted in &prints[1..] {
        actions.clear();
        model.actions(&state, &mut actions);
        let (next, action) = actions
            .drain(..)
            .find_map(|action| {
                let mut next = state.clone();
                model.apply(&mut next, &action);
                let next = canonical(next);
                (fingerprint(&next) == wanted).then_some((next, action))
            })
            .expect("a step that was taken can be taken again");
        state = next;
        steps.push(action);
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two counters; each step raises one of them, up to a bound.
    struct Counters {
        max: u8,
        forbidden: Option<(u8, u8)>,
    }

    impl Model for Counters {
        type State = (u8, u8);
        type Action = char;

        fn initial(&self) -> Vec<(u8, u8)> {
            vec![(0, 0)]
        }
        fn actions(&self, state: &(u8, u8), out: &mut Vec<char>) {
            out.extend((state.0 < self.max).then_some('a'));
            out.extend((state.1 < self.max).then_some('b'));
        }
        fn apply(&self, state: &mut (u8, u8), action: &char) {
            *(if *action == 'a' { &mut state.0 } else { &mut state.1 }) += 1;
        }
        fn violation(&self, state: &(u8, u8)) -> Option<String> {
            (Some(*state) == self.forbidden).then(|| "forbidden".to_owned())
        }
    }

    #[test]
    fn every_state_is_seen_once() {
        let outcome = explore(&Counters { max: 9, forbidden: None }, u64::MAX);
        assert_eq!((outcome.states, outcome.steps, outcome.depth), (100, 180, 18));
        assert!(outcome.is_complete && outcome.violation.is_none());
        assert!(!explore(&Counters { max: 9, forbidden: None }, 99).is_complete);
    }

    #[test]
    fn a_violation_comes_with_a_shortest_way_to_it() {
        let outcome = explore(&Counters { max: 9, forbidden: Some((2, 1)) }, u64::MAX);
        let violation = outcome.violation.expect("it can be reached");
        assert_eq!((violation.what.as_str(), violation.steps.len()), ("forbidden", 3));
    }
}
