//! Which addresses and which NUMA node a target is served by. Data that crosses between sockets of a machine costs a tenth and more, so a target's disk, its
//! network interface and the threads that carry its calls out should be of one node.

use anyhow::{Context, Result, bail};
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{Errno, TargetId};
use parking_lot::RwLock;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::CStr;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is said of a target on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataPlace {
    /// Its directory.
    pub dir: PathBuf,
    /// Addresses of the server at which it is reached best.
    pub listen: Vec<SocketAddr>,
    /// The NUMA node that serves it.
    pub numa: Option<u32>,
}

impl DataPlace {
    /// Reads `DIR`, or `DIR,listen=ADDRESS,numa=NODE`; `address` reads an address.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn parse(
        text: &str,
        address: impl Fn(&str) -> Result<SocketAddr, String>,
    ) -> Result<DataPlace, String> {
        let has_settings = [",listen=", ",numa="].iter().any(|setting| text.contains(setting));
        if !has_settings && (!text.contains(',') || Path::new(text).exists()) {
            return Ok(DataPlace { dir: text.into(), ..DataPlace::default() });
        }
        let mut words = text.split(',');
        let mut place = DataPlace { dir: words.next().unwrap_or_default().into(), ..DataPlace::default() };
        for word in words {
            match word.split_once('=') {
                Some(("listen", value)) => place.listen.push(address(value)?),
                Some(("numa", value)) if place.numa.is_none() => {
                    let number =
                        value.parse().map_err(|_| format!("`{value}` is no number of a NUMA node"))?;
                    place.numa = Some(number);
                }
                Some(("numa", _)) => {
                    return Err("a target is served by one NUMA node: numa= is there twice".into());
                }
                _ => {
                    return Err(format!(
                        "`{word}` is no setting of a target: there are listen=ADDRESS and numa=NODE (after a directory whose name has no comma)"
                    ));
                }
            }
        }
        if place.dir.as_os_str().is_empty() {
            return Err("which directory? DIR,listen=ADDRESS,numa=NODE".into());
        }
        Ok(place)
    }
}

/// The NUMA nodes of a machine, and where its disks and network interfaces are. Read from sysfs.
#[derive(Clone, Debug)]
pub struct Topology {
    sysfs: PathBuf,
    /// Processors of each node that has some.
    nodes: BTreeMap<u32, Vec<usize>>,
}

impl Topology {
    /// That of the machine whose sysfs is at `sysfs`. One that knows no NUMA has one node, 0.
    pub fn read(sysfs: &Path) -> Topology {
        let mut nodes = BTreeMap::new();
        let root = sysfs.join("devices/system/node");
        for number in numbers(&fs::read_to_string(root.join("online")).unwrap_or_default()) {
            let list = fs::read_to_string(root.join(format!("node{number}/cpulist"))).unwrap_or_default();
            let processors = numbers(&list);
            if !processors.is_empty() {
                nodes.insert(number as u32, processors);
            }
        }
        if nodes.is_empty() {
            nodes.insert(0, Vec::new());
        }
        Topology { sysfs: sysfs.to_owned(), nodes }
    }

    /// Whether it makes no difference which node serves.
    pub fn is_one_node(&self) -> bool {
        self.nodes.len() < 2
    }

    /// The node that is next to the disk under `dir`, if that is known.
    fn node_of_disk(&self, dir: &Path) -> Option<u32> {
        let device = fs::metadata(dir).ok()?.dev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        self.node_above(&self.sysfs.join(format!("dev/block/{major}:{minor}")))
    }

    /// The node that is next to the interface called `name`, if that is known.
    fn node_of_interface(&self, name: &str) -> Option<u32> {
        self.node_above(&self.sysfs.join("class/net").join(name))
    }

    /// What the nearest device above `path` says. Disks made of several, and virtual interfaces, have none.
    fn node_above(&self, path: &Path) -> Option<u32> {
        let path = path.canonicalize().ok()?;
        let said = path.ancestors().take_while(|above| above.starts_with(&self.sysfs)).find_map(|above| {
            let text = ["numa_node", "device/numa_node"]
                .iter()
                .find_map(|name| fs::read_to_string(above.join(name)).ok());
            text.and_then(|text| text.trim().parse::<i64>().ok())
        });
        // -1: the firmware does not say.
        said.and_then(|number| u32::try_from(number).ok()).filter(|number| self.nodes.contains_key(number))
    }
}

