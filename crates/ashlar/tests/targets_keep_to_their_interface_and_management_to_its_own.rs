//! Goal: on servers with two data links and a link for management, the content of a target goes over the link that was named for it, over the other one when that
//! is taken down, without an error; administrators use the management link alone, which no client can reach and no content crosses.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::cluster::{Role, start};
use support::{PATIENCE, binary, can_mount};

/// Networks of a server, a client and an administrator: `a` and `b` between server and client, `m` between server and administrator.
struct Networks {
    number: u32,
}

impl Drop for Networks {
    fn drop(&mut self) {
        for who in ["s", "c", "m"] {
            let _ = Command::new("ip").args(["netns", "del", &self.name(who)]).status();
        }
    }
}

#[track_caller]
fn ip(line: &str) {
    let output = Command::new("ip").args(line.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Networks {
    fn make() -> Networks {
        let networks = Networks { number: std::process::id() % 60_000 };
        for who in ["s", "c", "m"] {
            ip(&format!("netns add {}", networks.name(who)));
            ip(&format!("-n {} link set lo up", networks.name(who)));
        }
        let server = networks.name("s");
        for (link, other, net) in [("eth-a", "c", 1), ("eth-b", "c", 2), ("eth-m", "m", 3)] {
            let other = networks.name(other);
            ip(&format!("-n {server} link add name {link} type veth peer name {link} netns {other}"));
            for (who, host) in [(&server, 1), (&other, 2)] {
                ip(&format!("-n {who} addr add 10.77.{net}.{host}/24 dev {link}"));
                ip(&format!("-n {who} link set {link} up"));
            }
        }
        networks
    }

    fn name(&self, who: &str) -> String {
        format!("ashlar-{}-{who}", self.number)
    }

    /// `ashlar` in the network of `who`.
    fn ashlar(&self, who: &str, args: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name(who))).arg(binary()).args(args);
        command
    }

    /// What a command in the network of `who` printed, after it ended well.
    #[track_caller]
    fn finish(&self, who: &str, args: &[&str]) -> String {
        let output = self.ashlar(who, args).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {error}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Bytes that the server has received over `link`.
    fn received(&self, link: &str) -> u64 {
        let output = Command::new("ip")
            .args(["-n", &self.name("s"), "-j", "-s", "link", "show", link])
            .output()
            .unwrap();
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        shown[0]["stats64"]["rx"]["bytes"].as_u64().unwrap()
    }
}

struct Site {
    networks: Networks,
    dir: tempfile::TempDir,
    manager: Role,
    meta: Role,
    storage: Role,
    mount: Role,
}

impl Drop for Site {
    fn drop(&mut self) {
        if std::thread::panicking() {
            [&self.manager, &self.meta, &self.storage, &self.mount]
                .iter()
                .for_each(|role| eprintln!("{}", role.text()));
        }
        self.mount.kill();
        let _ = Command::new("umount").arg("-l").arg(self.path("mnt")).status();
    }
}

const BYTES: usize = 24 << 20;

impl Site {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn start() -> Site {
        let (networks, dir) = (Networks::make(), tempfile::tempdir().unwrap());
        let path = |name: &str| dir.path().join(name).display().to_string();
        let (first, state) = (path("first"), path("state"));
        let init = ["init", "--name", "first", "--listen", "10.77.1.1", "--management", "10.77.3.1"];
        networks.finish("s", &[&init[..], &["--state", &state, "--identity", &first]].concat());
        let role = |who: &str, name: &str, args: &[&str], ready: &str| {
            start(dir.path(), name, &mut networks.ashlar(who, args), ready)
        };
        let manager = role("s", "manager", &["manager", "--state", &state, "--identity", &first], "serves");
        for (kind, name, who) in [("meta", "mds", "s"), ("storage", "oss", "s"), ("client", "c", "c")] {
            // By the management network, where an administrator has nothing else.
            let token = ["token", "--role", kind, "--squash", "none", "--identity", &first];
            let token = networks.finish("m", &token);
            networks.finish(who, &["join", &token, "--name", name, "--identity", &path(name)]);
        }
        for name in ["d0", "d1", "mnt"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let (place, own) = (path("meta"), path("mds"));
        let meta = ["meta", "--meta", &place, "--listen", "10.77.1.1", "--listen", "10.77.2.1"];
        let meta = [&meta[..], &["--management", "10.77.3.1", "--identity", &own]].concat();
        let meta = role("s", "mds", &meta, "serves");
        let storage = start_storage(&networks, dir.path(), "10.77.1.1");
        let mount = ["mount", &path("mnt"), "--identity", &path("c"), "--error-after", "60"];
        let mount = role("c", "c", &mount, "mounted");
        Site { networks, dir, manager, meta, storage, mount }
    }

    /// How much came in over links a, b and m while `work` was done.
    fn over_links(&self, work: impl FnOnce(&Path)) -> [u64; 3] {
        let before = ["eth-a", "eth-b", "eth-m"].map(|link| self.networks.received(link));
        work(&self.path("mnt"));
        let after = ["eth-a", "eth-b", "eth-m"].map(|link| self.networks.received(link));
        std::array::from_fn(|at| after[at] - before[at])
    }
}

/// Both targets are reached best at `address`.
fn start_storage(networks: &Networks, dir: &Path, address: &str) -> Role {
    let path = |name: &str| dir.join(name).display().to_string();
    let data = ["d0", "d1"].map(|name| format!("{},listen={address},numa=0", path(name)));
    let args =
        ["storage", "--data", &data[0], "--data", &data[1], "--listen", "10.77.1.1", "--listen", "10.77.2.1"];
    let own = path("oss");
    let args = [&args[..], &["--management", "10.77.3.1", "--identity", &own]].concat();
    start(dir, "oss", &mut networks.ashlar("s", &args), "serves")
}

fn write(path: &Path) {
    fs::write(path, vec![0xA5; BYTES]).unwrap();
    fs::File::open(path).unwrap().sync_all().unwrap();
}

#[test]
fn content_goes_by_the_link_of_its_target_and_by_the_other_when_that_is_down() {
    if !can_mount("two links") {
        return;
    }
    let mut site = Site::start();
    let [a, b, m] = site.over_links(|mnt| write(&mnt.join("one")));
    assert!(a > BYTES as u64 && b < 1 << 20, "both targets at a: {a} over a, {b} over b");
    assert!(m < 1 << 20, "content crosses the management network: {m}");
    site.storage.stop();
    site.storage = start_storage(&site.networks, site.dir.path(), "10.77.2.1");
    let [a, b, m] = site.over_links(|mnt| write(&mnt.join("two")));
    assert!(b > BYTES as u64 && a < 1 << 20, "both targets at b: {a} over a, {b} over b");
    assert!(m < 1 << 20, "content crosses the management network: {m}");
    // What an administrator does crosses the management network, and he reaches nothing else.
    let [.., m] = site.over_links(|_| {
        let first = site.path("first").display().to_string();
        let listed = site.networks.finish("m", &["node", "list", "--identity", &first]);
        assert!(listed.contains("oss"), "{listed}");
        let sessions = site.networks.finish("m", &["session", "list", "--json", "--identity", &first]);
        assert!(sessions.contains("\"id\""), "{sessions}");
        site.networks.finish("m", &["target", "list", "--identity", &first]);
    });
    assert!(m > 1000, "{m}");
    // The link of both targets is taken away in the middle of a write.
    let [a, ..] = site.over_links(|mnt| {
        let path = mnt.join("three");
        let is_down = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let writing = threads.spawn(|| {
                // One after the other, and one at last that begins without the link.
                loop {
                    let is_last = is_down.load(SeqCst);
                    write(&path);
                    if is_last {
                        break;
                    }
                }
            });
            std::thread::sleep(Duration::from_millis(500));
            ip(&format!("-n {} link set eth-b down", site.networks.name("c")));
            is_down.store(true, SeqCst);
            let begun = Instant::now();
            writing.join().unwrap();
            assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
        });
        assert!(fs::read(&path).unwrap() == vec![0xA5; BYTES]);
        assert!(fs::read(mnt.join("one")).unwrap() == vec![0xA5; BYTES]);
    });
    assert!(a > BYTES as u64, "{a}");
    site.mount.stop();
    for role in [&mut site.meta, &mut site.storage, &mut site.manager] {
        role.stop();
    }
}

#[test]
fn an_address_or_numa_node_that_is_not_there_is_refused_by_name() {
    if !can_mount("bad affinity") {
        return;
    }
    let lab = support::cluster::Lab::start(1, 0);
    fs::create_dir(lab.path("new")).unwrap();
    let new = lab.path("new").display().to_string();
    for (setting, words) in [
        ("listen=127.0.0.9:1", &["127.0.0.9:1", "--listen names 127.0.0.1:"][..]),
        ("numa=4711", &["NUMA node 4711", "there is 0"][..]),
        ("nume=1", &["`nume=1`", "listen=ADDRESS"][..]),
        ("numa=x", &["`x`"][..]),
    ] {
        let line = format!(
            "storage --data {new},{setting} --listen {} --identity @oss0",
            support::cluster::Lab::free_address()
        );
        let ended = lab.ashlar(&line);
        assert!(ended.code != Some(0), "{}", ended.all());
        words.iter().for_each(|word| assert!(ended.stderr.contains(word), "{setting}: {}", ended.all()));
        assert!(!lab.path("new/target").exists(), "nothing is made before it is right");
    }
}
