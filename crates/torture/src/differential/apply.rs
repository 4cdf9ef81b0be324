//! Carrying out one operation on one side. Each arm is one system call, or the shortest sequence that tests one promise.

use std::os::fd::{AsFd, BorrowedFd};

use super::observe::{Attributes, Outcome};
use super::op::{AclEntry, Op, Slot};
use super::path::BytePath;
use super::readdir;
use super::side::Worker;
use crate::rng::pattern;
use crate::sys::attr::{self, Follow, TimeArgument};
use crate::sys::data::{self, CWD};
use crate::sys::map::Mapping;
use crate::sys::{Errno, SysResult, cred, lock, name};

/// The page size of every machine this runs on.
pub const PAGE: i64 = 4096;

impl Worker {
    /// Applies `op` as the current user and returns the kernel's answer.
    pub fn apply(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Open { slot, path, flags, mode } => self
                .keep(*slot, data::openat(CWD, &path.0, *flags | libc::O_NONBLOCK | libc::O_NOCTTY, *mode)),
            Op::OpenTmpfile { slot, dir, flags, mode } => {
                self.keep(*slot, data::openat(CWD, &dir.0, *flags | libc::O_TMPFILE, *mode))
            }
            Op::Close { slot } => match self.put(*slot, None) {
                Some(file) => done(data::close(file)),
                None => Outcome::Empty,
            },
            Op::Umask { mask } => Outcome::Value(i64::from(cred::umask(*mask))),
            Op::CopyFileRange { from, from_offset, to, to_offset, len } => {
                match (self.file(*from), self.file(*to)) {
                    (Some(source), Some(target)) => {
                        let look = || self.look_at(*from);
                        copy_all((source, *from_offset), (target, *to_offset), *len as usize, look)
                    }
                    _ => Outcome::Empty,
                }
            }
            _ => match slot_of(op) {
                Some(slot) => match self.file(slot) {
                    Some(fd) => apply_to_file(op, fd),
                    None => Outcome::Empty,
                },
                None => apply_to_path(op),
            },
        }
    }

    fn keep(&mut self, slot: Slot, opened: SysResult<std::os::fd::OwnedFd>) -> Outcome {
        match opened {
            Ok(file) => {
                let attributes = attr::fstat(file.as_fd());
                // The file that was in the slot is closed here, which on one of the sides may be the last close of an unlinked file.
                drop(self.put(slot, Some(file)));
                attributes_of(attributes)
            }
            Err(errno) => Outcome::Failed(errno),
        }
    }
}

fn slot_of(op: &Op) -> Option<Slot> {
    match op {
        Op::LinkFd { slot, .. }
        | Op::Read { slot, .. }
        | Op::Write { slot, .. }
        | Op::Pread { slot, .. }
        | Op::Pwrite { slot, .. }
        | Op::Writev { slot, .. }
        | Op::Lseek { slot, .. }
        | Op::DataMap { slot }
        | Op::Ftruncate { slot, .. }
        | Op::Fallocate { slot, .. }
        | Op::Fsync { slot, .. }
        | Op::Fstat { slot }
        | Op::MapWrite { slot, .. }
        | Op::MapRead { slot, .. }
        | Op::Fchmod { slot, .. }
        | Op::Fchown { slot, .. }
        | Op::Futimens { slot, .. }
        | Op::Flock { slot, .. }
        | Op::Setlk { slot, .. }
        | Op::Getlk { slot, .. }
        | Op::SetlkAsChild { slot, .. } => Some(*slot),
        _ => None,
    }
}

