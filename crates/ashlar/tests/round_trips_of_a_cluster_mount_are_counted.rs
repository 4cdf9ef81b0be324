//! Goal: what programs do on a mount of a cluster costs the calls to metadata and storage that `docs/performance.md` says, counted by the mount process
//! itself, and with several metadata servers by them. A change that makes one call more, or one less, is seen here.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use support::can_mount;
use support::cluster::{Lab, Role};
use support::counts::Counts;

/// Chunks of a new file.
const CHUNK_BYTES: usize = 1 << 20;
/// For how long the kernel may take to tell of the last close.
const SETTLED_MAX: Duration = Duration::from_secs(20);

type Calls = (&'static str, &'static str, u64);

/// The last close is told a moment later, with others, and with it the time of the first access since a change, as `relatime` has it. Nobody waits for that.
const LATER: Calls = ("meta", "closes", 1);
/// What the kernel asks of the file and of its directory then came with the answer.
const CREATED: [Calls; 2] = [("meta", "create", 1), LATER];
const READ_ONCE: [Calls; 2] = [("meta", "open", 1), LATER];
/// Files that are made or closed in a row, and how many calls their closes take at the most.
const IN_A_ROW: u64 = 100;
const CLOSES_MAX: u64 = IN_A_ROW / 4;

/// What takes longer than usual costs calls that are made after a time: one test after the other.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Mount {
    lab: Lab,
    shown: String,
    /// Metadata servers, if they are to count and not the mount.
    servers: Vec<String>,
}

impl Mount {
    fn start() -> Mount {
        let mut lab = Lab::start(2, 1);
        lab.mounts[0].stop();
        let shown = Lab::free_address();
        lab.mounts[0] = lab.run("c0", &format!("mount @m0 --identity @c0 --metrics {shown}"), "mounted");
        Mount { lab, shown, servers: Vec::new() }
    }

    /// With two metadata servers, which count: to the mount it is one call if a server tells it to ask another one.
    fn start_over_two() -> (Mount, Role) {
        let mut mount = Mount::start();
        let shown = [Lab::free_address(), Lab::free_address()];
        let lab = &mut mount.lab;
        lab.mounts[0].stop();
        lab.meta.stop();
        let (first, second) = (lab.address(1), Lab::free_address());
        let line = |number: &str, listen: String, shown: &str| {
            format!("meta --meta @meta{number} --listen {listen} --identity @mds{number} --metrics {shown}")
        };
        lab.meta = lab.run("mds", &line("", first.to_string(), &shown[0]), "serves");
        lab.join_meta("mds2");
        let role = lab.run("mds2", &line("2", second, &shown[1]), "serves");
        lab.wait_until_spread(2);
        mount.servers = shown.to_vec();
        mount.start_anew();
        (mount, role)
    }

    /// Forgets all that was cached, here and in the kernel.
    fn start_anew(&mut self) {
        self.lab.mounts[0].stop();
        let line = format!("mount @m0 --identity @c0 --metrics {}", self.shown);
        self.lab.mounts[0] = self.lab.run("c0", &line, "mounted");
    }

    /// What is counted, once nothing comes any more: a last close is told by the kernel when it gets round to it.
    fn settled(&self) -> Counts {
        let begun = Instant::now();
        let count = || match self.servers.is_empty() {
            true => Counts::of(&self.shown),
            false => Counts::served_by(&self.servers),
        };
        let mut before = count();
        loop {
            std::thread::sleep(Duration::from_millis(150));
            let now = count();
            if now == before {
                return now;
            }
            assert!(begun.elapsed() < SETTLED_MAX, "calls do not end");
            before = now;
        }
    }

    /// Checks what `work` costs: calls by service and kind.
    #[track_caller]
    fn costs<T>(&self, what: &str, wanted: &[Calls], work: impl FnOnce(&Path) -> T) -> T {
        // On the way to everything that is counted; it may have been forgotten by now.
        fs::metadata(self.lab.path("m0/dir")).unwrap();
        let before = self.settled();
        let answer = work(&self.lab.path("m0"));
        let made = self.settled().since(&before);
        let made: Vec<(&str, &str, u64)> =
            made.0.iter().map(|((to, kind), count)| (to.as_str(), kind.as_str(), *count)).collect();
        let mut wanted = wanted.to_vec();
        wanted.sort();
        assert_eq!(made, wanted, "{what}");
        answer
    }
}

