//! `ashlar bench network`.

use super::team::gather;
use super::workload::cancelled_by_signals;
use crate::cli::BenchNetworkArgs;
use crate::terminal::say;
use anyhow::{Result, bail};
use ashlar_bench::agent::AgentTold;
use ashlar_bench::figure::Spread;
use ashlar_bench::network::{LatencyFigure, NetworkFigures, NetworkPlan, Pattern};
use std::process::ExitCode;

/// Bits per second in the unit that networks are sold in.
const MEGABIT: f64 = 1e6;

pub fn run(args: &BenchNetworkArgs) -> Result<ExitCode> {
    let plan = NetworkPlan {
        streams: args.streams.clone(),
        seconds: args.seconds,
        repetitions: args.repetitions,
        ports: args.data_ports,
    };
    plan.check()?;
    let count = match args.team.agents {
        Some(count) if count >= 2 => count,
        _ => bail!(
            "a network is between two agents at least: --agents 2, and `ashlar bench agent` on each machine"
        ),
    };
    let cancel = cancelled_by_signals()?;
    let team = gather(&args.team, count, None, &cancel)?;
    let networks = team.networks();
    if is_all_one(&networks) {
        eprintln!("all agents are on one machine: what is measured passes through no link");
    }
    eprintln!("measuring for {} seconds", plan.time(&networks).as_secs());
    let agents = team.told();
    let mut figures = NetworkFigures::default();
    let tell = |text: &str| tracing::info!("{text}");
    let mut measured = plan.measure(&team, &mut figures, &tell);
    match &measured {
        Ok(()) => measured = team.finish(),
        Err(error) => team.abandon(&error.to_string()),
    }
    if args.json {
        let all = serde_json::json!({
            "agents": agents, "plan": plan, "complete": measured.is_ok(),
            "error": measured.as_ref().err().map(ToString::to_string),
            "flows": figures.flows, "latencies": figures.latencies,
        });
        say(serde_json::to_string_pretty(&all)?);
    } else {
        show(&agents, &plan, &figures);
        if measured.is_err() {
            say("INCOMPLETE: the run ended early; what is shown was measured before.");
        }
    }
    measured?;
    Ok(ExitCode::SUCCESS)
}

fn show(agents: &[AgentTold], plan: &NetworkPlan, figures: &NetworkFigures) {
    agents.iter().for_each(|agent| say(&agent.name));
    if !figures.latencies.is_empty() {
        say("a message of 64 bytes there and back, nothing else going on");
        say(format!("  {:>4} -> {:<4} {:>10} {:>10} {:>10}", "from", "to", "p50 us", "p99 us", "max us"));
        for (from, to, p50, p99, max) in latencies(&figures.latencies) {
            say(format!("  {from:>4} -> {to:<4} {p50:>10.1} {p99:>10.1} {max:>10.1}"));
        }
    }
    let within: Vec<(usize, usize)> =
        figures.flows.iter().filter(|flow| flow.is_within_machine).map(|flow| (flow.from, flow.to)).collect();
    for (pattern, what) in [
        (Pattern::OnePair, "TCP payload, one pair at a time"),
        (Pattern::Bisection, "TCP payload, one half of the agents to the other and back"),
        (Pattern::All, "TCP payload, every agent to every other"),
    ] {
        let flows: Vec<_> = figures.summarize().into_iter().filter(|flow| flow.0 == pattern).collect();
        if flows.is_empty() {
            continue;
        }
        say(what);
        say(format!(
            "  {:>4} -> {:<4} {:>7} {:>10} {:>10} {:>7}",
            "from", "to", "streams", "Mbit/s", "MiB/s", "+- %"
        ));
        for (_, from, to, streams, rate) in &flows {
            let note = if within.contains(&(*from, *to)) { "  one machine, no link" } else { "" };
            say(format!("  {from:>4} -> {to:<4} {}{note}", row(*streams, *rate)));
        }
        for &streams in plan.streams.iter().filter(|_| pattern != Pattern::OnePair) {
            if let Some(rate) = figures.together(pattern, streams) {
                say(format!("  {:>12} {}", "all together", row(streams, rate)));
            }
        }
    }
}

fn is_all_one(networks: &[usize]) -> bool {
    networks.windows(2).all(|pair| pair[0] == pair[1])
}

fn row(streams: u32, rate: Spread) -> String {
    let percent = if rate.mean > 0.0 { rate.deviation / rate.mean * 100.0 } else { 0.0 };
    let (megabits, mib) = (rate.mean / MEGABIT, rate.mean / 8.0 / f64::from(1 << 20));
    format!("{streams:>7} {megabits:>10.1} {mib:>10.1} {percent:>7.1}")
}

/// Of each pair, over all repetitions: the mean of the medians, the worst of the others.
fn latencies(figures: &[LatencyFigure]) -> Vec<(usize, usize, f64, f64, f64)> {
    let mut pairs: Vec<(usize, usize)> = figures.iter().map(|one| (one.from, one.to)).collect();
    pairs.sort_unstable();
    pairs.dedup();
    let of = |(from, to): (usize, usize)| {
        let same = || figures.iter().filter(move |one| (one.from, one.to) == (from, to));
        let medians: Vec<f64> = same().map(|one| one.p50_us).collect();
        let p99 = same().map(|one| one.p99_us).fold(0.0, f64::max);
        let max = same().map(|one| one.max_us).fold(0.0, f64::max);
        (from, to, Spread::of(&medians).mean, p99, max)
    };
    pairs.into_iter().map(of).collect()
}
