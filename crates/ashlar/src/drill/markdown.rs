//! The report of a drill, for people and for programs.

use super::call::{Seen, Told};
use super::histogram::ROWS_MS;
use super::outcome::{Entry, Limits, Outcome, Verdict};
use super::repeated::{self, Repeated};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// What a drill has to say.
pub struct Report {
    pub cluster: String,
    /// A lab, or where it is mounted.
    pub place: String,
    pub is_lab: bool,
    pub version: &'static str,
    pub at: String,
    /// Machines and what they do.
    pub nodes: Vec<String>,
    pub workers: usize,
    pub copies: u8,
    pub mounts: usize,
    /// What had no copies to begin with.
    pub weak: Vec<String>,
    pub limits: Limits,
    pub ledger: String,
    /// Why the ledger is not complete.
    pub ledger_trouble: Option<String>,
    pub entries: Vec<Entry>,
}

impl Report {
    /// Whether at least one failure was run, and all that were run have been survived.
    pub fn is_good(&self) -> bool {
        let is_run = |entry: &&Entry| !matches!(entry.verdict, Verdict::NotRun(_));
        let mut run = self.entries.iter().filter(is_run).peekable();
        run.peek().is_some() && run.all(|entry| entry.verdict == Verdict::Survived)
    }

    /// How many have which verdict, for people.
    pub fn summary(&self) -> String {
        let count = |word: &str| self.entries.iter().filter(|entry| entry.word() == word).count();
        format!("{} survived, {} failed, {} not run", count("survived"), count("FAILED"), count("not run"))
    }

    pub fn object(&self) -> Value {
        json!({
            "cluster": self.cluster,
            "place": self.place,
            "is_lab": self.is_lab,
            "version": self.version,
            "at": self.at,
            "nodes": self.nodes,
            "workers": self.workers,
            "copies": self.copies,
            "mounts": self.mounts,
            "without_copies": self.weak,
            "stall_max_s": self.limits.stall.as_secs(),
            "redundant_within_s": self.limits.redundant_within.as_secs(),
            "ledger": self.ledger,
            "ledger_trouble": self.ledger_trouble,
            "is_good": self.is_good(),
            "repeated": Repeated::all(&self.entries).iter().map(Repeated::object).collect::<Vec<_>>(),
            "failures": self.entries.iter().map(|entry| entry.object(&self.limits)).collect::<Vec<_>>(),
        })
    }

    pub fn text(&self) -> String {
        let mut text = format!("# Drill of file system {}\n\n{}.\n\n", self.cluster, self.summary());
        let mut row = |name: &str, value: &str| {
            // Writing into a String cannot fail, here and below.
            let _ = writeln!(text, "- {name}: {value}");
        };
        row("where", &self.place);
        row("when", &self.at);
        row("version", self.version);
        row("machines", &self.nodes.join(", "));
        let through = if self.mounts == 1 { "one mount" } else { "two mounts" };
        row(
            "load",
            &format!("{} programs through {through}, files with {} copies", self.workers, self.copies),
        );
        if self.mounts == 1 {
            row("weaker", "with one mount, what was written is read through the same one");
        }
        let (stall, within) = (self.limits.stall.as_secs(), self.limits.redundant_within.as_secs());
        row(
            "promise",
            &format!(
                "no call fails or takes longer than {stall} s, nothing is lost, and all copies are back within {within} s"
            ),
        );
        self.weak.iter().for_each(|weak| row("without copies", weak));
        row("ledger", &self.ledger);
        if let Some(trouble) = &self.ledger_trouble {
            row("the ledger is not complete", trouble);
        }
        self.table(&mut text);
        let repeated = Repeated::all(&self.entries);
        text.push_str(&repeated::table(&repeated));
        let is_told = |entry: &&Entry| !repeated.iter().any(|same| same.is_one_of_many(entry));
        self.entries.iter().filter(is_told).for_each(|entry| section(&mut text, entry, self.is_lab));
        text
    }

