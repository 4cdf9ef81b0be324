//! What happened between two moments.

use super::Snapshot;
use super::snapshot::Ticks;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What an interface moved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InterfaceLoad {
    /// Its name.
    pub name: String,
    /// Bytes per second.
    pub received: f64,
    /// Bytes per second.
    pub sent: f64,
    /// What its link can do in each direction, bits per second; nothing where the driver does not tell.
    pub link_bits: Option<u64>,
}

impl InterfaceLoad {
    /// The part of the link (0 to 1) that the busier direction took.
    pub fn used(&self) -> Option<f64> {
        Some(self.received.max(self.sent) * 8.0 / self.link_bits? as f64)
    }
}

/// What a disk did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceLoad {
    /// Its name.
    pub name: String,
    /// Part of the time (0 to 1) in which it had something to do.
    pub busy: f64,
    /// Bytes per second.
    pub read: f64,
    /// Bytes per second.
    pub written: f64,
}

/// What this machine did, as parts (0 to 1) and bytes per second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// For so long.
    pub seconds: f64,
    /// Processors.
    pub processors: usize,
    /// All of them together: what was not idle.
    pub busy: f64,
    /// The one that was busiest.
    pub busiest: f64,
    /// Idle with something waiting for a disk, all together.
    pub iowait: f64,
    /// Taken by the host for other machines, all together.
    pub steal: f64,
    /// Interfaces that moved anything.
    pub interfaces: Vec<InterfaceLoad>,
    /// Disks that did anything.
    pub devices: Vec<DeviceLoad>,
}

impl Load {
    /// What happened from `start` to `end`, which is `time` later.
    pub fn between(start: &Snapshot, end: &Snapshot, time: Duration) -> Load {
        let seconds = time.as_secs_f64().max(1e-9);
        let pairs = || start.processors.iter().zip(&end.processors);
        let total = pairs().map(|(start, end)| since(start, end)).fold(Ticks::default(), sum);
        let busiest = pairs().map(|(start, end)| busy(&since(start, end))).fold(0.0, f64::max);
        let rate = |start: u64, end: u64| end.saturating_sub(start) as f64 / seconds;
        let interfaces = end.interfaces.iter().filter_map(|(name, end)| {
            let start = start.interfaces.get(name)?;
            let load = InterfaceLoad {
                name: name.clone(),
                received: rate(start.received_bytes, end.received_bytes),
                sent: rate(start.sent_bytes, end.sent_bytes),
                link_bits: end.link_bits,
            };
            (load.received + load.sent > 0.0).then_some(load)
        });
        let devices = end.disks.iter().filter_map(|(name, end)| {
            let start = start.disks.get(name)?;
            let load = DeviceLoad {
                name: name.clone(),
                busy: (rate(start.busy_ms, end.busy_ms) / 1000.0).min(1.0),
                read: rate(start.read_bytes, end.read_bytes),
                written: rate(start.written_bytes, end.written_bytes),
            };
            (load.busy > 0.0).then_some(load)
        });
        let part = |ticks: u64| ticks as f64 / all(&total).max(1) as f64;
        Load {
            seconds,
            processors: end.processors.len(),
            busy: busy(&total),
            busiest,
            iowait: part(total.iowait),
            steal: part(total.steal),
            interfaces: interfaces.collect(),
            devices: devices.collect(),
        }
    }

    /// The same over several phases, each counting by its time; nothing for none.
    pub fn mean(loads: &[&Load]) -> Option<Load> {
        let seconds: f64 = loads.iter().map(|load| load.seconds).sum();
        let processors = loads.first()?.processors;
        let part = |load: &Load| load.seconds / seconds;
        let mix = |of: fn(&Load) -> f64| loads.iter().map(|load| of(load) * part(load)).sum::<f64>();
        let mut all = Load {
            seconds,
            processors,
            busy: mix(|load| load.busy),
            busiest: mix(|load| load.busiest),
            iowait: mix(|load| load.iowait),
            steal: mix(|load| load.steal),
            ..Load::default()
        };
        for load in loads {
            for one in &load.interfaces {
                let part = part(load);
                let at =
                    all.interfaces.iter().position(|known| known.name == one.name).unwrap_or_else(|| {
                        all.interfaces.push(InterfaceLoad { received: 0.0, sent: 0.0, ..one.clone() });
                        all.interfaces.len() - 1
                    });
                all.interfaces[at].received += one.received * part;
                all.interfaces[at].sent += one.sent * part;
            }
            for one in &load.devices {
                let part = part(load);
                let at = all.devices.iter().position(|known| known.name == one.name).unwrap_or_else(|| {
                    all.devices.push(DeviceLoad {
                        name: one.name.clone(),
                        busy: 0.0,
                        read: 0.0,
                        written: 0.0,
                    });
                    all.devices.len() - 1
                });
                all.devices[at].busy += one.busy * part;
                all.devices[at].read += one.read * part;
                all.devices[at].written += one.written * part;
            }
        }
        Some(all)
    }
}

fn since(start: &Ticks, end: &Ticks) -> Ticks {
    Ticks {
        busy: end.busy.saturating_sub(start.busy),
        idle: end.idle.saturating_sub(start.idle),
        // The kernel does not promise that this one only grows.
        iowait: end.iowait.saturating_sub(start.iowait),
        steal: end.steal.saturating_sub(start.steal),
    }
}

fn sum(one: Ticks, other: Ticks) -> Ticks {
    Ticks {
        busy: one.busy + other.busy,
        idle: one.idle + other.idle,
        iowait: one.iowait + other.iowait,
        steal: one.steal + other.steal,
    }
}

fn all(ticks: &Ticks) -> u64 {
    ticks.busy + ticks.idle + ticks.iowait + ticks.steal
}

/// Stolen time counts: the processor was wanted and not there.
fn busy(ticks: &Ticks) -> f64 {
    (ticks.busy + ticks.steal) as f64 / all(ticks).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::super::snapshot::tests::recorded;
    use super::*;

    fn later() -> Snapshot {
        let mut later = recorded();
        later.processors[0].busy += 190;
        later.processors[0].steal += 10;
        later.processors[1].idle += 150;
        later.processors[1].iowait += 50;
        if let Some(eth0) = later.interfaces.get_mut("eth0") {
            eth0.sent_bytes += 2_400_000_000;
        }
        if let Some(disk) = later.disks.get_mut("nvme0n1") {
            disk.busy_ms += 1960;
            disk.written_bytes += 200 << 20;
        }
        later
    }

    #[test]
    fn two_recorded_moments_tell_what_was_busy() {
        let load = Load::between(&recorded(), &later(), Duration::from_secs(2));
        assert_eq!((load.processors, load.busy, load.busiest), (2, 0.5, 1.0));
        assert_eq!((load.iowait, load.steal), (0.125, 0.025));
        let [eth0] = &load.interfaces[..] else { panic!("one") };
        assert!((eth0.used().unwrap() - 0.96).abs() < 1e-9, "{eth0:?}");
        let [disk] = &load.devices[..] else { panic!("one") };
        assert_eq!((disk.busy, disk.read, disk.written), (0.98, 0.0, f64::from(100 << 20)));
    }

    #[test]
    fn phases_count_by_their_time() {
        let busy = Load::between(&recorded(), &later(), Duration::from_secs(2));
        let calm = Load { seconds: 6.0, processors: 2, ..Load::default() };
        let mean = Load::mean(&[&calm, &busy]).unwrap();
        assert_eq!((mean.seconds, mean.busy, mean.devices[0].busy), (8.0, 0.125, 0.245));
        assert!(Load::mean(&[]).is_none());
    }
}
