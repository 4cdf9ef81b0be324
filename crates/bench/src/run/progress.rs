//! How long a run will still take.

use super::journal::Key;
use std::collections::BTreeMap;

/// What one program needs for a point, expected and, once it was done, taken.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    expected: f64,
    taken: f64,
    times: u32,
}

/// Steps that are left, and what the others took.
#[derive(Clone, Debug, Default)]
pub struct Estimate {
    steps: BTreeMap<Key, Step>,
    left: Vec<Key>,
    done: usize,
}

/// A step without its repetition.
fn kind(key: Key) -> Key {
    Key { repetition: 0, ..key }
}

impl Estimate {
    /// A step that will take `expected` seconds.
    pub fn add(&mut self, key: Key, expected: f64) {
        self.steps.entry(kind(key)).or_default().expected = expected;
        self.left.push(key);
    }

    /// It has taken `seconds`.
    pub fn done(&mut self, key: Key, seconds: f64) {
        let step = self.steps.entry(kind(key)).or_default();
        step.taken += seconds;
        step.times += 1;
        self.left.retain(|left| *left != key);
        self.done += 1;
    }

    /// Steps done, and all.
    pub fn count(&self) -> (usize, usize) {
        (self.done, self.done + self.left.len())
    }

    /// Seconds for what is left: as long as the same took before, or as expected, times what others took more.
    pub fn seconds_left(&self) -> f64 {
        let known = || self.steps.values().filter(|step| step.times > 0);
        let expected: f64 = known().map(|step| step.expected * f64::from(step.times)).sum();
        let taken: f64 = known().map(|step| step.taken).sum();
        let factor = if expected > 0.0 { (taken / expected).clamp(0.1, 10.0) } else { 1.0 };
        let one = |key: &Key| match self.steps.get(&kind(*key)) {
            Some(step) if step.times > 0 => step.taken / f64::from(step.times),
            Some(step) => step.expected * factor,
            None => 0.0,
        };
        self.left.iter().map(one).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Tool;

    #[test]
    fn what_is_left_takes_as_long_as_the_same_did_before() {
        let key = |point, repetition| Key { fill_percent: None, point, tool: Tool::Ashlar, repetition };
        let mut estimate = Estimate::default();
        for repetition in 1..=2 {
            estimate.add(key(0, repetition), 10.0);
            estimate.add(key(1, repetition), 20.0);
        }
        assert_eq!((estimate.seconds_left(), estimate.count()), (60.0, (0, 4)));
        estimate.done(key(0, 1), 15.0);
        assert_eq!(estimate.seconds_left(), 15.0 + 2.0 * 30.0, "others take half as long again, too");
        estimate.done(key(1, 1), 18.0);
        assert_eq!((estimate.seconds_left(), estimate.count()), (15.0 + 18.0, (2, 4)));
    }
}
