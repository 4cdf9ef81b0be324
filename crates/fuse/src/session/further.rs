//! Looks after the workers of a mount while it serves: has further ones take the place of those that wait for long, and the file system do likewise.

use super::Workers;
use super::setup::{OnEnd, spawn};
use crate::filesystem::Filesystem;
use crate::service::Service;
use crate::transport::device::{Device, DeviceWorker};
use crate::transport::standby::{LOOK_EVERY, Standby};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

/// What a further worker needs.
pub(super) struct Further<F> {
    pub(super) service: Arc<Service<F>>,
    /// Those of the workers that stay, which further ones share: a device of its own would take the requests that it has handed out with it. Not kept open: the
    /// mount must be able to end.
    pub(super) devices: Vec<Weak<Device>>,
    pub(super) payload_len: usize,
    pub(super) on_end: OnEnd,
    pub(super) standby: Arc<Standby>,
}

impl<F: Filesystem> Further<F> {
    /// Begins to look, until the last worker has ended.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(super) fn look_after(self, workers: &Arc<Workers>) -> io::Result<JoinHandle<()>> {
        let workers = Arc::clone(workers);
        let run = move || {
            let mut has_told = false;
            while workers.wait(Some(Instant::now() + LOOK_EVERY)) > 0 {
                if catch_unwind(AssertUnwindSafe(|| self.service.fs.look())).is_err() {
                    tracing::error!("the file system panicked as it looked at what waits");
                }
                if self.devices.is_empty() {
                    continue;
                }
                let wanted = self.standby.look(self.devices.len());
                if let Err(error) = (0..wanted).try_for_each(|at| self.add(at, &workers))
                    && !has_told
                {
                    has_told = true;
                    tracing::warn!(
                        %error,
                        "no further worker for a mount of which many wait for servers or disks; others may wait behind them: allow this process more threads (TasksMax=)"
                    );
                }
            }
        };
        std::thread::Builder::new().name("fuse-look".into()).spawn(run)
    }

    fn add(&self, at: usize, workers: &Workers) -> io::Result<()> {
        let Some(device) = self.devices.get(at % self.devices.len()).and_then(Weak::upgrade) else {
            return Ok(());
        };
        let seat = self.standby.seat(true);
        let worker = DeviceWorker::new(Arc::clone(&self.service), device, self.payload_len, None, seat)?;
        if !workers.join() {
            return Ok(());
        }
        // Not joined: it may wait for long after the mount has ended.
        let started = spawn("fuse-more".into(), worker, &self.on_end).map(drop);
        started.inspect_err(|_| (self.on_end)(Ok(())))
    }
}
