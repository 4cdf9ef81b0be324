//! Walking both trees side by side and comparing everything a reader can see.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::allowed::UNCOMPARED_XATTRS;
use super::observe::comparable_mtime;
use super::path::BytePath;
use crate::sys::attr::{Follow, Stat, all_xattrs, fstatat};
use crate::sys::data::{self, CWD};
use crate::sys::dir;
use crate::sys::{SysResult, name};

/// LIMIT: differences reported by one walk.
const DIFFERENCES_MAX: usize = 20;
/// LIMIT: depth of the trees, far beyond what steps can build.
const DEPTH_MAX: usize = 400;

/// Compares the trees below two directories and returns what differs, one line each.
#[derive(Debug, Default)]
pub struct TreeCompare {
    differences: Vec<String>,
    /// Inode on the left to inode on the right: hard links must link the same names.
    left_to_right: HashMap<u64, u64>,
    right_to_left: HashMap<u64, u64>,
    /// Objects compared.
    pub objects: u64,
}

impl TreeCompare {
    /// Runs the comparison; an error is an answer that stopped the walk (for example EIO), with the path it came from.
    ///
    /// # Errors
    /// As said.
    pub fn run(left: &std::path::Path, right: &std::path::Path) -> Result<(Vec<String>, u64), String> {
        let mut compare = Self::default();
        let open = |path: &std::path::Path| {
            use std::os::unix::ffi::OsStrExt;
            data::openat(CWD, path.as_os_str().as_bytes(), libc::O_RDONLY | libc::O_DIRECTORY, 0)
                .map_err(|errno| format!("open {}: {errno}", path.display()))
        };
        let (left, right) = (open(left)?, open(right)?);
        compare.directory(&left, &right, &BytePath(b".".to_vec()), 0)?;
        Ok((compare.differences, compare.objects))
    }

    fn differ(
        &mut self,
        path: &BytePath,
        what: &str,
        left: impl std::fmt::Debug,
        right: impl std::fmt::Debug,
    ) {
        if self.differences.len() < DIFFERENCES_MAX {
            self.differences.push(format!("{path:?}: {what}: left {left:?}, right {right:?}"));
        }
    }

