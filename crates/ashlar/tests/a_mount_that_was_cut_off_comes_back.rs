//! Goal: a mount that cannot reach the servers for longer than it is waited for stops showing what it has cached, loses its locks to others, and when it is
//! connected again it goes on by itself: files that were open are, and who relied on a lock that was lost is told so.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use support::cluster::{Lab, Role};
use support::{can_mount, soon};

fn open(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// An exclusive `flock(2)`, or why not.
fn flock(file: &File) -> std::io::Result<()> {
    // SAFETY: the descriptor is open.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[test]
fn it_shows_nothing_old_and_goes_on_when_it_is_connected_again() {
    if !can_mount("a mount that is cut off") {
        return;
    }
    let mut lab = Lab::start_split(1, 2);
    let (cut, other) = (lab.path("m0"), lab.path("m1"));
    fs::write(cut.join("cached"), vec![1; 300_000]).unwrap();
    let cached = open(&cut.join("cached"));
    let mut byte = [0];
    cached.read_exact_at(&mut byte, 200_000).unwrap();
    let mut log = open(&cut.join("log"));
    log.write_all(&vec![b'a'; 200_000]).unwrap();
    let locked = open(&cut.join("locked"));
    locked.write_all_at(b"mine", 0).unwrap();
    flock(&locked).unwrap();
    let unlinked = open(&cut.join("unlinked"));
    fs::remove_file(cut.join("unlinked")).unwrap();

    lab.cut(true);
    let since = Instant::now();
    // The other mount waits for it, for as long as it is waited for and no longer.
    File::options().write(true).open(other.join("cached")).unwrap().write_all_at(&[2], 200_000).unwrap();
    let waited = since.elapsed();
    assert!(waited < Duration::from_secs(30), "the other mount waited {waited:?}");
    // What was written before is there, although nobody was told how long the file is.
    let (deadline, lock) = (since + Duration::from_secs(40), open(&other.join("locked")));
    while flock(&lock).is_err() {
        assert!(Instant::now() < deadline, "the lock of a mount that is silent is kept");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(fs::metadata(other.join("log")).unwrap().len(), 200_000);
    // Nothing old is shown meanwhile: a read waits.
    std::thread::sleep(Duration::from_secs(16).saturating_sub(since.elapsed()));
    let reader = {
        let cached = cached.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut byte = [0];
            cached.read_exact_at(&mut byte, 200_000).map(|()| byte[0])
        })
    };
    std::thread::sleep(Duration::from_secs(1));
    assert!(!reader.is_finished(), "it was read from a cache: {:?}", reader.join());

    lab.cut(false);
    assert_eq!(reader.join().unwrap().unwrap(), 2);
    // Open files are open.
    log.write_all(b"more").unwrap();
    drop(log);
    assert_eq!(fs::metadata(other.join("log")).unwrap().len(), 200_004);
    fs::write(cut.join("new"), b"new").unwrap();
    assert_eq!(fs::read(other.join("new")).unwrap(), b"new");
    // Who relied on the lock is told, and may begin anew.
    let refused = locked.write_at(b"theirs", 0).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EIO));
    assert_eq!(fs::read(other.join("locked")).unwrap(), b"mine");
    drop(locked);
    let again = open(&cut.join("locked"));
    assert!(flock(&again).is_err(), "the other mount has it");
    drop(lock);
    // The kernel tells of the end of a description a little later.
    while flock(&again).is_err() {
        assert!(Instant::now() < deadline + Duration::from_secs(20), "the lock of a closed file is kept");
        std::thread::sleep(Duration::from_millis(10));
    }
    again.write_all_at(b"ours", 0).unwrap();
    // Nobody else had it, so it went with the session.
    assert!(unlinked.write_at(b"x", 0).is_err());
    assert!(!lab.mounts[0].has_ended(), "it is the same mount");
    drop((cached, again, unlinked));
    lab.stop();
}

#[test]
fn a_short_cut_is_only_a_wait() {
    if !can_mount("a mount that is cut off for a moment") {
        return;
    }
    let mut lab = Lab::start_split(1, 2);
    let (cut, other) = (lab.path("m0"), lab.path("m1"));
    let locked = open(&cut.join("locked"));
    flock(&locked).unwrap();
    for turn in 0..3u8 {
        lab.cut(true);
        let writer = {
            let file = locked.try_clone().unwrap();
            std::thread::spawn(move || file.write_all_at(&[turn; 100_000], 0))
        };
        std::thread::sleep(Duration::from_secs(3));
        lab.cut(false);
        writer.join().unwrap().unwrap();
        fs::write(cut.join(format!("file{turn}")), b"x").unwrap();
        assert_eq!(fs::read(other.join("locked")).unwrap(), vec![turn; 100_000]);
    }
    assert!(flock(&open(&other.join("locked"))).is_err(), "the lock is kept");
    drop(locked);
    lab.stop();
}

/// A directory on the shards of the metadata server `name`.
#[track_caller]
fn directory_at(lab: &Lab, name: &str) -> PathBuf {
    let listed = lab.ashlar("shard list --json --identity @first").expect(0).stdout;
    let shards: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let has = |shard: u64| {
        let mut all = shards.as_array().unwrap().iter();
        all.any(|known| known["id"].as_u64() == Some(shard) && known["node"]["name"] == name)
    };
    for at in 0..200 {
        let directory = lab.path("m0").join(format!("{name}-{at}"));
        fs::create_dir(&directory).unwrap();
        if has(fs::metadata(&directory).unwrap().ino() >> 48) {
            return directory;
        }
    }
    panic!("no directory is made at {name}");
}

