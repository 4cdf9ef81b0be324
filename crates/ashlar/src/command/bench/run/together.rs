//! A run that agents carry out: this machine leads them, and measures nothing.

use super::network::Network;
use super::{Run, keep, open, wording};
use crate::cli::BenchSweepArgs;
use crate::command::bench::team::gather;
use crate::terminal::shown;
use anyhow::{Result, bail};
use ashlar_bench::BenchError;
use ashlar_bench::agent::{Team, draw_run};
use ashlar_bench::inventory::AgentMachine;
use ashlar_bench::report::Report;
use ashlar_bench::run::Plan;
use ashlar_bench::run::identity::Identity;
use ashlar_bench::run::journal::Journal;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

/// Refuses what agents do not do.
pub fn check(args: &BenchSweepArgs) -> Result<()> {
    if args.team.agents.is_none() {
        return Ok(());
    }
    if !args.directory.is_absolute() {
        bail!("{} is not a path that agents could see: it has to begin with /", shown(&args.directory));
    }
    if !args.devices.is_empty() {
        bail!(
            "--device and --agents do not go together: devices are named by directories of this machine, which measures nothing with --agents. \
             Leave --device out, and run `ashlar bench device` on each server to measure its disks"
        );
    }
    if !args.with.is_empty() {
        bail!(
            "--with and --agents do not go together: agents run no other programs. Leave one of the two out"
        );
    }
    if !args.fill.is_empty() {
        bail!("--fill and --agents do not go together: agents fill no file system. Leave one of the two out");
    }
    let Some(path) = &args.same_as else { return Ok(()) };
    let plan = Report::read(path)?.plan;
    if !plan.tools.is_empty() || !plan.fill_percents.is_empty() {
        bail!(
            "{} was made with other programs (--with) or by filling its file system (--fill), which agents do not do: leave --agents out",
            shown(path)
        );
    }
    Ok(())
}

/// What has been measured when the agents end.
struct Measured<'a> {
    run: Run<'a>,
    journal: Journal,
    plan: Plan,
}

pub fn run(args: &BenchSweepArgs, count: u32, network: Option<&Network>, cancel: &AtomicBool) -> Result<()> {
    let team = gather(&args.team, count, Some(&args.directory), cancel)?;
    let measured = match lead(args, &team, network, cancel) {
        Ok(measured) => measured,
        Err(error) => {
            // What is kept in a journal here is nothing to agents.
            let why =
                error.downcast_ref::<BenchError>().map_or_else(|| error.to_string(), ToString::to_string);
            team.abandon(&why);
            return Err(error);
        }
    };
    let ended = team.finish();
    let Some(Measured { run, journal, plan }) = measured else { return Ok(ended?) };
    match ended.map_err(anyhow::Error::from).and_then(|()| run.write(&journal, plan)) {
        Ok(()) => Ok(journal.end()?),
        Err(error) => Err(keep(args, journal, error)),
    }
}

/// Has them measure; nothing comes of a run that is only planned.
fn lead<'a>(
    args: &'a BenchSweepArgs,
    team: &Team<'_>,
    network: Option<&Network>,
    cancel: &'a AtomicBool,
) -> Result<Option<Measured<'a>>> {
    let network = network.map(|network| network.of_agents(team)).transpose()?;
    let (inventory, agents) = team.describe(&args.directory)?;
    let (processors, memory_bytes) = (processors(&agents), team.memory_bytes());
    let run = Run { args, cancel, inventory, agents, processors, memory_bytes, network };
    if args.dry_run {
        team.prepare(&args.directory, args.beside_others)?;
        let plan = run.planned(team, Vec::new())?;
        run.announce(&plan);
        return Ok(None);
    }
    let (place, numbers) = (&run.inventory.place, team.machine_numbers());
    let identity = Identity::of_agents(&args.directory, place, &run.agents, &numbers, wording::asked(args));
    let mut journal = open(args, &identity)?;
    match measure(&run, team, &mut journal) {
        Ok(plan) => Ok(Some(Measured { run, journal, plan })),
        Err(error) => Err(keep(args, journal, error)),
    }
}

fn measure(run: &Run<'_>, team: &Team<'_>, journal: &mut Journal) -> Result<Plan> {
    let args = run.args;
    team.clean(&args.directory, journal.progress.left())?;
    let name = draw_run()?;
    // ORDER: the journal knows the name before the directory is there; should all be killed, the next run removes it.
    journal.place(&name)?;
    team.prepare_as(&name, &args.directory, args.beside_others)?;
    let plan = run.prepared(team, journal, Vec::new(), &|_, _| Ok(()))?;
    team.watch();
    run.sweep(team, None, journal, &plan)?;
    Ok(plan)
}

/// Processors of all agents' machines; those of a machine with several agents count once.
fn processors(agents: &[AgentMachine]) -> usize {
    let each: BTreeMap<usize, usize> =
        agents.iter().map(|agent| (agent.computer, agent.hardware.processors)).collect();
    each.values().sum()
}
