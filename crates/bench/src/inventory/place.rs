//! What is mounted where figures are taken.

use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The file system of a directory. Names of hosts and paths are not in it: a report is shown around.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceFacts {
    /// Type, as `ext4` or `fuse.sshfs`.
    pub file_system: String,
    /// The block device's name below /dev, or what sort of thing else is mounted.
    pub source: String,
    /// Options of the mount and of the file system.
    pub options: String,
    /// Its size, bytes.
    pub total_bytes: u64,
    /// What is free there for whoever asks.
    pub free_bytes: u64,
}

impl PlaceFacts {
    /// Of the file system that `directory` is on.
    pub fn of(directory: &Path) -> PlaceFacts {
        let device = directory.metadata().map(|about| about.dev()).unwrap_or(0);
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mut found = mounted(&table, (libc::major(device), libc::minor(device))).unwrap_or_default();
        if found.file_system.is_empty() {
            found.file_system = "not known".into();
        }
        if let Ok(told) = rustix::fs::statvfs(directory) {
            found.total_bytes = told.f_blocks.saturating_mul(told.f_frsize);
            found.free_bytes = told.f_bavail.saturating_mul(told.f_frsize);
        }
        found
    }
}

/// The entry of a device in /proc/self/mountinfo (proc_pid_mountinfo(5)).
fn mounted(table: &str, (major, minor): (u32, u32)) -> Option<PlaceFacts> {
    let wanted = format!("{major}:{minor}");
    let line = table.lines().rev().find(|line| line.split(' ').nth(2) == Some(wanted.as_str()))?;
    let (before, after) = line.split_once(" - ")?;
    let options = before.split(' ').nth(5)?;
    let mut after = after.split(' ');
    let (file_system, source, own) = (after.next()?, after.next()?, after.next().unwrap_or(""));
    let mut all: Vec<&str> = Vec::new();
    for option in options.split(',').chain(own.split(',')).filter(|option| !option.is_empty()) {
        // What has a path, a host or a number of a user in it is nobody's business.
        let is_private = option.contains('/')
            || option.contains("addr=")
            || option.contains("user_id")
            || option.contains("group_id");
        if !is_private && !all.contains(&option) {
            all.push(option);
        }
    }
    let source = match source.strip_prefix("/dev/") {
        Some(device) => device.to_owned(),
        None if source.contains(':') => "another machine's".to_owned(),
        None => "no block device".to_owned(),
    };
    Some(PlaceFacts {
        file_system: file_system.to_owned(),
        source,
        options: all.join(","),
        ..PlaceFacts::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,errors=remount-ro\n\
        40 22 0:52 / /mnt/far rw,nosuid - fuse.sshfs somebody@host:/export rw,user_id=0,group_id=0,allow_other\n\
        41 22 0:53 / /mnt/nfs rw - nfs4 server:/x rw,vers=4.2,clientaddr=10.0.0.1,hard\n";

    #[test]
    fn the_mount_is_described_without_names_of_hosts_and_paths() {
        let ext4 = mounted(TABLE, (254, 1)).unwrap();
        assert_eq!((ext4.file_system.as_str(), ext4.source.as_str()), ("ext4", "vda1"));
        assert_eq!(ext4.options, "rw,relatime,errors=remount-ro");
        let far = mounted(TABLE, (0, 52)).unwrap();
        assert_eq!(
            (far.source.as_str(), far.options.as_str()),
            ("another machine's", "rw,nosuid,allow_other")
        );
        assert_eq!(mounted(TABLE, (0, 53)).unwrap().options, "rw,vers=4.2,hard");
        assert!(mounted(TABLE, (9, 9)).is_none());
    }
}
