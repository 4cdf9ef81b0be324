//! Goal: shards with content go from one metadata server to another, and nobody who uses them can tell, but by a call that takes a moment longer; whoever is
//! killed in the middle. Method: real servers and mounts; writers, appenders, open files, locks and renames at work while shards go back and forth; in the
//! end everything is looked at by name and by byte.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::PATIENCE;
use support::cluster::{Lab, Role};

/// A lab with metadata servers besides its first.
struct Spread {
    lab: Lab,
    /// Each with its name and where it listens.
    more: Vec<Role>,
}

impl Spread {
    #[track_caller]
    fn start(servers: usize, mounts: usize) -> Spread {
        let lab = Lab::start(2, mounts);
        let mut spread = Spread { lab, more: Vec::new() };
        (2..=servers).for_each(|_| spread.add_server());
        let deadline = Instant::now() + PATIENCE;
        while spread.counts().len() < servers || spread.counts().values().any(|count| *count < 64 / servers) {
            assert!(Instant::now() < deadline, "shards are not spread: {:?}", spread.counts());
            std::thread::sleep(Duration::from_millis(100));
        }
        spread
    }

    #[track_caller]
    fn add_server(&mut self) {
        let at = self.more.len() + 2;
        self.lab.join_meta(&format!("mds{at}"));
        self.more.push(start_server(&self.lab, at));
    }

    fn mount(&self, at: usize) -> PathBuf {
        self.lab.path(&format!("m{at}"))
    }

    #[track_caller]
    fn shards(&self) -> Vec<(u64, String)> {
        let listed = self.lab.ashlar("shard list --json --identity @first").expect(0).stdout;
        let shards: serde_json::Value = serde_json::from_str(&listed).unwrap();
        let shards = shards.as_array().unwrap();
        let named = |shard: &serde_json::Value| {
            (shard["id"].as_u64().unwrap(), shard["node"]["name"].as_str().unwrap().to_owned())
        };
        shards.iter().map(named).collect()
    }

    fn server_of(&self, shard: u64) -> String {
        self.shards().into_iter().find(|(known, _)| *known == shard).unwrap().1
    }

    fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        self.shards().into_iter().for_each(|(_, node)| *counts.entry(node).or_default() += 1);
        counts
    }

    /// Moves shards.
    #[track_caller]
    fn move_to(&self, shards: &[u64], node: &str) {
        let shards: Vec<String> = shards.iter().map(u64::to_string).collect();
        let line = format!("shard move {} --to {node} --json --identity @first", shards.join(" "));
        self.lab.ashlar(&line).expect(0);
    }

    #[track_caller]
    fn stop(mut self) {
        self.lab.mounts.iter_mut().for_each(Role::stop);
        self.more.iter_mut().for_each(Role::stop);
        self.lab.stop();
    }
}

#[track_caller]
fn start_server(lab: &Lab, at: usize) -> Role {
    let line = format!("meta --meta @meta{at} --listen {} --identity @mds{at}", Lab::free_address());
    lab.run(&format!("mds{at}"), &line, "serves")
}

fn shard(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().ino() >> 48
}

/// Directories `w0` and so on, and their shards.
#[track_caller]
fn make_directories(root: &Path, count: usize) -> Vec<u64> {
    let make = |at: usize| {
        let path = root.join(format!("w{at}"));
        fs::create_dir(&path).unwrap();
        shard(&path)
    };
    (0..count).map(make).collect()
}

/// What is in a file, told by its number and version alone.
fn content(number: usize, version: usize, bytes: usize) -> Vec<u8> {
    let line = format!("file {number} version {version}\n");
    line.bytes().cycle().take(bytes).collect()
}

/// The work of one thread on its own names: makes, writes, renames between directories, links, appends, removes. `files` is what there must be in the end.
struct Worker<'a> {
    root: &'a Path,
    number: usize,
    directories: usize,
    files: BTreeMap<PathBuf, Vec<u8>>,
    turn: usize,
    /// The longest call.
    slowest: Duration,
    calls: Vec<Duration>,
}

