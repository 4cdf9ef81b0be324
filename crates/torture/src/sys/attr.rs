//! Attributes: stat, mode, owner, times, extended attributes, access checks, file-system statistics.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use serde::{Deserialize, Serialize};

use super::{Errno, SysResult, c_path, check, check_unit};

/// The fields of `struct stat` these programs look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Inode number.
    pub ino: u64,
    /// Device number of the file system.
    pub dev: u64,
    /// Type and permission bits.
    pub mode: u32,
    /// Number of names.
    pub nlink: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u64,
    /// Size in bytes.
    pub size: i64,
    /// Space in 512-byte units.
    pub blocks: i64,
    /// Preferred I/O size in bytes.
    pub blksize: i64,
    /// Access time: seconds, nanoseconds.
    pub atime: (i64, i64),
    /// Modification time: seconds, nanoseconds.
    pub mtime: (i64, i64),
    /// Change time: seconds, nanoseconds.
    pub ctime: (i64, i64),
}

impl Stat {
    /// The type bits of the mode (`S_IFREG` and its like).
    #[must_use]
    pub fn kind(&self) -> u32 {
        self.mode & libc::S_IFMT
    }
}

/// A time argument of `utimensat(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TimeArgument {
    /// The current time.
    Now,
    /// Left as it is.
    Omit,
    /// Seconds and nanoseconds.
    At(i64, i64),
}

impl TimeArgument {
    fn timespec(self) -> libc::timespec {
        match self {
            TimeArgument::Now => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW },
            TimeArgument::Omit => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
            TimeArgument::At(seconds, nanoseconds) => {
                libc::timespec { tv_sec: seconds, tv_nsec: nanoseconds }
            }
        }
    }
}

/// `fstatat(2)`; `flags` may be `AT_SYMLINK_NOFOLLOW` or `AT_EMPTY_PATH`.
///
/// # Errors
/// The call's errno.
pub fn fstatat(dir: BorrowedFd<'_>, path: &[u8], flags: i32) -> SysResult<Stat> {
    let path = c_path(path)?;
    let mut raw = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `path` is a live string and `raw` has room for one struct stat.
    check(unsafe { libc::fstatat(dir.as_raw_fd(), path.as_ptr(), raw.as_mut_ptr(), flags) })?;
    // SAFETY: the call succeeded, so the kernel has filled the whole structure.
    let raw = unsafe { raw.assume_init() };
    Ok(Stat {
        ino: raw.st_ino,
        dev: raw.st_dev,
        mode: raw.st_mode,
        nlink: raw.st_nlink,
        uid: raw.st_uid,
        gid: raw.st_gid,
        rdev: raw.st_rdev,
        size: raw.st_size,
        blocks: raw.st_blocks,
        blksize: raw.st_blksize,
        atime: (raw.st_atime, raw.st_atime_nsec),
        mtime: (raw.st_mtime, raw.st_mtime_nsec),
        ctime: (raw.st_ctime, raw.st_ctime_nsec),
    })
}

/// `fstat(2)`.
///
/// # Errors
/// The call's errno.
pub fn fstat(fd: BorrowedFd<'_>) -> SysResult<Stat> {
    fstatat(fd, b"", libc::AT_EMPTY_PATH)
}

/// `fchmodat(2)`: follows symbolic links.
///
/// # Errors
/// The call's errno.
pub fn fchmodat(dir: BorrowedFd<'_>, path: &[u8], mode: u32) -> SysResult<()> {
    let path = c_path(path)?;
    // SAFETY: `path` is a live NUL-terminated string.
    check_unit(unsafe { libc::fchmodat(dir.as_raw_fd(), path.as_ptr(), mode, 0) })
}

/// `fchmod(2)`.
///
/// # Errors
/// The call's errno.
pub fn fchmod(fd: BorrowedFd<'_>, mode: u32) -> SysResult<()> {
    // SAFETY: no memory is passed.
    check_unit(unsafe { libc::fchmod(fd.as_raw_fd(), mode) })
}

