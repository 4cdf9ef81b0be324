//! Goal: `ashlar lab` makes a file system of many servers on this machine whose traffic goes over links of its own, as fast as was asked for, and
//! takes all of it away again, whatever was killed when, and nothing else. Method: real labs, looked at from outside.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::browser::Browser;
use support::{Ended, ashlar, binary, can_mount, can_start, has_package, is_mounted};

/// A place for a lab, and what was seen of it.
struct Place {
    dir: tempfile::TempDir,
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.lab().join("lab.json").exists() {
            let _ = Command::new(binary()).args(["lab", "down", "--dir"]).arg(self.lab()).output();
        }
    }
}

impl Place {
    fn new() -> Place {
        Place { dir: tempfile::tempdir().unwrap() }
    }

    fn lab(&self) -> PathBuf {
        self.dir.path().join("lab")
    }

    /// `ashlar lab LINE` with this directory.
    #[track_caller]
    fn run(&self, line: &str) -> Ended {
        let dir = self.lab().display().to_string();
        let mut words = vec!["lab", "--dir", &dir];
        words.extend(line.split_whitespace());
        ashlar(&words)
    }

    fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.run("status --json").expect(0).stdout).unwrap()
    }

    fn nodes(&self) -> Vec<serde_json::Value> {
        self.status()["nodes"].as_array().unwrap().clone()
    }

    /// Bytes that a node's link has carried to it and from it.
    fn traffic(&self, node: &str) -> (u64, u64) {
        let table = self.run(&format!("exec {node} -- cat /proc/net/dev")).expect(0).stdout;
        let line = table.lines().find_map(|line| line.trim().strip_prefix("eth0:")).unwrap();
        let fields: Vec<u64> = line.split_whitespace().map(|field| field.parse().unwrap()).collect();
        (fields[0], fields[8])
    }
}

/// What is on this machine of the lab in `dir`: processes, mounts and name spaces that have its id.
fn what_is_left(dir: &Path, id: Option<&str>) -> Vec<String> {
    let mut left = Vec::new();
    let dir = dir.display().to_string();
    for entry in fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(&dir) {
            left.push(line);
        }
    }
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    left.extend(table.lines().filter(|line| line.contains(&dir)).map(str::to_owned));
    if let (Some(id), Ok(spaces)) = (id, fs::read_dir("/run/netns")) {
        let names = spaces.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        left.extend(names.filter(|name| name.contains(id)));
    }
    left
}

#[track_caller]
fn can_lab(test: &str) -> bool {
    has_package(test, "iproute2", can_start("ip", "-V") && can_start("tc", "-V")) && can_mount(test)
}

fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| ((at * 31 + seed * 7 + at / 251) % 253) as u8).collect()
}

#[test]
fn traffic_of_two_clients_goes_over_links_as_fast_as_was_asked_for() {
    if !can_lab("traffic of a lab") {
        return;
    }
    let place = Place::new();
    place.run("up --storage 2 --clients 2 --link-mbit 160").expect(0);
    let (one, two) = (place.lab().join("client1"), place.lab().join("client2"));
    let nodes = place.nodes();
    assert_eq!(nodes.len(), 6);
    for node in &nodes {
        assert!(node["pid"].as_i64().is_some_and(|pid| pid > 0), "{node}");
        assert!(node["role"] != "client" || node["mounted"] == true, "{node}");
    }
    let (data, before) = (pattern(1, 24 << 20), place.traffic("client1"));
    let begun = Instant::now();
    fs::write(one.join("file"), &data).unwrap();
    fs::File::open(one.join("file")).unwrap().sync_all().unwrap();
    let took = begun.elapsed();
    // 24 MiB at 20 MB/s; what a bucket of tbf holds goes at once.
    assert!(took > Duration::from_millis(1100), "{took:?}");
    assert!(fs::read(two.join("file")).unwrap() == data);
    let sent = place.traffic("client1").1 - before.1;
    let (received, stored) =
        (place.traffic("client2").0, place.traffic("storage1").0 + place.traffic("storage2").0);
    for bytes in [sent, received, stored] {
        assert!(
            (24 << 20..30 << 20).contains(&bytes),
            "client1 sent {sent}, client2 got {received}, servers got {stored}"
        );
    }
    fs::write(two.join("back"), b"from two").unwrap();
    assert_eq!(fs::read(one.join("back")).unwrap(), b"from two");
    // Commands are in the node's network, with this machine's files.
    let address = place.run("exec storage2 -- ip -4 -o address show dev eth0").expect(0).stdout;
    let expected =
        nodes.iter().find(|node| node["name"] == "storage2").unwrap()["address"].as_str().unwrap().to_owned();
    assert!(address.contains(&format!("{expected}/24")), "{address}");
    place.run(&format!("exec client1 -- cat {}", one.join("back").display())).expect(0);
    assert_eq!(place.run("exec client1 -- false").code, Some(1));

    let id = place.status()["id"].as_str().unwrap().to_owned();
    place.run("down").expect(0);
    assert!(!place.lab().exists());
    assert_eq!(what_is_left(&place.lab(), Some(&id)), Vec::<String>::new());
}

