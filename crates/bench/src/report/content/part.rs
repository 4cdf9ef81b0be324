//! One workload: its plot, its numbers, what must be said of them, and how to measure them again.

use super::super::curve::{Curve, CurvePoint};
use super::super::document::{Block, Document, Table};
use super::super::number::{self, percent};
use super::super::plot::{Along, Mark, Plot, Series};
use super::Report;
use crate::figure::Caution;
use crate::run::{Part, Point};
use crate::sample::Load;
use crate::tools;

/// A section.
pub fn part(report: &Report, part: Part, out: &mut Document) {
    let curves: Vec<&Curve> =
        report.curves.iter().filter(|curve| curve.part == part && curve.fill_percent.is_none()).collect();
    if curves.is_empty() {
        return;
    }
    out.heading(2, part.title());
    if let Some(plot) = plot(part, &curves) {
        out.push(Block::Plot(plot));
    }
    let (table, cautions) = numbers(&format!("{}: rates and latencies", part.title()), &curves);
    out.push(Block::Table(table));
    cautions.into_iter().enumerate().for_each(|(at, text)| {
        out.push(Block::Caution(format!("[{}] {text}", at + 1)));
    });
    out.push(Block::List(curves.iter().map(|curve| verdict(curve)).collect()));
    if let Some(table) = loads(&curves) {
        out.push(Block::Table(table));
    }
    commands(report, part, &curves, out);
}

fn verdict(curve: &Curve) -> String {
    let ceiling = match (curve.of_ceiling(), &curve.against) {
        (Some(part), Some(against)) => format!(
            " {} of the ceiling ({}, {} {}).",
            percent(part),
            against.name,
            number::rate(against.rate, curve.part.unit()),
            number::unit_name(curve.part.unit())
        ),
        // Names have none.
        _ if curve.part.is_metadata() => String::new(),
        _ => " No ceiling of this was measured.".to_owned(),
    };
    format!("Bottleneck of {}: {}.{ceiling}", curve.name(), super::bottleneck(curve))
}

fn plot(part: Part, curves: &[&Curve]) -> Option<Plot> {
    let mark = |point: &CurvePoint| {
        let spread = point.spread(part);
        let in_unit = |rate: f64| number::in_unit(rate, part.unit());
        Mark {
            at: point.summary.threads as f64,
            mean: in_unit(spread.mean),
            deviation: in_unit(spread.deviation),
        }
    };
    let series = curves.iter().map(|curve| Series {
        name: curve.name(),
        marks: curve.points.iter().filter(|point| !point.is_spoiled).map(mark).collect(),
    });
    let series: Vec<Series> = series.filter(|series| !series.marks.is_empty()).collect();
    let names: Vec<&str> = series.iter().map(|series| series.name.as_str()).collect();
    let description = format!(
        "{} over numbers of threads, for {}. Bars are one standard deviation of the repetitions. The table below has the same numbers.",
        number::unit_name(part.unit()),
        names.join(", ")
    );
    (!series.is_empty()).then(|| Plot {
        title: part.title().to_owned(),
        description,
        unit: number::unit_name(part.unit()).to_owned(),
        along: Along::Threads,
        is_log: part.is_metadata(),
        series,
    })
}

