//! `ashlar bench` as a person and a script use it.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::process::Command;
use support::{binary, finish};

fn memory(options: &[&str]) -> support::Ended {
    let mut command = Command::new(binary());
    finish(command.args(["bench", "memory"]).args(options))
}

#[test]
fn memory_is_measured_on_every_node_and_its_modules_are_looked_at() {
    let ended = memory(&["--array-size", "1m", "--repetitions", "3"]).expect(0);
    for text in
        ["NUMA node 0", "less than four times the caches", "copy", "scale", "add", "triad", "memory modules:"]
    {
        assert!(ended.stdout.contains(text), "{text} is missing in {}", ended.all());
    }
    let ended =
        memory(&["--array-size", "1m", "--repetitions", "3", "--json", "--node", "0", "--threads", "1"])
            .expect(0);
    let read: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    let node = &read["nodes"][0];
    assert_eq!(
        (&node["node"], &node["threads"], &node["array_bytes"]),
        (&0.into(), &1.into(), &(1 << 20).into())
    );
    let rates = node["bytes_per_second"].as_array().unwrap();
    assert_eq!(rates.len(), 4);
    assert!(rates.iter().all(|rates| rates["best"].as_f64().unwrap() > 1e6), "{}", ended.stdout);
}

#[test]
fn what_cannot_be_measured_is_named() {
    memory(&["--node", "77"]).refused(&["there is no NUMA node 77", "there is 0"]);
    memory(&["--threads", "100000"]).refused(&["--threads can be"]);
    memory(&["--array-size", "100000g"]).refused(&["bytes of free memory", "name a smaller size"]);
    let ended = memory(&["--array-size", "1k"]);
    assert!(ended.stderr.contains("an array has 1m at least"), "{}", ended.all());
}

fn bench(part: &str, directory: &std::path::Path, options: &[&str]) -> support::Ended {
    let mut command = Command::new(binary());
    finish(command.args(["bench", part]).arg(directory).args(options))
}

/// A directory whose pages can be evicted: not on tmpfs.
fn place() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn is_empty(directory: &std::path::Path) -> bool {
    std::fs::read_dir(directory).unwrap().next().is_none()
}

fn figures(ended: &support::Ended) -> Vec<serde_json::Value> {
    let read: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    read["figures"].as_array().unwrap().clone()
}

#[test]
fn content_is_written_and_read_by_every_number_of_threads() {
    let place = place();
    let few = ["--threads", "1..2", "--repetitions", "2", "--total", "4m", "--keep-caches"];
    let ended = bench("sequential", place.path(), &few).expect(0);
    for text in ["threads", "MiB/s", "sequential write", "sequential read", "[1] the data is less than twice"]
    {
        assert!(ended.stdout.contains(text), "{text} is missing in {}", ended.all());
    }
    let shared = [&few[..], &["--shared", "--segments", "4", "--record", "64k", "--json"]].concat();
    let told = figures(&bench("sequential", place.path(), &shared).expect(0));
    assert_eq!(told.len(), 8, "2 numbers of threads, twice, written and read");
    assert!(
        told.iter().all(|figure| figure["bytes"] == 4 << 20 && figure["seconds"].as_f64().unwrap() > 0.0)
    );
    let random = [&few[..], &["--depth", "4", "--seconds", "0", "--json", "--only", "read"]].concat();
    let told = figures(&bench("random", place.path(), &random).expect(0));
    assert_eq!(told.len(), 4);
    assert!(told.iter().all(|figure| figure["what"] == "random read" && figure["operations"] == 1024));
    assert!(is_empty(place.path()));
}

#[test]
fn files_that_one_command_keeps_are_read_by_another() {
    let place = place();
    let run = |part: &str, options: &str| {
        let options: Vec<&str> = options.split_whitespace().collect();
        bench(part, place.path(), &[&options[..], &["--keep-caches"]].concat())
    };
    let missing = run("sequential", "--use-kept");
    missing.refused(&["ashlar-bench.kept", "--keep-files"]);
    run("sequential", "--threads 1,2 --total 4m --keep-files").refused(&["one number of threads"]);
    let written =
        run("random", "--threads 2 --total 4m --seconds 0 --only write --keep-files --json --repetitions 2");
    let written = written.expect(0);
    assert!(written.stderr.contains("--use-kept reads them"), "{}", written.all());
    assert_eq!(figures(&written).len(), 2);
    let names = || {
        let kept = std::fs::read_dir(place.path().join("ashlar-bench.kept")).unwrap();
        let mut names: Vec<_> = kept.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(), ["data.0", "data.1", "plan.json"]);
    // Of another order and a queue, with the records that they were written with.
    for (part, options) in [("random", "--seconds 0 --depth 4"), ("sequential", "--direct")] {
        let read = run(part, &format!("--use-kept --json {options} --repetitions 2")).expect(0);
        let told = figures(&read);
        let is_right = |one: &serde_json::Value| one["operations"] == 1024 && one["bytes"] == 4 << 20;
        assert!(told.len() == 2 && told.iter().all(is_right), "{}", read.all());
    }
    assert_eq!(names(), ["data.0", "data.1", "plan.json"]);
    run("sequential", "--threads 1 --total 1m").refused(&["is not empty", "ashlar-bench.kept"]);
    let again = run("sequential", "--threads 1 --total 1m --beside-others --keep-files --repetitions 1");
    again.refused(&["ashlar-bench.kept is there", "remove it"]);
    assert_eq!(names().len(), 3, "what was kept is not lost");
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
}

