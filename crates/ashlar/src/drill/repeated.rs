//! Failures that a drill has had happen several times: how long programs stood still, over all of them.

use super::outcome::{Entry, Outcome, Verdict};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Duration;

/// One failure, and what became of it each time that it was run.
pub struct Repeated<'a> {
    entries: Vec<&'a Entry>,
    /// The longest call of each time, the shortest of them first.
    stalls: Vec<Duration>,
    /// How long after each time all copies were back, the shortest first; not of those after which they were not.
    backs: Vec<Duration>,
}

impl<'a> Repeated<'a> {
    /// The failures that were run more than once, in the order in which they were.
    pub fn all(entries: &'a [Entry]) -> Vec<Repeated<'a>> {
        let mut by_failure: Vec<Vec<&Entry>> = Vec::new();
        for entry in entries.iter().filter(|entry| !matches!(entry.verdict, Verdict::NotRun(_))) {
            match by_failure.iter_mut().find(|same| same[0].failure.name == entry.failure.name) {
                Some(same) => same.push(entry),
                None => by_failure.push(vec![entry]),
            }
        }
        by_failure.into_iter().filter(|same| same.len() > 1).map(Repeated::of).collect()
    }

    fn of(entries: Vec<&'a Entry>) -> Repeated<'a> {
        // One that was told to stop has not seen all.
        let whole = |outcome: &&Outcome| !outcome.is_stopped;
        let outcomes = || entries.iter().filter_map(|entry| entry.outcome.as_ref()).filter(whole);
        let mut stalls: Vec<Duration> = outcomes().map(|outcome| outcome.longest_stall()).collect();
        let mut backs: Vec<Duration> = outcomes().filter_map(|outcome| outcome.full_after).collect();
        stalls.sort_unstable();
        backs.sort_unstable();
        Repeated { entries, stalls, backs }
    }

    fn survived(&self) -> usize {
        self.entries.iter().filter(|entry| entry.verdict == Verdict::Survived).count()
    }

    /// Whether `entry` is one of those, and no worse than the others: a report of all of them need not have it.
    pub fn is_one_of_many(&self, entry: &Entry) -> bool {
        let is_here = self.entries.iter().any(|other| std::ptr::eq(*other, entry));
        let stall = entry.outcome.as_ref().map(|outcome| outcome.longest_stall());
        is_here && entry.verdict == Verdict::Survived && stall < self.stalls.last().copied()
    }

    pub fn object(&self) -> Value {
        let spread = |times: &[Duration]| {
            let [half, most, nearly_all, all] =
                [50, 90, 99, 100].map(|percent| percentile(times, percent).map(|time| time.as_secs_f64()));
            json!({ "p50": half, "p90": most, "p99": nearly_all, "longest": all })
        };
        json!({
            "name": self.entries[0].failure.name,
            "times": self.entries.len(),
            "survived": self.survived(),
            "longest_stall_s": spread(&self.stalls),
            "full_redundancy_after_s": spread(&self.backs),
        })
    }

    fn row(&self) -> String {
        let shown = |times: &[Duration], percent| {
            percentile(times, percent).map_or("-".to_owned(), |time| format!("{:.1} s", time.as_secs_f64()))
        };
        let stalls = [50, 90, 99, 100].map(|percent| shown(&self.stalls, percent)).join(" | ");
        let backs = [50, 100].map(|percent| shown(&self.backs, percent)).join(" | ");
        let (times, name) = (self.entries.len(), self.entries[0].failure.name);
        format!("| {name} | {times} | {} | {stalls} | {backs} |", self.survived())
    }
}

/// What so many of a hundred are not above, the nearest rank; `times` are in order.
fn percentile(times: &[Duration], percent: usize) -> Option<Duration> {
    let rank = (times.len() * percent).div_ceil(100).max(1);
    times.get(rank - 1).copied()
}

/// The table of all of them; nothing where none was run more than once.
pub fn table(all: &[Repeated<'_>]) -> String {
    let mut text = String::new();
    if all.is_empty() {
        return text;
    }
    text.push_str("\nThe longest call of each time that a failure was run, and how long after it all copies were back:\n\n");
    text.push_str("| failure | times | survived | half of them at most | 9 of 10 | 99 of 100 | longest | copies back, half of them | longest |\n|---|---|---|---|---|---|---|---|---|\n");
    for repeated in all {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "{}", repeated.row());
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::super::failure::chosen;
    use super::super::outcome::Limits;
    use super::*;

    fn entry(name: &str, stall_ms: u64) -> Entry {
        let mut outcome = Outcome { full_after: Some(Duration::from_secs(3)), ..Outcome::default() };
        outcome.seen.histogram.add(Duration::from_millis(stall_ms));
        let limits = Limits { stall: Duration::from_secs(10), redundant_within: Duration::from_secs(60) };
        Entry::of(chosen(&[name.into()]).unwrap()[0], outcome, &limits)
    }

    #[test]
    fn stalls_of_a_failure_that_was_run_often_are_told_by_rank() {
        let mut entries: Vec<Entry> = (1..=20).map(|at| entry("server-meta", at * 500)).collect();
        entries.push(entry("disk", 100));
        let all = Repeated::all(&entries);
        assert_eq!(all.len(), 1, "the disk was run once");
        assert_eq!(
            table(&all).lines().last(),
            Some("| server-meta | 20 | 20 | 5.0 s | 9.0 s | 10.0 s | 10.0 s | 3.0 s | 3.0 s |")
        );
        let object = all[0].object();
        assert_eq!(
            (object["times"].as_u64(), object["longest_stall_s"]["p90"].as_f64()),
            (Some(20), Some(9.0))
        );
        assert!(
            all[0].is_one_of_many(&entries[3]) && !all[0].is_one_of_many(&entries[19]),
            "the worst is told"
        );
        assert!(!all[0].is_one_of_many(&entries[20]));
    }

    #[test]
    fn one_that_was_not_survived_is_always_told() {
        let entries = [entry("server-meta", 12_000), entry("server-meta", 11_000)];
        let all = Repeated::all(&entries);
        assert!(!all[0].is_one_of_many(&entries[1]));
        assert_eq!(all[0].object()["survived"], 0);
        assert!(table(&Repeated::all(&entries[..1])).is_empty());
    }
}
