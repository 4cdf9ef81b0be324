//! Workloads of `ashlar bench` by several agents: what they measure, and what happens when one of them should not be there or goes away.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use ashlar_bench::BenchError;
use ashlar_bench::agent::{Agent, Coordinator as LibraryCoordinator, Invitation};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use support::agents::{Coordinator, Process, agent, entries, place, wait_for_file};

const LOCAL: &str = "127.0.0.1:0";
static GO_ON: AtomicBool = AtomicBool::new(false);

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// Runs a workload with as many agents as it says, and returns what it printed.
#[track_caller]
fn measure(directory: &Path, line: &str, agents: usize) -> String {
    let line = line.replace("@", &directory.display().to_string());
    let coordinator = Coordinator::start(&[], LOCAL, &words(&line));
    let agents: Vec<Process> = (0..agents).map(|_| coordinator.agent(&[], &[directory])).collect();
    for agent in agents {
        agent.end().expect(0);
    }
    let told = coordinator.process.end().expect(0);
    assert_eq!(entries(directory), [] as [std::path::PathBuf; 0], "nothing is left");
    told.stdout
}

fn figures(printed: &str) -> (serde_json::Value, Vec<serde_json::Value>) {
    let read: serde_json::Value = serde_json::from_str(printed).unwrap();
    let figures = read["figures"].as_array().unwrap().clone();
    (read, figures)
}

/// A run that goes on until it is ended, with two agents that are at work.
struct Endless {
    place: tempfile::TempDir,
    coordinator: Coordinator,
    agents: Vec<Process>,
}

impl Endless {
    #[track_caller]
    fn start() -> Endless {
        let place = place();
        let directory = place.path().display().to_string();
        let line = format!(
            "random {directory} --agents 2 --threads 1,4 --total 4m --keep-caches --seconds 1 --repetitions 1000 --only read"
        );
        let coordinator = Coordinator::start(&["env", "ASHLAR_LOG=info"], LOCAL, &words(&line));
        let agents = (0..2).map(|_| coordinator.agent(&[], &[place.path()])).collect();
        let mut endless = Endless { place, coordinator, agents };
        endless.coordinator.process.until_said("measured");
        wait_for_file(endless.place.path(), "data.0");
        endless
    }

    /// What is left of it when all have ended.
    #[track_caller]
    fn end(self, words: &[&str]) {
        let begin = Instant::now();
        let told = self.coordinator.process.end().refused(words);
        assert!(begin.elapsed() < Duration::from_secs(30), "in bounded time: {}", told.all());
        for text in ["random read", "INCOMPLETE", "measured by agent 2"] {
            assert!(told.stdout.contains(text), "what was measured is told, and marked: {}", told.all());
        }
        for agent in self.agents {
            agent.end().refused(&[]);
        }
        assert_eq!(entries(self.place.path()), [] as [std::path::PathBuf; 0], "nothing is left");
    }
}

#[test]
fn content_is_written_and_read_by_all_agents() {
    let place = place();
    let line = "sequential @ --agents 3 --threads 1..8 --total 8m --repetitions 2 --keep-caches --json";
    let (all, told) = figures(&measure(place.path(), line, 3));
    assert_eq!(told.len(), 4 * 2 * 2);
    assert!(
        told.iter().all(|figure| figure["bytes"] == 8 << 20 && figure["seconds"].as_f64().unwrap() > 0.0)
    );
    assert_eq!((&all["complete"], all["agents"].as_array().unwrap().len()), (&true.into(), 3));
    let memory = all["agents"][0]["memory_bytes"].as_u64().unwrap();
    assert_eq!(all["memory_bytes"], memory, "three agents of one machine have its memory once");
    let line = "sequential @ --agents 2 --threads 1,3 --total 6m --shared --segments 4 --record 64k --repetitions 1 --direct --json";
    let (_, told) = figures(&measure(place.path(), line, 2));
    assert_eq!(told.len(), 4);
    let line = "random @ --agents 2 --threads 3 --total 6m --shared --seconds 0 --depth 4 --repetitions 1 --keep-caches --json";
    let (_, told) = figures(&measure(place.path(), line, 2));
    assert!(told.iter().all(|figure| figure["operations"] == 6 << 8), "each record once");
}

