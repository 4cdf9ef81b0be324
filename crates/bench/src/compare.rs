//! Two reports of the same workloads: what changed, and whether that is more than the repetitions vary anyway.
//!
//! Each point is judged for itself with Welch's test ([`welch`]). A change is called one when it would come of chance in less than 5 % of
//! cases; of many rows some will, and how many is told. Beside each row stands the least change that could have been told at all with so many
//! repetitions that vary so much: "no change" means no change larger than that.

pub mod difference;
pub mod welch;

use crate::report::Report;
use crate::report::curve::{Curve, CurvePoint};
use crate::run::{Part, Tool};
use difference::Difference;
use serde::Serialize;
use welch::Welch;

/// How often chance may pass for a change.
pub const CHANCE: f64 = 0.05;

/// What is to be thought of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// More than before.
    Faster,
    /// Less.
    Slower,
    /// No more than chance.
    Same,
    /// One of them has too few repetitions.
    NotKnown,
    /// One of them is a figure of a cache.
    Spoiled,
}

/// One point of both reports.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Which part.
    pub part: Part,
    /// Which program.
    pub tool: Tool,
    /// How full the file system was made before, percent.
    pub fill_percent: Option<u8>,
    /// Which phase.
    pub what: String,
    /// Threads.
    pub threads: usize,
    /// Mean rate of the first, bytes or operations per second.
    pub before: f64,
    /// Of the second.
    pub after: f64,
    /// What it is more (0.1 is 10 %), less if negative.
    pub change: f64,
    /// The test; nothing with fewer than two repetitions.
    pub test: Option<Welch>,
    /// What follows.
    pub verdict: Verdict,
    /// Whether both did the same: not only the same workload, but as much of it.
    pub is_same_amount: bool,
}

/// Two reports beside each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Titles of both.
    pub titles: [String; 2],
    /// What they do not have in common.
    pub differences: Vec<Difference>,
    /// Points of both.
    pub rows: Vec<Row>,
    /// Points that only one of them has.
    pub only_one: Vec<String>,
}

impl Comparison {
    /// Of two reports, the earlier first.
    pub fn of(before: &Report, after: &Report) -> Comparison {
        let mut rows = Vec::new();
        let mut only_one = Vec::new();
        for curve in &before.curves {
            let twin = after.curves.iter().find(|other| is_twin(curve, other));
            for point in &curve.points {
                let threads = point.summary.threads;
                let other =
                    twin.and_then(|twin| twin.points.iter().find(|other| other.summary.threads == threads));
                match other {
                    Some(other) => rows.push(row(
                        curve,
                        point,
                        other,
                        difference::is_same_amount(before, after, curve.part, threads),
                    )),
                    None => only_one.push(format!("only in the first: {}", name(curve, threads))),
                }
            }
        }
        for curve in &after.curves {
            let twin = before.curves.iter().find(|other| is_twin(curve, other));
            let missing = curve.points.iter().filter(|point| {
                !twin.is_some_and(|twin| {
                    twin.points.iter().any(|other| other.summary.threads == point.summary.threads)
                })
            });
            only_one.extend(
                missing.map(|point| format!("only in the second: {}", name(curve, point.summary.threads))),
            );
        }
        let titles = [before, after].map(|report| report.title.clone());
        Comparison { titles, differences: difference::differences(before, after), rows, only_one }
    }

    /// Rows that chance alone is expected to make look like a change.
    pub fn expected_by_chance(&self) -> f64 {
        self.rows.iter().filter(|row| row.test.is_some()).count() as f64 * CHANCE
    }
}

fn name(curve: &Curve, threads: usize) -> String {
    format!("{} {}, {threads} threads", curve.part, curve.name())
}

fn is_twin(one: &Curve, other: &Curve) -> bool {
    (one.part, one.tool, one.fill_percent, &one.what)
        == (other.part, other.tool, other.fill_percent, &other.what)
}

fn row(curve: &Curve, one: &CurvePoint, other: &CurvePoint, is_same_amount: bool) -> Row {
    let (before, after) = (one.spread(curve.part).mean, other.spread(curve.part).mean);
    let test = Welch::of(&one.rates, &other.rates);
    let verdict = match &test {
        _ if one.is_spoiled || other.is_spoiled => Verdict::Spoiled,
        None => Verdict::NotKnown,
        Some(test) if test.p >= CHANCE => Verdict::Same,
        Some(_) if after > before => Verdict::Faster,
        Some(_) => Verdict::Slower,
    };
    Row {
        part: curve.part,
        tool: curve.tool,
        fill_percent: curve.fill_percent,
        what: curve.what.clone(),
        threads: one.summary.threads,
        before,
        after,
        change: if before > 0.0 { after / before - 1.0 } else { 0.0 },
        test,
        verdict,
        is_same_amount,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{measured, report};

    #[test]
    fn a_change_is_told_from_chance() {
        let before = report();
        let mut after = report();
        for one in after.measured.iter_mut().filter(|one| one.figure.what == "create") {
            one.figure.operations = one.figure.operations * 13 / 10;
        }
        after.measured.retain(|one| one.figure.what != "stat" || one.figure.threads != 4);
        after.measured.push(measured(Part::Random4k, "random read", 8, 1, 100.0));
        let told = Comparison::of(&before, &after.finish());
        let of = |what: &str| told.rows.iter().filter(|row| row.what == what).collect::<Vec<_>>();
        assert!(
            of("create").iter().all(|row| row.verdict == Verdict::Faster && (row.change - 0.3).abs() < 1e-3)
        );
        assert!(of("sequential read").iter().all(|row| row.verdict == Verdict::Same && row.change == 0.0));
        assert_eq!(told.only_one.len(), 2, "{:?}", told.only_one);
        assert!(
            told.only_one[0].contains("stat, 4 threads") && told.only_one[1].contains("random-4k read, 8")
        );
        assert!((told.expected_by_chance() - 11.0 * CHANCE).abs() < 1e-9);
        let back = Comparison::of(&after_slower(), &report());
        assert!(back.rows.iter().any(|row| row.verdict == Verdict::Slower));
    }

    fn after_slower() -> Report {
        let mut all = report();
        all.measured.iter_mut().for_each(|one| one.figure.seconds /= 2.0);
        all.finish()
    }

    #[test]
    fn one_repetition_tells_nothing() {
        let mut one = report();
        one.measured.retain(|one| one.figure.repetition == 1);
        let told = Comparison::of(&one.finish(), &report());
        assert!(told.rows.iter().all(|row| row.verdict == Verdict::NotKnown && row.test.is_none()));
        assert_eq!(told.expected_by_chance(), 0.0);
    }
}