/// `fchownat(2)`; an id of `u32::MAX` leaves that id as it is.
///
/// # Errors
/// The call's errno.
pub fn fchownat(dir: BorrowedFd<'_>, path: &[u8], uid: u32, gid: u32, flags: i32) -> SysResult<()> {
    let path = c_path(path)?;
    // SAFETY: `path` is a live NUL-terminated string.
    check_unit(unsafe { libc::fchownat(dir.as_raw_fd(), path.as_ptr(), uid, gid, flags) })
}

/// `fchown(2)`.
///
/// # Errors
/// The call's errno.
pub fn fchown(fd: BorrowedFd<'_>, uid: u32, gid: u32) -> SysResult<()> {
    // SAFETY: no memory is passed.
    check_unit(unsafe { libc::fchown(fd.as_raw_fd(), uid, gid) })
}

/// `utimensat(2)`.
///
/// # Errors
/// The call's errno.
pub fn utimensat(
    dir: BorrowedFd<'_>,
    path: &[u8],
    atime: TimeArgument,
    mtime: TimeArgument,
    flags: i32,
) -> SysResult<()> {
    let path = c_path(path)?;
    let times = [atime.timespec(), mtime.timespec()];
    // SAFETY: `path` is a live string and `times` an array of two as the call demands.
    check_unit(unsafe { libc::utimensat(dir.as_raw_fd(), path.as_ptr(), times.as_ptr(), flags) })
}

/// `futimens(3)`.
///
/// # Errors
/// The call's errno.
pub fn futimens(fd: BorrowedFd<'_>, atime: TimeArgument, mtime: TimeArgument) -> SysResult<()> {
    let times = [atime.timespec(), mtime.timespec()];
    // SAFETY: `times` is an array of two as the call demands.
    check_unit(unsafe { libc::futimens(fd.as_raw_fd(), times.as_ptr()) })
}

/// Whether a call follows a symbolic link in the last component.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Follow {
    /// The link's target is meant.
    Target,
    /// The link itself is meant.
    Link,
}

/// `setxattr(2)` or `lsetxattr(2)`.
///
/// # Errors
/// The call's errno.
pub fn setxattr(path: &[u8], follow: Follow, name: &[u8], value: &[u8], flags: i32) -> SysResult<()> {
    let (path, name) = (c_path(path)?, c_path(name)?);
    let call = if follow == Follow::Target { libc::setxattr } else { libc::lsetxattr };
    // SAFETY: strings are live and NUL-terminated, `value` is readable for its length.
    check_unit(unsafe { call(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags) })
}

/// `fsetxattr(2)`.
///
/// # Errors
/// The call's errno.
pub fn fsetxattr(fd: BorrowedFd<'_>, name: &[u8], value: &[u8], flags: i32) -> SysResult<()> {
    let name = c_path(name)?;
    // SAFETY: `name` is a live string and `value` readable for its length.
    check_unit(unsafe {
        libc::fsetxattr(fd.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags)
    })
}

/// `getxattr(2)` or `lgetxattr(2)` into a buffer of `room` bytes; `room` 0 asks for the size only and returns that many
/// zero bytes.
///
/// # Errors
/// The call's errno.
pub fn getxattr(path: &[u8], follow: Follow, name: &[u8], room: usize) -> SysResult<Vec<u8>> {
    let (path, name) = (c_path(path)?, c_path(name)?);
    let mut buffer = vec![0u8; room];
    let call = if follow == Follow::Target { libc::getxattr } else { libc::lgetxattr };
    // SAFETY: strings are live, the buffer is writable for `room` bytes.
    let got = check(unsafe { call(path.as_ptr(), name.as_ptr(), buffer.as_mut_ptr().cast(), room) })?;
    buffer.resize(got as usize, 0);
    Ok(buffer)
}

