//! Which part of a machine limits a rate, and why that is believed.
//!
//! The first of these that holds is named; the others that hold, too, are told with it.
//!
//! | rule | evidence |
//! |---|---|
//! | network | an interface moves 85 % of its link or more in one direction (headers and acknowledgements take the rest) |
//! | device ceiling | the rate is 90 % or more of what the devices did without the file system |
//! | device | a disk has requests under way 90 % of the time or more, and more threads did not bring more |
//! | processors | all together are busy 90 % of the time or more |
//! | one processor | one is busy 95 % of the time or more: something that only one thread does |
//! | waiting for a disk | 30 % of processor time or more waits for a disk: for the busiest if that is busy 40 % of the time, else for one that this machine does not show |
//! | latency | nothing of it: each request waits for the one before; more of them under way would bring more |
//!
//! A disk that takes many requests at the same time (NVMe, a virtual disk) is "busy" with a single one of them, so its being busy counts only
//! when the rate has stopped growing. What servers on other machines do is not seen from here, and is said.
//!
//! Of many agents the machine that has most of something is judged, and named with the mean of all.

use super::{DeviceLoad, Load};
use serde::{Deserialize, Serialize};

/// Part of a link that data can take.
const NETWORK_PART: f64 = 0.85;
/// Part of the devices' own rate.
const CEILING_PART: f64 = 0.9;
/// Part of the time that a disk is busy.
const DEVICE_PART: f64 = 0.9;
/// Part of the time that all processors are busy.
const PROCESSORS_PART: f64 = 0.9;
/// Part of the time that one is.
const ONE_PROCESSOR_PART: f64 = 0.95;
/// Part of processor time that waits.
const WAITING_PART: f64 = 0.3;
/// Part of the time that a disk is busy when processors wait for it and not for one that is not seen.
const WAITED_FOR_PART: f64 = 0.4;
/// Part of processor time that the host takes before it is told.
const STEAL_PART: f64 = 0.05;

/// What limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// An interface.
    Network,
    /// A disk.
    Device,
    /// All processors.
    Processors,
    /// One processor.
    OneProcessor,
    /// A disk that is not busy all the time, or that this machine does not show.
    Waiting,
    /// Nothing but the time of one request after the other.
    Latency,
    /// Nobody watched, or not for long enough.
    Unknown,
}

/// What limits a rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bottleneck {
    /// What.
    pub limit: Limit,
    /// Why that is believed, a part of a sentence.
    pub evidence: String,
    /// What else holds.
    pub also: Vec<String>,
}

/// What more threads do to a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// Nothing any more.
    Level,
    /// With the most threads that were measured it was still more than with fewer.
    Growing,
    /// There is one number of threads only.
    NotKnown,
}

/// What one of the measuring machines did.
#[derive(Clone, Copy, Debug)]
pub struct Watched<'a> {
    /// Which agent's it is, from 1; nothing for this machine alone.
    pub agent: Option<usize>,
    /// What it did.
    pub load: &'a Load,
}

/// What is known of the point that is judged.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// What the machines did that were watched; empty if none was, or not for long enough.
    pub watched: &'a [Watched<'a>],
    /// The part of the devices' ceiling that was reached, if it is known.
    pub of_devices: Option<f64>,
    /// Whether more threads brought more.
    pub growth: Growth,
    /// Median latency, microseconds.
    pub p50_us: f64,
    /// Requests under way at the same time, of all threads.
    pub under_way: u64,
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// A link as its makers say it.
fn link(bits: u64) -> String {
    let gigabits = bits as f64 / 1e9;
    if gigabits >= 1.0 { format!("{gigabits:.0} Gbit/s") } else { format!("{:.0} Mbit/s", gigabits * 1e3) }
}

