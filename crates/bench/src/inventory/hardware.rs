//! Processors, memory, disks and network interfaces, from /proc and /sys.

use super::line_of;
use crate::{cache, memory};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its number.
    pub number: u32,
    /// Its processors.
    pub processors: usize,
}

/// A block device that is no partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// As `nvme0n1`.
    pub name: String,
    /// What its maker calls it; empty where nobody tells.
    pub model: String,
    /// Its size.
    pub bytes: u64,
    /// Whether it turns.
    pub is_rotational: bool,
    /// The order in which the kernel hands it requests.
    pub scheduler: String,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// As `eth0`.
    pub name: String,
    /// What its link can do, Mbit/s; nothing where the driver does not tell.
    pub megabits: Option<u64>,
    /// Largest packet, bytes.
    pub mtu: u64,
    /// The kernel's driver; empty for interfaces without hardware.
    pub driver: String,
}

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hardware {
    /// Model of the processor.
    pub model: String,
    /// Packages.
    pub sockets: usize,
    /// Cores of all of them.
    pub cores: usize,
    /// Processors that threads run on.
    pub processors: usize,
    /// Whether the processor says that it is a virtual machine's.
    pub is_virtual: bool,
    /// NUMA nodes with processors.
    pub nodes: Vec<Node>,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Disks.
    pub disks: Vec<Disk>,
    /// Network interfaces with a link of their own, as `has_link` tells; where none has one (in a container), all but the loopback.
    pub interfaces: Vec<Interface>,
}

impl Hardware {
    /// Looks at this machine.
    pub fn collect() -> Hardware {
        let mut found = processors(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default());
        let nodes = memory::nodes().unwrap_or_default();
        found.nodes = nodes
            .iter()
            .map(|node| Node { number: node.number, processors: node.processors.len() })
            .collect();
        found.memory_bytes = cache::memory_bytes().unwrap_or(0);
        found.disks = names("/sys/block").iter().filter_map(|name| disk(name)).collect();
        found.interfaces = interfaces(Path::new(NETWORKS));
        found
    }

    /// The machine in one line.
    pub fn line(&self) -> String {
        let gibibytes = self.memory_bytes as f64 / f64::from(1 << 30);
        format!("{} processors ({}), {gibibytes:.0} GiB", self.processors, self.model)
    }
}

/// Where the kernel shows network interfaces.
const NETWORKS: &str = "/sys/class/net";

