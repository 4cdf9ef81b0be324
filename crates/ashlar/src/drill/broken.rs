//! What a failure has changed in a lab, and how it is put right again: in any case, also when something fails or somebody has had enough.

use super::disk;
use crate::lab::{Disk, Lab, ip, limit};
use crate::terminal::shown;
use anyhow::{Context, Result};
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Child;

/// Something to be undone.
#[derive(Debug)]
pub enum Repair {
    /// The process of a node is started.
    Start(String),
    /// It goes on.
    Continue(String),
    /// `ip` with these words.
    Ip(Vec<String>),
    /// A disk goes on, and who watches it ends.
    Thaw(Disk, Child),
    /// A server lets go of disks that have failed, and finds them mounted anew.
    Mount(String, Vec<Disk>),
    Remove(PathBuf),
    /// A device is as fast as it can be, in these groups.
    Fast(Vec<PathBuf>, u64),
}

/// A lab in which something is broken.
pub struct Broken<'l> {
    pub lab: &'l mut Lab,
    repairs: Vec<Repair>,
}

impl<'l> Broken<'l> {
    pub fn new(lab: &'l mut Lab) -> Broken<'l> {
        Broken { lab, repairs: Vec::new() }
    }

    /// What was noted, for [`Broken::again`].
    pub fn into_repairs(mut self) -> Vec<Repair> {
        std::mem::take(&mut self.repairs)
    }

    /// A lab in which that is to be undone.
    pub fn again(lab: &'l mut Lab, repairs: Vec<Repair>) -> Broken<'l> {
        Broken { lab, repairs }
    }

    /// Notes what will have to be undone. To be called before it is done.
    pub fn note(&mut self, repair: Repair) {
        self.repairs.push(repair);
    }

    /// Undoes all, the last first. What fails does not keep the rest from being undone.
    pub fn put_right(&mut self) -> Result<()> {
        self.put_right_by(Lab::start_again)
    }

    /// As [`Broken::put_right`], and does not wait until what was started serves: others may have to be put right before it can.
    pub fn put_right_and_go_on(&mut self) -> Result<()> {
        self.put_right_by(Lab::launch_again)
    }

    fn put_right_by(&mut self, start: fn(&mut Lab, &str) -> Result<()>) -> Result<()> {
        let mut outcome = Ok(());
        while let Some(repair) = self.repairs.pop() {
            let undone = match repair {
                Repair::Start(node) => start(self.lab, &node),
                repair => undo(self.lab, repair),
            };
            outcome = outcome.and(undone);
        }
        outcome
    }
}

impl Drop for Broken<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.put_right() {
            eprintln!("ashlar: not everything could be put right ({error:#}): remove this lab");
        }
    }
}

fn undo(lab: &mut Lab, repair: Repair) -> Result<()> {
    match repair {
        Repair::Start(node) => lab.start_again(&node),
        Repair::Continue(node) => {
            if let Some(process) = lab.process(&node) {
                process.signal(libc::SIGCONT);
            }
            Ok(())
        }
        Repair::Ip(words) => ip(&words),
        Repair::Thaw(disk, watch) => {
            let outcome = disk.thaw();
            disk::end_watch(watch);
            outcome.map(drop)
        }
        Repair::Mount(node, disks) => {
            lab.stop(&node)?;
            disks.iter().try_for_each(Disk::mount_again)
        }
        Repair::Remove(path) => match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", shown(&path)))
            }
            _ => Ok(()),
        },
        Repair::Fast(groups, device) => limit(&groups, device, 0),
    }
}
