//! Own figures beside those that others have published.

use super::super::document::{Block, Document, Table};
use super::super::number;
use super::Report;
use crate::published::Row;
use crate::run::{Tool, Unit};

/// A section; nothing if no row has a workload that was measured.
pub fn beside(report: &Report, out: &mut Document) {
    let rows: Vec<Row> = report.published();
    let parts = report.plan.parts();
    let mut has_heading = false;
    for part in parts {
        let own: Vec<&Row> = rows.iter().filter(|row| row.part == part).collect();
        if own.is_empty() {
            continue;
        }
        if !std::mem::replace(&mut has_heading, true) {
            out.heading(2, "Beside published figures");
            out.say(
                "The same workloads on the machines that are named. They differ from this one in everything; what can be compared is the shape: how \
                 far sustained is below peak, writing from reading, small from large.",
            );
        }
        let unit = part.unit();
        let head = ["Row", "System", "Phase", "#Peak", "#Threads", "#Sustained", "Note"];
        let mut table = Table::new(&format!("{} ({})", part.title(), wide_name(unit)), &head);
        let curves = report
            .curves
            .iter()
            .filter(|curve| curve.part == part && curve.tool == Tool::Ashlar && curve.fill_percent.is_none());
        for curve in curves {
            table.rows.push(vec![
                "this report".into(),
                format!("{}, {}", report.place_name, report.machines()),
                curve.name(),
                curve.peak_rate().map_or_else(|| "of a cache".into(), |rate| wide(rate, unit)),
                curve.peak_point().map_or_else(|| "-".into(), |point| point.summary.threads.to_string()),
                curve.sustained.map_or_else(|| "-".into(), |rate| wide(rate, unit)),
                String::new(),
            ]);
        }
        for row in own {
            for figure in &row.figures {
                table.rows.push(vec![
                    row.row.clone(),
                    format!("{} ({})", row.system, row.source),
                    figure.what.rsplit(' ').next().unwrap_or(&figure.what).to_owned(),
                    wide(figure.peak, unit),
                    figure.threads.map_or_else(|| "-".into(), |threads| threads.to_string()),
                    figure.sustained.map_or_else(|| "-".into(), |rate| wide(rate, unit)),
                    row.note.clone(),
                ]);
            }
        }
        out.push(Block::Table(table));
    }
}

/// The papers tell content in powers of ten.
fn wide_name(unit: Unit) -> &'static str {
    match unit {
        Unit::Bytes => "GB/s",
        Unit::Operations => "operations per second",
    }
}

fn wide(rate: f64, unit: Unit) -> String {
    number::plain(if unit == Unit::Bytes { rate / 1e9 } else { rate })
}
