//! `ashlar bench run` and `ashlar bench compare` as a person and a script use them.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use support::desk::Desk;
use support::{Ended, binary, finish};

impl Desk {
    fn command(&self, options: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(["bench", "run"]).arg(self.path("place")).args(["--output", "report"]).args(options);
        command.current_dir(self.folder.path());
        command
    }

    fn run(&self, options: &[&str]) -> Ended {
        finish(&mut self.command(options))
    }

    fn is_clean(&self) -> bool {
        fs::read_dir(self.path("place")).unwrap().next().is_none()
    }

    fn report(&self) -> Value {
        read(&self.path("report.json"))
    }

    /// Writes a plan of small points as the report of an earlier run.
    fn plan(&self, change: impl FnOnce(&mut Value)) {
        let mut report = first_report().clone();
        change(&mut report["plan"]);
        fs::write(self.path("plan.json"), report.to_string()).unwrap();
    }
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn point(part: &str, threads: u32, seconds: f64) -> Value {
    let amount = json!({ "bytes": 2 << 20, "files": 20, "seconds": seconds });
    json!({ "part": part, "threads": threads, "amount": amount, "expected_seconds": seconds })
}

/// What a run with a budget reports; made once for all tests.
fn first_report() -> &'static Value {
    static MADE: OnceLock<Value> = OnceLock::new();
    MADE.get_or_init(|| {
        let desk = Desk::new();
        let options = [
            "--budget",
            "10s",
            "--parts",
            "metadata-0",
            "--threads",
            "1",
            "--repetitions",
            "2",
            "--keep-caches",
        ];
        let ended = desk.run(&[&options[..], &["--title", "A <b>title</b>"]].concat()).expect(0);
        for text in [
            "Trying",
            "Workloads: metadata-0",
            "Threads: 1; each measured 2 times",
            "Shortened: phases to",
            " left  metadata-0, 1 thread, repetition 2",
            "report.html",
        ] {
            assert!(ended.stdout.contains(text), "{text} is missing in {}", ended.all());
        }
        assert!(desk.is_clean() && !desk.path("report.journal").exists());
        let page = fs::read_to_string(desk.path("report.html")).unwrap();
        assert!(
            page.contains("<svg") && page.contains("A &lt;b&gt;title&lt;/b&gt;") && !page.contains("<b>")
        );
        let folder = desk.folder.path().display().to_string();
        for ending in ["html", "md", "json"] {
            let text = fs::read_to_string(desk.path(&format!("report.{ending}"))).unwrap();
            assert!(!text.contains(&folder), "{ending} names a path of this machine");
        }
        desk.run(&options).refused(&["report.html is there already", "--replace"]);
        desk.report()
    })
}

