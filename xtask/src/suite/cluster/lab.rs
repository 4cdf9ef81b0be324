//! A cluster on this machine (`ashlar lab`), stopped in good order at the end, and checked.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::shell;

/// LIMIT: for how long a process may take to stop.
const STOP_MAX: Duration = Duration::from_secs(60);

/// What the manager knows that a check of the whole needs beside the metadata.
const MANAGER_FILES: [&str; 2] = ["cluster-state", "secrets"];

/// A manager, a metadata server, storage servers and mounts, each a process in a network of its own.
#[derive(Debug)]
pub struct Lab {
    binary: PathBuf,
    dir: PathBuf,
    mounts: usize,
    storage: usize,
}

impl Drop for Lab {
    fn drop(&mut self) {
        let mut command = self.lab_command();
        if let Err(error) = shell::run(command.arg("down")) {
            eprintln!("the lab is not gone: {error:#}");
        }
    }
}

impl Lab {
    /// Starts one with so many storage servers and mounts, in `dir`, which must not be there.
    ///
    /// # Errors
    /// When it does not start.
    pub fn up(binary: &Path, dir: &Path, storage: usize, mounts: usize) -> anyhow::Result<Self> {
        let lab = Self { binary: binary.to_owned(), dir: dir.to_owned(), mounts, storage };
        let mut command = lab.lab_command();
        command.args(["up", "--storage", &storage.to_string(), "--clients", &mounts.to_string()]);
        if let Err(error) = shell::run(&mut command) {
            // It has taken away what it made.
            std::mem::forget(lab);
            return Err(error);
        }
        Ok(lab)
    }

    fn lab_command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(["lab", "--dir"]).arg(&self.dir);
        command
    }

    /// The mount points.
    #[must_use]
    pub fn mounts(&self) -> Vec<PathBuf> {
        (1..=self.mounts).map(|number| self.dir.join(format!("client{number}"))).collect()
    }

    /// Adds the mounts to the command: the first after `first`, the others each after `other`.
    pub fn pass_mounts(&self, command: &mut Command, first: &str, other: &str) {
        for (at, mount) in self.mounts().iter().enumerate() {
            command.arg(if at == 0 { first } else { other }).arg(mount);
        }
    }

    /// The process of every node, by name.
    fn processes(&self) -> anyhow::Result<Vec<(String, Option<u64>)>> {
        let mut command = self.lab_command();
        let text = shell::output(command.args(["status", "--json"]))?;
        let status: Value = serde_json::from_str(&text).context("parse the status of the lab")?;
        let nodes = status["nodes"].as_array().context("the status of the lab has no nodes")?;
        let name = |node: &Value| node["name"].as_str().unwrap_or_default().to_owned();
        Ok(nodes.iter().map(|node| (name(node), node["pid"].as_u64())).collect())
    }

    /// Checks that every process still runs, stops them in order and checks metadata and data with `ashlar fsck`.
    ///
    /// # Errors
    /// When a process has ended or does not stop, or the check finds anything.
    pub fn stop_and_check(&self) -> anyhow::Result<()> {
        let mut processes = self.processes()?;
        if let Some((name, _)) = processes.iter().find(|(_, pid)| pid.is_none()) {
            bail!("{name} has ended; its log is {}", self.log(name).display());
        }
        // As an administrator would: who uses a server goes before it.
        processes.sort_by_key(|(name, _)| {
            ["client", "meta", "storage", "manager"].iter().position(|role| name.starts_with(role))
        });
        for (name, _) in &processes {
            self.stop(name)?;
        }
        self.check()
    }

    fn stop(&self, name: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + STOP_MAX;
        let mut is_told = false;
        loop {
            let processes = self.processes()?;
            let Some(pid) = processes.into_iter().find(|(node, _)| node == name).and_then(|(_, pid)| pid)
            else {
                return Ok(());
            };
            if !is_told {
                shell::output(Command::new("kill").arg(pid.to_string()))?;
                is_told = true;
            }
            if Instant::now() >= deadline {
                bail!("{name} does not stop; its log is {}", self.log(name).display());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A check wants all parts on one machine, with the state of the manager beside the metadata, as `ashlar up` has it.
    fn check(&self) -> anyhow::Result<()> {
        let data = self.dir.join("data");
        for file in MANAGER_FILES {
            let (from, to) = (data.join("manager").join(file), data.join("meta1").join(file));
            fs::copy(&from, &to).with_context(|| format!("copy {}", from.display()))?;
        }
        let mut command = Command::new(&self.binary);
        command.args(["fsck", "--meta"]).arg(data.join("meta1"));
        for number in 1..=self.storage {
            command.arg("--data").arg(data.join(format!("storage{number}")));
        }
        shell::run(&mut command)
    }

    fn log(&self, name: &str) -> PathBuf {
        self.dir.join("log").join(format!("{name}.log"))
    }

    /// Keeps the logs in another directory, and prints what is in them.
    ///
    /// # Errors
    /// When they cannot be copied.
    pub fn keep_logs(&self, to: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(self.dir.join("log")).context("read the logs of the lab")? {
            let entry = entry?;
            let text = fs::read_to_string(entry.path())?;
            println!("{}:\n{text}", entry.file_name().to_string_lossy());
            fs::write(to.join(entry.file_name()), text)?;
        }
        Ok(())
    }
}
