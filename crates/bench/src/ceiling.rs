//! What a machine could do at best: a figure means little without it (`peak in per cent of theory`, as the papers tell it).

use crate::BenchError;
use crate::chore::{Answer, Chore};
use crate::device::{DeviceFigure, DevicePlan};
use crate::figure::Spread;
use crate::memory::{Kernel, NumaError, StreamError, StreamPlan, nodes, stream};
use crate::network::{NetworkFigures, Pattern};
use crate::place::Place;
use crate::run::{Part, Unit};
use crate::task::Machines;
use serde::{Deserialize, Serialize};
use std::sync::atomic::AtomicBool;

/// What memory moves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryCeiling {
    /// STREAM's copy, best of the repetitions, all NUMA nodes together: bytes per second, read and written each counted.
    pub copy: f64,
    /// STREAM's triad, the same way.
    pub triad: f64,
    /// Whether the arrays were four times the caches, as STREAM asks for.
    pub is_beyond_caches: bool,
}

/// What the devices did together in one phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceCeiling {
    /// `stream write`, `stream read`, `random write`, `random read`.
    pub what: String,
    /// Bytes per second over the repetitions.
    pub bytes: Spread,
    /// Operations per second.
    pub operations: Spread,
}

/// What a network did between the machines of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetworkCeiling {
    /// Which links, as a person calls them.
    pub name: String,
    /// Bytes per second towards the servers.
    pub write: f64,
    /// Bytes per second from them.
    pub read: f64,
}

impl NetworkCeiling {
    /// What the links of machine `agent` of `ashlar bench network` carried at best, alone with one other machine; nothing if it was not measured in both
    /// directions.
    pub fn of_machine(figures: &NetworkFigures, agent: usize) -> Option<NetworkCeiling> {
        let (write, read) = NetworkCeiling::best(figures, agent)?;
        Some(NetworkCeiling { name: format!("of machine {agent}"), write, read })
    }

    /// What the links of several machines carried at best, each alone with one other machine, added up; nothing if one of them was not measured in both
    /// directions. What is between the links may carry less.
    pub fn of_machines(figures: &NetworkFigures, agents: &[usize]) -> Option<NetworkCeiling> {
        let each: Option<Vec<(f64, f64)>> =
            agents.iter().map(|agent| NetworkCeiling::best(figures, *agent)).collect();
        let (write, read) = each?.into_iter().reduce(|sum, one| (sum.0 + one.0, sum.1 + one.1))?;
        let name =
            if agents.len() == 1 { "of 1 machine".into() } else { format!("of {} machines", agents.len()) };
        Some(NetworkCeiling { name, write, read })
    }

    /// What one machine sent and received at best.
    fn best(figures: &NetworkFigures, agent: usize) -> Option<(f64, f64)> {
        let linked = figures.flows.iter().filter(|flow| !flow.is_within_machine);
        let through_links = NetworkFigures { flows: linked.cloned().collect(), latencies: Vec::new() };
        let best = |is_one: &dyn Fn(usize, usize) -> bool| {
            let flows = through_links.summarize().into_iter();
            let rates = flows
                .filter(|(pattern, from, to, ..)| *pattern == Pattern::OnePair && is_one(*from, *to))
                .map(|(.., rate)| rate.mean / 8.0);
            rates.reduce(f64::max)
        };
        Some((best(&|from, _| from == agent)?, best(&|_, to| to == agent)?))
    }
}

/// All that were measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    /// Of memory; nothing if it could not be measured. Of several computers, which measured it at the same time, their sum.
    pub memory: Option<MemoryCeiling>,
    /// Of memory of each of them, in the order of their agents; empty for one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory_each: Vec<MemoryCeiling>,
    /// Why not, or what must be said with it.
    pub memory_note: Option<String>,
    /// How many devices were named.
    pub devices: usize,
    /// Of all devices together; empty if none was named.
    pub device: Vec<DeviceCeiling>,
    /// Of the network; nothing until it is measured between machines.
    #[serde(default)]
    pub network: Option<NetworkCeiling>,
}

