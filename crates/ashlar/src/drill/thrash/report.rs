//! The report of rounds, for people and for programs.

use crate::drill::histogram::{Histogram, ROWS_MS};
use crate::drill::outcome::{Limits, Outcome, TOLD_TO_STOP};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Duration;

/// A round, and what was seen of it.
pub struct Round {
    pub number: u32,
    /// What was done.
    pub done: Vec<String>,
    /// For how long a call might take.
    pub allowed: Duration,
    pub outcome: Outcome,
    /// What was not as promised.
    pub wrong: Vec<String>,
}

/// What rounds have to say.
pub struct Report {
    pub cluster: String,
    pub place: String,
    pub at: String,
    pub nodes: Vec<String>,
    pub workers: usize,
    pub has_two_mounts: bool,
    pub copies: u8,
    pub weak: Vec<String>,
    pub limits: Limits,
    pub seed: u64,
    pub ledger: String,
    pub ledger_trouble: Option<String>,
    /// All rounds together.
    pub took: Duration,
    // LIMIT: rounds of a week, a few KiB each.
    pub rounds: Vec<Round>,
}

impl Round {
    /// One that could not be run, or not to its end.
    pub fn not_run(number: u32, error: &anyhow::Error) -> Round {
        let (done, outcome) = Default::default();
        Round { number, done, allowed: Duration::ZERO, outcome, wrong: vec![format!("{error:#}")] }
    }

    /// Whether nothing was wrong with it but that it was ended.
    pub fn is_good_but_for_the_end(&self) -> bool {
        self.wrong.iter().all(|wrong| wrong == TOLD_TO_STOP)
    }

    /// For whoever watches.
    pub fn line(&self) -> String {
        let verdict = match self.wrong.as_slice() {
            [] => "survived".to_owned(),
            wrong => format!("FAILED: {}", wrong.join("; ")),
        };
        format!(
            "round {}: {verdict} ({}; longest call {} of {}, {} files compared, all copies back after {})",
            self.number,
            self.done.join(", "),
            seconds(self.outcome.longest_stall()),
            self.outcome.seen.histogram.total(),
            self.outcome.verified.files,
            self.back_after(),
        )
    }

    fn back_after(&self) -> String {
        self.outcome.full_after.map_or("never".to_owned(), seconds)
    }

    fn object(&self) -> Value {
        let outcome = &self.outcome;
        json!({
            "round": self.number,
            "done": self.done,
            "verdict": if self.wrong.is_empty() { "survived" } else { "failed" },
            "reasons": self.wrong,
            "lasted_s": outcome.lasted.as_secs_f64(),
            "longest_stall_s": outcome.longest_stall().as_secs_f64(),
            "allowed_stall_s": self.allowed.as_secs_f64(),
            "calls": outcome.seen.histogram.total(),
            "failed_calls": outcome.seen.failed.count,
            "failed_calls_first": outcome.seen.failed.first,
            "files_in_doubt": outcome.verified.in_doubt,
            "worst": outcome.worst,
            "full_redundancy_after_s": outcome.full_after.map(|after| after.as_secs_f64()),
            "verified_files": outcome.verified.files,
            "verified_bytes": outcome.verified.bytes,
            "wrong_files": outcome.verified.wrong.count,
            "wrong_files_first": outcome.verified.wrong.first,
        })
    }
}

impl Report {
    /// Whether there was a round, and all were survived.
    pub fn is_good(&self) -> bool {
        !self.rounds.is_empty() && self.rounds.iter().all(|round| round.wrong.is_empty())
    }

    /// For people, in a line.
    pub fn summary(&self) -> String {
        let survived = self.rounds.iter().filter(|round| round.wrong.is_empty()).count();
        let failed = self.rounds.len() - survived;
        let things: usize = self.rounds.iter().map(|round| round.done.len()).sum();
        format!(
            "{survived} rounds survived, {failed} failed, in {:.1} h; {things} things have failed on purpose",
            self.took.as_secs_f64() / 3600.0
        )
    }

