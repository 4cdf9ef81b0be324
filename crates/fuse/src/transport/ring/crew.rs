//! All rings of a mount: who serves which queue, and the steps from nothing to serving, each of which can be taken back.
//!
//! | step | threads | kernel |
//! |---|---|---|
//! | `assemble` | build rings and buffers; a failure here costs nothing | knows nothing |
//! | (INIT is answered with the io_uring bit) | wait | holds requests back |
//! | `register` | hand the entries over | sends requests to the rings once all queues have entries |
//! | `serve` | serve | |
//!
//! Dropping a crew ends its threads in every state before `serve`; later they end with the mount.

use super::reserve::{Reserve, Rollcall};
use super::seats;
use super::slots::{Relief, Slots};
use super::worker::{Queue, RingWorker};
use super::{PAYLOAD_BYTES_MAX, SHARED_THREADS_MAX};
use crate::filesystem::Filesystem;
use crate::service::Service;
use crate::transport::cpu;
use crate::transport::device::Device;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// LIMIT: how long one step of all threads may take.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// Which thread serves which queues.
pub(crate) struct CrewPlan {
    threads: Vec<ThreadPlan>,
    pub(crate) queues: usize,
    pub(crate) depth: usize,
    payload_len: usize,
    is_shared: bool,
}

struct ThreadPlan {
    cpu: usize,
    /// Their numbers, and how many entries this thread has of each.
    queues: Vec<(u16, usize)>,
}

impl CrewPlan {
    /// Threads on `cpus`, which this process may use, and a queue for each of `possible` processors, with `depth` entries; those not `online` get one
    /// entry, seldom used but required. With `sharing` 1 each processor has one thread, which never waits long. With more a queue has so many threads,
    /// as far as [`SHARED_THREADS_MAX`] allows, each with one entry and no other queue: what waits for a handler is in that handler's hands.
    pub(crate) fn new(
        possible: usize,
        online: &[usize],
        cpus: &[usize],
        (depth, sharing): (usize, usize),
        payload_len: usize,
    ) -> Self {
        let depth_fitting = PAYLOAD_BYTES_MAX / (payload_len.max(1) * online.len().max(1));
        let depth = depth.max(1).min(depth_fitting.max(2));
        let is_shared = sharing > 1;
        let threads_fitting = (SHARED_THREADS_MAX / online.len().max(1)).max(2);
        let depth = if is_shared { depth.min(sharing).min(threads_fitting) } else { depth };
        let mut threads: Vec<ThreadPlan> = if is_shared {
            Vec::new()
        } else {
            cpus.iter().map(|&cpu| ThreadPlan { cpu, queues: Vec::new() }).collect()
        };
        for qid in 0..possible.min(usize::from(u16::MAX)) {
            // A processor that is not ours (outside our cpuset, or offline) is served from one that is.
            let owner = cpus.iter().position(|&cpu| cpu == qid).unwrap_or(qid % cpus.len().max(1));
            let depth = if online.contains(&qid) { depth } else { 1 };
            if is_shared {
                let cpu = cpus.get(owner).copied().unwrap_or_default();
                threads.extend((0..depth).map(|_| ThreadPlan { cpu, queues: vec![(qid as u16, 1)] }));
            } else if let Some(thread) = threads.get_mut(owner) {
                thread.queues.push((qid as u16, depth));
            }
        }
        threads.retain(|thread| !thread.queues.is_empty());
        Self { threads, queues: possible, depth, payload_len, is_shared }
    }

    /// The queues' entries, all threads together.
    fn slots(&self) -> BTreeMap<u16, Arc<Slots>> {
        let mut depths = BTreeMap::new();
        for (qid, share) in self.threads.iter().flat_map(|thread| &thread.queues) {
            *depths.entry(*qid).or_insert(0) += share;
        }
        depths.into_iter().map(|(qid, depth)| (qid, Arc::new(Slots::new(depth)))).collect()
    }
}

enum Step {
    Register,
    Serve,
}

