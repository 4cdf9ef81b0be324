//! Goal: of files whose directory asks for two copies, any storage server may be killed, hang or be stopped, and any disk fail or hang: programs wait for seconds, no call fails, nothing that was written is lost, and copies
//! come back by themselves, whole. Method: three storage servers and two mounts as processes; programs that write, read back through the other mount, truncate and remove files meanwhile.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use support::cluster::{Lab, Role};
use support::disk::Disk;
use support::{PATIENCE, can_mount, load, soon};

const FILE_BYTES: usize = 3 << 20;

fn content(of: u64, turn: u64, len: usize) -> Vec<u8> {
    let mut state = (of * 1_000_003 + turn).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out
}

/// One turn of a program: a file is written, some of it over again, and read through the other mount; every third is removed again.
fn work(lab: &Lab, of: u64, turn: u64) {
    let name = format!("copied/w{of}/f{turn}");
    let (own, other) =
        (lab.path(&format!("m{}/{name}", of % 2)), lab.path(&format!("m{}/{name}", (of + 1) % 2)));
    let mut bytes = content(of, turn, FILE_BYTES);
    let mut file = File::create(&own).unwrap();
    file.write_all(&bytes).unwrap();
    let (at, piece) = ((turn as usize * 7919) % (FILE_BYTES - 5000), content(of, turn + 1, 5000));
    file.write_all_at(&piece, at as u64).unwrap();
    bytes[at..at + 5000].copy_from_slice(&piece);
    if turn.is_multiple_of(4) {
        file.sync_all().unwrap();
    }
    drop(file);
    assert!(fs::read(&other).unwrap() == bytes, "{name} is not what was written");
    match turn % 3 {
        0 => fs::remove_file(&other).unwrap(),
        1 => File::options().write(true).open(&own).unwrap().set_len(FILE_BYTES as u64 / 2 + 77).unwrap(),
        _ => {}
    }
}

/// Whether files are as [`work`] has left them, up to `turns`.
fn check(lab: &Lab, of: u64, turns: u64) {
    for turn in 0..turns {
        let path = lab.path(&format!("m{}/copied/w{of}/f{turn}", (of + 1) % 2));
        if turn % 3 == 0 {
            assert!(!path.exists(), "{} is back", path.display());
            continue;
        }
        let mut bytes = content(of, turn, FILE_BYTES);
        let at = (turn as usize * 7919) % (FILE_BYTES - 5000);
        bytes[at..at + 5000].copy_from_slice(&content(of, turn + 1, 5000));
        if turn % 3 == 1 {
            bytes.truncate(FILE_BYTES / 2 + 77);
        }
        assert!(fs::read(&path).unwrap() == bytes, "{} is not what was written", path.display());
    }
}

/// Work that goes on while `during` does something to servers, from turn `first` on of each worker; tells the turns and the longest time that one took.
fn under_load(lab: &Lab, first: &[u64], during: impl FnOnce(&dyn Fn())) -> (Vec<u64>, Duration) {
    let (turns, longest) = load::under_load(first, 12, |of, turn| work(lab, of as u64, turn), during);
    turns.iter().zip(0..).for_each(|(turns, of)| check(lab, of, *turns));
    (turns, longest)
}

/// How many chains with copies there are, and how many of these lack some.
fn chains(lab: &Lab) -> (usize, usize) {
    let listed = lab.ashlar("chain list --json --identity @first").expect(0).stdout;
    let chains: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let chains = chains.as_array().unwrap();
    let in_sync = |chain: &&serde_json::Value| chain["in_sync"].as_array().unwrap().len() < 2;
    (chains.len(), chains.iter().filter(in_sync).count())
}

