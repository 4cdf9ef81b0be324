//! What `ashlar bench network --json` told, as the ceiling of those that measure.

use crate::terminal::shown;
use anyhow::{Context, Result, bail};
use ashlar_bench::agent::Team;
use ashlar_bench::ceiling::NetworkCeiling;
use ashlar_bench::network::NetworkFigures;
use std::path::Path;

/// The file.
pub struct Network {
    name: String,
    figures: NetworkFigures,
    /// The name of each agent's host; empty if the file does not tell all of them.
    hosts: Vec<String>,
}

impl Network {
    /// Reads it.
    pub fn read(file: &Path) -> Result<Network> {
        let name = shown(file);
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {name}"))?;
        let told: serde_json::Value = serde_json::from_str(&text)
            .with_context(|| format!("{name} is not what `ashlar bench network --json` prints"))?;
        if told["complete"] == false {
            bail!("{name} is of a measurement that ended early; measure the network again");
        }
        let host = |agent: &serde_json::Value| Some(agent["host"].as_str()?.to_owned());
        let hosts: Option<Vec<String>> =
            told["agents"].as_array().and_then(|agents| agents.iter().map(host).collect());
        let figures: NetworkFigures = serde_json::from_value(told)
            .with_context(|| format!("{name} is not what `ashlar bench network --json` prints"))?;
        Ok(Network { name, figures, hosts: hosts.unwrap_or_default() })
    }

    /// The ceiling of one of its agents.
    pub fn of_machine(&self, agent: usize) -> Result<NetworkCeiling> {
        let name = &self.name;
        NetworkCeiling::of_machine(&self.figures, agent).with_context(|| {
            format!(
                "{name} tells of no agent {agent} with a link in both directions (agents of one machine have none between them): --network-agent is the number of this machine in it"
            )
        })
    }

    /// The ceiling of all machines of `team` together: those of the same names in the file, or all of it if it names none and tells of as many.
    pub fn of_agents(&self, team: &Team<'_>) -> Result<NetworkCeiling> {
        let mut hosts: Vec<(usize, String)> = Vec::new();
        for (computer, told) in team.computers().into_iter().zip(team.told()) {
            // Agents of one machine share its links.
            if hosts.iter().all(|(known, _)| *known != computer) {
                hosts.push((computer, told.host));
            }
        }
        let hosts: Vec<String> = hosts.into_iter().map(|(_, host)| host).collect();
        self.of_hosts(&hosts)
    }

    fn of_hosts(&self, hosts: &[String]) -> Result<NetworkCeiling> {
        let name = &self.name;
        let again = "measure it between the machines that the agents are on, or leave --network out";
        let numbers = if self.hosts.is_empty() {
            let all = self.figures.flows.iter().map(|flow| flow.from.max(flow.to)).max().unwrap_or(0);
            if all != hosts.len() {
                bail!(
                    "{name} tells of the network between {all} machines without their names, and the agents are on {}: {again}",
                    hosts.len()
                );
            }
            (1..=all).collect()
        } else {
            self.numbers(hosts).map_err(|missing| {
                anyhow::anyhow!("{name} tells nothing of the network of {missing}: {again}")
            })?
        };
        NetworkCeiling::of_machines(&self.figures, &numbers)
            .with_context(|| format!("{name} does not tell of links in both directions of every machine (agents of one machine have none between them): {again}"))
    }

    /// Which agents of the file are on `hosts`, each once; the first host that none is on.
    fn numbers<'h>(&self, hosts: &'h [String]) -> Result<Vec<usize>, &'h str> {
        let mut numbers: Vec<usize> = Vec::new();
        for host in hosts {
            let mut same =
                self.hosts.iter().enumerate().filter(|(_, known)| *known == host).map(|(at, _)| at + 1);
            let number = same.find(|number| !numbers.contains(number));
            numbers.push(number.ok_or(host.as_str())?);
        }
        Ok(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_bench::network::{FlowFigure, Pattern};

    /// Between three machines; the first sends 100 bytes per second, the second 200, the third 300, and all receive from the next.
    fn network(hosts: &[&str]) -> Network {
        let flow = |(from, to, bytes)| FlowFigure {
            pattern: Pattern::OnePair,
            from,
            to,
            streams: 1,
            repetition: 1,
            bytes,
            seconds: 1.0,
            is_within_machine: false,
        };
        let flows = [(1, 2, 100), (2, 3, 200), (3, 1, 300)].map(flow).into();
        let figures = NetworkFigures { flows, latencies: Vec::new() };
        Network { name: "n.json".into(), figures, hosts: hosts.iter().map(|&host| host.to_owned()).collect() }
    }

    fn both(network: &Network, hosts: &[&str]) -> Result<(f64, f64), String> {
        let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
        let told = network.of_hosts(&hosts);
        told.map(|told| (told.write, told.read)).map_err(|error| error.to_string())
    }

    #[test]
    fn machines_are_found_by_their_names_in_any_order() {
        let named = network(&["a", "b", "b"]);
        assert_eq!(both(&named, &["a"]), Ok((100.0, 300.0)));
        assert_eq!(both(&named, &["b", "a"]), Ok((300.0, 400.0)));
        assert_eq!(both(&named, &["b", "b"]), Ok((500.0, 300.0)), "two machines of one name");
        let refused = both(&named, &["a", "c"]).unwrap_err();
        assert!(
            refused.contains("nothing of the network of c") && refused.contains("--network out"),
            "{refused}"
        );
    }

    #[test]
    fn without_names_the_numbers_of_machines_have_to_agree() {
        assert_eq!(both(&network(&[]), &["x", "y", "z"]), Ok((600.0, 600.0)));
        let refused = both(&network(&[]), &["x"]).unwrap_err();
        assert!(refused.contains("between 3 machines without their names"), "{refused}");
    }
}