#[test]
fn a_lab_has_managers_an_etcd_and_a_console_that_outlive_one_of_each() {
    let test = "a lab with an etcd";
    if !can_lab(test) || !has_package(test, "etcd-server", can_start("etcd", "--version")) {
        return;
    }
    let place = Place::new();
    let said = place.run("up --etcd --console 0 --managers 4 --storage 1 --clients 1").expect(0).stdout;
    let nodes = place.nodes();
    let names: Vec<&str> = nodes.iter().map(|node| node["name"].as_str().unwrap()).collect();
    let managers = ["etcd1", "manager", "manager2", "etcd2", "manager3", "etcd3", "manager4"];
    assert_eq!(names, [&managers[..], &["storage1", "meta1", "client1", "console", "gateway"]].concat());
    assert!(nodes.iter().all(|node| node["pid"].is_i64()), "{nodes:?}");
    let (url, dir) = (place.status()["console"].as_str().unwrap().to_owned(), place.lab());
    assert!(said.contains(&url) && place.run("status").expect(0).stdout.contains(&url), "{said}");
    let address = url.strip_prefix("https://").unwrap();

    // Three members count, one beside each of three managers, and the state is with them.
    let list = format!(
        "exec manager3 -- {} etcd list --json --state {}/data/manager3",
        binary().display(),
        dir.display()
    );
    let members: Vec<serde_json::Value> = serde_json::from_str(&place.run(&list).expect(0).stdout).unwrap();
    assert_eq!(members.len(), 3);
    assert!(members.iter().all(|member| member["standing"] == "counts"), "{members:?}");
    // The etcd that was asked for, where one was.
    if let Some(asked) = std::env::var_os("ASHLAR_ETCD") {
        let member = nodes.iter().find(|node| node["name"] == "etcd1").unwrap();
        let program = fs::read_link(format!("/proc/{}/exe", member["pid"])).unwrap();
        assert_eq!(program, Path::new(&asked).canonicalize().unwrap());
    }
    for name in ["manager", "etcd1"] {
        let process = nodes.iter().find(|node| node["name"] == name).unwrap()["pid"].as_i64().unwrap();
        // SAFETY: kill takes no pointer; the process is one of the lab.
        unsafe { libc::kill(process as i32, libc::SIGKILL) };
    }
    // An administrator on the machine of another manager changes something, which wants a manager and etcd.
    let token = format!(
        "exec manager4 -- {} token --role client --identity {}/identity/manager4",
        binary().display(),
        dir.display()
    );
    assert!(!place.run(&token).expect(0).stdout.trim().is_empty());
    fs::write(dir.join("client1/file"), b"still served").unwrap();

    // A browser in this machine's own network gets to the console, and is let in by a link.
    let identity = dir.join("identity/console").display().to_string();
    let link = ashlar(&["console", "login", "--identity", &identity]).expect(0).stdout;
    let code = link.trim().strip_prefix(&format!("{url}/login#")).unwrap().to_owned();
    let mut browser = Browser::new(address, &dir.join("identity/console/certificate.pem"));
    assert_eq!(browser.get("/api/v1/nodes").status, 401);
    assert_eq!(browser.log_in(&code).status, 303);
    assert!(browser.api("nodes").to_string().contains("manager4"));
    // A second lab cannot have that port.
    let (other, port) = (Place::new(), address.rsplit(':').next().unwrap());
    other.run(&format!("up --console {port}")).refused(&[port, "--console PORT"]);
    assert!(!other.lab().exists());

    let id = place.status()["id"].as_str().unwrap().to_owned();
    place.run("down").expect(0);
    assert_eq!(what_is_left(&dir, Some(&id)), Vec::<String>::new());
    assert!(std::net::TcpListener::bind(address).is_ok(), "nobody listens there any more");
}