/// The ceiling that a rate is told as a part of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Against {
    /// Its name.
    pub name: String,
    /// Its rate, in the unit of the part.
    pub rate: f64,
    /// Whether it is one of devices.
    #[serde(default)]
    pub is_of_devices: bool,
}

/// LIMIT: bytes of an array where time is too short for STREAM's rule.
const SHORT_ARRAY_BYTES: u64 = 16 << 20;

impl Ceilings {
    /// Measures memory on every NUMA node, one after the other, of all `machines` at the same time; in a hurry with arrays that are too small,
    /// which is noted.
    ///
    /// # Errors
    /// When an agent is lost. That memory cannot be measured is noted and no error.
    pub fn measure_memory(&mut self, machines: &dyn Machines, is_in_a_hurry: bool) -> Result<(), BenchError> {
        let answers = machines.do_chore(&Chore::MeasureMemory { is_in_a_hurry })?;
        self.take_memory(answers.into_iter().map(|answer| match answer {
            Answer::Memory(told) => told,
            _ => Err("it answered what makes no sense".into()),
        }));
        Ok(())
    }

    fn take_memory(&mut self, told: impl ExactSizeIterator<Item = Result<MemoryCeiling, String>>) {
        let is_one = told.len() == 1;
        let mut each = Vec::new();
        for told in told {
            match told {
                Ok(found) => each.push(found),
                Err(why) => {
                    self.memory_note = Some(format!("not measured: {why}"));
                    return;
                }
            }
        }
        self.memory = each.iter().copied().reduce(|sum, one| MemoryCeiling {
            copy: sum.copy + one.copy,
            triad: sum.triad + one.triad,
            is_beyond_caches: sum.is_beyond_caches && one.is_beyond_caches,
        });
        let note = format!(
            "measured in a hurry, with arrays of {} MiB. STREAM asks for four times the caches: this may be partly their speed, and more than memory \
             itself moves. With a longer --budget it is measured by that rule",
            SHORT_ARRAY_BYTES >> 20
        );
        self.memory_note = self.memory.filter(|memory| !memory.is_beyond_caches).map(|_| note);
        self.memory_each = if is_one { Vec::new() } else { each };
    }

    /// Measures devices, of which each of `places` is one.
    ///
    /// # Errors
    /// As [`DevicePlan::measure`].
    pub fn measure_devices(
        &mut self,
        plan: &DevicePlan,
        places: &[Place],
        cancel: &AtomicBool,
    ) -> Result<(), BenchError> {
        let figures = plan.measure(places, cancel, &|_| ())?;
        self.devices = places.len();
        self.device = together(&figures, places.len());
        Ok(())
    }

    /// The ceiling of `what` of a part: of content the network's or the devices', whichever is lower, as it passes through both; memory if neither
    /// was measured. Nothing for names, and for small records without devices: no ceiling of those is known.
    pub fn of(&self, part: Part, what: &str) -> Option<Against> {
        if part.is_metadata() {
            return None;
        }
        let is_write = what.ends_with("write");
        let device = self.of_devices(part, is_write);
        if part.unit() != Unit::Bytes {
            return device;
        }
        let network = self.network.as_ref().map(|network| Against {
            name: format!("network {}", network.name),
            rate: if is_write { network.write } else { network.read },
            is_of_devices: false,
        });
        let lower = |one: Against, other: Against| if other.rate < one.rate { other } else { one };
        network.into_iter().chain(device).reduce(lower).or_else(|| {
            // A copy reads and writes each byte; content passes through memory once at least.
            self.memory.map(|memory| Against {
                name: if self.memory_each.is_empty() {
                    "memory (half of STREAM copy)".into()
                } else {
                    format!("memory of {} machines (half of STREAM copy)", self.memory_each.len())
                },
                rate: memory.copy / 2.0,
                is_of_devices: false,
            })
        })
    }

    fn of_devices(&self, part: Part, is_write: bool) -> Option<Against> {
        let action = if is_write { "write" } else { "read" };
        let kind = if part.is_random() { "random" } else { "stream" };
        let device = self.device.iter().find(|one| one.what == format!("{kind} {action}"))?;
        let (name, rate) = match part.unit() {
            Unit::Bytes => (self.device_name(), device.bytes.mean),
            Unit::Operations if part != Part::Random1k => {
                (format!("{}, 4 KiB at random", self.device_name()), device.operations.mean)
            }
            Unit::Operations => return None,
        };
        Some(Against { name, rate, is_of_devices: true })
    }