/// The numbers of the curves, and the cautions that their marks stand for.
fn numbers(caption: &str, curves: &[&Curve]) -> (Table, Vec<String>) {
    let unit = curves.first().map_or("", |curve| number::unit_name(curve.part.unit()));
    let mean = format!("#Mean {unit}");
    let rates = ["Phase", "#Threads", mean.as_str(), "#± %", "#Least", "#Greatest", "#Of ceiling"];
    let head = [&rates[..], &["#p50 µs", "#p99 µs", "Cautions"]].concat();
    let mut table = Table::new(caption, &head);
    let mut known: Vec<Caution> = Vec::new();
    for (curve, point) in curves.iter().flat_map(|curve| curve.points.iter().map(move |point| (curve, point)))
    {
        let mut marks = Vec::new();
        for caution in &point.summary.cautions {
            let same = |one: &Caution| std::mem::discriminant(one) == std::mem::discriminant(caution);
            let at = known.iter().position(same).unwrap_or_else(|| {
                known.push(*caution);
                known.len() - 1
            });
            marks.push(format!("[{}]", at + 1));
        }
        let spread = point.spread(curve.part);
        let rate = |rate: f64| {
            if point.is_spoiled { "of a cache".to_owned() } else { number::rate(rate, curve.part.unit()) }
        };
        let deviation = if spread.mean > 0.0 { spread.deviation / spread.mean * 100.0 } else { 0.0 };
        table.rows.push(vec![
            curve.name(),
            point.summary.threads.to_string(),
            rate(spread.mean),
            if point.summary.repetitions > 1 { format!("{deviation:.1}") } else { "-".into() },
            rate(spread.least),
            rate(spread.greatest),
            if point.is_spoiled {
                "-".into()
            } else {
                curve.part_of_ceiling(spread.mean).map_or_else(|| "-".into(), percent)
            },
            number::micros(point.summary.p50_us),
            number::micros(point.summary.p99_us),
            marks.join(" "),
        ]);
    }
    (table, known.into_iter().map(Caution::text).collect())
}

