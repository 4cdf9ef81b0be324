//! `mount.ashlar`: starts `ashlar up`, or `ashlar mount` for a file system of many servers, in the background and returns when it is mounted.

use super::kind::Kind;
use super::{Call, remount};
use anyhow::{Context, Result, bail};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// LIMIT: how long a start may take; replaying the log after a power cut takes a while.
const START_MAX: Duration = Duration::from_secs(600);

/// Where messages go when nobody says otherwise and systemd does not take them.
const LOG_FILE: &str = "/var/log/ashlar.log";

/// First fields of /etc/fstab that name no directory: the data is in the default place.
const NO_DIRECTORY: &[&str] = &["none", "ashlar"];

pub(super) fn run(call: &Call) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!(
            "only root mounts through mount(8); start a file system of your own with: ashlar up {}",
            call.mountpoint.display()
        );
    }
    if call.is_fake {
        return Ok(());
    }
    if call.options.is_remount {
        return remount::run(call);
    }
    let kind = Kind::of(call)?;
    keep_descriptors_from_server().context("cannot look at /proc/self/fd")?;
    let mut log = Log::open(call)?;
    let program = kind.program();
    let mut server = command(call, kind)?
        .stderr(log.stdio()?)
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    if let Err(error) = wait_until_mounted(&mut server, program) {
        end(&mut server, kind);
        let printed = log.printed();
        return Err(if printed.is_empty() { error } else { anyhow::anyhow!("{}", printed.trim_end()) });
    }
    remount::apply_rest(&call.mountpoint, call.options.flags)
}

/// Ends a server that is not wanted any more, or has ended already.
fn end(server: &mut Child, kind: Kind) {
    // A mount of a cluster that waits for servers would see only when they are there that it is to end, and has nothing to keep.
    let signal = match kind {
        Kind::OneMachine => libc::SIGTERM,
        Kind::Cluster => libc::SIGKILL,
    };
    // SAFETY: kill takes no pointer; the process is a child that was not waited for, or the number is that of nobody else yet.
    unsafe { libc::kill(server.id() as libc::pid_t, signal) };
}

/// What was open where `mount` was called is not the server's, which lives on: a lock file of a script would stay locked, a pipe open.
fn keep_descriptors_from_server() -> io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let Some(fd) = name.to_str().and_then(|name| name.parse::<i32>().ok()).filter(|fd| *fd > 2) else {
            continue;
        };
        // The directory being read is closed by then: an error means that there is nothing to keep.
        // SAFETY: fcntl with F_SETFD takes no pointer, and closes nothing in this process.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    Ok(())
}

fn command(call: &Call, kind: Kind) -> Result<Command> {
    let options = &call.options;
    let mut command = Command::new(std::env::current_exe().context("cannot find the ashlar binary")?);
    if let Some(filter) = &options.log {
        command.arg("--log").arg(filter);
    }
    match kind {
        Kind::OneMachine => one_machine(call, &mut command),
        Kind::Cluster => cluster(call, &mut command),
    }
    let by_server = [
        (libc::MS_RDONLY, "--read-only"),
        (libc::MS_NOSUID, "--no-set-id"),
        (libc::MS_NODEV, "--no-devices"),
    ];
    command.args(by_server.iter().filter(|(flag, _)| options.has(*flag)).map(|(_, option)| option));
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped());
    // SAFETY: setsid is async-signal-safe and takes no pointer.
    unsafe {
        command.pre_exec(|| {
            // The server outlives the terminal of whoever typed `mount`.
            if libc::setsid() < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        });
    }
    Ok(command)
}

fn one_machine(call: &Call, command: &mut Command) {
    command.arg("up").arg(&call.mountpoint).arg("--source").arg(&call.spec);
    // Whoever types `mount` wants what is there; a new file system would only hide that its disk is missing.
    command.arg("--existing");
    let first = (!NO_DIRECTORY.iter().any(|word| call.spec == *word)).then(|| PathBuf::from(&call.spec));
    for directory in first.iter().chain(&call.options.data) {
        command.arg("--data").arg(directory);
    }
    if let Some(directory) = &call.options.meta {
        command.arg("--meta").arg(directory);
    }
}

fn cluster(call: &Call, command: &mut Command) {
    command.arg("mount").arg(&call.mountpoint).arg("--source").arg(&call.spec);
    command.arg("--identity").arg(&call.spec);
    if let Some(seconds) = &call.options.error_after {
        command.arg("--error-after").arg(seconds);
    }
    if let Some(seconds) = &call.options.keep {
        command.arg("--keep").arg(seconds);
    }
    if let Some(kind) = &call.options.coherence {
        command.arg("--coherence").arg(kind);
    }
    if let Some(kind) = &call.options.durability {
        command.arg("--durability").arg(kind);
    }
    if let Some(path) = &call.options.subdirectory {
        command.arg("--subdirectory").arg(path);
    }
}

/// Waits for the line that both promise.
fn wait_until_mounted(server: &mut Child, program: &str) -> Result<()> {
    let stdout = server.stdout.take().context("no standard output")?;
    let (sender, receiver) = mpsc::channel();
    let read = move || {
        let is_mounted =
            BufReader::new(stdout).lines().map_while(Result::ok).any(|line| line.starts_with("mounted "));
        // The receiver may have given up.
        let _ = sender.send(is_mounted);
    };
    std::thread::Builder::new().name("wait".into()).spawn(read).context("cannot start a thread")?;
    match receiver.recv_timeout(START_MAX) {
        Ok(true) => Ok(()),
        Ok(false) => {
            let status = server.wait().with_context(|| format!("cannot wait for {program}"))?;
            bail!("{program} ended with {status} before it was mounted")
        }
        Err(_) => bail!("not mounted after {} s; giving up", START_MAX.as_secs()),
    }
}

/// Where the server's messages go.
enum Log {
    /// Ours, which systemd reads.
    Journal,
    /// A file, and where in it our server begins.
    File(File, u64),
}

impl Log {
    fn open(call: &Call) -> Result<Log> {
        let chosen = call.options.log_file.as_deref();
        if chosen.is_none() && std::env::var_os("JOURNAL_STREAM").is_some() {
            return Ok(Log::Journal);
        }
        let path = chosen.unwrap_or(Path::new(LOG_FILE));
        let failed = || format!("cannot open {}; name another one with log_file=FILE", path.display());
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o640)
            .open(path)
            .with_context(failed)?;
        let begin = file.metadata().with_context(failed)?.len();
        Ok(Log::File(file, begin))
    }

    fn stdio(&self) -> Result<Stdio> {
        match self {
            Log::Journal => Ok(Stdio::inherit()),
            Log::File(file, _) => Ok(file.try_clone().context("cannot share the log")?.into()),
        }
    }

    /// What the server said, for whoever typed `mount`.
    fn printed(&mut self) -> String {
        // LIMIT: bytes repeated.
        const PRINTED_MAX: u64 = 16 << 10;
        let Log::File(file, begin) = self else { return String::new() };
        let mut bytes = Vec::new();
        let read =
            file.seek(SeekFrom::Start(*begin)).and_then(|_| file.take(PRINTED_MAX).read_to_end(&mut bytes));
        // What cannot be read is in the log all the same.
        read.map_or_else(|_| String::new(), |_| String::from_utf8_lossy(&bytes).into_owned())
    }
}