/// The threads of a mount's rings.
pub(crate) struct Crew {
    steps: Vec<Sender<Step>>,
    reports: Receiver<io::Result<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Crew {
    /// Starts the threads and waits until each has its ring. `rollcall` hears of each that ends after having served.
    ///
    /// # Errors
    /// The first thread's failure; all are gone then.
    pub(crate) fn assemble<F: Filesystem>(
        plan: &CrewPlan,
        service: &Arc<Service<F>>,
        device: &Arc<Device>,
        rollcall: &Rollcall,
    ) -> io::Result<Self> {
        let few = || io::Error::other("too few open files allowed for its threads (LimitNOFILE=)");
        let mut seats = seats::take(plan.threads.len()).ok_or_else(few)?;
        let slots = plan.slots();
        let relief: Option<Arc<dyn Relief>> = plan.is_shared.then(|| {
            let reserve = Reserve {
                service: Arc::clone(service),
                device: Arc::downgrade(device),
                payload_len: plan.payload_len,
                rollcall: rollcall.clone(),
            };
            reserve.enlist()
        });
        let (report, reports) = channel();
        let mut crew = Self { steps: Vec::new(), reports, threads: Vec::new() };
        for thread in &plan.threads {
            let (step, steps) = channel();
            let queues = thread
                .queues
                .iter()
                .filter_map(|&(qid, share)| Some(Queue { qid, share, slots: Arc::clone(slots.get(&qid)?) }));
            let (queues, relief): (Vec<Queue>, _) = (queues.collect(), relief.clone());
            let (cpu, payload_len) = (thread.cpu, plan.payload_len);
            let (service, device) = (Arc::clone(service), Arc::clone(device));
            let (report, on_end) = (report.clone(), Arc::clone(&rollcall.on_end));
            let mailboxes = Arc::clone(&rollcall.mailboxes);
            let seat = seats.pop();
            let body = move || {
                let _seat = seat;
                if let Err(error) = cpu::bind(&[cpu]) {
                    tracing::debug!(cpu, %error, "ring thread runs unpinned");
                }
                let worker = mailboxes.open_one().and_then(|mailbox| {
                    RingWorker::new(service, &device, queues, payload_len, mailbox, relief)
                });
                // The device must not be kept open by a thread that waits for it to close.
                drop(device);
                if let Some(worker) = advance(worker, &steps, &report) {
                    on_end(worker.run_contained());
                }
            };
            crew.threads.push(std::thread::Builder::new().name(format!("fuse-ring-{cpu}")).spawn(body)?);
            crew.steps.push(step);
        }
        crew.await_reports()?;
        Ok(crew)
    }

    /// Hands all entries to the kernel. INIT must have been answered.
    ///
    /// # Errors
    /// The first refusal. The kernel may have taken other queues: the mount must be given up.
    pub(crate) fn register(&self) -> io::Result<()> {
        self.send(|| Step::Register)?;
        self.await_reports()
    }

    /// Lets the threads serve; they end with the mount.
    ///
    /// # Errors
    /// A thread is gone.
    pub(crate) fn serve(mut self) -> io::Result<Vec<JoinHandle<()>>> {
        self.send(|| Step::Serve)?;
        Ok(std::mem::take(&mut self.threads))
    }

    pub(crate) fn thread_count(&self) -> usize {
        self.threads.len()
    }

    fn send(&self, step: impl Fn() -> Step) -> io::Result<()> {
        self.steps
            .iter()
            .try_for_each(|steps| steps.send(step()))
            .map_err(|_| io::Error::other("a ring thread has ended"))
    }

    fn await_reports(&self) -> io::Result<()> {
        for _ in &self.threads {
            let report = self.reports.recv_timeout(STEP_TIMEOUT);
            report
                .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "a ring thread does not answer"))??;
        }
        Ok(())
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        // Without a next step the threads end; their rings and buffers are gone when this returns.
        self.steps.clear();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a ring thread panicked before it served");
            }
        }
    }
}

/// Takes a worker through the steps; `None` if one failed or the crew was dropped.
fn advance<F: Filesystem>(
    worker: io::Result<RingWorker<F>>,
    steps: &Receiver<Step>,
    report: &Sender<io::Result<()>>,
) -> Option<RingWorker<F>> {
    let mut worker = match worker {
        Ok(worker) => worker,
        Err(error) => {
            // A crew that is gone needs no report.
            let _ = report.send(Err(error));
            return None;
        }
    };
    report.send(Ok(())).ok()?;
    while let Ok(step) = steps.recv() {
        match step {
            Step::Register => report.send(worker.register()).ok()?,
            Step::Serve => return Some(worker),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(plan: &CrewPlan) -> Vec<Vec<(u16, usize)>> {
        plan.threads.iter().map(|thread| thread.queues.clone()).collect()
    }

    #[test]
    fn every_possible_processor_has_a_queue() {
        let plan = CrewPlan::new(2, &[0, 1], &[0, 1], (8, 1), 1 << 20);
        assert_eq!(queues(&plan), [vec![(0, 8)], vec![(1, 8)]]);
        // Five possible, four online, two of them ours: the others' queues are spread.
        let plan = CrewPlan::new(5, &[0, 1, 2, 3], &[1, 3], (8, 1), 1 << 20);
        assert_eq!(queues(&plan), [vec![(0, 8), (1, 8), (2, 8), (4, 1)], vec![(3, 8)]]);
        assert!(!plan.is_shared);
        // Three threads have one entry of the queue each; one of them more serves that of a processor that is offline.
        let plan = CrewPlan::new(2, &[0], &[0], (8, 3), 1 << 20);
        assert_eq!(queues(&plan), [vec![(0, 1)], vec![(0, 1)], vec![(0, 1)], vec![(1, 1)]]);
        assert!(plan.is_shared && plan.depth == 3 && plan.threads.iter().all(|thread| thread.cpu == 0));
    }

    #[test]
    fn memory_bounds_the_depth_on_large_machines() {
        let cpus: Vec<usize> = (0..512).collect();
        assert_eq!(CrewPlan::new(512, &cpus, &cpus, (8, 1), 1 << 20).depth, 4);
        assert_eq!(CrewPlan::new(512, &cpus, &cpus, (8, 1), 8 << 20).depth, 2);
        let shared = CrewPlan::new(64, &cpus[..64], &cpus[..2], (32, 32), 1 << 20);
        assert_eq!((shared.depth, shared.threads.len()), (8, SHARED_THREADS_MAX));
    }
}