    fn table(&self, text: &mut String) {
        text.push_str("\n| number | failure | verdict | longest stall | calls | failed calls | files compared | all copies back after |\n|---|---|---|---|---|---|---|---|\n");
        for entry in &self.entries {
            let number = entry.failure.number.map_or("-".to_owned(), |number| number.to_string());
            let seen = entry.outcome.as_ref().map_or("| | | | |".to_owned(), |outcome| {
                let (seen, verified) = (&outcome.seen, &outcome.verified);
                format!(
                    "{} | {} | {} | {}, {} MiB | {}",
                    seconds(outcome.longest_stall().as_secs_f64()),
                    seen.histogram.total(),
                    seen.failed.count,
                    verified.files,
                    verified.bytes >> 20,
                    back_after(outcome),
                )
            });
            let (name, title) = (entry.failure.name, entry.failure.title);
            let _ = writeln!(text, "| {number} | {name}: {title} | {} | {seen} |", entry.word());
        }
    }
}

fn seconds(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.0} ms", seconds * 1000.0) } else { format!("{seconds:.1} s") }
}

fn back_after(outcome: &Outcome) -> String {
    outcome.full_after.map_or("not in time".to_owned(), |after| seconds(after.as_secs_f64()))
}

fn section(text: &mut String, entry: &Entry, is_lab: bool) {
    let failure = entry.failure;
    let _ = writeln!(text, "\n## {}: {}\n", failure.name, failure.title);
    match &entry.verdict {
        Verdict::Survived => text.push_str("Survived.\n\n"),
        Verdict::Failed(reasons) => {
            text.push_str("**Failed:**\n\n");
            list(text, reasons);
            text.push('\n');
        }
        Verdict::NotRun(why) => {
            let _ = writeln!(text, "Not run: {why}\n");
        }
    }
    if let Some(outcome) = &entry.outcome {
        figures(text, outcome);
    }
    if let Some(not) = failure.not_in_lab.filter(|_| is_lab) {
        let _ = writeln!(text, "- of a lab, not as in reality: {not}");
    }
    let _ =
        writeln!(text, "- on real machines: {}; afterwards: {}", failure.operator, failure.operator_after);
}

fn figures(text: &mut String, outcome: &Outcome) {
    let lasted = seconds(outcome.lasted.as_secs_f64());
    let _ = writeln!(text, "- what was done: {}, for {lasted}", outcome.done);
    let worst = &outcome.worst;
    let _ = writeln!(
        text,
        "- without a copy at worst: {} of {} chains, {} of {} metadata servers; all were back {} after it was put right",
        worst.chains_short,
        worst.chains,
        worst.meta_short,
        worst.meta,
        back_after(outcome)
    );
    let verified = &outcome.verified;
    let _ = writeln!(
        text,
        "- compared: {} files, {} bytes; {} files in doubt, because a call for them had failed",
        verified.files, verified.bytes, verified.in_doubt
    );
    for (what, told) in [
        ("not as they must be", &verified.wrong),
        ("other content than was written", &outcome.seen.damaged),
        ("other content than was written, before it began", &outcome.before.damaged),
        ("failed calls", &outcome.seen.failed),
        ("failed calls before it began", &outcome.before.failed),
    ] {
        told_list(text, what, told);
    }
    if !outcome.unfinished.is_empty() {
        let _ = writeln!(text, "- calls that did not end:");
        indented(text, &outcome.unfinished);
    }
    calls(text, &outcome.before, &outcome.seen);
}

fn told_list(text: &mut String, what: &str, told: &Told) {
    if told.count == 0 {
        return;
    }
    let _ = writeln!(text, "- {what}: {}", told.count);
    indented(text, &told.first);
}