impl<'a> Worker<'a> {
    fn new(root: &'a Path, number: usize, directories: usize) -> Worker<'a> {
        Worker {
            root,
            number,
            directories,
            files: BTreeMap::new(),
            turn: 0,
            slowest: Duration::ZERO,
            calls: Vec::new(),
        }
    }

    #[track_caller]
    fn timed<T>(&mut self, what: impl FnOnce() -> std::io::Result<T>) -> T {
        let begun = Instant::now();
        let done = what();
        let took = begun.elapsed();
        self.slowest = self.slowest.max(took);
        self.calls.push(took);
        done.unwrap()
    }

    fn path(&self, directory: usize, name: &str) -> PathBuf {
        PathBuf::from(format!("w{}/{}-{name}", directory % self.directories, self.number))
    }

    /// One round over everything that can be done.
    fn work(&mut self) {
        let turn = self.turn;
        self.turn += 1;
        let (root, at) = (self.root, turn * 7 + self.number);
        let short = self.path(at, &format!("short{turn}"));
        let long = self.path(at + 1, &format!("long{turn}"));
        let (small, large) = (content(self.number, turn, 700), content(self.number, turn, 300_000));
        self.timed(|| fs::write(root.join(&short), &small));
        self.timed(|| fs::write(root.join(&long), &large));
        self.files.insert(short.clone(), small.clone());
        self.files.insert(long.clone(), large);
        // To another directory, and most times to another shard.
        let moved = self.path(at + 3, &format!("moved{turn}"));
        self.timed(|| fs::rename(root.join(&short), root.join(&moved)));
        self.files.remove(&short);
        self.files.insert(moved.clone(), small.clone());
        let linked = self.path(at + 4, &format!("linked{turn}"));
        self.timed(|| fs::hard_link(root.join(&moved), root.join(&linked)));
        let mut appended = OpenOptions::new().append(true).open(root.join(&moved)).unwrap();
        self.timed(|| appended.write_all(b"appended"));
        drop(appended);
        let whole = [&small[..], b"appended"].concat();
        assert_eq!(self.timed(|| fs::read(root.join(&linked))), whole);
        self.files.insert(moved, whole.clone());
        self.files.insert(linked, whole);
        let directory = self.path(at + 5, &format!("tree{turn}"));
        self.timed(|| fs::create_dir(root.join(&directory)));
        self.timed(|| fs::write(root.join(&directory).join("leaf"), b"leaf"));
        let there = self.path(at + 6, &format!("grown{turn}"));
        self.timed(|| fs::rename(root.join(&directory), root.join(&there)));
        self.files.insert(there.join("leaf"), b"leaf".to_vec());
        if turn >= 4 {
            // What was made before goes again, most of it.
            let old = turn - 4;
            let gone: Vec<PathBuf> = self
                .files
                .keys()
                .filter(|path| path.to_str().unwrap().contains(&format!("long{old}")))
                .cloned()
                .collect();
            for path in gone {
                self.timed(|| fs::remove_file(root.join(&path)));
                self.files.remove(&path);
            }
        }
    }
}

/// All files below `root`, with what is in them.
#[track_caller]
fn everything(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    fn walk(root: &Path, below: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
        for entry in fs::read_dir(root.join(below)).unwrap() {
            let entry = entry.unwrap();
            let path = below.join(entry.file_name());
            match entry.file_type().unwrap().is_dir() {
                true => walk(root, &path, found),
                false => drop(found.insert(path.clone(), fs::read(root.join(&path)).unwrap())),
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(root, Path::new(""), &mut found);
    found
}

#[track_caller]
fn require_same(wanted: &BTreeMap<PathBuf, Vec<u8>>, found: &BTreeMap<PathBuf, Vec<u8>>) {
    let names = |files: &BTreeMap<PathBuf, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    let differ = |one: &[PathBuf], other: &[PathBuf]| {
        one.iter().filter(|name| !other.contains(name)).cloned().collect::<Vec<_>>()
    };
    let (one, other) = (names(wanted), names(found));
    assert!(one == other, "missing: {:?}, not made: {:?}", differ(&one, &other), differ(&other, &one));
    for (path, bytes) in wanted {
        let same = found[path] == *bytes;
        assert!(same, "{}: {} bytes, and {} were written", path.display(), found[path].len(), bytes.len());
    }
}

/// An appender of records to a file that both mounts append to: each record is there, whole, and once.
fn append(path: &Path, writer: usize, is_over: &AtomicBool) -> usize {
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    let mut count = 0;
    while !is_over.load(SeqCst) {
        file.write_all(format!("{writer:04} {count:010}\n").as_bytes()).unwrap();
        count += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
    count
}

/// Counts up a number in a file, under a lock.
fn count_up(path: &Path, is_over: &AtomicBool) -> u64 {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut turns = 0;
    while !is_over.load(SeqCst) {
        flock(&file, FlockOperation::LockExclusive).unwrap();
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 0).unwrap();
        file.write_all_at(&(u64::from_le_bytes(bytes) + 1).to_le_bytes(), 0).unwrap();
        flock(&file, FlockOperation::Unlock).unwrap();
        turns += 1;
        std::thread::sleep(Duration::from_millis(3));
    }
    turns
}

/// Everything that is at work at once; `disturb` is done meanwhile. Tells how long calls took.
#[track_caller]
fn under_load(spread: &Spread, directories: usize, disturb: impl FnOnce(&Spread)) -> Vec<Duration> {
    let roots = [spread.mount(0), spread.mount(1)];
    let is_over = AtomicBool::new(false);
    let (log, counter) = ("w0/log", "w1/counter");
    File::create(roots[0].join(log)).unwrap();
    fs::write(roots[0].join(counter), 0u64.to_le_bytes()).unwrap();
    let (wanted, calls) = (Mutex::new(BTreeMap::new()), Mutex::new(Vec::new()));
    let (rounds, appended, counted) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()), AtomicUsize::new(0));
    std::thread::scope(|threads| {
        let watch = EndsLoad(&is_over);
        for number in 0..4 {
            let (root, is_over) = (&roots[number % 2], &is_over);
            let (wanted, calls, rounds) = (&wanted, &calls, &rounds);
            threads.spawn(move || {
                let _watch = EndsLoad(is_over);
                let mut worker = Worker::new(root, number, directories);
                while !is_over.load(SeqCst) {
                    worker.work();
                    rounds.fetch_add(1, SeqCst);
                }
                wanted.lock().unwrap().extend(worker.files);
                calls.lock().unwrap().extend(worker.calls);
            });
        }
        for writer in 0..2 {
            let (roots, is_over, appended, counted) = (&roots, &is_over, &appended, &counted);
            threads.spawn(move || {
                let _watch = EndsLoad(is_over);
                let count = append(&roots[writer].join(log), writer, is_over);
                appended.lock().unwrap().insert(writer, count);
            });
            threads.spawn(move || {
                let _watch = EndsLoad(is_over);
                counted.fetch_add(count_up(&roots[writer].join(counter), is_over) as usize, SeqCst);
            });
        }
        disturb(spread);
        drop(watch);
    });
    assert!(rounds.load(SeqCst) > 4, "nobody came to anything");
    let mut wanted = wanted.into_inner().unwrap();
    for root in &roots {
        let number = u64::from_le_bytes(fs::read(root.join(counter)).unwrap().try_into().unwrap());
        assert_eq!(number, counted.load(SeqCst) as u64, "the lock kept everybody but one out");
        let text = fs::read_to_string(root.join(log)).unwrap();
        for (writer, count) in &*appended.lock().unwrap() {
            let own: Vec<String> = (0..*count).map(|at| format!("{writer:04} {at:010}")).collect();
            let found: Vec<&str> =
                text.lines().filter(|line| line.starts_with(&format!("{writer:04}"))).collect();
            assert_eq!(found, own, "every record is there, once, in order");
        }
    }
    for path in [log, counter] {
        wanted.insert(path.into(), fs::read(roots[1].join(path)).unwrap());
    }
    for root in &roots {
        let mut found = everything(root);
        found.retain(|path, _| !path.to_str().unwrap().contains("held"));
        require_same(&wanted, &found);
    }
    calls.into_inner().unwrap()
}

/// Ends the load as it goes, also when its thread fails: the others would go on for ever.
struct EndsLoad<'a>(&'a AtomicBool);

impl Drop for EndsLoad<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn shards_in_use_go_back_and_forth_and_no_call_fails() {
    let spread = Spread::start(3, 2);
    let shards = make_directories(&spread.mount(0), 12);
    // Held all the time: open, cached and locked before, used after.
    let held: Vec<Held> = (0..6).map(|at| Held::take(&spread, at)).collect();
    let mut calls = under_load(&spread, 12, |spread| {
        for round in 0..3 {
            for (at, node) in ["mds", "mds2", "mds3"].iter().enumerate() {
                let some: Vec<u64> = shards
                    .iter()
                    .enumerate()
                    .filter(|(index, _)| (index + at + round) % 3 == 0)
                    .map(|(_, s)| *s)
                    .collect();
                spread.move_to(&some, node);
            }
            // The root is in shard 0.
            spread.move_to(&[0], ["mds2", "mds3", "mds"][round]);
        }
    });
    held.into_iter().for_each(Held::check);
    calls.sort();
    let p99 = calls[calls.len() * 99 / 100];
    assert!(p99 < Duration::from_secs(1), "of {} calls, 99 % took less than {p99:?}", calls.len());
    remove_all(&spread);
    spread.stop();
}

/// Files that are open through both mounts while their shard goes elsewhere.
struct Held {
    written: File,
    unnamed: File,
    locked: File,
    other: File,
    path: PathBuf,
    there: PathBuf,
    number: usize,
}

impl Held {
    #[track_caller]
    fn take(spread: &Spread, number: usize) -> Held {
        let name = format!("w{}/held{number}", number * 2);
        let (path, there) = (spread.mount(0).join(&name), spread.mount(1).join(&name));
        let open =
            |path: &Path| OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        // Its length is known to its writer alone.
        let mut written = open(&path).unwrap();
        written.write_all(&content(number, 0, 100_000)).unwrap();
        let lost = path.with_extension("lost");
        let mut unnamed = open(&lost).unwrap();
        unnamed.write_all(b"without a name").unwrap();
        fs::remove_file(&lost).unwrap();
        let lock = path.with_extension("lock");
        let locked = open(&lock).unwrap();
        flock(&locked, FlockOperation::LockExclusive).unwrap();
        let other = open(&there.with_extension("lock")).unwrap();
        assert!(flock(&other, FlockOperation::NonBlockingLockExclusive).is_err());
        Held { written, unnamed, locked, other, path, there, number }
    }