#[test]
fn files_are_created_looked_at_and_removed_by_every_number_of_threads() {
    let place = place();
    let options =
        ["--threads", "1,3", "--repetitions", "1", "--files", "60", "--size", "3k", "--keep-caches"];
    let ended = bench("metadata", place.path(), &options).expect(0);
    for text in ["ops/s", "create", "stat", "read", "utime", "remove", "were not dropped before"] {
        assert!(ended.stdout.contains(text), "{text} is missing in {}", ended.all());
    }
    let more = ["--shared", "--neighbour", "--depth", "2", "--steps", "stat,remove", "--json"];
    let told = figures(&bench("metadata", place.path(), &[&options[..], &more].concat()).expect(0));
    assert_eq!(told.len(), 4);
    assert!(told.iter().all(|figure| figure["operations"] == 60));
    assert!(is_empty(place.path()));
    let options = [&options[..], &["--files-per-directory", "20", "--steps", "create"]].concat();
    let ended = bench("metadata", place.path(), &options).expect(0);
    let table: Vec<Vec<&str>> =
        ended.stdout.lines().skip(1).take(2).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(table, [["1", "3"], ["3", "1"]], "directories of each thread: {}", ended.all());
    let shared = bench("metadata", place.path(), &[&options[..], &["--shared"]].concat()).expect(2);
    assert!(shared.stderr.contains("cannot be used with '--shared'"), "{}", shared.all());
}

#[test]
fn a_figure_of_the_page_cache_is_not_shown_unless_somebody_insists() {
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let options =
        ["--threads", "1", "--repetitions", "1", "--total", "1m", "--keep-caches", "--only", "read"];
    let ended = bench("sequential", memory.path(), &options).expect(0);
    let row = ended.stdout.lines().find(|line| line.contains("sequential read")).unwrap();
    assert!(row.split_whitespace().nth(3) == Some("-"), "{}", ended.all());
    assert!(
        ended.stdout.contains("page cache when reading began") && ended.stdout.contains("--allow-cached")
    );
    let ended = bench("sequential", memory.path(), &[&options[..], &["--allow-cached"]].concat()).expect(0);
    let row = ended.stdout.lines().find(|line| line.contains("sequential read")).unwrap();
    assert!(row.split_whitespace().nth(3).unwrap().parse::<f64>().unwrap() > 0.0, "{}", ended.all());
}

#[test]
fn a_place_or_plan_that_cannot_be_measured_is_refused_before_anything_is_written() {
    let place = place();
    let theirs = place.path().join("theirs");
    std::fs::write(&theirs, "x").unwrap();
    bench("sequential", place.path(), &[]).refused(&["is not empty", "theirs", "--beside-others"]);
    let small = ["--beside-others", "--threads", "1", "--repetitions", "1", "--total", "1m"];
    bench("sequential", place.path(), &small).expect(0);
    bench("metadata", place.path(), &["--beside-others", "--files", "10", "--repetitions", "1"]).expect(0);
    let missing = bench("sequential", &place.path().join("missing"), &[]);
    let missing = missing.refused(&["missing", "No such file"]);
    assert_eq!(missing.stderr.matches("No such file").count(), 1, "it is said once: {}", missing.all());
    let many = ["--beside-others", "--threads", "1", "--files", "3000000000"];
    bench("metadata", place.path(), &many).refused(&["--files"]);
    let twice = place.path().display().to_string();
    bench("device", place.path(), &["--beside-others", &twice]).refused(&["is named twice"]);
    let large = ["--beside-others", "--total", "100000000g"];
    bench("random", place.path(), &large).refused(&["bytes are needed", "are free"]);
    let odd = ["--beside-others", "--direct", "--record", "1k", "--total", "1m"];
    bench("random", place.path(), &odd).refused(&["--direct", "multiple of 4096"]);
    bench("random", place.path(), &["--beside-others", "--total", "1k"]).refused(&["less than a record"]);
    assert_eq!(std::fs::read(&theirs).unwrap(), b"x");
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1, "nothing else is left");
}

