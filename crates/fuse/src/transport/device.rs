//! /dev/fuse: one request per read(2), one reply per write.
//!
//! A thread per processor reads it, or some tens where requests wait for a network; while some wait for long there are further ones (`standby`). Measured with 2 processors: 2 threads beat 1 by up to 2x and 4 or 8 by 17-39 % (with
//! few clients); from more than two threads on a cloned device each is better than sharing one, as they no longer contend
//! for its list of requests in progress.

use super::Route;
use super::hold::Hold;
use super::region::{Region, page_size};
use super::standby::Seat;
use crate::errno::Errno;
use crate::filesystem::Filesystem;
use crate::protocol::{Malformed, Message, Opcode, Parts, wire};
use crate::reply::fixed::{self, FixedReply};
use crate::service::{Outcome, Service, refuse};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use zerocopy::IntoBytes;

pub(crate) const PATH: &str = "/dev/fuse";

/// `FUSE_DEV_IOC_CLONE`, `_IOR(229, 0, u32)`.
const IOC_CLONE: libc::c_ulong = 0x8004_e500;

/// An open /dev/fuse that belongs to a mount.
pub(crate) struct Device {
    fd: OwnedFd,
    nudges: AtomicU32,
    hold: Hold,
}

impl Device {
    /// Opens a device that belongs to no mount yet.
    ///
    /// # Errors
    /// Those of open(2).
    pub(crate) fn open() -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(PATH)?;
        Ok(Self::from_fd(file.into()))
    }

    pub(crate) fn from_fd(fd: OwnedFd) -> Self {
        Self { fd, nudges: AtomicU32::new(0), hold: Hold::default() }
    }

    /// Another device of the same mount, with its own list of requests in progress.
    ///
    /// # Errors
    /// Those of open(2) and ioctl(2).
    pub(crate) fn clone_device(&self) -> io::Result<Self> {
        let other = Self::open()?;
        let source = self.raw() as u32;
        // SAFETY: the ioctl reads one u32, the descriptor of a device of a mount.
        let result = unsafe { libc::ioctl(other.raw(), IOC_CLONE as _, &raw const source) };
        if result == 0 { Ok(other) } else { Err(io::Error::last_os_error()) }
    }

    pub(crate) fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.fd)
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Those who read it.
    pub(crate) fn hold(&self) -> &Hold {
        &self.hold
    }

    /// A tag for a nudge that no other nudge in flight has. One count for all threads of a mount: the kernel finds the
    /// request a thread commits by its id, and with two of one id in a queue it takes the other thread's.
    pub(crate) fn next_nudge(&self) -> u32 {
        self.nudges.fetch_add(1, Ordering::Relaxed)
    }

    /// One request into `buffer`; its length.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        // SAFETY: `buffer` is writable for its length.
        let len = unsafe { libc::read(self.raw(), buffer.as_mut_ptr().cast(), buffer.len()) };
        usize::try_from(len).map_err(|_| Errno::last())
    }

    /// One reply or notification in one piece.
    pub(crate) fn write(&self, message: &[u8]) -> Result<(), Errno> {
        // SAFETY: `message` is readable for its length.
        let written = unsafe { libc::write(self.raw(), message.as_ptr().cast(), message.len()) };
        if written < 0 { Err(Errno::last()) } else { Ok(()) }
    }

    /// One reply or notification in pieces.
    pub(crate) fn write_parts<const N: usize>(&self, parts: [&[u8]; N]) -> Result<(), Errno> {
        let iovecs =
            parts.map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
        // SAFETY: every iovec is readable for its length; writev does not write to it.
        let written = unsafe { libc::writev(self.raw(), iovecs.as_ptr(), N as libc::c_int) };
        if written < 0 { Err(Errno::last()) } else { Ok(()) }
    }
}

/// Logs a reply the kernel did not take. ENOENT is normal: the request was interrupted or aborted meanwhile.
pub(crate) fn report_reply_failure(errno: Errno, unique: u64) {
    match errno {
        Errno::ENOENT | Errno::ENODEV | Errno::ECONNABORTED => {
            tracing::debug!(%errno, unique, "reply not wanted")
        }
        _ => tracing::error!(%errno, unique, "the kernel refused a reply"),
    }
}

/// One thread's state.
pub(crate) struct DeviceWorker<F> {
    service: Arc<Service<F>>,
    device: Arc<Device>,
    request: Region,
    reply: Region,
    fixed: FixedReply,
    /// Pause after a FORGET, so that the kernel batches them: only where this thread gets nothing urgent (io_uring mode).
    forget_delay: Option<Duration>,
    /// Where requests start in `request`: write data then starts on a page boundary.
    request_start: usize,
    seat: Seat,
}

