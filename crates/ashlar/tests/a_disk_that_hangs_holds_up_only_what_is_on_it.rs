//! Goal: a disk that hangs is felt by calls about content on it, and by nothing else: not by other targets of its server, nor by anything else of the mounts that wait for it, however many calls wait.
//! Method: real processes and mounts; the disk is a file system in a file whose changes are held back (fsfreeze). Whoever waits for it cannot be killed, so it goes on after a while whatever happens here,
//! and those who use it are programs of their own: with some kernels one that starts another, which closes its descriptors, waits for calls on them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::cluster::{Lab, Role};
use support::disk::Disk;
use support::{PATIENCE, Site, can_mount};

const KIB: usize = 1 << 10;
/// Content of a file.
const LEN: usize = 64 * KIB;
/// More than calls of a target that a server carries out at a time, and than a mount begins with threads.
const WRITERS: usize = 120;
/// More calls than the connections of a mount to a server may have from the oldest one on that is waited for, of a protocol that could not say which of them have ended.
const READS: usize = 3000;
/// In what time everything is to be done that has nothing to do with the disk; what waits for it takes many times as long.
const AT_ONCE: Duration = Duration::from_secs(5);
/// For how long the mount waits that gives up early, seconds.
const ERROR_AFTER_S: u64 = 4;

/// Programs that run; those that are left end with it.
#[derive(Default)]
struct Programs(Vec<Child>);

impl Programs {
    fn start(&mut self, command: &mut Command) {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        self.0.push(command.spawn().unwrap());
    }

    fn running(&mut self) -> usize {
        self.0.iter_mut().filter_map(|one| one.try_wait().unwrap().is_none().then_some(())).count()
    }

    /// How all have ended.
    #[track_caller]
    fn finish(mut self) -> Vec<Output> {
        let deadline = Instant::now() + PATIENCE;
        while self.running() > 0 {
            assert!(Instant::now() < deadline, "{} programs do not end", self.running());
            std::thread::sleep(Duration::from_millis(20));
        }
        std::mem::take(&mut self.0).into_iter().map(|one| one.wait_with_output().unwrap()).collect()
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        for one in &mut self.0 {
            let _ = one.kill();
        }
    }
}

fn content(file: usize, version: u8) -> Vec<u8> {
    (0..LEN).map(|at| (at as u8).wrapping_mul(31) ^ (file as u8) ^ version.wrapping_mul(101)).collect()
}

fn make_files(dir: &Path, count: usize) -> Vec<PathBuf> {
    let make = |at| {
        let path = dir.join(format!("file{at}"));
        fs::write(&path, content(at, 0)).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        path
    };
    (0..count).map(make).collect()
}

/// Reads past the kernel's cache.
fn read(path: &Path, bytes: usize) -> Vec<u8> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    let mut found = vec![0; bytes];
    file.read_exact_at(&mut found, 0).unwrap();
    found
}

/// Writes a file from another one, past the cache, and waits until that is durable.
fn writing(from: &Path, to: &Path) -> Command {
    let mut command = Command::new("dd");
    command.args(["bs=64K", "count=1", "conv=notrunc", "oflag=direct,dsync", "status=none"]);
    command.arg(format!("if={}", from.display())).arg(format!("of={}", to.display()));
    command
}

fn reading(path: &Path) -> Command {
    let mut command = Command::new("dd");
    command.args(["bs=64K", "count=1", "iflag=direct", "of=/dev/null", "status=none"]);
    command.arg(format!("if={}", path.display()));
    command
}

fn chains(lab: &Lab, id: u64) -> u64 {
    let listed = lab.ashlar("target list --json --identity @first").expect(0).stdout;
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let target = listed.as_array().unwrap().iter().find(|target| target["id"] == id).unwrap().clone();
    target["chains"].as_u64().unwrap()
}