    fn directory(
        &mut self,
        left: &OwnedFd,
        right: &OwnedFd,
        path: &BytePath,
        depth: usize,
    ) -> Result<(), String> {
        if depth > DEPTH_MAX {
            return Err(format!("{path:?} is deeper than {DEPTH_MAX}: a loop?"));
        }
        let names = |side: &str, fd: &OwnedFd| {
            dir::names(fd.as_fd()).map_err(|errno| format!("read directory {path:?} on the {side}: {errno}"))
        };
        let (left_names, right_names) = (names("left", left)?, names("right", right)?);
        for name in left_names.iter().filter(|name| right_names.binary_search(name).is_err()) {
            self.differ(&child(path, name), "exists", true, false);
        }
        for name in right_names.iter().filter(|name| left_names.binary_search(name).is_err()) {
            self.differ(&child(path, name), "exists", false, true);
        }
        for name in left_names.iter().filter(|name| right_names.binary_search(name).is_ok()) {
            let here = child(path, name);
            self.entry(left.as_fd(), right.as_fd(), name, &here, depth)?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        left: BorrowedFd<'_>,
        right: BorrowedFd<'_>,
        name: &[u8],
        path: &BytePath,
        depth: usize,
    ) -> Result<(), String> {
        self.objects += 1;
        let stat = |side: &str, dir| {
            fstatat(dir, name, libc::AT_SYMLINK_NOFOLLOW)
                .map_err(|errno| format!("stat {path:?} on the {side}: {errno}"))
        };
        let (l, r) = (stat("left", left)?, stat("right", right)?);
        self.attributes(path, &l, &r);
        self.extended(left, right, name, path);
        if l.kind() != r.kind() {
            return Ok(());
        }
        match l.kind() {
            libc::S_IFDIR => {
                let open = |side: &str, dir| {
                    data::openat(dir, name, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0)
                        .map_err(|errno| format!("open {path:?} on the {side}: {errno}"))
                };
                let (l, r) = (open("left", left)?, open("right", right)?);
                self.directory(&l, &r, path, depth + 1)
            }
            libc::S_IFLNK => {
                let (l, r) = (name::readlinkat(left, name), name::readlinkat(right, name));
                if l != r {
                    self.differ(path, "link target", l.map(BytePath), r.map(BytePath));
                }
                Ok(())
            }
            libc::S_IFREG => {
                if let Some(found) = self.content(left, right, name, path, &r)? {
                    self.differ(path, &format!("content at byte {}", found.0), found.1, found.2);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn attributes(&mut self, path: &BytePath, l: &Stat, r: &Stat) {
        let mut compare = |what: &str, left: i128, right: i128| {
            if left != right {
                self.differ(path, what, left, right);
            }
        };
        if l.mode != r.mode {
            compare("mode (octal digits as decimal)", octal(l.mode), octal(r.mode));
        }
        compare("nlink", i128::from(l.nlink), i128::from(r.nlink));
        compare("uid", i128::from(l.uid), i128::from(r.uid));
        compare("gid", i128::from(l.gid), i128::from(r.gid));
        if l.kind() != libc::S_IFDIR {
            compare("size", i128::from(l.size), i128::from(r.size));
        }
        if matches!(l.kind(), libc::S_IFCHR | libc::S_IFBLK) {
            compare("rdev", i128::from(l.rdev), i128::from(r.rdev));
        }
        if comparable_mtime(l) != comparable_mtime(r) {
            self.differ(path, "mtime", l.mtime, r.mtime);
        }
        if l.kind() != libc::S_IFDIR {
            let paired = *self.left_to_right.entry(l.ino).or_insert(r.ino) == r.ino
                && *self.right_to_left.entry(r.ino).or_insert(l.ino) == l.ino;
            if !paired {
                self.differ(path, "hard link identity", l.ino, r.ino);
            }
        }
    }

    fn extended(&mut self, left: BorrowedFd<'_>, right: BorrowedFd<'_>, name: &[u8], path: &BytePath) {
        // There is no *at form of listxattr in use, so the object is reached through its directory's descriptor in /proc.
        let read = |dir: BorrowedFd<'_>| -> SysResult<_> {
            use std::os::fd::AsRawFd;
            let mut through = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
            through.extend_from_slice(name);
            let mut pairs = all_xattrs(&through, Follow::Link)?;
            pairs.retain(|(name, _)| !UNCOMPARED_XATTRS.iter().any(|(prefix, _)| name.starts_with(prefix)));
            Ok(pairs)
        };
        let (l, r) = (read(left), read(right));
        if l != r {
            let show = |side: SysResult<Vec<(Vec<u8>, Vec<u8>)>>| {
                side.map(|pairs| {
                    pairs
                        .into_iter()
                        .map(|(name, value)| (BytePath(name), value.len(), crc32c::crc32c(&value)))
                        .collect::<Vec<_>>()
                })
            };
            self.differ(path, "extended attributes (name, length, checksum)", show(l), show(r));
        }
    }

    /// The first byte that differs, with both values; and checks that the space reported on the right is plausible.
    fn content(
        &mut self,
        left: BorrowedFd<'_>,
        right: BorrowedFd<'_>,
        name: &[u8],
        path: &BytePath,
        stat: &Stat,
    ) -> Result<Option<(i64, u8, u8)>, String> {
        const PIECE: usize = 1 << 18;
        let open = |side: &str, dir| {
            let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NOATIME;
            data::openat(dir, name, flags, 0).map_err(|errno| format!("open {path:?} on the {side}: {errno}"))
        };
        let (l, r) = (open("left", left)?, open("right", right)?);
        let (mut left_piece, mut right_piece) = (vec![0u8; PIECE], vec![0u8; PIECE]);
        let mut at = 0i64;
        let mut has_data = false;
        loop {
            let read = |side: &str, fd: &OwnedFd, piece: &mut [u8]| {
                data::pread_full(fd.as_fd(), piece, at)
                    .map_err(|errno| format!("read {path:?} at {at} on the {side}: {errno}"))
            };
            let l_got = read("left", &l, &mut left_piece)?;
            let r_got = read("right", &r, &mut right_piece)?;
            let both = l_got.min(r_got);
            has_data = has_data || right_piece[..both].iter().any(|byte| *byte != 0);
            if left_piece[..both] != right_piece[..both]
                && let Some(found) = (0..both).find(|i| left_piece[*i] != right_piece[*i])
            {
                return Ok(Some((at + found as i64, left_piece[found], right_piece[found])));
            }
            // A difference in length is reported as the size.
            if both < PIECE {
                break;
            }
            at += PIECE as i64;
        }
        if has_data && stat.blocks == 0 {
            self.differ(path, "has data but st_blocks is 0", "-", stat.blocks);
        }
        Ok(None)
    }
}

fn child(path: &BytePath, name: &[u8]) -> BytePath {
    BytePath::join(&[path.0.clone(), name.to_vec()])
}

fn octal(mode: u32) -> i128 {
    format!("{mode:o}").parse().unwrap_or(-1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn pair() -> (tempfile::TempDir, tempfile::TempDir) {
        let pair = (tempfile::tempdir().expect("left"), tempfile::tempdir().expect("right"));
        for side in [&pair.0, &pair.1] {
            fs::create_dir(side.path().join("d")).expect("mkdir");
            fs::write(side.path().join("d/f"), b"content").expect("write");
            fs::hard_link(side.path().join("d/f"), side.path().join("g")).expect("link");
        }
        pair
    }

    fn differences(pair: &(tempfile::TempDir, tempfile::TempDir)) -> String {
        TreeCompare::run(pair.0.path(), pair.1.path()).expect("both readable").0.join("\n")
    }

    #[test]
    fn equal_trees_have_no_difference() {
        assert_eq!(differences(&pair()), "");
    }

    #[test]
    fn every_kind_of_difference_is_named() {
        let content = pair();
        fs::write(content.1.path().join("g"), b"contexx").expect("write");
        assert!(differences(&content).contains("content at byte 5"));
        let names = pair();
        fs::write(names.0.path().join("d/extra"), b"").expect("write");
        assert!(differences(&names).contains("exists: left true, right false"));
        let links = pair();
        fs::remove_file(links.1.path().join("g")).expect("unlink");
        fs::write(links.1.path().join("g"), b"content").expect("write");
        let found = differences(&links);
        assert!(found.contains("nlink") && found.contains("hard link identity"), "{found}");
        let mode = pair();
        let bits = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(mode.1.path().join("d/f"), bits).expect("chmod");
        assert!(differences(&mode).contains("100600"));
    }
}
