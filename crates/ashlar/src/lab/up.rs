//! `ashlar lab up`: makes a lab and starts it.

use super::down::{remove, require_root};
use super::name_space::{enter, require_programs};
use super::network;
use super::plan::{LabNode, LabRole, Places, nodes};
use super::process::ProcessId;
use super::record::Record;
use crate::cli::LabUpArgs;
use crate::terminal::{say, shown};
use anyhow::{Context, Result, bail};
use ashlar_env::Env;
use ashlar_types::Coherence;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// LIMIT: for how long a process may take until it serves.
const START_MAX: Duration = Duration::from_secs(120);
/// Time between looks at its log.
const TURN: Duration = Duration::from_millis(10);
/// LIMIT: bytes of a log that an error repeats.
const LOG_BYTES_MAX: usize = 4096;

/// Makes the lab at `dir`. What could not be finished is taken away again.
pub fn up(dir: &Path, args: &LabUpArgs) -> Result<()> {
    let nodes = nodes(args.meta, args.storage, args.clients);
    require_root()?;
    require_programs()?;
    if !Path::new("/dev/fuse").exists() {
        bail!("there is no /dev/fuse, without which nothing can be mounted: load the kernel module fuse");
    }
    let is_told_to_stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, is_told_to_stop.clone()).context("cannot take signals")?;
    }
    let id = format!("{:08x}", Env::os().entropy.next_u64() as u32);
    let mut places = Places::of(dir);
    let record = Record::begin(&places, nodes, args.link_mbit, id)?;
    places = Places::of(&places.dir);
    let mut lab = Lab { places, record, is_told_to_stop, coherence: args.coherence, split_at: args.split_at };
    if let Err(error) = lab.make() {
        if let Err(other) = remove(&lab.places, &lab.record) {
            eprintln!("ashlar: not everything could be removed ({other:#}); `ashlar lab down` tries again");
        }
        return Err(error);
    }
    lab.tell();
    Ok(())
}

/// A lab being made.
struct Lab {
    places: Places,
    record: Record,
    is_told_to_stop: Arc<AtomicBool>,
    coherence: Coherence,
    split_at: u64,
}

impl Lab {
    fn make(&mut self) -> Result<()> {
        for tree in self.places.trees() {
            fs::create_dir_all(&tree).with_context(|| format!("cannot make {}", shown(&tree)))?;
        }
        network::make(&self.record).context("cannot make the network of the lab")?;
        let nodes = self.record.nodes.clone();
        for node in &nodes {
            match node.role {
                LabRole::Manager => self.init(node)?,
                _ => self.join(node)?,
            }
            self.start(node)?;
        }
        self.record.maker = None;
        self.record.store(&self.places)
    }

    fn init(&self, node: &LabNode) -> Result<()> {
        let mut command = self.command(node)?;
        command.args(["init", "--name", &node.name, "--listen", &node.address.to_string()]);
        command.arg("--state").arg(self.places.data(&node.name));
        command.arg("--identity").arg(self.places.identity(&node.name));
        self.finish(&mut command, "").map(drop)
    }

    fn join(&self, node: &LabNode) -> Result<()> {
        let manager = self.record.node("manager")?;
        let mut command = self.command(manager)?;
        command.args(["token", "--role", node.role.name()]);
        if node.role == LabRole::Client {
            // All of a lab is one machine's, whose root made it.
            command.args(["--squash", "none"]);
        }
        command.arg("--identity").arg(self.places.identity(&manager.name));
        let token = self.finish(&mut command, "")?;
        let mut command = self.command(node)?;
        command.args(["join", "-", "--name", &node.name]);
        command.arg("--identity").arg(self.places.identity(&node.name));
        self.finish(&mut command, &token).map(drop)
    }

    /// Starts what the node is there for, and waits until it serves.
    fn start(&mut self, node: &LabNode) -> Result<()> {
        let (data, log) = (self.places.data(&node.name), self.places.log(&node.name));
        let mountpoint = self.places.mountpoint(&node.name);
        let (mut command, address) = (self.command(node)?, node.address.to_string());
        let ready = match node.role {
            LabRole::Manager => {
                command.arg("manager").arg("--state").arg(&data);
                "manager serves at "
            }
            LabRole::Meta => {
                command.arg("meta").arg("--meta").arg(&data).args(["--listen", &address]);
                command.arg("--split-at").arg(self.split_at.to_string());
                "meta serves at "
            }
            LabRole::Storage => {
                command.arg("storage").arg("--data").arg(&data).args(["--listen", &address]);
                "storage serves at "
            }
            LabRole::Client => {
                fs::create_dir(&mountpoint).with_context(|| format!("cannot make {}", shown(&mountpoint)))?;
                command.arg("mount").arg(&mountpoint).args(["--coherence", self.coherence.name()]);
                "mounted "
            }
        };
        command.arg("--identity").arg(self.places.identity(&node.name));
        let out = File::create(&log).with_context(|| format!("cannot make {}", shown(&log)))?;
        command.stdin(Stdio::null()).stdout(out.try_clone().context("cannot share a log")?).stderr(out);
        // SAFETY: setsid is async-signal-safe and takes no pointer.
        unsafe {
            command.pre_exec(|| {
                // It outlives the terminal.
                if libc::setsid() < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
            });
        }
        let mut child = command.spawn().with_context(|| format!("cannot start {}", node.name))?;
        self.record.processes.push((node.name.clone(), ProcessId::of(child.id().try_into()?)?));
        self.record.store(&self.places)?;
        self.wait_until_ready(node, &mut child, ready)
    }

    fn wait_until_ready(&self, node: &LabNode, child: &mut Child, ready: &str) -> Result<()> {
        let log = self.places.log(&node.name);
        let deadline = Instant::now() + START_MAX;
        loop {
            let bytes = fs::read(&log).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            if text.lines().any(|line| line.starts_with(ready)) {
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
    fn command(&self, node: &LabNode) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe().context("cannot find the ashlar binary")?);
        command.current_dir("/");
        enter(&mut command, &self.record.name_space(&node.name))?;
        Ok(command)
    }

    /// Runs a command to its end; tells what it printed.
    fn finish(&self, command: &mut Command, input: &str) -> Result<String> {
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

    fn tell(&self) {
        for node in self.record.nodes.iter().filter(|node| node.role == LabRole::Client) {
            say(format_args!("mounted {}", shown(&self.places.mountpoint(&node.name))));
        }
        let dir = shown(&self.places.dir);
        say(format_args!("see it with: ashlar lab status --dir {dir}"));
        say(format_args!("remove it with: ashlar lab down --dir {dir}"));
    }
}