/// The numbers of a list as the kernel writes it, such as `0-3,8`.
fn numbers(text: &str) -> Vec<usize> {
    let mut all = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            // LIMIT: processors of a machine.
            all.extend(first..=last.min(first + 8192));
        }
    }
    all
}

/// The interfaces of this machine by their addresses.
pub fn interfaces() -> Vec<(IpAddr, String)> {
    let mut first = std::ptr::null_mut();
    // SAFETY: `first` is a place for the list, which is freed below.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Vec::new();
    }
    let (mut found, mut next) = (Vec::new(), first);
    while !next.is_null() {
        // SAFETY: an element of the list, which lives until it is freed.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        if entry.ifa_addr.is_null() || entry.ifa_name.is_null() {
            continue;
        }
        // SAFETY: every address has a family; by that its type is known.
        let address = match i32::from(unsafe { (*entry.ifa_addr).sa_family }) {
            libc::AF_INET => {
                // SAFETY: as above.
                let address = unsafe { &*entry.ifa_addr.cast::<libc::sockaddr_in>() };
                IpAddr::from(address.sin_addr.s_addr.to_ne_bytes())
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let address = unsafe { &*entry.ifa_addr.cast::<libc::sockaddr_in6>() };
                IpAddr::from(address.sin6_addr.s6_addr)
            }
            _ => continue,
        };
        // SAFETY: a name ends with a NUL.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        found.push((address, name));
    }
    // SAFETY: the list as it was given out; nothing of it is used any more.
    unsafe { libc::freeifaddrs(first) };
    found
}

/// By what a target is served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Affinity {
    /// Where it is reached best; nothing if that makes no difference.
    pub addresses: Vec<SocketAddr>,
    /// The NUMA node, if one is better than others.
    pub numa: Option<u32>,
}

impl Affinity {
    /// As `place` says, of a server that listens at `listen`; what it does not say follows from where the disk and the interfaces are.
    ///
    /// # Errors
    /// When it names an address or node that is not there; the text names those that are.
    pub fn of(
        place: &DataPlace,
        listen: &[SocketAddr],
        topology: &Topology,
        interfaces: &[(IpAddr, String)],
    ) -> Result<Affinity> {
        let dir = place.dir.display();
        if let Some(unknown) = place.listen.iter().find(|address| !listen.contains(address)) {
            let known: Vec<String> = listen.iter().map(SocketAddr::to_string).collect();
            bail!(
                "{dir}: listen={unknown} is not an address of this server; --listen names {}",
                known.join(", ")
            );
        }
        if let Some(unknown) = place.numa.filter(|number| !topology.nodes.contains_key(number)) {
            let known: Vec<String> = topology.nodes.keys().map(u32::to_string).collect();
            bail!("{dir}: there is no NUMA node {unknown} on this machine; there is {}", known.join(", "));
        }
        let node_at = |address: &SocketAddr| {
            let name = interfaces.iter().find(|(at, _)| *at == address.ip()).map(|(_, name)| name)?;
            topology.node_of_interface(name)
        };
        let of_disk = || topology.node_of_disk(&place.dir);
        let numa = place.numa.or_else(of_disk).or_else(|| place.listen.first().and_then(node_at));
        let mut addresses = place.listen.clone();
        if addresses.is_empty() && !topology.is_one_node() {
            addresses =
                listen.iter().filter(|address| numa.is_some() && node_at(address) == numa).copied().collect();
        }
        if addresses.len() == listen.len() {
            addresses.clear();
        }
        Ok(Affinity { addresses, numa })
    }
}

/// Calls of targets on processors of the NUMA node that serves each.
pub struct OnNode {
    inner: Arc<dyn StorageCalls>,
    /// Processors of each node; nothing where there is only one.
    processors: BTreeMap<u32, Vec<usize>>,
    /// Those that this process may use.
    all: Option<CpuSet>,
    // LIMIT: as targets of the server.
    nodes: RwLock<HashMap<TargetId, (u32, CpuSet)>>,
}

/// Where a thread runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Runs {
    /// It was put nowhere yet, and may have been started by a thread that was.
    Unknown,
    Anywhere,
    OnNode(u32),
}

thread_local! {
    static CURRENT: Cell<Runs> = const { Cell::new(Runs::Unknown) };
}

impl OnNode {
    /// `inner`, with each target on the node that [`OnNode::place`] names. Where there is only one node nothing is done.
    pub fn new(inner: Arc<dyn StorageCalls>, topology: &Topology) -> OnNode {
        let processors = if topology.is_one_node() { BTreeMap::new() } else { topology.nodes.clone() };
        // Before any thread is put on a node.
        let all = sched_getaffinity(None).ok();
        OnNode { inner, processors, all, nodes: RwLock::default() }
    }

