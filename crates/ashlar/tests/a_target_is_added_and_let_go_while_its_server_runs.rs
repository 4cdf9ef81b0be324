//! Goal: a disk more or less is no matter of a restart. A storage server that runs takes a directory into service as a target, and lets go of one that was removed, while programs read
//! and write through it and notice nothing; what it was told holds after its next start; and what cannot be is refused with the reason and the way out.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::PATIENCE;
use support::cluster::{Lab, Role};

const KIB: usize = 1 << 10;

#[track_caller]
fn json(lab: &Lab, line: &str) -> Value {
    let printed = lab.ashlar(&format!("{line} --json --identity @first")).expect(0).stdout;
    serde_json::from_str(&printed).unwrap_or_else(|_| panic!("no JSON: {printed}"))
}

#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + 2 * PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn chains(lab: &Lab, id: u64) -> u64 {
    let targets = json(lab, "target list");
    let target = targets.as_array().unwrap().iter().find(|target| target["id"] == id).cloned();
    target.unwrap_or_else(|| panic!("no target {id}: {targets}"))["chains"].as_u64().unwrap()
}

/// A program that overwrites its file and reads it back until it is told to end; the longest time that a call took.
fn work(path: &Path, is_over: &AtomicBool, rounds: &AtomicU64) -> Duration {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    let mut longest = Duration::ZERO;
    for round in 0u64.. {
        if is_over.load(SeqCst) {
            return longest;
        }
        let (offset, data) = ((round % 20) * 40_000, vec![round as u8; 40_000]);
        let begun = Instant::now();
        file.write_all_at(&data, offset).unwrap();
        file.sync_data().unwrap();
        let mut found = vec![0; data.len()];
        file.read_exact_at(&mut found, offset).unwrap();
        longest = longest.max(begun.elapsed());
        assert!(found == data, "round {round}");
        rounds.fetch_add(1, SeqCst);
    }
    longest
}

/// Whether a process has something open below `path`.
fn has_open(role: &Role, path: &Path) -> bool {
    let files = fs::read_dir(format!("/proc/{}/fd", Lab::process(role))).unwrap().flatten();
    files.into_iter().any(|file| fs::read_link(file.path()).is_ok_and(|to| to.starts_with(path)))
}

#[track_caller]
fn refused(lab: &Lab, line: &str, words: &[&str]) {
    lab.ashlar(&format!("target add {line} --identity @first")).refused(words);
}

