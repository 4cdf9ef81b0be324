//! The file system under test as a process: start it, wait until it is mounted, stop it politely or kill it.
//!
//! The contract with the binary: `ashlar up MOUNTPOINT --data DIR...` prints the line `mounted MOUNTPOINT` on stdout when the
//! mount is usable, runs until SIGTERM, then unmounts and exits with status 0. Nothing else is assumed.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::sys::mount::detach;

/// How to start the server.
#[derive(Clone, Debug, clap::Args)]
pub struct Launch {
    /// The `ashlar` binary; by default `$ASHLAR_BIN`, else the one beside this program.
    #[arg(long)]
    pub bin: Option<PathBuf>,
    /// A directory for everything the test needs: data, mount point, logs, ledgers. Made if missing.
    #[arg(long)]
    pub work: PathBuf,
    /// Data directories; by default one below the working directory.
    #[arg(long)]
    pub data: Vec<PathBuf>,
    /// A further mount point for the same file system. Made if missing.
    #[arg(long)]
    pub also_mount: Vec<PathBuf>,
    /// Further arguments for `ashlar up`.
    #[arg(long, allow_hyphen_values = true)]
    pub up_arg: Vec<OsString>,
    /// Seconds from start to mounted.
    #[arg(long, default_value_t = 60)]
    pub start_seconds: u64,
}

/// Why the server did not come up.
#[derive(Debug)]
pub enum StartFailure {
    /// It exited; the status and what it printed.
    Exited(ExitStatus, String),
    /// It neither exited nor mounted in time.
    TimedOut(String),
}

impl std::fmt::Display for StartFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(status, output) => write!(f, "the server exited with {status}:\n{output}"),
            Self::TimedOut(output) => write!(f, "the server was not mounted in time; it printed:\n{output}"),
        }
    }
}

impl std::error::Error for StartFailure {}

impl Launch {
    /// The mount point.
    #[must_use]
    pub fn mountpoint(&self) -> PathBuf {
        self.work.join("mnt")
    }

    /// The data directories.
    #[must_use]
    pub fn data_dirs(&self) -> Vec<PathBuf> {
        if self.data.is_empty() { vec![self.work.join("data")] } else { self.data.clone() }
    }