#[track_caller]
fn wait_for_copies(lab: &Lab, what: &str) {
    let deadline = Instant::now() + PATIENCE * 2;
    loop {
        let (all, short) = chains(lab);
        if all > 0 && short == 0 {
            return;
        }
        assert!(Instant::now() < deadline, "{what}: {short} of {all} chains lack a copy");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A file system of three storage servers with a directory whose files have two copies.
fn start() -> Lab {
    with_copies(Lab::start(3, 2))
}

fn with_copies(lab: Lab) -> Lab {
    lab.ashlar("pool copies default 2 --identity @first").expect(0);
    let dir = lab.path("m0/copied");
    fs::create_dir(&dir).unwrap();
    let line = format!("layout set --copies 2 {}", dir.display());
    // Who serves the directory learns of the chains in a moment.
    soon(PATIENCE, "the directory takes the layout", || lab.ashlar(&line).code == Some(0));
    let dirs: Vec<PathBuf> = (0..4).map(|of| dir.join(format!("w{of}"))).collect();
    dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    wait_for_copies(&lab, "chains do not begin");
    lab
}

fn stop(mut lab: Lab) {
    lab.mounts.iter_mut().for_each(Role::stop);
    lab.stop();
    lab.ashlar("fsck --state @state --meta @meta --data @d0 --data @d1 --data @d2").expect(0);
}

#[test]
fn others_serve_when_one_is_killed_or_stopped_and_copies_come_back() {
    if !can_mount("a storage server that dies") {
        return;
    }
    let mut lab = start();
    let (turns, stall) = under_load(&lab, &[0; 4], |goes_on| {
        lab.storage[0].signal(libc::SIGKILL);
        goes_on();
    });
    eprintln!("killed: the longest turn took {stall:?}");
    lab.storage[0].kill();
    lab.start_storage(0);
    wait_for_copies(&lab, "copies do not come back");
    let (_, stall) = under_load(&lab, &turns, |goes_on| {
        lab.storage[1].signal(libc::SIGTERM);
        goes_on();
    });
    eprintln!("stopped: the longest turn took {stall:?}");
    lab.storage[1].stop();
    lab.start_storage(1);
    wait_for_copies(&lab, "copies do not come back");
    stop(lab);
}

/// How far copies are that are made anew: of the pool, and what chains under way have by then, bytes.
fn rebuild(lab: &Lab) -> (serde_json::Value, u64) {
    let told = |line: &str| -> serde_json::Value {
        serde_json::from_str(&lab.ashlar(&format!("{line} --json --identity @first")).expect(0).stdout)
            .unwrap()
    };
    let listed = told("chain list --short");
    let of = |chain: &serde_json::Value| chain["progress"]["bytes_done"].as_u64().unwrap_or(0);
    (told("pool show default")["rebuild"].clone(), listed.as_array().unwrap().iter().map(of).sum())
}

#[test]
fn how_far_lost_copies_are_is_told_and_they_come_back_while_moves_are_paused() {
    if !can_mount("copies that come back") {
        return;
    }
    let mut lab = start();
    // Several in each chain, so that there is something to be seen between the first and the last.
    let many = lab.path("m0/copied/many");
    fs::create_dir(&many).unwrap();
    lab.ashlar(&format!("layout set --copies 2 --chunk-size 64k {}", many.display())).expect(0);
    let write = |turn: u64| {
        for of in 0..24 {
            let mut file = fs::File::create(lab.path(&format!("m0/copied/many/large{of}"))).unwrap();
            file.write_all(&content(of, turn, 3 << 20)).unwrap();
            // Else it may be sent only once all are there again.
            file.sync_all().unwrap();
        }
    };
    write(0);
    lab.storage[0].signal(libc::SIGKILL);
    write(1);
    let (waiting, _) = rebuild(&lab);
    assert!(waiting["chains_short"].as_u64() > Some(0), "{waiting}");
    assert!(waiting["waits_s"].as_u64().is_some_and(|seconds| seconds > 60 && seconds <= 600), "{waiting}");
    let text = lab.ashlar("chain list --short --identity @first").expect(0).stdout;
    assert!(text.contains("for targets that had one, 10 min at most"), "{text}");
    lab.ashlar("target moves --pause --rate 1 --identity @first").expect(0);
    lab.storage[0].kill();
    lab.start_storage(0);
    let mut seen: Vec<(serde_json::Value, u64)> = Vec::new();
    let is_told = |pool: &serde_json::Value| {
        let [rate, left, lacking, copied] =
            ["bytes_per_s", "seconds_left", "bytes_lacking", "bytes_copied"].map(|name| pool[name].as_u64());
        let is_under_way = copied > Some(64 << 10) && lacking > Some(1 << 20);
        is_under_way && rate.is_some_and(|rate| (1..6 << 20).contains(&rate)) && left.is_some()
    };
    // Pool and chains are asked one after the other, and one look may be the only one at either.
    let are_told = |seen: &[(serde_json::Value, u64)]| {
        seen.iter().any(|(pool, _)| is_told(pool)) && seen.iter().any(|(_, sent)| *sent > 64 << 10)
    };
    soon(PATIENCE * 2, "copies do not come back", || {
        seen.push(rebuild(&lab));
        // It is over when it is null.
        are_told(&seen) || seen.len() > 1 && seen.last().is_some_and(|(pool, _)| pool.is_null())
    });
    assert!(are_told(&seen), "{seen:?}");
    lab.ashlar("target moves --rate 0 --identity @first").expect(0);
    wait_for_copies(&lab, "copies do not come back while moves are paused");
    lab.ashlar("target moves --resume --identity @first").expect(0);
    assert_eq!(rebuild(&lab), (serde_json::Value::Null, 0));
    stop(lab);
}

#[test]
fn a_machine_that_hangs_and_goes_on_changes_nothing() {
    if !can_mount("a storage server that hangs") {
        return;
    }
    let lab = start();
    let (_, stall) = under_load(&lab, &[0; 4], |goes_on| {
        lab.storage[2].pause();
        goes_on();
        // Longer than every lease.
        std::thread::sleep(Duration::from_secs(8));
        lab.storage[2].resume();
        goes_on();
        wait_for_copies(&lab, "copies do not come back");
    });
    eprintln!("paused: the longest turn took {stall:?}");
    stop(lab);
}

/// Has the third storage server serve a target on `disk`; where it listens stays.
struct OnDisk {
    line: String,
}

impl OnDisk {
    fn start(lab: &Lab) -> (OnDisk, Role) {
        let token = lab.ashlar("token --role storage --identity @first").expect(0).stdout;
        lab.ashlar(&format!("join {} --name oss9 --identity @oss9", token.trim())).expect(0);
        let line = format!("storage --data @disk/t --listen {} --identity @oss9", Lab::free_address());
        let on_disk = OnDisk { line };
        let role = on_disk.run(lab);
        (on_disk, role)
    }

    fn run(&self, lab: &Lab) -> Role {
        lab.run("oss9", &self.line, "serves")
    }
}

#[test]
fn others_serve_when_a_disk_hangs_or_fails_and_copies_come_back() {
    if !can_mount("a disk with copies elsewhere") {
        return;
    }
    let lab = Lab::start(2, 2);
    let mut disk = Disk::mount(&lab.path("image"), lab.path("disk"));
    let (on_disk, mut server) = OnDisk::start(&lab);
    let lab = with_copies(lab);
    let (turns, stall) = under_load(&lab, &[0; 4], |goes_on| {
        let hung = disk.hang();
        goes_on();
        std::thread::sleep(Duration::from_secs(8));
        goes_on();
        drop(hung);
    });
    eprintln!("a disk that hangs: the longest turn took {stall:?}");
    wait_for_copies(&lab, "copies do not come back");
    let (_, stall) = under_load(&lab, &turns, |goes_on| {
        disk.fail();
        goes_on();
    });
    eprintln!("a disk that fails: the longest turn took {stall:?}");
    let events = lab.ashlar("event list --identity @first").expect(0).stdout;
    assert!(events.contains("target-stopped"), "{events}");
    server.stop();
    disk.repair();
    let mut server = on_disk.run(&lab);
    wait_for_copies(&lab, "copies do not come back");
    server.stop();
    let mut lab = lab;
    lab.mounts.iter_mut().for_each(Role::stop);
    lab.stop();
    lab.ashlar("fsck --state @state --meta @meta --data @d0 --data @d1 --data @disk/t").expect(0);
}