    fn device_name(&self) -> String {
        if self.devices == 1 { "device alone".into() } else { format!("{} devices together", self.devices) }
    }
}

/// Why memory was not measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoMemory {
    #[error(transparent)]
    Nodes(#[from] NumaError),
    #[error(transparent)]
    Stream(#[from] StreamError),
}

/// Measures memory of this machine, all NUMA nodes one after the other, until somebody sets `stop`.
pub(crate) fn memory(is_in_a_hurry: bool, stop: &AtomicBool) -> Result<MemoryCeiling, NoMemory> {
    let mut all = MemoryCeiling { copy: 0.0, triad: 0.0, is_beyond_caches: !is_in_a_hurry };
    for node in nodes()? {
        let plan = if is_in_a_hurry {
            StreamPlan { threads: node.processors.len(), array_bytes: SHORT_ARRAY_BYTES, repetitions: 3 }
        } else {
            StreamPlan::for_node(&node)?
        };
        let rates = stream(&node, &plan, stop)?;
        let best = |kernel: Kernel| {
            rates.iter().find(|rates| rates.kernel == kernel).map_or(0.0, |rates| rates.best)
        };
        all.copy += best(Kernel::Copy);
        all.triad += best(Kernel::Triad);
    }
    Ok(all)
}

/// The rates of all devices at the same time, or of the only one.
fn together(figures: &[DeviceFigure], devices: usize) -> Vec<DeviceCeiling> {
    let target = (devices == 1).then_some(0);
    let mut all: Vec<DeviceCeiling> = Vec::new();
    let same = |what: &str| {
        figures.iter().filter(|one| one.target == target && one.figure.what == what).collect::<Vec<_>>()
    };
    for figure in figures.iter().filter(|one| one.target == target) {
        let what = &figure.figure.what;
        if all.iter().any(|one| one.what == *what) {
            continue;
        }
        let same = same(what);
        let spread = |of: &dyn Fn(&DeviceFigure) -> f64| {
            Spread::of(&same.iter().map(|one| of(one)).collect::<Vec<_>>())
        };
        all.push(DeviceCeiling {
            what: what.clone(),
            bytes: spread(&|one| one.figure.bytes_per_second()),
            operations: spread(&|one| one.figure.operations_per_second()),
        });
    }
    all
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn device(what: &str, bytes: f64, operations: f64) -> DeviceCeiling {
        DeviceCeiling {
            what: what.into(),
            bytes: Spread::of(&[bytes]),
            operations: Spread::of(&[operations]),
        }
    }

    pub fn ceilings() -> Ceilings {
        Ceilings {
            memory: Some(MemoryCeiling { copy: 2e10, triad: 1.5e10, is_beyond_caches: true }),
            memory_each: Vec::new(),
            memory_note: None,
            devices: 1,
            device: vec![device("stream write", 2e9, 2e3), device("random read", 4e8, 1e5)],
            network: None,
        }
    }

    #[test]
    fn each_part_has_the_nearest_ceiling_that_was_measured() {
        let all = ceilings();
        let of = |ceilings: &Ceilings, part, what: &str| {
            ceilings.of(part, what).map(|against| (against.name, against.rate))
        };
        let device = |name: &str, rate| Some((name.to_owned(), rate));
        assert_eq!(of(&all, Part::SequentialNN, "sequential write"), device("device alone", 2e9));
        assert_eq!(of(&all, Part::Random4k, "random read"), device("device alone, 4 KiB at random", 1e5));
        assert_eq!(of(&all, Part::Random1k, "random read"), None);
        assert_eq!(of(&all, Part::Metadata0, "create"), None);
        let memory = Ceilings { device: Vec::new(), ..ceilings() };
        assert_eq!(
            of(&memory, Part::SequentialN1, "sequential read"),
            device("memory (half of STREAM copy)", 1e10)
        );
        assert_eq!(of(&memory, Part::Random4k, "random read"), None);
        let network = NetworkCeiling { name: "eth0".into(), write: 1e9, read: 1.2e9 };
        let network = Ceilings { network: Some(network), ..ceilings() };
        assert_eq!(of(&network, Part::SequentialN1, "sequential read"), device("network eth0", 1.2e9));
        let network = NetworkCeiling { name: "eth0".into(), write: 3e9, read: 3e9 };
        let network = Ceilings { network: Some(network), ..ceilings() };
        assert_eq!(of(&network, Part::SequentialN1, "sequential write"), device("device alone", 2e9));
    }

    #[test]
    fn the_network_s_ceiling_is_the_best_link_of_the_machine() {
        let flow = |from, to, streams, bytes| crate::network::FlowFigure {
            pattern: crate::network::Pattern::OnePair,
            from,
            to,
            streams,
            repetition: 1,
            bytes,
            seconds: 2.0,
            is_within_machine: false,
        };
        let flows = vec![flow(1, 2, 1, 200), flow(1, 3, 4, 600), flow(2, 1, 1, 400), flow(2, 3, 1, 9000)];
        let figures = NetworkFigures { flows, latencies: Vec::new() };
        let ceiling = NetworkCeiling::of_machine(&figures, 1).unwrap();
        assert_eq!((ceiling.write, ceiling.read), (300.0, 200.0));
        assert_eq!(NetworkCeiling::of_machine(&figures, 4), None);
        let (one, both) =
            (NetworkCeiling::of_machines(&figures, &[1]), NetworkCeiling::of_machines(&figures, &[1, 2]));
        assert_eq!(one.map(|one| (one.write, one.read)), Some((300.0, 200.0)));
        assert_eq!(
            both.map(|both| (both.name, both.write, both.read)),
            Some(("of 2 machines".into(), 4800.0, 300.0))
        );
        assert_eq!(NetworkCeiling::of_machines(&figures, &[1, 4]), None);
        // Two agents of one machine are faster than any link.
        let near =
            |from, to| crate::network::FlowFigure { is_within_machine: true, ..flow(from, to, 1, 99_000) };
        let all: Vec<_> =
            figures.flows.iter().cloned().chain([near(1, 2), near(2, 1), near(1, 4), near(4, 1)]).collect();
        let with_near = NetworkFigures { flows: all, latencies: Vec::new() };
        assert_eq!(NetworkCeiling::of_machine(&with_near, 1), Some(ceiling));
        assert_eq!(NetworkCeiling::of_machine(&with_near, 4), None, "no link of it was measured");
        assert_eq!(NetworkCeiling::of_machines(&figures, &[]), None);
    }

    #[test]
    fn memory_is_measured_and_a_hurry_is_noted() {
        let mut all = Ceilings::default();
        let measured = memory(true, &AtomicBool::new(false)).map_err(|why| why.to_string());
        all.take_memory([measured].into_iter());
        let memory = all.memory.unwrap();
        assert!(memory.copy > 0.0 && memory.triad > 0.0 && !memory.is_beyond_caches);
        assert!(all.memory_note.unwrap().contains("arrays of 16 MiB") && all.memory_each.is_empty());
    }

    #[test]
    fn memory_of_machines_is_added_up_and_is_not_known_if_that_of_one_is_not() {
        let one = MemoryCeiling { copy: 2e10, triad: 1e10, is_beyond_caches: true };
        let mut all = Ceilings::default();
        all.take_memory([Ok(one), Ok(MemoryCeiling { copy: 1e10, ..one })].into_iter());
        assert_eq!(all.memory.map(|memory| (memory.copy, memory.triad)), Some((3e10, 2e10)));
        assert_eq!((all.memory_each.len(), &all.memory_note), (2, &None));
        let against = all.of(Part::SequentialNN, "sequential read").unwrap();
        assert_eq!(
            (against.name.as_str(), against.rate),
            ("memory of 2 machines (half of STREAM copy)", 1.5e10)
        );
        let mut all = Ceilings::default();
        all.take_memory([Ok(one), Err("agent 2: no nodes".into())].into_iter());
        assert_eq!((all.memory, all.memory_note.as_deref()), (None, Some("not measured: agent 2: no nodes")));
    }
}
