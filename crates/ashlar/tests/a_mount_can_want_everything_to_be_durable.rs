//! Goal: through a mount with `--durability sync` every change is durable before it is answered, whatever the directory says, with no more calls than in a directory that is `sync`; other mounts go on as before. Method:
//! a metadata server and a mount that count. That nothing of it is lost when the power is cut is in `the_power_of_all_servers_is_cut_at_once.rs`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use support::can_mount;
use support::cluster::{Lab, Role};
use support::counts::Counts;

/// Changes of a kind: more than the metadata server flushes by itself meanwhile, which is once in a second.
const TURNS: u64 = 40;

struct Site {
    lab: Lab,
    /// Where the metadata server and the mount that is looked at show what they count.
    meta: String,
    mount: String,
}

impl Site {
    fn start() -> Site {
        let mut lab = Lab::start(1, 1);
        let (meta, mount) = (Lab::free_address(), Lab::free_address());
        lab.mounts[0].stop();
        lab.meta.stop();
        let listen = lab.address(1);
        let line = format!("meta --meta @meta --listen {listen} --identity @mds --metrics {meta}");
        lab.meta = lab.run("mds", &line, "serves");
        Site { lab, meta, mount }
    }

    #[track_caller]
    fn mount(&mut self, more: &str) {
        self.lab.mounts[0].stop();
        let line = format!("mount @m0 --identity @c0 --metrics {} {more}", self.mount);
        self.lab.mounts[0] = self.lab.run("c0", &line, "mounted");
    }

    /// How often the log was made durable.
    fn flushes(&self) -> u64 {
        let mut stream = TcpStream::connect(&self.meta).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: ashlar\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let line = text.lines().find(|line| line.starts_with("ashlar_lane_flushes_total")).unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64
    }

    /// The calls of the mount, once nothing comes any more.
    fn settled(&self) -> Counts {
        let mut before = Counts::of(&self.mount);
        loop {
            std::thread::sleep(Duration::from_millis(200));
            let now = Counts::of(&self.mount);
            if now == before {
                return now;
            }
            before = now;
        }
    }

    /// Does something [`TURNS`] times; tells how often the log was made durable for each, and which calls were made for all of them.
    fn cost(&self, dir: &Dir, work: Work) -> (f64, Counts) {
        let (calls, before, begun) = (self.settled(), self.flushes(), Instant::now());
        (0..TURNS).for_each(|turn| work(dir, turn));
        let (took, made) = (begun.elapsed(), self.flushes() - before);
        // What it does by itself.
        let by_itself = took.as_secs() + 2;
        (made.saturating_sub(by_itself) as f64 / TURNS as f64, self.settled().since(&calls))
    }
}

/// A directory, and a file of chunks in it that is open.
struct Dir {
    path: PathBuf,
    large: File,
}

impl Dir {
    fn file(&self, kind: char, turn: u64) -> PathBuf {
        self.path.join(format!("{kind}{turn}"))
    }
}

fn create(dir: &Dir, turn: u64) {
    drop(File::create_new(dir.file('f', turn)).unwrap());
}

fn write_small(dir: &Dir, turn: u64) {
    let file = File::options().write(true).open(dir.file('f', turn)).unwrap();
    file.write_all_at(b"some of it", 0).unwrap();
}

fn rename(dir: &Dir, turn: u64) {
    fs::rename(dir.file('f', turn), dir.file('g', turn)).unwrap();
}

fn set_mode(dir: &Dir, turn: u64) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(dir.file('g', turn), fs::Permissions::from_mode(0o640)).unwrap();
}

fn remove(dir: &Dir, turn: u64) {
    fs::remove_file(dir.file('g', turn)).unwrap();
}

fn stat(dir: &Dir, turn: u64) {
    fs::metadata(dir.file('f', turn)).unwrap();
}

fn write_chunk(dir: &Dir, turn: u64) {
    dir.large.write_all_at(&[7; 8192], turn * 8192).unwrap();
}

type Work = fn(&Dir, u64);
type Wanted = (&'static str, Work, (f64, f64), &'static [&'static str]);

/// What is done, how often the log is made durable for it at the least, and at the most, and calls that a mount with `sync` makes for it beside those of another one.
const ALL: [Wanted; 7] = [
    ("create", create, (0.9, 1.2), &[]),
    ("stat", stat, (0.0, 0.2), &[]),
    ("write of a small file", write_small, (0.9, 2.2), &["sync"]),
    ("rename", rename, (0.9, 1.2), &[]),
    ("chmod", set_mode, (0.9, 1.2), &[]),
    ("remove", remove, (0.9, 1.2), &[]),
    ("write of chunks", write_chunk, (0.9, 2.2), &["sync", "commit_write"]),
];

#[test]
fn every_change_is_durable_at_once_and_costs_what_it_costs_in_a_directory_that_is_sync() {
    if !can_mount("a mount that is sync") {
        return;
    }
    let mut site = Site::start();
    let mut made = Vec::new();
    for (mount, durability) in [("", "async"), ("", "sync"), ("--durability sync", "async")] {
        site.mount(mount);
        let path = site.lab.path("m0/dir");
        fs::create_dir(&path).unwrap();
        site.lab.ashlar(&format!("layout set --durability {durability} @m0/dir")).expect(0);
        fs::write(path.join("large"), vec![1; 1 << 20]).unwrap();
        let large = File::options().write(true).open(path.join("large")).unwrap();
        // Nothing of a write but what each costs.
        large.write_all_at(b"the first", 0).unwrap();
        let dir = Dir { path, large };
        let is_sync = !(mount.is_empty() && durability == "async");
        let of_each = ALL.map(|(what, work, (least, most), _)| {
            let (flushes, calls) = site.cost(&dir, work);
            eprintln!("{durability}, mount `{mount}`: {what}: {flushes} flushes each, {calls:?}");
            let bounds = if is_sync { least..=most } else { 0.0..=0.2 };
            assert!(
                bounds.contains(&flushes),
                "{durability}, mount `{mount}`: {what}: {flushes} flushes each"
            );
            calls
        });
        made.push(of_each);
        drop(dir.large);
        fs::remove_dir_all(&dir.path).unwrap();
    }
    let of_kind = |calls: &Counts, kind: &str| calls.kind("meta", kind) + calls.kind("storage", kind);
    for (at, (what, .., more)) in ALL.iter().enumerate() {
        let [none, by_directory, by_mount] = [0, 1, 2].map(|turn| &made[turn][at]);
        for (service, kind) in by_mount.0.keys().chain(by_directory.0.keys()) {
            // Closes are told together, as many as there are by then, and attributes are asked for when the kernel thinks so.
            let is_of_time = kind == "closes" || kind == "getattr";
            if !is_of_time {
                let [by_directory, by_mount] =
                    [by_directory, by_mount].map(|calls| calls.kind(service, kind));
                assert_eq!(by_mount, by_directory, "{what}: {service} {kind}, by mount and by directory");
            }
            assert!(
                is_of_time
                    || more.contains(&kind.as_str())
                    || none.kind(service, kind) == by_mount.kind(service, kind),
                "{what}: {kind} is called because it is to be durable"
            );
        }
        assert!(more.iter().all(|kind| of_kind(by_mount, kind) >= TURNS), "{what}: {by_mount:?}");
    }
    let shown = site.lab.ashlar("mount show @m0 --json").expect(0).stdout;
    assert!(shown.contains("\"durability\": \"sync\""), "{shown}");
    site.lab.mounts.iter_mut().for_each(Role::stop);
    site.lab.stop();
}