fn names(folder: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// From /proc/cpuinfo, which has other words on other processors: what is not there counts as one package with one core per processor.
fn processors(text: &str) -> Hardware {
    let values = |key: &str| -> Vec<&str> {
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        pairs.filter(|(name, _)| name.trim() == key).map(|(_, value)| value.trim()).collect()
    };
    let processors = values("processor").len();
    let mut packages = values("physical id");
    packages.sort_unstable();
    packages.dedup();
    let of_package = values("cpu cores").first().and_then(|cores| cores.parse::<usize>().ok());
    let sockets = packages.len().max(1);
    let model = values("model name")
        .first()
        .or(values("Processor").first())
        .copied()
        .unwrap_or("not known")
        .to_owned();
    let is_virtual =
        values("flags").first().is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor"));
    Hardware {
        model,
        sockets,
        cores: of_package.map_or(processors, |cores| cores * sockets),
        processors,
        is_virtual,
        nodes: Vec::new(),
        memory_bytes: 0,
        disks: Vec::new(),
        interfaces: Vec::new(),
    }
}

fn disk(name: &str) -> Option<Disk> {
    let folder = Path::new("/sys/block").join(name);
    let sectors: u64 = line_of(folder.join("size"))?.parse().ok()?;
    let is_made_up = ["loop", "ram", "zram"].iter().any(|prefix| name.starts_with(prefix));
    if is_made_up || sectors == 0 {
        return None;
    }
    Some(Disk {
        name: name.to_owned(),
        model: line_of(folder.join("device/model")).unwrap_or_default(),
        bytes: sectors * 512,
        is_rotational: line_of(folder.join("queue/rotational")).as_deref() == Some("1"),
        scheduler: chosen(&line_of(folder.join("queue/scheduler")).unwrap_or_default()),
    })
}

/// The word in brackets, or all of it.
fn chosen(text: &str) -> String {
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or(text, |(word, _)| word).to_owned()
}

/// Whether the interface that the kernel shows in `folder` has a link with a speed: hardware, or several or a part of one (bond, VLAN). What containers
/// and virtual machines make (veth, bridges, tunnels) has none, is there by the thousand, and is called otherwise on every machine.
fn is_linked(folder: &Path) -> bool {
    let is_vlan = || {
        let text = fs::read_to_string(folder.join("uevent")).unwrap_or_default();
        text.lines().any(|line| line == "DEVTYPE=vlan")
    };
    folder.join("device").exists() || folder.join("bonding").exists() || is_vlan()
}

/// [`is_linked`] of the interface `name` of this machine.
pub(crate) fn has_link(name: &str) -> bool {
    is_linked(&Path::new(NETWORKS).join(name))
}

fn interfaces(networks: &Path) -> Vec<Interface> {
    let all: Vec<String> = names(networks).into_iter().filter(|name| name != "lo").collect();
    let linked: Vec<String> = all.iter().filter(|name| is_linked(&networks.join(name))).cloned().collect();
    let told = if linked.is_empty() { all } else { linked };
    told.iter().filter_map(|name| interface(networks, name)).collect()
}

fn interface(networks: &Path, name: &str) -> Option<Interface> {
    let folder = networks.join(name);
    let driver = fs::read_link(folder.join("device/driver")).ok();
    Some(Interface {
        name: name.to_owned(),
        // Drivers without a link tell one that they do not have: veth 10 Gbit/s, tun 10 Mbit/s.
        megabits: line_of(folder.join("speed"))
            .filter(|_| is_linked(&folder))
            .and_then(|text| text.parse().ok())
            .filter(|speed| *speed > 0),
        mtu: line_of(folder.join("mtu"))?.parse().ok()?,
        driver: driver.and_then(|path| Some(path.file_name()?.to_str()?.to_owned())).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_packages_with_two_threads_per_core_are_told_apart() {
        let one = |processor: u32, package: u32| {
            format!(
                "processor\t: {processor}\nmodel name\t: Example 9000\nphysical id\t: {package}\ncpu cores\t: 2\nflags\t\t: fpu hypervisor sse\n\n"
            )
        };
        let text: String = (0..8).map(|number| one(number, number / 4)).collect();
        let found = processors(&text);
        assert_eq!((found.sockets, found.cores, found.processors), (2, 4, 8));
        assert!(found.is_virtual && found.model == "Example 9000");
        let other = processors("processor\t: 0\nBogoMIPS\t: 50\n\nprocessor\t: 1\n");
        assert_eq!((other.sockets, other.cores, other.processors), (1, 2, 2));
    }

    #[test]
    fn what_containers_make_is_not_told_among_the_interfaces() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str, inside: &str, uevent: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.join(inside)).unwrap();
            for (file, text) in [("mtu", "1500\n"), ("speed", "10000\n"), ("uevent", uevent)] {
                fs::write(path.join(file), text).unwrap();
            }
        };
        let told = || {
            let all = interfaces(folder.path()).into_iter();
            all.map(|one| (one.name, one.megabits)).collect::<Vec<_>>()
        };
        make("lo", "statistics", "");
        make("veth12ab34c", "statistics", "INTERFACE=veth12ab34c\n");
        assert_eq!(told(), [("veth12ab34c".to_owned(), None)], "in a container there is nothing else");
        make("eth0", "device", "");
        make("bond0", "bonding", "DEVTYPE=bond\n");
        make("eth0.7", "statistics", "DEVTYPE=vlan\nINTERFACE=eth0.7\n");
        make("docker0", "bridge", "DEVTYPE=bridge\n");
        make("cni0", "bridge", "DEVTYPE=bridge\n");
        make("tun0", "statistics", "INTERFACE=tun0\n");
        let speed = Some(10_000);
        assert_eq!(told(), ["bond0", "eth0", "eth0.7"].map(|name| (name.to_owned(), speed)));
    }

    #[test]
    fn the_chosen_scheduler_is_the_one_in_brackets() {
        assert_eq!(chosen("mq-deadline kyber [none]"), "none");
        assert_eq!(chosen("none"), "none");
    }
}
