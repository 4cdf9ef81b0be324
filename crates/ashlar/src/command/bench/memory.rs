//! `ashlar bench memory`: STREAM on each NUMA node, and the placement of memory modules.

use crate::cli::BenchMemoryArgs;
use crate::terminal::say;
use anyhow::{Context, Result, bail};
use ashlar_bench::memory::{
    Advice, Module, NumaNode, Rates, StreamPlan, advise, modules, nodes, read_table, stream,
};
use serde::Serialize;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

/// Ctrl-C ends this process at once: nothing would have to be removed.
static GO_ON: AtomicBool = AtomicBool::new(false);

/// What was measured on one node.
#[derive(Serialize)]
struct Measured {
    node: u32,
    #[serde(flatten)]
    plan: StreamPlan,
    bytes_per_second: Vec<Rates>,
}

/// What the firmware says of memory modules.
#[derive(Serialize)]
#[serde(untagged)]
enum Population {
    Known { modules: Vec<Module>, advice: Vec<Advice> },
    Unknown { reason: String },
}

pub fn run(args: &BenchMemoryArgs) -> Result<ExitCode> {
    let all = nodes().context("cannot find the NUMA nodes")?;
    let chosen = choose(&all, &args.nodes)?;
    let mut measured = Vec::new();
    for node in chosen {
        let found =
            measure(node, args).with_context(|| format!("cannot measure NUMA node {}", node.number))?;
        if !args.json {
            show(node, &found);
        }
        measured.push(found);
    }
    let population = population();
    if args.json {
        let all = serde_json::json!({ "nodes": measured, "population": population });
        say(serde_json::to_string_pretty(&all)?);
    } else {
        show_population(&population);
    }
    Ok(ExitCode::SUCCESS)
}

fn choose<'a>(all: &'a [NumaNode], wanted: &[u32]) -> Result<Vec<&'a NumaNode>> {
    if let Some(missing) = wanted.iter().find(|number| all.iter().all(|node| node.number != **number)) {
        let there: Vec<String> = all.iter().map(|node| node.number.to_string()).collect();
        bail!("there is no NUMA node {missing} with processors; there is {}", there.join(", "));
    }
    Ok(all.iter().filter(|node| wanted.is_empty() || wanted.contains(&node.number)).collect())
}

fn measure(node: &NumaNode, args: &BenchMemoryArgs) -> Result<Measured> {
    let most = node.processors.len();
    let threads = args.threads.map_or(Some(most), |threads| usize::try_from(threads).ok());
    let Some(threads) = threads.filter(|threads| *threads <= most) else {
        bail!("it has {most} processors: --threads can be {most} at the most");
    };
    let mut plan = match args.array_size {
        Some(array_bytes) => StreamPlan { threads, array_bytes, repetitions: args.repetitions },
        None => StreamPlan::for_node(node)?,
    };
    (plan.threads, plan.repetitions) = (threads, args.repetitions);
    Ok(Measured { node: node.number, plan, bytes_per_second: stream(node, &plan, &GO_ON)? })
}

fn show(node: &NumaNode, found: &Measured) {
    say(format!(
        "NUMA node {}: {} of {} processors, three arrays of {} MiB, {} repetitions",
        found.node,
        found.plan.threads,
        node.processors.len(),
        found.plan.array_bytes >> 20,
        found.plan.repetitions
    ));
    if found.plan.array_bytes < 4 * node.cache_bytes {
        say("  the arrays are less than four times the caches: what is measured is partly the caches");
    }
    say(format!("  {:<8} {:>11} {:>11} {:>11}", "kernel", "best GB/s", "mean GB/s", "worst GB/s"));
    for rates in &found.bytes_per_second {
        let [best, mean, worst] = [rates.best, rates.mean, rates.worst].map(|rate| rate / 1e9);
        say(format!("  {:<8} {best:>11.1} {mean:>11.1} {worst:>11.1}", rates.kernel.name()));
    }
}

fn population() -> Population {
    let read = || {
        let table = read_table()?;
        Ok::<_, ashlar_bench::memory::SmbiosError>((modules(&table)?, advise(&table)?))
    };
    match read() {
        Ok((modules, advice)) => Population::Known { modules, advice },
        Err(error) => Population::Unknown { reason: error.to_string() },
    }
}

fn show_population(population: &Population) {
    match population {
        Population::Unknown { reason } => say(format!("memory modules: not known, {reason}")),
        Population::Known { modules, advice } => {
            let bytes: u64 = modules.iter().map(|module| module.bytes).sum();
            let verdict = match (modules.iter().all(|module| module.processor.is_some()), advice.is_empty()) {
                (_, false) => "not placed well:",
                (true, true) => "placed well",
                (false, true) => "the labels of their places do not tell to which processor they belong",
            };
            say(format!("memory modules: {}, {} GiB in all, {verdict}", modules.len(), bytes >> 30));
            advice.iter().for_each(|advice| say(format!("  {}", advice.text)));
        }
    }
}
