//! What a run found, for people and for programs: one page that holds everything, the same as Markdown, and JSON.
//!
//! Figures become curves ([`curve`]), curves become a document of plain blocks ([`document`]), and that is written out as HTML or
//! Markdown. Whatever comes from outside (names of disks, options of mounts, titles) is text there and is escaped in one place for each.

mod content;
pub mod curve;
mod date;
pub mod document;
mod html;
mod markdown;
pub mod number;
pub mod plot;

use crate::ceiling::Ceilings;
use crate::inventory::{self, AgentMachine, Inventory};
use crate::run::{Measured, Plan};
use crate::{BenchError, published};
use curve::Curve;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// The number in a report's JSON; a reader refuses others.
pub const FORMAT: u32 = 1;

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: u32,
    /// What stands at the top.
    pub title: String,
    /// What was measured, as a person calls it.
    pub place_name: String,
    /// When it was written: seconds since 1970.
    pub made_unix_seconds: u64,
    /// The command that made it, with `DIR` for the directory.
    pub command: String,
    /// The machine; of a run with agents that of the first.
    pub inventory: Inventory,
    /// The machines of agents, in their order; empty for a run without them. It came later than format 1 and is not needed to read it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<AgentMachine>,
    /// What was done.
    pub plan: Plan,
    /// What could have been done at best.
    pub ceilings: Ceilings,
    /// Every figure of every repetition.
    pub measured: Vec<Measured>,
    /// The same by part, program, phase and threads, with what follows from it.
    #[serde(skip_deserializing)]
    pub curves: Vec<Curve>,
    /// What it took, seconds.
    pub seconds: f64,
    /// Rows of the published tables that stand beside it; nothing for all that fit.
    pub beside: Option<Vec<String>>,
}

/// What tells whether the rest can be read.
#[derive(Deserialize)]
struct Head {
    format: Option<serde_json::Value>,
}

/// From so many agents on the JSON has no lines and no space for people: most of it would be that.
const COMPACT_FROM_AGENTS: usize = 17;

impl Report {
    /// Works out the curves.
    pub fn finish(mut self) -> Report {
        self.curves = curve::curves(&self.measured, &self.ceilings);
        self
    }

    /// Reads one that was written as JSON.
    ///
    /// # Errors
    /// What a call answers; [`BenchError::Unfit`] if it is none of this format.
    pub fn read(path: &Path) -> Result<Report, BenchError> {
        let text = fs::read_to_string(path).map_err(BenchError::io("read", path))?;
        let fault = |why: String| BenchError::Unfit(format!("{}: {why}", path.display()));
        let head: Head = serde_json::from_str(&text)
            .map_err(|error| fault(format!("this is no report in JSON: {error}")))?;
        match head.format.as_ref().and_then(serde_json::Value::as_u64) {
            Some(format) if format == u64::from(FORMAT) => {}
            Some(format) => {
                return Err(fault(format!("it is of format {format}, and this release reads {FORMAT}")));
            }
            None => return Err(fault("this is no report of `ashlar bench run`".into())),
        }
        // Once more, and not from a tree of all values, which takes ten times the memory of the text.
        let report: Report = serde_json::from_str(&text).map_err(|error| fault(error.to_string()))?;
        Ok(report.finish())
    }

    /// Writes `name.html`, `name.md` and `name.json`.
    ///
    /// # Errors
    /// What a call answers.
    pub fn write(&self, name: &Path) -> Result<(), BenchError> {
        let is_compact = self.agents.len() >= COMPACT_FROM_AGENTS;
        let json = if is_compact { serde_json::to_string(self) } else { serde_json::to_string_pretty(self) };
        let json = json.map_err(|error| BenchError::Unfit(error.to_string()))?;
        let document = content::document(self);
        let files =
            [("json", json + "\n"), ("md", markdown::render(&document)), ("html", html::render(&document))];
        for (ending, text) in files {
            let path = file(name, ending);
            // Beside it first: a report is there whole or not at all.
            let draft = file(name, &format!("{ending}.draft"));
            fs::write(&draft, text).map_err(BenchError::io("write", &draft))?;
            fs::rename(&draft, &path).map_err(BenchError::io("rename", &draft))?;
        }
        Ok(())
    }

    /// The machines that measured, in one line.
    pub fn machines(&self) -> String {
        if self.agents.is_empty() { self.inventory.machine() } else { inventory::machines(&self.agents) }
    }

    /// Rows of the published tables that have the same workload, or those that were asked for.
    fn published(&self) -> Vec<published::Row> {
        match &self.beside {
            Some(wanted) => published::rows().into_iter().filter(|row| wanted.contains(&row.row)).collect(),
            None => published::rows(),
        }
    }
}

