//! Going on with a mount whose process has ended: the kernel keeps a mount for as long as somebody has its device open, and gives requests that were read and
//! not answered out once more when it is asked to (`FUSE_NOTIFY_RESEND`, Linux 6.9).

use super::setup::{Undo, serve};
use super::{Session, setup};
use crate::filesystem::Filesystem;
use crate::mount::{Mount, MountError};
use crate::negotiation::Terms;
use crate::options::MountOptions;
use crate::protocol::Features;
use crate::transport::device::Device;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two looks at requests under way.
const LOOK: Duration = Duration::from_millis(1);

/// What a process needs to go on with a mount: its device, and what was agreed with the kernel.
#[derive(Debug)]
pub struct Kept {
    /// The device.
    pub device: OwnedFd,
    /// What was agreed, as numbers.
    pub terms: [u64; Kept::TERMS],
}

impl Kept {
    /// How many numbers that are.
    pub const TERMS: usize = 6;
}

impl Session {
    /// What another process needs to go on with this mount. Nothing where it could not: the kernel cannot give requests out once more, or they come
    /// through rings or several devices, whose requests end with the process that has them.
    ///
    /// # Errors
    /// When the device cannot be duplicated.
    pub fn keep(&self) -> io::Result<Option<Kept>> {
        let negotiated = &self.negotiated;
        let is_one_device = negotiated.transport.is_one_device();
        let Some(device) = self.device.as_ref().filter(|_| is_one_device) else { return Ok(None) };
        if !negotiated.features.contains(Features::HAS_RESEND) {
            return Ok(None);
        }
        let terms = [
            u64::from(negotiated.kernel_minor),
            negotiated.offered.bits(),
            negotiated.features.bits(),
            u64::from(negotiated.max_write),
            u64::from(negotiated.max_pages),
            u64::from(negotiated.max_readahead),
        ];
        let device = device.as_fd().try_clone_to_owned()?;
        Ok(Some(Kept { device, terms }))
    }

    /// Has nobody serve any more, so that another process can go on with the mount; the kernel keeps what comes meanwhile. Tells whether no request is under way within `bound` but such as wait for
    /// a lock. If one is, or this mount cannot be kept ([`Session::keep`]), requests are served as before.
    ///
    /// # Errors
    /// When threads cannot be told.
    pub fn hold(&self, bound: Duration) -> io::Result<bool> {
        let give_up = Instant::now() + bound;
        let Some(device) = self.device.as_ref().filter(|_| self.negotiated.transport.is_one_device()) else {
            return Ok(false);
        };
        // ORDER: first. What is under way may wait for a page until a request is served.
        if !self.notifier.gate().close(bound) {
            return Ok(false);
        }
        let is_held = device.hold().hold(bound);
        if !matches!(is_held, Ok(true)) {
            self.notifier.gate().open();
            return is_held;
        }
        while self.deferred.at_work() > 0 || !(self.is_at_rest)() {
            if Instant::now() >= give_up {
                self.release();
                return Ok(false);
            }
            std::thread::sleep(LOOK);
        }
        Ok(true)
    }

    /// Requests are served again.
    pub fn release(&self) {
        if let Some(device) = &self.device {
            device.hold().release();
        }
        self.notifier.gate().open();
    }

    /// Goes on with a mount that another process has left. Requests that it had read and not answered come once more, marked as such
    /// ([`crate::Unique::is_resent`]).
    ///
    /// # Errors
    /// See [`MountError`]; the mount is as it was then.
    pub fn resume<F: Filesystem>(
        fs: F,
        mountpoint: &Path,
        kept: Kept,
        options: &MountOptions,
    ) -> Result<Self, MountError> {
        let [kernel_minor, offered, features, max_write, max_pages, max_readahead] = kept.terms;
        let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let terms = Terms {
            kernel_minor: narrow(kernel_minor),
            offered: Features::from_bits(offered),
            features: Features::from_bits(features).without(Features::OVER_IO_URING),
            max_write: narrow(max_write),
            max_pages: u16::try_from(max_pages).unwrap_or(u16::MAX),
            max_readahead: narrow(max_readahead),
        };
        let mount = Mount::there(mountpoint)?;
        let device = Arc::new(Device::from_fd(kept.device));
        let established = serve(Arc::new(fs), Undo::of_nothing(mount), device, terms, options);
        // ORDER: before anything is read here. The kernel gives out once more whatever was read and not answered, by whomever.
        setup::start_after(established, options, |notifier| {
            // What was read by the process that has ended is answered by nobody else.
            if let Err(error) = notifier.resend() {
                tracing::error!(%error, "the kernel does not give requests out once more; programs that made them wait for ever");
            }
        })
    }
}