#[test]
fn files_are_made_looked_at_and_removed_by_all_agents() {
    let place = place();
    for (options, agents) in [("", 2), ("--neighbour", 3), ("--shared --neighbour --depth 1", 2)] {
        let line = format!(
            "metadata @ --agents {agents} --threads 1,4,6 --files 120 --size 3k --repetitions 1 --keep-caches --json {options}"
        );
        let (_, told) = figures(&measure(place.path(), &line, agents));
        assert_eq!(told.len(), 15, "{options}");
        assert!(told.iter().all(|figure| figure["operations"] == 120), "{options}");
    }
}

#[test]
fn the_commands_of_the_guide_for_many_clients_work() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/bench.md");
    let text = std::fs::read_to_string(guide).unwrap();
    let lines = || text.lines().filter_map(|line| line.strip_prefix("$ ashlar bench "));
    let joins: Vec<&str> =
        lines().filter(|line| line.starts_with("agent ") && line.contains("/mnt/")).collect();
    let leads: Vec<&str> =
        lines().filter(|line| line.contains("--agents ") && line.contains("/mnt/")).collect();
    assert!(leads.len() >= 2 && !joins.is_empty());
    assert!(leads.iter().any(|lead| lead.starts_with("run ")), "a report, too");
    for lead in leads {
        let place = place();
        let scratch = place.path().join("scratch");
        std::fs::create_dir(&scratch).unwrap();
        let here = scratch.display().to_string();
        let output = format!("--output {}/", place.path().display());
        // As shown, but for how much.
        let line = [
            ("/mnt/scratch", here.as_str()),
            ("--total 2t", "--total 8m"),
            ("--files 10000000", "--files 130"),
            ("1..1024", "1..8"),
            ("--budget 10m", "--budget 30s --parts metadata-0 --threads 4"),
            ("--output ", &output),
        ]
        .iter()
        .fold(lead.to_owned(), |line, (shown, instead)| line.replace(shown, instead));
        let secret_to = place.path().join("secret");
        let line = format!(
            "{} --repetitions 1 --keep-caches",
            line.replace("~/secret", &secret_to.display().to_string())
        );
        let count: usize =
            line.split("--agents ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        let has_file = line.contains("--secret-to");
        let coordinator = if has_file {
            let words = [&["bench"], &words(&line)[..], &["--listen", LOCAL]].concat();
            let mut process = Process::start(&[], &words, None);
            process.until_said("The secret it asks for is in");
            let said = process.said();
            assert!(!said.lines().any(|line| line.trim().len() == 64), "it is not printed");
            let address = said.split("bench agent ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
            Coordinator { process, secret: std::fs::read_to_string(&secret_to).unwrap(), address }
        } else {
            Coordinator::start(&[], LOCAL, &words(&line))
        };
        let join = joins.iter().find(|join| join.contains("--secret-file") == has_file).unwrap();
        let join: Vec<String> = join
            .split_whitespace()
            .map(|word| match word {
                "/mnt/scratch" => here.clone(),
                "~/secret" => secret_to.display().to_string(),
                word if word.starts_with("node0:") => coordinator.address.clone(),
                word => word.to_owned(),
            })
            .collect();
        let join: Vec<&str> = ["bench"].into_iter().chain(join.iter().map(String::as_str)).collect();
        let secret = (!has_file).then_some(coordinator.secret.as_str());
        let agents: Vec<Process> = (0..count).map(|_| Process::start(&[], &join, secret)).collect();
        agents.into_iter().for_each(|agent| drop(agent.end().expect(0)));
        coordinator.process.end().expect(0);
        assert!(!secret_to.exists(), "it is used up");
    }
}

#[test]
fn whoever_has_another_secret_is_turned_away_and_nobody_is_held_up() {
    let place = place();
    let directory = place.path().display().to_string();
    let line =
        format!("metadata {directory} --agents 2 --threads 2 --files 2000 --repetitions 400 --keep-caches");
    let mut coordinator = Coordinator::start(&["env", "ASHLAR_LOG=info"], LOCAL, &words(&line));
    // Strangers that say nothing, or what is no TLS.
    let _silent: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(&coordinator.address).unwrap()).collect();
    let mut noisy = TcpStream::connect(&coordinator.address).unwrap();
    noisy.write_all(&[0x16; 1000]).unwrap();
    let other = |from: usize| {
        let digit = if &coordinator.secret[from..=from] == "0" { "1" } else { "0" };
        format!("{}{digit}{}", &coordinator.secret[..from], &coordinator.secret[from + 1..])
    };
    let refused = agent(&[], &coordinator.address, &other(63), &[place.path()]).end();
    refused.refused(&["does not take this secret"]);
    let refused = agent(&[], &coordinator.address, &other(0), &[place.path()]).end();
    refused.refused(&["is not the one that printed this secret"]);
    let agents: Vec<Process> = (0..2).map(|_| coordinator.agent(&[], &[place.path()])).collect();
    coordinator.process.until_said("measured");
    // The secret is right and used up.
    coordinator
        .agent(&[], &[place.path()])
        .end()
        .refused(&["cannot join the coordinator", "each secret is for one run"]);
    coordinator.process.signal(libc::SIGINT);
    agents.into_iter().for_each(|agent| drop(agent.end()));
    let told = coordinator.process.end().refused(&[
        "turned away",
        "it does not have the secret of this run",
        "it has the secret of another run",
    ]);
    assert!(told.stderr.contains("it is no agent of this run"), "{}", told.all());
    // Nor does a later run at the same place take it.
    let later = Coordinator::start(&[], &coordinator.address, &words(&line));
    let refused = agent(&[], &later.address, &coordinator.secret, &[place.path()]).end();
    refused.refused(&["is not the one that printed this secret"]);
    assert_eq!(entries(place.path()), [] as [std::path::PathBuf; 0]);
    let mut answer = Vec::new();
    let _ = noisy.read_to_end(&mut answer);
    assert!(answer.len() < 100, "a stranger hears nothing but that it is wrong");
}

