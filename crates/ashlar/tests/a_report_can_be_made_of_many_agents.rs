//! `ashlar bench run --agents`: a report of many clients, and what happens when one of them goes away.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use support::agents::{Coordinator, Process, Told, entries};
use support::desk::Desk;
use support::{binary, finish};

const LOCAL: &str = "127.0.0.1:0";
/// Names of hosts: not in any text of ours.
const HOSTS: [&str; 3] = ["zebra-one", "zebra-two", "zebra-three"];

impl Desk {
    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// A coordinator that waits for so many agents.
    fn lead(&self, agents: usize, options: &[&str]) -> Coordinator {
        let (place, output, agents) = (self.text("place"), self.text("report"), agents.to_string());
        let words = [&["run", &place, "--output", &output, "--agents", &agents], options].concat();
        Coordinator::start(&[], LOCAL, &words)
    }

    /// Agents of `coordinator`, each on a host with a name of its own, in this order.
    fn agents(&self, coordinator: &Coordinator, hosts: &[&str]) -> Vec<Process> {
        let start = |host: &&str| {
            let script = format!("hostname {host} && exec \"$@\"");
            coordinator.agent(&["unshare", "--uts", "sh", "-ec", &script, "sh"], &[&self.path("place")])
        };
        hosts.iter().map(start).collect()
    }

    /// A run from begin to end.
    #[track_caller]
    fn run(&self, hosts: &[&str], options: &[&str]) -> Told {
        let coordinator = self.lead(hosts.len(), options);
        let agents = self.agents(&coordinator, hosts);
        let told = coordinator.process.end().expect(0);
        agents.into_iter().for_each(|agent| drop(agent.end().expect(0)));
        assert!(self.is_clean(), "nothing is left: {}", told.all());
        told
    }

    fn is_clean(&self) -> bool {
        entries(&self.path("place")).is_empty()
    }

    fn report(&self) -> Value {
        read(&self.path("report.json"))
    }

    /// Writes a plan of small points as a report that an earlier release has made, before there were agents.
    fn plan(&self, points: Value, repetitions: u32) -> String {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reports/ext4.json");
        let mut report = read(&docs);
        report["plan"]["points"] = points;
        report["plan"]["repetitions"] = json!(repetitions);
        report["plan"]["drops_caches"] = json!(false);
        fs::write(self.path("plan.json"), report.to_string()).unwrap();
        self.text("plan.json")
    }

    /// Steps that are in the journal.
    fn done(&self) -> usize {
        let text = fs::read_to_string(self.path("report.journal")).unwrap_or_default();
        text.lines().filter(|line| line.starts_with("{\"done\"")).count()
    }