/// How long calls took, before and during.
fn calls(text: &mut String, before: &Seen, during: &Seen) {
    text.push_str("\n| calls | before | from then on |\n|---|---|---|\n");
    let mut row = |name: &str, of: &dyn Fn(&Seen) -> String| {
        let _ = writeln!(text, "| {name} | {} | {} |", of(before), of(during));
    };
    let percentile = |percent| move |seen: &Seen| seconds(seen.histogram.percentile(percent).as_secs_f64());
    row("all", &|seen| seen.histogram.total().to_string());
    row("half took at most", &percentile(50));
    row("99 of 100 took at most", &percentile(99));
    row("longest", &|seen| seconds(seen.histogram.longest().as_secs_f64()));
    row("above 1 s", &|seen| seen.histogram.longer_than_ms(1_000).to_string());
    row("above 10 s", &|seen| seen.histogram.longer_than_ms(10_000).to_string());
    for at in 0..=ROWS_MS.len() {
        let name = match (at.checked_sub(1).and_then(|at| ROWS_MS.get(at)), ROWS_MS.get(at)) {
            (_, Some(most)) => format!("up to {}", seconds(*most as f64 / 1000.0)),
            (Some(most), None) => format!("longer than {}", seconds(*most as f64 / 1000.0)),
            (None, None) => continue,
        };
        row(&name, &|seen| seen.histogram.rows().nth(at).map_or(0, |(_, count)| count).to_string());
    }
    text.push('\n');
}

fn list(text: &mut String, lines: &[String]) {
    for line in lines {
        let _ = writeln!(text, "- {line}");
    }
}

fn indented(text: &mut String, lines: &[String]) {
    for line in lines {
        let _ = writeln!(text, "  - {line}");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::super::failure::chosen;
    use super::*;
    use std::time::Duration;

    fn report(entries: Vec<Entry>) -> Report {
        Report {
            cluster: "1234".into(),
            place: "the lab at /lab".into(),
            is_lab: true,
            version: "0",
            at: "2026-11-27 20:00".into(),
            nodes: vec!["meta1 (meta)".into()],
            workers: 4,
            copies: 2,
            mounts: 2,
            weak: Vec::new(),
            limits: Limits { stall: Duration::from_secs(10), redundant_within: Duration::from_secs(60) },
            ledger: "drill.md.ledger".into(),
            ledger_trouble: None,
            entries,
        }
    }

    fn entry(name: &str, stall_s: u64) -> Entry {
        let mut outcome = Outcome { full_after: Some(Duration::from_secs(3)), ..Outcome::default() };
        outcome.seen.histogram.add(Duration::from_secs(stall_s));
        let limits = Limits { stall: Duration::from_secs(10), redundant_within: Duration::from_secs(60) };
        Entry::of(chosen(&[name.into()]).unwrap()[0], outcome, &limits)
    }

    #[test]
    fn a_report_is_good_when_something_was_run_and_all_of_that_survived() {
        let not_run = || Entry::not_run(chosen(&["fence-device".into()]).unwrap()[0], "no such thing");
        assert!(report(vec![entry("disk", 2), not_run()]).is_good());
        assert!(!report(vec![entry("disk", 2), entry("link", 11)]).is_good());
        assert!(!report(vec![not_run()]).is_good(), "nothing was run");
        assert_eq!(report(vec![entry("disk", 2), not_run()]).summary(), "1 survived, 0 failed, 1 not run");
    }

    #[test]
    fn a_report_tells_of_every_failure_in_words_and_as_json() {
        let report = report(vec![entry("disk", 2), entry("link", 11)]);
        let text = report.text();
        for part in [
            "# Drill of file system 1234",
            "| 1 | disk: a single local disk | survived | 2.0 s | 1 | 0 |",
            "| 7 | link: InfiniBand or 10 GbE link | FAILED | 11.0 s |",
            "- a call took 11.00 s, and 10.00 s are allowed",
            "| above 10 s | 0 | 1 |",
            "| up to 3.0 s | 0 | 1 |",
        ] {
            assert!(text.contains(part), "no `{part}` in:\n{text}");
        }
        let object = report.object();
        assert_eq!(
            (object["is_good"].as_bool(), object["failures"][1]["verdict"].as_str()),
            (Some(false), Some("failed"))
        );
        assert_eq!(object["failures"][0]["outcome"]["calls"]["above_1_s"], 1);
    }
}
