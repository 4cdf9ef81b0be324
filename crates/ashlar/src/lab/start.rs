//! The processes of a lab: each is started, and when it was killed started again, as its node wants it.

use super::disk;
use super::name_space::enter;
use super::plan::{LabNode, LabRole, Places, manager_beside};
use super::process::{ProcessId, wait_for_end};
use super::record::Record;
use crate::terminal::shown;
use anyhow::{Context, Result, bail};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// LIMIT: for how long a process may take until it serves.
pub const START_MAX: Duration = Duration::from_secs(120);
/// LIMIT: for how long one may take to end in good order.
const STOP_MAX: Duration = Duration::from_secs(20);
/// LIMIT: for how long one that was killed may take to go.
const KILL_MAX: Duration = Duration::from_secs(20);
/// Time between looks at its log.
const TURN: Duration = Duration::from_millis(10);
/// Where a console listens.
const CONSOLE_PORT: u16 = 7403;
/// LIMIT: bytes of a log that an error repeats.
const LOG_BYTES_MAX: usize = 4096;

/// A lab being made, or one that is there.
pub struct Lab {
    pub places: Places,
    pub record: Record,
    pub is_told_to_stop: Arc<AtomicBool>,
    /// Of the metadata of each metadata server, when it is made.
    pub copies: u8,
    /// For the gateway.
    pub browsers: Option<TcpListener>,
    /// What this process has started, to be waited for when it has ended.
    pub children: Vec<Child>,
}

impl Lab {
    /// The lab at `dir`, which somebody has made.
    pub fn at(dir: &Path) -> Result<Lab> {
        let places = Places::of(dir);
        let record = Record::load(&places)?;
        if let Some(maker) = record.maker.as_ref().filter(|maker| maker.runs()) {
            bail!("`ashlar lab up`, process {}, is still at work on this lab: wait for it", maker.pid);
        }
        let (is_told_to_stop, children) = Default::default();
        Ok(Lab { places, record, is_told_to_stop, copies: 1, browsers: None, children })
    }

    /// The process of a node, if it runs.
    pub fn process(&self, node: &str) -> Option<&ProcessId> {
        let known = self.record.processes.iter().rev().find(|(name, _)| name == node);
        known.map(|(_, process)| process).filter(|process| process.runs())
    }

    /// Kills the process of a node, without a word to it.
    pub fn kill(&self, node: &str) -> Result<()> {
        let Some(process) = self.process(node) else { return Ok(()) };
        process.signal(libc::SIGKILL);
        if !wait_for_end(std::slice::from_ref(process), KILL_MAX) {
            bail!("process {} of {node} does not end, although it was killed", process.pid);
        }
        Ok(())
    }

    /// Tells the process of a node to stop, and kills it if it has not in time.
    pub fn stop(&self, node: &str) -> Result<()> {
        if let Some(process) = self.process(node) {
            process.signal(libc::SIGTERM);
            let _ = wait_for_end(std::slice::from_ref(process), STOP_MAX);
        }
        self.kill(node)
    }

    /// Starts the process of a node again, if it does not run, and waits until it serves.
    pub fn start_again(&mut self, node: &str) -> Result<()> {
        if self.process(node).is_some() {
            return Ok(());
        }
        let node = self.not_running(node)?;
        self.start(&node)
    }

    /// Starts the process of a node again, if it does not run.
    pub fn launch_again(&mut self, node: &str) -> Result<()> {
        if self.process(node).is_some() {
            return Ok(());
        }
        let node = self.not_running(node)?;
        let (child, ..) = self.launch(&node)?;
        self.children.push(child);
        Ok(())
    }

    /// The last line that the process of a node has written.
    pub fn last_line(&self, node: &str) -> String {
        let text = fs::read(self.places.log(node)).unwrap_or_default();
        let tail = text.get(text.len().saturating_sub(LOG_BYTES_MAX)..).unwrap_or_default();
        String::from_utf8_lossy(tail).lines().last().unwrap_or_default().to_owned()
    }

    fn not_running(&mut self, node: &str) -> Result<LabNode> {
        let node = self.record.node(node)?.clone();
        self.record.processes.retain(|(name, _)| *name != node.name);
        Ok(node)
    }

