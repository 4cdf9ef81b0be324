//! Calls on open files: open, read, write, seek, size, space, durability.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{SysResult, c_path, check, check_unit};

/// The directory argument that stands for the working directory.
pub const CWD: BorrowedFd<'static> = {
    // SAFETY: AT_FDCWD is no descriptor but a constant every *at call accepts; it is never closed through a BorrowedFd.
    unsafe { BorrowedFd::borrow_raw(libc::AT_FDCWD) }
};

/// `openat(2)`.
///
/// # Errors
/// The call's errno.
pub fn openat(dir: BorrowedFd<'_>, path: &[u8], flags: i32, mode: u32) -> SysResult<OwnedFd> {
    let path = c_path(path)?;
    // SAFETY: `path` is a live NUL-terminated string for the time of the call.
    let fd = check(unsafe { libc::openat(dir.as_raw_fd(), path.as_ptr(), flags | libc::O_CLOEXEC, mode) })?;
    // SAFETY: the kernel has just returned this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `close(2)`, reporting what the kernel says (a FUSE file system may fail the flush).
///
/// # Errors
/// The call's errno; the descriptor is gone in every case.
pub fn close(fd: OwnedFd) -> SysResult<()> {
    use std::os::fd::IntoRawFd;
    // SAFETY: ownership of the descriptor is given up by `into_raw_fd`.
    check_unit(unsafe { libc::close(fd.into_raw_fd()) })
}

/// The flags a file was opened with (`F_GETFL`).
///
/// # Errors
/// The call's errno.
pub fn open_flags(fd: BorrowedFd<'_>) -> SysResult<i32> {
    // SAFETY: the descriptor is live, and F_GETFL takes no argument.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })
}

/// `read(2)` of at most `len` bytes.
///
/// # Errors
/// The call's errno.
pub fn read(fd: BorrowedFd<'_>, len: usize) -> SysResult<Vec<u8>> {
    let mut buffer = vec![0u8; len];
    // SAFETY: the buffer is `len` writable bytes.
    let got = check(unsafe { libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), len) })?;
    buffer.truncate(got as usize);
    Ok(buffer)
}

/// `pread(2)` of at most `len` bytes.
///
/// # Errors
/// The call's errno.
pub fn pread(fd: BorrowedFd<'_>, len: usize, offset: i64) -> SysResult<Vec<u8>> {
    let mut buffer = vec![0u8; len];
    let got = pread_into(fd, &mut buffer, offset)?;
    buffer.truncate(got);
    Ok(buffer)
}

/// `pread(2)` into a buffer of the caller's.
///
/// # Errors
/// The call's errno.
pub fn pread_into(fd: BorrowedFd<'_>, buffer: &mut [u8], offset: i64) -> SysResult<usize> {
    // SAFETY: the buffer is `buffer.len()` writable bytes.
    let got =
        check(unsafe { libc::pread(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), offset) })?;
    Ok(got as usize)
}

/// `write(2)`.
///
/// # Errors
/// The call's errno.
pub fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> SysResult<usize> {
    // SAFETY: `bytes` is readable for its length.
    Ok(check(unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) })? as usize)
}

/// `pwrite(2)`.
///
/// # Errors
/// The call's errno.
pub fn pwrite(fd: BorrowedFd<'_>, bytes: &[u8], offset: i64) -> SysResult<usize> {
    // SAFETY: `bytes` is readable for its length.
    let put = check(unsafe { libc::pwrite(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), offset) })?;
    Ok(put as usize)
}

/// `writev(2)`.
///
/// # Errors
/// The call's errno.
pub fn writev(fd: BorrowedFd<'_>, parts: &[&[u8]]) -> SysResult<usize> {
    let vectors: Vec<libc::iovec> = parts
        .iter()
        .map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() })
        .collect();
    // SAFETY: every vector describes a live slice; writev only reads through them.
    Ok(check(unsafe { libc::writev(fd.as_raw_fd(), vectors.as_ptr(), vectors.len() as i32) })? as usize)
}

/// `lseek(2)`.
///
/// # Errors
/// The call's errno.
pub fn lseek(fd: BorrowedFd<'_>, offset: i64, whence: i32) -> SysResult<i64> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::lseek(fd.as_raw_fd(), offset, whence) })
}

/// `ftruncate(2)`.
///
/// # Errors
/// The call's errno.
pub fn ftruncate(fd: BorrowedFd<'_>, len: i64) -> SysResult<()> {
    // SAFETY: no memory is passed.
    check_unit(unsafe { libc::ftruncate(fd.as_raw_fd(), len) })
}

/// `truncate(2)`.
///
/// # Errors
/// The call's errno.
pub fn truncate(path: &[u8], len: i64) -> SysResult<()> {
    let path = c_path(path)?;
    // SAFETY: `path` is a live NUL-terminated string.
    check_unit(unsafe { libc::truncate(path.as_ptr(), len) })
}

/// `fallocate(2)`.
///
/// # Errors
/// The call's errno.
pub fn fallocate(fd: BorrowedFd<'_>, mode: i32, offset: i64, len: i64) -> SysResult<()> {
    // SAFETY: no memory is passed.
    check_unit(unsafe { libc::fallocate(fd.as_raw_fd(), mode, offset, len) })
}

/// `copy_file_range(2)` with explicit offsets.
///
/// # Errors
/// The call's errno.
pub fn copy_file_range(
    from: BorrowedFd<'_>,
    from_offset: i64,
    to: BorrowedFd<'_>,
    to_offset: i64,
    len: usize,
) -> SysResult<usize> {
    let (mut source, mut target) = (from_offset, to_offset);
    // SAFETY: both offsets are live locals.
    let copied = check(unsafe {
        libc::copy_file_range(from.as_raw_fd(), &mut source, to.as_raw_fd(), &mut target, len, 0)
    })?;
    Ok(copied as usize)
}

/// `fsync(2)`, or `fdatasync(2)` when only the data is asked for.
///
/// # Errors
/// The call's errno.
pub fn fsync(fd: BorrowedFd<'_>, data_only: bool) -> SysResult<()> {
    // SAFETY: no memory is passed.
    check_unit(unsafe {
        if data_only { libc::fdatasync(fd.as_raw_fd()) } else { libc::fsync(fd.as_raw_fd()) }
    })
}

/// Writes all of `bytes` at `offset`, repeating after short writes.
///
/// # Errors
/// The first errno; `EIO` when a write makes no progress.
pub fn pwrite_all(fd: BorrowedFd<'_>, mut bytes: &[u8], mut offset: i64) -> SysResult<()> {
    while !bytes.is_empty() {
        let put = pwrite(fd, bytes, offset)?;
        if put == 0 {
            return Err(super::Errno(libc::EIO));
        }
        bytes = &bytes[put..];
        offset += put as i64;
    }
    Ok(())
}

/// Reads until `buffer` is full or the file ends; returns the bytes read.
///
/// # Errors
/// The first errno.
pub fn pread_full(fd: BorrowedFd<'_>, buffer: &mut [u8], offset: i64) -> SysResult<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match pread_into(fd, &mut buffer[done..], offset + done as i64)? {
            0 => break,
            got => done += got,
        }
    }
    Ok(done)
}
