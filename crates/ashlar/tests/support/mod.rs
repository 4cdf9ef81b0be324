//! The real binary with real mounts, in a directory of its own that goes with the test.

#![allow(dead_code, clippy::unwrap_used)] // Each test file uses a part; a helper of a test panics as the test does.

pub mod agents;
pub mod browser;
pub mod cluster;
pub mod counts;
pub mod desk;
pub mod disk;
pub mod load;
pub mod machines;
pub mod more_meta;
pub mod names;
// Tests with an etcd have it from there, too: each has blocks of its own.
#[allow(clippy::duplicate_mod)]
#[path = "../../../coord/tests/support/ports.rs"]
pub mod ports;
pub mod records;
pub mod small;
pub mod user_world;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest time for a command or a start, also on a machine that has much else to do.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `is_so`, for at most `most`.
#[track_caller]
pub fn soon(most: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + most;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not so after {most:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The names in a directory, each listed once.
#[track_caller]
pub fn names_in(directory: &Path) -> BTreeSet<String> {
    let names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let count = names.len();
    let names: BTreeSet<String> = names.into_iter().collect();
    assert_eq!(names.len(), count, "a name is listed twice");
    names
}

/// Whether real mounts can be made here as root; if not, says so where people look. Where every test must be run, it has failed.
#[track_caller]
pub fn can_mount(test: &str) -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    let has_device = Path::new("/dev/fuse").exists();
    if !is_root || !has_device {
        let must_run = std::env::var_os("ASHLAR_TEST_EVERYTHING").is_some();
        assert!(!must_run, "{test} needs root and /dev/fuse");
        eprintln!("******** SKIPPED: {test} needs root and /dev/fuse ********");
    }
    is_root && has_device
}

/// Whether something is there that a package has which `cargo xtask setup` installs; if not, says so where people look. `cargo xtask test` comes after it, and there
/// a test that is not run has failed.
#[track_caller]
pub fn has_package(test: &str, package: &str, is_there: bool) -> bool {
    if !is_there {
        let must_run = std::env::var_os("ASHLAR_TEST_EVERYTHING").is_some();
        assert!(!must_run, "{test}: the package {package} is missing, which `cargo xtask setup` installs");
        eprintln!("******** SKIPPED: {test} needs the package {package} ********");
    }
    is_there
}

/// Whether a program can be started, with an argument that has it do nothing.
pub fn can_start(program: &str, argument: &str) -> bool {
    Command::new(program).arg(argument).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Whether processes can go by other clocks.
#[track_caller]
pub fn has_faketime() -> bool {
    has_package("clocks that are off", "faketime", can_start("faketime", "--version"))
}

/// A command that has ended.
pub struct Ended {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    fn of(output: &Output) -> Ended {
        Ended {
            code: output.status.code(),
            signal: output.status.signal(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Everything it printed and how it ended, for messages.
    pub fn all(&self) -> String {
        format!("exit {:?} signal {:?}\n{}{}", self.code, self.signal, self.stdout, self.stderr)
    }

    /// Checks the exit status.
    #[track_caller]
    pub fn expect(self, code: i32) -> Ended {
        assert_eq!(self.code, Some(code), "{}", self.all());
        self
    }

    /// Checks that it was refused with words that name the thing and the way out, and did not crash.
    #[track_caller]
    pub fn refused(self, words: &[&str]) -> Ended {
        let ended = self.expect(1);
        for word in words {
            assert!(ended.stderr.contains(word), "no `{word}` in: {}", ended.all());
        }
        assert!(!ended.stderr.contains("panicked"), "{}", ended.all());
        ended
    }
}

/// The binary.
pub fn binary() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_ashlar"))
}

/// Runs the binary to its end, which must come in time.
#[track_caller]
pub fn ashlar<S: AsRef<OsStr>>(args: &[S]) -> Ended {
    finish(Command::new(binary()).args(args))
}

#[track_caller]
pub fn finish(command: &mut Command) -> Ended {
    finish_in(PATIENCE, command)
}

/// The same for what takes as long as several commands.
#[track_caller]
pub fn finish_in(patience: Duration, command: &mut Command) -> Ended {
    // Files, not pipes: a server that the command has left behind keeps pipes open, and whoever reads to their end waits for it.
    let [stdout, stderr] = [(); 2].map(|()| tempfile::NamedTempFile::new().unwrap());
    command.stdin(Stdio::null()).stdout(stdout.reopen().unwrap()).stderr(stderr.reopen().unwrap());
    let mut child = command.spawn().unwrap();
    let deadline = Instant::now() + patience;
    let mut pause = Duration::from_millis(1);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if Instant::now() >= deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    let [stdout, stderr] = [stdout, stderr].map(|file| fs::read(file.path()).unwrap());
    let output = Output { status: status.unwrap_or_default(), stdout, stderr };
    let ended = Ended::of(&output);
    assert!(status.is_some(), "did not end in {patience:?}: {}{}", ended.stdout, ended.stderr);
    ended
}

/// The arguments of a line, with `@name` standing for a path in `dir`.
pub fn args_in(dir: &Path, line: &str) -> Vec<String> {
    let place = |word: &str| match word.strip_prefix('@') {
        Some(name) => dir.join(name).display().to_string(),
        None => word.to_owned(),
    };
    line.split_whitespace().map(place).collect()
}

/// A directory for one test.
pub struct Site {
    dir: tempfile::TempDir,
}

impl Site {
    pub fn new() -> Site {
        let site = Site { dir: tempfile::tempdir().unwrap() };
        for name in ["mnt", "d1", "d2"] {
            fs::create_dir(site.path(name)).unwrap();
        }
        site
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn mnt(&self) -> PathBuf {
        self.path("mnt")
    }

    /// The arguments, with `@name` standing for a path here.
    pub fn args(&self, line: &str) -> Vec<String> {
        args_in(self.dir.path(), line)
    }

    /// Runs the binary with [`Site::args`].
    #[track_caller]
    pub fn run(&self, line: &str) -> Ended {
        ashlar(&self.args(line))
    }

    /// Starts it and waits until it is mounted at `mnt`; gives back how it ended if it does not come up.
    #[track_caller]
    pub fn try_up(&self, line: &str) -> Result<Server, Ended> {
        let mut command = Command::new(binary());
        command.args(self.args(line));
        Server::start(command, self.mnt())
    }

    #[track_caller]
    pub fn up(&self, line: &str) -> Server {
        self.try_up(line).unwrap_or_else(|ended| panic!("{}", ended.all()))
    }

    /// A stopped file system on d1 and d2 with a small file, a big one and a directory.
    #[track_caller]
    pub fn with_files() -> Site {
        let site = Site::new();
        let server = site.up("up @mnt --data @d1 --data @d2");
        site.write_files();
        server.stop();
        site
    }

    /// Copies a directory here to a place that is not there yet, as `cp -a` does.
    #[track_caller]
    pub fn copy(&self, from: &str, to: &str) {
        let copied = Command::new("cp").arg("-a").arg(self.path(from)).arg(self.path(to)).status();
        assert!(copied.unwrap().success());
    }

    pub fn write_files(&self) {
        fs::create_dir_all(self.mnt().join("dir/sub")).unwrap();
        fs::write(self.mnt().join("dir/small"), b"small content").unwrap();
        fs::write(self.mnt().join("dir/sub/big"), big()).unwrap();
    }

    /// Whether the files of [`Site::with_files`] are as they were; an error of a read is no.
    pub fn has_files(&self) -> bool {
        let read = |name: &str| fs::read(self.mnt().join(name)).ok();
        read("dir/small").as_deref() == Some(b"small content")
            && read("dir/sub/big").as_deref() == Some(&big())
    }
}

/// Content of the big file: it has three chunks, on two targets, the last one not full.
pub fn big() -> Vec<u8> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..(5 << 19) + 777).map(|_| next()).collect()
}

/// A server that is mounted. Dropping it ends it whatever has happened.
pub struct Server {
    child: Option<Child>,
    pub mountpoint: PathBuf,
}

impl Server {
    #[track_caller]
    pub fn start(mut command: Command, mountpoint: PathBuf) -> Result<Server, Ended> {
        let printed = tempfile::NamedTempFile::new().unwrap();
        command.stdin(Stdio::null()).stdout(printed.reopen().unwrap()).stderr(Stdio::piped());
        let mut server = Server { child: Some(command.spawn().unwrap()), mountpoint };
        let deadline = Instant::now() + PATIENCE;
        loop {
            let child = server.child.as_mut().unwrap();
            if child.try_wait().unwrap().is_some() {
                return Err(Ended::of(&server.child.take().unwrap().wait_with_output().unwrap()));
            }
            // The line that `ashlar up` promises, once everything is up.
            if String::from_utf8_lossy(&fs::read(printed.path()).unwrap()).contains("mounted ") {
                assert!(is_mounted(&server.mountpoint));
                return Ok(server);
            }
            assert!(Instant::now() < deadline, "not mounted in {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn pid(&self) -> i32 {
        self.child.as_ref().unwrap().id() as i32
    }

    /// Waits for the end of a server that was killed.
    pub fn wait(&mut self) {
        self.child.as_mut().unwrap().wait().unwrap();
    }

    /// Sends a signal and waits for the end.
    #[track_caller]
    pub fn end_by(mut self, signal: i32) -> Ended {
        // SAFETY: kill takes no pointer; the process is a child that was not waited for.
        unsafe { libc::kill(self.pid(), signal) };
        let child = self.child.as_mut().unwrap();
        let deadline = Instant::now() + PATIENCE;
        while child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "did not end in {PATIENCE:?} after signal {signal}");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ended::of(&self.child.take().unwrap().wait_with_output().unwrap())
    }

    /// Ends it as an administrator does.
    #[track_caller]
    pub fn stop(self) {
        let mountpoint = self.mountpoint.clone();
        self.end_by(libc::SIGTERM).expect(0);
        assert!(!is_mounted(&mountpoint));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if is_mounted(&self.mountpoint) {
            let _ = Command::new("umount").arg("-l").arg(&self.mountpoint).status();
        }
    }
}

/// Whether something is mounted at `path`; never touches it.
pub fn is_mounted(path: &Path) -> bool {
    // The thread's, not the process's: a test may have a mount name space of its own.
    let table = fs::read("/proc/thread-self/mountinfo").unwrap();
    let table = String::from_utf8_lossy(&table);
    let path = path.to_str().unwrap();
    table.lines().any(|line| line.split(' ').nth(4) == Some(path))
}

/// Changes a byte of a file.
pub fn flip(path: &Path, at: u64) {
    use std::os::unix::fs::FileExt;
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x55], at).unwrap();
}