#[test]
fn a_run_that_fits_a_time_becomes_a_page_markdown_and_json() {
    let report = first_report();
    let curves = report["curves"].as_array().unwrap();
    let phases: Vec<&str> = curves.iter().map(|curve| curve["what"].as_str().unwrap()).collect();
    assert_eq!(phases, ["create", "stat", "read", "utime", "remove"]);
    assert_eq!(report["measured"].as_array().unwrap().len(), 10);
    assert!(report["inventory"]["hardware"]["processors"].as_u64().unwrap() > 0);
    assert!(report["ceilings"]["memory"]["copy"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_run_can_be_the_same_as_an_earlier_one_with_the_devices_below_as_ceiling() {
    let desk = Desk::new();
    fs::create_dir(desk.path("disk")).unwrap();
    desk.plan(|plan| {
        plan["points"] = json!([
            point("sequential-n-n", 1, 0.3),
            point("sequential-n-n", 2, 0.3),
            point("random-4k-deep", 2, 0.3)
        ]);
        plan["repetitions"] = json!(3);
    });
    let disk = desk.path("disk").display().to_string();
    desk.run(&["--same-as", "plan.json", "--device", &disk]).expect(0);
    assert!(desk.is_clean() && fs::read_dir(desk.path("disk")).unwrap().next().is_none());
    let report = desk.report();
    let curves = report["curves"].as_array().unwrap();
    assert_eq!(curves.len(), 4);
    assert!(
        curves.iter().all(|curve| curve["against"]["name"].as_str().unwrap().starts_with("device alone")),
        "{curves:?}"
    );
    assert!(
        curves[0]["points"]
            .as_array()
            .unwrap()
            .iter()
            .all(|point| point["rates"].as_array().unwrap().len() == 3)
    );
    let text = fs::read_to_string(desk.path("report.md")).unwrap();
    assert!(text.contains("Beside published figures") && text.contains("004-24"), "{text}");
}

#[test]
fn a_network_that_was_measured_is_the_ceiling_where_it_is_lower() {
    let desk = Desk::new();
    desk.plan(|plan| {
        plan["points"] = json!([point("sequential-n-n", 1, 0.3), point("metadata-0", 1, 0.3)]);
        plan["repetitions"] = json!(1);
    });
    // A link of 1 kbit/s one way and 2 the other: below whatever a disk does.
    let flow = |from: u32, bytes: u64| json!({ "pattern": "one-pair", "from": from, "to": 3 - from, "streams": 1, "repetition": 1, "bytes": bytes, "seconds": 1.0 });
    let told =
        json!({ "agents": [], "complete": true, "flows": [flow(1, 125), flow(2, 250)], "latencies": [] });
    fs::write(desk.path("network.json"), told.to_string()).unwrap();
    let network = ["--same-as", "plan.json", "--network", "network.json"];
    desk.run(&[&network[..], &["--network-agent", "3"]].concat())
        .refused(&["network.json tells of no agent 3", "--network-agent"]);
    fs::write(desk.path("early.json"), json!({ "complete": false }).to_string()).unwrap();
    desk.run(&["--network", "early.json"]).refused(&["early.json", "ended early", "again"]);
    desk.run(&["--network", "plan.json"]).refused(&["plan.json", "bench network --json"]);
    desk.run(&[&network[..], &["--network-agent", "2"]].concat()).expect(0);
    let report = desk.report();
    for curve in report["curves"].as_array().unwrap() {
        let rate = match curve["what"].as_str().unwrap() {
            "sequential write" => Some(250.0),
            "sequential read" => Some(125.0),
            _ => None,
        };
        assert_eq!(curve["against"]["rate"].as_f64(), rate, "{curve}");
    }
    let text = fs::read_to_string(desk.path("report.md")).unwrap();
    assert!(text.contains("network of machine 2") && text.contains("to the servers"), "{text}");
}

#[test]
fn a_run_that_was_killed_is_gone_on_with_and_what_it_left_goes() {
    let desk = Desk::new();
    desk.plan(|plan| {
        plan["points"] = json!([point("metadata-0", 1, 0.1), point("random-4k", 1, 0.5)]);
        plan["repetitions"] = json!(3);
    });
    let options = ["--same-as", "plan.json"];
    let mut running = desk.command(&options).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let done = |path: &Path| {
        fs::read_to_string(path)
            .unwrap_or_default()
            .lines()
            .filter(|line| line.starts_with("{\"done\""))
            .count()
    };
    let journal = desk.path("report.journal");
    while done(&journal) < 3 || desk.is_clean() {
        assert!(running.try_wait().unwrap().is_none(), "it ended before it was killed");
        std::thread::yield_now();
    }
    running.kill().unwrap();
    running.wait().unwrap();
    assert!(!desk.is_clean(), "it was killed in the middle");
    fs::write(desk.path("place/theirs"), "x").unwrap();
    // A directory that has the name of a run which the journal tells of, and that no run has made.
    let namesake = desk.path("place/ashlar-bench.00000000000000aa");
    fs::create_dir(&namesake).unwrap();
    fs::write(namesake.join("theirs"), "x").unwrap();
    let mut told = fs::OpenOptions::new().append(true).open(&journal).unwrap();
    told.write_all(b"{\"place\":{\"run\":\"00000000000000aa\"}}\n").unwrap();
    desk.run(&options).refused(&["report.journal is there", "--resume"]);
    desk.run(&["--same-as", "plan.json", "--resume", "--keep-caches"])
        .refused(&["of another run", "--keep-caches was false and is true"]);
    desk.run(&["--same-as", "plan.json", "--resume"]).refused(&["is not empty"]);
    let before = done(&journal);
    let ended = desk.run(&["--same-as", "plan.json", "--resume", "--beside-others"]).expect(0);
    assert!(ended.stdout.contains(&format!("{}/6", before + 1)), "{}", ended.all());
    assert!(!ended.stdout.contains("1/6  "), "what was done is not done again: {}", ended.all());
    let left: Vec<_> =
        fs::read_dir(desk.path("place")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(namesake.join("theirs").exists() && desk.path("place/theirs").exists());
    let measured = desk.report()["measured"].as_array().unwrap().len();
    assert_eq!((measured, journal.exists()), (3 * (5 + 2), false));
}

#[test]
fn a_run_that_is_interrupted_says_how_to_go_on() {
    let desk = Desk::new();
    desk.plan(|plan| plan["points"] = json!([point("random-4k", 1, 60.0)]));
    let mut running = desk
        .command(&["--same-as", "plan.json"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while desk.is_clean() {
        assert!(running.try_wait().unwrap().is_none(), "it ended before it was asked to");
        std::thread::yield_now();
    }
    // SAFETY: kill takes no pointer; the child has not been waited for, so its number is its own.
    unsafe { libc::kill(running.id() as i32, libc::SIGINT) };
    let output = running.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && desk.is_clean(), "{text}");
    // Whether the plan was written down yet depends on when the signal came.
    assert_eq!(text.contains("--resume"), desk.path("report.journal").exists(), "{text}");
}

#[test]
fn what_cannot_be_measured_is_refused_with_the_way_out() {
    let desk = Desk::new();
    let theirs = desk.path("place/theirs");
    fs::write(&theirs, "x").unwrap();
    desk.run(&["--budget", "10s"]).refused(&["is not empty", "theirs", "--beside-others"]);
    assert!(!desk.path("report.journal").exists());
    fs::remove_file(&theirs).unwrap();
    let few = ["--parts", "metadata", "--threads", "1..64", "--repetitions", "50", "--keep-caches"];
    desk.run(&[&["--budget", "1s"], &few[..]].concat()).refused(&[
        "the budget is 1 s",
        "--budget",
        "--parts",
    ]);
    desk.run(&["--resume"]).refused(&["no interrupted run", "leave --resume out"]);
    desk.run(&["--beside", "999-99"]).refused(&["no published row 999-99", "002-15"]);
    let mut elsewhere = Command::new(binary());
    elsewhere.args(["bench", "run"]).arg(desk.path("place")).args(["--output", "/missing/report"]);
    finish(&mut elsewhere).refused(&["there is no directory /missing"]);
    let mut inside = Command::new(binary());
    inside.args(["bench", "run", "place", "--output", "place/report"]).current_dir(desk.folder.path());
    finish(&mut inside).refused(&["is in place, which is measured", "another directory"]);
    desk.run(&["--same-as", "missing.json"]).refused(&["missing.json"]);
    for (options, why) in [
        (&["--fill", "50"][..], "--consent-to-fill"),
        (&["--parts", "fast"], "there is no part `fast`"),
        (&["--budget", "soon"], "no time such as"),
    ] {
        let ended = desk.run(options);
        assert!(ended.stderr.contains(why), "{}", ended.all());
    }
    let search = desk.path("empty");
    let missing = finish(desk.command(&["--with", "iozone,mdtest"]).env("PATH", search));
    missing.refused(&["`iozone` is not installed"]);
    let plan = desk.run(&["--dry-run", "--budget", "1h", "--parts", "random", "--keep-caches"]).expect(0);
    assert!(plan.stdout.contains("random-4k, random-4k-deep, random-1k"), "{}", plan.all());
    assert!(desk.is_clean() && !desk.path("report.html").exists());
}

#[test]
fn figures_of_fio_stand_in_the_same_tables() {
    if Command::new("fio").arg("--version").output().is_err() {
        eprintln!("skipped: fio is not installed");
        return;
    }
    let desk = Desk::new();
    desk.plan(|plan| {
        plan["points"] =
            json!([point("sequential-n-1", 2, 0.2), point("random-4k", 1, 0.2), point("metadata-0", 1, 0.2)]);
        plan["tools"] = json!(["fio"]);
    });
    desk.run(&["--same-as", "plan.json"]).expect(0);
    let report = desk.report();
    let of =
        |tool: &str| report["measured"].as_array().unwrap().iter().filter(|one| one["tool"] == tool).count();
    assert_eq!((of("ashlar"), of("fio")), (2 * (2 + 2 + 5), 2 * (2 + 2)));
    let text = fs::read_to_string(desk.path("report.md")).unwrap();
    assert!(text.contains("write (fio)") && text.contains("fio --name=ashlar"), "{text}");
}

#[test]
fn a_file_system_is_filled_no_further_than_was_said() {
    let desk = Desk::new();
    let place = desk.path("place");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64m", "none"]).arg(&place).status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("skipped: nothing can be mounted");
        return;
    }
    desk.plan(|plan| {
        plan["fill_points"] = json!([point("sequential-n-n", 1, 0.2)]);
        plan["fill_percents"] = json!([50, 90]);
    });
    let refused = desk.run(&["--same-as", "plan.json"]);
    let ended = desk.run(&["--same-as", "plan.json", "--consent-to-fill"]);
    let too_low = {
        fs::write(desk.path("place/theirs"), vec![1; 40 << 20]).unwrap();
        desk.run(&["--same-as", "plan.json", "--consent-to-fill", "--beside-others", "--replace"])
    };
    fs::remove_file(desk.path("place/theirs")).unwrap();
    let is_clean = desk.is_clean();
    Command::new("umount").arg(&place).status().unwrap();
    refused.refused(&["say --consent-to-fill"]);
    ended.expect(0);
    too_low.refused(&["cannot be filled to 50 %"]);
    assert!(is_clean);
    let report = desk.report();
    let at = |percent: u64| {
        let of = |one: &&Value| one["fill_percent"] == percent && one["figure"]["what"] == "sequential write";
        report["measured"].as_array().unwrap().iter().filter(of).count()
    };
    assert_eq!((at(50), at(90)), (2, 2));
    assert!(fs::read_to_string(desk.path("report.html")).unwrap().contains("As the file system fills"));
}

#[test]
fn two_reports_are_compared_and_what_is_slower_can_fail() {
    let desk = Desk::new();
    let before = first_report();
    let mut after = before.clone();
    for one in after["measured"].as_array_mut().unwrap() {
        let seconds = one["figure"]["seconds"].as_f64().unwrap();
        one["figure"]["seconds"] = json!(seconds * 100.0);
    }
    after["inventory"]["software"]["kernel"] = json!("99.9");
    let mut other = before.clone();
    other["plan"]["drops_caches"] = json!(true);
    for (name, report) in [("before", before), ("after", &after), ("other", &other)] {
        fs::write(desk.path(&format!("{name}.json")), report.to_string()).unwrap();
    }
    let compare = |files: [&str; 2], options: &[&str]| {
        let mut command = Command::new(binary());
        finish(command.args(["bench", "compare"]).args(files).args(options).current_dir(desk.folder.path()))
    };
    let same = compare(["before.json", "before.json"], &["--fail-below", "5"]).expect(0);
    assert!(
        same.stdout.contains("are the same") && same.stdout.contains("no more than chance"),
        "{}",
        same.all()
    );
    let slower = compare(["before.json", "after.json"], &["--fail-below", "5"]);
    assert!(
        slower.stdout.contains("differs, software: kernel") && slower.stdout.contains("-99.0 %"),
        "{}",
        slower.all()
    );
    let told: Value =
        serde_json::from_str(&compare(["before.json", "after.json"], &["--json"]).expect(0).stdout).unwrap();
    let is_slower = told["rows"].as_array().unwrap().iter().any(|row| row["verdict"] == "slower");
    assert_eq!(slower.code, Some(if is_slower { 2 } else { 0 }), "{}", slower.all());
    let refused = compare(["before.json", "other.json"], &[]);
    assert!(
        refused.stderr.contains("--same-as before.json") && refused.stderr.contains("--although-different"),
        "{}",
        refused.all()
    );
    compare(["before.json", "other.json"], &["--although-different"]).expect(0);
    fs::write(desk.path("none.json"), "{}").unwrap();
    compare(["before.json", "none.json"], &[]).refused(&["none.json", "no report of"]);
}

#[test]
fn the_runs_and_comparisons_of_the_guide_work() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/bench.md");
    let text = fs::read_to_string(guide).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("$ ashlar bench "));
    let lines: Vec<&str> = lines
        .filter(|line| ["run ", "report ", "compare "].iter().any(|start| line.starts_with(start)))
        // Those with agents are run by `bench_agents_measure_together.rs`.
        .filter(|line| !line.contains("--agents"))
        .collect();
    assert!(lines.len() >= 5, "{lines:?}");
    let desk = Desk::new();
    for name in ["scratch", "disk1", "disk2"] {
        fs::create_dir(desk.path(name)).unwrap();
    }
    desk.plan(|plan| plan["points"] = json!([point("metadata-0", 1, 0.1), point("sequential-n-n", 1, 0.1)]));
    let has_fio = Command::new("fio").arg("--version").output().is_ok();
    for line in lines {
        if line.contains("--with fio") && !has_fio {
            eprintln!("skipped: fio is not installed");
            continue;
        }
        let here = line.replace("/mnt/", &format!("{}/", desk.folder.path().display()));
        let mut command = Command::new(binary());
        command.arg("bench").current_dir(desk.folder.path());
        // As shown, but for how long; a disk that is not ours is not filled.
        let chooses = ["--parts", "--with", "--fill"].iter().any(|option| line.contains(option));
        if chooses {
            command.args(here.replace("--budget 10m", "--budget 12s").split_whitespace());
            command.args(["--threads", "1", "--repetitions", "1", "--keep-caches"]);
        } else {
            // Words in quotation marks are one for the shell.
            let words = here
                .replace("--budget 10m", "--same-as plan.json")
                .replace("\"Storage at example.org\"", "Storage");
            command.args(words.split_whitespace());
        }
        if line.contains("--fill") {
            command.args(["--parts", "metadata-0", "--dry-run"]);
        }
        let ended = finish(&mut command);
        // So few figures may differ by chance.
        let is_compared = line.starts_with("compare ") && ended.code == Some(2);
        assert!(is_compared || ended.code == Some(0), "{line}: {}", ended.all());
    }
}