    #[track_caller]
    fn check(self) {
        let Held { mut written, mut unnamed, locked, other, path, there, number } = self;
        assert_eq!(fs::metadata(&there).unwrap().len(), 100_000, "the length went along");
        written.write_all(b"more").unwrap();
        let whole = [&content(number, 0, 100_000)[..], b"more"].concat();
        assert!(fs::read(&there).unwrap() == whole, "the other mount sees what was written since");
        assert_eq!(unnamed.metadata().unwrap().nlink(), 0);
        unnamed.write_all(b", and more").unwrap();
        unnamed.seek(SeekFrom::Start(0)).unwrap();
        let mut text = String::new();
        unnamed.read_to_string(&mut text).unwrap();
        assert_eq!(text, "without a name, and more");
        assert!(flock(&other, FlockOperation::NonBlockingLockExclusive).is_err(), "the lock is held");
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| flock(&other, FlockOperation::LockExclusive));
            std::thread::sleep(Duration::from_millis(50));
            flock(&locked, FlockOperation::Unlock).unwrap();
            waits.join().unwrap().unwrap();
        });
        drop((written, unnamed, locked, other));
        fs::remove_file(&path).unwrap();
        fs::remove_file(there.with_extension("lock")).unwrap();
    }
}

/// Removes everything through both mounts in turns; nothing is left on any server.
#[track_caller]
fn remove_all(spread: &Spread) {
    let (here, there) = (spread.mount(0), spread.mount(1));
    for (at, entry) in fs::read_dir(&here).unwrap().enumerate() {
        let name = entry.unwrap().file_name();
        fs::remove_dir_all(if at % 2 == 0 { &here } else { &there }.join(name)).unwrap();
    }
    assert_eq!(fs::metadata(&there).unwrap().nlink(), 2);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let space = rustix::fs::statvfs(&here).unwrap();
        if space.f_files - space.f_ffree <= 1 {
            return;
        }
        assert!(Instant::now() < deadline, "{} inodes are left", space.f_files - space.f_ffree);
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A server that is started again whenever it ends: not by this process, of which the kernel would close files of the mounts on the way, and that may wait for
/// the very server.
struct Kept {
    keeper: Child,
    pid: PathBuf,
    stop: PathBuf,
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = fs::write(&self.stop, "");
        self.kill();
        let _ = self.keeper.wait();
    }
}

