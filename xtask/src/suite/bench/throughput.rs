//! Cases that run on ceiling, local file system and Ashlar in turn, and the table they give. `metadata` and `data` are made of these.

use anyhow::Context;
use serde_json::{Value, json};

use super::Bench;
use super::figures::{Figures, median, show, show_percent};
use super::place::{ASHLAR, CEILING, LOCAL, Place, Places, take_turns};
use super::report::Report;

/// A case: a name and the words for `ashlar-torture`.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) words: Vec<String>,
    /// Data is moved, so that MiB/s count and not operations.
    pub(super) counts_bytes: bool,
}

/// What was measured in one phase of one case.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) case: &'static str,
    pub(super) phase: String,
    unit: &'static str,
    pub(super) rates: Figures,
    /// Processor seconds of the server per 10,000 operations, or per GiB where bytes count.
    pub(super) cpu: Figures,
    /// Anonymous memory of the server after the phase.
    anonymous_mib: Figures,
}

/// All rows of a part.
#[derive(Debug, Default)]
pub(super) struct Rows(Vec<Row>);

impl Rows {
    /// Mounts everything, runs the cases and shows the table.
    ///
    /// # Errors
    /// When a server or a case fails.
    pub(super) fn measure(bench: &Bench, cases: &[Case], report: &mut Report) -> anyhow::Result<Self> {
        let places = Places::mount(bench, true)?;
        let mut rows = Self::default();
        take_turns(bench.shared.rounds, cases, places.all(), |case, place| {
            rows.run(bench, case, place).context(case.name)
        })?;
        places.end()?;
        rows.show(report);
        Ok(rows)
    }

    /// Runs a case on a place.
    ///
    /// # Errors
    /// When it fails.
    pub(super) fn run(&mut self, bench: &Bench, case: &Case, place: &Place) -> anyhow::Result<()> {
        const MIB_PER_GIB: f64 = 1024.0;
        for phase in bench.torture(place, &case.words)? {
            let row = self.row(case, &phase.name);
            let (rate, cpu) = match case.counts_bytes {
                true => {
                    let gib = phase.mib_per_second * phase.seconds / MIB_PER_GIB;
                    (phase.mib_per_second, phase.server_cpu_seconds.map(|cpu| cpu / gib))
                }
                false => (phase.operations_per_second, phase.cpu_seconds_per_10k()),
            };
            row.rates.push(&place.name, rate);
            cpu.into_iter().for_each(|cpu| row.cpu.push(&place.name, cpu));
            phase.server_anonymous_mib.into_iter().for_each(|mib| row.anonymous_mib.push(&place.name, mib));
        }
        Ok(())
    }

    fn row(&mut self, case: &Case, phase: &str) -> &mut Row {
        let at = self.0.iter().position(|row| row.case == case.name && row.phase == phase);
        let at = at.unwrap_or_else(|| {
            self.0.push(Row {
                case: case.name,
                phase: phase.to_owned(),
                unit: if case.counts_bytes { "MiB/s" } else { "op/s" },
                rates: Figures::default(),
                cpu: Figures::default(),
                anonymous_mib: Figures::default(),
            });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    pub(super) fn all(&self) -> &[Row] {
        &self.0
    }

    pub(super) fn find(&self, case: &str, phase: &str) -> Option<&Row> {
        self.0.iter().find(|row| row.case == case && row.phase == phase)
    }

    /// Ashlar's part of the ceiling; 0 where that was not measured.
    pub(super) fn of_ceiling(&self, case: &str, phase: &str) -> f64 {
        self.find(case, phase).map_or(0.0, |row| median(&row.rates.ratios(ASHLAR, CEILING)))
    }

    /// Ashlar's rate in one row over that in another, round by round.
    pub(super) fn between(&self, row: (&str, &str), reference: (&str, &str)) -> f64 {
        let of = |(case, phase): (&str, &str)| self.find(case, phase).map_or(&[][..], |r| r.rates.of(ASHLAR));
        median(&super::figures::ratios(of(row), of(reference)))
    }

    fn show(&self, report: &mut Report) {
        let head =
            ["case", "unit", CEILING, LOCAL, "Ashlar", "of ceiling", "of local", "CPU", "ceiling's CPU"];
        let rows: Vec<Vec<String>> = self
            .0
            .iter()
            .map(|row| {
                let rate = |name: &str| show(row.rates.of(name), 0);
                let cpu = |name: &str| show(row.cpu.of(name), 2);
                vec![
                    format!("{}: {}", row.case, row.phase),
                    row.unit.to_owned(),
                    rate(CEILING),
                    rate(LOCAL),
                    rate(ASHLAR),
                    show_percent(&row.rates.ratios(ASHLAR, CEILING)),
                    show_percent(&row.rates.ratios(ASHLAR, LOCAL)),
                    cpu(ASHLAR),
                    cpu(CEILING),
                ]
            })
            .collect();
        report.table(&head.map(str::to_owned), &rows);
        let most = self.0.iter().map(|row| row.anonymous_mib.median(ASHLAR)).fold(0.0, f64::max);
        report.say(&format!(
            "Medians, least and greatest of the rounds in brackets. CPU: seconds of the server per 10,000 operations, or per GiB where \
             the unit is MiB/s. Anonymous memory of Ashlar's server: at most {most:.0} MiB after a phase.\n"
        ));
    }

    pub(super) fn json(&self) -> Value {
        let rows = self.0.iter().map(|row| {
            json!({ "case": row.case, "phase": row.phase, "unit": row.unit, "rates": row.rates.json(), "cpu": row.cpu.json(),
                "anonymous_mib": row.anonymous_mib.json() })
        });
        Value::Array(rows.collect())
    }
}
