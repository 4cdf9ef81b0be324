//! `ashlar lab down`: stops a lab and removes everything of it, also what a crash has left.

use super::name_space::path_of;
use super::plan::{LabRole, Places};
use super::process::{ProcessId, in_name_space, wait_for_end};
use super::record::Record;
use super::{disk, network, record};
use crate::terminal::{say, shown};
use anyhow::{Context, Result, bail};
use std::ffi::CString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// LIMIT: for how long those of one role may take to end in good order; a client waits 30 s for servers that are away.
const STOP_MAX: Duration = Duration::from_secs(40);
/// LIMIT: for how long those that were killed may take to go.
const KILL_MAX: Duration = Duration::from_secs(20);

/// Removes the lab at `dir`.
pub fn down(dir: &Path) -> Result<()> {
    require_root()?;
    let places = Places::of(dir);
    let record = Record::load(&places)?;
    if let Some(maker) = record.maker.as_ref().filter(|maker| maker.runs()) {
        bail!("`ashlar lab up`, process {}, is still at work on it: wait for it, or end it first", maker.pid);
    }
    remove(&places, &record)?;
    say(format_args!("removed the lab at {}", shown(&places.dir)));
    Ok(())
}

/// Refuses everybody else.
pub fn require_root() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("a lab has networks and mounts of its own, which only root can make and remove");
    }
    Ok(())
}

/// Removes all of `record`; what cannot be removed is told after the rest is gone.
pub fn remove(places: &Places, record: &record::Record) -> Result<()> {
    // ORDER: first, because nothing ends that waits for a disk that hangs.
    disk::let_go_on(places, record);
    stop(record);
    kill_rest(record)?;
    unmount(places, record)?;
    disk::remove(places, record)?;
    network::remove(record).context("cannot remove the network of the lab; try again")?;
    // ORDER: the record last, as long as there is anything it is needed for.
    remove_files(places, record)
}

/// In good order: clients first, metadata before targets, managers before what keeps their state.
fn stop(record: &Record) {
    for role in [
        LabRole::Client,
        LabRole::Gateway,
        LabRole::Console,
        LabRole::Meta,
        LabRole::Storage,
        LabRole::Manager,
        LabRole::Etcd,
    ] {
        let is_of_role = |name: &str| record.nodes.iter().any(|node| node.name == name && node.role == role);
        let processes: Vec<ProcessId> = record
            .processes
            .iter()
            .filter(|(name, _)| is_of_role(name))
            .map(|(_, process)| process.clone())
            .collect();
        processes.iter().for_each(|process| process.signal(libc::SIGTERM));
        if !wait_for_end(&processes, STOP_MAX) {
            tracing::warn!(role = role.name(), "not all of them have stopped; they are killed");
        }
    }
}

/// Those that have not stopped, and whatever else is in the lab's networks: what `up` had started and not noted, commands of `exec`.
fn kill_rest(record: &Record) -> Result<()> {
    let noted: Vec<ProcessId> = record.processes.iter().map(|(_, process)| process.clone()).collect();
    noted.iter().for_each(|process| process.signal(libc::SIGKILL));
    // Before others in their networks: the guard beside a mount ends its connection when it is killed.
    let _ = wait_for_end(&noted, KILL_MAX);
    // A process may have started another one meanwhile.
    // LIMIT: rounds.
    for _ in 0..20 {
        let rest: Vec<ProcessId> =
            record.name_spaces().iter().flat_map(|name| in_name_space(&path_of(name))).collect();
        if rest.is_empty() {
            return Ok(());
        }
        rest.iter().for_each(|process| process.signal(libc::SIGKILL));
        if !wait_for_end(&rest, KILL_MAX) {
            let stuck = rest.iter().find(|process| process.runs()).map_or(0, |process| process.pid);
            bail!("process {stuck} of the lab does not end, although it was killed; try again");
        }
    }
    bail!("processes in the networks of the lab start others again and again; end them first")
}

/// Mounts whose processes are gone.
fn unmount(places: &Places, record: &Record) -> Result<()> {
    for node in record.nodes.iter().filter(|node| node.role == LabRole::Client) {
        let path = places.mountpoint(&node.name);
        let find = || ashlar_fuse::file_system_type_at(&path).context("cannot read the mount table");
        // LIMIT: mounts on top of each other.
        for _ in 0..8 {
            match find()?.as_deref() {
                Some("fuse.ashlar") => {}
                Some(other) => {
                    bail!("{} is a mount of {other}, which is not the lab's: unmount it first", shown(&path))
                }
                None => break,
            }
            if let Err(error) = ashlar_fuse::give_up(&path) {
                tracing::debug!(%error, "the kernel was not told to give the mount up");
            }
            let c_path = CString::new(path.as_os_str().as_bytes()).context("the directory of the lab")?;
            // SAFETY: the path ends with a NUL and outlives the call.
            if unsafe { libc::umount2(c_path.as_ptr(), libc::MNT_DETACH) } != 0 {
                let error = std::io::Error::last_os_error();
                if find()?.is_some() {
                    return Err(error).with_context(|| format!("cannot unmount {}", shown(&path)));
                }
            }
        }
    }
    Ok(())
}

fn remove_files(places: &Places, record: &Record) -> Result<()> {
    let gone = |path: &Path, outcome: std::io::Result<()>| match outcome {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", shown(path)))
        }
        _ => Ok(()),
    };
    for node in &record.nodes {
        if node.role == LabRole::Client {
            let path = places.mountpoint(&node.name);
            // Nothing but an empty directory: whatever is in it is not the lab's.
            gone(&path, fs::remove_dir(&path))?;
        }
    }
    for tree in places.trees() {
        gone(&tree, fs::remove_dir_all(&tree))?;
    }
    let new = places.dir.join("lab.json.new");
    gone(&new, fs::remove_file(&new))?;
    gone(&places.record(), fs::remove_file(places.record()))?;
    if record.made_directory
        && let Err(error) = fs::remove_dir(&places.dir)
    {
        tracing::info!(%error, "the directory stays: somebody else has put something there");
    }
    Ok(())
}
