//! `ashlar mount list`, `show` and `detach`: mounts of this machine, whoever serves them. None asks a server.

mod show;

use super::umount::{answers, refuse_others, resolved};
use crate::cli::MountAction;
use crate::program::ended_within;
use crate::terminal::{say, say_json, shown};
use anyhow::{Context, Result, bail};
use ashlar_console::object::with;
use ashlar_fuse::ListedMount;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// LIMIT: how long a mount that is to go may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// LIMIT: how long the kernel may take to write back what was stored and not written, before it is told to give the mount up.
const WRITE_BACK_MAX: Duration = Duration::from_secs(3);
/// LIMIT: how long it may take afterwards.
const END_MAX: Duration = Duration::from_secs(5);

pub fn run(action: &MountAction) -> Result<ExitCode> {
    match action {
        MountAction::List { json } => list(*json)?,
        MountAction::Show { mountpoint, json } => show::show(mountpoint, *json)?,
        MountAction::Detach { mountpoint, json } => {
            let path = resolved(mountpoint);
            refuse_others(mountpoint, &path)?;
            let was = object(&find(&path)?);
            let is_answering = detach(mountpoint, &path)?;
            if *json {
                say_json(&with(was, json!({ "is_answering": is_answering })))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(json: bool) -> Result<()> {
    let mounts = ashlar_fuse::mounts_of_type("fuse.ashlar").context("cannot read the mount table")?;
    if json {
        let all: Vec<Value> = mounts.iter().map(object).collect();
        return say_json(&all);
    }
    mounts.iter().for_each(print);
    Ok(())
}

fn object(mount: &ListedMount) -> Value {
    json!({
        "mountpoint": mount.path.to_string_lossy(),
        "source": mount.source,
        "read_only": mount.is_read_only,
        "user": mount.user,
    })
}

fn print(mount: &ListedMount) {
    let access = if mount.is_read_only { "read-only" } else { "read-write" };
    say(format_args!("{}  {access}  {}", shown(&mount.path), mount.source.escape_debug()));
}

/// The topmost mount at `path`, as the mount table has it.
fn find(path: &Path) -> Result<ListedMount> {
    let mounts = ashlar_fuse::mounts_of_type("fuse.ashlar").context("cannot read the mount table")?;
    let found = mounts.into_iter().rev().find(|mount| mount.path == path);
    found.with_context(|| format!("nothing is mounted at {} any more", shown(path)))
}

/// Takes a mount away in a bounded time, whatever its process and the servers do; tells whether its process has answered.
fn detach(mountpoint: &Path, path: &Path) -> Result<bool> {
    // ORDER: found before the mount is out of the tree, where it has no path any more.
    let give_up = ashlar_fuse::give_up_later(path).context("cannot read the mount table")?;
    let is_answering = answers(path, ANSWER_MAX);
    if !is_answering {
        eprintln!("ashlar: {} does not answer; whoever waits for it gets an error", shown(mountpoint));
        if let Err(error) = give_up() {
            tracing::warn!(%error, "the kernel was not told to give the mount up");
        }
        if ashlar_fuse::file_system_type_at(path).is_ok_and(|there| there.is_none()) {
            return Ok(is_answering);
        }
    }
    let is_root = rustix::process::geteuid().is_root();
    let (program, flag) = if is_root { ("umount", "-l") } else { ("fusermount3", "-uz") };
    let mut child = Command::new(program).arg(flag).arg(path).spawn().with_context(|| {
        format!("cannot run {program}; install the package {}", if is_root { "mount" } else { "fuse3" })
    })?;
    let ended = match ended_within(&mut child, WRITE_BACK_MAX)? {
        Some(is_good) => Some(is_good),
        None => {
            // The last one who used it is gone, and the kernel waits for what was not written.
            eprintln!("ashlar: what was not written in time is lost");
            give_up().context("cannot make the kernel give the mount up")?;
            ended_within(&mut child, END_MAX)?
        }
    };
    match ended {
        Some(true) => Ok(is_answering),
        Some(false) => bail!("{program} could not unmount {}", shown(mountpoint)),
        None => bail!("{program} still waits for the kernel to let go of {}", shown(mountpoint)),
    }
}
