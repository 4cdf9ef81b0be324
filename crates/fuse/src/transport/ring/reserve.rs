//! Further threads for queues that threads share: see [`super::slots`].

use super::seats;
use super::slots::{Relief, Slots};
use super::worker::{Queue, RingWorker};
use crate::filesystem::Filesystem;
use crate::id::NodeId;
use crate::service::Service;
use crate::transport::device::Device;
use crate::transport::mailbox::Mailboxes;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Who hears of threads that come and go.
#[derive(Clone)]
pub(crate) struct Rollcall {
    /// Before a further one begins to serve. If it answers false the mount is ending, and the thread does not.
    pub(crate) join: Arc<dyn Fn() -> bool + Send + Sync>,
    /// As one goes that has joined and did not begin.
    pub(crate) leave: Arc<dyn Fn() + Send + Sync>,
    /// As one ends after having served.
    pub(crate) on_end: Arc<dyn Fn(io::Result<()>) + Send + Sync>,
    /// Where they hear of the mount's end.
    pub(crate) mailboxes: Arc<Mailboxes>,
}

/// LIMIT: how long a thread whose request is parked waits for the further one.
const BEGIN_MAX: Duration = Duration::from_secs(1);

/// What a thread needs.
pub(super) struct Reserve<F> {
    pub(super) service: Arc<Service<F>>,
    pub(super) device: Weak<Device>,
    pub(super) payload_len: usize,
    pub(super) rollcall: Rollcall,
}

/// A reserve whose threads can call for more.
struct Enlisted<F> {
    reserve: Reserve<F>,
    own: Weak<Enlisted<F>>,
    /// Whether somebody has been told that one could not begin: once is enough, the next request that waits tries again.
    has_told: AtomicBool,
}

impl<F: Filesystem> Reserve<F> {
    pub(super) fn enlist(self) -> Arc<dyn Relief> {
        Arc::new_cyclic(|own| Enlisted {
            reserve: self,
            own: Weak::clone(own),
            has_told: AtomicBool::new(false),
        })
    }
}

impl<F: Filesystem> Relief for Enlisted<F> {
    fn call(&self, qid: u16, slots: &Arc<Slots>, node: NodeId) -> bool {
        let Some(own) = self.own.upgrade() else { return false };
        let Some(seat) = seats::take(1) else {
            self.tell(&io::Error::other("ring threads have half of the open files already"));
            return false;
        };
        if !(self.reserve.rollcall.join)() {
            return false;
        }
        let own_slots = Arc::clone(slots);
        let (report, begun) = sync_channel(1);
        // It inherits the processor of the thread that calls, to whose queue the nudge goes.
        let body = move || {
            let _seat = seat;
            own.serve(qid, own_slots, node, &report);
        };
        match std::thread::Builder::new().name(format!("fuse-ring-{qid}")).spawn(body) {
            Ok(_) => begun.recv_timeout(BEGIN_MAX).unwrap_or(false),
            Err(error) => {
                self.tell(&error);
                (self.reserve.rollcall.leave)();
                false
            }
        }
    }
}

impl<F: Filesystem> Enlisted<F> {
    fn tell(&self, error: &io::Error) {
        if !self.has_told.swap(true, Relaxed) {
            tracing::warn!(
                %error,
                "no further thread for requests that wait (for locks, say); others may wait behind them: allow this process more open files and threads \
                 (LimitNOFILE=, TasksMax=)"
            );
        }
    }

    fn serve(self: Arc<Self>, qid: u16, slots: Arc<Slots>, node: NodeId, report: &SyncSender<bool>) {
        let rollcall = self.reserve.rollcall.clone();
        let worker = self.worker(qid, &slots, node);
        // Who waits for it may have given up.
        let _ = report.send(worker.is_ok());
        match worker {
            Ok(worker) => {
                drop(self);
                (rollcall.on_end)(worker.run_contained());
            }
            Err(error) => {
                self.tell(&error);
                (rollcall.leave)();
            }
        }
    }

    fn worker(self: &Arc<Self>, qid: u16, slots: &Arc<Slots>, node: NodeId) -> io::Result<RingWorker<F>> {
        let gone = || io::Error::from_raw_os_error(libc::ENODEV);
        let device = self.reserve.device.upgrade().ok_or_else(gone)?;
        let queue = Queue { qid, share: 1, slots: Arc::clone(slots) };
        let relief: Arc<dyn Relief> = Arc::clone(self) as Arc<dyn Relief>;
        let service = Arc::clone(&self.reserve.service);
        let (payload_len, mailbox) = (self.reserve.payload_len, self.reserve.rollcall.mailboxes.open_one()?);
        let mut worker = RingWorker::new(service, &device, vec![queue], payload_len, mailbox, Some(relief))?;
        worker.register()?;
        worker.nudge(node)?;
        Ok(worker)
    }
}