impl Bottleneck {
    /// Names it by the rules of this module.
    pub fn of(case: &Case<'_>) -> Bottleneck {
        let watched = case.watched;
        if watched.is_empty() {
            let evidence = "not known: phases were too short to watch".to_owned();
            return Bottleneck { limit: Limit::Unknown, evidence, also: Vec::new() };
        }
        let mut found: Vec<(Limit, String)> = Vec::new();
        found.extend(network(watched));
        found.extend(devices(case));
        found.extend(processors(watched));
        if found.is_empty() {
            found.extend(waiting(watched));
        }
        if found.is_empty() {
            found.push((Limit::Latency, latency(case)));
        }
        let mut found = found.into_iter();
        let Some((limit, evidence)) = found.next() else { unreachable!("one is there at least") };
        let mut also: Vec<String> = found.map(|(_, text)| text).collect();
        if let Some(most) = most(watched, |load| load.steal).filter(|most| most.part >= STEAL_PART) {
            let (part, whose, mean) = (percent(most.part), most.whose(), most.mean());
            also.push(format!("the host took {part} of processor time{whose} for others{mean}"));
        }
        if case.growth == Growth::Growing {
            also.push("the rate still grew with the last threads".into());
        }
        Bottleneck { limit, evidence, also }
    }
}

/// The machine that has most of something.
struct Most<'a> {
    agent: Option<usize>,
    load: &'a Load,
    /// How much it has, a part from 0 to 1.
    part: f64,
    /// What all of them have in the mean, and how many they are.
    mean: f64,
    count: usize,
}

/// The one of `watched` for which `part` is most; the first of several.
fn most<'a>(watched: &[Watched<'a>], part: impl Fn(&Load) -> f64) -> Option<Most<'a>> {
    let parts = || watched.iter().map(|one| (one, part(one.load)));
    let (one, part) = parts().reduce(|best, one| if one.1 > best.1 { one } else { best })?;
    let (sum, count) = (parts().map(|(_, part)| part).sum::<f64>(), watched.len());
    Some(Most { agent: one.agent, load: one.load, part, mean: sum / count as f64, count })
}

impl Most<'_> {
    /// Behind the name of what it has; nothing if there is one machine only.
    fn whose(&self) -> String {
        self.agent.map_or_else(String::new, |agent| format!(" of agent {agent}"))
    }

    /// At the end; nothing if there is one machine only.
    fn mean(&self) -> String {
        match (self.agent, self.count) {
            (Some(_), 2..) => format!(", mean of {} agents {}", self.count, percent(self.mean)),
            _ => String::new(),
        }
    }
}

