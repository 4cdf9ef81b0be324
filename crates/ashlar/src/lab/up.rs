//! `ashlar lab up`: makes a lab and starts it.

use super::down::{remove, require_root};
use super::name_space::{enter, require_programs};
use super::network;
use super::plan::{ETCD_MEMBERS, FIRST_MANAGER, LabNode, LabRole, Places, Shape, manager_beside, nodes};
use super::process::ProcessId;
use super::record::Record;
use crate::cli::LabUpArgs;
use crate::cluster::etcd::find_program;
use crate::terminal::{say, shown};
use anyhow::{Context, Result, bail};
use ashlar_env::Env;
use ashlar_types::Coherence;
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs::{self, File};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
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
/// Time between looks at the members of etcd.
const MEMBER_TURN: Duration = Duration::from_millis(200);
/// Where a console listens.
const CONSOLE_PORT: u16 = 7403;
/// LIMIT: bytes of a log that an error repeats.
const LOG_BYTES_MAX: usize = 4096;

/// Makes the lab at `dir`. What could not be finished is taken away again.
pub fn up(dir: &Path, args: &LabUpArgs) -> Result<()> {
    let shape = shape(args)?;
    require_root()?;
    require_programs()?;
    if !Path::new("/dev/fuse").exists() {
        bail!("there is no /dev/fuse, without which nothing can be mounted: load the kernel module fuse");
    }
    if shape.has_etcd {
        find_program(None)?;
    }
    let browsers = args.console.map(listen_for_browsers).transpose()?;
    let console_port = browsers.as_ref().map(|(_, port)| *port);
    let is_told_to_stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, is_told_to_stop.clone()).context("cannot take signals")?;
    }
    let id = format!("{:08x}", Env::os().entropy.next_u64() as u32);
    let mut places = Places::of(dir);
    let record = Record::begin(&places, nodes(&shape), (args.link_mbit, console_port), id)?;
    places = Places::of(&places.dir);
    let mut lab = Lab {
        places,
        record,
        is_told_to_stop,
        coherence: args.coherence,
        keep: args.keep,
        split_at: args.split_at,
        copies: args.copies,
        browsers: browsers.map(|(listener, _)| listener),
    };
    if let Err(error) = lab.make() {
        if let Err(other) = remove(&lab.places, &lab.record) {
            eprintln!("ashlar: not everything could be removed ({other:#}); `ashlar lab down` tries again");
        }
        return Err(error);
    }
    lab.tell();
    Ok(())
}

/// What the arguments ask for, if that can be.
fn shape(args: &LabUpArgs) -> Result<Shape> {
    if u32::from(args.copies) > args.meta {
        bail!("{} copies are on as many metadata servers: add --meta {0}", args.copies);
    }
    let managers = args.managers.unwrap_or(if args.etcd { ETCD_MEMBERS } else { 1 });
    if managers > 1 && !args.etcd {
        bail!("several managers share their state in an etcd: add --etcd");
    }
    if args.etcd && managers < ETCD_MEMBERS {
        bail!(
            "an etcd has three members, each beside a manager: ask for three managers or more, or leave --managers out"
        );
    }
    Ok(Shape {
        managers,
        has_etcd: args.etcd,
        meta: args.meta,
        storage: args.storage,
        clients: args.clients,
        has_console: args.console.is_some(),
    })
}

/// Listens in the network of this machine, for programs on it alone; tells the port.
fn listen_for_browsers(port: u16) -> Result<(TcpListener, u16)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).with_context(|| {
        format!(
            "cannot listen at 127.0.0.1:{port} for browsers: name a port that is free with --console PORT"
        )
    })?;
    let port = listener.local_addr().context("cannot find the port for browsers")?.port();
    Ok((listener, port))
}

/// A lab being made.
struct Lab {
    places: Places,
    record: Record,
    is_told_to_stop: Arc<AtomicBool>,
    coherence: Coherence,
    keep: u32,
    split_at: u64,
    copies: u8,
    /// For the gateway.
    browsers: Option<TcpListener>,
}

impl Lab {
    fn make(&mut self) -> Result<()> {
        for tree in self.places.trees() {
            fs::create_dir_all(&tree).with_context(|| format!("cannot make {}", shown(&tree)))?;
        }
        network::make(&self.record).context("cannot make the network of the lab")?;
        let nodes = self.record.nodes.clone();
        for node in &nodes {
            self.prepare(node)?;
            self.start(node)?;
            if node.role == LabRole::Etcd && manager_beside(&node.name) != FIRST_MANAGER {
                self.wait_until_member_counts(node)?;
            }
        }
        self.copy_metadata(&nodes)?;
        self.record.maker = None;
        self.record.store(&self.places)
    }

    /// Has copies of metadata be kept. They are made while the lab is used.
    fn copy_metadata(&self, nodes: &[LabNode]) -> Result<()> {
        if self.copies == 1 {
            return Ok(());
        }
        let manager = self.record.node(FIRST_MANAGER)?;
        for node in nodes.iter().filter(|node| node.role == LabRole::Meta) {
            let mut command = self.command(manager)?;
            command.args(["copies", "set", &node.name, &self.copies.to_string()]);
            command.arg("--identity").arg(self.places.identity(&manager.name));
            self.finish(&mut command, "")?;
        }
        Ok(())
    }

