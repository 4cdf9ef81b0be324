//! `ashlar bench compare`: two reports as a table of what changed.

use crate::cli::BenchCompareArgs;
use crate::terminal::{say, shown_bytes};
use anyhow::{Result, bail};
use ashlar_bench::compare::difference::Sort;
use ashlar_bench::compare::{CHANCE, Comparison, Row, Verdict};
use ashlar_bench::report::{Report, number};
use ashlar_bench::run::Tool;
use std::process::ExitCode;

/// Something is slower than `--fail-below` allows.
const SLOWER: u8 = 2;

pub fn run(args: &BenchCompareArgs) -> Result<ExitCode> {
    let (before, after) = (Report::read(&args.before)?, Report::read(&args.after)?);
    let found = Comparison::of(&before, &after);
    let is_other = found.differences.iter().any(|one| one.sort == Sort::Parameters);
    if found.rows.is_empty() {
        bail!("the reports have no workload with the same number of threads in common");
    }
    if args.json {
        say(serde_json::to_string_pretty(&found)?);
    } else {
        show(&found);
    }
    if is_other && !args.although_different {
        let told = found
            .differences
            .iter()
            .filter(|one| one.sort == Sort::Parameters)
            .map(|one| shown_bytes(one.text.as_bytes()));
        bail!(
            "the workloads were run in different ways ({}), so what changed is not the file system alone; measure with --same-as {}, or say --although-different",
            told.collect::<Vec<_>>().join("; "),
            args.before.display()
        );
    }
    let is_slower = |row: &Row| {
        row.verdict == Verdict::Slower && args.fail_below.is_some_and(|percent| -row.change * 100.0 > percent)
    };
    Ok(if found.rows.iter().any(is_slower) { ExitCode::from(SLOWER) } else { ExitCode::SUCCESS })
}

fn show(found: &Comparison) {
    let [before, after] = found.titles.each_ref().map(|title| shown_bytes(title.as_bytes()));
    say(format!("before: {before}"));
    say(format!("after:  {after}"));
    if found.differences.is_empty() {
        say("machine, software, file system and workloads are the same");
    }
    for difference in &found.differences {
        let sort = match difference.sort {
            Sort::Machine => "machine",
            Sort::Software => "software",
            Sort::Place => "place",
            Sort::Parameters => "WORKLOAD",
            Sort::Amounts => "amounts",
        };
        say(format!("differs, {sort}: {}", shown_bytes(difference.text.as_bytes())));
    }
    say(format!(
        "{:<19} {:<18} {:>7} {:>12} {:>12}  {:<5} {:>8} {:>7} {:>8}  {}",
        "workload", "phase", "threads", "before", "after", "unit", "change", "p", "least", "verdict"
    ));
    found.rows.iter().for_each(|row| say(line(row)));
    found.only_one.iter().for_each(say);
    let few = found.rows.iter().filter(|row| row.verdict == Verdict::NotKnown).count();
    say(format!(
        "A change is one when chance alone makes it in less than {:.0} % of cases (Welch's test over the repetitions, taken as normal).",
        CHANCE * 100.0
    ));
    say(format!(
        "Of these rows chance makes about {:.1} look changed. `least` is the smallest change that could have been told in that row.",
        found.expected_by_chance()
    ));
    if few > 0 {
        say(format!("{few} rows have fewer than two repetitions on a side: nothing is known about them."));
    }
    if found.rows.iter().any(|row| !row.is_same_amount) {
        say("* one side did more of it than the other (--same-as makes them the same).");
    }
}

fn line(row: &Row) -> String {
    let unit = row.part.unit();
    let mut phase = row.what.clone();
    if row.tool != Tool::Ashlar {
        phase += &format!(" {}", row.tool);
    }
    if let Some(percent) = row.fill_percent {
        phase += &format!(" {percent}%");
    }
    let verdict = match row.verdict {
        Verdict::Faster => "faster",
        Verdict::Slower => "SLOWER",
        Verdict::Same => "no more than chance",
        Verdict::NotKnown => "not known",
        Verdict::Spoiled => "a figure of a cache",
    };
    let p = row.test.as_ref().map_or_else(|| "-".into(), |test| format!("{:.3}", test.p));
    let least =
        row.test.as_ref().map_or_else(|| "-".into(), |test| format!("{:.1} %", test.detectable * 100.0));
    let mark = if row.is_same_amount { "" } else { " *" };
    format!(
        "{:<19} {phase:<18} {:>7} {:>12.0} {:>12.0}  {:<5} {:>8} {p:>7} {least:>8}  {verdict}{mark}",
        row.part.name(),
        row.threads,
        number::in_unit(row.before, unit),
        number::in_unit(row.after, unit),
        number::unit_name(unit),
        format!("{:+.1} %", row.change * 100.0),
    )
}