#[test]
fn calls_per_operation_are_those_of_the_table() {
    if !can_mount("counted calls") {
        return;
    }
    let _alone = alone();
    let mut mount = Mount::start();
    let dir = mount.lab.path("m0/dir");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("small"), [7; 4096]).unwrap();
    fs::write(dir.join("large"), vec![9; 4 * CHUNK_BYTES]).unwrap();
    fs::create_dir(dir.join("thousand")).unwrap();
    for at in 0..1000 {
        File::create(dir.join(format!("thousand/f{at}"))).unwrap();
    }
    mount.start_anew();
    fs::metadata(&dir).unwrap();
    mount.costs("stat cold", &[("meta", "lookup", 1)], |m| fs::metadata(m.join("dir/small")).unwrap());
    mount.costs("stat under lease", &[], |m| fs::metadata(m.join("dir/small")).unwrap());
    mount.costs("stat of a name that is not there, cold", &[("meta", "lookup", 1)], |m| {
        fs::metadata(m.join("dir/none")).unwrap_err()
    });
    mount.costs("the same under lease", &[], |m| fs::metadata(m.join("dir/none")).unwrap_err());
    mount.costs("create + close, cold", &[&CREATED[..], &[("meta", "lookup", 1)]].concat(), |m| {
        drop(File::create(m.join("dir/empty1")).unwrap())
    });
    assert!(fs::metadata(dir.join("empty2")).is_err());
    mount.costs("create + close under a directory lease", &CREATED, |m| {
        drop(File::create(m.join("dir/empty2")).unwrap())
    });
    assert!(fs::metadata(dir.join("inline")).is_err());
    mount.costs(
        "create + write + close, inline",
        &[&CREATED[..], &[("meta", "write_inline", 1)]].concat(),
        |m| fs::write(m.join("dir/inline"), [1; 4096]).unwrap(),
    );
    fs::metadata(dir.join("small")).unwrap();
    mount.costs("open + read + close, inline", &READ_ONCE, |m| fs::read(m.join("dir/small")).unwrap());
    mount.costs(
        "open + read + close, 4 chunks, cold",
        &[&[("meta", "lookup", 1), ("storage", "read", 4)], &READ_ONCE[..]].concat(),
        |m| fs::read(m.join("dir/large")).unwrap(),
    );
    mount.costs("open + read + close, 4 chunks", &READ_ONCE, |m| fs::read(m.join("dir/large")).unwrap());
    mount.costs(
        "list with attributes",
        &[&[("meta", "lookup", 1), ("meta", "readdir", 2)], &READ_ONCE[..]].concat(),
        |m| {
            let all =
                fs::read_dir(m.join("dir/thousand")).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
            assert_eq!(all.count(), 1000);
        },
    );
    mount.costs("unlink", &[("meta", "unlink", 1)], |m| fs::remove_file(m.join("dir/small")).unwrap());
    in_a_row(&mount);
    let file = OpenOptions::new().write(true).create_new(true).open(dir.join("stream")).unwrap();
    file.write_all_at(&vec![1; CHUNK_BYTES], 0).unwrap();
    mount.costs("sequential write of 16 MiB by a sole opener", &[("storage", "write", 32)], |_| {
        (1..17).for_each(|at| file.write_all_at(&vec![1; CHUNK_BYTES], at * CHUNK_BYTES as u64).unwrap());
    });
    drop(file);
    let file = File::open(dir.join("stream")).unwrap();
    let mut piece = vec![0; CHUNK_BYTES];
    file.read_exact_at(&mut piece, 0).unwrap();
    mount.costs("sequential read of 15 MiB by a sole opener", &[("storage", "read", 15)], |_| {
        (2..17).for_each(|at| file.read_exact_at(&mut piece, at * CHUNK_BYTES as u64).unwrap());
    });
    drop(file);
    mount.lab.stop();
}