#[test]
fn agents_and_coordinators_of_another_version_are_refused_by_both() {
    let place = place();
    let directories = [place.path().to_owned()];
    let here = env!("CARGO_PKG_VERSION");
    let serve = |coordinator: &str, secret: &str, version: &str| {
        let invitation = Invitation::parse(secret).unwrap();
        let (directories, tell): (_, &(dyn Fn(&str) + Sync)) = (&directories[..], &|_| ());
        let agent = Agent {
            coordinator,
            invitation: &invitation,
            directories,
            address: None,
            version,
            cancel: &GO_ON,
            tell,
        };
        agent.serve()
    };
    let directory = place.path().display().to_string();
    let mut coordinator =
        Coordinator::start(&[], LOCAL, &["metadata", &directory, "--agents", "1", "--wait", "600"]);
    let refused = serve(&coordinator.address, &coordinator.secret, "0.0.1").unwrap_err();
    assert!(
        matches!(&refused, BenchError::Version { here: old, there, .. } if old == "0.0.1" && there == here),
        "{refused}"
    );
    coordinator.process.until_said("it is ashlar 0.0.1, and this is ashlar");
    coordinator.process.signal(libc::SIGTERM);
    coordinator.process.end().refused(&[]);
    let other = LibraryCoordinator::listen(LOCAL, "99.0.0").unwrap();
    let (address, secret) = (other.address().unwrap().to_string(), other.invitation().text());
    std::thread::scope(|scope| {
        let gathering = scope.spawn(move || {
            other.gather(1, Duration::from_secs(3), &GO_ON, &|_| ()).map(|_| ()).unwrap_err().to_string()
        });
        let refused = agent(&[], &address, &secret, &[place.path()]).end();
        refused.refused(&["this is ashlar", here, "is ashlar 99.0.0", "the same version on every machine"]);
        assert!(gathering.join().unwrap().contains("0 of 1 agents have joined"));
    });
}

#[test]
fn directories_that_agents_may_not_use_or_do_not_share_are_refused() {
    let (place, other) = (place(), place());
    let directory = place.path().display().to_string();
    let lead = |count: &str| {
        Coordinator::start(&[], LOCAL, &["metadata", &directory, "--agents", count, "--files", "10"])
    };
    let coordinator = lead("1");
    let agent = coordinator.agent(&[], &[other.path()]);
    coordinator.process.end().refused(&["agent 1", "may not use", &directory]);
    agent.end().refused(&["the run has failed", "may not use"]);
    // The same path, and something else there.
    let coordinator = lead("2");
    let script = format!("mount --bind {} {directory} && exec \"$@\"", other.path().display());
    let apart = ["unshare", "--mount", "sh", "-ec", &script, "sh"];
    let agents = [coordinator.agent(&[], &[place.path()]), coordinator.agent(&apart, &[place.path()])];
    coordinator.process.end().refused(&["does not show here", "mounted on every machine"]);
    agents.into_iter().for_each(|agent| drop(agent.end().refused(&[])));
    assert_eq!((entries(place.path()).len(), entries(other.path()).len()), (0, 0));
    std::fs::write(place.path().join("theirs"), "x").unwrap();
    let coordinator = lead("1");
    let agent = coordinator.agent(&[], &[place.path()]);
    coordinator.process.end().refused(&["agent 1", "is not empty", "theirs"]);
    agent.end().refused(&[]);
    assert_eq!(entries(place.path()), [place.path().join("theirs")]);
    let relative = Process::start(&[], &["bench", "metadata", "here", "--agents", "1"], None);
    relative.end().refused(&["it has to begin with /"]);
    let nowhere = Process::start(&[], &["bench", "agent", "localhost"], Some(&"0".repeat(64)));
    nowhere.end().refused(&["cannot join the coordinator localhost", "HOST:PORT"]);
    let alone = Process::start(&[], &["bench", "network", "--agents", "1"], None);
    alone.end().refused(&["between two agents"]);
}

