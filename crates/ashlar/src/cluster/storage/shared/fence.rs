//! Has a program of the site see to it that a server cannot write to disks any more.

use crate::program::ended_within;
use anyhow::{Context, Result, bail};
use ashlar_types::{Node, NodeId, Role};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// LIMIT: for how long it may take.
const FENCE_MAX: Duration = Duration::from_secs(60);
/// LIMIT: the same for its end once it was killed.
const KILLED_MAX: Duration = Duration::from_secs(5);

/// The program of the site.
pub struct Fence {
    program: PathBuf,
    /// Held while it runs. When it was begun last for each server that was fenced.
    // LIMIT: as nodes.
    done: Mutex<BTreeMap<NodeId, Instant>>,
}

impl Fence {
    pub fn new(program: PathBuf) -> Fence {
        Fence { program, done: Mutex::default() }
    }

    /// Has `node` be fenced, if it was not since `told`: from that moment on it gets none of the disks that others wait for. What the program says goes to where this
    /// server's messages go.
    ///
    /// # Errors
    /// When it fails, or does not end in time: then the server may be there yet.
    pub fn run(&self, node: &Node, told: Instant) -> Result<()> {
        let mut done = self.done.lock();
        if done.get(&node.id).is_some_and(|begun| *begun >= told) {
            return Ok(());
        }
        let begun = Instant::now();
        let mut addresses: Vec<String> =
            node.addresses(Role::Storage).iter().map(|address| address.ip().to_string()).collect();
        addresses.dedup();
        let shown = self.program.display();
        let mut child = Command::new(&self.program)
            .arg(&node.name)
            .args(&addresses)
            .stdin(Stdio::null())
            // Whatever it has started ends with it.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {shown}"))?;
        match ended_within(&mut child, FENCE_MAX)? {
            Some(true) => {
                done.insert(node.id, begun);
                Ok(())
            }
            Some(false) => bail!("{shown} {} has failed", node.name),
            None => {
                let group = rustix::process::Pid::from_child(&child);
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
                let _ = ended_within(&mut child, KILLED_MAX);
                bail!("{shown} {} has not ended after {} s", node.name, FENCE_MAX.as_secs())
            }
        }
    }
}
