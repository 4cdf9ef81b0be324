//! A cluster on this machine (`ashlar lab`), stopped in good order at the end, and checked.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::shell;

/// LIMIT: for how long a process may take until it serves.
const START_MAX: Duration = Duration::from_secs(120);
/// LIMIT: for how long a process may take to stop.
const STOP_MAX: Duration = Duration::from_secs(60);
/// LIMIT: for how long copies of metadata may take until they are there.
const COPIES_MAX: Duration = Duration::from_secs(90);

/// Managers (with an etcd if there are several), metadata servers, storage servers and mounts, each a process in a network of its own.
#[derive(Debug)]
pub struct Lab {
    binary: PathBuf,
    dir: PathBuf,
    mounts: usize,
    storage: usize,
    /// Processes that have taken the place of the lab's own. They end with the lab.
    replaced: Mutex<Vec<(String, Child)>>,
}

impl Drop for Lab {
    fn drop(&mut self) {
        let mut command = self.lab_command();
        if let Err(error) = shell::run(command.arg("down")) {
            eprintln!("the lab is not gone: {error:#}");
        }
        for (_, child) in self.replaced.get_mut().unwrap_or_else(PoisonError::into_inner) {
            // They were in the networks of the lab, and are gone with it.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Lab {
    /// Starts one with so many storage servers and mounts, in `dir`, which must not be there; `more` are further arguments.
    ///
    /// # Errors
    /// When it does not start.
    pub fn up(
        binary: &Path,
        dir: &Path,
        storage: usize,
        mounts: usize,
        more: &[&str],
    ) -> anyhow::Result<Self> {
        let lab = Self {
            binary: binary.to_owned(),
            dir: dir.to_owned(),
            mounts,
            storage,
            replaced: Mutex::default(),
        };
        let mut command = lab.lab_command();
        command.args(["up", "--storage", &storage.to_string(), "--clients", &mounts.to_string()]);
        command.args(more);
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

    /// The program that it runs.
    #[must_use]
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// A command that becomes the words added to it, in the network of a node.
    #[must_use]
    pub fn at(&self, node: &str) -> Command {
        let mut command = self.lab_command();
        command.args(["exec", node, "--"]);
        command
    }

    /// A command of an administrator, by the identity of the first manager.
    #[must_use]
    pub fn administer(&self, words: &[&str]) -> Command {
        let mut command = self.at("manager");
        command.arg(&self.binary).args(words);
        command.arg("--identity").arg(self.dir.join("identity/manager"));
        command
    }

    /// The address of a node in the network of the lab.
    ///
    /// # Errors
    /// When the lab has no such node.
    pub fn address(&self, node: &str) -> anyhow::Result<String> {
        let text = fs::read_to_string(self.dir.join("lab.json")).context("read the record of the lab")?;
        let record: Value = serde_json::from_str(&text).context("parse the record of the lab")?;
        let nodes = record["nodes"].as_array().context("the record of the lab has no nodes")?;
        let found = nodes.iter().find(|found| found["name"] == node);
        let address = found.and_then(|found| found["address"].as_str());
        Ok(address.with_context(|| format!("the lab has no node {node}"))?.to_owned())
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

    /// The process of every node, by name; of one that has ended, none.
    ///
    /// # Errors
    /// When the lab does not tell.
    pub fn processes(&self) -> anyhow::Result<Vec<(String, Option<u64>)>> {
        let mut command = self.lab_command();
        let text = shell::output(command.args(["status", "--json"]))?;
        let status: Value = serde_json::from_str(&text).context("parse the status of the lab")?;
        let nodes = status["nodes"].as_array().context("the status of the lab has no nodes")?;
        let name = |node: &Value| node["name"].as_str().unwrap_or_default().to_owned();
        Ok(nodes.iter().map(|node| (name(node), node["pid"].as_u64())).collect())
    }

    /// The process of a node, while it runs.
    ///
    /// # Errors
    /// When the lab does not tell.
    pub fn process(&self, name: &str) -> anyhow::Result<Option<u64>> {
        let found = self.processes()?.into_iter().find(|(node, _)| node == name);
        Ok(found.and_then(|(_, pid)| pid))
    }

    /// Checks that every process still runs, stops them in order and checks metadata and data with `ashlar fsck`.
    ///
    /// # Errors
    /// When a process has ended or does not stop, or the check finds anything.
    pub fn stop_and_check(&self) -> anyhow::Result<()> {
        self.stop_all()?;
        self.check(&self.binary)
    }

    /// Checks that every process still runs, and stops them in order.
    ///
    /// # Errors
    /// When a process has ended or does not stop.
    fn stop_all(&self) -> anyhow::Result<()> {
        let mut processes = self.processes()?;
        if let Some((name, _)) = processes.iter().find(|(_, pid)| pid.is_none()) {
            bail!("{name} has ended; its log is {}", self.log(name).display());
        }
        // The check asks them for the state; they end with the lab.
        processes.retain(|(name, _)| !name.starts_with("etcd"));
        // As an administrator would: who uses a server goes before it.
        processes.sort_by_key(|(name, _)| {
            ["client", "meta", "storage", "manager"].iter().position(|role| name.starts_with(role))
        });
        for (name, _) in &processes {
            self.stop(name)?;
        }
        Ok(())
    }

    /// Stops the process of a node, and starts that of another binary in its place; the lab does not know of it.
    ///
    /// # Errors
    /// When the one does not stop, or the other does not serve.
    pub fn replace(&self, name: &str, binary: &Path) -> anyhow::Result<()> {
        self.replace_with(name, binary, &[])
    }

    /// The same, with further arguments.
    ///
    /// # Errors
    /// As [`Lab::replace`].
    pub fn replace_with(&self, name: &str, binary: &Path, more: &[&str]) -> anyhow::Result<()> {
        self.stop(name)?;
        let address = self.address(name)?;
        let data = self.dir.join("data").join(name).to_string_lossy().into_owned();
        let point = self.dir.join(name).to_string_lossy().into_owned();
        let role = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
        let (arguments, ready) = match role {
            "manager" => (vec!["manager", "--state", &data, "--listen", &address], "manager serves"),
            "meta" => (vec!["meta", "--meta", &data, "--listen", &address], "meta serves"),
            "storage" => (vec!["storage", "--data", &data, "--listen", &address], "storage serves"),
            _ => (vec!["mount", &point], "mounted "),
        };
        let log = self.log(name);
        let out =
            File::options().append(true).open(&log).with_context(|| format!("open {}", log.display()))?;
        let before = out.metadata()?.len();
        let mut command = self.at(name);
        command.arg(binary).args(arguments);
        command.arg("--identity").arg(self.dir.join("identity").join(name)).args(more);
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let mut child = command.spawn().with_context(|| format!("start {name}"))?;
        self.wait_until_said(name, before, ready, || {
            Ok(child.try_wait()?.map(|status| format!("has ended with {status}")))
        })?;
        self.replaced.lock().unwrap_or_else(PoisonError::into_inner).push((name.to_owned(), child));
        Ok(())
    }

    /// Has the process of a mount, one that is kept, give way to the program that is by now where its own was; the mount stays.
    ///
    /// # Errors
    /// When it does not.
    pub fn give_way(&self, name: &str) -> anyhow::Result<()> {
        let process = || self.process(name)?.with_context(|| format!("{name} has ended"));
        let (before, pid) = (fs::metadata(self.log(name))?.len(), process()?);
        shell::output(Command::new("kill").args(["-USR2", &pid.to_string()]))?;
        self.wait_until_said(name, before, "mounted ", || {
            let now = process()?;
            Ok((now != pid).then(|| format!("is process {now} and was {pid}")))
        })?;
        Ok(())
    }

    /// Waits until a line of a node's log, from `before` on, begins with `wanted`, for as long as `lost` tells nothing.
    fn wait_until_said(
        &self,
        name: &str,
        before: u64,
        wanted: &str,
        mut lost: impl FnMut() -> anyhow::Result<Option<String>>,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_MAX;
        loop {
            let text = fs::read(self.log(name))?;
            let text = String::from_utf8_lossy(text.get(before as usize..).unwrap_or_default()).into_owned();
            if text.lines().any(|line| line.starts_with(wanted)) {
                return Ok(());
            }
            if let Some(what) = lost()? {
                bail!("the new {name} {what}: {text}");
            }
            if Instant::now() >= deadline {
                bail!("the new {name} does not serve: {text}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// As [`Lab::stop_and_check`], where every process was replaced by one of `binary`, or is a mount that gave way to one.
    ///
    /// # Errors
    /// As [`Lab::stop_and_check`].
    pub fn stop_replaced_and_check(&self, binary: &Path) -> anyhow::Result<()> {
        for number in 1..=self.mounts {
            self.stop(&format!("client{number}"))?;
        }
        let mut replaced = std::mem::take(&mut *self.replaced.lock().unwrap_or_else(PoisonError::into_inner));
        replaced.sort_by_key(|(name, _)| {
            ["client", "meta", "storage", "manager"].iter().position(|role| name.starts_with(role))
        });
        for (name, child) in &mut replaced {
            if let Some(status) = child.try_wait()? {
                bail!("{name} has ended with {status}; its log is {}", self.log(name).display());
            }
            shell::output(Command::new("kill").arg(child.id().to_string()))?;
            let deadline = Instant::now() + STOP_MAX;
            let status = loop {
                match child.try_wait()? {
                    Some(status) => break status,
                    None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
                    None => bail!("{name} does not stop; its log is {}", self.log(name).display()),
                }
            };
            if !status.success() {
                bail!("{name} has ended with {status}; its log is {}", self.log(name).display());
            }
        }
        self.check(binary)
    }

    fn stop(&self, name: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + STOP_MAX;
        let mut is_told = false;
        loop {
            let Some(pid) = self.process(name)? else { return Ok(()) };
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

    /// A check wants all parts on one machine, and the state where a manager finds it.
    fn check(&self, binary: &Path) -> anyhow::Result<()> {
        let data = self.dir.join("data");
        let mut command = self.at("manager");
        command.arg(binary).args(["fsck", "--state"]).arg(data.join("manager"));
        for entry in fs::read_dir(&data).context("read the data of the lab")? {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("meta")) {
                command.arg("--meta").arg(path);
            }
        }
        for number in 1..=self.storage {
            command.arg("--data").arg(data.join(format!("storage{number}")));
        }
        shell::run(&mut command)
    }

    /// Waits until each metadata server is kept by so many.
    ///
    /// # Errors
    /// When that is not so within a minute and a half.
    pub fn wait_for_copies(&self, copies: u16) -> anyhow::Result<()> {
        if copies < 2 {
            return Ok(());
        }
        let deadline = Instant::now() + COPIES_MAX;
        loop {
            let text = shell::output(&mut self.administer(&["copies", "list", "--json"]))?;
            let groups: Value = serde_json::from_str(&text).context("parse what is told of copies")?;
            let has_all =
                |group: &Value| group["copies"].as_array().map_or(0, Vec::len) >= usize::from(copies);
            if groups.as_array().is_some_and(|groups| groups.iter().all(has_all)) {
                return Ok(());
            }
            anyhow::ensure!(Instant::now() < deadline, "copies of metadata are not there: {text}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Where a node says what it does.
    #[must_use]
    pub fn log(&self, name: &str) -> PathBuf {
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
