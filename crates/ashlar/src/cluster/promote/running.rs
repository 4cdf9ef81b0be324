//! The server of a single machine that runs while it is promoted: it is stopped in good order, and the roles and mounts take its place.
//!
//! Everything that can be refused is refused before it is stopped. From then on programs find nothing mounted, until the mounts are there again: some seconds.

use super::Served;
use crate::admin::find_server;
use crate::cli::{Cli, Command as Asked, PromoteArgs, UpArgs};
use crate::lab::process::{ProcessId, wait_for_end};
use crate::terminal::say;
use anyhow::{Context, Result, bail};
use ashlar_types::{ClusterId, Role};
use clap::Parser;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
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
    Ok(Some(Running { cluster, process, mounts: status.mounts, how: how(&line) }))
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

    /// Stops it, once nobody uses its mounts, or anyway.
    ///
    /// # Errors
    /// When programs use a mount and are not to be cut off, with their names; nothing has changed then. When it does not end.
    pub fn stop(&self, cut_off: bool) -> Result<()> {
        if !cut_off {
            let server = self.process.pid.unsigned_abs();
            let used: Vec<String> =
                self.mounts.iter().filter_map(|mount| ashlar_fuse::users_of(mount, server)).collect();
            if !used.is_empty() {
                bail!("{}: stop them first, or have them cut off with --cut-off", used.join("; "));
            }
            // By the kernel's leave: whoever comes meanwhile is not cut off either.
            self.mounts.iter().try_for_each(|mount| unmount(mount))?;
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
}

impl Roles {
    /// As `args` say; without that at the address of the manager.
    ///
    /// # Errors
    /// When somebody cannot listen where they are to.
    pub fn find(args: &PromoteArgs) -> Result<Roles> {
        let or_beside = |given: &[SocketAddr], port: u16| match given {
            [] => args.first.listen.iter().take(1).map(|at| SocketAddr::new(at.ip(), port)).collect(),
            given => given.to_vec(),
        };
        let roles = Roles {
            meta_listen: or_beside(&args.meta_listen, 7401),
            storage_listen: or_beside(&args.storage_listen, 7402),
        };
        let all = args.first.listen.iter().chain(&args.first.management);
        // All at the same time: two that are to listen at one address are in each other's way.
        let mut held = Vec::new();
        for address in all.chain(&roles.meta_listen).chain(&roles.storage_listen) {
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

    /// Starts them, and mounts where `running` had; says what runs.
    ///
    /// # Errors
    /// When one does not start: with what it says. Those before it go on.
    pub fn start(&self, args: &PromoteArgs, served: &Served, running: Option<&Running>) -> Result<()> {
        // They run in another directory than this command.
        let identity = std::path::absolute(&args.first.node.node)?;
        let state = std::path::absolute(&args.first.state.state)?;
        for (role, line) in self.lines((&identity, &state), served) {
            start(&state, &role.to_string(), &line, &format!("{role} serves at"))?;
        }
        let mounts = running.map(|running| running.mounts.as_slice()).unwrap_or_default();
        for (at, mount) in mounts.iter().enumerate() {
            let how = running.and_then(|running| running.how.as_ref());
            start(&state, &format!("mount{at}"), &mount_line(mount, how, &identity), "mounted")?;
        }
        Ok(())
    }
}

/// The command line of a mount that is like one of `ashlar up`.
fn mount_line(mount: &Path, how: Option<&UpArgs>, identity: &Path) -> Vec<OsString> {
    let mut line: Vec<OsString> = vec!["mount".into(), mount.into(), "--identity".into(), identity.into()];
    let Some(how) = how else { return line };
    let flags = [
        (how.allow_other, "--allow-other"),
        (how.read_only, "--read-only"),
        (how.no_set_id, "--no-set-id"),
        (how.no_devices, "--no-devices"),
    ];
    line.extend(flags.iter().filter(|(is_said, _)| *is_said).map(|(_, flag)| OsString::from(flag)));
    line.extend(["--source".into(), how.source.clone().into()]);
    line
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
            bail!(
                "this machine is the first node, but `ashlar {}` does not start: {}",
                shown.join(" "),
                told.join("; ")
            );
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
        let line = mount_line(Path::new("/mnt"), Some(&how), Path::new("/etc/ashlar"));
        let expected =
            ["mount", "/mnt", "--identity", "/etc/ashlar", "--read-only", "--no-devices", "--source", "disk"];
        assert_eq!(line, expected);
        assert!(super::how(b"/usr/bin/ashlar\0status\0").is_none() && super::how(b"").is_none());
        assert_eq!(mount_line(Path::new("/mnt"), None, Path::new("/i")).len(), 4);
    }
}