fn apply_to_file(op: &Op, fd: BorrowedFd<'_>) -> Outcome {
    match op {
        Op::LinkFd { path, .. } => done(name::link_fd(fd, CWD, &path.0)),
        Op::Read { len, .. } => bytes(guard_directory(fd).and_then(|()| data::read(fd, *len as usize))),
        Op::Write { fill, len, .. } => count(data::write(fd, &pattern(*fill, *len as usize))),
        Op::Pread { offset, len, .. } => bytes(data::pread(fd, *len as usize, *offset)),
        Op::Pwrite { offset, fill, len, .. } => {
            count(data::pwrite(fd, &pattern(*fill, *len as usize), *offset))
        }
        Op::Writev { fill, lens, .. } => {
            let parts: Vec<Vec<u8>> =
                lens.iter().zip(*fill..).map(|(len, seed)| pattern(seed, *len as usize)).collect();
            let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            count(data::writev(fd, &slices))
        }
        Op::Lseek { offset, whence, .. } => {
            value(guard_directory(fd).and_then(|()| data::lseek(fd, *offset, *whence)))
        }
        Op::DataMap { .. } => data_map(fd),
        Op::Ftruncate { len, .. } => done(data::ftruncate(fd, *len)),
        Op::Fallocate { mode, offset, len, .. } => done(data::fallocate(fd, *mode, *offset, *len)),
        Op::Fsync { data_only, .. } => done(data::fsync(fd, *data_only)),
        Op::Fstat { .. } => attributes_of(attr::fstat(fd)),
        Op::MapWrite { page, at, fill, len, .. } => map_write(fd, *page, *at as usize, *fill, *len as usize),
        Op::MapRead { page, len, .. } => map_read(fd, *page, *len as usize),
        Op::Fchmod { mode, .. } => done(attr::fchmod(fd, *mode)),
        Op::Fchown { uid, gid, .. } => done(attr::fchown(fd, *uid, *gid)),
        Op::Futimens { atime, mtime, .. } => {
            setting_times((*atime, *mtime), || attr::futimens(fd, *atime, *mtime), || attr::fstat(fd))
        }
        Op::Flock { operation, .. } => done(lock::flock(fd, *operation)),
        Op::Setlk { owner, range, .. } => done(lock::setlk(fd, *owner, *range)),
        Op::Getlk { owner, range, .. } => match lock::getlk(fd, *owner, *range) {
            Ok(found) => Outcome::Lock(found),
            Err(errno) => Outcome::Failed(errno),
        },
        Op::SetlkAsChild { range, .. } => done(lock::setlk_as_child(fd, *range)),
        other => Outcome::Violation(format!("{other:?} is not an operation on an open file")),
    }
}

fn apply_to_path(op: &Op) -> Outcome {
    match op {
        Op::Truncate { path, len } => done(data::truncate(&path.0, *len)),
        Op::Mkdir { path, mode } => done(name::mkdirat(CWD, &path.0, *mode)),
        Op::Rmdir { path } => done(name::unlinkat(CWD, &path.0, libc::AT_REMOVEDIR)),
        Op::Unlink { path } => done(name::unlinkat(CWD, &path.0, 0)),
        Op::Rename { from, to, flags } => done(name::renameat2(CWD, &from.0, &to.0, *flags)),
        Op::Link { from, to, flags } => done(name::linkat(CWD, &from.0, &to.0, *flags)),
        Op::Symlink { target, path } => done(name::symlinkat(&target.0, CWD, &path.0)),
        Op::Readlink { path } => bytes(name::readlinkat(CWD, &path.0)),
        Op::Mknod { path, mode, device } => done(name::mknodat(CWD, &path.0, *mode, *device)),
        Op::Stat { path, follow } => attributes_of(attr::fstatat(CWD, &path.0, follow_flag(*follow))),
        Op::Chmod { path, mode } => done(attr::fchmodat(CWD, &path.0, *mode)),
        Op::Chown { path, uid, gid, follow } => {
            done(attr::fchownat(CWD, &path.0, *uid, *gid, follow_flag(*follow)))
        }
        Op::Utimens { path, atime, mtime, follow } => {
            let flags = follow_flag(*follow);
            let set = || attr::utimensat(CWD, &path.0, *atime, *mtime, flags);
            setting_times((*atime, *mtime), set, || attr::fstatat(CWD, &path.0, flags))
        }
        Op::Setxattr { path, name, fill, len, flags, follow } => {
            done(attr::setxattr(&path.0, *follow, &name.0, &pattern(*fill, *len as usize), *flags))
        }
        Op::Getxattr { path, name, room, follow } => {
            bytes(attr::getxattr(&path.0, *follow, &name.0, *room as usize))
        }
        Op::Listxattr { path, follow } => match attr::listxattr(&path.0, *follow) {
            Ok(names) => Outcome::Names(names.into_iter().map(BytePath).collect()),
            Err(errno) => Outcome::Failed(errno),
        },
        Op::Removexattr { path, name, follow } => done(attr::removexattr(&path.0, *follow, &name.0)),
        Op::SetAcl { path, default, entries } => {
            let name: &[u8] = if *default { b"system.posix_acl_default" } else { b"system.posix_acl_access" };
            done(attr::setxattr(&path.0, Follow::Target, name, &encode_acl(entries), 0))
        }
        Op::Access { path, mode, flags } => done(attr::faccessat2(CWD, &path.0, *mode, *flags)),
        Op::Statfs { path } => statfs(path),
        Op::Readdir { path } => readdir::list(path),
        Op::ReaddirWhileModifying { path, entries, room, fill } => {
            readdir::while_modifying(path, *entries, usize::from(*room), *fill)
        }
        Op::Seekdir { path, fill } => readdir::seek(path, *fill),
        other => Outcome::Violation(format!("{other:?} is not an operation on a path")),
    }
}

