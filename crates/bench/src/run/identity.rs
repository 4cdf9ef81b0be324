//! What a run that goes on must have in common with the one that was interrupted.

use crate::BenchError;
use crate::inventory::{AgentMachine, Inventory, PlaceFacts};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Where, on which machine, and what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The directory, all links followed.
    pub directory: String,
    /// Type and size of the file system there.
    pub file_system: String,
    /// A number of the machine that tells nothing else about it.
    pub machine: u64,
    /// Kernel release and processors.
    pub system: String,
    /// Each option with its value.
    pub asked: BTreeMap<String, String>,
}

/// The value of an option that was not given.
pub const NOT_GIVEN: &str = "not given";

/// FNV-1a: the same number for the same text in every release.
fn number_of(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// A number of this machine that stays the same when it starts again, and tells nothing else about it.
pub(crate) fn machine_number() -> u64 {
    let ids = ["/etc/machine-id", "/proc/sys/kernel/hostname"]
        .map(|path| fs::read_to_string(path).unwrap_or_default());
    number_of(&ids.concat())
}

impl Identity {
    /// Of `directory` on this machine.
    ///
    /// # Errors
    /// When the directory cannot be found.
    pub fn of(
        directory: &Path,
        inventory: &Inventory,
        asked: BTreeMap<String, String>,
    ) -> Result<Identity, BenchError> {
        let real = fs::canonicalize(directory).map_err(BenchError::io("find", directory))?;
        Ok(Identity {
            directory: real.display().to_string(),
            file_system: format!("{}, {} bytes", inventory.place.file_system, inventory.place.total_bytes),
            machine: machine_number(),
            system: format!("{}, {} processors", inventory.software.kernel, inventory.hardware.processors),
            asked,
        })
    }

    /// Of `directory` as agents see it, whose machines have these `numbers`; `place` is what the first of them tells of it.
    pub fn of_agents(
        directory: &Path,
        place: &PlaceFacts,
        agents: &[AgentMachine],
        numbers: &[u64],
        asked: BTreeMap<String, String>,
    ) -> Identity {
        let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
        // No more than of one machine: interfaces, say, come and go.
        let mut systems: BTreeMap<String, usize> = BTreeMap::new();
        for AgentMachine { hardware, software, .. } in agents {
            *systems
                .entry(format!("{}, {} processors", software.kernel, hardware.processors))
                .or_default() += 1;
        }
        let systems: Vec<String> =
            systems.iter().map(|(system, count)| format!("{system} ({count} of the agents)")).collect();
        Identity {
            // As all of them would write it: this machine may not see it, and cannot follow links.
            directory: directory.components().collect::<PathBuf>().display().to_string(),
            file_system: format!("{}, {} bytes", place.file_system, place.total_bytes),
            machine: number_of(&numbers.join(" ")),
            system: systems.join("; "),
            asked,
        }
    }

    /// What differs from `other`, as sentences; empty if nothing does.
    pub fn differences(&self, other: &Identity) -> Vec<String> {
        let mut all = Vec::new();
        let mut compare = |what: &str, before: &str, now: &str| {
            if before != now {
                all.push(format!("{what} was {before} and is {now}"));
            }
        };
        compare("the directory", &self.directory, &other.directory);
        compare("the file system", &self.file_system, &other.file_system);
        compare("the system", &self.system, &other.system);
        if self.machine != other.machine {
            let is_of_agents = other.asked.get("agents").is_some_and(|count| count != NOT_GIVEN);
            let text = if is_of_agents { "agents are on other machines" } else { "it is another machine" };
            all.push(text.into());
        }
        let names =
            self.asked.keys().chain(other.asked.keys().filter(|name| !self.asked.contains_key(*name)));
        for name in names {
            let value =
                |identity: &Identity| identity.asked.get(name).cloned().unwrap_or_else(|| NOT_GIVEN.into());
            if value(self) != value(other) {
                all.push(format!("--{name} was {} and is {}", value(self), value(other)));
            }
        }
        all
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub fn identity() -> Identity {
        Identity {
            directory: "/mnt/scratch".into(),
            file_system: "ext4, 100 bytes".into(),
            machine: 7,
            system: "6.1, 2 processors".into(),
            asked: BTreeMap::from([("budget".into(), "60 s".into())]),
        }
    }

    #[test]
    fn what_differs_is_named() {
        let before = identity();
        assert!(before.differences(&before).is_empty());
        let mut now = Identity { directory: "/mnt/other".into(), machine: 8, ..identity() };
        now.asked.insert("threads".into(), "1,2".into());
        let told = before.differences(&now);
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told[0].contains("/mnt/other") && told[2].contains("--threads was not given and is 1,2"));
    }

    #[test]
    fn agents_are_known_by_how_many_they_are_and_by_their_machines() {
        let found = Inventory::collect(Path::new("/"), &[]);
        let agents: Vec<AgentMachine> = [1, 2, 2].map(|computer| AgentMachine::of(computer, &found)).into();
        let of = |count: usize, numbers: &[u64]| {
            let asked = BTreeMap::from([("agents".into(), count.to_string())]);
            let directory = Path::new(if count == 3 { "/x" } else { "/x/" });
            Identity::of_agents(directory, &found.place, &agents[..count], numbers, asked)
        };
        let before = of(3, &[7, 8, 8]);
        assert!(before.system.ends_with("processors (3 of the agents)"), "{}", before.system);
        assert!(before.differences(&of(3, &[7, 8, 8])).is_empty());
        assert_eq!(before.differences(&of(3, &[7, 8, 9])), ["agents are on other machines"]);
        let told = before.differences(&of(2, &[7, 8]));
        assert!(told.len() == 3 && told[2].contains("--agents was 3 and is 2"), "{told:?}");
    }

    #[test]
    fn a_machine_has_one_number() {
        assert_eq!(number_of(""), 0xcbf2_9ce4_8422_2325);
        assert_ne!(number_of("a"), number_of("b"));
    }
}
