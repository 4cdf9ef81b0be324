//! Goal: no copy of a directory of metadata or of a target is served beside the directory itself, and no older one instead of it, in a file system of many servers: it is named, and nobody
//! is locked out of his own directory. Method: real processes; copies with `cp -a`, starts that are killed at moments that are drawn.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_env::Env;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::cluster::{Lab, Role};
use support::{PATIENCE, binary, can_mount};

/// Copies a directory, also while it is in use.
fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

/// Waits until a role has ended by itself, for as long as a server may take that has to stop.
#[track_caller]
fn wait_for_end(role: &mut Role) {
    let deadline = Instant::now() + Duration::from_secs(15);
    while !role.has_ended() {
        assert!(Instant::now() < deadline, "goes on: {}", role.text());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[track_caller]
fn events(lab: &Lab, kind: &str) -> String {
    lab.ashlar(&format!("event list --kind {kind} --identity @first")).expect(0).stdout
}

#[test]
fn a_copy_of_a_running_metadata_directory_is_refused_until_the_server_is_away_which_then_stops() {
    if !can_mount("a copy of running metadata") {
        return;
    }
    let mut lab = Lab::start(1, 1);
    fs::write(lab.path("m0/file"), "before").unwrap();
    copy(&lab.path("meta"), &lab.path("copy"));
    let of_copy = format!("meta --meta @copy --listen {} --identity @mds", Lab::free_address());
    let told = ["metadata", "copy is served by mds", "/meta: one of the two is a copy", "--take-over"];
    lab.ashlar(&of_copy).refused(&told);
    // Neither may another machine.
    lab.join_meta("mds9");
    let elsewhere = format!("meta --meta @copy --listen {} --identity @mds9", Lab::free_address());
    lab.ashlar(&elsewhere).refused(&told);
    assert!(events(&lab, "copy-refused").contains("metadata of mds"));
    // The server did not notice, and its mount neither.
    fs::write(lab.path("m0/file"), "after").unwrap();
    assert!(!lab.meta.has_ended());
    assert_eq!(fs::read_to_string(lab.path("m0/file")).unwrap(), "after");

    // A server that hangs is taken for gone. When it goes on, it learns that it is not the one any more.
    lab.mounts[0].stop();
    lab.meta.pause();
    std::thread::sleep(Duration::from_secs(11));
    let mut other = lab.run("mds9", &elsewhere, "serves");
    lab.meta.resume();
    wait_for_end(&mut lab.meta);
    let why = lab.meta.text();
    assert!(why.contains("was taken over by mds9") && why.contains("this server stops"), "{why}");
    lab.start_mount(0);
    assert!(lab.path("m0/file").exists(), "the copy has it");
    // And is not started any more.
    let again = format!("meta --meta @meta --listen {} --identity @mds", lab.address(1));
    lab.ashlar(&again).refused(&["is an older copy", "mds9 has served it", "/copy", "--accept-older-copies"]);
    lab.mounts[0].stop();
    other.stop();
    lab.stop();
}

#[test]
fn an_older_copy_of_metadata_is_refused_and_served_when_an_administrator_accepts_it() {
    if !can_mount("older metadata") {
        return;
    }
    let mut lab = Lab::start(1, 1);
    fs::write(lab.path("m0/old"), vec![1; 1 << 20]).unwrap();
    lab.mounts[0].stop();
    lab.meta.stop();
    copy(&lab.path("meta"), &lab.path("older"));
    lab.start_meta();
    lab.start_mount(0);
    for number in 0..8 {
        fs::write(lab.path(&format!("m0/new{number}")), vec![2; 1 << 20]).unwrap();
    }
    lab.mounts[0].stop();
    lab.meta.stop();
    // The disk was restored from an image.
    fs::rename(lab.path("meta"), lab.path("newest")).unwrap();
    copy(&lab.path("older"), &lab.path("meta"));
    let start = format!("meta --meta @meta --listen {} --identity @mds", lab.address(1));
    let told = ["the metadata", "is an older copy: it says start 1", "in start 2", "--accept-older-copies"];
    let told: Vec<&str> = told.iter().map(|word| word.strip_prefix("the ").unwrap_or(word)).collect();
    lab.ashlar(&start).refused(&told);
    // Nothing was changed: with the newest one all is there.
    fs::rename(lab.path("meta"), lab.path("aside")).unwrap();
    fs::rename(lab.path("newest"), lab.path("meta")).unwrap();
    lab.start_meta();
    lab.start_mount(0);
    assert!(fs::read(lab.path("m0/new7")).unwrap() == vec![2; 1 << 20]);
    lab.mounts[0].stop();
    lab.meta.stop();

    fs::rename(lab.path("meta"), lab.path("newest")).unwrap();
    fs::rename(lab.path("aside"), lab.path("meta")).unwrap();
    lab.meta = lab.run("mds", &format!("{start} --accept-older-copies"), "serves");
    assert!(
        lab.meta.text().contains("is an older copy: what has changed since is gone"),
        "{}",
        lab.meta.text()
    );
    assert!(events(&lab, "copy-accepted").contains("start 1"));
    lab.start_mount(0);
    assert!(fs::read(lab.path("m0/old")).unwrap() == vec![1; 1 << 20]);
    assert!(!lab.path("m0/new7").exists());
    // What is newer on the targets does not show in new files.
    for number in 0..8 {
        let path = lab.path(&format!("m0/holes{number}"));
        let file = fs::File::create(&path).unwrap();
        file.set_len(1 << 20).unwrap();
        drop(file);
        assert!(fs::read(&path).unwrap() == vec![0; 1 << 20], "old bytes in {}", path.display());
    }
    lab.mounts[0].stop();
    lab.meta.stop();
    // From then on it needs no word, and the newest one is the older one.
    lab.start_meta();
    lab.meta.stop();
    fs::rename(lab.path("meta"), lab.path("aside")).unwrap();
    fs::rename(lab.path("newest"), lab.path("meta")).unwrap();
    lab.ashlar(&start).refused(&["is an older copy"]);
    fs::rename(lab.path("meta"), lab.path("newest")).unwrap();
    fs::rename(lab.path("aside"), lab.path("meta")).unwrap();
    lab.stop();
    lab.ashlar("fsck --state @state --meta @meta --data @d0").expect(0);
}

#[test]
fn an_older_copy_of_metadata_is_not_served_if_shards_have_come_to_the_server_since() {
    if !can_mount("older metadata, and shards that moved") {
        return;
    }
    let mut lab = Lab::start(1, 1);
    for number in 0..8 {
        fs::write(lab.path(&format!("m0/file{number}")), vec![number; 1 << 20]).unwrap();
    }
    lab.join_meta("mds2");
    let start = format!("meta --meta @meta2 --listen {} --identity @mds2", Lab::free_address());
    let mut second = lab.run("mds2", &start, "serves");
    second.stop();
    copy(&lab.path("meta2"), &lab.path("older"));
    let mut second = lab.run("mds2", &start, "serves");
    lab.ashlar("shard drain mds --identity @first").expect(0);
    let deadline = Instant::now() + PATIENCE;
    let are_there = || {
        let listed = lab.ashlar("shard list --json --identity @first").expect(0).stdout;
        !listed.contains("\"mds\"")
    };
    while !are_there() {
        assert!(Instant::now() < deadline, "shards do not move");
        std::thread::sleep(Duration::from_millis(200));
    }
    lab.mounts[0].stop();
    second.stop();
    fs::rename(lab.path("meta2"), lab.path("newest")).unwrap();
    copy(&lab.path("older"), &lab.path("meta2"));
    let told = ["shard-0, ", "came to this server after this copy", "restore a backup"];
    lab.ashlar(&format!("{start} --accept-older-copies")).refused(&told);
    // Nothing was deleted, and the newest one is served as ever.
    fs::remove_dir_all(lab.path("meta2")).unwrap();
    fs::rename(lab.path("newest"), lab.path("meta2")).unwrap();
    let mut second = lab.run("mds2", &start, "serves");
    lab.start_mount(0);
    for number in 0..8 {
        assert!(fs::read(lab.path(&format!("m0/file{number}"))).unwrap() == vec![number; 1 << 20]);
    }
    lab.mounts[0].stop();
    second.stop();
    lab.stop();
}

#[test]
fn a_torn_copy_of_metadata_takes_the_directory_over_from_nobody() {
    if !can_mount("torn metadata") {
        return;
    }
    let mut lab = Lab::start(1, 1);
    fs::write(lab.path("m0/file"), "there").unwrap();
    lab.mounts[0].stop();
    lab.meta.stop();
    copy(&lab.path("meta"), &lab.path("torn"));
    let mut torn = 0;
    let mut left = vec![lab.path("torn")];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else if path.parent() != Some(&lab.path("torn")) {
                // What was copied of a log and its tables is no log.
                fs::write(&path, "torn").unwrap();
                torn += 1;
            }
        }
    }
    assert!(torn > 0);
    let of_copy = format!("meta --meta @torn --listen {} --identity @mds", Lab::free_address());
    lab.ashlar(&of_copy).expect(1);
    let begun = Instant::now();
    // Not older than what was never served.
    lab.start_meta();
    assert!(begun.elapsed() < PATIENCE);
    lab.start_mount(0);
    assert_eq!(fs::read_to_string(lab.path("m0/file")).unwrap(), "there");
    lab.mounts[0].stop();
    lab.stop();
}

