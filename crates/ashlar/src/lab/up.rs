//! `ashlar lab up`: makes a lab and starts it.

use super::down::{remove, require_root};
use super::name_space::require_programs;
use super::plan::{ETCD_MEMBERS, FIRST_MANAGER, LabNode, LabRole, Places, Shape, manager_beside, nodes};
use super::record::{MadeWith, Record};
use super::start::{Lab, START_MAX};
use super::{disk, network};
use crate::cli::LabUpArgs;
use crate::cluster::etcd::find_program;
use crate::terminal::{say, shown};
use anyhow::{Context, Result, bail};
use ashlar_env::Env;
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Time between looks at the members of etcd.
const MEMBER_TURN: Duration = Duration::from_millis(200);

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
    if args.disks > 0 {
        disk::require_programs()?;
    }
    let browsers = args.console.map(listen_for_browsers).transpose()?;
    let console_port = browsers.as_ref().map(|(_, port)| *port);
    let is_told_to_stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, is_told_to_stop.clone()).context("cannot take signals")?;
    }
    let id = format!("{:08x}", Env::os().entropy.next_u64() as u32);
    let mut places = Places::of(dir);
    let made_with = MadeWith {
        coherence: args.coherence.name().to_owned(),
        keep: args.keep,
        split_at: args.split_at,
        disks: args.disks,
        disk_bytes: args.disk_size,
    };
    let record = Record::begin(&places, nodes(&shape), (args.link_mbit, console_port), (id, made_with))?;
    places = Places::of(&places.dir);
    let mut lab = Lab {
        places,
        record,
        is_told_to_stop,
        copies: args.copies,
        browsers: browsers.map(|(listener, _)| listener),
        children: Vec::new(),
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
            LabRole::Client => {
                let mountpoint = self.places.mountpoint(&node.name);
                fs::create_dir(&mountpoint).with_context(|| format!("cannot make {}", shown(&mountpoint)))?;
                self.join(node)
            }
            LabRole::Storage => {
                disk::make(&self.places, &self.record, &node.name)?;
                self.join(node)
            }
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
