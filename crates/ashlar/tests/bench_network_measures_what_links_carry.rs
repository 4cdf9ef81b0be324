//! `ashlar bench` between network name spaces whose links are shaped, so that it is known what they carry.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use support::agents::{Coordinator, Process, entries, place};

/// What the shaper lets through from each node, bits per second of whole Ethernet frames without checksum, as tbf counts them.
const LINK_BITS: [f64; 2] = [200e6, 100e6];
/// TCP payload of a full frame: 1500 bytes of IP packet less 20 of IP and 32 of TCP with time stamps.
const PAYLOAD_BYTES: f64 = 1448.0;
/// A full frame: the packet and 14 bytes of Ethernet.
const FRAME_BYTES: f64 = 1514.0;

/// How many there were in this process.
static MADE: AtomicUsize = AtomicUsize::new(0);

/// Two nodes and a switch, each a name space of its own; they go with this value.
struct Links {
    names: Vec<String>,
}

fn run(line: &str) {
    let output = Command::new("sh").args(["-ec", line]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Links {
    fn make() -> Links {
        // Tests of one process run at the same time.
        let number = MADE.fetch_add(1, Relaxed);
        let name = |at| format!("ashlar-{}-{number}-{at}", std::process::id());
        let names: Vec<String> = (0..3).map(name).collect();
        let links = Links { names };
        for name in &links.names {
            run(&format!("ip netns add {name} && ip -n {name} link set lo up"));
        }
        let [switch, nodes @ ..] = &links.names[..] else { unreachable!() };
        run(&format!("ip -n {switch} link add bridge type bridge && ip -n {switch} link set bridge up"));
        run(&format!("ip -n {switch} addr add 10.99.0.254/24 dev bridge"));
        for (at, node) in nodes.iter().enumerate() {
            let (port, megabits) = (format!("port{at}"), LINK_BITS[at] / 1e6);
            run(&format!("ip -n {switch} link add {port} type veth peer name eth0 netns {node}"));
            run(&format!(
                "ip -n {switch} link set {port} master bridge && ip -n {switch} link set {port} up"
            ));
            run(&format!(
                "ip -n {node} addr add 10.99.0.{}/24 dev eth0 && ip -n {node} link set eth0 up",
                at + 1
            ));
            run(&format!(
                "tc -n {node} qdisc add dev eth0 root tbf rate {megabits}mbit burst 64kb latency 100ms"
            ));
            // Less under way than the shaper keeps waiting: it throws nothing away, and what arrives in a second is what left in one.
            let window = "echo 4096 131072 262144 > /proc/sys/net/ipv4/tcp_rmem";
            run(&format!("ip netns exec {node} sh -ec '{window}'"));
        }
        links
    }

    /// What runs a program in name space `at`.
    fn within(&self, at: usize) -> [&str; 4] {
        ["ip", "netns", "exec", &self.names[at]]
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        for name in &self.names {
            // A test that failed half-way has not made all of them.
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

fn is_root(test: &str) -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        eprintln!("******** SKIPPED: {test} needs root for its network name spaces ********");
    }
    is_root
}

/// The command of the guide.
fn command_of_the_guide() -> String {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/bench.md");
    let text = std::fs::read_to_string(guide).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("$ ashlar bench network")).unwrap();
    format!("network{line}")
}

/// Measures once; tells for each flow which part of the truth it was, and whether that is right.
#[track_caller]
fn measure(links: &Links) -> Vec<(bool, String)> {
    let line = format!("{} --seconds 1 --json", command_of_the_guide());
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut coordinator = Coordinator::start(&links.within(0), "10.99.0.254:0", &words);
    // One after the other, so that agent 1 is on node 1.
    let first = coordinator.agent(&links.within(1), &[]);
    coordinator.process.until_said("joined, 1 of 2");
    let second = coordinator.agent(&links.within(2), &[]);
    let told = coordinator.process.end().expect(0);
    first.end().expect(0);
    second.end().expect(0);
    let read: serde_json::Value = serde_json::from_str(&told.stdout).unwrap();
    let latencies = read["latencies"].as_array().unwrap();
    assert_eq!(latencies.len(), 2);
    for latency in latencies {
        let [p50, p99] = ["p50_us", "p99_us"].map(|key| latency[key].as_f64().unwrap());
        assert!(latency["messages"].as_u64().unwrap() > 50 && p50 > 0.0 && p50 <= p99, "{latency}");
    }
    let flows = read["flows"].as_array().unwrap();
    assert_eq!(
        flows.len(),
        2 * 2 + 2 * 2,
        "both directions, with 1 and 4 streams, alone and at the same time"
    );
    let judge = |flow: &serde_json::Value| {
        let from = flow["from"].as_u64().unwrap() as usize - 1;
        let rate = flow["bytes"].as_f64().unwrap() * 8.0 / flow["seconds"].as_f64().unwrap();
        let truth = LINK_BITS[from] * PAYLOAD_BYTES / FRAME_BYTES;
        // With both directions at the same time acknowledgements wait behind the other's data: then it is not the link alone that is
        // measured, and nobody knows the truth but that it is not more.
        let least = if flow["pattern"] == "one-pair" { 0.97 } else { 0.4 };
        let part = rate / truth;
        ((least..=1.03).contains(&part), format!("{:.1} % of the truth: {flow}", part * 100.0))
    };
    flows.iter().map(judge).collect()
}

#[test]
fn goodput_is_measured_within_3_percent_of_what_shaped_links_carry() {
    if !is_root("goodput") {
        return;
    }
    let links = Links::make();
    // A machine that has much else to do may not fill a link for a moment, which one second does not forgive: each flow has three
    // chances. A measurement that is wrong is so every time.
    let mut flows = vec![(false, Vec::new()); 8];
    for _ in 0..3 {
        for (flow, (is_right, told)) in flows.iter_mut().zip(measure(&links)) {
            flow.0 |= is_right;
            flow.1.push(told);
        }
        if flows.iter().all(|flow| flow.0) {
            return;
        }
    }
    panic!("{flows:#?}");
}

#[test]
fn agents_on_nodes_whose_clocks_are_apart_measure_on_one_directory() {
    if !is_root("agents with other clocks") {
        return;
    }
    let links = Links::make();
    let place = place();
    let directory = place.path().display().to_string();
    for (part, least) in [("sequential --total 16m", 4), ("metadata --files 400 --neighbour", 10)] {
        let line =
            format!("{part} {directory} --agents 2 --threads 2,3 --repetitions 1 --keep-caches --json");
        let words: Vec<&str> = line.split_whitespace().collect();
        let coordinator = Coordinator::start(&links.within(0), "10.99.0.254:0", &words);
        let begin = std::time::Instant::now();
        // A day later than the other, as far as its monotonic clock goes; its time of day is nowhere in what is said.
        let apart = ["unshare", "--time", "--fork", "--monotonic", "86400", "--boottime", "86400"];
        let agents: [Process; 2] = [
            coordinator.agent(&links.within(1), &[place.path()]),
            coordinator.agent(&[&links.within(2)[..], &apart].concat(), &[place.path()]),
        ];
        agents.into_iter().for_each(|agent| drop(agent.end().expect(0)));
        let told = coordinator.process.end().expect(0);
        let wall = begin.elapsed().as_secs_f64();
        let read: serde_json::Value = serde_json::from_str(&told.stdout).unwrap();
        let figures = read["figures"].as_array().unwrap();
        assert_eq!(figures.len(), least, "{}", told.all());
        let seconds: f64 = figures.iter().map(|figure| figure["seconds"].as_f64().unwrap()).sum();
        assert!(seconds > 0.0 && seconds < wall, "{seconds} s of {wall} s");
        let hosts: Vec<&str> = read["agents"]
            .as_array()
            .unwrap()
            .iter()
            .map(|agent| agent["address"].as_str().unwrap())
            .collect();
        assert!(hosts.contains(&"10.99.0.1") && hosts.contains(&"10.99.0.2"), "{hosts:?}");
    }
    assert_eq!(entries(place.path()).len(), 0);
}
