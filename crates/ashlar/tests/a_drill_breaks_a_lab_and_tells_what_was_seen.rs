//! Goal: `ashlar drill` has failures happen in a lab while programs work, tells truly what these have seen, puts everything right again, and does nothing to a file system that is no lab unless that was named.
//! Method: a lab of real processes; drills of a few failures, one that is told to stop, and one whose files somebody changes behind its back.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use support::{Ended, PATIENCE, ashlar, binary, can_mount, can_start, finish_in, has_package, soon};

/// A lab with copies of everything.
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
    #[track_caller]
    fn new(storage: &str) -> Place {
        let place = Place { dir: tempfile::tempdir().unwrap() };
        let mut up = Command::new(binary());
        up.args(["lab", "up", "--clients", "2", "--dir"]).arg(place.lab()).args(storage.split(' '));
        finish_in(PATIENCE * 3, &mut up).expect(0);
        place.as_manager(&["pool", "copies", "default", "2"]).expect(0);
        place
    }

    fn lab(&self) -> PathBuf {
        self.dir.path().join("lab")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// A command of an administrator, in the network of the manager.
    fn as_manager(&self, words: &[&str]) -> Ended {
        let mut command = Command::new(binary());
        command.args(["lab", "exec", "--dir"]).arg(self.lab()).args(["manager", "--"]).arg(binary());
        command.args(words).arg("--identity").arg(self.lab().join("identity/manager"));
        finish_in(PATIENCE, command.stdin(Stdio::null()))
    }

    /// A drill of these failures. On a machine that is busy with other tests everything takes longer than is promised.
    fn drill(&self, only: &str, load_seconds: u32) -> Command {
        let mut command = Command::new(binary());
        command.args(["drill", "run", "--workers", "2", "--stall-max", "60", "--redundant-within", "120"]);
        command.args(["--only", only, "--load-seconds", &load_seconds.to_string(), "--lab"]).arg(self.lab());
        command.arg("--report").arg(self.path("drill.md")).arg("--json").arg(self.path("drill.json"));
        command.stdin(Stdio::null());
        command
    }

    fn report(&self) -> Value {
        serde_json::from_str(&self.text("drill.json")).unwrap()
    }

    fn node(&self, name: &str) -> Value {
        let lab = self.lab().display().to_string();
        let status: Value =
            serde_json::from_str(&ashlar(&["lab", "status", "--json", "--dir", &lab]).expect(0).stdout)
                .unwrap();
        status["nodes"].as_array().unwrap().iter().find(|node| node["name"] == name).unwrap().clone()
    }

    /// Directories of drills.
    fn left(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.lab().join("client1")).unwrap();
        entries
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.to_string_lossy().contains("ashlar-drill"))
            .collect()
    }

    /// Waits until a failure has begun.
    #[track_caller]
    fn wait_until_begun(&self) {
        soon(PATIENCE, "the failure begins", || self.text("drill.md.ledger").contains("\"what\":\"begins\""));
    }
}