    /// Has `target` served by the node `numa` from now on, or wherever its calls come, if it is `None`.
    pub fn place(&self, target: TargetId, numa: Option<u32>) {
        let known = numa.and_then(|numa| Some((numa, self.processors.get(&numa)?)));
        let mut nodes = self.nodes.write();
        match known {
            Some((numa, processors)) => {
                let mut set = CpuSet::new();
                processors.iter().for_each(|&processor| set.set(processor));
                nodes.insert(target, (numa, set));
            }
            None => {
                nodes.remove(&target);
            }
        }
    }

    /// Has this thread run where `target` is served. Costs a system call when it comes from another node.
    fn enter(&self, target: TargetId) {
        if self.processors.is_empty() {
            return;
        }
        let node = self.nodes.read().get(&target).copied();
        let anywhere = || self.all.map(|all| (Runs::Anywhere, all));
        let wanted = node.map(|(numa, processors)| (Runs::OnNode(numa), processors)).or_else(anywhere);
        let Some((wanted, processors)) = wanted.filter(|(wanted, _)| *wanted != CURRENT.get()) else {
            return;
        };
        match sched_setaffinity(None, &processors) {
            Ok(()) => CURRENT.set(wanted),
            // It is slower, and nothing else.
            Err(error) => tracing::debug!(%error, %target, "a thread cannot be kept on a NUMA node"),
        }
    }
}

impl StorageCalls for OnNode {
    fn call(&self, request: &StorageRequest, payload: Payload<'_>) -> Result<StorageReply, Errno> {
        self.enter(request.target());
        self.inner.call(request, payload)
    }
}

/// Says what was found out, for each target.
pub fn tell(found: &[(TargetId, PathBuf, Affinity)], topology: &Topology) {
    for (target, path, affinity) in found {
        let addresses: Vec<String> = affinity.addresses.iter().map(SocketAddr::to_string).collect();
        if !addresses.is_empty() {
            eprintln!("ashlar: {target} at {} is reached at {} first", path.display(), addresses.join(", "));
        }
        match (affinity.numa, topology.is_one_node()) {
            (Some(numa), false) => eprintln!("ashlar: {target} is served on NUMA node {numa}"),
            (Some(numa), true) => {
                tracing::info!(%target, numa, "this machine has one NUMA node, so it makes no difference which one serves");
            }
            (None, _) => {}
        }
    }
}

