//! The mount table of this process (/proc/self/mountinfo, proc_pid_mountinfo(5)): reading it never touches a file system, so
//! it cannot hang on one that does not answer.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// What tells one mount from another at the same path: its device number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MountId {
    pub(crate) major: u32,
    /// Also the number of a FUSE connection in /sys/fs/fuse/connections.
    pub(crate) minor: u32,
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountEntry {
    pub(crate) id: MountId,
    pub(crate) path: PathBuf,
    pub(crate) fstype: String,
    pub(crate) source: String,
    /// Who mounted it, where the file system tells: those of FUSE do.
    pub(crate) user: Option<u32>,
    pub(crate) is_read_only: bool,
}

impl MountEntry {
    pub(crate) fn is_fuse(&self) -> bool {
        self.fstype == "fuse" || self.fstype == "fuseblk" || self.fstype.starts_with("fuse.")
    }
}

/// The topmost mount at exactly `path`.
///
/// # Errors
/// Those of reading /proc/self/mountinfo.
pub(crate) fn find(path: &Path) -> io::Result<Option<MountEntry>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(find_in(&table, path))
}

/// What kind of file system is mounted at exactly `path`, as in the mount table: `fuse.ashlar`, `ext4`; nothing when `path` is no mount point.
/// Looks at nothing but the table, so it does not hang on a mount whose server is gone.
///
/// # Errors
/// Those of reading /proc/self/mountinfo.
pub fn file_system_type_at(path: &Path) -> io::Result<Option<String>> {
    Ok(find(path)?.map(|entry| entry.fstype))
}

/// The user who made the mount at exactly `path`; nothing when `path` is no mount point of a FUSE file system. Root is 0.
///
/// # Errors
/// Those of reading /proc/self/mountinfo.
pub fn mount_user_at(path: &Path) -> io::Result<Option<u32>> {
    Ok(find(path)?.filter(MountEntry::is_fuse).and_then(|entry| entry.user))
}

/// A mount, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedMount {
    /// Where.
    pub path: PathBuf,
    /// What the mount table calls its source.
    pub source: String,
    /// Who mounted it, where the table tells.
    pub user: Option<u32>,
    /// Whether it takes no changes.
    pub is_read_only: bool,
}

/// The mounts of file systems of this kind, such as `fuse.ashlar`, in the order in which they were made.
///
/// # Errors
/// Those of reading /proc/self/mountinfo.
pub fn mounts_of_type(fstype: &str) -> io::Result<Vec<ListedMount>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    let entries = table.split(|&byte| byte == b'\n').filter_map(parse_line);
    let listed = |entry: MountEntry| ListedMount {
        path: entry.path,
        source: entry.source,
        user: entry.user,
        is_read_only: entry.is_read_only,
    };
    Ok(entries.filter(|entry| entry.fstype == fstype).map(listed).collect())
}

/// Every mount point there is.
///
/// # Errors
/// Those of reading /proc/self/mountinfo.
pub fn mount_points() -> io::Result<Vec<PathBuf>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(table.split(|&byte| byte == b'\n').filter_map(parse_line).map(|entry| entry.path).collect())
}

/// A path as mountinfo and fstab(5) write it: blank, tab, newline and backslash are three octal digits.
pub fn table_path(field: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(unescape(field)))
}

fn find_in(table: &[u8], path: &Path) -> Option<MountEntry> {
    // Later lines are mounted over earlier ones.
    table.split(|&byte| byte == b'\n').rev().filter_map(parse_line).find(|entry| entry.path == path)
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let text = |field: &[u8]| String::from_utf8_lossy(&unescape(field)).into_owned();
    let device = text(fields.get(2)?);
    let (major, minor) = device.split_once(':')?;
    let dash = fields.iter().position(|field| *field == b"-")?;
    Some(MountEntry {
        id: MountId { major: major.parse().ok()?, minor: minor.parse().ok()? },
        path: table_path(fields.get(4)?),
        fstype: text(fields.get(dash + 1)?),
        source: text(fields.get(dash + 2)?),
        user: fields.get(dash + 3).and_then(|options| user_of(options)),
        is_read_only: fields.get(5)?.split(|&byte| byte == b',').any(|option| option == b"ro"),
    })
}

/// `rw,user_id=1000,group_id=1000`
fn user_of(options: &[u8]) -> Option<u32> {
    let mut options = options.split(|&byte| byte == b',');
    let user = options.find_map(|option| option.strip_prefix(b"user_id="))?;
    std::str::from_utf8(user).ok()?.parse().ok()
}

/// Blank, tab, newline and backslash are written as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = if *first == b'\\' { tail.first_chunk::<3>() } else { None };
        let value = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match value {
            Some(byte) => (plain.push(byte), rest = &tail[3..]).1,
            None => (plain.push(*first), rest = tail).1,
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 1 8:1 / / rw shared:1 - ext4 /dev/vda rw\n\
        40 22 0:41 / /mnt/a\\040b rw,nosuid - fuse.sshfs host: rw\n\
        41 40 0:52 / /mnt/a\\040b rw,nosuid shared:3 master:2 - fuse.ashlar ashlar rw,user_id=0\n\nbroken line\n";

    #[test]
    fn the_topmost_mount_of_a_path_is_found() {
        let entry = find_in(TABLE, Path::new("/mnt/a b")).unwrap();
        assert_eq!(entry.id, MountId { major: 0, minor: 52 });
        assert_eq!((entry.fstype.as_str(), entry.source.as_str()), ("fuse.ashlar", "ashlar"));
        assert_eq!(entry.user, Some(0));
        assert_eq!(find_in(TABLE, Path::new("/")).unwrap().user, None);
        assert!(entry.is_fuse());
        assert!(!find_in(TABLE, Path::new("/")).unwrap().is_fuse());
        assert_eq!(find_in(TABLE, Path::new("/mnt")), None);
    }

    #[test]
    fn escapes_that_are_none_stay_as_they_are() {
        assert_eq!(unescape(b"a\\134b\\9zz\\04"), b"a\\b\\9zz\\04");
    }
}