    /// The file with everything the server printed, over all its lives.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.work.join("server.log")
    }

    /// Makes the directories that do not exist yet.
    ///
    /// # Errors
    /// When one cannot be made.
    pub fn prepare(&self) -> anyhow::Result<()> {
        let mountpoint = self.mountpoint();
        let places = [&self.work, &mountpoint].into_iter().chain(&self.also_mount);
        for directory in self.data_dirs().iter().chain(places) {
            fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
        }
        Ok(())
    }

    fn binary(&self) -> anyhow::Result<PathBuf> {
        if let Some(path) = self.bin.clone().or_else(|| std::env::var_os("ASHLAR_BIN").map(PathBuf::from)) {
            return Ok(path);
        }
        let own = std::env::current_exe().context("find this program's own path")?;
        Ok(own.with_file_name("ashlar"))
    }

    /// Starts the server and waits until it is mounted.
    ///
    /// # Errors
    /// [`StartFailure`] when it does not come up; others when it cannot be started at all.
    pub fn start(&self) -> anyhow::Result<Server> {
        let log_path = self.log();
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log_path)
            .with_context(|| format!("open {}", log_path.display()))?;
        let begin = log.metadata()?.len();
        let binary = self.binary()?;
        let mut command = Command::new(&binary);
        command.arg("up").arg(self.mountpoint()).args(&self.also_mount);
        for directory in self.data_dirs() {
            command.arg("--data").arg(directory);
        }
        command.args(&self.up_arg);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // SAFETY: between fork and exec only prctl is called, which is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                // A test that is itself killed must not leave a server behind. It gets the polite signal, so that it unmounts.
                match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let child = command.spawn().with_context(|| format!("start {}", binary.display()))?;
        let mountpoints = [self.mountpoint()].into_iter().chain(self.also_mount.iter().cloned()).collect();
        let mut server = Server { child, mountpoints };
        let end = Instant::now() + Duration::from_secs(self.start_seconds);
        let printed = || read_from(&log_path, begin);
        loop {
            if let Some(status) = server.child.try_wait()? {
                return Err(StartFailure::Exited(status, printed()).into());
            }
            let announced = printed().lines().filter(|line| line.starts_with("mounted ")).count();
            if announced >= server.mountpoints.len() && server.mounted()?.len() == server.mountpoints.len() {
                return Ok(server);
            }
            if Instant::now() > end {
                server.kill()?;
                return Err(StartFailure::TimedOut(printed()).into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The text of a log from byte `begin` on; unreadable bytes are replaced.
fn read_from(path: &Path, begin: u64) -> String {
    use std::io::{Read, Seek, SeekFrom};
    // LIMIT: bytes of a log shown.
    const SHOWN_MAX: u64 = 64 * 1024;
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|mut file| {
        file.seek(SeekFrom::Start(begin))?;
        file.take(SHOWN_MAX).read_to_end(&mut bytes)
    });
    match read {
        Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => format!("(the log cannot be read: {error})"),
    }
}

/// Whether something is mounted at exactly `path`, alive or dead.
///
/// # Errors
/// When the mount table cannot be read.
pub fn is_mounted(path: &Path) -> anyhow::Result<bool> {
    // A dead FUSE mount cannot be resolved itself, but its parent can.
    let name = path.file_name().context("a mount point has a name")?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let resolved = parent.canonicalize().with_context(|| format!("resolve {}", parent.display()))?.join(name);
    let table = fs::read("/proc/self/mountinfo").context("read the mount table")?;
    let table = String::from_utf8_lossy(&table);
    let wanted = resolved.to_string_lossy().replace(' ', "\\040");
    Ok(table.lines().any(|line| line.split(' ').nth(4) == Some(wanted.as_str())))
}

/// A running, mounted server. Dropping it kills the process and removes the mount, so that a failing test leaves nothing behind.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// The first is the one tests use unless they ask for two.
    mountpoints: Vec<PathBuf>,
}

impl Server {
    /// Those of its mount points that are mounted, alive or dead.
    fn mounted(&self) -> anyhow::Result<Vec<&Path>> {
        let mut mounted = Vec::new();
        for mountpoint in &self.mountpoints {
            if is_mounted(mountpoint)? {
                mounted.push(mountpoint.as_path());
            }
        }
        Ok(mounted)
    }

    /// Whether the process still runs; if not, how it ended.
    ///
    /// # Errors
    /// When the process cannot be asked about.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process with SIGKILL, without touching the mount.
    ///
    /// # Errors
    /// When the process cannot be killed.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().context("kill the server")?;
        self.child.wait().context("wait for the killed server")?;
        Ok(())
    }

    /// Removes the mounts a killed server left.
    ///
    /// # Errors
    /// When one cannot be removed.
    pub fn detach(&self) -> anyhow::Result<()> {
        // LIMIT: mounts stacked on one mount point.
        for _ in 0..10 {
            let mounted = self.mounted()?;
            if mounted.is_empty() {
                return Ok(());
            }
            for mountpoint in mounted {
                detach(mountpoint).with_context(|| format!("detach {}", mountpoint.display()))?;
            }
        }
        bail!("still mounted: {:?}", self.mounted()?)
    }

    /// Asks the server to end with SIGTERM and expects it to unmount and exit with status 0.
    ///
    /// # Errors
    /// When it does not within 60 s, ends otherwise, or leaves the mount behind.
    pub fn stop(mut self) -> anyhow::Result<()> {
        const STOP_SECONDS_MAX: u64 = 60;
        let pid = i32::try_from(self.child.id()).context("a process id")?;
        // SAFETY: the child has not been waited for, so the id is still its own.
        if unsafe { libc::kill(pid, libc::SIGTERM) } != 0 {
            bail!("signal the server: {}", std::io::Error::last_os_error());
        }
        let end = Instant::now() + Duration::from_secs(STOP_SECONDS_MAX);
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() > end {
                bail!("the server did not end within {STOP_SECONDS_MAX} s of SIGTERM");
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        if !status.success() {
            bail!("the server ended with {status} after SIGTERM");
        }
        let left = self.mounted()?;
        if !left.is_empty() {
            bail!("the server ended but left mounts behind: {left:?}");
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let ended = matches!(self.child.try_wait(), Ok(Some(_)));
        if !ended && let Err(error) = self.kill() {
            eprintln!("{error:#}");
        }
        if let Err(error) = self.detach() {
            eprintln!("{error:#}");
        }
    }
}

/// Whether a process ended by a signal, which for a server is a crash.
#[must_use]
pub fn crashed(status: ExitStatus) -> bool {
    // A shell or a runtime that aborts shows as SIGABRT; exit codes above 128 are a shell's way to say the same.
    status.signal().is_some() || status.code().is_some_and(|code| code > 128)
}
