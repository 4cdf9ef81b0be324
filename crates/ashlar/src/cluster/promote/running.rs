//! The server of a single machine that runs while it is promoted: it is stopped in good order, and the roles and mounts take its place.
//!
//! Everything that can be refused is refused before it is stopped. From then on programs find nothing mounted, until the mounts are there again: some seconds.

use super::Served;
use super::again::{self, MountAgain};
use crate::admin::find_server;
use crate::cli::{Cli, Command as Asked, PromoteArgs, UpArgs};
use crate::lab::process::{ProcessId, wait_for_end};
use crate::node::MetaLock;
use crate::terminal::say;
use anyhow::{Context, Result, bail};
use ashlar_chunkstore::{ChunkError, ChunkStore};
use ashlar_env::Disk;
use ashlar_env::os::OsDisk;
use ashlar_types::{ClusterId, Role, TargetId};
use clap::Parser;
use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// LIMIT: for how long the server may take to end: it writes back what programs have stored into mappings, and makes all durable.
const END_MAX: Duration = Duration::from_secs(90);
/// LIMIT: for how long a role may take until it serves.
const READY_MAX: Duration = Duration::from_secs(120);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(20);
/// LIMIT: of what a role that does not start has said, lines.
const TOLD_LINES: usize = 5;

/// An `ashlar up` that runs.
pub struct Running {
    /// Which file system it serves.
    pub cluster: ClusterId,
    process: ProcessId,
    /// Where it has mounted the file system.
    mounts: Vec<PathBuf>,
    /// How.
    how: Option<UpArgs>,
    /// Which targets serve, and where they are.
    targets: Vec<(TargetId, String)>,
}

/// The one that has its metadata at `meta`, if there is one and it may be asked.
///
/// # Errors
/// When it cannot be told from others.
pub fn find(meta: &Path) -> Result<Option<Running>> {
    let Some(status) = find_server(meta) else { return Ok(None) };
    let process = ProcessId::of(status.pid.try_into()?).context("the server has just ended: try again")?;
    let line = std::fs::read(format!("/proc/{}/cmdline", status.pid)).unwrap_or_default();
    let cluster = ClusterId::parse(&status.cluster).context("the server does not tell which it serves")?;
    let online = status.targets.into_iter().filter(|target| target.online);
    let targets = online.map(|target| (TargetId(target.id), target.path)).collect();
    Ok(Some(Running { cluster, process, mounts: status.mounts, how: how(&line), targets }))
}

/// What an `ashlar up` was told, by its command line as the kernel has it.
fn how(line: &[u8]) -> Option<UpArgs> {
    let words = line.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec()));
    let mut words: Vec<OsString> = words.collect();
    // Each word ends with a NUL.
    words.pop();
    match Cli::try_parse_from(words).ok()?.command {
        Asked::Up(args) => Some(args),
        _ => None,
    }
}

impl Running {
    /// What to say to who did not ask for it to be stopped.
    pub fn refusal(&self, meta: &Path) -> String {
        format!(
            "{} is in use by ashlar up, process {}: with --start it is stopped in good order, and the roles and mounts take its place; or stop it first",
            meta.display(),
            self.process.pid
        )
    }

    /// Refuses to go on without a target that serves: what is on it would be missed.
    ///
    /// # Errors
    /// With those that are not among `served`.
    pub fn require_listed(&self, served: &Served) -> Result<()> {
        let is_listed = |id: &TargetId| served.targets.iter().any(|(_, known)| known == id);
        let missing: Vec<String> = self
            .targets
            .iter()
            .filter(|(id, _)| !is_listed(id))
            .map(|(id, path)| format!("{id} at {path}"))
            .collect();
        if !missing.is_empty() {
            bail!("{} serves and is not listed: name all data directories with --data", missing.join(", "));
        }
        Ok(())
    }

    /// Stops it, once nobody uses its mounts, or anyway; what it has mounted is kept in the directory `kept`.
    ///
    /// # Errors
    /// When programs use a mount and are not to be cut off, with their names; nothing has changed then. When it does not end.
    pub fn stop(&self, cut_off: bool, kept: &Arc<dyn Disk>) -> Result<()> {
        let mounts = self.mounts.iter().map(|mount| MountAgain::new(mount, self.how.as_ref()));
        // ORDER: before the first one is gone.
        again::keep(kept, &self.process, mounts.collect())?;
        if !cut_off {
            let server = self.process.pid.unsigned_abs();
            let used: Vec<String> =
                self.mounts.iter().filter_map(|mount| ashlar_fuse::users_of(mount, server)).collect();
            if !used.is_empty() {
                bail!("{}: stop them first, or have them cut off with --cut-off", used.join("; "));
            }
            // All of them before the first is gone.
            self.mounts.iter().try_for_each(|mount| require_free(mount))?;
            // By the kernel's leave: whoever comes meanwhile is not cut off either.
            for (at, mount) in self.mounts.iter().enumerate() {
                unmount(mount).with_context(|| match at {
                    0 => "nothing was unmounted".to_owned(),
                    _ => "some mounts are gone already, and are made again by the promotion".to_owned(),
                })?;
            }
        }
        say(format_args!("stopping ashlar up, process {}", self.process.pid));
        self.process.signal(libc::SIGTERM);
        if !wait_for_end(std::slice::from_ref(&self.process), END_MAX) {
            bail!(
                "ashlar up, process {}, does not end within {} s: see what it waits for, and promote again when it has ended",
                self.process.pid,
                END_MAX.as_secs()
            );
        }
        Ok(())
    }
}