/// The flag of the `*at` calls for `follow`.
pub(super) fn follow_flag(follow: Follow) -> i32 {
    if follow == Follow::Link { libc::AT_SYMLINK_NOFOLLOW } else { 0 }
}

fn done(result: SysResult<()>) -> Outcome {
    result.map_or_else(Outcome::Failed, |()| Outcome::Done)
}

fn value(result: SysResult<i64>) -> Outcome {
    result.map_or_else(Outcome::Failed, Outcome::Value)
}

fn count(result: SysResult<usize>) -> Outcome {
    value(result.map(|n| n as i64))
}

fn bytes(result: SysResult<Vec<u8>>) -> Outcome {
    result.map_or_else(Outcome::Failed, Outcome::Bytes)
}

fn attributes_of(result: SysResult<attr::Stat>) -> Outcome {
    match result {
        Ok(stat) => Outcome::Attributes(Attributes::from(&stat)),
        Err(errno) => Outcome::Failed(errno),
    }
}

/// Sets times and gives the attributes right afterwards, with the access time if it was set: only then is it certain what it is, because
/// reads that are answered from a page cache, or that find nothing, need not reach the file system. A time left out must stay as it is,
/// but for a lazy access time, which may arrive from the clock at any moment.
fn setting_times(
    (atime, mtime): (TimeArgument, TimeArgument),
    set: impl FnOnce() -> SysResult<()>,
    stat: impl Fn() -> SysResult<attr::Stat>,
) -> Outcome {
    let before = stat();
    let stat = match set().and_then(|()| stat()) {
        Ok(stat) => stat,
        Err(errno) => return Outcome::Failed(errno),
    };
    if let Ok(before) = before {
        let is_lazy = super::observe::explicit_time(stat.atime).is_none();
        let atime_moved = atime == TimeArgument::Omit && before.atime != stat.atime && !is_lazy;
        let mtime_moved = mtime == TimeArgument::Omit && before.mtime != stat.mtime;
        if atime_moved || mtime_moved {
            return Outcome::Violation(format!(
                "a time that was left out has changed: {before:?}, then {stat:?}"
            ));
        }
    }
    let mut attributes = Attributes::from(&stat);
    if atime != TimeArgument::Omit {
        attributes.atime = super::observe::explicit_time(stat.atime);
    }
    Outcome::Attributes(attributes)
}

/// Positions in a directory are private to the file system, so reads and seeks on one say nothing that could be compared.
fn guard_directory(fd: BorrowedFd<'_>) -> SysResult<()> {
    match attr::fstat(fd) {
        Ok(stat) if stat.kind() == libc::S_IFDIR => Err(Errno(libc::EISDIR)),
        _ => Ok(()),
    }
}