#[test]
fn an_older_copy_of_a_target_is_refused_and_served_when_an_administrator_accepts_it() {
    if !can_mount("an older target") {
        return;
    }
    let mut lab = Lab::start(2, 1);
    fs::write(lab.path("m0/file"), vec![1; 2 << 20]).unwrap();
    lab.storage[0].stop();
    copy(&lab.path("d0"), &lab.path("older"));
    lab.start_storage(0);
    fs::write(lab.path("m0/file"), vec![2; 2 << 20]).unwrap();
    lab.mounts[0].stop();
    lab.storage[0].stop();
    fs::rename(lab.path("d0"), lab.path("newest")).unwrap();
    fs::rename(lab.path("older"), lab.path("d0")).unwrap();
    let start = format!("storage --data @d0 --listen {} --identity @oss0", lab.address(2));
    lab.ashlar(&start).refused(&["target-1", "d0/target is an older copy", "oss0", "--accept-older-copies"]);
    assert!(events(&lab, "copy-refused").contains("target-1"));
    // An index of before in a target of now is none either.
    copy(&lab.path("newest"), &lab.path("mixed"));
    fs::remove_dir_all(lab.path("mixed/target/index")).unwrap();
    copy(&lab.path("d0/target/index"), &lab.path("mixed/target/index"));
    let mixed = format!("storage --data @mixed --listen {} --identity @oss0", lab.address(2));
    lab.ashlar(&mixed).refused(&["mixed", "index", "it is a copy"]);

    lab.storage[0] = lab.run("oss0", &format!("{start} --accept-older-copies"), "serves");
    assert!(events(&lab, "copy-accepted").contains("target-1"));
    lab.start_mount(0);
    let content = fs::read(lab.path("m0/file")).unwrap();
    assert!(content.iter().all(|byte| [0, 1, 2].contains(byte)) && content.len() == 2 << 20);
    lab.storage[0].stop();
    lab.start_storage(0);
    lab.storage[0].stop();
    fs::rename(lab.path("d0"), lab.path("accepted")).unwrap();
    fs::rename(lab.path("newest"), lab.path("d0")).unwrap();
    lab.ashlar(&start).refused(&["target-1", "is an older copy"]);
    fs::rename(lab.path("d0"), lab.path("newest")).unwrap();
    fs::rename(lab.path("accepted"), lab.path("d0")).unwrap();
    lab.start_storage(0);
    lab.stop();
}

