//! The machines of many agents, those that are the same taken together.

use super::{Hardware, Inventory, Software};
use serde::{Deserialize, Serialize};

/// Machines that are the same may differ by this part in what firmware and kernel have left of their memory.
const NEAR_PART: f64 = 0.01;
/// The kernel works it out from the size of memory.
const FOLLOWS_MEMORY: &str = "vm.min_free_kbytes";

/// The machine of one agent. Names of hosts are not in it: a report is shown around.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentMachine {
    /// Which computer it is, from 1: agents of one computer have the same number.
    pub computer: usize,
    /// Processors, memory, disks, interfaces.
    pub hardware: Hardware,
    /// Kernel, distribution and settings.
    pub software: Software,
}

/// Agents whose machines have the same hardware and software, as far as can be seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind<'a> {
    /// Their numbers, from 1, ascending.
    pub agents: Vec<usize>,
    /// How many computers they are on.
    pub computers: usize,
    /// The machine of the first of them.
    pub machine: &'a AgentMachine,
}

impl AgentMachine {
    /// Of what an agent on this computer has told.
    pub fn of(computer: usize, told: &Inventory) -> AgentMachine {
        AgentMachine { computer, hardware: told.hardware.clone(), software: told.software.clone() }
    }

    fn is_like(&self, other: &AgentMachine) -> bool {
        let of_any = |one: &AgentMachine| {
            let mut hardware = Hardware { memory_bytes: 0, ..one.hardware.clone() };
            hardware.interfaces.iter_mut().for_each(|one| one.name = without_address(&one.name));
            hardware
        };
        is_near(self.hardware.memory_bytes as f64, other.hardware.memory_bytes as f64)
            && of_any(self) == of_any(other)
            && is_same_software(&self.software, &other.software)
    }
}

/// The name of an interface without the address of its hardware, which some are called by (`enx0050b6123456`) and which is another on every machine.
fn without_address(name: &str) -> String {
    let is_address = |rest: &&str| rest.len() == 12 && rest.bytes().all(|digit| digit.is_ascii_hexdigit());
    name.strip_prefix("enx").filter(is_address).map_or(name, |_| "enx").to_owned()
}

fn is_near(one: f64, other: f64) -> bool {
    (one - other).abs() <= NEAR_PART * one.max(other)
}

fn is_same_software(one: &Software, other: &Software) -> bool {
    let is_same = |((name, value), (other_name, other)): (&(String, String), &(String, String))| {
        let numbers = value.parse().ok().zip(other.parse().ok());
        let is_close = name == FOLLOWS_MEMORY && numbers.is_some_and(|(one, other)| is_near(one, other));
        name == other_name && (value == other || is_close)
    };
    (&one.kernel, &one.distribution, &one.tools) == (&other.kernel, &other.distribution, &other.tools)
        && one.settings.len() == other.settings.len()
        && one.settings.iter().zip(&other.settings).all(is_same)
}

/// All kinds, in the order of their first agents.
pub fn kinds(agents: &[AgentMachine]) -> Vec<Kind<'_>> {
    let mut all: Vec<(Kind<'_>, Vec<usize>)> = Vec::new();
    for (at, machine) in agents.iter().enumerate() {
        match all.iter_mut().find(|(kind, _)| kind.machine.is_like(machine)) {
            Some((kind, computers)) => {
                kind.agents.push(at + 1);
                computers.push(machine.computer);
            }
            None => all.push((Kind { agents: vec![at + 1], computers: 0, machine }, vec![machine.computer])),
        }
    }
    let counted = all.into_iter().map(|(kind, mut computers)| {
        computers.sort_unstable();
        computers.dedup();
        Kind { computers: computers.len(), ..kind }
    });
    counted.collect()
}

impl Kind<'_> {
    /// How many there are: `4 machines`, `1 machine with 3 agents`.
    pub fn name(&self) -> String {
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        let (computers, agents) = (self.computers, self.agents.len());
        let mut name = format!("{computers} machine{}", plural(computers));
        if agents != computers {
            name += &format!(" with {agents} agent{}", plural(agents));
        }
        name
    }

    /// Which agents: `agent 2`, `agents 1-3, 5`.
    pub fn who(&self) -> String {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for &agent in &self.agents {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == agent => *last = agent,
                _ => runs.push((agent, agent)),
            }
        }
        let text = |(first, last): &(usize, usize)| {
            if first == last { first.to_string() } else { format!("{first}-{last}") }
        };
        let list: Vec<String> = runs.iter().map(text).collect();
        format!("agent{} {}", if self.agents.len() == 1 { "" } else { "s" }, list.join(", "))
    }
}

/// All machines in one line: `4 machines: 8 processors (Example 9000), 64 GiB`.
pub fn line(agents: &[AgentMachine]) -> String {
    let one = |kind: &Kind<'_>| format!("{}: {}", kind.name(), kind.machine.hardware.line());
    kinds(agents).iter().map(one).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Interface;
    use std::path::Path;

    #[test]
    fn machines_that_are_the_same_are_told_once_and_others_are_not_hidden() {
        let told = Inventory::collect(Path::new("/"), &[]);
        let of = |computer, change: &dyn Fn(&mut Inventory)| {
            let mut told = told.clone();
            change(&mut told);
            AgentMachine::of(computer, &told)
        };
        let same = of(1, &|_| ());
        let near = of(2, &|told| {
            told.hardware.memory_bytes -= 4096;
            for (name, value) in &mut told.software.settings {
                if name == FOLLOWS_MEMORY {
                    *value = (value.parse::<u64>().unwrap() + 1).to_string();
                }
            }
        });
        let half = of(3, &|told| told.hardware.memory_bytes /= 2);
        let called = |computer, name: &str| {
            let interface =
                Interface { name: name.into(), megabits: None, mtu: 1500, driver: "cdc_ether".into() };
            of(computer, &|told| told.hardware.interfaces.push(interface.clone()))
        };
        let by_address = [called(8, "enx0050b6123456"), called(9, "enx0050b6654321"), called(10, "enxeth")];
        let names: Vec<String> = kinds(&by_address).iter().map(Kind::who).collect();
        assert_eq!(names, ["agents 1-2", "agent 3"]);
        let newer = of(4, &|told| told.software.kernel += "-new");
        let set = of(5, &|told| told.software.settings[0].1 += "1");
        let all = [same.clone(), near, same.clone(), half, same, newer, set];
        let names: Vec<(String, String)> = kinds(&all).iter().map(|kind| (kind.name(), kind.who())).collect();
        let expected = [
            ("2 machines with 4 agents", "agents 1-3, 5"),
            ("1 machine", "agent 4"),
            ("1 machine", "agent 6"),
            ("1 machine", "agent 7"),
        ];
        assert_eq!(names, expected.map(|(name, who)| (name.to_owned(), who.to_owned())));
        assert!(line(&all[..3]).starts_with("2 machines with 3 agents: "), "{}", line(&all[..3]));
    }
}
