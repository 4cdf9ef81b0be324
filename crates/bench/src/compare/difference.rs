//! What two reports do not have in common besides their figures.

use crate::report::Report;
use crate::report::number;
use crate::run::{Part, Point, Work};
use serde::Serialize;
use std::collections::BTreeSet;

/// Which sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sort {
    /// Another machine, or another part in it.
    Machine,
    /// Other software.
    Software,
    /// Another file system or other options of its mount.
    Place,
    /// Other workloads: what is compared is not the same thing.
    Parameters,
    /// The same workloads, but more or less of them.
    Amounts,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Which sort.
    pub sort: Sort,
    /// What it was and what it is.
    pub text: String,
}

/// All, the sorts in order.
pub fn differences(before: &Report, after: &Report) -> Vec<Difference> {
    let mut all = Vec::new();
    let mut compare = |sort: Sort, what: &str, before: String, now: String| {
        if before != now {
            all.push(Difference { sort, text: format!("{what}: {before}, then {now}") });
        }
    };
    let (old, new) = (&before.inventory, &after.inventory);
    let both = |of: &dyn Fn(&Report) -> String| (of(before), of(after));
    compare(Sort::Machine, "processor", old.hardware.model.clone(), new.hardware.model.clone());
    compare(
        Sort::Machine,
        "processors",
        old.hardware.processors.to_string(),
        new.hardware.processors.to_string(),
    );
    compare(
        Sort::Machine,
        "NUMA nodes",
        old.hardware.nodes.len().to_string(),
        new.hardware.nodes.len().to_string(),
    );
    compare(
        Sort::Machine,
        "memory",
        number::bytes(old.hardware.memory_bytes),
        number::bytes(new.hardware.memory_bytes),
    );
    let (disks, now) = both(&|report| {
        let disks = report
            .inventory
            .hardware
            .disks
            .iter()
            .map(|disk| format!("{} ({})", disk.name, number::bytes(disk.bytes)));
        disks.collect::<Vec<_>>().join(" ")
    });
    compare(Sort::Machine, "disks", disks, now);
    let (agents, now) = both(&|report| match report.agents.len() {
        0 => "none".to_owned(),
        1.. => format!("{} ({})", report.agents.len(), report.machines()),
    });
    compare(Sort::Machine, "agents", agents, now);
    compare(Sort::Software, "kernel", old.software.kernel.clone(), new.software.kernel.clone());
    compare(
        Sort::Software,
        "distribution",
        old.software.distribution.clone(),
        new.software.distribution.clone(),
    );
    let (tools, now) = both(&|report| pairs(&report.inventory.software.tools));
    compare(Sort::Software, "versions", tools, now);
    let (settings, now) = both(&|report| pairs(&report.inventory.software.settings));
    compare(Sort::Software, "settings", settings, now);
    compare(Sort::Place, "file system", old.place.file_system.clone(), new.place.file_system.clone());
    compare(Sort::Place, "device", old.place.source.clone(), new.place.source.clone());
    compare(Sort::Place, "mount options", old.place.options.clone(), new.place.options.clone());
    compare(Sort::Place, "size", number::bytes(old.place.total_bytes), number::bytes(new.place.total_bytes));
    all.extend(parameters(before, after));
    all
}

fn pairs(all: &[(String, String)]) -> String {
    all.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}

fn parameters(before: &Report, after: &Report) -> Vec<Difference> {
    let mut all = Vec::new();
    let mut add = |sort: Sort, text: String| all.push(Difference { sort, text });
    let (old, new) = (&before.plan, &after.plan);
    let way = |is: bool, yes: &'static str, no: &'static str| if is { yes } else { no };
    let parts =
        || -> BTreeSet<Part> { old.parts().into_iter().filter(|part| new.parts().contains(part)).collect() };
    if old.is_direct != new.is_direct && parts().iter().any(|part| !part.is_metadata()) {
        let name = |is| way(is, "past the page cache", "through the page cache");
        add(Sort::Parameters, format!("content: {}, then {}", name(old.is_direct), name(new.is_direct)));
    }
    if old.drops_caches != new.drops_caches {
        let name = |is| way(is, "dropped", "kept");
        add(
            Sort::Parameters,
            format!("caches between phases: {}, then {}", name(old.drops_caches), name(new.drops_caches)),
        );
    }
    if old.repetitions != new.repetitions {
        add(Sort::Amounts, format!("repetitions: {}, then {}", old.repetitions, new.repetitions));
    }
    for part in parts() {
        let other = old
            .points
            .iter()
            .filter(|point| point.part == part)
            .filter(|point| find(after, part, point.threads).is_some_and(|other| !is_same(point, other)));
        let threads: Vec<String> = other.map(|point| point.threads.to_string()).collect();
        if !threads.is_empty() {
            add(Sort::Amounts, format!("{part}: other amounts or times with {} threads", threads.join(", ")));
        }
    }
    all
}

fn find(report: &Report, part: Part, threads: usize) -> Option<&Point> {
    report.plan.points.iter().find(|point| (point.part, point.threads) == (part, threads))
}

/// Times that differ by less than a tenth are as good as the same.
const TIME_PART: f64 = 0.1;

fn is_same(one: &Point, other: &Point) -> bool {
    let is_near = (one.amount.seconds / other.amount.seconds.max(1e-9) - 1.0).abs() < TIME_PART;
    let amounts = |point: &Point| match point.work(false) {
        Work::Data(plan) => (plan.thread_bytes, plan.record_bytes, 0),
        Work::Metadata(plan) => (0, plan.file_bytes, plan.thread_files),
    };
    amounts(one) == amounts(other) && (is_near || !one.part.is_random())
}

/// Whether both did as much with `threads` threads.
pub fn is_same_amount(before: &Report, after: &Report, part: Part, threads: usize) -> bool {
    let both = find(before, part, threads).zip(find(after, part, threads));
    both.is_none_or(|(one, other)| is_same(one, other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report;

    #[test]
    fn reports_of_one_machine_and_plan_differ_in_nothing() {
        assert_eq!(differences(&report(), &report()), []);
        let (alone, agents) = (report(), crate::report::tests::report_of_agents());
        assert_eq!(differences(&agents, &agents), []);
        let told = differences(&alone, &agents);
        assert_eq!((told.len(), told[0].sort), (1, Sort::Machine), "{told:?}");
        assert!(told[0].text.starts_with("agents: none, then 3 (1 machine with 2 agents: "), "{told:?}");
    }

    #[test]
    fn what_differs_is_told_by_its_sort() {
        let before = report();
        let mut after = report();
        after.inventory.software.kernel = "9.9".into();
        after.inventory.hardware.processors += 2;
        after.inventory.place.file_system = "xfs".into();
        after.plan.is_direct = false;
        after.plan.points[1].amount.bytes *= 2;
        let told = differences(&before, &after);
        let sorts: Vec<Sort> = told.iter().map(|one| one.sort).collect();
        assert_eq!(
            sorts,
            [Sort::Machine, Sort::Software, Sort::Place, Sort::Parameters, Sort::Amounts],
            "{told:?}"
        );
        assert!(told[4].text.contains("sequential-n-n") && told[4].text.contains("with 2 threads"));
        assert!(!is_same_amount(&before, &after, Part::SequentialNN, 2));
        assert!(is_same_amount(&before, &after, Part::SequentialNN, 4));
    }
}