impl<F: Filesystem> DeviceWorker<F> {
    /// A worker for requests and replies of up to `payload_max` bytes of data.
    ///
    /// # Errors
    /// ENOMEM.
    pub(crate) fn new(
        service: Arc<Service<F>>,
        device: Arc<Device>,
        payload_max: usize,
        forget_delay: Option<Duration>,
        seat: Seat,
    ) -> io::Result<Self> {
        let page = page_size();
        Ok(Self {
            service,
            device,
            // The page before the data holds the headers of a WRITE, the one behind it is slack for larger headers.
            request: Region::new(page + payload_max + page)?,
            reply: Region::new(payload_max + page)?,
            fixed: FixedReply::new(),
            forget_delay,
            request_start: page - size_of::<wire::InHeader>() - size_of::<wire::WriteIn>(),
            seat,
        })
    }

    /// Serves until the mount is gone, or the worker is not needed any more.
    ///
    /// # Errors
    /// An errno of read(2) that is not the end of the mount.
    pub(crate) fn run(mut self) -> Result<(), Errno> {
        let device = Arc::clone(&self.device);
        let reader = device.hold.enter();
        loop {
            let request = &mut self.request.bytes_mut()[self.request_start..];
            match reader.read(|| device.read(request)) {
                Ok(len) => {
                    self.seat.begin();
                    self.serve(len);
                    if !self.seat.end() {
                        return Ok(());
                    }
                }
                Err(Errno::EINTR) if device.hold.is_held() => {}
                // ENOENT: the request was interrupted before it was read.
                Err(Errno::EINTR | Errno::EAGAIN | Errno::ENOENT) => self.wait_if_nonblocking(),
                Err(Errno::ENODEV | Errno::ECONNABORTED) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// The descriptor blocks in read, except where fusermount opened it otherwise: then this is what blocks.
    fn wait_if_nonblocking(&self) {
        let mut poll = libc::pollfd { fd: self.device.raw(), events: libc::POLLIN, revents: 0 };
        // LIMIT: a second, so that nothing depends on a wake-up that was missed.
        // SAFETY: `poll` is one pollfd. Any result leads to another read, which reports what is wrong.
        unsafe { libc::poll(&mut poll, 1, 1000) };
    }

    fn serve(&mut self, len: usize) {
        let Some(bytes) = self.request.bytes().get(self.request_start..self.request_start + len) else {
            return;
        };
        let Ok(message) = Message::new(bytes) else {
            tracing::error!(len, "request without a whole header; it cannot be answered");
            return;
        };
        let header = message.header;
        let outcome = match message.parts(self.service.dialect) {
            Ok(parts) if parts.opcode.replies_with_buffer() => {
                match self.service.serve_buffered(&header, &parts, self.reply.bytes_mut()) {
                    Ok(len) => return self.reply_with_data(header.unique, len),
                    Err(errno) => Outcome::Reply(Err(errno)),
                }
            }
            Ok(parts) => {
                let device = &self.device;
                let route = || Some(Route::Device(Arc::downgrade(device)));
                let outcome = self.service.serve(&header, &parts, &mut self.fixed, &route);
                self.pause_after_forget(&parts);
                outcome
            }
            Err(malformed) => self.refuse(&header, malformed),
        };
        if let Outcome::Reply(result) = outcome
            && let Err(errno) = self.device.write(self.fixed.message(header.unique, result))
        {
            report_reply_failure(errno, header.unique);
        }
    }

    fn refuse(&self, header: &wire::InHeader, malformed: Malformed) -> Outcome {
        refuse(header, malformed, Opcode::from_raw(header.opcode).is_some_and(Opcode::is_one_way))
    }

    fn reply_with_data(&self, unique: u64, len: usize) {
        let header = fixed::header(unique, Ok(()), len);
        let data = self.reply.bytes().get(..len).unwrap_or_default();
        if let Err(errno) = self.device.write_parts([header.as_bytes(), data]) {
            report_reply_failure(errno, unique);
        }
    }

    fn pause_after_forget(&self, parts: &Parts<'_>) {
        if let Some(delay) = self.forget_delay
            && matches!(parts.opcode, Opcode::Forget | Opcode::BatchForget)
        {
            std::thread::sleep(delay);
        }
    }
}
