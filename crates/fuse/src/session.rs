//! A mount with its worker threads, from mount(2) to the last reply.
//!
//! | state | entered by | left by |
//! |---|---|---|
//! | serving | `Session::mount` | `unmount`, umount(8), `abort`, a transport failure |
//! | ending | the kernel's ENODEV to the workers | the last worker's end |
//! | ended | `Filesystem::destroy` has run | - |

mod further;
mod resume;
mod setup;

pub use resume::Kept;

use crate::deferral::Deferred;
use crate::filesystem::Filesystem;
use crate::mount::{Connection, Mount, MountError, UnmountError, UnmountOutcome};
use crate::negotiation::Negotiated;
use crate::notify::Notifier;
use crate::options::MountOptions;
use crate::transport::device::Device;
use crate::transport::{self, Transport};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// LIMIT: how long dropping a session waits for its threads after a clean unmount.
const DROP_TIMEOUT: Duration = Duration::from_secs(5);

/// A mounted file system. Dropping it unmounts.
pub struct Session {
    mount: Mount,
    negotiated: Negotiated,
    notifier: Notifier,
    /// Keeps the mount's first device open for notifications, whatever the workers use.
    device: Option<Arc<Device>>,
    workers: Arc<Workers>,
    deferred: Arc<Deferred>,
    is_at_rest: Box<dyn Fn() -> bool + Send + Sync>,
    threads: Vec<JoinHandle<()>>,
    is_unmounted: bool,
}

/// Threads were still serving when the bound of [`Session::join`] passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{threads} worker threads of the mount had not ended after {waited:?}")]
pub struct JoinTimeout {
    /// How many.
    pub threads: usize,
    /// How long the wait was.
    pub waited: Duration,
}

/// Counts the workers that have not ended.
pub(crate) struct Workers {
    running: Mutex<usize>,
    ended: Condvar,
}

impl Workers {
    fn new(count: usize) -> Self {
        Self { running: Mutex::new(count), ended: Condvar::new() }
    }

    /// A further worker; false if all have ended, and it must not begin.
    fn join(&self) -> bool {
        let mut running = self.running.lock();
        if *running > 0 {
            *running += 1;
        }
        *running > 0
    }

    /// One worker has ended; `destroy` runs if it was the last, before anyone waiting learns of it.
    fn leave(&self, destroy: impl FnOnce()) {
        let mut running = self.running.lock();
        *running = running.saturating_sub(1);
        if *running == 0 {
            destroy();
            self.ended.notify_all();
        }
    }

    /// Waits until all have ended or `deadline`; how many are left.
    fn wait(&self, deadline: Option<Instant>) -> usize {
        let mut running = self.running.lock();
        while *running > 0 {
            match deadline {
                None => self.ended.wait(&mut running),
                Some(deadline) => {
                    if self.ended.wait_until(&mut running, deadline).timed_out() {
                        break;
                    }
                }
            }
        }
        *running
    }
}

impl Session {
    /// Mounts `fs` at `mountpoint` and starts serving. When this returns the mount is usable and its transport decided.
    ///
    /// # Errors
    /// See [`MountError`]; nothing stays mounted then.
    pub fn mount<F: Filesystem>(
        fs: F,
        mountpoint: impl AsRef<Path>,
        options: &MountOptions,
    ) -> Result<Self, MountError> {
        setup::mount(Arc::new(fs), mountpoint.as_ref(), options)
    }

    /// Where it is mounted: absolute, without symbolic links.
    pub fn mountpoint(&self) -> &Path {
        &self.mount.path
    }

    /// What kernel and mount agreed on.
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// The transport that carries the requests.
    pub fn transport_in_use(&self) -> Transport {
        self.negotiated.transport
    }

    /// What an administrator could gain by enabling io_uring, and how; `None` if it is in use.
    pub fn transport_hint(&self) -> Option<String> {
        transport::hint(self.negotiated.transport)
    }

    /// A sender of notifications for this mount.
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Serves until the mount is gone (by `umount`, say). The threads run anyway; this only waits for them.
    pub fn run(mut self) {
        self.workers.wait(None);
        self.finish();
    }

    /// Ends the mount: cleanly if nobody uses it, otherwise detached, to end with its last user. Call [`Self::join`] after it.
    ///
    /// # Errors
    /// If the kernel or fusermount3 refuses; the mount is still there.
    pub fn unmount(&mut self) -> Result<UnmountOutcome, UnmountError> {
        let outcome = self.mount.unmount()?;
        self.is_unmounted = true;
        Ok(outcome)
    }

    /// The connection that serves it.
    pub fn connection(&self) -> Connection {
        Connection(self.mount.id.minor)
    }

    /// Makes the kernel give the mount up: every request in progress fails, and a mount point that is in use says ENOTCONN
    /// until it is unmounted.
    ///
    /// # Errors
    /// Neither /sys/fs/fuse/connections is mounted nor this process root.
    pub fn abort(&self) -> io::Result<()> {
        self.mount.abort()
    }

    /// Waits at most `bound` for the threads to end, after the mount ended.
    ///
    /// # Errors
    /// `JoinTimeout`; it can be called again.
    pub fn join(&mut self, bound: Duration) -> Result<(), JoinTimeout> {
        let threads = self.workers.wait(Instant::now().checked_add(bound));
        if threads > 0 {
            return Err(JoinTimeout { threads, waited: bound });
        }
        self.finish();
        Ok(())
    }

    /// All workers have said that they end; joins the threads and closes the device.
    fn finish(&mut self) {
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a worker thread ended by a panic");
            }
        }
        self.device = None;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.threads.is_empty() {
            return;
        }
        if !self.is_unmounted {
            match self.mount.unmount() {
                Ok(UnmountOutcome::Clean | UnmountOutcome::AlreadyGone) => {}
                Ok(UnmountOutcome::Lazy { message }) => {
                    return tracing::warn!("{message}; it ends with its last user");
                }
                Err(error) => return tracing::error!(%error, "the mount stays"),
            }
            if let Err(error) = self.join(DROP_TIMEOUT) {
                tracing::warn!(%error, "not waiting any longer");
            }
        }
    }
}