    /// The command that is what the node is there for, and what it says when it serves.
    fn role_of(&self, node: &LabNode) -> Result<(Command, &'static str)> {
        let data = self.places.data(&node.name);
        let (mut command, address) = (self.command(node)?, node.address.to_string());
        let ready = match node.role {
            LabRole::Manager => {
                command.arg("manager").arg("--state").arg(&data).args(["--listen", &address]);
                "manager serves at "
            }
            LabRole::Etcd => {
                let data = self.places.data(&manager_beside(&node.name));
                command.args(["etcd", "run", "--state"]).arg(data);
                return Ok((command, "serving client"));
            }
            LabRole::Meta => {
                command.arg("meta").arg("--meta").arg(&data).args(["--listen", &address]);
                command.arg("--split-at").arg(self.record.made_with.split_at.to_string());
                // It serves, or keeps copies.
                "meta "
            }
            LabRole::Storage => {
                command.arg("storage").args(["--listen", &address]);
                for dir in disk::targets(&self.places, &self.record, &node.name) {
                    command.arg("--data").arg(dir);
                }
                "storage serves at "
            }
            LabRole::Client => {
                let made_with = &self.record.made_with;
                command.arg("mount").arg(self.places.mountpoint(&node.name));
                command.args(["--coherence", &made_with.coherence]);
                command.arg("--keep").arg(made_with.keep.to_string());
                "mounted "
            }
            LabRole::Console => {
                command.args(["console", "--listen", &address]);
                if let Some(url) = self.record.console_url() {
                    command.args(["--url", &url]);
                }
                "console serves at "
            }
            LabRole::Gateway => {
                let console = self.record.node(LabRole::Console.name())?;
                let to = SocketAddr::from((console.address, CONSOLE_PORT));
                command.args(["lab", "gateway", "--to", &to.to_string()]);
                return Ok((command, "gateway serves"));
            }
        };
        command.arg("--identity").arg(self.places.identity(&node.name));
        Ok((command, ready))
    }

    /// Starts what the node is there for, and waits until it serves.
    pub fn start(&mut self, node: &LabNode) -> Result<()> {
        let (mut child, ready, said_before) = self.launch(node)?;
        let outcome = self.wait_until_ready(node, &mut child, (ready, said_before));
        self.children.push(child);
        outcome
    }

    /// Starts what the node is there for; tells what it says when it serves, and how long its log was before.
    fn launch(&mut self, node: &LabNode) -> Result<(Child, &'static str, u64)> {
        // Those before it that have ended are not to be left as zombies.
        self.children.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
        let (mut command, ready) = self.role_of(node)?;
        let log = self.places.log(&node.name);
        let input = match self.browsers.take_if(|_| node.role == LabRole::Gateway) {
            Some(listener) => Stdio::from(OwnedFd::from(listener)),
            None => Stdio::null(),
        };
        let out = OpenOptions::new().create(true).append(true).open(&log);
        let out = out.with_context(|| format!("cannot make {}", shown(&log)))?;
        // What one before it has said stays, and does not count.
        let said_before = out.metadata().context("cannot look at a log")?.len();
        command.stdin(input).stdout(out.try_clone().context("cannot share a log")?).stderr(out);
        // SAFETY: setsid is async-signal-safe and takes no pointer.
        unsafe {
            command.pre_exec(|| {
                // It outlives the terminal.
                if libc::setsid() < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
            });
        }
        let child = command.spawn().with_context(|| format!("cannot start {}", node.name))?;
        self.record.processes.push((node.name.clone(), ProcessId::of(child.id().try_into()?)?));
        self.record.store(&self.places)?;
        Ok((child, ready, said_before))
    }

    fn wait_until_ready(
        &self,
        node: &LabNode,
        child: &mut Child,
        (ready, said_before): (&str, u64),
    ) -> Result<()> {
        let log = self.places.log(&node.name);
        let deadline = Instant::now() + START_MAX;
        loop {
            let mut bytes = fs::read(&log).unwrap_or_default();
            bytes.drain(..bytes.len().min(said_before.try_into()?));
            let text = String::from_utf8_lossy(&bytes);
            // Lines of etcd begin with other things.
            let is_it =
                |line: &str| line.starts_with(ready) || (node.role == LabRole::Etcd && line.contains(ready));
            if text.lines().any(is_it) {
                return Ok(());
            }
            let said = || {
                let tail = &bytes[bytes.len().saturating_sub(LOG_BYTES_MAX)..];
                String::from_utf8_lossy(tail).trim().to_owned()
            };
            if self.is_told_to_stop.load(Relaxed) {
                bail!("told to stop");
            }
            if let Some(status) = child.try_wait().context("cannot wait for a process")? {
                bail!("{} has ended with {status}: {}", node.name, said());
            }
            if Instant::now() >= deadline {
                bail!("{} does not serve after {} s: {}", node.name, START_MAX.as_secs(), said());
            }
            std::thread::sleep(TURN);
        }
    }

    /// This program in the network of `node`.
    pub fn command(&self, node: &LabNode) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe().context("cannot find the ashlar binary")?);
        command.current_dir("/");
        enter(&mut command, &self.record.name_space(&node.name))?;
        Ok(command)
    }

    /// Runs a command to its end; tells what it printed.
    pub fn finish(&self, command: &mut Command, input: &str) -> Result<String> {
        if self.is_told_to_stop.load(Relaxed) {
            bail!("told to stop");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start ashlar")?;
        if let Some(mut stdin) = child.stdin.take() {
            // One that does not want it says why.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = child.wait_with_output().context("cannot wait for ashlar")?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}
