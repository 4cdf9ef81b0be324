//! What a lab consists of, as `lab.json` says.

use super::plan::{LabNode, Places};
use super::process::ProcessId;
use anyhow::{Context, Result, bail};
use ashlar_types::Coherence;
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;

/// Version of `lab.json`.
const VERSION: u32 = 1;

/// What processes of the lab are started with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MadeWith {
    pub coherence: String,
    pub keep: u32,
    pub split_at: u64,
    /// Of each storage server; 0 when its target is a directory of this machine.
    pub disks: u32,
    pub disk_bytes: u64,
}

impl Default for MadeWith {
    /// What labs were made with that do not say it.
    fn default() -> MadeWith {
        let coherence = Coherence::Strict.name().to_owned();
        MadeWith { coherence, keep: 0, split_at: 50_000, disks: 0, disk_bytes: 0 }
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    version: u32,
    /// In the names of all name spaces.
    pub id: String,
    /// Whether the directory was made for the lab, and goes with it.
    pub made_directory: bool,
    /// Mbit/s of each link, if it is shaped.
    pub link_mbit: Option<u32>,
    /// The port of this machine's loopback at which browsers get to the console, if there is one.
    #[serde(default)]
    pub console_port: Option<u16>,
    #[serde(default)]
    pub made_with: MadeWith,
    /// `ashlar lab up`, while it is at work.
    pub maker: Option<ProcessId>,
    pub nodes: Vec<LabNode>,
    /// What runs, by node.
    pub processes: Vec<(String, ProcessId)>,
}

impl Record {
    /// Writes down what is going to be made; there must be no lab there yet.
    pub fn begin(
        places: &Places,
        nodes: Vec<LabNode>,
        (link_mbit, console_port): (Option<u32>, Option<u16>),
        (id, made_with): (String, MadeWith),
    ) -> Result<Record> {
        let made_directory = make_directory(places)?;
        let record = Record {
            version: VERSION,
            id,
            made_directory,
            link_mbit,
            console_port,
            made_with,
            maker: Some(ProcessId::own()?),
            nodes,
            processes: Vec::new(),
        };
        record.store(places)?;
        Ok(record)
    }

    pub fn store(&self, places: &Places) -> Result<()> {
        let (new, path) = (places.dir.join("lab.json.new"), places.record());
        let store = || -> std::io::Result<()> {
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(&serde_json::to_vec_pretty(self)?)?;
            file.sync_all()?;
            fs::rename(&new, &path)
        };
        store().with_context(|| format!("cannot write {}", path.display()))
    }

    /// The lab at `places`; nothing if there is none.
    pub fn find(places: &Places) -> Result<Option<Record>> {
        let path = places.record();
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let record: Record = serde_json::from_slice(&bytes)
            .with_context(|| format!("{} is damaged, or of another version of Ashlar", path.display()))?;
        // Names in it become names of files that are removed.
        let is_plain = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if record.version != VERSION
            || !is_plain(&record.id)
            || !record.nodes.iter().all(|node| is_plain(&node.name))
        {
            bail!("{} is damaged, or of another version of Ashlar", path.display());
        }
        Ok(Some(record))
    }

    /// The lab at `places`.
    pub fn load(places: &Places) -> Result<Record> {
        Record::find(places)?.with_context(|| {
            format!(
                "there is no lab at {}; `ashlar lab up` makes one, --dir names another place",
                places.dir.display()
            )
        })
    }

    /// The node of this name.
    pub fn node(&self, name: &str) -> Result<&LabNode> {
        self.nodes.iter().find(|node| node.name == name).with_context(|| {
            let names: Vec<&str> = self.nodes.iter().map(|node| node.name.as_str()).collect();
            format!("the lab has no node `{}`; there are {}", name.escape_debug(), names.join(", "))
        })
    }

    /// Where browsers of this machine get to the console.
    pub fn console_url(&self) -> Option<String> {
        self.console_port.map(|port| format!("https://127.0.0.1:{port}"))
    }

    /// The name space of a node.
    pub fn name_space(&self, node: &str) -> String {
        format!("ashlar-{}-{node}", self.id)
    }

    /// The one with the bridge.
    pub fn hub(&self) -> String {
        self.name_space("hub")
    }

    /// All of them.
    pub fn name_spaces(&self) -> Vec<String> {
        let of_nodes = self.nodes.iter().map(|node| self.name_space(&node.name));
        of_nodes.chain([self.hub()]).collect()
    }
}

/// The directory must be empty: everything in it goes with the lab. Tells whether it was made.
fn make_directory(places: &Places) -> Result<bool> {
    let dir = places.dir.display();
    match fs::read_dir(&places.dir) {
        Ok(mut entries) => {
            if Record::find(places)?.is_some() {
                bail!(
                    "there is a lab at {dir} already: see `ashlar lab status`, or remove it with `ashlar lab down`"
                );
            }
            if entries.next().is_some() {
                bail!("{dir} is not empty and has no lab: name another directory with --dir");
            }
            Ok(false)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            fs::create_dir_all(&places.dir).with_context(|| format!("cannot make {dir}"))?;
            Ok(true)
        }
        Err(error) => Err(error).with_context(|| format!("cannot use {dir}")),
    }
}