/// What the machines did while each point was measured; nothing if nobody could watch. Of many the one with most is told, and the mean of its
/// processors.
fn loads(curves: &[&Curve]) -> Option<Table> {
    let head = ["Phase", "#Threads", "#Processors", "#Busiest one", "#Waiting", "Devices", "Networks"];
    let are_agents = curves.iter().any(|curve| curve.points.iter().any(|point| !point.loads.is_empty()));
    let caption = if are_agents {
        "What the machines did meanwhile: in each column the one that did most"
    } else {
        "What the machine did meanwhile"
    };
    let mut table = Table::new(caption, &head);
    for (curve, point) in curves.iter().flat_map(|curve| curve.points.iter().map(move |point| (curve, point)))
    {
        let watched = point.watched();
        if watched.is_empty() {
            continue;
        }
        let most = |of: &dyn Fn(&Load) -> f64, text: &dyn Fn(&Load) -> String| {
            let parts = watched.iter().map(|one| (one, of(one.load)));
            let found = parts.reduce(|best, one| if one.1 > best.1 { one } else { best });
            found.map_or_else(String::new, |(one, part)| match one.agent.filter(|_| part > 0.0) {
                Some(agent) => format!("agent {agent}: {}", text(one.load)),
                None => text(one.load),
            })
        };
        let mut processors = most(&|load| load.busy, &|load| percent(load.busy));
        if watched.len() > 1 {
            let mean = watched.iter().map(|one| one.load.busy).sum::<f64>() / watched.len() as f64;
            processors += &format!(", mean {}", percent(mean));
        }
        let busy = |load: &Load| load.devices.iter().map(|one| one.busy).fold(0.0, f64::max);
        let moved = |load: &Load| load.interfaces.iter().map(|one| one.received + one.sent).sum();
        table.rows.push(vec![
            curve.name(),
            point.summary.threads.to_string(),
            processors,
            most(&|load| load.busiest, &|load| percent(load.busiest)),
            most(&|load| load.iowait, &|load| percent(load.iowait)),
            most(&busy, &devices),
            most(&moved, &networks),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}

/// A disk or link that did less is not told.
const NOTEWORTHY: f64 = 0.01;

fn devices(load: &Load) -> String {
    let busy = load.devices.iter().filter(|one| one.busy >= NOTEWORTHY);
    let text = |rate: f64| number::plain(rate / f64::from(1 << 20));
    let told: Vec<String> = busy
        .map(|one| {
            format!(
                "{} {} busy, {} read, {} written MiB/s",
                one.name,
                percent(one.busy),
                text(one.read),
                text(one.written)
            )
        })
        .collect();
    if told.is_empty() { "at rest".into() } else { told.join("; ") }
}

fn networks(load: &Load) -> String {
    let told: Vec<String> = load
        .interfaces
        .iter()
        .filter(|one| one.received + one.sent > f64::from(1 << 20))
        .map(|one| {
            let part = one.used().map_or_else(
                || "link speed not known".into(),
                |part| format!("{} of its link", percent(part)),
            );
            format!(
                "{} {} MiB/s ({part})",
                one.name,
                number::plain(one.received.max(one.sent) / f64::from(1 << 20))
            )
        })
        .collect();
    if told.is_empty() { "at rest".into() } else { told.join("; ") }
}

fn commands(report: &Report, part: Part, curves: &[&Curve], out: &mut Document) {
    let plan = &report.plan;
    let mut lines = Vec::new();
    let points = || plan.points.iter().filter(|point| point.part == part);
    lines.extend(points().map(|point: &Point| point.command(plan, report.agents.len())));
    for tool in plan.tools.iter().filter(|tool| curves.iter().any(|curve| curve.tool == **tool)) {
        for point in points() {
            lines.extend(tools::commands(*tool, &point.work(plan.is_direct)));
        }
    }
    out.say("Each point alone, again:");
    out.push(Block::Commands(lines));
}

/// How rates behave as the file system fills.
pub fn filling(report: &Report, out: &mut Document) {
    let filled: Vec<&Curve> = report.curves.iter().filter(|curve| curve.fill_percent.is_some()).collect();
    if filled.is_empty() {
        return;
    }
    out.heading(2, "As the file system fills");
    let mut parts: Vec<Part> = filled.iter().map(|curve| curve.part).collect();
    parts.sort_unstable();
    parts.dedup();
    for part in parts {
        let own: Vec<&Curve> = filled.iter().copied().filter(|curve| curve.part == part).collect();
        let mut names: Vec<String> = own.iter().map(|curve| curve.name()).collect();
        names.dedup();
        names.sort();
        names.dedup();
        let series = names.iter().map(|name| Series {
            name: name.clone(),
            marks: own
                .iter()
                .filter(|curve| curve.name() == *name)
                .filter_map(|curve| level(curve))
                .collect(),
        });
        out.heading(3, part.title());
        out.push(Block::Plot(Plot {
            title: format!("{} as the file system fills", part.title()),
            description: format!(
                "{} over per cent in use; the table below has the same numbers.",
                number::unit_name(part.unit())
            ),
            unit: number::unit_name(part.unit()).to_owned(),
            along: Along::Percent,
            is_log: false,
            series: series.filter(|series| !series.marks.is_empty()).collect(),
        }));
        let unit = format!("#Mean {}", number::unit_name(part.unit()));
        let mut table = Table::new(
            "Rates by level",
            &["Phase", "#In use", "#Threads", unit.as_str(), "#± %", "#p50 µs", "#p99 µs"],
        );
        for curve in &own {
            for point in &curve.points {
                let spread = point.spread(part);
                table.rows.push(vec![
                    curve.name(),
                    format!("{} %", curve.fill_percent.unwrap_or(0)),
                    point.summary.threads.to_string(),
                    if point.is_spoiled {
                        "of a cache".into()
                    } else {
                        number::rate(spread.mean, part.unit())
                    },
                    format!("{:.1}", spread.deviation / spread.mean.max(1e-9) * 100.0),
                    number::micros(point.summary.p50_us),
                    number::micros(point.summary.p99_us),
                ]);
            }
        }
        out.push(Block::Table(table));
    }
    out.say("The level counts what was there before, the files that fill, and those that are measured.");
}

fn level(curve: &Curve) -> Option<Mark> {
    let point = curve.peak_point()?;
    let spread = point.spread(curve.part);
    let in_unit = |rate: f64| number::in_unit(rate, curve.part.unit());
    let at = f64::from(curve.fill_percent?);
    Some(Mark { at, mean: in_unit(spread.mean), deviation: in_unit(spread.deviation) })
}