#[test]
fn down_removes_all_after_everything_was_killed_and_nothing_of_another_lab() {
    if !can_lab("a lab that was killed") {
        return;
    }
    let (killed, other) = (Place::new(), Place::new());
    killed.run("up --storage 2 --clients 2").expect(0);
    other.run("up --storage 1 --clients 1").expect(0);
    fs::write(other.lab().join("client1/file"), b"still there").unwrap();
    fs::write(killed.lab().join("client1/file"), pattern(1, 3 << 20)).unwrap();
    // Somebody who has a file of it open, and a command in its network that nobody has noted.
    let open = fs::File::open(killed.lab().join("client2/file")).unwrap();
    let dir = killed.lab();
    let mut command = Command::new(binary());
    command.args(["lab", "--dir"]).arg(&dir).args(["exec", "client1", "--", "sleep", "1000"]);
    let mut sleeper = command.spawn().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert!(sleeper.try_wait().unwrap().is_none(), "it runs");
    for node in killed.nodes() {
        // SAFETY: kill takes no pointer; the process is one of the lab.
        unsafe { libc::kill(node["pid"].as_i64().unwrap() as i32, libc::SIGKILL) };
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while killed.nodes().iter().any(|node| !node["pid"].is_null()) {
        assert!(Instant::now() < deadline, "{:?}", killed.nodes());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(killed.run("status").expect(0).stdout.contains("has ended"));
    assert!(is_mounted(&dir.join("client1")), "there is something to take away");
    let id = killed.status()["id"].as_str().unwrap().to_owned();
    killed.run("down").expect(0);
    let ended = sleeper.try_wait().unwrap();
    if ended.is_none() {
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }
    assert!(ended.is_some(), "it was ended");
    drop(open);
    assert!(!dir.exists());
    assert_eq!(what_is_left(&dir, Some(&id)), Vec::<String>::new());
    assert_eq!(fs::read(other.lab().join("client1/file")).unwrap(), b"still there");
    assert!(other.nodes().iter().all(|node| !node["pid"].is_null()));
    other.run("down").expect(0);
}

#[test]
fn down_removes_what_an_up_has_made_that_was_killed_at_any_moment() {
    if !can_lab("an up that was killed") {
        return;
    }
    let mut found_something = 0;
    for moment_ms in [20, 60, 120, 250, 400, 600, 900] {
        let place = Place::new();
        let mut command = Command::new(binary());
        command.args(["lab", "up", "--storage", "2", "--clients", "1", "--dir"]).arg(place.lab());
        let mut up = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(moment_ms));
        if place.lab().join("lab.json").exists() && up.try_wait().unwrap().is_none() {
            place.run("down").refused(&["still at work", &up.id().to_string()]);
        }
        up.kill().unwrap();
        up.wait().unwrap();
        if !place.lab().join("lab.json").exists() {
            continue;
        }
        found_something += 1;
        let id = place.status()["id"].as_str().unwrap().to_owned();
        place.run("up").refused(&["already", "ashlar lab down"]);
        place.run("down").expect(0);
        assert_eq!(what_is_left(&place.lab(), Some(&id)), Vec::<String>::new(), "after {moment_ms} ms");
        assert!(!place.lab().exists());
    }
    assert!(found_something >= 3, "killed in the middle {found_something} times");
}

#[test]
fn an_up_that_is_told_to_stop_takes_away_what_it_has_made() {
    if !can_lab("an up that is told to stop") {
        return;
    }
    let place = Place::new();
    let mut command = Command::new(binary());
    command.args(["lab", "up", "--storage", "20", "--clients", "1", "--dir"]).arg(place.lab());
    let up = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !place.lab().join("log/storage3.log").exists() {
        assert!(Instant::now() < deadline, "it has begun");
        std::thread::sleep(Duration::from_millis(5));
    }
    let id = place.status()["id"].as_str().unwrap().to_owned();
    // SAFETY: kill takes no pointer; the process is a child that was not waited for.
    unsafe { libc::kill(up.id() as i32, libc::SIGTERM) };
    let output = up.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && said.contains("told to stop"), "{said}");
    assert!(!place.lab().exists());
    assert_eq!(what_is_left(&place.lab(), Some(&id)), Vec::<String>::new());
}

#[test]
fn what_a_lab_cannot_be_is_refused_and_nothing_of_others_is_touched() {
    if !can_lab("labs that are refused") {
        return;
    }
    let place = Place::new();
    for line in ["down", "status", "exec client1 -- true"] {
        place.run(line).refused(&["there is no lab at", "ashlar lab up"]);
    }
    place.run("up --managers 3").refused(&["--etcd"]);
    place.run("up --managers 2 --etcd").refused(&["three managers or more", "--managers"]);
    assert!(!place.lab().exists(), "nothing was made");
    fs::create_dir(place.lab()).unwrap();
    fs::write(place.lab().join("mine"), b"mine").unwrap();
    place.run("up").refused(&["is not empty", "--dir"]);
    fs::remove_file(place.lab().join("mine")).unwrap();

    place.run("up --meta 2 --storage 1 --clients 1").expect(0);
    place.run("up").refused(&["already", "ashlar lab status"]);
    place.run("exec nobody -- true").refused(&["nobody", "client1"]);
    place.run("exec client1 -- no-such-program").refused(&["no-such-program"]);
    fs::write(place.lab().join("mine"), b"mine").unwrap();
    place.run("down").expect(0);
    let left: Vec<_> = fs::read_dir(place.lab()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["mine"], "the directory was there before, and what others have put there stays");
}