    /// How long calls took, from the beginning of a round to its end.
    fn calls(&self) -> Histogram {
        let mut all = Histogram::default();
        self.rounds.iter().for_each(|round| all.add_all(&round.outcome.seen.histogram));
        all
    }

    pub fn object(&self) -> Value {
        let calls = self.calls();
        let rows = calls.rows().map(|(most_ms, count)| json!({ "up_to_ms": most_ms, "calls": count }));
        json!({
            "cluster": self.cluster,
            "place": self.place,
            "version": env!("CARGO_PKG_VERSION"),
            "at": self.at,
            "nodes": self.nodes,
            "workers": self.workers,
            "has_two_mounts": self.has_two_mounts,
            "copies": self.copies,
            "without_copies": self.weak,
            "stall_max_s": self.limits.stall.as_secs(),
            "redundant_within_s": self.limits.redundant_within.as_secs(),
            "seed": self.seed,
            "ledger": self.ledger,
            "ledger_trouble": self.ledger_trouble,
            "took_s": self.took.as_secs_f64(),
            "is_good": self.is_good(),
            "stalls": rows.collect::<Vec<_>>(),
            "longest_stall_s": calls.longest().as_secs_f64(),
            "p99_s": calls.percentile(99).as_secs_f64(),
            "rounds": self.rounds.iter().map(Round::object).collect::<Vec<_>>(),
        })
    }

    pub fn text(&self) -> String {
        let mut text = format!("# Thrash of file system {}\n\n{}.\n\n", self.cluster, self.summary());
        let mut row = |name: &str, value: &str| {
            // Writing into a String cannot fail, here and below.
            let _ = writeln!(text, "- {name}: {value}");
        };
        row("where", &self.place);
        row("when", &self.at);
        row("version", env!("CARGO_PKG_VERSION"));
        row("machines", &self.nodes.join(", "));
        let through = if self.has_two_mounts { "two mounts" } else { "one mount" };
        row(
            "load",
            &format!("{} programs through {through}, files with {} copies", self.workers, self.copies),
        );
        if !self.has_two_mounts {
            row("weaker", "with one mount, what was written is read through the same one");
        }
        let (stall, within) = (self.limits.stall.as_secs(), self.limits.redundant_within.as_secs());
        row(
            "promise",
            &format!(
                "no call fails, or takes longer than failures last without a rest of 5 s, and {stall} s more; nothing is lost, all copies are back within {within} s, and are equal"
            ),
        );
        self.weak.iter().for_each(|weak| row("without copies", weak));
        row("seed", &self.seed.to_string());
        row("ledger", &self.ledger);
        if let Some(trouble) = &self.ledger_trouble {
            row("the ledger is not complete", trouble);
        }
        self.stalls(&mut text);
        self.table(&mut text);
        text
    }

    fn stalls(&self, text: &mut String) {
        let calls = self.calls();
        let _ = writeln!(
            text,
            "\nHow long programs waited for one call, from the beginning of a round to its end: half at most {}, 99 of 100 at most {}, the longest {}.\n",
            seconds(calls.percentile(50)),
            seconds(calls.percentile(99)),
            seconds(calls.longest())
        );
        text.push_str("| calls that took | |\n|---|---|\n");
        for (most_ms, count) in calls.rows() {
            let name = match (most_ms, ROWS_MS.last()) {
                (Some(most), _) => format!("up to {}", seconds(Duration::from_millis(most))),
                (None, last) => {
                    format!("longer than {}", seconds(Duration::from_millis(*last.unwrap_or(&0))))
                }
            };
            let _ = writeln!(text, "| {name} | {count} |");
        }
    }