#[test]
fn a_target_is_taken_over_at_once_by_word_and_by_itself_from_a_server_that_has_stopped() {
    if !can_mount("targets that change servers") {
        return;
    }
    let mut lab = Lab::start(1, 1);
    fs::write(lab.path("m0/file"), vec![1; 2 << 20]).unwrap();
    lab.mounts[0].stop();
    let token = lab.ashlar("token --role storage --identity @first").expect(0).stdout;
    lab.ashlar(&format!("join {} --name oss9 --identity @oss9", token.trim())).expect(0);
    // Its disk goes to another machine, where it has another place.
    lab.storage[0].stop();
    copy(&lab.path("d0"), &lab.path("moved"));
    let elsewhere = format!("storage --data @moved --listen {} --identity @oss9", Lab::free_address());
    let begun = Instant::now();
    let mut other = lab.run("oss9", &elsewhere, "serves");
    assert!(begun.elapsed() < Duration::from_secs(9), "it had stopped in good order, which managers know");
    lab.start_mount(0);
    assert!(fs::read(lab.path("m0/file")).unwrap() == vec![1; 2 << 20]);
    lab.mounts[0].stop();
    // And once more, from one that was killed. Managers cannot know; the administrator does.
    other.kill();
    copy(&lab.path("moved"), &lab.path("back"));
    let back = format!("storage --data @back --listen {} --identity @oss0", lab.address(2));
    let begun = Instant::now();
    lab.storage[0] = lab.run("oss0", &format!("{back} --take-over"), "serves");
    assert!(begun.elapsed() < Duration::from_secs(9), "it is not waited for");
    let told = events(&lab, "taken-over");
    assert!(told.contains("target-1") && told.contains("from oss9"), "{told}");
    lab.start_mount(0);
    assert!(fs::read(lab.path("m0/file")).unwrap() == vec![1; 2 << 20]);
    lab.stop();
}