/// What many operations in one directory cost, of which each finds there what the one before has changed.
fn in_a_row(mount: &Mount) {
    let dir = mount.lab.path("m0/dir");
    let paths: Vec<_> = (0..IN_A_ROW).map(|at| dir.join(format!("row{at}"))).collect();
    // The kernel knows that there are none.
    paths.iter().for_each(|path| drop(fs::metadata(path).unwrap_err()));
    let before = mount.settled();
    let files: Vec<File> = paths.iter().map(|path| File::create(path).unwrap()).collect();
    let made = mount.settled().since(&before);
    assert_eq!((made.to("meta"), made.kind("meta", "create")), (IN_A_ROW, IN_A_ROW), "{made:?}");
    let before = mount.settled();
    drop(files);
    let made = mount.settled().since(&before);
    let closes = made.kind("meta", "closes");
    assert!(closes == made.to("meta") && (1..=CLOSES_MAX).contains(&closes), "{made:?}");
    let before = mount.settled();
    paths.iter().for_each(|path| fs::remove_file(path).unwrap());
    let made = mount.settled().since(&before);
    // Of the directory it is asked once more at the first: the kernel has forgotten it since the last create.
    let asked = made.kind("meta", "getattr");
    assert_eq!((made.kind("meta", "unlink"), made.to("meta") - asked), (IN_A_ROW, IN_A_ROW), "{made:?}");
    assert!(asked <= 1, "{made:?}");
}

#[test]
fn names_in_a_split_directory_cost_no_more_calls_than_in_another() {
    if !can_mount("counted calls") {
        return;
    }
    let _alone = alone();
    let mut mount = Mount::start();
    let dir = mount.lab.path("m0/dir");
    fs::create_dir_all(dir.join("split")).unwrap();
    mount.lab.ashlar("layout set @m0/dir/split --slices 4").expect(0);
    fs::write(dir.join("split/first"), "1").unwrap();
    mount.start_anew();
    // One look at it, and how it is split, and one look that is kept.
    let cold = [("meta", "lookup", 2), ("meta", "slices", 1), ("meta", "create", 1), LATER];
    let cold = [&cold[..], &[("meta", "getattr", 2)]].concat();
    mount.costs("the first name that a mount makes in it", &cold, |m| {
        drop(File::create(m.join("dir/split/f0")).unwrap())
    });
    for at in 1..6 {
        let path = dir.join(format!("split/f{at}"));
        // Each slice gives a lease of its own on the names that are not there.
        assert!(fs::metadata(&path).is_err());
        mount.costs("create + close", &CREATED, |_| drop(File::create(&path).unwrap()));
    }
    fs::metadata(dir.join("split")).unwrap();
    mount.costs("unlink", &[("meta", "unlink", 1)], |m| fs::remove_file(m.join("dir/split/f1")).unwrap());
    let stat = |m: &Path| fs::metadata(m.join("dir/split")).unwrap().len();
    assert_eq!(mount.costs("stat of it: the slice that has changed", &[("meta", "getattr", 1)], stat), 6);
    assert_eq!(mount.costs("stat under leases", &[], stat), 6);
}