/// What waits for what: a disk that takes many requests at once need not be busy all the time to be waited for.
fn waiting(watched: &[Watched<'_>]) -> Option<(Limit, String)> {
    let most = most(watched, |load| load.iowait).filter(|most| most.part >= WAITING_PART)?;
    let (part, whose, mean) = (percent(most.part), most.whose(), most.mean());
    let busiest = busiest(most.load).filter(|one| one.busy >= WAITED_FOR_PART);
    let text = match busiest {
        Some(one) => format!(
            "waiting for device {}{whose}, {} busy: {part} of processor time{mean}",
            one.name,
            percent(one.busy)
        ),
        None => format!(
            "{part} of processor time{whose} waits for a disk{mean}, and no disk that is seen from here is busy"
        ),
    };
    Some((Limit::Waiting, text))
}

fn busiest(load: &Load) -> Option<&DeviceLoad> {
    load.devices.iter().max_by(|one, other| one.busy.total_cmp(&other.busy))
}

/// What is left when nothing is busy.
fn latency(case: &Case<'_>) -> String {
    let under_way =
        if case.under_way == 1 { "1 request".into() } else { format!("{} requests", case.under_way) };
    // Not every program tells latencies.
    let median = if case.p50_us > 0.0 { format!(" p50 {} us", rounded(case.p50_us)) } else { String::new() };
    let comma = if median.is_empty() { "" } else { "," };
    format!("none found: latency bound{comma}{median} with {under_way} under way")
}

fn rounded(micros: f64) -> String {
    if micros < 10.0 { format!("{micros:.1}") } else { format!("{micros:.0}") }
}

fn network(watched: &[Watched<'_>]) -> Option<(Limit, String)> {
    let fullest = |load: &Load| {
        let used =
            load.interfaces.iter().filter_map(|one| Some((one.name.clone(), one.used()?, one.link_bits?)));
        used.max_by(|(_, one, _), (_, other, _)| one.total_cmp(other))
    };
    let most = most(watched, |load| fullest(load).map_or(0.0, |(_, part, _)| part))?;
    let (name, part, bits) = fullest(most.load).filter(|(_, part, _)| *part >= NETWORK_PART)?;
    let (whose, mean) = (most.whose(), most.mean());
    Some((Limit::Network, format!("network {name}{whose} {} of {}{mean}", percent(part), link(bits))))
}

fn devices(case: &Case<'_>) -> Option<(Limit, String)> {
    let most = most(case.watched, |load| busiest(load).map_or(0.0, |one| one.busy))?;
    let busy = busiest(most.load)
        .map(|one| format!("device {}{} {} busy{}", one.name, most.whose(), percent(one.busy), most.mean()));
    if let Some(part) = case.of_devices.filter(|part| *part >= CEILING_PART) {
        let beside = busy.map(|busy| format!(", {busy}")).unwrap_or_default();
        return Some((
            Limit::Device,
            format!("the devices: {} of what they did alone{beside}", percent(part)),
        ));
    }
    let is_busy = most.part >= DEVICE_PART && case.growth != Growth::Growing;
    busy.filter(|_| is_busy).map(|text| (Limit::Device, text))
}

fn processors(watched: &[Watched<'_>]) -> Option<(Limit, String)> {
    let all = most(watched, |load| load.busy)?;
    if all.part >= PROCESSORS_PART {
        let (whose, mean) = (all.whose(), all.mean());
        let text = format!("processors{whose}: all {} at {}{mean}", all.load.processors, percent(all.part));
        return Some((Limit::Processors, text));
    }
    let one = most(watched, |load| load.busiest).filter(|one| one.part >= ONE_PROCESSOR_PART)?;
    let (whose, mean) = (one.whose(), one.mean());
    let text = format!("processor{whose}: 1 of {} at {}{mean}", one.load.processors, percent(one.part));
    Some((Limit::OneProcessor, text))
}

#[cfg(test)]
mod tests {
    use super::super::InterfaceLoad;
    use super::*;

    fn calm() -> Load {
        Load { seconds: 2.0, processors: 2, busy: 0.4, busiest: 0.5, ..Load::default() }
    }

    fn disk(busy: f64) -> Vec<DeviceLoad> {
        vec![
            DeviceLoad { name: "sda".into(), busy: 0.1, read: 0.0, written: 0.0 },
            DeviceLoad { name: "nvme0n1".into(), busy, read: 0.0, written: 1e9 },
        ]
    }

    fn judged(load: &Load, change: impl Fn(&mut Case<'_>)) -> Bottleneck {
        of_all(&[Watched { agent: None, load }], change)
    }

    fn of_all(watched: &[Watched<'_>], change: impl Fn(&mut Case<'_>)) -> Bottleneck {
        let mut case = Case { watched, of_devices: None, growth: Growth::Level, p50_us: 81.4, under_way: 1 };
        change(&mut case);
        Bottleneck::of(&case)
    }

    fn of_agents(loads: &[Load]) -> Bottleneck {
        let watched: Vec<Watched<'_>> =
            loads.iter().enumerate().map(|(at, load)| Watched { agent: Some(at + 1), load }).collect();
        of_all(&watched, |_| ())
    }

    #[test]
    fn a_busy_disk_is_the_limit_once_the_rate_is_level() {
        let load = Load { devices: disk(0.98), ..calm() };
        let found = judged(&load, |_| ());
        assert_eq!((found.limit, found.evidence.as_str()), (Limit::Device, "device nvme0n1 98 % busy"));
        let found = judged(&load, |case| case.growth = Growth::Growing);
        assert_eq!(found.limit, Limit::Latency, "one request at a time keeps it busy, too");
        assert!(found.also[0].contains("still grew"));
        let found = judged(&load, |case| (case.growth, case.of_devices) = (Growth::Growing, Some(0.95)));
        assert_eq!(found.limit, Limit::Device);
        assert!(found.evidence.contains("95 % of what they did alone"), "{}", found.evidence);
    }

    #[test]
    fn a_full_link_is_the_limit_and_a_link_of_unknown_speed_is_none() {
        let eth0 = |link_bits| InterfaceLoad { name: "eth0".into(), received: 1e6, sent: 1.2e9, link_bits };
        let load = Load { interfaces: vec![eth0(Some(10_000_000_000))], ..calm() };
        let found = judged(&load, |_| ());
        assert_eq!(
            (found.limit, found.evidence.as_str()),
            (Limit::Network, "network eth0 96 % of 10 Gbit/s")
        );
        let load = Load { interfaces: vec![eth0(None)], ..calm() };
        assert_eq!(judged(&load, |_| ()).limit, Limit::Latency);
    }

    #[test]
    fn processors_are_the_limit_all_or_one_of_them() {
        let found = judged(&Load { busy: 0.97, busiest: 1.0, ..calm() }, |_| ());
        assert_eq!((found.limit, found.evidence.as_str()), (Limit::Processors, "processors: all 2 at 97 %"));
        let found = judged(&Load { busiest: 1.0, steal: 0.1, ..calm() }, |_| ());
        assert_eq!(
            (found.limit, found.evidence.as_str()),
            (Limit::OneProcessor, "processor: 1 of 2 at 100 %")
        );
        assert_eq!(found.also, ["the host took 10 % of processor time for others"]);
        let found = judged(&Load { busy: 0.97, busiest: 1.0, devices: disk(0.95), ..calm() }, |_| ());
        assert_eq!((found.limit, found.also.len()), (Limit::Device, 1));
    }

    #[test]
    fn without_anything_full_it_is_latency_or_a_disk_that_is_not_seen() {
        let found = judged(&calm(), |_| ());
        let text = "none found: latency bound, p50 81 us with 1 request under way";
        assert_eq!((found.limit, found.evidence.as_str()), (Limit::Latency, text));
        let untold = judged(&calm(), |case| case.p50_us = 0.0);
        assert_eq!(untold.evidence, "none found: latency bound with 1 request under way");
        let unseen = judged(&Load { iowait: 0.4, ..calm() }, |_| ());
        assert!(
            unseen.limit == Limit::Waiting && unseen.evidence.contains("no disk that is seen"),
            "{unseen:?}"
        );
        let seen = judged(&Load { iowait: 0.4, devices: disk(0.7), ..calm() }, |_| ());
        assert_eq!(seen.evidence, "waiting for device nvme0n1, 70 % busy: 40 % of processor time");
        assert_eq!(of_all(&[], |_| ()).limit, Limit::Unknown);
    }

    #[test]
    fn of_many_machines_the_most_loaded_is_named_with_the_mean() {
        let told = |loads: &[Load]| {
            let found = of_agents(loads);
            (found.limit, found.evidence, found.also)
        };
        let busy = |busy| Load { busy, busiest: busy, ..calm() };
        let (limit, text, _) = told(&[busy(0.5), busy(0.97), busy(0.66)]);
        assert_eq!(
            (limit, text.as_str()),
            (Limit::Processors, "processors of agent 2: all 2 at 97 %, mean of 3 agents 71 %")
        );
        let one = Load { busiest: 1.0, steal: 0.1, ..calm() };
        let (limit, text, also) = told(&[calm(), one]);
        assert_eq!(
            (limit, text.as_str()),
            (Limit::OneProcessor, "processor of agent 2: 1 of 2 at 100 %, mean of 2 agents 75 %")
        );
        assert_eq!(
            also,
            ["the host took 10 % of processor time of agent 2 for others, mean of 2 agents 5 %"]
        );
        let (_, text, _) = told(&[Load { devices: disk(0.98), ..calm() }, calm()]);
        assert_eq!(text, "device nvme0n1 of agent 1 98 % busy, mean of 2 agents 49 %");
        let link = |sent| {
            let link_bits = Some(10_000_000_000);
            let eth0 = InterfaceLoad { name: "eth0".into(), received: 0.0, sent, link_bits };
            Load { interfaces: vec![eth0], ..calm() }
        };
        let (_, text, _) = told(&[link(0.6e9), link(1.2e9)]);
        assert_eq!(text, "network eth0 of agent 2 96 % of 10 Gbit/s, mean of 2 agents 72 %");
        let (_, text, _) = told(&[calm(), Load { iowait: 0.4, devices: disk(0.7), ..calm() }]);
        assert_eq!(
            text,
            "waiting for device nvme0n1 of agent 2, 70 % busy: 40 % of processor time, mean of 2 agents 20 %"
        );
        let (_, text, _) = told(&[Load { iowait: 0.4, ..calm() }, calm()]);
        assert!(text.starts_with("40 % of processor time of agent 1 waits for a disk, mean of 2"), "{text}");
        assert_eq!(told(&[calm(), calm()]).0, Limit::Latency);
        let (_, text, _) = told(&[busy(0.97)]);
        assert_eq!(text, "processors of agent 1: all 2 at 97 %", "the mean of one says nothing");
    }
}