/// Refuses a mount that the kernel would not take away: something may use it that is no program, or none that can be seen. Only root may ask.
fn require_free(mount: &Path) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    // It marks what is free, and takes away what is marked (umount(2)): a mark that an attempt before has left goes with a use of the mount. Its server is not asked for this one.
    let used = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(mount);
    drop(used.with_context(|| format!("cannot look at {}", mount.display()))?);
    let path = CString::new(mount.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a NUL and outlives the call.
    let failed = unsafe { libc::umount2(path.as_ptr(), libc::MNT_EXPIRE | libc::UMOUNT_NOFOLLOW) } != 0;
    let error = std::io::Error::last_os_error();
    if failed && error.raw_os_error() == Some(libc::EBUSY) {
        bail!(
            "{} is in use, maybe by another mount below it: stop what uses it, or have it cut off with --cut-off; nothing was unmounted",
            mount.display()
        );
    }
    Ok(())
}

/// Takes a mount away that nobody uses.
fn unmount(mount: &Path) -> Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    let mut command = Command::new(if is_root { "umount" } else { "fusermount3" });
    if !is_root {
        command.arg("-u");
    }
    let ended = command.arg(mount).output().context("cannot run umount")?;
    if ended.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
    bail!("{why}: stop the programs that use it, or have them cut off with --cut-off, and promote again")
}

/// The roles that are to be started, with where each listens.
pub struct Roles {
    meta_listen: Vec<SocketAddr>,
    storage_listen: Vec<SocketAddr>,
    /// Those that run already.
    running: Vec<Role>,
}

impl Roles {
    /// As `args` say; without that at the address of the manager. Those that are `running` listen already.
    ///
    /// # Errors
    /// When somebody cannot listen where they are to.
    pub fn find(args: &PromoteArgs, running: Vec<Role>) -> Result<Roles> {
        let or_beside = |given: &[SocketAddr], port: u16| match given {
            [] => args.first.listen.iter().take(1).map(|at| SocketAddr::new(at.ip(), port)).collect(),
            given => given.to_vec(),
        };
        let roles = Roles {
            meta_listen: or_beside(&args.meta_listen, 7401),
            storage_listen: or_beside(&args.storage_listen, 7402),
            running,
        };
        let of_manager: Vec<SocketAddr> =
            args.first.listen.iter().chain(&args.first.management).copied().collect();
        let all = [
            (Role::Manager, &of_manager),
            (Role::Meta, &roles.meta_listen),
            (Role::Storage, &roles.storage_listen),
        ];
        let all = all.into_iter().filter(|(role, _)| !roles.running.contains(role));
        // All at the same time: two that are to listen at one address are in each other's way.
        let mut held = Vec::new();
        for address in all.flat_map(|(_, addresses)| addresses) {
            let bound = TcpListener::bind(address).with_context(|| {
                format!(
                    "nobody can listen at {address}: name an address of this machine and a port that is free"
                )
            })?;
            held.push(bound);
        }
        Ok(roles)
    }

    /// The command lines of the roles, each with what it is called, in the order in which they are started.
    fn lines(&self, (identity, state): (&Path, &Path), served: &Served) -> Vec<(Role, Vec<OsString>)> {
        let line = |words: &[&OsStr]| -> Vec<OsString> {
            let words = words.iter().map(|word| (*word).to_owned());
            words.chain(["--identity".into(), identity.into()]).collect()
        };
        let listen = |at: &[SocketAddr]| -> Vec<OsString> {
            at.iter().flat_map(|at| ["--listen".into(), at.to_string().into()]).collect()
        };
        let data = served.data.iter().flat_map(|dir| ["--data".into(), dir.clone().into()]);
        let mut storage = line(&["storage".as_ref()]);
        storage.extend(data.chain(listen(&self.storage_listen)));
        let mut of_meta = line(&["meta".as_ref(), "--meta".as_ref(), served.meta.as_os_str()]);
        of_meta.extend(listen(&self.meta_listen));
        vec![
            (Role::Manager, line(&["manager".as_ref(), "--state".as_ref(), state.as_os_str()])),
            (Role::Storage, storage),
            (Role::Meta, of_meta),
        ]
    }