    /// Has the node be one of the file system, with what it needs to start.
    fn prepare(&self, node: &LabNode) -> Result<()> {
        let has_etcd = self.record.nodes.iter().any(|node| node.role == LabRole::Etcd);
        let is_first = manager_beside(&node.name) == FIRST_MANAGER;
        match node.role {
            LabRole::Etcd if is_first => self.init(Some(node)),
            LabRole::Etcd => self.join_etcd(node),
            LabRole::Manager if node.name == FIRST_MANAGER => {
                if has_etcd {
                    Ok(())
                } else {
                    self.init(None)
                }
            }
            LabRole::Gateway => Ok(()),
            _ => self.join(node),
        }
    }

    /// Makes the file system, with its state in a file or in the first member of an etcd, which is set up where it will run.
    fn init(&self, member: Option<&LabNode>) -> Result<()> {
        let node = self.record.node(FIRST_MANAGER)?;
        let mut command = self.command(member.unwrap_or(node))?;
        command.args(["init", "--name", &node.name, "--listen", &node.address.to_string()]);
        command.arg("--state").arg(self.places.data(&node.name));
        command.arg("--identity").arg(self.places.identity(&node.name));
        if let Some(member) = member {
            command.args(["--with-etcd", &member.address.to_string()]);
        }
        self.finish(&mut command, "").map(drop)
    }

    /// Makes a further member of the etcd, beside its manager, which serves.
    fn join_etcd(&self, node: &LabNode) -> Result<()> {
        let manager = manager_beside(&node.name);
        let mut command = self.command(node)?;
        command.args(["etcd", "join", "--listen", &node.address.to_string()]);
        command.arg("--state").arg(self.places.data(&manager));
        command.arg("--identity").arg(self.places.identity(&manager));
        self.finish(&mut command, "").map(drop)
    }

    /// A new member follows until it has what the others have; until it counts there can be no further one.
    fn wait_until_member_counts(&self, node: &LabNode) -> Result<()> {
        let manager = manager_beside(&node.name);
        let deadline = Instant::now() + START_MAX;
        loop {
            let mut command = self.command(self.record.node(&manager)?)?;
            command.args(["etcd", "list", "--json", "--state"]).arg(self.places.data(&manager));
            let told = self.finish(&mut command, "")?;
            let members: Vec<Value> = serde_json::from_str(&told).context("the members of etcd")?;
            let counts =
                |member: &Value| member["name"] == manager.as_str() && member["standing"] == "counts";
            if members.iter().any(counts) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                bail!("{} does not count as a member of etcd after {} s", node.name, START_MAX.as_secs());
            }
            std::thread::sleep(MEMBER_TURN);
        }
    }

    fn join(&self, node: &LabNode) -> Result<()> {
        let manager = self.record.node(FIRST_MANAGER)?;
        let mut command = self.command(manager)?;
        let roles = match node.role {
            LabRole::Manager => "manager,admin",
            role => role.name(),
        };
        command.args(["token", "--role", roles]);
        if node.role == LabRole::Client {
            // All of a lab is one machine's, whose root made it.
            command.args(["--squash", "none"]);
        }
        command.arg("--identity").arg(self.places.identity(&manager.name));
        let token = self.finish(&mut command, "")?;
        let mut command = self.command(node)?;
        command.args(["join", "-", "--name", &node.name]);
        command.arg("--identity").arg(self.places.identity(&node.name));
        if node.role == LabRole::Manager {
            command.arg("--state").arg(self.places.data(&node.name));
        }
        self.finish(&mut command, &token).map(drop)
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
                command.arg("--split-at").arg(self.split_at.to_string());
                // It serves, or keeps copies.
                "meta "
            }
            LabRole::Storage => {
                command.arg("storage").arg("--data").arg(&data).args(["--listen", &address]);
                "storage serves at "
            }
            LabRole::Client => {
                let mountpoint = self.places.mountpoint(&node.name);
                fs::create_dir(&mountpoint).with_context(|| format!("cannot make {}", shown(&mountpoint)))?;
                command.arg("mount").arg(&mountpoint).args(["--coherence", self.coherence.name()]);
                command.arg("--keep").arg(self.keep.to_string());
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
    fn start(&mut self, node: &LabNode) -> Result<()> {
        let (mut command, ready) = self.role_of(node)?;
        let log = self.places.log(&node.name);
        let input = match self.browsers.take_if(|_| node.role == LabRole::Gateway) {
            Some(listener) => Stdio::from(OwnedFd::from(listener)),
            None => Stdio::null(),
        };
        let out = File::create(&log).with_context(|| format!("cannot make {}", shown(&log)))?;
        command.stdin(input).stdout(out.try_clone().context("cannot share a log")?).stderr(out);
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
        if let Some(url) = self.record.console_url() {
            let identity = self.places.identity(LabRole::Console.name());
            say(format_args!(
                "the console is at {url}; let a browser in with: ashlar console login --identity {}",
                shown(&identity)
            ));
        }
        let dir = shown(&self.places.dir);
        say(format_args!("see it with: ashlar lab status --dir {dir}"));
        say(format_args!("remove it with: ashlar lab down --dir {dir}"));
    }
}
