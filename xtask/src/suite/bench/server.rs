//! A server under test as a process: Ashlar, or the ceiling. Started, waited for until mounted, ended.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::control_group::ControlGroup;
use super::{Bench, Transport};
use crate::shell;

/// From start to mounted, after a crash with very many files included.
const START_MAX: Duration = Duration::from_secs(300);
/// From being asked to end to having ended; a server with much in memory writes it out first.
const STOP_MAX: Duration = Duration::from_secs(300);

/// How a server is asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It unmounts by itself on SIGTERM.
    Signal,
    /// It ends when it is unmounted.
    Unmount,
}

/// A running, mounted server. Dropped, it is killed and unmounted, so that a failing benchmark leaves nothing behind.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    mountpoint: PathBuf,
    end: End,
    /// From start to mounted.
    pub(super) start_time: Duration,
}

impl Server {
    /// Starts `ashlar up` with two targets below `data`, in a group with limited memory if one is given.
    pub(super) fn ashlar(
        bench: &Bench,
        mountpoint: &Path,
        data: &Path,
        group: Option<&ControlGroup>,
    ) -> anyhow::Result<Self> {
        let mut words = vec![bench.programs.join("ashlar").into_os_string(), "up".into(), mountpoint.into()];
        for target in ["target-a", "target-b"] {
            let directory = data.join(target);
            fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
            words.extend(["--data".into(), directory.into_os_string()]);
        }
        words.extend(["--fuse-transport".into(), bench.shared.transport.choice().into()]);
        let mut command = match group {
            Some(group) => group.command(&words),
            None => {
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]);
                command
            }
        };
        Self::start(&mut command, mountpoint, End::Signal).map(|(server, _)| server)
    }

    /// Starts the ceiling, with the settings Ashlar's mounts have.
    pub(super) fn ceiling(bench: &Bench, mountpoint: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(bench.programs.join("examples/ceiling"));
        command.arg("--mnt").arg(mountpoint);
        command.args(["--entry-lifetime", "3600", "--attr-lifetime", "3600", "--default-permissions"]);
        command.args(["--readahead", "1048576", "--readdirplus-auto"]);
        command.args(["--transport", bench.shared.transport.choice()]);
        let (server, announced) = Self::start(&mut command, mountpoint, End::Unmount)?;
        if bench.shared.transport == Transport::Uring && !announced.contains("io_uring") {
            bail!("the ceiling does not use io_uring although it is switched on: {announced}");
        }
        Ok(server)
    }

    /// The server, and what it announced when it was mounted.
    fn start(command: &mut Command, mountpoint: &Path, end: End) -> anyhow::Result<(Self, String)> {
        fs::create_dir_all(mountpoint).with_context(|| format!("create {}", mountpoint.display()))?;
        let log_path = mountpoint.with_extension("log");
        let log = File::create(&log_path).with_context(|| format!("create {}", log_path.display()))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // SAFETY: between fork and exec only prctl is called, which is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                // A benchmark that is itself killed must not leave a server behind. It gets the polite signal, so that it unmounts.
                match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        println!("$ {}", shell::show(command));
        let begin = Instant::now();
        let child = command.spawn().with_context(|| format!("start {}", shell::show(command)))?;
        let mut server = Self { child, mountpoint: mountpoint.to_owned(), end, start_time: Duration::ZERO };
        loop {
            let printed =
                fs::read_to_string(&log_path).with_context(|| format!("read {}", log_path.display()))?;
            if let Some(status) = server.child.try_wait()? {
                bail!("{} ended with {status}:\n{printed}", shell::show(command));
            }
            if let Some(line) = printed.lines().find(|line| line.starts_with("mounted "))
                && server.is_mounted()?
            {
                server.start_time = begin.elapsed();
                return Ok((server, line.to_owned()));
            }
            if begin.elapsed() > START_MAX {
                bail!("{} was not mounted within {START_MAX:?}:\n{printed}", shell::show(command));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn is_mounted(&self) -> anyhow::Result<bool> {
        let table = fs::read("/proc/self/mountinfo").context("read the mount table")?;
        let table = String::from_utf8_lossy(&table);
        let path = self.mountpoint.to_string_lossy().replace(' ', "\\040");
        Ok(table.lines().any(|line| line.split(' ').nth(4) == Some(path.as_str())))
    }

    fn unmount(&self) -> anyhow::Result<()> {
        if self.is_mounted()? {
            shell::run(Command::new("umount").arg("--lazy").arg(&self.mountpoint))?;
        }
        Ok(())
    }

    /// Ends the server and waits for it.
    ///
    /// # Errors
    /// When it does not end in time, or not with success.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!(
                "the server of {} had ended with {status}; its output is beside it",
                self.mountpoint.display()
            );
        }
        match self.end {
            End::Signal => {
                let pid = i32::try_from(self.child.id()).context("a process id")?;
                // SAFETY: the child has not been waited for, so the id is still its own.
                if unsafe { libc::kill(pid, libc::SIGTERM) } != 0 {
                    bail!("signal the server: {}", std::io::Error::last_os_error());
                }
            }
            End::Unmount => self.unmount()?,
        }
        let begin = Instant::now();
        while begin.elapsed() < STOP_MAX {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("the server of {} ended with {status}", self.mountpoint.display()),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        bail!("the server of {} did not end within {STOP_MAX:?}", self.mountpoint.display())
    }

    /// Kills the server and removes the mount it leaves.
    ///
    /// # Errors
    /// When it cannot be killed or unmounted.
    pub(super) fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill().context("kill the server")?;
        self.child.wait().context("wait for the killed server")?;
        self.unmount()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let ended = matches!(self.child.try_wait(), Ok(Some(_)));
        if !ended && let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            eprintln!("cannot end the server of {}: {error}", self.mountpoint.display());
        }
        if let Err(error) = self.unmount() {
            eprintln!("{error:#}");
        }
    }
}
