//! A lab that all of a drill can be done to, for as long as the drill.

use super::place::Asker;
use crate::cluster::etcd::find_program;
use crate::lab::{self, FIRST_MANAGER, Lab, LabRole};
use crate::terminal::say;
use anyhow::{Context, Result, bail};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A lab that goes with this.
pub struct OwnLab {
    dir: Option<PathBuf>,
    is_kept: Cell<bool>,
}

impl OwnLab {
    /// Makes it, with pools that keep so many copies.
    pub fn make(dir: &Path, copies: u8) -> Result<OwnLab> {
        let mut command = Command::new(std::env::current_exe().context("cannot find the ashlar binary")?);
        command.args(["lab", "up", "--meta", "2", "--copies", "2", "--storage", "3", "--disks", "2"]);
        command.args(["--clients", "2", "--dir"]).arg(dir);
        if find_program(None).is_ok() {
            command.arg("--etcd");
        }
        let status = command.status().context("cannot start ashlar")?;
        if !status.success() {
            bail!("cannot make the lab");
        }
        let own = OwnLab { dir: Some(dir.to_owned()), is_kept: Cell::new(false) };
        let lab = Lab::at(dir)?;
        let asker = Asker {
            name_space: Some(lab.record.name_space(FIRST_MANAGER)),
            identity: lab.places.identity(FIRST_MANAGER),
        };
        asker.run(&["pool", "copies", "default", &copies.to_string()])?;
        let servers = lab.record.nodes.iter().filter(|node| node.role == LabRole::Storage).count();
        say(format_args!("made a lab with {servers} storage servers, two disks each"));
        Ok(own)
    }

    /// It stays, to be looked at.
    pub fn keep(&self) {
        self.is_kept.set(true);
    }

    /// Removes it.
    pub fn remove(mut self) -> Result<()> {
        self.dir.take().map_or(Ok(()), |dir| lab::down(&dir))
    }
}

impl Drop for OwnLab {
    fn drop(&mut self) {
        if let Some(dir) = self.dir.take().filter(|_| !self.is_kept.get())
            && let Err(error) = lab::down(&dir)
        {
            eprintln!("ashlar: the lab is still there ({error:#}); `ashlar lab down` tries again");
        }
    }
}