/// The place of `dir` among `places`, whose directories were found under other names perhaps.
///
/// # Errors
/// When it cannot be looked up.
pub fn place_of<'a>(places: &'a [DataPlace], target_dir: &Path) -> Result<&'a DataPlace> {
    let dir = target_dir.parent().unwrap_or(target_dir);
    let same = |place: &&DataPlace| {
        // One that is to be made is not there yet.
        place.dir == dir
            || place.dir.canonicalize().is_ok_and(|known| dir.canonicalize().is_ok_and(|dir| dir == known))
    };
    places.iter().find(same).with_context(|| format!("{} is not among the data directories", dir.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<SocketAddr, String> {
        text.parse().map_err(|_| format!("`{text}` is no address"))
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// A machine with two nodes: eth0 and the disk of `dir` are at node 1, eth1 is at node 0.
    fn machine(dir: &Path) -> (tempfile::TempDir, Topology) {
        let sysfs = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = sysfs.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("devices/system/node/online", "0-1\n");
        put("devices/system/node/node0/cpulist", "0\n");
        put("devices/system/node/node1/cpulist", "1\n");
        put("class/net/eth0/device/numa_node", "1\n");
        put("class/net/eth1/device/numa_node", "0\n");
        let device = fs::metadata(dir).unwrap().dev();
        put(&format!("dev/block/{}:{}/device/numa_node", libc::major(device), libc::minor(device)), "1\n");
        let root = sysfs.path().canonicalize().unwrap();
        (sysfs, Topology::read(&root))
    }

    #[test]
    fn settings_of_a_target_are_read_and_others_refused_by_name() {
        let place = DataPlace::parse("/d,listen=10.0.0.1:7402,listen=10.0.1.1:7402,numa=1", read).unwrap();
        assert_eq!(place.listen, [at("10.0.0.1:7402"), at("10.0.1.1:7402")]);
        assert_eq!((place.dir, place.numa), (PathBuf::from("/d"), Some(1)));
        assert_eq!(DataPlace::parse("/d", read).unwrap().dir, PathBuf::from("/d"));
        for (wrong, word) in [
            ("/d,numa=x", "`x`"),
            ("/d,numa=0,numa=1", "twice"),
            ("/d,nume=1", "`nume=1`"),
            ("/d,listen=x", "`x`"),
            (",numa=1", "which directory"),
        ] {
            let error = DataPlace::parse(wrong, read).unwrap_err();
            assert!(error.contains(word), "{wrong}: {error}");
        }
    }

    #[test]
    fn what_is_not_said_follows_from_where_disk_and_interfaces_are() {
        let dir = tempfile::tempdir().unwrap();
        let (_sysfs, topology) = machine(dir.path());
        let interfaces =
            vec![(at("10.0.0.1:1").ip(), "eth0".to_owned()), (at("10.0.1.1:1").ip(), "eth1".to_owned())];
        let listen = [at("10.0.0.1:1"), at("10.0.1.1:1")];
        let place = DataPlace { dir: dir.path().to_owned(), ..DataPlace::default() };
        let of = |place: &DataPlace| Affinity::of(place, &listen, &topology, &interfaces);
        assert_eq!(of(&place).unwrap(), Affinity { addresses: vec![listen[0]], numa: Some(1) });
        let said = DataPlace { numa: Some(0), ..place.clone() };
        assert_eq!(of(&said).unwrap(), Affinity { addresses: vec![listen[1]], numa: Some(0) });
        let said = DataPlace { listen: vec![listen[1]], ..place.clone() };
        assert_eq!(of(&said).unwrap(), Affinity { addresses: vec![listen[1]], numa: Some(1) });
        let error = of(&DataPlace { numa: Some(7), ..place.clone() }).unwrap_err().to_string();
        assert!(error.contains("NUMA node 7") && error.ends_with("there is 0, 1"), "{error}");
        let error = of(&DataPlace { listen: vec![at("10.0.9.9:1")], ..place }).unwrap_err().to_string();
        assert!(error.contains("10.0.9.9:1") && error.contains("10.0.0.1:1, 10.0.1.1:1"), "{error}");
    }

    #[test]
    fn this_machine_can_be_asked() {
        let topology = Topology::read(Path::new("/sys"));
        assert!(!topology.nodes.is_empty());
        assert!(interfaces().iter().any(|(address, name)| address.is_loopback() && name == "lo"));
        assert_eq!(numbers("0-2,5\n"), [0, 1, 2, 5]);
    }

    struct WhereAmI(std::sync::Mutex<Vec<CpuSet>>);

    impl StorageCalls for WhereAmI {
        fn call(&self, _: &StorageRequest, _: Payload<'_>) -> Result<StorageReply, Errno> {
            self.0.lock().unwrap().push(rustix::thread::sched_getaffinity(None).unwrap());
            Ok(StorageReply::Done)
        }
    }

    #[test]
    fn a_call_runs_on_a_processor_of_its_targets_node() {
        let processors = std::thread::available_parallelism().unwrap().get();
        if processors < 2 {
            return eprintln!("SKIPPED: one processor");
        }
        let dir = tempfile::tempdir().unwrap();
        let (_sysfs, topology) = machine(dir.path());
        let inner = Arc::new(WhereAmI(Default::default()));
        let calls = OnNode::new(inner.clone(), &topology);
        for (target, numa) in [(1, Some(1)), (2, Some(0)), (3, None)] {
            calls.place(TargetId(target), numa);
        }
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let ask = |target: u32| {
                    let request = StorageRequest::Sync {
                        target: TargetId(target),
                        chains: ashlar_types::OfChains::All,
                    };
                    calls.call(&request, Payload::None).unwrap();
                };
                [1, 2, 3, 1].into_iter().for_each(ask);
                // Threads that one of these starts begin on its processors.
                std::thread::scope(|more| drop(more.spawn(|| ask(3))));
            });
        });
        let seen = inner.0.lock().unwrap();
        let only = |set: &CpuSet, processor: usize| set.count() == 1 && set.is_set(processor);
        assert!(only(&seen[0], 1) && only(&seen[1], 0), "{seen:?}");
        let all = rustix::thread::sched_getaffinity(None).unwrap();
        assert!(seen[2] == all && only(&seen[3], 1), "a target without a node is served anywhere: {seen:?}");
        assert!(seen[4] == all, "also by a thread that comes from a node: {seen:?}");
    }
}
