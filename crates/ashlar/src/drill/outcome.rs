//! What became of a failure, and whether it was survived.

use super::call::{Seen, Told};
use super::failure::Failure;
use super::redundancy::Redundancy;
use super::verify::Verified;
use serde_json::{Value, json};
use std::time::Duration;

/// What was promised.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub stall: Duration,
    pub redundant_within: Duration,
}

/// What was seen of a failure that was run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What was done.
    pub done: String,
    /// Why it turned out that it cannot be made here.
    pub not_here: Option<String>,
    pub lasted: Duration,
    /// Before it began.
    pub before: Seen,
    /// From its beginning on, until the load ended.
    pub seen: Seen,
    /// Calls that had not ended then, and for how long the oldest of them had gone on.
    pub unfinished: Vec<String>,
    pub unfinished_for: Duration,
    pub worst: Redundancy,
    /// After it was begun to be put right.
    pub full_after: Option<Duration>,
    pub verified: Verified,
    /// Whether the drill was told to stop meanwhile.
    pub is_stopped: bool,
    /// What did not go as planned.
    pub troubles: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Survived,
    /// What was not as promised.
    Failed(Vec<String>),
    /// Why.
    NotRun(String),
}

/// A failure and what became of it.
#[derive(Debug)]
pub struct Entry {
    pub failure: &'static Failure,
    pub verdict: Verdict,
    pub outcome: Option<Outcome>,
}

impl Entry {
    pub fn not_run(failure: &'static Failure, why: impl Into<String>) -> Entry {
        Entry { failure, verdict: Verdict::NotRun(why.into()), outcome: None }
    }

    pub fn of(failure: &'static Failure, outcome: Outcome, limits: &Limits) -> Entry {
        let wrong = what_is_wrong(allowed_stall(failure, &outcome, limits), &outcome, limits);
        let verdict = if wrong.is_empty() { Verdict::Survived } else { Verdict::Failed(wrong) };
        Entry { failure, verdict, outcome: Some(outcome) }
    }

    /// As the report and the terminal name the verdict.
    pub fn word(&self) -> &'static str {
        match self.verdict {
            Verdict::Survived => "survived",
            Verdict::Failed(_) => "FAILED",
            Verdict::NotRun(_) => "not run",
        }
    }

    pub fn object(&self, limits: &Limits) -> Value {
        let reasons = match &self.verdict {
            Verdict::Survived => Vec::new(),
            Verdict::Failed(reasons) => reasons.clone(),
            Verdict::NotRun(why) => vec![why.clone()],
        };
        json!({
            "failure": self.failure.object(),
            "verdict": self.word().to_lowercase(),
            "reasons": reasons,
            "outcome": self.outcome.as_ref().map(|outcome| outcome.object(self.failure, limits)),
        })
    }
}

impl Outcome {
    /// The longest that a program had to wait.
    pub fn longest_stall(&self) -> Duration {
        self.seen.histogram.longest().max(self.unfinished_for)
    }

    fn object(&self, failure: &Failure, limits: &Limits) -> Value {
        json!({
            "done": self.done,
            "lasted_s": self.lasted.as_secs_f64(),
            "longest_stall_s": self.longest_stall().as_secs_f64(),
            "allowed_stall_s": allowed_stall(failure, self, limits).as_secs_f64(),
            "before": seen_object(&self.before),
            "calls": seen_object(&self.seen),
            "unfinished_calls": self.unfinished,
            "worst": self.worst,
            "full_redundancy_after_s": self.full_after.map(|after| after.as_secs_f64()),
            "verified_files": self.verified.files,
            "verified_bytes": self.verified.bytes,
            "files_in_doubt": self.verified.in_doubt,
            "wrong_files": told_object(&self.verified.wrong),
            "workers_not_looked_at": self.verified.not_looked_at,
            "troubles": self.troubles,
        })
    }
}

fn told_object(told: &Told) -> Value {
    json!({ "count": told.count, "first": told.first })
}

fn seen_object(seen: &Seen) -> Value {
    let histogram = &seen.histogram;
    let rows = histogram.rows().map(|(most_ms, count)| json!({ "up_to_ms": most_ms, "calls": count }));
    json!({
        "count": histogram.total(),
        "p50_s": histogram.percentile(50).as_secs_f64(),
        "p99_s": histogram.percentile(99).as_secs_f64(),
        "longest_s": histogram.longest().as_secs_f64(),
        "above_1_s": histogram.longer_than_ms(1_000),
        "above_10_s": histogram.longer_than_ms(10_000),
        "histogram": rows.collect::<Vec<_>>(),
        "failed": told_object(&seen.failed),
        "damaged": told_object(&seen.damaged),
    })
}

