//! Disks that several storage servers reach: arguments of `ashlar storage`, and of `ashlar disk`.

use super::NodePlace;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Shared disks of `ashlar storage`.
#[derive(Clone, Debug, Args)]
pub struct SharedArgs {
    /// A directory at which a disk is mounted that another storage server reaches as well: a target while this server has it, which it has whenever it is there. `DIR=DEVICE` names
    /// the device; without that the line of `/etc/fstab` counts (with `noauto`). Repeat for more.
    #[arg(long, value_name = "DIR[=DEVICE]", value_parser = parse_shared_place)]
    pub shared: Vec<SharedPlace>,
    /// The same for a disk that this server has while the other one is not there.
    #[arg(long, value_name = "DIR[=DEVICE]", value_parser = parse_shared_place)]
    pub standby: Vec<SharedPlace>,
    /// A program that sees to it that a server cannot write to disks any more, by switching it off, say. It is called with the name and the addresses of that server, and
    /// ends with 0 only if that is certain; a shared disk is taken over then.
    #[arg(long, value_name = "PROGRAM")]
    pub fence: Option<PathBuf>,
}

/// Where a shared disk is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedPlace {
    /// Where it is mounted.
    pub dir: PathBuf,
    /// What is mounted there; without it `/etc/fstab` counts.
    pub device: Option<PathBuf>,
}

fn parse_shared_place(text: &str) -> Result<SharedPlace, String> {
    let (dir, device) = match text.split_once('=') {
        Some((dir, device)) => (dir, Some(PathBuf::from(device))),
        None => (text, None),
    };
    let dir = PathBuf::from(dir);
    if !dir.is_absolute() || device.as_ref().is_some_and(|device| !device.is_absolute()) {
        return Err(format!("`{text}` is not DIR or DIR=DEVICE, both from `/` on"));
    }
    Ok(SharedPlace { dir, device })
}

/// `ashlar disk`
#[derive(Debug, Args)]
pub struct DiskArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: DiskAction,
    #[command(flatten)]
    pub node: NodePlace,
}

/// What can be done about disks that several storage servers reach.
#[derive(Debug, Subcommand)]
pub enum DiskAction {
    /// Show which storage server has which disk that others reach as well.
    List {
        /// Print JSON: a list of objects with `disk` (the UUID of its file system), `target` (number; null while it is not known), `state` (`free`, `used`, `leaving` or `fencing`),
        /// `server` (who has it, `id` and `name`; null if nobody has), `next` (who is to have it next, or fences the other one; null if nobody is), `servers` (who reach it),
        /// `preferred` (whose it is to be; null if nobody's) and `failed` (who could not use it; null if nobody).
        #[arg(long)]
        json: bool,
    },
    /// Have another storage server use a disk. The one that has it lets go of it first; programs wait for a few seconds.
    Move {
        /// The disk: the number of the target on it, or the UUID of its file system.
        disk: String,
        /// The server that is to have it: its name or number.
        #[arg(long, value_name = "SERVER")]
        to: String,
    },
    /// Say that a storage server is switched off, where no program could see to that: others take its shared disks over. If it runs all the same, both write to the disk, and it is lost.
    Fenced {
        /// The server: its name or number.
        server: String,
        /// Required: it is off, and writes to no disk before it is started anew.
        #[arg(long, required = true)]
        it_is_off: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_disk_is_named_by_where_it_is_mounted_and_perhaps_by_its_device() {
        let place = |dir: &str, device: Option<&str>| SharedPlace {
            dir: dir.into(),
            device: device.map(PathBuf::from),
        };
        assert_eq!(parse_shared_place("/data/a"), Ok(place("/data/a", None)));
        let by_path = "/dev/disk/by-path/pci-0000:00:1f.2-ata-1";
        assert_eq!(parse_shared_place(&format!("/data/a={by_path}")), Ok(place("/data/a", Some(by_path))));
        assert!(parse_shared_place("data/a").is_err() && parse_shared_place("/data=sdb").is_err());
    }
}