/// `fgetxattr(2)` into 64 KiB, the most a value can be.
///
/// # Errors
/// The call's errno.
pub fn fgetxattr(fd: BorrowedFd<'_>, name: &[u8]) -> SysResult<Vec<u8>> {
    let name = c_path(name)?;
    let mut buffer = vec![0u8; 65_536];
    // SAFETY: `name` is a live string, the buffer is writable for its length.
    let got = check(unsafe {
        libc::fgetxattr(fd.as_raw_fd(), name.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len())
    })?;
    buffer.truncate(got as usize);
    Ok(buffer)
}

/// `listxattr(2)` or `llistxattr(2)`: the names, sorted.
///
/// # Errors
/// The call's errno.
pub fn listxattr(path: &[u8], follow: Follow) -> SysResult<Vec<Vec<u8>>> {
    let path = c_path(path)?;
    let mut buffer = vec![0u8; 65_536];
    let call = if follow == Follow::Target { libc::listxattr } else { libc::llistxattr };
    // SAFETY: `path` is a live string, the buffer is writable for its length.
    let got = check(unsafe { call(path.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) })?;
    buffer.truncate(got as usize);
    let mut names: Vec<Vec<u8>> =
        buffer.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect();
    names.sort();
    Ok(names)
}

/// `removexattr(2)` or `lremovexattr(2)`.
///
/// # Errors
/// The call's errno.
pub fn removexattr(path: &[u8], follow: Follow, name: &[u8]) -> SysResult<()> {
    let (path, name) = (c_path(path)?, c_path(name)?);
    let call = if follow == Follow::Target { libc::removexattr } else { libc::lremovexattr };
    // SAFETY: both strings are live and NUL-terminated.
    check_unit(unsafe { call(path.as_ptr(), name.as_ptr()) })
}

/// `faccessat2(2)`; `flags` may be `AT_EACCESS` and `AT_SYMLINK_NOFOLLOW`.
///
/// # Errors
/// The call's errno.
pub fn faccessat2(dir: BorrowedFd<'_>, path: &[u8], mode: i32, flags: i32) -> SysResult<()> {
    let path = c_path(path)?;
    // SAFETY: `path` is a live NUL-terminated string.
    check_unit(unsafe { libc::syscall(libc::SYS_faccessat2, dir.as_raw_fd(), path.as_ptr(), mode, flags) })
}

/// The fields of `struct statfs` these programs look at; counts are in units of `bsize` bytes.
#[derive(Clone, Debug)]
pub struct StatFs {
    /// Block size in bytes.
    pub bsize: i64,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks free.
    pub bfree: u64,
    /// Blocks free to everyone.
    pub bavail: u64,
    /// Inodes in all.
    pub files: u64,
    /// Inodes free.
    pub ffree: u64,
    /// Longest name in bytes.
    pub namelen: i64,
}

/// `fstatfs(2)`.
///
/// # Errors
/// The call's errno.
pub fn fstatfs(fd: BorrowedFd<'_>) -> SysResult<StatFs> {
    let mut raw = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: `raw` has room for one struct statfs.
    check(unsafe { libc::fstatfs(fd.as_raw_fd(), raw.as_mut_ptr()) })?;
    // SAFETY: the call succeeded, so the structure is filled.
    let raw = unsafe { raw.assume_init() };
    Ok(StatFs {
        bsize: raw.f_bsize,
        blocks: raw.f_blocks,
        bfree: raw.f_bfree,
        bavail: raw.f_bavail,
        files: raw.f_files,
        ffree: raw.f_ffree,
        namelen: raw.f_namelen,
    })
}

/// All extended attributes of `path`, sorted by name.
///
/// # Errors
/// The first errno, except that a name that vanishes between the list and the read is left out.
pub fn all_xattrs(path: &[u8], follow: Follow) -> SysResult<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut pairs = Vec::new();
    for name in listxattr(path, follow)? {
        match getxattr(path, follow, &name, 65_536) {
            Ok(value) => pairs.push((name, value)),
            Err(Errno(libc::ENODATA)) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(pairs)
}
