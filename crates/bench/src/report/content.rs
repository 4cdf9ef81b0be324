//! What a report says, in which order: figures first, then what they were measured with.

mod machine;
mod method;
mod part;
mod published;

use super::curve::Curve;
use super::document::{Block, Document, Table};
use super::number::{self, percent};
use super::{Report, date};
use crate::run::Tool;

/// A peak that is so much of its ceiling and more is not one of what the ceiling is of. Ceilings vary, too.
const ABOVE_PART: f64 = 1.1;

/// All of it.
pub fn document(report: &Report) -> Document {
    let mut out = Document { title: report.title.clone(), ..Document::default() };
    summary(report, &mut out);
    overview(report, &mut out);
    for part in report.plan.parts() {
        part::part(report, part, &mut out);
    }
    part::filling(report, &mut out);
    machine::ceilings(report, &mut out);
    published::beside(report, &mut out);
    machine::inventory(report, &mut out);
    method::method(report, &mut out);
    out
}

fn summary(report: &Report, out: &mut Document) {
    let (inventory, plan) = (&report.inventory, &report.plan);
    let times = if plan.repetitions == 1 { "once".to_owned() } else { format!("{} times", plan.repetitions) };
    out.say(format!(
        "{}: {} on {}. Written {}, after {} of measuring, every point {times}.",
        report.place_name,
        inventory.place.file_system,
        report.machines(),
        date::utc(report.made_unix_seconds),
        number::time(report.seconds),
    ));
    if plan.repetitions < 3 {
        out.push(Block::Caution(
            "with fewer than three repetitions nothing can be told about how sure the figures are".into(),
        ));
    }
    let spread =
        report.curves.iter().flat_map(|curve| curve.points.iter().map(|point| point.spread(curve.part)));
    let wide = spread.filter(|spread| spread.mean > 0.0 && spread.deviation / spread.mean > 0.2).count();
    if wide > 0 {
        let all: usize = report.curves.iter().map(|curve| curve.points.len()).sum();
        out.push(Block::Caution(format!(
            "{wide} of {all} points vary by more than 20 % between repetitions (standard deviation): the machine was not at rest, or is shared"
        )));
    }
    let short = plan.points.iter().filter(|point| point.amount.seconds < 1.0).count();
    if short > 0 {
        out.push(Block::Caution(
            "phases were planned to take less than a second: start and end weigh much".into(),
        ));
    }
    let above: Vec<f64> =
        report.curves.iter().filter_map(Curve::of_ceiling).filter(|part| *part > ABOVE_PART).collect();
    if !above.is_empty() {
        let most = percent(above.iter().copied().fold(0.0, f64::max));
        out.push(Block::Caution(format!(
            "{} of {} peaks are above their ceilings, up to {most}: a cache answered, or the ceiling was measured too low (with fewer threads, less data, \
             or while the machine had something else to do)",
            above.len(),
            report.curves.len()
        )));
    }
    let left = plan.left_out.iter().map(|text| format!("Left out: {text}."));
    let shortened = plan.shortened.iter().map(|text| format!("Shortened: {text}."));
    let all: Vec<String> = shortened.chain(left).collect();
    if !all.is_empty() {
        out.push(Block::List(all));
    }
}

/// The rate that a cell tells, or why there is none.
fn told(rate: Option<f64>, curve: &Curve) -> String {
    rate.map_or_else(|| "of a cache".into(), |rate| number::rate(rate, curve.part.unit()))
}

/// Peak and sustained of everything, as the papers have it.
fn overview(report: &Report, out: &mut Document) {
    out.heading(2, "Peak and sustained");
    let head = [
        "Workload",
        "Phase",
        "Unit",
        "#Peak",
        "#Threads",
        "#± %",
        "#Sustained",
        "#Of ceiling",
        "Ceiling",
        "Bottleneck at the peak",
    ];
    let mut table = Table::new("Peak and sustained rates", &head);
    for curve in report.curves.iter().filter(|curve| curve.fill_percent.is_none()) {
        let peak = curve.peak_point();
        let spread = peak.map(|point| point.spread(curve.part));
        let deviation =
            spread.filter(|spread| spread.mean > 0.0).map(|spread| spread.deviation / spread.mean * 100.0);
        let mut sustained = told(curve.sustained, curve);
        if curve.is_open && curve.peak.is_some() {
            sustained.push('†');
        }
        table.rows.push(vec![
            curve.part.title().to_owned(),
            curve.name(),
            number::unit_name(curve.part.unit()).to_owned(),
            told(curve.peak_rate(), curve),
            peak.map_or_else(|| "-".into(), |point| point.summary.threads.to_string()),
            deviation.map_or_else(|| "-".into(), |deviation| format!("{deviation:.1}")),
            sustained,
            curve.of_ceiling().map_or_else(|| "-".into(), percent),
            curve.against.as_ref().map_or_else(|| "-".into(), |against| against.name.clone()),
            bottleneck(curve),
        ]);
    }
    out.push(Block::Table(table));
    out.say(
        "Peak: the highest mean over the repetitions. Sustained: the lowest mean of all numbers of threads from the peak's on, so what is left \
         when more threads come than the best number; † nothing was measured beyond the peak. ±: standard deviation of the repetitions \
         at the peak. Definitions and rules are under “Method”.",
    );
    if report.curves.iter().any(|curve| curve.tool != Tool::Ashlar) {
        out.say(
            "A program's name in parentheses: its figure of the same workload, measured in turns with ours.",
        );
    }
}

fn bottleneck(curve: &Curve) -> String {
    let found = &curve.bottleneck;
    if found.also.is_empty() {
        return found.evidence.clone();
    }
    format!("{}; {}", found.evidence, found.also.join("; "))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{measured, report, report_of_agents};
    use super::*;
    use crate::run::{Measured, Part};

    #[test]
    fn every_row_of_every_table_has_a_cell_for_each_column() {
        check(report());
        check(report_of_agents());
    }

    fn check(mut full: Report) {
        for percent in [50, 90] {
            let of_level = |repetition| Measured {
                fill_percent: Some(percent),
                ..measured(Part::Random4k, "random read", 2, repetition, 100.0)
            };
            full.measured.extend((1..=3).map(of_level));
        }
        let document = document(&full.finish());
        let tables = document
            .blocks
            .iter()
            .filter_map(|block| if let Block::Table(table) = block { Some(table) } else { None });
        let mut count = 0;
        for table in tables {
            count += 1;
            assert_eq!(table.head.len(), table.is_number.len(), "{}", table.caption);
            assert!(
                table.rows.iter().all(|row| row.len() == table.head.len()),
                "{}: {:?}",
                table.caption,
                table.rows
            );
        }
        assert!(count >= 12, "{count}");
    }
}