/// Files on one target.
fn set_layout(lab: &Lab, dir: &Path, pool: &str) {
    fs::create_dir(dir).unwrap();
    let line = format!(
        "layout set {} --pool {pool} --chunk-size 64K --stripe-count 1 --inline-size 0",
        dir.display()
    );
    let deadline = Instant::now() + PATIENCE;
    while lab.ashlar(&line).code != Some(0) {
        assert!(Instant::now() < deadline, "the mount does not learn of the pool");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Uses `files` in all ways; tells the longest call.
fn use_files(files: &[PathBuf], rounds: u8, reads: usize) -> Duration {
    let mut longest = Duration::ZERO;
    let mut timed = |call: &mut dyn FnMut()| {
        let begun = Instant::now();
        call();
        longest = longest.max(begun.elapsed());
    };
    for version in 1..=rounds {
        for (at, path) in files.iter().enumerate() {
            timed(&mut || {
                let file = OpenOptions::new().write(true).open(path).unwrap();
                file.write_all_at(&content(at, version), 0).unwrap();
                file.sync_all().unwrap();
            });
            timed(&mut || assert!(read(path, LEN) == content(at, version), "{}", path.display()));
            timed(&mut || assert_eq!(fs::metadata(path).unwrap().len(), LEN as u64));
        }
    }
    let open =
        |path: &PathBuf| OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    let open: Vec<File> = files.iter().map(open).collect();
    let mut page = vec![0; 4 * KIB];
    for at in 0..reads {
        timed(&mut || open[at % open.len()].read_exact_at(&mut page, 0).unwrap());
    }
    longest
}

#[test]
fn targets_beside_one_whose_disk_hangs_and_mounts_that_wait_for_it_go_on() {
    if !can_mount("a disk that hangs") {
        return;
    }
    let mut lab = Lab::start(1, 3);
    let mut disk = Disk::mount(&lab.path("image"), lab.path("disk"));
    let mut programs = Programs::default();
    let token = lab.ashlar("token --role storage --identity @first").expect(0).stdout;
    lab.ashlar(&format!("join {} --name oss9 --identity @oss9", token.trim())).expect(0);
    lab.ashlar("pool add slow --identity @first").expect(0);
    lab.ashlar("pool add fast --identity @first").expect(0);
    // Target 2 is on the disk that is to hang, target 3 beside it on the same server, and target 4 is where that one goes.
    let address = Lab::free_address();
    let at =
        |pool: &str, data: &str| format!("storage --pool {pool} {data} --listen {address} --identity @oss9");
    lab.run("oss9", &at("slow", "--data @disk/t"), "serves").stop();
    fs::create_dir(lab.path("d9")).unwrap();
    let mut server = lab.run("oss9", &at("fast", "--data @disk/t --data @d9"), "serves");
    let token = lab.ashlar("token --role storage --identity @first").expect(0).stdout;
    lab.ashlar(&format!("join {} --name oss8 --identity @oss8", token.trim())).expect(0);
    let other = format!("storage --pool fast --data @d8 --listen {} --identity @oss8", Lab::free_address());
    lab.mounts[2].stop();
    let hasty = format!("mount @m2 --identity @c2 --error-after {ERROR_AFTER_S}");
    lab.mounts[2] = lab.run("c2", &hasty, "mounted");
    let dir = |mount: usize, name: &str| lab.path(&format!("m{mount}")).join(name);
    set_layout(&lab, &dir(0, "slow"), "slow");
    set_layout(&lab, &dir(2, "hasty"), "slow");
    (0..3).for_each(|mount| set_layout(&lab, &dir(mount, &format!("fast{mount}")), "fast"));
    let (hung, given_up) = (make_files(&dir(0, "slow"), WRITERS), make_files(&dir(2, "hasty"), 40));
    let fast: Vec<Vec<PathBuf>> =
        (0..3).map(|mount| make_files(&dir(mount, &format!("fast{mount}")), 10)).collect();
    let new = lab.path("new");
    fs::write(&new, content(0, 9)).unwrap();
    let mut second = lab.run("oss8", &other, "serves");

    // Goes first, before anybody is waited for who waits for it.
    let is_hanging = disk.hang();
    let begun = Instant::now();
    hung.iter().for_each(|path| programs.start(&mut writing(&new, path)));
    let mut hasty = Programs::default();
    given_up.iter().for_each(|path| hasty.start(&mut writing(&new, path)));
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(programs.running(), WRITERS, "the disk hangs");
    // Another mount looks at what is being written, which it is not told before the disk goes on.
    let mut lookers = Programs::default();
    let seen_elsewhere = |path: &PathBuf| dir(1, "slow").join(path.file_name().unwrap());
    hung[..20].iter().for_each(|path| lookers.start(&mut reading(&seen_elsewhere(path))));
    let longest = std::thread::scope(|scope| {
        let users: Vec<_> = fast.iter().map(|files| scope.spawn(|| use_files(files, 3, READS))).collect();
        users.into_iter().map(|user| user.join().unwrap()).max().unwrap()
    });
    eprintln!("files beside it were used for {:?}, the longest call took {longest:?}", begun.elapsed());
    // What one mount has written another one sees at once, also while the first is asked for files that wait for the disk.
    for (at, path) in fast[0].iter().enumerate() {
        let begun = Instant::now();
        let file = OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(&content(at, 77), 0).unwrap();
        let elsewhere = dir(1, "fast0").join(path.file_name().unwrap());
        assert!(read(&elsewhere, LEN) == content(at, 77), "{}", elsewhere.display());
        assert!(begun.elapsed() < AT_ONCE, "it is seen after {:?}", begun.elapsed());
    }
    // The target beside it gives its chains away.
    lab.ashlar("target drain 3 --identity @first").expect(0);
    let drained = Instant::now();
    while chains(&lab, 3) > 0 {
        assert!(drained.elapsed() < Duration::from_secs(20), "the drain is held up: {}", server.text());
        std::thread::sleep(Duration::from_millis(50));
    }
    // Calls of the mount that does not wait for long have ended by themselves.
    let left = Duration::from_secs(ERROR_AFTER_S * 3).saturating_sub(begun.elapsed());
    std::thread::sleep(left);
    assert_eq!(hasty.running(), 0, "calls end by the wait policy of their mount");
    let is_hung = programs.running() == WRITERS;
    let took = begun.elapsed();
    drop(is_hanging);
    assert!(is_hung, "the disk hung all the time");
    eprintln!("the disk hung for {took:?}");
    assert!(longest < AT_ONCE, "a call took {longest:?}");
    for ended in hasty.finish() {
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success() && said.contains("Connection timed out"), "{said}");
    }
    for ended in std::mem::take(&mut programs).finish() {
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }
    lookers.finish();
    hung.iter().for_each(|path| assert!(read(path, LEN) == content(0, 9), "{}", path.display()));
    for path in &hung[..20] {
        assert!(read(&seen_elsewhere(path), LEN) == content(0, 9), "{}", path.display());
    }
    lab.mounts.iter_mut().for_each(Role::stop);
    // Before the targets, which it would wait for.
    lab.meta.stop();
    [&mut server, &mut second].into_iter().for_each(Role::stop);
    lab.stop();
}

#[test]
fn a_disk_of_one_machine_that_hangs_does_not_take_its_few_workers() {
    if !can_mount("a disk of one machine that hangs") {
        return;
    }
    let site = Site::new();
    let mut disk = Disk::mount(&site.path("image"), site.path("disk"));
    let server = site.up("up @mnt --data @d1 --data @disk");
    let mut programs = Programs::default();
    let (striped, small) = (site.mnt().join("striped"), site.mnt().join("small"));
    [&striped, &small].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
    site.run("layout set @mnt/striped --chunk-size 64K --stripe-count 1 --inline-size 0").expect(0);
    site.run("layout set @mnt/small --inline-size 16K").expect(0);
    let files = make_files(&striped, 60);
    let new = site.path("new");
    fs::write(&new, content(0, 9)).unwrap();
    let is_hanging = disk.hang();
    files.iter().for_each(|path| programs.start(&mut writing(&new, path)));
    std::thread::sleep(Duration::from_secs(1));
    // Those on the other disk have ended. A mount that has its server for itself begins with a worker for each processor.
    let running = programs.running();
    let begun = Instant::now();
    for at in 0..50 {
        let path = small.join(format!("file{at}"));
        fs::write(&path, b"small").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"small");
        assert_eq!(fs::metadata(&path).unwrap().len(), 5);
    }
    assert_eq!(fs::read_dir(&small).unwrap().count(), 50);
    let took = begun.elapsed();
    let is_hung = programs.running() == running;
    drop(is_hanging);
    eprintln!("{running} calls waited, the rest took {took:?}");
    assert!(is_hung && (8..files.len() - 8).contains(&running), "{running} calls waited");
    assert!(took < AT_ONCE, "the rest took {took:?}");
    for ended in std::mem::take(&mut programs).finish() {
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }
    files.iter().for_each(|path| assert!(read(path, LEN) == content(0, 9), "{}", path.display()));
    server.stop();
}