#[test]
fn a_server_that_is_killed_at_any_moment_of_a_start_can_be_started_again() {
    if !can_mount("starts that are killed") {
        return;
    }
    let mut lab = Lab::start(1, 1);
    fs::write(lab.path("m0/file"), vec![1; 2 << 20]).unwrap();
    lab.mounts[0].stop();
    lab.meta.stop();
    lab.storage[0].stop();
    let line = |role: &str, directory: &str, own: &str, at: usize| -> Vec<String> {
        let (directory, own) =
            (lab.path(directory).display().to_string(), lab.path(own).display().to_string());
        let flag = if role == "meta" { "--meta" } else { "--data" };
        [role, flag, &directory, "--listen", &lab.address(at).to_string(), "--identity", &own]
            .map(str::to_owned)
            .into()
    };
    let log = lab.path("killed.log");
    let spawn = |args: &[String]| -> Child {
        Command::new(binary())
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap()
    };
    let entropy = Env::os().entropy;
    for (role, args) in
        [("meta", line("meta", "meta", "mds", 1)), ("storage", line("storage", "d0", "oss0", 2))]
    {
        // How long a start takes here, to draw moments within it.
        let begun = Instant::now();
        match role {
            "meta" => lab.start_meta(),
            _ => lab.start_storage(0),
        }
        let whole_us = (begun.elapsed().as_micros() as u64 + 20_000).min(1_500_000);
        match role {
            "meta" => lab.meta.kill(),
            _ => lab.storage[0].kill(),
        }
        for _ in 0..30 {
            let mut child = spawn(&args);
            std::thread::sleep(Duration::from_micros(entropy.next_u64() % whole_us));
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "{role} was refused: {}", fs::read_to_string(&log).unwrap());
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
    lab.start_meta();
    lab.start_storage(0);
    lab.start_mount(0);
    assert!(fs::read(lab.path("m0/file")).unwrap() == vec![1; 2 << 20]);
    assert!(events(&lab, "copy-refused").trim().lines().count() <= 1, "nothing was taken for a copy");
    // The first start of all as well.
    lab.join_meta("mds2");
    let address = Lab::free_address();
    let (directory, own) = (lab.path("meta2").display().to_string(), lab.path("mds2").display().to_string());
    let args = ["meta", "--meta", &directory, "--listen", &address, "--identity", &own].map(str::to_owned);
    for at in 0..25 {
        let mut child = spawn(&args);
        std::thread::sleep(Duration::from_millis(5 * at));
        assert!(
            child.try_wait().unwrap().is_none(),
            "the first start was refused: {}",
            fs::read_to_string(&log).unwrap()
        );
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let begun = Instant::now();
    let mut second =
        lab.run("mds2", &format!("meta --meta @meta2 --listen {address} --identity @mds2"), "serves");
    assert!(begun.elapsed() < PATIENCE);
    second.stop();
    lab.stop();
}