#[test]
fn a_server_takes_and_lets_go_of_targets_under_load_and_remembers_it() {
    let mut lab = Lab::start(1, 1);
    let mount = lab.path("m0");
    lab.ashlar("layout set @m0 --chunk-size 64K --stripe-count 4 --inline-size 0").expect(0);
    let still: Vec<u8> = (0..900 * KIB).map(|at| (at / 7) as u8).collect();
    fs::write(mount.join("still"), &still).unwrap();
    lab.ashlar("pool add fast --identity @first").expect(0);
    let process = Lab::process(&lab.storage[0]);
    let (is_over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        struct End<'a>(&'a AtomicBool);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, SeqCst);
            }
        }
        let worker = scope.spawn(|| work(&mount.join("busy"), &is_over, &rounds));
        let end = End(&is_over);
        wait_until("the first work", || rounds.load(SeqCst) > 20);

        for name in ["more", "fast"] {
            fs::create_dir(lab.path(name)).unwrap();
        }
        let added = json(&lab, &format!("target add {} --on oss0", lab.path("more").display()));
        assert_eq!(
            (&added["id"], &added["state"], &added["chains"], &added["node"]["name"], &added["pool"]),
            (&2.into(), &"online".into(), &100.into(), &"oss0".into(), &"default".into()),
            "{added}"
        );
        assert!(added["bytes_free"].as_u64().unwrap() > 0, "it serves: {added}");
        let told = lab.ashlar("target add @fast --on oss0 --pool fast --identity @first").expect(0).stdout;
        assert!(told.contains("target-3") && told.contains("fast"), "{told}");

        // New files use it, and what is there moves to it and away from the first one, which is let go of.
        lab.ashlar("target drain 1 --identity @first").expect(0);
        wait_until("the drain", || chains(&lab, 1) == 0);
        fs::write(mount.join("new"), &still).unwrap();
        assert!(has_open(&lab.storage[0], &lab.path("d0")));
        lab.ashlar("target remove 1 --identity @first").expect(0);
        wait_until("the server to let go", || !has_open(&lab.storage[0], &lab.path("d0")));
        let before = rounds.load(SeqCst);
        wait_until("work after it", || rounds.load(SeqCst) > before + 20);
        drop(end);
        let longest = worker.join().unwrap();
        assert!(longest < Duration::from_secs(10), "a call took {longest:?}");
    });
    assert_eq!(process, Lab::process(&lab.storage[0]), "the server was not started anew");
    assert!(!lab.storage[0].has_ended());
    assert!(fs::read(mount.join("still")).unwrap() == still);
    let files = |lab: &Lab, id: u64| -> Vec<u64> {
        let targets = json(lab, "target list");
        let all = targets.as_array().unwrap().iter();
        all.filter(|target| target["state"] == "online" && target["id"] == id)
            .map(|target| target["bytes_total"].as_u64().unwrap())
            .collect()
    };
    assert_eq!(files(&lab, 2).len(), 1);

    let mut told = String::new();
    wait_until("the event", || {
        told = lab.ashlar("event list --kind target-taken --identity @first").expect(0).stdout;
        told.contains("target-3")
    });
    assert!(told.contains("target-2") && told.contains("more/target, asked for on first"), "{told}");

    // What it was told holds after a start with the same command line, which lists the directory that is no target any more.
    lab.storage[0].kill();
    lab.start_storage(0);
    assert!(lab.storage[0].text().contains("target-1"), "{}", lab.storage[0].text());
    assert!(lab.storage[0].text().contains("was removed from the file system"), "{}", lab.storage[0].text());
    assert_eq!((files(&lab, 2).len(), files(&lab, 3).len()), (1, 1));
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
    for name in ["still", "new"] {
        assert!(fs::read(mount.join(name)).unwrap() == still, "{name}");
    }
    // The directory of the one that was removed is used again once it is empty.
    let again = format!("target add {} --on oss0 --identity @first", lab.path("d0").display());
    lab.ashlar(&again).refused(&["target-1", "was removed", "rm -r"]);
    fs::remove_dir_all(lab.path("d0/target")).unwrap();
    lab.ashlar(&again).expect(0);
    assert_eq!(chains(&lab, 4), 100);
    // One that was added is removed while its server is off: the server starts without it.
    lab.ashlar("target drain 2 --identity @first").expect(0);
    wait_until("the drain of what was added", || chains(&lab, 2) == 0);
    lab.storage[0].stop();
    lab.ashlar("target remove 2 --identity @first").expect(0);
    for is_first in [true, false] {
        lab.start_storage(0);
        let text = lab.storage[0].text();
        assert_eq!(text.contains("target-2"), is_first, "it is told of once: {text}");
        assert_eq!((files(&lab, 2).len(), files(&lab, 3).len(), files(&lab, 4).len()), (0, 1, 1));
        lab.storage[0].stop();
    }
    lab.start_storage(0);
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
    for name in ["still", "new"] {
        assert!(fs::read(mount.join(name)).unwrap() == still, "{name}");
    }
    lab.stop();
    let all = "--data @fast --data @d0";
    lab.ashlar(&format!("fsck --state @state --meta @meta {all}")).expect(0);
}