#[test]
fn over_several_metadata_servers_only_what_is_elsewhere_costs_more() {
    if !can_mount("counted calls") {
        return;
    }
    let _alone = alone();
    let (mut mount, mut second) = Mount::start_over_two();
    let root = mount.lab.path("m0/dir");
    fs::create_dir(&root).unwrap();
    let nodes = mount.lab.nodes_of_shards();
    let node = |path: &Path| nodes[usize::try_from(fs::metadata(path).unwrap().ino() >> 48).unwrap()].clone();
    // Two directories at the server that `dir` is at, and one at the other.
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for at in 0..64 {
        let path = root.join(format!("d{at}"));
        fs::create_dir(&path).unwrap();
        let is_near = node(&path) == node(&root);
        (if is_near { &mut near } else { &mut far }).push(format!("dir/d{at}"));
    }
    let (near, other, far) = (near[0].as_str(), near[1].as_str(), far[0].as_str());
    for dir in [near, other, far] {
        for name in ["stays", "goes", "gone", "linked"] {
            fs::write(mount.lab.path("m0").join(dir).join(name), name).unwrap();
        }
    }
    mount.start_anew();
    // Of a directory in which it has changed a name the kernel asks once more.
    let known = |m: &Mount| {
        for dir in [near, other, far] {
            fs::metadata(m.lab.path("m0").join(dir)).unwrap();
        }
    };
    known(&mount);
    mount.costs("stat cold, at the other server", &[("meta", "lookup", 1)], |m| {
        fs::metadata(m.join(far).join("stays")).unwrap()
    });
    assert!(fs::metadata(mount.lab.path("m0").join(far).join("new")).is_err());
    known(&mount);
    mount.costs("create + close at the other server", &CREATED, |m| {
        drop(File::create(m.join(far).join("new")).unwrap())
    });
    known(&mount);
    mount.costs(
        "rename to another directory of the same server, cold",
        &[("meta", "lookup", 2), ("meta", "rename", 1)],
        |m| fs::rename(m.join(near).join("goes"), m.join(other).join("from-near")).unwrap(),
    );
    known(&mount);
    mount.costs(
        "rename to a directory of the other server, cold",
        &[("meta", "lookup", 2), ("meta", "rename", 1)],
        |m| fs::rename(m.join(near).join("gone"), m.join(far).join("from-near")).unwrap(),
    );
    known(&mount);
    mount.costs(
        "link in a directory of the other server, cold",
        &[("meta", "lookup", 2), ("meta", "link", 1)],
        |m| fs::hard_link(m.join(near).join("linked"), m.join(far).join("second")).unwrap(),
    );
    mount.start_anew();
    let elsewhere = [("meta", "lookup", 1), ("meta", "getattr", 1)];
    known(&mount);
    mount.costs("stat of a file that has moved between servers, cold", &elsewhere, |m| {
        fs::metadata(m.join(far).join("from-near")).unwrap()
    });
    known(&mount);
    mount.costs("the same under a lease", &[], |m| fs::metadata(m.join(far).join("from-near")).unwrap());
    known(&mount);
    mount.costs("unlink of a file that has moved between servers", &[("meta", "unlink", 1)], |m| {
        fs::remove_file(m.join(far).join("from-near")).unwrap()
    });
    mount.lab.mounts[0].stop();
    second.stop();
    mount.lab.stop();
}

/// The kernel's list of FUSE connections, for as long as it lives.
struct Connections(tempfile::TempDir);

impl Connections {
    fn mount() -> Connections {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount").args(["-t", "fusectl", "none"]).arg(dir.path()).status().unwrap();
        assert!(mounted.success());
        Connections(dir)
    }

    /// Requests that are not answered yet of the mount that `path` is on.
    fn waiting(&self, path: &Path) -> u64 {
        let connection = libc::minor(fs::metadata(path).unwrap().dev());
        let text = fs::read_to_string(self.0.path().join(format!("{connection}/waiting"))).unwrap();
        text.trim().parse().unwrap()
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        let gone = Command::new("umount").arg(self.0.path()).status();
        assert!(gone.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

#[test]
fn chunks_of_a_file_are_read_at_the_same_time() {
    if !can_mount("chunks read at the same time") {
        return;
    }
    let _alone = alone();
    let mut mount = Mount::start();
    let path = mount.lab.path("m0/large");
    let content: Vec<u8> = (0..4 * CHUNK_BYTES).map(|at| (at / 1000) as u8).collect();
    fs::write(&path, &content).unwrap();
    mount.start_anew();
    let connections = Connections::mount();
    let root = mount.lab.path("m0");
    fs::metadata(&root).unwrap();
    assert_eq!(connections.waiting(&root), 0);
    mount.lab.storage.iter().for_each(|server| server.pause());
    let reader = std::thread::spawn(move || fs::read(path).unwrap());
    let begun = Instant::now();
    while connections.waiting(&root) < 4 {
        assert!(begun.elapsed() < SETTLED_MAX, "{} requests are under way", connections.waiting(&root));
        std::thread::sleep(Duration::from_millis(10));
    }
    mount.lab.storage.iter().for_each(|server| server.resume());
    assert!(reader.join().unwrap() == content);
    drop(connections);
    mount.lab.stop();
}
