//! The options of a run as they are kept: in the journal, to see whether a run is the same, and in the report.

use crate::cli::BenchSweepArgs;
use crate::terminal::shown;
use ashlar_bench::run::identity::NOT_GIVEN;
use ashlar_bench::run::{Part, Tool};
use std::collections::BTreeMap;

/// Each option that must be the same when a run is gone on with.
pub fn asked(args: &BenchSweepArgs) -> BTreeMap<String, String> {
    let list = |all: Vec<String>| if all.is_empty() { NOT_GIVEN.to_owned() } else { all.join(",") };
    let paths = |all: &[std::path::PathBuf]| list(all.iter().map(|path| shown(path)).collect());
    let parts: Vec<Part> = args.parts.iter().flat_map(|list| list.0.clone()).collect();
    let threads = args.threads.iter().flat_map(|list| list.0.iter().map(usize::to_string));
    let agents = args.team.agents.map_or_else(|| NOT_GIVEN.to_owned(), |count| count.to_string());
    let pairs = [
        ("agents", agents),
        ("budget", format!("{} s", args.budget.as_secs())),
        ("parts", list(parts.iter().map(ToString::to_string).collect())),
        ("threads", list(threads.collect())),
        ("repetitions", args.repetitions.to_string()),
        ("same-as", paths(args.same_as.as_slice())),
        ("device", paths(&args.devices)),
        ("network", paths(args.network.as_slice())),
        ("network-agent", args.network_agent.to_string()),
        ("with", list(args.with.iter().map(|tool| Tool::from(*tool).to_string()).collect())),
        ("fill", list(args.fill.iter().map(u8::to_string).collect())),
        ("server-memory", args.server_memory.to_string()),
        ("keep-caches", args.keep_caches.to_string()),
    ];
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The command as it stands in the report: without names of paths.
pub fn command(args: &BenchSweepArgs) -> String {
    let mut line = String::from("ashlar bench run DIR");
    if let Some(agents) = args.team.agents {
        line += &format!(" --agents {agents}");
    }
    if let Some(threads) = &args.threads {
        let threads: Vec<String> = threads.0.iter().map(usize::to_string).collect();
        line += &format!(" --threads {}", threads.join(","));
    }
    match &args.same_as {
        Some(_) => line += " --same-as REPORT.json",
        None => line += &format!(" --budget {}s --repetitions {}", args.budget.as_secs(), args.repetitions),
    }
    let parts: Vec<&str> = args.parts.iter().flat_map(|list| list.0.iter().map(|part| part.name())).collect();
    let lists: [(&str, Vec<String>); 3] = [
        ("parts", parts.into_iter().map(str::to_owned).collect()),
        ("with", args.with.iter().map(|tool| Tool::from(*tool).to_string()).collect()),
        ("fill", args.fill.iter().map(u8::to_string).collect()),
    ];
    for (name, list) in lists.iter().filter(|(_, list)| !list.is_empty()) {
        line += &format!(" --{name} {}", list.join(","));
    }
    args.devices.iter().for_each(|_| line += " --device DEVICE-DIR");
    if args.network.is_some() {
        line += " --network NETWORK.json";
        if args.team.agents.is_none() {
            line += &format!(" --network-agent {}", args.network_agent);
        }
    }
    for (name, is_given) in [("consent-to-fill", args.consent_to_fill), ("keep-caches", args.keep_caches)] {
        if is_given {
            line += &format!(" --{name}");
        }
    }
    if args.server_memory > 0 {
        line += &format!(" --server-memory {}", args.server_memory);
    }
    line
}