#[test]
fn an_agent_that_is_killed_ends_the_run_and_the_others_clean_up() {
    let endless = Endless::start();
    endless.agents[1].signal(libc::SIGKILL);
    endless.end(&["was lost while"]);
}

#[test]
fn an_agent_that_says_nothing_any_more_ends_the_run() {
    let endless = Endless::start();
    endless.agents[0].signal(libc::SIGSTOP);
    let begin = Instant::now();
    let Endless { place, coordinator, agents } = endless;
    let told =
        coordinator.process.end().refused(&["was lost while", "nothing was heard from it for 10 seconds"]);
    assert!(
        begin.elapsed() < Duration::from_secs(60) && told.stdout.contains("INCOMPLETE"),
        "{}",
        told.all()
    );
    agents[0].signal(libc::SIGCONT);
    agents.into_iter().for_each(|agent| drop(agent.end().refused(&[])));
    assert_eq!(entries(place.path()).len(), 0);
}

#[test]
fn agents_whose_coordinator_is_killed_stop_and_clean_up() {
    let Endless { place, coordinator, agents } = Endless::start();
    coordinator.process.signal(libc::SIGKILL);
    agents.into_iter().for_each(|agent| drop(agent.end().refused(&["the coordinator", "was lost while"])));
    assert_eq!(entries(place.path()).len(), 0);
}

#[test]
fn a_coordinator_or_agent_that_is_interrupted_ends_the_run_in_good_order() {
    let endless = Endless::start();
    endless.coordinator.process.signal(libc::SIGINT);
    endless.end(&["stopped"]);
    let endless = Endless::start();
    endless.agents[0].signal(libc::SIGTERM);
    endless.end(&["it was stopped by its user"]);
}

#[test]
fn agents_of_one_machine_are_marked_and_use_the_ports_that_the_guide_names() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/bench.md");
    let text = std::fs::read_to_string(guide).unwrap();
    let mut lines = text.lines().filter_map(|line| line.trim().strip_prefix("$ ashlar bench "));
    let line = lines.find(|line| line.contains("--data-ports")).unwrap();
    // On ports that nobody else of the machine uses, and here only.
    let line = line.replace("--listen 0.0.0.0:5000 ", "").replace("5001-5004", "23001-23999");
    for is_json in [true, false] {
        let line = format!("{line} --seconds 1 --streams 2 {}", if is_json { "--json" } else { "" });
        let coordinator = Coordinator::start(&[], LOCAL, &words(&line));
        let agents = [0; 2].map(|_| coordinator.agent(&[], &[]));
        agents.into_iter().for_each(|agent| drop(agent.end().expect(0)));
        let told = coordinator.process.end().expect(0);
        assert!(told.stderr.contains("passes through no link"), "{}", told.all());
        if !is_json {
            assert_eq!(told.stdout.matches("one machine, no link").count(), 2, "{}", told.all());
            continue;
        }
        let read: serde_json::Value = serde_json::from_str(&told.stdout).unwrap();
        let flows = read["flows"].as_array().unwrap();
        assert_eq!(flows.len(), 2, "one pair in both directions, and nothing at the same time: {read}");
        assert!(
            flows.iter().all(|flow| flow["is_within_machine"] == true && flow["bytes"].as_u64() > Some(0))
        );
    }
    for wrong in ["5004-5001", "0-10", "x", "70000"] {
        let words = ["bench", "network", "--agents", "2", "--data-ports", wrong];
        Process::start(&[], &words, None).end().refused(&["--data-ports", "the first and the last"]);
    }
}
