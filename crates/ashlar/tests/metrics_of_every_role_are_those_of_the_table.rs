//! Goal: every role shows Prometheus exactly the metrics that `docs/metrics.md` lists for it, with types and labels as Prometheus wants them; and
//! what programs do is in the counters of the roles that had to do with it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use support::can_mount;
use support::cluster::{Lab, Role};

/// What a process shows.
#[track_caller]
fn fetch(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: ashlar\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    text.to_owned()
}

/// Metrics with their types, as `text` declares them; every sample belongs to the one declared before it.
#[track_caller]
fn declared(text: &str) -> BTreeMap<String, String> {
    let (mut all, mut current) = (BTreeMap::new(), String::new());
    for line in text.lines() {
        if let Some(line) = line.strip_prefix("# TYPE ") {
            let (name, kind) = line.split_once(' ').unwrap();
            current = name.to_owned();
            assert!(all.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} is declared twice");
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().unwrap();
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            assert!(name == current || base == Some(&current), "{line} is below {current}");
            assert!(line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
        }
    }
    all
}

/// What the table lists for a role.
#[track_caller]
fn listed(role: &str) -> BTreeMap<String, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let table = fs::read_to_string(path).unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| {
        let cells: Vec<&str> = row.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let is_shown = cells[2] == "all" || cells[2].split(", ").any(|shown| shown == role);
        is_shown.then(|| (cells[0].to_owned(), cells[1].to_owned()))
    })
    .collect()
}

