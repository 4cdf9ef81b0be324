//! The directories that take turns: ceiling, local file system, Ashlar; and running a program of `crates/torture` on one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde_json::Value;

use super::Bench;
use super::control_group::ControlGroup;
use super::server::Server;
use crate::shell;

pub(super) const CEILING: &str = "ceiling";
pub(super) const LOCAL: &str = "local";
pub(super) const ASHLAR: &str = "ashlar";

/// A directory on one of the contestants.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) name: String,
    pub(super) directory: PathBuf,
    /// The process that serves it.
    pub(super) server: Option<u32>,
}

/// What a program of `crates/torture` measured in one phase.
#[derive(Clone, Debug)]
pub(super) struct Phase {
    pub(super) name: String,
    pub(super) operations: f64,
    pub(super) seconds: f64,
    pub(super) operations_per_second: f64,
    pub(super) mib_per_second: f64,
    pub(super) server_cpu_seconds: Option<f64>,
    pub(super) server_anonymous_mib: Option<f64>,
}

impl Phase {
    fn read(value: &Value) -> anyhow::Result<Self> {
        let number = |field: &str| value[field].as_f64().with_context(|| format!("a phase without {field}"));
        Ok(Self {
            name: value["phase"].as_str().context("a phase without a name")?.to_owned(),
            operations: number("operations")?,
            seconds: number("seconds")?,
            operations_per_second: number("operations_per_second")?,
            mib_per_second: number("mib_per_second")?,
            server_cpu_seconds: value["server_cpu_seconds"].as_f64(),
            server_anonymous_mib: value["server_anonymous_mib"].as_f64(),
        })
    }

    /// Processor time of the server per ten thousand operations.
    pub(super) fn cpu_seconds_per_10k(&self) -> Option<f64> {
        self.server_cpu_seconds.filter(|_| self.operations > 0.0).map(|cpu| cpu * 10_000.0 / self.operations)
    }
}

/// Ashlar, and the references that are wanted, all mounted.
#[derive(Debug)]
pub(super) struct Places {
    servers: Vec<Server>,
    all: Vec<Place>,
}

impl Places {
    /// Mounts Ashlar and, if wanted, the ceiling, and makes a directory on the local file system.
    ///
    /// # Errors
    /// When one of them cannot be started.
    pub(super) fn mount(bench: &Bench, with_ceiling: bool) -> anyhow::Result<Self> {
        let at = |name: &str| bench.directory.join(name);
        let mut places = Self { servers: Vec::new(), all: Vec::new() };
        if with_ceiling {
            places.add(CEILING, &at(CEILING), Some(Server::ceiling(bench, &at(CEILING))?));
        }
        fs::create_dir_all(at(LOCAL)).with_context(|| format!("create {}", at(LOCAL).display()))?;
        places.add(LOCAL, &at(LOCAL), None);
        let server = Server::ashlar(bench, &at("mnt"), &at("data"), None)?;
        places.add(ASHLAR, &at("mnt"), Some(server));
        Ok(places)
    }

    fn add(&mut self, name: &str, directory: &Path, server: Option<Server>) {
        let place = Place {
            name: name.to_owned(),
            directory: directory.to_owned(),
            server: server.as_ref().map(Server::pid),
        };
        self.all.push(place);
        self.servers.extend(server);
    }

    pub(super) fn all(&self) -> &[Place] {
        &self.all
    }

    pub(super) fn get(&self, name: &str) -> anyhow::Result<&Place> {
        self.all.iter().find(|place| place.name == name).with_context(|| format!("no contestant {name}"))
    }

    /// Ends the servers.
    ///
    /// # Errors
    /// When one does not end well.
    pub(super) fn end(self) -> anyhow::Result<()> {
        self.servers.into_iter().try_for_each(Server::stop)
    }
}

/// Runs `turn` for every case on each of `places`, round by round: the figures of one round are close to each other in time, those of
/// different cases too, and a slow minute of the machine spoils a round instead of a case. Another place begins each round, so that none
/// always runs after the same neighbour.
pub(super) fn take_turns<C>(
    rounds: u32,
    cases: &[C],
    places: &[Place],
    mut turn: impl FnMut(&C, &Place) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for round in 0..rounds as usize {
        for case in cases {
            for number in 0..places.len() {
                let place = &places[(number + round) % places.len()];
                turn(case, place).with_context(|| format!("on {}", place.name))?;
            }
        }
        println!("round {} of {rounds}: done", round + 1);
    }
    Ok(())
}

impl Bench {
    /// Runs `ashlar-torture` with these words on a place and returns what it measured.
    ///
    /// # Errors
    /// When it fails.
    pub(super) fn torture(&self, place: &Place, words: &[String]) -> anyhow::Result<Vec<Phase>> {
        self.torture_in(place, words, None)
    }

    /// The same in a group with limited memory.
    ///
    /// # Errors
    /// When it fails.
    pub(super) fn torture_in(
        &self,
        place: &Place,
        words: &[String],
        group: Option<&ControlGroup>,
    ) -> anyhow::Result<Vec<Phase>> {
        let program = self.programs.join("ashlar-torture").into_os_string();
        let mut command = match group {
            Some(group) => group.command(&[program]),
            None => Command::new(program),
        };
        let (subcommand, rest) = words.split_first().context("a subcommand")?;
        command.arg(subcommand).arg("--dir").arg(&place.directory).arg("--json").args(rest);
        if let Some(pid) = place.server {
            command.args(["--server-pid", &pid.to_string()]);
        }
        let text = shell::output(&mut command)?;
        let phases: Value = serde_json::from_str(text.trim()).context("parse the figures")?;
        phases.as_array().context("the figures are no list")?.iter().map(Phase::read).collect()
    }
}

/// Words as a list of owned strings.
pub(super) fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_has_its_turn_in_every_round_and_another_begins() {
        let place =
            |name: &str| Place { name: name.to_owned(), directory: PathBuf::from(name), server: None };
        let places = [place("a"), place("b"), place("c")];
        let mut order = String::new();
        take_turns(2, &[1, 2], &places, |case, place| {
            order.push_str(&format!("{}{case} ", place.name));
            Ok(())
        })
        .expect("no turn fails");
        assert_eq!(order, "a1 b1 c1 a2 b2 c2 b1 c1 a1 b2 c2 a2 ");
        let failed = take_turns(1, &[()], &places, |(), place| match place.name.as_str() {
            "b" => anyhow::bail!("no"),
            _ => Ok(()),
        });
        assert_eq!(failed.expect_err("b fails").to_string(), "on b");
    }

    #[test]
    fn processor_time_is_per_ten_thousand_operations() {
        let phase = serde_json::json!({ "phase": "create", "operations": 20_000, "seconds": 2.0,
            "operations_per_second": 1e4, "mib_per_second": 0.0, "server_cpu_seconds": 0.5 });
        let phase = Phase::read(&phase).expect("complete");
        assert_eq!(phase.cpu_seconds_per_10k(), Some(0.25));
        assert_eq!(Phase { server_cpu_seconds: None, ..phase }.cpu_seconds_per_10k(), None);
        assert!(Phase::read(&serde_json::json!({ "phase": "x" })).is_err());
    }
}
