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

use super::Load;
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

/// What is known of the point that is judged.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// What this machine did.
    pub load: Option<&'a Load>,
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
        let Some(load) = case.load else {
            let evidence = "not known: phases were too short to watch".to_owned();
            return Bottleneck { limit: Limit::Unknown, evidence, also: Vec::new() };
        };
        let mut found: Vec<(Limit, String)> = Vec::new();
        found.extend(network(load));
        found.extend(devices(load, case));
        found.extend(processors(load));
        if found.is_empty() && load.iowait >= WAITING_PART {
            found.push((Limit::Waiting, waiting(load)));
        }
        if found.is_empty() {
            let text = format!(
                "none found: latency bound, p50 {} us with {} under way",
                rounded(case.p50_us),
                if case.under_way == 1 { "1 request".into() } else { format!("{} requests", case.under_way) }
            );
            found.push((Limit::Latency, text));
        }
        let mut found = found.into_iter();
        let Some((limit, evidence)) = found.next() else { unreachable!("one is there at least") };
        let mut also: Vec<String> = found.map(|(_, text)| text).collect();
        if load.steal >= STEAL_PART {
            also.push(format!("the host took {} of processor time for others", percent(load.steal)));
        }
        if case.growth == Growth::Growing {
            also.push("the rate still grew with the last threads".into());
        }
        Bottleneck { limit, evidence, also }
    }
}

/// What waits for what: a disk that takes many requests at once need not be busy all the time to be waited for.
fn waiting(load: &Load) -> String {
    let part = percent(load.iowait);
    let busiest = load.devices.iter().max_by(|one, other| one.busy.total_cmp(&other.busy));
    match busiest.filter(|one| one.busy >= WAITED_FOR_PART) {
        Some(one) => {
            format!("waiting for device {}, {} busy: {part} of processor time", one.name, percent(one.busy))
        }
        None => {
            format!("{part} of processor time waits for a disk, and no disk that is seen from here is busy")
        }
    }
}

fn rounded(micros: f64) -> String {
    if micros < 10.0 { format!("{micros:.1}") } else { format!("{micros:.0}") }
}

fn network(load: &Load) -> Option<(Limit, String)> {
    let used = load.interfaces.iter().filter_map(|one| Some((one, one.used()?, one.link_bits?)));
    let (one, part, bits) = used.max_by(|(_, one, _), (_, other, _)| one.total_cmp(other))?;
    let text = || format!("network {} {} of {}", one.name, percent(part), link(bits));
    (part >= NETWORK_PART).then(|| (Limit::Network, text()))
}

fn devices(load: &Load, case: &Case<'_>) -> Option<(Limit, String)> {
    let busiest = load.devices.iter().max_by(|one, other| one.busy.total_cmp(&other.busy));
    let busy = busiest.map(|one| format!("device {} {} busy", one.name, percent(one.busy)));
    if let Some(part) = case.of_devices.filter(|part| *part >= CEILING_PART) {
        let beside = busy.map(|busy| format!(", {busy}")).unwrap_or_default();
        return Some((
            Limit::Device,
            format!("the devices: {} of what they did alone{beside}", percent(part)),
        ));
    }
    let is_busy = busiest.is_some_and(|one| one.busy >= DEVICE_PART);
    busy.filter(|_| is_busy && case.growth != Growth::Growing).map(|text| (Limit::Device, text))
}

fn processors(load: &Load) -> Option<(Limit, String)> {
    if load.busy >= PROCESSORS_PART {
        let text = format!("processors: all {} at {}", load.processors, percent(load.busy));
        return Some((Limit::Processors, text));
    }
    let is_full = load.busiest >= ONE_PROCESSOR_PART;
    is_full.then(|| {
        let text = format!("processor: 1 of {} at {}", load.processors, percent(load.busiest));
        (Limit::OneProcessor, text)
    })
}

#[cfg(test)]
mod tests {
    use super::super::{DeviceLoad, InterfaceLoad};
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
        let mut case =
            Case { load: Some(load), of_devices: None, growth: Growth::Level, p50_us: 81.4, under_way: 1 };
        change(&mut case);
        Bottleneck::of(&case)
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
        let unseen = judged(&Load { iowait: 0.4, ..calm() }, |_| ());
        assert!(
            unseen.limit == Limit::Waiting && unseen.evidence.contains("no disk that is seen"),
            "{unseen:?}"
        );
        let seen = judged(&Load { iowait: 0.4, devices: disk(0.7), ..calm() }, |_| ());
        assert_eq!(seen.evidence, "waiting for device nvme0n1, 70 % busy: 40 % of processor time");
        assert_eq!(judged(&calm(), |case| case.load = None).limit, Limit::Unknown);
    }
}
