//! Further threads for queues that threads share: see [`super::slots`].

use super::slots::{Relief, Slots};
use super::worker::{Queue, RingWorker};
use crate::filesystem::Filesystem;
use crate::id::NodeId;
use crate::service::Service;
use crate::transport::device::Device;
use std::io;
use std::sync::{Arc, Weak};

/// Who hears of threads that come and go.
#[derive(Clone)]
pub(crate) struct Rollcall {
    /// Before a further one begins to serve. If it answers false the mount is ending, and the thread does not.
    pub(crate) join: Arc<dyn Fn() -> bool + Send + Sync>,
    /// As one ends after having served.
    pub(crate) leave: Arc<dyn Fn(io::Result<()>) + Send + Sync>,
}

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
}

impl<F: Filesystem> Reserve<F> {
    pub(super) fn enlist(self) -> Arc<dyn Relief> {
        Arc::new_cyclic(|own| Enlisted { reserve: self, own: Weak::clone(own) })
    }
}

impl<F: Filesystem> Relief for Enlisted<F> {
    fn call(&self, qid: u16, slots: &Arc<Slots>, node: NodeId) {
        let Some(own) = self.own.upgrade() else { return };
        if !(self.reserve.rollcall.join)() {
            slots.give_up_one();
            return;
        }
        let own_slots = Arc::clone(slots);
        // It inherits the processor of the thread that calls, to whose queue the nudge goes.
        let body = move || own.serve(qid, own_slots, node);
        if let Err(error) = std::thread::Builder::new().name(format!("fuse-ring-{qid}")).spawn(body) {
            tracing::error!(%error, "no further thread for requests that wait; their queue is one entry short");
            slots.give_up_one();
            (self.reserve.rollcall.leave)(Ok(()));
        }
    }
}

impl<F: Filesystem> Enlisted<F> {
    fn serve(self: Arc<Self>, qid: u16, slots: Arc<Slots>, node: NodeId) {
        let leave = Arc::clone(&self.reserve.rollcall.leave);
        match self.worker(qid, &slots, node) {
            Ok(worker) => {
                drop(self);
                leave(worker.run());
            }
            Err(error) => {
                tracing::error!(%error, "a further ring thread could not begin; its queue is one entry short");
                slots.give_up_one();
                leave(Ok(()));
            }
        }
    }

    fn worker(self: &Arc<Self>, qid: u16, slots: &Arc<Slots>, node: NodeId) -> io::Result<RingWorker<F>> {
        let gone = || io::Error::from_raw_os_error(libc::ENODEV);
        let device = self.reserve.device.upgrade().ok_or_else(gone)?;
        let queue = Queue { qid, share: 1, slots: Arc::clone(slots) };
        let relief: Arc<dyn Relief> = Arc::clone(self) as Arc<dyn Relief>;
        let service = Arc::clone(&self.reserve.service);
        let mut worker =
            RingWorker::new(service, &device, vec![queue], self.reserve.payload_len, Some(relief))?;
        worker.register()?;
        worker.nudge(node)?;
        Ok(worker)
    }
}