/// Copies from a file and place to another; looks before each piece.
fn copy_all(
    (from, from_at): (BorrowedFd<'_>, i64),
    (to, to_at): (BorrowedFd<'_>, i64),
    len: usize,
    look: impl Fn(),
) -> Outcome {
    // A short copy is allowed by the call; the sum of the pieces is what must agree.
    let mut copied = 0usize;
    while copied < len {
        let step = copied as i64;
        look();
        match data::copy_file_range(from, from_at + step, to, to_at + step, len - copied) {
            Ok(0) => break,
            Ok(n) => copied += n,
            Err(_) if copied > 0 => break,
            Err(errno) => return Outcome::Failed(errno),
        }
    }
    Outcome::Value(copied as i64)
}

fn map_write(fd: BorrowedFd<'_>, page: i64, at: usize, fill: u64, len: usize) -> Outcome {
    let result = mapped_len(fd, page, at + len).and_then(|room| {
        let mut mapping = Mapping::new(fd, page * PAGE, room, true)?;
        mapping.store(at.min(room), &pattern(fill, len.min(room.saturating_sub(at))))?;
        mapping.sync()?;
        Ok(room)
    });
    count(result)
}

fn map_read(fd: BorrowedFd<'_>, page: i64, len: usize) -> Outcome {
    bytes(
        mapped_len(fd, page, len).and_then(|room| Mapping::new(fd, page * PAGE, room, false)?.load(0, room)),
    )
}

/// How much of `wanted` bytes from `page` on lies inside the file.
fn mapped_len(fd: BorrowedFd<'_>, page: i64, wanted: usize) -> SysResult<usize> {
    let stat = attr::fstat(fd)?;
    if stat.kind() != libc::S_IFREG {
        return Err(Errno(libc::ENODEV));
    }
    let inside = (stat.size - page * PAGE).max(0) as usize;
    if inside == 0 { Err(Errno(libc::EINVAL)) } else { Ok(wanted.min(inside)) }
}

/// Checks the answers of `SEEK_DATA` and `SEEK_HOLE` against the content: what is reported as a hole must read as zeros, the pieces
/// must advance and cover the file. Where exactly holes are is the file system's choice.
fn data_map(fd: BorrowedFd<'_>) -> Outcome {
    let stat = match attr::fstat(fd) {
        Ok(stat) if stat.kind() == libc::S_IFREG => stat,
        Ok(_) => return Outcome::Empty,
        Err(errno) => return Outcome::Failed(errno),
    };
    match walk_data_map(fd, stat.size) {
        Ok(None) => Outcome::Value(stat.size),
        Ok(Some(wrong)) => Outcome::Violation(wrong),
        Err(errno) => Outcome::Failed(errno),
    }
}

fn walk_data_map(fd: BorrowedFd<'_>, size: i64) -> SysResult<Option<String>> {
    let place = data::lseek(fd, 0, libc::SEEK_CUR)?;
    let mut at = 0;
    while at < size {
        let start = match data::lseek(fd, at, libc::SEEK_DATA) {
            Ok(start) => start,
            Err(Errno(libc::ENXIO)) => size,
            Err(errno) => return Err(errno),
        };
        if start < at || start > size {
            return Ok(Some(format!("SEEK_DATA from {at} gave {start} in a file of {size} bytes")));
        }
        if let Ok(content) = data::pread(fd, (start - at) as usize, at)
            && let Some(found) = content.iter().position(|byte| *byte != 0)
        {
            return Ok(Some(format!(
                "SEEK_DATA skipped from {at} to {start} but byte {} is data",
                at + found as i64
            )));
        }
        if start == size {
            break;
        }
        let end = data::lseek(fd, start, libc::SEEK_HOLE)?;
        if end <= start || end > size {
            return Ok(Some(format!("SEEK_HOLE from data at {start} gave {end} in a file of {size} bytes")));
        }
        at = end;
    }
    let beyond = data::lseek(fd, size, libc::SEEK_DATA);
    data::lseek(fd, place, libc::SEEK_SET)?;
    if beyond != Err(Errno(libc::ENXIO)) {
        return Ok(Some(format!("SEEK_DATA at the end of the file gave {beyond:?}, not ENXIO")));
    }
    Ok(None)
}

fn statfs(path: &BytePath) -> Outcome {
    let opened = data::openat(CWD, &path.0, libc::O_PATH, 0);
    let result = match &opened {
        Ok(fd) => attr::fstatfs(fd.as_fd()),
        Err(errno) => Err(*errno),
    };
    match result {
        Err(errno) => Outcome::Failed(errno),
        Ok(s) if s.bsize <= 0 || s.bfree > s.blocks || s.bavail > s.bfree || s.ffree > s.files => {
            Outcome::Violation(format!("impossible statistics {s:?}"))
        }
        Ok(s) => Outcome::Value(s.namelen),
    }
}

/// The on-wire form of an access control list (`linux/posix_acl_xattr.h`): version 2, then little-endian entries.
fn encode_acl(entries: &[AclEntry]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for entry in entries {
        bytes.extend_from_slice(&entry.tag.to_le_bytes());
        bytes.extend_from_slice(&entry.perm.to_le_bytes());
        bytes.extend_from_slice(&entry.id.to_le_bytes());
    }
    bytes
}
