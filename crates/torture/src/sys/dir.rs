//! Reading directories with `getdents64(2)`, entry by entry and with a small buffer of the caller's choice.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::{Errno, SysResult, check};

/// One directory entry as the kernel returned it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Inode number.
    pub ino: u64,
    /// The position after this entry, as `lseek(2)` accepts it.
    pub next: i64,
    /// `DT_*` type.
    pub kind: u8,
    /// The name.
    pub name: Vec<u8>,
}

const NAME_AT: usize = 19;

/// One `getdents64(2)` call with a buffer of `room` bytes; empty at the end of the directory.
///
/// # Errors
/// The call's errno; `EIO` when the kernel's answer is malformed.
pub fn getdents(dir: BorrowedFd<'_>, room: usize) -> SysResult<Vec<DirEntry>> {
    let mut buffer = vec![0u8; room];
    // SAFETY: the buffer is writable for `room` bytes.
    let got =
        check(unsafe { libc::syscall(libc::SYS_getdents64, dir.as_raw_fd(), buffer.as_mut_ptr(), room) })?
            as usize;
    let mut entries = Vec::new();
    let mut rest = &buffer[..got];
    while !rest.is_empty() {
        let (entry, length) = parse(rest).ok_or(Errno(libc::EIO))?;
        entries.push(entry);
        rest = rest.get(length..).ok_or(Errno(libc::EIO))?;
    }
    Ok(entries)
}

fn parse(bytes: &[u8]) -> Option<(DirEntry, usize)> {
    let ino = u64::from_ne_bytes(bytes.get(0..8)?.try_into().ok()?);
    let next = i64::from_ne_bytes(bytes.get(8..16)?.try_into().ok()?);
    let length = usize::from(u16::from_ne_bytes(bytes.get(16..18)?.try_into().ok()?));
    let kind = *bytes.get(18)?;
    let name = bytes.get(NAME_AT..length)?;
    let end = name.iter().position(|byte| *byte == 0)?;
    Some((DirEntry { ino, next, kind, name: name[..end].to_vec() }, length))
}

/// All entries from the directory's current position on, `.` and `..` included, in the order returned.
///
/// # Errors
/// The first errno; `EOVERFLOW` after ten million entries, which only a directory that never ends reaches.
pub fn read_all(dir: BorrowedFd<'_>) -> SysResult<Vec<DirEntry>> {
    // LIMIT: ten million entries.
    const ENTRIES_MAX: usize = 10_000_000;
    let mut all = Vec::new();
    loop {
        let batch = getdents(dir, 32_768)?;
        if batch.is_empty() {
            return Ok(all);
        }
        all.extend(batch);
        if all.len() > ENTRIES_MAX {
            return Err(Errno(libc::EOVERFLOW));
        }
    }
}

/// The names of `dir` without `.` and `..`, sorted.
///
/// # Errors
/// As [`read_all`].
pub fn names(dir: BorrowedFd<'_>) -> SysResult<Vec<Vec<u8>>> {
    let mut names: Vec<Vec<u8>> = read_all(dir)?
        .into_iter()
        .map(|entry| entry.name)
        .filter(|name| name != b"." && name != b"..")
        .collect();
    names.sort();
    Ok(names)
}