/// For how long a call may take: what nobody can work in does not count.
fn allowed_stall(failure: &Failure, outcome: &Outcome, limits: &Limits) -> Duration {
    let more = if failure.stops_everything() { outcome.lasted } else { Duration::ZERO };
    limits.stall + more
}

/// What is wrong with a failure that somebody has ended.
pub const TOLD_TO_STOP: &str = "the drill was told to stop before the end";

/// What was not as promised, if a call may take `allowed`.
pub fn what_is_wrong(allowed: Duration, outcome: &Outcome, limits: &Limits) -> Vec<String> {
    let mut wrong = outcome.troubles.clone();
    let mut add = |is_wrong: bool, text: String| wrong.extend(is_wrong.then_some(text));
    let damaged = outcome.seen.damaged.count + outcome.before.damaged.count;
    add(damaged > 0, format!("{damaged} times a file had something else in it than was written"));
    let lost = outcome.verified.wrong.count;
    add(lost > 0, format!("{lost} files were not as they must be when all were compared"));
    let unseen = outcome.verified.not_looked_at;
    add(unseen > 0, format!("the files of {unseen} workers could not be compared in time"));
    let failed = outcome.seen.failed.count + outcome.before.failed.count;
    add(failed > 0, format!("{failed} calls failed"));
    add(!outcome.unfinished.is_empty(), format!("{} calls did not end", outcome.unfinished.len()));
    let longest = outcome.longest_stall();
    let text =
        format!("a call took {:.2} s, and {:.2} s are allowed", longest.as_secs_f64(), allowed.as_secs_f64());
    add(longest > allowed, text);
    let within = limits.redundant_within.as_secs();
    add(outcome.is_stopped, TOLD_TO_STOP.into());
    add(
        outcome.full_after.is_none() && !outcome.is_stopped,
        format!("not all copies were back after {within} s"),
    );
    add(outcome.seen.histogram.total() == 0, "no program did anything meanwhile".into());
    wrong
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::super::failure::chosen;
    use super::*;

    const LIMITS: Limits =
        Limits { stall: Duration::from_secs(10), redundant_within: Duration::from_secs(60) };

    fn good(longest: Duration) -> Outcome {
        let mut outcome = Outcome { full_after: Some(Duration::from_secs(3)), ..Outcome::default() };
        outcome.lasted = Duration::from_secs(4);
        outcome.seen.histogram.add(longest);
        outcome
    }

    fn verdict(name: &str, outcome: Outcome) -> Verdict {
        Entry::of(chosen(&[name.into()]).unwrap()[0], outcome, &LIMITS).verdict
    }

    #[track_caller]
    fn fails(outcome: Outcome, word: &str) {
        let Verdict::Failed(reasons) = verdict("disk", outcome) else { panic!("it was survived") };
        assert!(reasons.len() == 1 && reasons[0].contains(word), "{reasons:?}");
    }

    #[test]
    fn a_failure_is_survived_when_all_promises_were_kept() {
        let stall = Duration::from_secs(9);
        assert_eq!(verdict("disk", good(stall)), Verdict::Survived);
        fails(good(Duration::from_secs(11)), "a call took 11.00 s");
        fails(Outcome { full_after: None, ..good(stall) }, "not all copies were back after 60 s");
        fails(Outcome { unfinished: vec!["read f".into()], ..good(stall) }, "1 calls did not end");
        fails(Outcome { troubles: vec!["no such disk".into()], ..good(stall) }, "no such disk");
        fails(Outcome { is_stopped: true, full_after: None, ..good(stall) }, "told to stop");
        let (mut failed, mut damaged, mut lost) = (good(stall), good(stall), good(stall));
        failed.seen.failed.add("write f: EIO".into());
        fails(failed, "1 calls failed");
        damaged.seen.damaged.add("f has other bytes".into());
        fails(damaged, "something else in it");
        lost.verified.wrong.add("f cannot be read".into());
        fails(lost, "when all were compared");
        let idle = Outcome { full_after: Some(Duration::ZERO), ..Outcome::default() };
        fails(idle, "no program did anything");
    }

    #[test]
    fn time_in_which_nobody_can_work_is_not_held_against_anybody() {
        let longest = Duration::from_secs(13);
        assert_eq!(verdict("switch", good(longest)), Verdict::Survived);
        assert!(matches!(verdict("link", good(longest)), Verdict::Failed(_)));
    }
}