#[track_caller]
fn end(child: Child) -> Ended {
    let mut child = child;
    soon(PATIENCE * 2, "the drill ends", || child.try_wait().unwrap().is_some());
    let output = child.wait_with_output().unwrap();
    Ended {
        code: output.status.code(),
        signal: None,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn can_drill(test: &str) -> bool {
    has_package(test, "iproute2", can_start("ip", "-V") && can_start("tc", "-V")) && can_mount(test)
}

/// Writes something else into files of a drill, through a mount, as nobody should.
fn spoil(dir: &Path) -> usize {
    let mut spoiled = 0;
    for worker in fs::read_dir(dir).unwrap().flatten() {
        for file in fs::read_dir(worker.path()).into_iter().flatten().flatten() {
            let opened = OpenOptions::new().write(true).open(file.path());
            // It may be removed meanwhile.
            let is_long = file.metadata().is_ok_and(|known| known.len() > 1000);
            spoiled +=
                usize::from(is_long && opened.is_ok_and(|file| file.write_all_at(b"spoiled", 500).is_ok()));
        }
    }
    spoiled
}

#[test]
fn a_drill_tells_what_was_seen_and_puts_everything_right() {
    if !can_drill("a drill") {
        return;
    }
    let place = Place::new("--meta 2 --copies 2 --storage 3");
    let before = place.node("storage1")["pid"].clone();
    let ended = finish_in(PATIENCE * 4, &mut place.drill("link,server-storage,fence-device,disk", 7));
    let report = place.text("drill.md");
    let ended = ended.expect(0);
    // In the order of the list, whatever was asked for.
    let told: Vec<Value> = place.report()["failures"].as_array().unwrap().clone();
    let verdicts: Vec<(&str, &str)> = told
        .iter()
        .map(|entry| (entry["failure"]["name"].as_str().unwrap(), entry["verdict"].as_str().unwrap()))
        .collect();
    let expected = [
        ("disk", "not run"),
        ("server-storage", "survived"),
        ("fence-device", "not run"),
        ("link", "survived"),
    ];
    assert_eq!(verdicts, expected, "{report}");
    for entry in [&told[1], &told[3]] {
        let outcome = &entry["outcome"];
        assert!(outcome["calls"]["count"].as_u64().unwrap() > 10, "{report}");
        assert!(outcome["verified_files"].as_u64().unwrap() > 2, "{report}");
        assert_eq!(outcome["calls"]["failed"]["count"], 0, "{report}");
        assert!(outcome["full_redundancy_after_s"].as_f64().is_some(), "{report}");
    }
    assert!(
        told[1]["outcome"]["worst"]["chains_short"].as_u64().unwrap() > 0,
        "copies were missing: {report}"
    );
    for part in [
        "| 2 | server-storage",
        "--disks 2",
        "Not run: a lab has no shared disks, and so no fence device",
        "--kind fence-failed",
        "storage1 killed",
        "| longest |",
    ] {
        assert!(report.contains(part), "no `{part}` in {report}");
    }
    assert!(ended.stdout.contains("2 survived, 0 failed, 2 not run"), "{}", ended.stdout);
    let after = place.node("storage1")["pid"].clone();
    assert!(after.is_i64() && after != before, "it was killed, and started again");
    assert_eq!(place.left(), Vec::<PathBuf>::new(), "nothing is left of a good drill");
    assert!(place.text("drill.md.ledger").lines().count() > 20);

    rounds_of_what_nobody_has_chosen_are_told(&place);
    damage_is_told(&place);
    one_that_is_told_to_stop_puts_right(&place);
    nothing_is_done_without_an_operator(&place);
}

/// What happens in a round follows from its seed: in this one a metadata server is cut off one way, and two storage servers are killed within two seconds.
fn rounds_of_what_nobody_has_chosen_are_told(place: &Place) {
    let mut thrash = Command::new(binary());
    thrash.args([
        "drill",
        "thrash",
        "--seed",
        "19157",
        "--rounds",
        "1",
        "--workers",
        "2",
        "--stall-max",
        "60",
    ]);
    thrash.args(["--redundant-within", "120", "--lab"]).arg(place.lab());
    thrash.arg("--report").arg(place.path("thrash.md")).arg("--json").arg(place.path("thrash.json"));
    let ended = finish_in(PATIENCE * 4, thrash.stdin(Stdio::null()));
    let text = place.text("thrash.md");
    let ended = ended.expect(0);
    assert!(ended.stdout.contains("1 rounds survived, 0 failed"), "{}", ended.all());
    let report: Value = serde_json::from_str(&place.text("thrash.json")).unwrap();
    let round = &report["rounds"][0];
    let done: Vec<&str> = round["done"].as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
    assert_eq!(done.len(), 3, "{text}");
    for (what, one) in ["what meta1 sent to", "storage1 killed", "storage3 killed"].into_iter().zip(done) {
        assert!(one.contains(what), "{text}");
    }
    assert!(round["calls"].as_u64().unwrap() > 10 && round["verified_files"].as_u64().unwrap() > 2, "{text}");
    let short = ["chains_short", "meta_short"].map(|what| round["worst"][what].as_u64().unwrap());
    assert!(short.iter().sum::<u64>() > 0, "copies were missing: {text}");
    let calls: u64 =
        report["stalls"].as_array().unwrap().iter().map(|row| row["calls"].as_u64().unwrap()).sum();
    assert_eq!(calls, round["calls"].as_u64().unwrap(), "{text}");
    assert!(text.contains("- seed: 19157") && text.contains("| 1 | "), "{text}");
    assert_eq!(place.left(), Vec::<PathBuf>::new(), "nothing is left of what went well");
    for node in ["storage1", "storage3", "meta1"] {
        assert!(place.node(node)["pid"].is_i64(), "{node} runs again");
    }
}

fn damage_is_told(place: &Place) {
    fs::remove_file(place.path("drill.md.ledger")).unwrap();
    let mut command = place.drill("server-meta", 4);
    let drill = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    place.wait_until_begun();
    let dir = place.left().pop().unwrap();
    let mut spoiled = 0;
    for _ in 0..10 {
        spoiled += spoil(&dir);
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(spoiled > 0);
    let ended = end(drill).expect(1);
    let (report, text) = (place.report(), place.text("drill.md"));
    assert!(ended.stdout.contains("0 survived, 1 failed"), "{}", ended.all());
    let outcome = &report["failures"][0]["outcome"];
    let count = |what: &Value| what["count"].as_u64().unwrap();
    assert!(count(&outcome["calls"]["damaged"]) + count(&outcome["wrong_files"]) > 0, "{text}");
    assert!(text.contains("**Failed:**") && text.contains("other bytes than were written"), "{text}");
    assert_eq!(place.left(), std::slice::from_ref(&dir), "what is wrong is kept");
    fs::remove_dir_all(dir).unwrap();
}

fn one_that_is_told_to_stop_puts_right(place: &Place) {
    fs::remove_file(place.path("drill.md.ledger")).unwrap();
    let mut command = place.drill("pause-storage,link", 5);
    let drill = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    place.wait_until_begun();
    std::thread::sleep(Duration::from_secs(1));
    // SAFETY: kill takes no pointer; the process is a child that was not waited for.
    unsafe { libc::kill(drill.id() as i32, libc::SIGINT) };
    let ended = end(drill).expect(1);
    let text = place.text("drill.md");
    assert!(
        text.contains("told to stop before the end") && ended.stdout.contains("1 failed, 1 not run"),
        "{text}"
    );
    let stat = fs::read_to_string(format!("/proc/{}/stat", place.node("storage1")["pid"])).unwrap();
    let state = stat.rsplit(") ").next().unwrap().chars().next();
    assert_ne!(state, Some('T'), "it goes on");
    place.left().iter().for_each(|dir| fs::remove_dir_all(dir).unwrap());
}

/// A lab is a file system like others for whoever names its mounts.
fn nothing_is_done_without_an_operator(place: &Place) {
    let report = place.path("real.md").display().to_string();
    let mounts = ["client1", "client2"].map(|name| place.lab().join(name).display().to_string());
    let words = ["drill", "run", "--mount", &mounts[0], "--mount", &mounts[1], "--report", &report];
    let refused = place.as_manager(&words).expect(1);
    let id = refused.stderr.split("--consent ").nth(1).unwrap().split([' ', ';']).next().unwrap().to_owned();
    assert!(refused.stderr.contains("is no lab") && id.len() == 36, "{}", refused.stderr);
    let wrong = [&words[..], &["--consent", "yes"]].concat();
    place.as_manager(&wrong).refused(&["is not the id", &id]);
    assert!(place.left().is_empty() && !Path::new(&report).exists(), "nothing was done");
    let inside = place.lab().join("client1/drill.md").display().to_string();
    let kept_inside = [&words[..6], &["--consent", &id, "--report", &inside]].concat();
    place.as_manager(&kept_inside).refused(&["would be in the file system that is drilled"]);
    let agreed = [&words[..], &["--consent", &id, "--only", "disk,link"]].concat();
    let ended = place.as_manager(&agreed).expect(1);
    assert!(ended.stdout.contains("0 survived, 0 failed, 2 not run"), "{}", ended.all());
    let text = place.text("real.md");
    assert!(text.contains("needs an operator") && text.contains("pull one disk"), "{text}");
}

#[test]
fn a_drill_of_a_file_system_that_is_no_lab_is_refused_without_its_id() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let init = [
        "init",
        "--name",
        "first",
        "--listen",
        "127.0.0.97",
        "--state",
        &path("state"),
        "--identity",
        &path("id"),
    ];
    ashlar(&init).expect(0);
    let report = path("drill.md");
    let run = ["drill", "run", "--mount", "/nowhere", "--identity", &path("id"), "--report", &report];
    ashlar(&run).refused(&["is no lab", "--consent", "--make-lab"]);
    ashlar(&[&run[..], &["--consent", "11111111-2222-3333-4444-555555555555"]].concat())
        .refused(&["is not the id"]);
    assert!(!Path::new(&report).exists(), "nothing was done");
    ashlar(&["drill", "run", "--lab", &path("none"), "--only", "dsk"]).refused(&["`dsk`", "server-storage"]);
    let listed = ashlar(&["drill", "list", "--json"]).expect(0).stdout;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert!(listed.as_array().unwrap().len() >= 15, "{listed}");
}

/// What is mounted below a directory.
fn mounted_below(dir: &Path) -> usize {
    let dir = dir.display().to_string();
    fs::read_to_string("/proc/self/mountinfo").unwrap().lines().filter(|line| line.contains(&dir)).count()
}

#[test]
fn a_disk_of_a_lab_fails_and_is_mounted_again() {
    let test = "a drill with disks";
    if !can_drill(test) || !has_package(test, "e2fsprogs", can_start("mkfs.ext4", "-V")) {
        return;
    }
    let place = Place::new("--storage 2 --disks 1 --disk-size 512m");
    let disks = ["storage1", "storage2"].map(|node| place.lab().join(format!("data/{node}/disk1")));
    assert!(disks.iter().all(|disk| mounted_below(disk) == 1 && disk.join("target").exists()));
    let before = place.node("storage1")["pid"].clone();
    // What programs see of it is not what is asked here.
    let ended = finish_in(PATIENCE * 4, &mut place.drill("disk", 3));
    let text = place.text("drill.md");
    assert!(
        matches!(ended.code, Some(0 | 1)) && text.contains("every call of disk1 of storage1 failed"),
        "{text}"
    );
    assert_eq!(place.report()["failures"][0]["outcome"]["troubles"], serde_json::json!([]), "{text}");
    let after = place.node("storage1")["pid"].clone();
    assert!(after.is_i64() && after != before, "its server was started again");
    fs::write(disks[0].join("probe"), b"it can be written").unwrap();
    let lab = place.lab();
    ashlar(&["lab", "down", "--dir", &lab.display().to_string()]).expect(0);
    assert!(mounted_below(&lab) == 0 && !lab.exists(), "nothing is left");
}