#[test]
fn what_cannot_be_a_target_is_refused_and_the_server_goes_on() {
    let mut lab = Lab::start(2, 1);
    let before = json(&lab, "target list");
    for name in ["new", "file-system", "other"] {
        fs::create_dir_all(lab.path(name)).unwrap();
    }
    File::create(lab.path("file")).unwrap();
    refused(&lab, "@new --on nobody", &["no node `nobody`", "ashlar node list"]);
    refused(&lab, "@new --on mds", &["no storage server runs on mds", "oss0, oss1"]);
    refused(&lab, "@new", &["no storage server runs on first", "--on"]);
    refused(&lab, "new --on oss0", &["oss0: `new` is no whole path"]);
    refused(&lab, "@missing --on oss0", &["there is no directory", "is its disk mounted", "mkdir"]);
    refused(&lab, "@file --on oss0", &["there is no directory"]);
    refused(&lab, "@new --on oss0 --pool slow", &["no pool `slow`, only default", "ashlar pool add"]);
    refused(&lab, "@new,listen=127.0.0.9:1 --on oss0", &["127.0.0.9:1", "--listen names"]);
    refused(&lab, "@new,numa=77 --on oss0", &["NUMA node 77"]);
    refused(&lab, "@d0 --on oss0", &["is target-1 of this server already"]);
    refused(&lab, "@d0/target/slabs --on oss0", &["inside of each other"]);
    // A copy of what is served here, and another name for it: the original goes on being served.
    let copied =
        std::process::Command::new("cp").arg("-a").args([lab.path("d0"), lab.path("own-copy")]).status();
    assert!(copied.unwrap().success());
    fs::create_dir(lab.path("bound")).unwrap();
    let bind =
        |args: &[&std::ffi::OsStr]| std::process::Command::new(args[0]).args(&args[1..]).status().unwrap();
    let (d0, bound) = (lab.path("d0"), lab.path("bound"));
    assert!(bind(&["mount".as_ref(), "--bind".as_ref(), d0.as_ref(), bound.as_ref()]).success());
    for _ in 0..2 {
        refused(&lab, "@own-copy --on oss0", &["target-1 is served here from", "d0/target", "a copy of it"]);
        refused(&lab, "@bound --on oss0", &["target-1 is served here from", "another name"]);
    }
    assert!(bind(&["umount".as_ref(), bound.as_ref()]).success());
    assert!(has_open(&lab.storage[0], &lab.path("d0/target")), "it is let go of");
    assert!(json(&lab, "target show 1")["bytes_free"].as_u64().is_some(), "it does not serve any more");
    // Served by another server of this file system; by another file system; a copy of a target.
    refused(&lab, "@d1 --on oss0", &["d1/target", "is locked by ashlar storage, process"]);
    let (mount, other) = (lab.path("other-mount"), lab.path("other"));
    fs::create_dir(&mount).unwrap();
    let line = format!("up {} --data {}", mount.display(), other.display());
    let mut up = lab.run("up", &line, "mounted");
    up.stop();
    refused(&lab, "@other --on oss0", &["belongs to file system"]);
    let copied = std::process::Command::new("cp").arg("-a").args([lab.path("d1"), lab.path("copy")]).status();
    assert!(copied.unwrap().success());
    refused(&lab, "@copy --on oss0", &["target-2", "oss1"]);
    // A target that is in another pool.
    lab.ashlar("pool add fast --identity @first").expect(0);
    lab.storage[1].stop();
    refused(&lab, "@d1 --on oss0 --pool fast", &["target-2", "in the pool default and stays there"]);
    lab.start_storage(1);
    // A disk that was where nothing is now.
    fs::create_dir(lab.path("gone")).unwrap();
    lab.ashlar("target add @gone --on oss1 --identity @first").expect(0);
    lab.storage[1].stop();
    fs::rename(lab.path("gone/target"), lab.path("hidden")).unwrap();
    let line = format!("storage --data @d1 --listen {} --identity @oss1", Lab::free_address());
    lab.ashlar(&line).refused(&["target-3", "is its disk mounted", "--without"]);
    lab.ashlar(&format!("{line} --without @d1")).refused(&["--without", "gone", "leaving its --data out"]);
    lab.storage[1] = lab.run("oss1", &format!("{line} --without @gone"), "serves");
    refused(&lab, "@gone --on oss1", &["target-3 was at", "is its disk mounted"]);
    fs::rename(lab.path("hidden"), lab.path("gone/target")).unwrap();
    lab.ashlar("target add @gone --on oss1 --identity @first").expect(0);

    assert!(!lab.storage[0].has_ended(), "{}", lab.storage[0].text());
    let after = json(&lab, "target list");
    assert_eq!(after[0]["chains"], before[0]["chains"]);
    let states: Vec<&str> =
        after.as_array().unwrap().iter().map(|target| target["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["online"; 3], "{after}");
    assert!(fs::read_dir(lab.path("new")).unwrap().next().is_none(), "nothing was made in what was refused");
    fs::write(lab.path("m0/file"), "goes on").unwrap();
    lab.stop();
}