    fn table(&self, text: &mut String) {
        text.push_str("\n| round | what failed | verdict | longest stall | allowed | calls | files compared | all copies back after |\n|---|---|---|---|---|---|---|---|\n");
        for round in &self.rounds {
            let outcome = &round.outcome;
            let verdict = match round.wrong.as_slice() {
                [] => "survived".to_owned(),
                wrong => format!("**failed**: {}", wrong.join("; ")),
            };
            let _ = writeln!(
                text,
                "| {} | {} | {verdict} | {} | {} | {} | {} | {} |",
                round.number,
                round.done.join("; "),
                seconds(outcome.longest_stall()),
                seconds(round.allowed),
                outcome.seen.histogram.total(),
                outcome.verified.files,
                round.back_after(),
            );
        }
        for round in self.rounds.iter().filter(|round| !round.wrong.is_empty()) {
            let _ = writeln!(text, "\n## Round {}\n", round.number);
            let outcome = &round.outcome;
            let told = [&outcome.before, &outcome.seen]
                .into_iter()
                .flat_map(|seen| seen.failed.first.iter().chain(&seen.damaged.first));
            let told = told.chain(&outcome.verified.wrong.first).chain(&outcome.unfinished);
            for line in round.wrong.iter().chain(told) {
                let _ = writeln!(text, "- {line}");
            }
        }
    }
}

fn seconds(took: Duration) -> String {
    let seconds = took.as_secs_f64();
    if seconds < 1.0 { format!("{:.0} ms", seconds * 1000.0) } else { format!("{seconds:.1} s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(number: u32, stall_s: u64, wrong: &[&str]) -> Round {
        let mut outcome = Outcome { full_after: Some(Duration::from_secs(3)), ..Outcome::default() };
        outcome.seen.histogram.add(Duration::from_secs(stall_s));
        outcome.seen.failed.add("write f7: EIO".into());
        let done = vec!["0.5 to 3.5 s: storage1 killed".into(), "2.0 to 3.0 s: meta1 stood still".into()];
        let wrong = wrong.iter().map(|text| (*text).to_owned()).collect();
        Round { number, done, allowed: Duration::from_secs(14), outcome, wrong }
    }

    fn report(rounds: Vec<Round>) -> Report {
        Report {
            cluster: "1234".into(),
            place: "the lab at /lab".into(),
            at: "2026-11-29 03:00".into(),
            nodes: vec!["meta1 (meta)".into()],
            workers: 4,
            has_two_mounts: true,
            copies: 2,
            weak: Vec::new(),
            limits: Limits { stall: Duration::from_secs(10), redundant_within: Duration::from_secs(60) },
            seed: 77,
            ledger: "thrash.md.ledger".into(),
            ledger_trouble: None,
            took: Duration::from_secs(1800),
            rounds,
        }
    }

    #[test]
    fn a_report_is_good_when_there_were_rounds_and_all_were_survived() {
        assert!(report(vec![round(1, 2, &[])]).is_good());
        assert!(!report(vec![round(1, 2, &[]), round(2, 2, &["1 calls failed"])]).is_good());
        assert!(!report(Vec::new()).is_good());
    }

    #[test]
    fn a_report_tells_of_stalls_and_of_what_went_wrong() {
        let report = report(vec![round(1, 2, &[]), round(2, 11, &["1 calls failed"])]);
        let text = report.text();
        for part in [
            "1 rounds survived, 1 failed, in 0.5 h; 4 things have failed on purpose",
            "- seed: 77",
            "| up to 3.0 s | 1 |",
            "| up to 30.0 s | 1 |",
            "| 1 | 0.5 to 3.5 s: storage1 killed; 2.0 to 3.0 s: meta1 stood still | survived | 2.0 s | 14.0 s | 1 | 0 | 3.0 s |",
            "| **failed**: 1 calls failed |",
            "## Round 2",
            "- write f7: EIO",
        ] {
            assert!(text.contains(part), "no `{part}` in:\n{text}");
        }
        let object = report.object();
        assert_eq!(object["rounds"][1]["verdict"], "failed");
        assert_eq!(object["longest_stall_s"], 11.0);
    }
}