impl Kept {
    #[track_caller]
    fn start(lab: &Lab, name: &str, line: &str) -> Kept {
        let (pid, stop) = (lab.path(&format!("{name}.kept")), lab.path(&format!("{name}.stop")));
        let line = line.replace('@', &format!("{}/", lab.path("").display()));
        let script = format!(
            "while [ ! -e {stop} ]; do {binary} {line} & echo $! > {pid}.new; mv {pid}.new {pid}; wait $!; done",
            stop = stop.display(),
            binary = support::binary().display(),
            pid = pid.display(),
        );
        let log = File::create(lab.path(&format!("{name}.log"))).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stdout(log.try_clone().unwrap()).stderr(log);
        Kept { keeper: command.spawn().unwrap(), pid, stop }
    }

    /// Kills it; whoever keeps it starts it again.
    fn kill(&self) {
        let read = || fs::read_to_string(&self.pid).ok()?.trim().parse::<i32>().ok();
        if let Some(pid) = read() {
            // SAFETY: its parent waits for it and then writes the next one's id.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
}

/// How often a server is killed.
const KILLS: usize = 15;

#[test]
fn servers_that_are_killed_in_the_middle_of_moves_lose_nothing() {
    let mut spread = Spread::start(2, 2);
    let shards = make_directories(&spread.mount(0), 8);
    let meta = |name: &str, directory: &str| {
        format!("meta --meta @{directory} --listen {} --identity @{name}", Lab::free_address())
    };
    spread.more[0].kill();
    spread.lab.meta.kill();
    spread.lab.manager.kill();
    let kept = [
        Kept::start(&spread.lab, "mds2", &meta("mds2", "meta2")),
        Kept::start(&spread.lab, "mds", &meta("mds", "meta")),
        Kept::start(&spread.lab, "manager", "manager --state @state --identity @first"),
    ];
    let calls = under_load(&spread, 8, |spread| {
        let (is_over, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|threads| {
            // Moves go on, and are asked for anew, whatever is killed.
            let moves = threads.spawn(|| {
                while !is_over.load(SeqCst) {
                    let (one, other) = shards.split_at(4);
                    let is_even = rounds.load(SeqCst) % 2 == 0;
                    let nodes = if is_even { ["mds2", "mds"] } else { ["mds", "mds2"] };
                    spread.move_to(one, nodes[0]);
                    spread.move_to(other, nodes[1]);
                    rounds.fetch_add(1, SeqCst);
                }
            });
            let _watch = EndsLoad(&is_over);
            let mut pause = 400;
            for turn in 0..KILLS {
                // Not always at the same moment of a move.
                pause = (pause * 7 + 133) % 900;
                std::thread::sleep(Duration::from_millis(500 + pause));
                kept[turn % 3].kill();
            }
            // On a busy machine a start takes longer than there is between kills.
            let deadline = Instant::now() + PATIENCE;
            for turn in 0.. {
                if rounds.load(SeqCst) > 3 {
                    break;
                }
                assert!(Instant::now() < deadline, "shards are not moved");
                std::thread::sleep(Duration::from_millis(5000 + pause));
                kept[turn % 3].kill();
            }
            is_over.store(true, SeqCst);
            moves.join().unwrap();
        });
    });
    assert!(!calls.is_empty());
    remove_all(&spread);
    spread.lab.mounts.iter_mut().for_each(Role::stop);
    drop(kept);
    spread.stop();
}

#[test]
fn a_server_that_has_not_been_told_yet_what_mounts_have_gives_no_shard_away() {
    let mut spread = Spread::start(2, 2);
    let shards = make_directories(&spread.mount(0), 1);
    spread.move_to(&shards, "mds");
    let (here, there) = (spread.mount(0).join("w0/log"), spread.mount(1).join("w0/log"));
    // Not by this process: of what it starts, the kernel would close the file on the way, and that waits for the mount.
    let mut writer = Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(OpenOptions::new().append(true).create(true).open(&here).unwrap())
        .spawn()
        .unwrap();
    let before = content(0, 0, 100_000);
    writer.stdin.as_mut().unwrap().write_all(&before).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while fs::metadata(&here).unwrap().len() < before.len() as u64 {
        assert!(Instant::now() < deadline, "nothing is written");
        std::thread::sleep(Duration::from_millis(10));
    }
    // The length is known to this mount alone, which cannot tell the server's next start of it, and that it is the only one that may write.
    spread.lab.mounts[0].pause();
    spread.lab.meta.kill();
    spread.lab.start_meta();
    let mut other = Command::new("sh")
        .args(["-c", "echo behind it >> \"$1\"", "sh", there.to_str().unwrap()])
        .spawn()
        .unwrap();
    std::thread::scope(|threads| {
        let moved = threads.spawn(|| spread.move_to(&shards, "mds2"));
        std::thread::sleep(Duration::from_secs(3));
        let now = spread.server_of(shards[0]);
        spread.lab.mounts[0].resume();
        moved.join().unwrap();
        assert_eq!(now, "mds", "given away before the mount had told");
    });
    assert!(other.wait().unwrap().success());
    drop(writer.stdin.take());
    assert!(writer.wait().unwrap().success());
    let whole = [&before[..], b"behind it\n"].concat();
    assert!(
        fs::read(&here).unwrap() == whole && fs::read(&there).unwrap() == whole,
        "nothing is overwritten"
    );
    assert_eq!(spread.server_of(shards[0]), "mds2");
    spread.stop();
}

#[test]
fn a_server_that_is_drained_can_be_taken_away_and_another_one_takes_its_place() {
    let mut spread = Spread::start(2, 2);
    let (here, there) = (spread.mount(0), spread.mount(1));
    make_directories(&here, 20);
    let mut wanted = BTreeMap::new();
    for at in 0..200usize {
        let name = PathBuf::from(format!("w{}/f{at}", at % 20));
        fs::write(here.join(&name), content(at, 1, at * 37)).unwrap();
        wanted.insert(name, content(at, 1, at * 37));
    }
    let mut open = File::open(there.join("w3/f3")).unwrap();
    spread.lab.ashlar("node remove mds2 --identity @first").refused(&["serves metadata", "shard drain"]);
    spread.lab.ashlar("shard move 99 --to mds2 --identity @first").refused(&["no shard-99"]);
    spread.lab.ashlar("shard move 1 --to oss0 --identity @first").refused(&["oss0", "no metadata"]);
    spread.lab.ashlar("shard move 1 --to nobody --identity @first").refused(&["no node `nobody`"]);
    let told = spread.lab.ashlar("shard drain mds2 --identity @first").expect(0).stdout;
    assert!(told.contains("moved shard-") && told.contains("to mds, 0 to go"), "{told}");
    assert_eq!(spread.counts().keys().collect::<Vec<_>>(), ["mds"]);
    spread.more[0].stop();
    spread.lab.ashlar("node remove mds2 --identity @first").expect(0);
    spread.lab.ashlar("shard drain mds --identity @first").refused(&["only metadata server"]);
    require_same(&wanted, &everything(&there));
    // A server that comes later takes what is empty, and is given the rest.
    spread.add_server();
    let balanced = spread.lab.ashlar("shard balance --json --identity @first").expect(0).stdout;
    let balanced: serde_json::Value = serde_json::from_str(&balanced).unwrap();
    assert!(balanced.as_array().unwrap().iter().all(|shard| shard["to"]["name"] == "mds3"), "{balanced}");
    assert_eq!(spread.counts(), BTreeMap::from([("mds".to_owned(), 32), ("mds3".to_owned(), 32)]));
    spread.lab.ashlar("shard balance --identity @first").expect(0);
    require_same(&wanted, &everything(&here));
    let mut bytes = Vec::new();
    open.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, content(3, 1, 3 * 37));
    drop(open);
    remove_all(&spread);
    spread.stop();
}