/// `name` with an ending, whatever points are in it already.
pub fn file(name: &Path, ending: &str) -> std::path::PathBuf {
    let mut whole = name.as_os_str().to_owned();
    whole.push(".");
    whole.push(ending);
    whole.into()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::ceiling::tests::ceilings;
    use crate::figure::{Caution, Figure};
    use crate::run::{Amount, Part, Point, Tool};
    use crate::sample::Load;

    /// A figure of `rate` MiB/s or operations per second.
    pub fn measured(part: Part, what: &str, threads: usize, repetition: u32, rate: f64) -> Measured {
        let bytes = if part.is_metadata() { 0 } else { (rate * 2.0) as u64 * (1 << 20) };
        let figure = Figure {
            what: what.into(),
            threads,
            repetition,
            operations: (rate * 2.0) as u64,
            bytes,
            seconds: 2.0,
            p50_us: 100.0,
            p99_us: 200.0,
            max_us: 300.0,
            cautions: vec![Caution::FewBytes],
        };
        let load = Load { seconds: 2.0, processors: 2, busy: 0.97, busiest: 1.0, ..Load::default() };
        Measured { part, tool: Tool::Ashlar, fill_percent: None, figure, load: Some(load), loads: Vec::new() }
    }

    /// Two parts, two numbers of threads, three repetitions.
    pub fn report() -> Report {
        let mut all = Vec::new();
        for repetition in 1..=3 {
            let drift = f64::from(repetition);
            for (threads, rate) in [(1, 500.0), (2, 900.0), (4, 800.0)] {
                all.push(measured(Part::SequentialNN, "sequential write", threads, repetition, rate + drift));
                all.push(measured(
                    Part::SequentialNN,
                    "sequential read",
                    threads,
                    repetition,
                    2.0 * rate + drift,
                ));
                all.push(measured(Part::Metadata0, "create", threads, repetition, 30.0 * rate + drift));
                all.push(measured(Part::Metadata0, "stat", threads, repetition, 3000.0 * rate + drift));
            }
        }
        let amount = Amount { bytes: 1 << 30, files: 100, seconds: 2.0 };
        let points = [Part::SequentialNN, Part::Metadata0].iter().flat_map(|&part| {
            [1, 2, 4].map(|threads| Point { part, threads, amount, expected_seconds: 4.0 })
        });
        let mut inventory = Inventory::collect(Path::new("/"), &[]);
        inventory.place.options = "rw,<script>alert(1)</script>|`x`".into();
        Report {
            format: FORMAT,
            title: "A & B <storage>".into(),
            place_name: "scratch".into(),
            made_unix_seconds: 1_795_339_490,
            command: "ashlar bench run DIR --budget 60s".into(),
            inventory,
            agents: Vec::new(),
            plan: Plan {
                points: points.collect(),
                repetitions: 3,
                is_direct: true,
                drops_caches: false,
                memory_bytes: 1 << 34,
                fill_percents: Vec::new(),
                fill_points: Vec::new(),
                tools: Vec::new(),
                budget_seconds: 60.0,
                shortened: vec!["phases to 2 s".into()],
                left_out: vec!["random-1k: no time".into()],
            },
            ceilings: ceilings(),
            measured: all,
            curves: Vec::new(),
            seconds: 59.0,
            beside: None,
        }
        .finish()
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("release-1.2");
        let made = report();
        made.write(&name).unwrap();
        let mut left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["release-1.2.html", "release-1.2.json", "release-1.2.md"]);
        let read = Report::read(&file(&name, "json")).unwrap();
        assert_eq!(read, made);
        for (text, why) in
            [("{}", "no report of"), ("<html>", "no report in JSON"), ("{\"format\": 99}", "format 99")]
        {
            fs::write(folder.path().join("x"), text).unwrap();
            let refused = Report::read(&folder.path().join("x")).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
    }

    /// The same by three agents on two machines, one of which has more memory and a name that is markup.
    pub fn report_of_agents() -> Report {
        let mut report = report();
        let mut other = report.inventory.clone();
        other.hardware.memory_bytes *= 2;
        other.hardware.model = "<b>Other</b>".into();
        let of = |computer, told: &Inventory| AgentMachine::of(computer, told);
        report.agents = vec![of(1, &report.inventory), of(1, &report.inventory), of(2, &other)];
        for one in &mut report.measured {
            let load = one.load.take();
            let most = load.clone().map(|load| Load { busy: 0.99, ..load });
            let calm = load.map(|load| Load { busy: 0.2, busiest: 0.3, ..load });
            one.loads = vec![calm, most, None];
        }
        report.ceilings.memory_each = report.ceilings.memory.into_iter().cycle().take(2).collect();
        report.finish()
    }

    #[test]
    fn a_report_of_agents_tells_of_all_of_their_machines() {
        let folder = tempfile::tempdir().unwrap();
        let made = report_of_agents();
        made.write(&folder.path().join("r")).unwrap();
        assert_eq!(Report::read(&folder.path().join("r.json")).unwrap(), made);
        let page = fs::read_to_string(folder.path().join("r.html")).unwrap();
        let text = fs::read_to_string(folder.path().join("r.md")).unwrap();
        for part in [
            "1 machine with 2 agents",
            "agents 1-2",
            "agent 3",
            "processors of agent 2: all 2 at 99",
            "of it the machine of agent 3",
            "--agents 3 ",
        ] {
            assert!(page.contains(part) && text.contains(part), "{part} is missing in {text}");
        }
        assert!(page.contains("&lt;b&gt;Other") && !page.contains("<b>"));
        assert!(page.contains("What differs between the machines"));
        let alone = content::document(&report());
        assert!(!format!("{alone:?}").contains("agent "), "one machine has no agents");
    }

    #[test]
    fn figures_above_what_is_possible_are_not_told_without_a_word() {
        let text = |report: &Report| format!("{:?}", content::document(report));
        let mut made = report();
        assert!(!text(&made).contains("above their ceilings"));
        for device in &mut made.ceilings.device {
            device.bytes = crate::figure::Spread::of(&[device.bytes.mean / 10.0]);
        }
        let made = made.finish();
        let told = text(&made);
        let peaks = made.curves.iter().filter(|curve| curve.of_ceiling() > Some(1.1)).count();
        assert!(
            peaks > 0
                && told.contains(&format!(
                    "{peaks} of {} peaks are above their ceilings, up to ",
                    made.curves.len()
                )),
            "{told}"
        );
    }

    #[test]
    fn the_json_of_hundreds_of_agents_has_what_each_did_once_and_little_else() {
        let folder = tempfile::tempdir().unwrap();
        let mut made = report();
        let agents = 300;
        made.agents = (1..=agents).map(|computer| AgentMachine::of(computer, &made.inventory)).collect();
        for one in &mut made.measured {
            one.loads = vec![one.load.take(); agents];
        }
        let (made, phases) = (made.finish(), 4 * 3 * 3);
        assert_eq!(made.measured.len(), phases);
        made.write(&folder.path().join("r")).unwrap();
        let text = fs::read_to_string(folder.path().join("r.json")).unwrap();
        let load = serde_json::to_string(&made.measured[0].loads[0]).unwrap().len() + 1;
        let machine = serde_json::to_string(&made.agents[0]).unwrap().len() + 1;
        let rest = text.len() - phases * agents * load - agents * machine;
        assert!(rest < 100_000, "{rest} bytes beside the loads and machines");
        assert_eq!(Report::read(&folder.path().join("r.json")).unwrap(), made);
    }

    #[test]
    fn reports_of_releases_without_agents_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let (path, made) = (folder.path().join("r.json"), report());
        let told = serde_json::to_value(&made).unwrap();
        assert!(told.get("agents").is_none() && told["measured"][0].get("loads").is_none());
        assert!(told["ceilings"].get("memory_each").is_none());
        fs::write(&path, told.to_string()).unwrap();
        assert_eq!(Report::read(&path).unwrap(), made);
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reports");
        for name in ["ext4", "glusterfs", "ashlar-one-machine"] {
            let read = Report::read(&docs.join(format!("{name}.json"))).unwrap();
            assert!(read.agents.is_empty() && read.machines() == read.inventory.machine(), "{name}");
            assert!(read.measured.iter().any(|one| one.load.is_some() && one.loads.is_empty()), "{name}");
            let evidence: Vec<&str> =
                read.curves.iter().map(|curve| curve.bottleneck.evidence.as_str()).collect();
            assert!(
                !evidence.is_empty() && evidence.iter().all(|text| !text.contains("agent")),
                "{evidence:?}"
            );
        }
    }

    #[test]
    fn a_page_stands_alone_and_nothing_from_outside_is_markup() {
        let folder = tempfile::tempdir().unwrap();
        report().write(&folder.path().join("r")).unwrap();
        let page = fs::read_to_string(folder.path().join("r.html")).unwrap();
        for outside in ["<script", "src=", "http-equiv", "@import", "url("] {
            assert!(!page.contains(outside), "{outside} is in the page");
        }
        assert!(page.contains("A &amp; B &lt;storage&gt;") && page.contains("&lt;script&gt;alert(1)"));
        for needed in [
            "<svg",
            "<title",
            "<desc",
            "prefers-color-scheme: dark",
            "@media print",
            "<caption>",
            "scope=\"col\"",
            "lang=\"en\"",
        ] {
            assert!(page.contains(needed), "{needed} is missing");
        }
        let text = fs::read_to_string(folder.path().join("r.md")).unwrap();
        assert!(text.contains("\\<script\\>") && text.contains("\\|"), "{text}");
        for part in [
            "Sequential, a file per thread",
            "Peak and sustained",
            "Bottleneck",
            "random-1k: no time",
            "ashlar bench sequential DIR",
        ] {
            assert!(page.contains(part) && text.contains(part), "{part} is missing");
        }
    }
}