/// The sum of the samples of a metric that have all of `labels`.
fn value(text: &str, name: &str, labels: &[&str]) -> f64 {
    let is_wanted = |line: &&str| {
        line.split(['{', ' ']).next() == Some(name) && labels.iter().all(|label| line.contains(label))
    };
    text.lines().filter(is_wanted).map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// Prometheus' own opinion, where it is installed.
fn ask_promtool(text: &str) {
    let asked = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = asked else { return eprintln!("promtool is not installed; not asked") };
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[track_caller]
fn compare(role: &str, text: &str) {
    assert_eq!(declared(text), listed(role), "left: what {role} shows; right: the table");
    assert!(text.contains(&format!("role=\"{role}\"")), "{text}");
    ask_promtool(text);
}

/// Every role of a lab anew, with metrics: manager, storage, meta, mount.
fn restart_with_metrics(lab: &mut Lab) -> [String; 4] {
    lab.stop();
    let shown = [(); 4].map(|()| Lab::free_address());
    let at = lab.addresses();
    lab.manager = lab.run(
        "manager",
        &format!("manager --state @state --identity @first --metrics {}", shown[0]),
        "serves",
    );
    let line = format!("storage --data @d0 --listen {} --identity @oss0 --metrics {}", at[2], shown[1]);
    lab.storage = vec![lab.run("oss0", &line, "serves")];
    let line = format!("meta --meta @meta --listen {} --identity @mds --metrics {}", at[1], shown[2]);
    lab.meta = lab.run("mds", &line, "serves");
    let line = format!("mount @m0 --identity @c0 --metrics {}", shown[3]);
    lab.mounts = vec![lab.run("c0", &line, "mounted")];
    shown
}

#[test]
fn roles_of_a_cluster_show_what_the_table_lists_and_count_what_happens() {
    if !can_mount("metrics of a cluster") {
        return;
    }
    let mut lab = Lab::start(1, 1);
    let shown = restart_with_metrics(&mut lab);
    let content = vec![7u8; 3 << 20];
    fs::write(lab.path("m0/file"), &content).unwrap();
    assert!(fs::File::open(lab.path("m0/file")).unwrap().sync_all().is_ok());
    assert!(fs::symlink_metadata(lab.path("m0/nothing")).is_err());
    let held = fs::File::create(lab.path("m0/held")).unwrap();
    // SAFETY: the descriptor is open for as long as the call takes.
    assert_eq!(unsafe { libc::flock(std::os::fd::AsRawFd::as_raw_fd(&held), libc::LOCK_EX) }, 0);
    let [manager, storage, meta, mount] = shown.map(|address| fetch(&address));
    compare("manager", &manager);
    compare("storage", &storage);
    compare("meta", &meta);
    compare("mount", &mount);
    let token = lab.ashlar("token --role console --identity @first").expect(0).stdout;
    lab.ashlar(&format!("join {} --name console --identity @console", token.trim())).expect(0);
    let shown = Lab::free_address();
    let line = format!("console --listen 127.0.0.1:0 --identity @console --metrics {shown}");
    let mut console = lab.run("console", &line, "serves");
    compare("console", &fetch(&shown));
    console.stop();
    assert_eq!(value(&manager, "ashlar_nodes", &[]), 4.0, "{manager}");
    assert_eq!(value(&manager, "ashlar_targets", &["online"]), 1.0, "{manager}");
    assert!(value(&manager, "ashlar_call_duration_seconds_count", &["kind=\"listen\""]) >= 2.0, "{manager}");
    assert_eq!(value(&storage, "ashlar_written_bytes_total", &["served"]), content.len() as f64, "{storage}");
    assert_eq!(value(&mount, "ashlar_written_bytes_total", &["sent"]), content.len() as f64, "{mount}");
    for (name, expected) in
        [("ashlar_client_written_bytes_total", content.len() as f64), ("ashlar_client_read_bytes_total", 0.0)]
    {
        assert_eq!(value(&storage, name, &["node=\"c0\""]), expected, "{storage}");
    }
    assert!(value(&meta, "ashlar_client_calls_total", &["node=\"c0\""]) >= 4.0, "{meta}");
    assert_eq!(value(&manager, "ashlar_state_is_reached", &["store=\"file\""]), 1.0, "{manager}");
    assert!(value(&storage, "ashlar_target_free_bytes", &["target=\"1\""]) > 1e6, "{storage}");
    let creates = ["side=\"served\"", "service=\"meta\"", "kind=\"create\""];
    assert_eq!(value(&meta, "ashlar_call_duration_seconds_count", &creates), 2.0, "{meta}");
    assert_eq!(value(&meta, "ashlar_sessions", &[]), 1.0, "{meta}");
    assert_eq!(value(&meta, "ashlar_locks_held", &[]), 1.0, "{meta}");
    assert!(value(&meta, "ashlar_open_inodes", &[]) >= 1.0, "{meta}");
    assert!(value(&meta, "ashlar_leased_inodes", &[]) >= 1.0, "{meta}");
    assert!(value(&meta, "ashlar_lane_flushes_total", &[]) >= 1.0, "{meta}");
    let epochs = [&manager, &storage, &meta, &mount].map(|text| value(text, "ashlar_map_epoch", &[]));
    assert!(epochs[0] > 0.0 && epochs.iter().all(|epoch| *epoch == epochs[0]), "{epochs:?}");
    drop(held);
    lab.stop();
}

#[test]
fn a_file_system_in_one_process_shows_what_the_table_lists() {
    if !can_mount("metrics of ashlar up") {
        return;
    }
    let lab = Lab::start(1, 0);
    fs::create_dir(lab.path("mnt")).unwrap();
    let shown = Lab::free_address();
    let mut up: Role = lab.run("up", &format!("up @mnt --data @alone --metrics {shown}"), "mounted");
    fs::write(lab.path("mnt/file"), vec![1u8; 1 << 20]).unwrap();
    let text = fetch(&shown);
    compare("up", &text);
    assert_eq!(value(&text, "ashlar_written_bytes_total", &["served"]), f64::from(1 << 20), "{text}");
    // The port is taken.
    fs::create_dir(lab.path("other")).unwrap();
    let refused = lab.ashlar(&format!("up @other --data @more --metrics {shown}"));
    refused.refused(&["--metrics", &shown]);
    up.stop();
}