#[test]
fn what_it_has_open_at_a_server_that_is_away_is_told_when_that_is_back() {
    if !can_mount("a mount whose session ends while a metadata server is away") {
        return;
    }
    let mut lab = Lab::start(1, 1);
    lab.mounts[0].stop();
    // Each call waits for a server for so long, and no longer; and longer than a server waits until it takes a lease from a session that does not answer.
    lab.mounts[0] = lab.run("c0", "mount @m0 --identity @c0 --error-after 20", "mounted");
    let mut more = ["mds2", "mds3"].map(|name| {
        let token = lab.ashlar("token --role meta --identity @first").expect(0).stdout;
        lab.ashlar(&format!("join {} --name {name} --identity @{name}", token.trim())).expect(0);
        let line = format!("meta --meta @of-{name} --listen {} --identity @{name}", Lab::free_address());
        lab.run(name, &line, "serves")
    });
    lab.ashlar("shard balance --identity @first").expect(0);
    let directories = ["mds", "mds2", "mds3"].map(|name| directory_at(&lab, name));
    let content = vec![7; 3 << 20];
    directories.iter().for_each(|directory| fs::write(directory.join("file"), &content).unwrap());
    let [first, away, third] = directories.each_ref().map(|directory| open(&directory.join("file")));
    let listed = lab.ashlar("session list --json --identity @first").expect(0).stdout;
    let sessions: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let of_mount = sessions["sessions"].as_array().unwrap();
    let of_mount = of_mount.iter().find(|session| session["node"]["name"] == "c0");
    let id = of_mount.unwrap()["id"].as_u64().unwrap();
    more[0].pause();
    let told = |text: &str| {
        soon(Duration::from_secs(60), text, || lab.mounts[0].text().contains(text));
    };
    std::thread::scope(|scope| {
        // The one that is away has it still, and is named.
        let removed = scope.spawn(|| {
            lab.ashlar(&format!("session remove {id} --identity @first")).refused(&["mds2"]);
        });
        told("opening another one");
        let begun = Instant::now();
        // Nobody waits for that one who has nothing to do with it. A name that nobody has asked for is known to servers alone, and no lease is in the way of the question.
        for directory in [&directories[0], &directories[2]] {
            let unknown = fs::metadata(directory.join("absent")).unwrap_err();
            assert_eq!(unknown.kind(), std::io::ErrorKind::NotFound);
        }
        let waited = begun.elapsed();
        assert!(waited < Duration::from_secs(15), "a server that is away was waited for, {waited:?}");
        removed.join().unwrap();
    });
    // In its session the others know what is open.
    for file in [&first, &third] {
        file.write_all_at(b"n", 1 << 20).unwrap();
    }
    told("could not be told which files are open");
    more[0].resume();
    // Calls wait until it is told, and for what the session before still has there.
    let mut read = vec![0; 3 << 20];
    away.read_exact_at(&mut read, 0).unwrap();
    assert!(read == content);
    away.write_all_at(b"f", 1 << 20).unwrap();
    drop((first, away, third));
    lab.mounts[0].stop();
    more.iter_mut().for_each(Role::stop);
    lab.stop();
}

/// An exclusive lock of the first bytes by the open file description, waited for.
fn lock_bytes(file: &File) -> std::io::Result<()> {
    // SAFETY: a plain structure of integers.
    let mut wanted: libc::flock = unsafe { std::mem::zeroed() };
    (wanted.l_type, wanted.l_len) = (libc::F_WRLCK as i16, 10);
    // SAFETY: the descriptor is open, and the structure outlives the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLKW, &raw const wanted) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[test]
fn what_a_client_that_was_killed_has_locked_goes_to_who_waits_for_it() {
    if !can_mount("a client that is killed") {
        return;
    }
    let mut lab = Lab::start(1, 2);
    let (killed, other) = (lab.path("m0"), lab.path("m1"));
    let (whole, bytes) = (open(&killed.join("whole")), open(&killed.join("bytes")));
    flock(&whole).unwrap();
    lock_bytes(&bytes).unwrap();
    let log = open(&killed.join("log"));
    log.write_all_at(&vec![b'a'; 200_000], 0).unwrap();
    log.sync_all().unwrap();
    let unlinked = open(&killed.join("unlinked"));
    unlinked.write_all_at(&vec![b'b'; 200_000], 0).unwrap();
    fs::remove_file(killed.join("unlinked")).unwrap();
    let wait = |name: &str, take: fn(&File) -> std::io::Result<()>| {
        let file = open(&other.join(name));
        std::thread::spawn(move || take(&file).map(|()| Instant::now()))
    };
    let waiting = [
        wait("whole", |file| {
            // SAFETY: the descriptor is open.
            match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        }),
        wait("bytes", lock_bytes),
    ];
    std::thread::sleep(Duration::from_secs(1));
    assert!(waiting.iter().all(|thread| !thread.is_finished()), "a lock was given to two");
    lab.mounts[0].kill();
    let since = Instant::now();
    for thread in waiting {
        let waited = thread.join().unwrap().unwrap().duration_since(since);
        assert!(waited < Duration::from_secs(40), "waited {waited:?} for a client that is dead");
    }
    assert!(fs::read(other.join("log")).unwrap() == vec![b'a'; 200_000]);
    drop((whole, bytes, log, unlinked));
    // What it had open and nobody can name is gone, chunks and all.
    lab.mounts[1].stop();
    lab.stop_without_leftovers();
}