#[test]
fn a_run_that_is_interrupted_leaves_nothing() {
    let place = place();
    let mut command = Command::new(binary());
    command.args(["bench", "random"]).arg(place.path()).args([
        "--threads",
        "2",
        "--total",
        "2m",
        "--seconds",
        "600",
    ]);
    let mut running =
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let made = place.path().join(format!("ashlar-bench.{}/data.1", running.id()));
    while !made.exists() {
        assert!(running.try_wait().unwrap().is_none(), "it ended before it was asked to");
        std::thread::yield_now();
    }
    // SAFETY: kill takes no pointer; the child has not been waited for, so its number is its own.
    unsafe { libc::kill(running.id() as i32, libc::SIGINT) };
    assert!(!running.wait().unwrap().success());
    assert!(is_empty(place.path()));
}

#[test]
fn devices_are_measured_alone_and_together() {
    let (one, two) = (place(), place());
    let device = |options: &[&str]| {
        let mut command = Command::new(binary());
        let small = ["--bytes", "4m", "--threads", "2", "--seconds", "1", "--repetitions", "1"];
        finish(command.args(["bench", "device"]).args([one.path(), two.path()]).args(small).args(options))
    };
    let ended = device(&[]).expect(0);
    for text in ["stream write", "stream read", "random write", "random read", "all 2 together"] {
        assert!(ended.stdout.contains(text), "{text} is missing in {}", ended.all());
    }
    let read: serde_json::Value = serde_json::from_str(&device(&["--json"]).expect(0).stdout).unwrap();
    assert_eq!(
        (read["figures"].as_array().unwrap().len(), read["sharing"].as_array().unwrap().len()),
        (12, 4)
    );
    assert!(is_empty(one.path()) && is_empty(two.path()));
    std::fs::write(two.path().join("theirs"), "x").unwrap();
    device(&[]).refused(&["is not empty", "theirs"]);
    assert!(is_empty(one.path()), "what was made before the refusal is gone");
}

#[test]
fn the_workloads_of_the_guide_run() {
    let guide = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/bench.md");
    let text = std::fs::read_to_string(guide).unwrap();
    let commands = text.lines().filter_map(|line| line.strip_prefix("$ ashlar bench "));
    let (mut count, mut kept) = (0, None);
    // Runs and their reports, and those with agents, have tests of their own.
    let others = ["run ", "compare ", "agent "];
    let alone = |command: &&str| {
        command.contains("/mnt/")
            && !command.contains("--agents")
            && !others.iter().any(|other| command.starts_with(other))
    };
    for command in commands.filter(alone) {
        count += 1;
        // What one command keeps another one reads.
        let place = kept.take().filter(|_| command.contains("--use-kept")).unwrap_or_else(|| {
            let place = place();
            ["scratch", "disk1", "disk2"]
                .iter()
                .for_each(|name| std::fs::create_dir(place.path().join(name)).unwrap());
            place
        });
        // As shown, but for how much and how long.
        let smaller = [
            ("--total 64g", ""),
            ("--files 1000000", ""),
            ("--files 2097152", ""),
            ("1..512", "1..8"),
            ("--seconds 60", ""),
            ("--repetitions 1", ""),
            ("--bytes 64g", ""),
            ("/mnt/", &format!("{}/", place.path().display())),
        ];
        let line = smaller.iter().fold(command.to_owned(), |line, (shown, here)| line.replace(shown, here));
        let few: &[&str] = match line.split_once(' ').unwrap().0 {
            _ if line.contains("--use-kept") => &["--keep-caches"],
            "metadata" => &["--files", "130", "--keep-caches"],
            "sequential" => &["--total", "64m", "--keep-caches"],
            "random" => &["--total", "64m", "--seconds", "1", "--keep-caches"],
            _ => &["--bytes", "4m", "--seconds", "1"],
        };
        let mut command = Command::new(binary());
        command.arg("bench").args(line.split_whitespace()).args(few).args(["--repetitions", "1"]);
        finish(&mut command).expect(0);
        kept = line.contains("--keep-files").then_some(place);
    }
    assert!(count >= 6, "{count} commands");
}