    /// Starts those that do not run, and mounts what is kept for that in the directory `disk`, of the state; says what runs.
    ///
    /// # Errors
    /// When one does not start: with what it says, and what is left. Those before it go on.
    pub fn start(&self, args: &PromoteArgs, served: &Served, disk: &Arc<dyn Disk>) -> Result<()> {
        // They run in another directory than this command.
        let identity = std::path::absolute(&args.first.node.node)?;
        let state = std::path::absolute(&args.first.state.state)?;
        // Name, command line and what it says when it is ready.
        let mut all: Vec<(String, Vec<OsString>, String)> = Vec::new();
        for (role, line) in self.lines((&identity, &state), served) {
            match self.running.contains(&role) {
                true => say(format_args!("{role} runs already")),
                false => all.push((role.to_string(), line, format!("{role} serves at"))),
            }
        }
        for (at, mount) in again::kept(disk)?.iter().enumerate() {
            let path = mount.path();
            match ashlar_fuse::connection_at(&path, "fuse.ashlar")?.is_some() {
                true => say(format_args!("{} is mounted already", path.display())),
                false => all.push((format!("mount{at}"), mount.line(&identity), "mounted".to_owned())),
            }
        }
        for (at, (name, line, ready)) in all.iter().enumerate() {
            start(&state, name, line, ready).with_context(|| {
                let left: Vec<String> = all[at..].iter().map(|(_, line, _)| shown(line)).collect();
                format!(
                    "this machine is the first node, and not all is started; put right what is in the way, and the same command goes on. Left: {}",
                    left.join(", ")
                )
            })?;
        }
        again::forget(disk)
    }
}

fn shown(line: &[OsString]) -> String {
    let words: Vec<String> = line.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    format!("`ashlar {}`", words.join(" "))
}

/// Which roles run that serve `served` and have the state in the directory `state`.
///
/// # Errors
/// When somebody else has one of the directories: with who.
pub fn running_roles(state: &Arc<dyn Disk>, served: &Served) -> Result<Vec<Role>> {
    let meta: Arc<dyn Disk> = Arc::new(OsDisk::new(&served.meta));
    let mut held = vec![
        (Role::Manager, state.describe(""), MetaLock::holder(state)?),
        (Role::Meta, served.meta.display().to_string(), MetaLock::holder(&meta)?),
    ];
    let own = format!("ashlar promote, process {}", std::process::id());
    for (path, _) in &served.targets {
        let holder = match ChunkStore::lock(&OsDisk::new(path), &own) {
            Ok(_) => None,
            Err(ChunkError::Locked { holder, .. }) => Some(holder),
            Err(error) => return Err(error.into()),
        };
        held.push((Role::Storage, path.display().to_string(), holder));
    }
    let mut running = Vec::new();
    for (role, path, holder) in held {
        match holder {
            Some(holder) if holder.starts_with(&format!("ashlar {role},")) => running.push(role),
            Some(holder) => bail!("{path} is in use by {holder}: stop that first"),
            None => {}
        }
    }
    Ok(running)
}

/// Starts a role that outlives this command, and waits until it says `ready` in its log, which is in `logs`.
fn start(logs: &Path, name: &str, line: &[OsString], ready: &str) -> Result<()> {
    let log = logs.join(format!("{name}.log"));
    let open = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&log);
    let out = open.with_context(|| format!("cannot write {}", log.display()))?;
    let mut child = spawn(line, &out).with_context(|| format!("cannot start {name}"))?;
    let deadline = Instant::now() + READY_MAX;
    let shown: Vec<String> = line.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    loop {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        if text.contains(ready) {
            say(format_args!(
                "started ashlar {}, process {}, log {}",
                shown.join(" "),
                child.id(),
                log.display()
            ));
            return Ok(());
        }
        let has_ended = child.try_wait().is_ok_and(|ended| ended.is_some());
        if has_ended || Instant::now() >= deadline {
            let told: Vec<&str> = text.lines().rev().take(TOLD_LINES).collect();
            let told: Vec<&str> = told.into_iter().rev().collect();
            bail!("`ashlar {}` does not start: {}", shown.join(" "), told.join("; "));
        }
        std::thread::sleep(LOOK);
    }
}

fn spawn(line: &[OsString], out: &File) -> Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("ashlar")
        .args(line)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out.try_clone()?);
    // SAFETY: setsid is async-signal-safe and takes nothing.
    unsafe {
        command.pre_exec(|| {
            // The end of the terminal, and Ctrl-C in it, are not for the roles.
            if libc::setsid() < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
        });
    }
    Ok(command.spawn()?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_made_again_as_it_was() {
        let line = b"/usr/bin/ashlar\0up\0/mnt\0--data\0/d\0--read-only\0--no-devices\0--source\0disk\0";
        let how = how(line).unwrap();
        let line = MountAgain::new(Path::new("/mnt"), Some(&how)).line(Path::new("/etc/ashlar"));
        let expected =
            ["mount", "/mnt", "--identity", "/etc/ashlar", "--read-only", "--no-devices", "--source", "disk"];
        assert_eq!(line, expected);
        assert!(super::how(b"/usr/bin/ashlar\0status\0").is_none() && super::how(b"").is_none());
        assert_eq!(MountAgain::new(Path::new("/mnt"), None).line(Path::new("/i")).len(), 4);
    }
}
