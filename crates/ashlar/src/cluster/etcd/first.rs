//! `ashlar etcd init`: the first member, to which the state moves from the file of the only manager.

use super::member::{Member, Place, find_program};
use crate::cli::EtcdInitArgs;
use crate::cluster::node_directory::{NodeDirectory, NodeName};
use crate::cluster::store::EtcdStore;
use crate::node::MetaLock;
use crate::terminal::say;
use anyhow::{Context, Result, bail};
use ashlar_coord::Coord;
use ashlar_env::os::OsDisk;
use ashlar_env::{Disk, Env};
use ashlar_manager::EtcdAuthority;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For how long the member is waited for, to serve and to end.
const READY_MAX: Duration = Duration::from_secs(60);
/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(100);

pub fn init(args: &EtcdInitArgs) -> Result<()> {
    let state = &args.state.state;
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(state));
    let name = NodeDirectory::new(&args.node.node).load()?;
    let program = find_program(args.program.as_deref())?;
    let holder = format!("ashlar etcd init, process {}", std::process::id());
    if !state.exists() {
        bail!("{} is not there: `ashlar init` makes a file system first", state.display());
    }
    // A manager that runs would change the file meanwhile.
    let _lock = MetaLock::take(&disk, state, &holder).context("stop the manager first")?;
    if EtcdStore::load(&disk)?.is_some() {
        bail!("the state of this file system is in an etcd already");
    }
    make(&disk, state, &name, &program, args)?;
    say(format_args!("the state is in etcd now; start it with `ashlar etcd run`, and then the manager"));
    Ok(())
}

fn make(
    disk: &Arc<dyn Disk>,
    state: &Path,
    name: &NodeName,
    program: &Path,
    args: &EtcdInitArgs,
) -> Result<()> {
    let env = Env::os();
    let member = Member::of(state)?;
    member.clear()?;
    let authority = EtcdAuthority::draw(env.clock.now())?;
    let place = Place {
        name: name.name.clone(),
        listen: args.at.listen,
        peers: args.at.peers(),
        token: name.cluster.to_string(),
    };
    let initial = [(place.name.clone(), place.peer_url())];
    member.write(&authority, &place, (&initial, true), &env)?;
    let store = EtcdStore::of_own(authority, name.cluster, place.client_url());
    let mut running = Running::start(program, &member.configuration(), state)?;
    running.wait_until_it_serves(&store.open(&env)?)?;
    store.take_over(disk, &env).context("cannot move the state to etcd")?;
    running.stop()
}

/// The member, while it is needed here.
struct Running {
    child: Child,
    log: std::path::PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        // What has ended already cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    fn start(program: &Path, configuration: &Path, state: &Path) -> Result<Running> {
        let log = state.join("etcd/init.log");
        let out = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let errors = out.try_clone().context("cannot duplicate a descriptor")?;
        let child = Command::new(program)
            .arg("--config-file")
            .arg(configuration)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(errors)
            // It would tell systemd of itself.
            .env_remove("NOTIFY_SOCKET")
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Running { child, log })
    }

    fn wait_until_it_serves(&mut self, coord: &dyn Coord) -> Result<()> {
        let deadline = Instant::now() + READY_MAX;
        loop {
            let Err(error) = coord.load() else { return Ok(()) };
            if self.child.try_wait().context("cannot wait for etcd")?.is_some() {
                bail!("etcd has ended: {}", self.last_words());
            }
            if Instant::now() >= deadline {
                bail!("etcd does not serve ({error}): {}", self.last_words());
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The end of what it said.
    fn last_words(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let last = text.lines().rev().find(|line| line.contains("error") || line.contains("fatal"));
        let last = last.or_else(|| text.lines().last()).unwrap_or("it said nothing");
        format!("{} (all it said is in {})", last.trim(), self.log.display())
    }

    /// Ends it in good order.
    fn stop(mut self) -> Result<()> {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).context("cannot stop etcd")?;
        let deadline = Instant::now() + READY_MAX;
        while self.child.try_wait().context("cannot wait for etcd")?.is_none() {
            if Instant::now() >= deadline {
                bail!("etcd does not end; the state is in it, and it was killed");
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}