    #[track_caller]
    fn wait_for_steps(&self, count: usize) {
        let begin = Instant::now();
        while self.done() < count {
            assert!(begin.elapsed() < Duration::from_secs(60), "{} steps of {count}", self.done());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn point(part: &str, threads: u32, seconds: f64) -> Value {
    let amount = json!({ "bytes": 2 << 20, "files": 20, "seconds": seconds });
    json!({ "part": part, "threads": threads, "amount": amount, "expected_seconds": seconds })
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap()
}

#[test]
fn three_agents_make_a_report_that_names_no_hosts_and_keeps_all_loads() {
    let desk = Desk::new();
    let (few, many) = (point("random-4k", 1, 0.4), point("random-4k", 6, 0.4));
    let plan = desk.plan(json!([few, many, point("metadata-0", 1, 0.1), point("metadata-0", 6, 0.1)]), 2);
    let told = desk.run(&HOSTS, &["--same-as", &plan, "--keep-caches"]);
    for text in [
        "Threads: 1, 6; each measured 2 times",
        "Ceilings: memory",
        " left  random-4k, 6 threads, repetition 2",
    ] {
        assert!(told.stdout.contains(text), "{text} is missing in {}", told.all());
    }
    let report = desk.report();
    let measured = list(&report["measured"]);
    assert_eq!(measured.len(), 2 * 2 * (2 + 5));
    for one in measured {
        assert!(one["figure"]["operations"].as_u64().unwrap() > 0 && one["load"].is_null(), "{one}");
        assert_eq!(list(&one["loads"]).len(), 3, "{one}");
    }
    // Phases of a set time are long enough to be watched.
    let long = |threads: u32| {
        let all = measured.iter().filter(move |one| one["part"] == "random-4k");
        all.filter(move |one| one["figure"]["threads"] == threads)
    };
    for one in long(6) {
        let is_watched =
            |load: &Value| load["processors"].as_u64() > Some(0) && load["busiest"].as_f64() > Some(0.0);
        assert!(list(&one["loads"]).iter().all(is_watched), "{one}");
    }
    for one in long(1) {
        let is_known: Vec<bool> = list(&one["loads"]).iter().map(|load| !load.is_null()).collect();
        assert_eq!(is_known, [true, false, false], "who has no thread measures nothing: {one}");
    }
    assert_eq!(list(&report["agents"]).len(), 3);
    assert!(list(&report["agents"]).iter().all(|agent| agent["computer"] == 1));
    assert!(report["ceilings"]["memory"]["copy"].as_f64().unwrap() > 0.0);
    desk_pages(&desk);
    // The pages can be written anew, and the run compared with itself.
    let mut again = std::process::Command::new(binary());
    again.args(["bench", "report", "report.json", "--output", "again"]).current_dir(desk.folder.path());
    finish(&mut again).expect(0);
    assert_eq!(fs::read(desk.path("again.html")).unwrap(), fs::read(desk.path("report.html")).unwrap());
    let mut compare = std::process::Command::new(binary());
    compare.args(["bench", "compare", "report.json", "again.json"]).current_dir(desk.folder.path());
    let compared = finish(&mut compare).expect(0);
    assert!(compared.stdout.contains("are the same"), "{}", compared.all());
}

fn desk_pages(desk: &Desk) {
    let own = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let is_telling = own.trim().len() > 6;
    for ending in ["html", "md", "json"] {
        let text = fs::read_to_string(desk.path(&format!("report.{ending}"))).unwrap();
        for private in ["zebra", "127.0.0.1", desk.text("").as_str()] {
            assert!(!text.contains(private), "{private} is in the {ending}");
        }
        assert!(!is_telling || !text.contains(own.trim()), "the coordinator's host is in the {ending}");
        assert!(text.contains("ashlar bench run DIR --agents 3 --same-as REPORT.json"), "{ending}");
    }
    let text = fs::read_to_string(desk.path("report.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| 1 machine with 3 agents | agents 1-3 |"));
    assert_eq!(rows.count(), 1, "one row for machines that are the same: {text}");
    assert!(!text.contains("What differs between the machines"), "{text}");
    assert!(text.contains("--agents 3 --threads 6"), "each point can be repeated: {text}");
}

#[test]
fn machines_that_are_others_are_told_apart_and_count_for_themselves() {
    let desk = Desk::new();
    let options = ["--budget", "14s", "--parts", "sequential-n-n", "--threads", "3", "--repetitions", "1"];
    let coordinator = desk.lead(3, &[&options[..], &["--keep-caches"]].concat());
    let mut agents = desk.agents(&coordinator, &HOSTS[..2]);
    // What looks like another machine, with another system.
    let folder = desk.path("");
    fs::write(folder.join("boot"), "00000000-0000-0000-0000-000000000000\n").unwrap();
    fs::write(folder.join("system"), "PRETTY_NAME=\"Other <i>Linux</i>\"\n").unwrap();
    let script = format!(
        "hostname zzz && mount --bind {0}/boot /proc/sys/kernel/random/boot_id && mount --bind {0}/system /etc/os-release && exec \"$@\"",
        folder.display()
    );
    let other = ["unshare", "--uts", "--mount", "sh", "-ec", &script, "sh"];
    agents.push(coordinator.agent(&other, &[&desk.path("place")]));
    let told = coordinator.process.end().expect(0);
    assert!(told.stdout.contains("so that a plan can be made"), "{}", told.all());
    agents.into_iter().for_each(|agent| drop(agent.end().expect(0)));
    let report = desk.report();
    let computers: Vec<u64> =
        list(&report["agents"]).iter().map(|agent| agent["computer"].as_u64().unwrap()).collect();
    assert_eq!(computers, [1, 1, 2]);
    let memory = report["agents"][0]["hardware"]["memory_bytes"].as_u64().unwrap();
    assert_eq!(report["plan"]["memory_bytes"].as_u64(), Some(2 * memory));
    let each: Vec<f64> = list(&report["ceilings"]["memory_each"])
        .iter()
        .map(|memory| memory["copy"].as_f64().unwrap())
        .collect();
    let sum = report["ceilings"]["memory"]["copy"].as_f64().unwrap();
    assert!(each.len() == 2 && (each[0] + each[1] - sum).abs() < 1.0, "{each:?} are {sum}");
    let text = fs::read_to_string(desk.path("report.md")).unwrap();
    for part in [
        "| 1 machine with 2 agents | agents 1-2 |",
        "| 1 machine | agent 3 |",
        "What differs between the machines",
        "| Distribution | agent 3 | Other \\<i\\>Linux\\</i\\> |",
        "memory of 2 machines",
        "of it the machine of agent 3",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    let page = fs::read_to_string(desk.path("report.html")).unwrap();
    assert!(page.contains("Other &lt;i&gt;Linux") && !page.contains("<i>Linux"));
}

#[test]
fn an_agent_that_is_killed_ends_the_run_and_others_go_on_with_it() {
    let desk = Desk::new();
    let plan = desk.plan(json!([point("random-4k", 3, 0.4), point("metadata-0", 3, 0.1)]), 4);
    let options = ["--same-as", plan.as_str(), "--keep-caches"];
    let coordinator = desk.lead(3, &options);
    let mut agents = desk.agents(&coordinator, &HOSTS);
    desk.wait_for_steps(3);
    agents[1].signal(libc::SIGKILL);
    let told = coordinator.process.end().refused(&[
        "(zebra-two, 127.0.0.1) was lost while",
        "steps are kept in",
        "--resume",
    ]);
    assert!(!told.stderr.contains("panicked"), "{}", told.all());
    drop(agents.remove(1));
    agents.into_iter().for_each(|agent| drop(agent.end().refused(&["the run has failed", "was lost while"])));
    assert!(desk.is_clean(), "those that are left remove what was made");
    let done = desk.done();
    assert!((3..8).contains(&done), "{done} steps");
    // Nothing is waited for that could be refused at once.
    let again = Process::start(
        &[],
        &["bench", "run", &desk.text("place"), "--output", &desk.text("report"), "--agents", "3"],
        None,
    );
    let again = again.end().refused(&["report.journal is there", "--resume"]);
    assert!(!again.stderr.contains("waiting for"), "{}", again.all());
    let options = [&options[..], &["--resume"]].concat();
    let fewer = desk.lead(2, &options);
    let agents = desk.agents(&fewer, &HOSTS[..2]);
    fewer.process.end().refused(&["of another run", "--agents was 3 and is 2"]);
    agents.into_iter().for_each(|agent| drop(agent.end().refused(&["of another run"])));
    let other = desk.lead(3, &options);
    let agents = desk.agents(&other, &["zebra-one", "zebra-two", "giraffe"]);
    other.process.end().refused(&["agents are on other machines"]);
    agents.into_iter().for_each(|agent| drop(agent.end().refused(&[])));
    assert_eq!((desk.done(), desk.is_clean()), (done, true));
    let told = desk.run(&["zebra-three", "zebra-one", "zebra-two"], &options);
    assert!(
        told.stdout.contains(&format!("{}/8", done + 1)) && !told.stdout.contains("1/8 "),
        "{}",
        told.all()
    );
    let report = desk.report();
    let measured = list(&report["measured"]);
    assert_eq!((measured.len(), desk.path("report.journal").exists()), (4 * (2 + 5), false));
    assert!(measured.iter().all(|one| list(&one["loads"]).len() == 3));
}

#[test]
fn what_a_run_has_left_whose_agents_were_all_killed_goes_when_it_is_gone_on_with() {
    let desk = Desk::new();
    let plan = desk.plan(json!([point("random-4k", 2, 0.3)]), 3);
    let options = ["--same-as", plan.as_str(), "--keep-caches"];
    let coordinator = desk.lead(2, &options);
    let agents = desk.agents(&coordinator, &HOSTS[..2]);
    desk.wait_for_steps(1);
    // The agents are stopped first: none of them sees that the others are gone.
    for signal in [libc::SIGSTOP, libc::SIGKILL] {
        agents.iter().chain([&coordinator.process]).for_each(|process| process.signal(signal));
    }
    drop((agents, coordinator));
    assert!(!desk.is_clean(), "nobody was there to remove it");
    fs::create_dir(desk.path("place/ashlar-bench.theirs")).unwrap();
    let options = [&options[..], &["--resume"]].concat();
    let refused = desk.lead(2, &options);
    let agents = desk.agents(&refused, &HOSTS[..2]);
    refused.process.end().refused(&["is not empty", "ashlar-bench.theirs"]);
    drop(agents);
    assert_eq!(
        entries(&desk.path("place")),
        [desk.path("place/ashlar-bench.theirs")],
        "only what is ours goes"
    );
    fs::remove_dir(desk.path("place/ashlar-bench.theirs")).unwrap();
    desk.run(&HOSTS[..2], &options);
    assert_eq!(list(&desk.report()["measured"]).len(), 3 * 2);
}

#[test]
fn a_run_with_agents_is_planned_only_or_interrupted_in_good_order() {
    let desk = Desk::new();
    let told = desk.run(
        &HOSTS[..2],
        &["--dry-run", "--budget", "600s", "--parts", "random", "--threads", "2", "--keep-caches"],
    );
    assert!(told.stdout.contains("random-4k, random-4k-deep, random-1k"), "{}", told.all());
    assert!(!desk.path("report.journal").exists() && !desk.path("report.html").exists());
    // Not so long that STREAM takes its time before.
    let plan = desk.plan(json!([point("random-4k", 2, 0.3)]), 300);
    let options = ["--same-as", plan.as_str(), "--keep-caches"];
    let coordinator = desk.lead(2, &options);
    let agents = desk.agents(&coordinator, &HOSTS[..2]);
    desk.wait_for_steps(1);
    coordinator.process.signal(libc::SIGINT);
    coordinator.process.end().refused(&["stopped", "are kept in", "--resume"]);
    agents.into_iter().for_each(|agent| drop(agent.end().refused(&["the run has failed: stopped"])));
    assert!(desk.is_clean());
}

#[test]
fn the_network_of_the_agents_machines_is_their_ceiling() {
    let desk = Desk::new();
    let plan = desk.plan(json!([point("sequential-n-n", 2, 0.1)]), 1);
    // Links of some bits per second: below whatever a disk does.
    let flow = |from: u32, bytes: u64| json!({ "pattern": "one-pair", "from": from, "to": 3 - from, "streams": 1, "repetition": 1, "bytes": bytes, "seconds": 1.0 });
    let network = |hosts: [&str; 2]| {
        let agents =
            hosts.map(|host| json!({ "name": host, "host": host, "address": "10.0.0.1", "memory_bytes": 1 }));
        let told = json!({ "agents": agents, "complete": true, "flows": [flow(1, 125), flow(2, 250)], "latencies": [] });
        fs::write(desk.path("network.json"), told.to_string()).unwrap();
    };
    let file = desk.text("network.json");
    let options = ["--same-as", plan.as_str(), "--keep-caches", "--network", &file];
    network(["elsewhere", "zebra-two"]);
    let coordinator = desk.lead(2, &options);
    let agents = desk.agents(&coordinator, &HOSTS[..2]);
    coordinator
        .process
        .end()
        .refused(&["network.json tells nothing of the network of zebra-one", "--network"]);
    drop(agents);
    network(["zebra-two", "zebra-one"]);
    desk.run(&HOSTS[..2], &options);
    let report = desk.report();
    // Both agents are on one computer, which is the second of the file by the name of the first agent.
    for (what, rate) in [("sequential write", 250.0), ("sequential read", 125.0)] {
        let curve = list(&report["curves"]).iter().find(|curve| curve["what"] == what).unwrap();
        assert_eq!(curve["against"]["rate"].as_f64(), Some(rate), "{curve}");
    }
    assert!(!fs::read_to_string(desk.path("report.json")).unwrap().contains("zebra"));
}

#[test]
fn what_agents_do_not_do_is_refused_before_anybody_is_waited_for() {
    let desk = Desk::new();
    let place = desk.text("place");
    let refused = |options: &[&str], words: &[&str]| {
        let output = desk.text("report");
        let words_of_it = [&["bench", "run", &place, "--output", &output, "--agents", "2"], options].concat();
        let told = Process::start(&[], &words_of_it, None).end().refused(words);
        assert!(!told.all().contains("waiting for"), "{}", told.all());
    };
    refused(&["--device", &place], &["--device and --agents", "ashlar bench device"]);
    refused(&["--with", "fio"], &["--with and --agents", "no other programs"]);
    refused(&["--fill", "90", "--consent-to-fill"], &["--fill and --agents"]);
    refused(&["--network", "x.json", "--network-agent", "1"], &["--network-agent", "--agents"]);
    refused(&["--network", "x.json"], &["x.json"]);
    refused(&["--resume"], &["no interrupted run"]);
    let plan = desk.plan(json!([point("random-4k", 1, 0.1)]), 1);
    let mut report = read(Path::new(&plan));
    report["plan"]["tools"] = json!(["fio"]);
    fs::write(&plan, report.to_string()).unwrap();
    refused(&["--same-as", &plan], &["plan.json was made with other programs", "--agents"]);
    let relative = Process::start(&[], &["bench", "run", "here", "--agents", "2"], None);
    relative.end().refused(&["it has to begin with /"]);
    assert!(desk.is_clean() && !desk.path("report.journal").exists());
}
