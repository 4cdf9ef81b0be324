//! Where a drill is: a lab, or a file system that is none; and how its managers are asked.

use super::consent;
use crate::cli::DrillRunArgs;
use crate::cluster::NodeDirectory;
use crate::lab::{FIRST_MANAGER, Lab, LabRole, enter};
use crate::program::run_within;
use crate::terminal::shown;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// LIMIT: for how long a command may take that asks.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Asks with this program, as an administrator.
#[derive(Clone, Debug)]
pub struct Asker {
    /// The network to ask from, if it is not this machine's.
    pub name_space: Option<String>,
    pub identity: PathBuf,
}

impl Asker {
    /// What a command prints.
    pub fn run(&self, args: &[&str]) -> Result<String> {
        self.run_for(args, ANSWER_MAX)
    }

    /// As [`Asker::run`], of one that may take so long.
    pub fn run_for(&self, args: &[&str], most: Duration) -> Result<String> {
        let mut command = Command::new(std::env::current_exe().context("cannot find the ashlar binary")?);
        command.args(args).arg("--identity").arg(&self.identity).current_dir("/");
        if let Some(name) = &self.name_space {
            enter(&mut command, name)?;
        }
        // A key that ends the drill ends what is under way in order.
        command.process_group(0).stdin(Stdio::null());
        run_within(&mut command, &format!("`ashlar {}`", args.join(" ")), most)
    }

    pub fn ask(&self, args: &[&str]) -> Result<Value> {
        let printed = self.run(args)?;
        serde_json::from_str(&printed)
            .with_context(|| format!("cannot understand `ashlar {}`", args.join(" ")))
    }
}

/// See the module.
pub struct Place {
    /// Nothing if it is no lab.
    pub lab: Option<Lab>,
    pub asker: Asker,
    /// Twice the same if there is only one.
    pub mounts: [PathBuf; 2],
    /// The id of the file system.
    pub cluster: String,
}

impl Place {
    /// The one that is asked for, if it may be drilled.
    pub fn find(args: &DrillRunArgs) -> Result<Place> {
        match &args.lab {
            Some(dir) => Place::lab(dir),
            None => Place::real(args),
        }
    }

    /// A lab.
    pub fn lab(dir: &Path) -> Result<Place> {
        crate::lab::require_root()?;
        let lab = Lab::at(dir)?;
        for node in &lab.record.nodes {
            if lab.process(&node.name).is_none() {
                bail!(
                    "{} does not run: see `ashlar lab status --dir {}`, and make the lab anew",
                    node.name,
                    shown(dir)
                );
            }
        }
        let asker = Asker {
            name_space: Some(lab.record.name_space(FIRST_MANAGER)),
            identity: lab.places.identity(FIRST_MANAGER),
        };
        let clients = lab.record.nodes.iter().filter(|node| node.role == LabRole::Client);
        let mounts: Vec<PathBuf> = clients.map(|node| lab.places.mountpoint(&node.name)).collect();
        let cluster = NodeDirectory::new(&asker.identity).load()?.cluster.to_string();
        Ok(Place { mounts: two(&mounts)?, lab: Some(lab), asker, cluster })
    }

    fn real(args: &DrillRunArgs) -> Result<Place> {
        let cluster = NodeDirectory::new(&args.node.node).load()?.cluster.to_string();
        // ORDER: before anything is asked or changed.
        consent::require(&cluster, args.consent.as_deref())?;
        let asker = Asker { name_space: None, identity: args.node.node.clone() };
        Ok(Place { mounts: two(&args.mount)?, lab: None, asker, cluster })
    }

    /// What it is, for people.
    pub fn name(&self) -> String {
        match &self.lab {
            Some(lab) => format!("the lab at {}", shown(&lab.places.dir)),
            None => format!("mounted at {}", shown(&self.mounts[0])),
        }
    }
}

fn two(mounts: &[PathBuf]) -> Result<[PathBuf; 2]> {
    for mount in mounts {
        let found = ashlar_fuse::file_system_type_at(mount).context("cannot read the mount table")?;
        if found.as_deref() != Some("fuse.ashlar") {
            bail!("{} is no mount of Ashlar: name the mount point itself", shown(mount));
        }
    }
    match mounts {
        [] => bail!("there is no mount to work in: a drill wants one client at least, better two"),
        [one] => Ok([one.clone(), one.clone()]),
        [one, other, ..] => Ok([one.clone(), other.clone()]),
    }
}
