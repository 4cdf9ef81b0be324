//! The kernel's counters at one moment.

use crate::inventory::has_link;
use std::collections::BTreeMap;
use std::fs;

/// Time of a processor since the machine started, in the kernel's ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticks {
    /// It did something.
    pub busy: u64,
    /// It did nothing.
    pub idle: u64,
    /// It did nothing, and something waited for a disk.
    pub iowait: u64,
    /// It would have done something, but the host ran another machine.
    pub steal: u64,
}

/// What a disk has done since the machine started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Milliseconds with a request under way.
    pub busy_ms: u64,
}

/// Bytes of an interface, and what its link can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Received.
    pub received_bytes: u64,
    /// Sent.
    pub sent_bytes: u64,
    /// Bits per second; nothing where the driver does not tell.
    pub link_bits: Option<u64>,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// By number.
    pub processors: Vec<Ticks>,
    /// By name, without the loopback.
    pub interfaces: BTreeMap<String, Interface>,
    /// By name: whole disks, no partitions.
    pub disks: BTreeMap<String, Disk>,
}

/// Bytes of a sector in /proc/diskstats, whatever the disk's is.
const SECTOR_BYTES: u64 = 512;

impl Snapshot {
    /// Now. What cannot be read is empty: a measurement does not fail because nobody watched.
    pub fn take() -> Snapshot {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let is_disk = |name: &str| {
            // Names with a slash have an exclamation mark in sysfs.
            fs::exists(format!("/sys/block/{}", name.replace('/', "!"))).unwrap_or(false)
        };
        Snapshot {
            processors: processors(&read("/proc/stat")),
            interfaces: interfaces(&read("/proc/net/dev"), link_bits),
            disks: disks(&read("/proc/diskstats"), is_disk),
        }
    }

    /// Ticks of all processors in which something was done or waited for.
    pub fn active_ticks(&self) -> u64 {
        self.processors.iter().map(|one| one.busy + one.iowait + one.steal).sum()
    }
}

/// What the driver says of the link; -1 and an error are both "not known", and so is what drivers say that have none (veth, tun).
fn link_bits(name: &str) -> Option<u64> {
    if !has_link(name) {
        return None;
    }
    let text = fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?;
    let megabits: u64 = text.trim().parse().ok()?;
    (megabits > 0).then(|| megabits.saturating_mul(1_000_000))
}

/// The lines `cpuN` of /proc/stat.
pub fn processors(text: &str) -> Vec<Ticks> {
    let mut all = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let is_one =
            words.next().and_then(|word| word.strip_prefix("cpu")).is_some_and(|rest| !rest.is_empty());
        if !is_one {
            continue;
        }
        let times: Vec<u64> = words.map(|word| word.parse().unwrap_or(0)).collect();
        let at = |index: usize| times.get(index).copied().unwrap_or(0);
        // user, nice, system, idle, iowait, irq, softirq, steal; guest time is in user already.
        all.push(Ticks {
            busy: at(0) + at(1) + at(2) + at(5) + at(6),
            idle: at(3),
            iowait: at(4),
            steal: at(7),
        });
    }
    all
}

/// The lines of /proc/net/dev but the loopback's.
pub fn interfaces(text: &str, link_bits: impl Fn(&str) -> Option<u64>) -> BTreeMap<String, Interface> {
    let one = |line: &str| {
        let (name, counters) = line.split_once(':')?;
        let name = name.trim();
        let numbers: Vec<u64> = counters.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect();
        if name == "lo" {
            return None;
        }
        let (received_bytes, sent_bytes) = (*numbers.first()?, *numbers.get(8)?);
        Some((name.to_owned(), Interface { received_bytes, sent_bytes, link_bits: link_bits(name) }))
    };
    text.lines().filter_map(one).collect()
}

/// The lines of /proc/diskstats that are of whole disks. Loop and memory disks are none: what is behind them is counted elsewhere.
pub fn disks(text: &str, is_disk: impl Fn(&str) -> bool) -> BTreeMap<String, Disk> {
    let one = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let name = *words.get(2)?;
        let is_made_up = ["loop", "ram", "zram"].iter().any(|prefix| name.starts_with(prefix));
        if is_made_up || !is_disk(name) {
            return None;
        }
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
        let disk = Disk {
            read_bytes: number(5)?.saturating_mul(SECTOR_BYTES),
            written_bytes: number(9)?.saturating_mul(SECTOR_BYTES),
            busy_ms: number(12)?,
        };
        Some((name.to_owned(), disk))
    };
    text.lines().filter_map(one).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub const STAT: &str = "cpu  400 0 200 5000 300 0 100 50 10 0\ncpu0 300 0 150 2000 200 0 80 40 10 0\n\
        cpu1 100 0 50 3000 100 0 20 10 0 0\nintr 1 2 3\nctxt 99\n";
    pub const DEV: &str = "Inter-|   Receive                                                |  Transmit\n \
        face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
        lo: 500 5 0 0 0 0 0 0 500 5 0 0 0 0 0 0\n  \
        eth0:1000 10 0 0 0 0 0 0 2000 20 0 0 0 0 0 0\n";
    pub const DISKSTATS: &str = "   7       0 loop0 1 0 2 3 4 5 6 7 0 8 9\n \
        259       0 nvme0n1 100 0 2048 50 200 0 4096 80 0 130 130 0 0 0 0 0 0\n \
        259       1 nvme0n1p1 100 0 2048 50 200 0 4096 80 0 130 130 0 0 0 0 0 0\n";

    pub fn recorded() -> Snapshot {
        Snapshot {
            processors: processors(STAT),
            interfaces: interfaces(DEV, |name| (name == "eth0").then_some(10_000_000_000)),
            disks: disks(DISKSTATS, |name| name == "nvme0n1" || name == "loop0"),
        }
    }

    #[test]
    fn the_kernels_tables_are_read() {
        let seen = recorded();
        assert_eq!(seen.processors.len(), 2);
        assert_eq!(seen.processors[0], Ticks { busy: 530, idle: 2000, iowait: 200, steal: 40 });
        let eth0 = Interface { received_bytes: 1000, sent_bytes: 2000, link_bits: Some(10_000_000_000) };
        assert_eq!(seen.interfaces.into_iter().collect::<Vec<_>>(), [("eth0".to_owned(), eth0)]);
        let disk = Disk { read_bytes: 1 << 20, written_bytes: 2 << 20, busy_ms: 130 };
        assert_eq!(seen.disks.into_iter().collect::<Vec<_>>(), [("nvme0n1".to_owned(), disk)]);
    }

    #[test]
    fn tables_of_another_form_tell_nothing_and_do_no_harm() {
        assert!(processors("cpu\nnonsense\n").is_empty());
        assert_eq!(processors("cpu7 x y\n"), [Ticks::default()]);
        assert!(interfaces("eth0: 1 2\n", |_| None).is_empty());
        assert!(disks("1 2\n1 2 sda 3\n", |_| true).is_empty());
        assert!(!Snapshot::take().processors.is_empty());
    }
}
