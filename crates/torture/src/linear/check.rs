//! The search for an order.

use std::collections::HashSet;

use super::model::{Model, Next, Node, Progress};
use super::{Answer, Call, Verb};

/// LIMIT: calls of a history, as many as there are bits in the set of those that are over.
pub const CALLS_MAX: usize = 64;

/// LIMIT: configurations that are tried before a history is left undecided.
const TRIED_MAX: usize = 3_000_000;

/// What came out of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order; so many configurations were tried.
    Ordered(usize),
    /// There is none: some answer is wrong in every order. At most so many calls could be ordered.
    Broken(usize),
    /// Too many configurations.
    Undecided,
}

/// Which calls are over, how far the others have come, and the tree.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Configuration {
    over: u64,
    begun: Vec<(u8, Progress)>,
    model: Model,
}

impl Configuration {
    fn progress(&self, call: usize) -> Progress {
        let begun = self.begun.iter().find(|(number, _)| usize::from(*number) == call);
        begun.map(|(_, progress)| *progress).unwrap_or_default()
    }

    fn is_over(&self, call: usize) -> bool {
        self.over >> call & 1 == 1
    }

    fn with_progress(&self, call: usize, progress: Progress) -> Self {
        let mut next = self.clone();
        next.begun.retain(|(number, _)| usize::from(*number) != call);
        next.begun.push((call as u8, progress));
        next.begun.sort_by_key(|(number, _)| *number);
        next
    }

    fn with_end(&self, call: usize, model: Model) -> Self {
        let mut next = self.clone();
        next.begun.retain(|(number, _)| usize::from(*number) != call);
        next.over |= 1 << call;
        next.model = model;
        next
    }
}

/// Until when a call must have been done: for ever, if nobody knows whether it was.
fn end(call: &Call) -> u64 {
    if matches!(call.answer, Answer::Unknown(_)) { u64::MAX } else { call.end }
}

/// What the call with this number makes.
fn made(call: usize) -> Node {
    call as Node + 1
}

/// Whether there is an order of `calls` in which all answers are right. The tree is empty at the beginning.
///
/// # Panics
/// When there are more calls than [`CALLS_MAX`].
#[must_use]
pub fn check(calls: &[Call]) -> Verdict {
    assert!(calls.len() <= CALLS_MAX, "a history has at most {CALLS_MAX} calls");
    let wanted = (0..calls.len())
        .filter(|call| end(&calls[*call]) != u64::MAX)
        .fold(0u64, |wanted, call| wanted | 1 << call);
    let first = Configuration { over: 0, begun: Vec::new(), model: Model::default() };
    let mut tried: HashSet<Configuration> = HashSet::from([first.clone()]);
    let mut open = vec![first];
    let mut most = 0;
    while let Some(now) = open.pop() {
        if now.over & wanted == wanted {
            return Verdict::Ordered(tried.len());
        }
        most = most.max(now.over.count_ones() as usize);
        let left = (0..calls.len()).filter(|call| !now.is_over(*call));
        let first_end = left.clone().map(|call| end(&calls[call])).min().unwrap_or(u64::MAX);
        for number in left.filter(|call| calls[*call].begin <= first_end) {
            let call = &calls[number];
            let progress = now.progress(number);
            for next in now.model.step(call, made(number), progress) {
                let configuration = match next {
                    Next::More(progress) => now.with_progress(number, progress),
                    Next::Touched(model, progress) => {
                        Configuration { model, ..now.with_progress(number, progress) }
                    }
                    Next::Over(model, answer) if is_right(calls, &now.model, number, progress, answer) => {
                        now.with_end(number, model)
                    }
                    Next::Over(..) => continue,
                };
                if tried.len() >= TRIED_MAX {
                    return Verdict::Undecided;
                }
                if tried.insert(configuration.clone()) {
                    open.push(configuration);
                }
            }
        }
    }
    Verdict::Broken(most)
}

/// Whether the call can have had this answer, as far as the model tells.
fn is_right(calls: &[Call], model: &Model, number: usize, progress: Progress, answer: Answer) -> bool {
    let call = &calls[number];
    match (call.verb, call.answer, answer) {
        (_, Answer::Unknown(_), _) => true,
        (Verb::Stat(_), Answer::Failed(_), _) => call.answer == answer,
        (Verb::Stat(_), seen, Answer::Done) => is_what_was_found(calls, model, progress, seen),
        (_, seen, answer) => seen == answer,
    }
}

/// Whether `stat`, which has come that far, can show `seen`.
fn is_what_was_found(calls: &[Call], model: &Model, progress: Progress, seen: Answer) -> bool {
    let Some((node, is_directory)) = progress.found() else { return false };
    // A file whose number nobody was told may be any.
    let number = calls.get(usize::from(node).wrapping_sub(1)).and_then(|made| match made.answer {
        Answer::File(ino) => Some(ino),
        _ => None,
    });
    let is_it = |ino: u64| !is_directory && number.is_none_or(|number| number == ino);
    match seen {
        Answer::File(ino) => is_it(ino),
        Answer::FileWith(ino, attributes) => is_it(ino) && model.may_show(node, &attributes, false),
        Answer::Directory => is_directory,
        Answer::DirectoryWith(attributes) => is_directory && model.may_show(node, &attributes, true),
        _ => false,
    }
}
