//! The four kernels of STREAM on one NUMA node: each thread stays on a processor of the node and works on arrays that it has touched first,
//! so that they lie in the node's own memory.

use super::NumaNode;
use parking_lot::RwLock;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// STREAM's rule: each array at least so many times as large as all caches together.
const TIMES_CACHE: u64 = 4;
/// Least size of an array, bytes, for machines that do not tell their caches.
const ARRAY_BYTES_MIN: u64 = 64 << 20;
/// Part of the node's free memory that the three arrays may take.
const PART_OF_FREE: u64 = 2;
/// What `scale` and `triad` multiply with, as in STREAM.
const SCALAR: f64 = 3.0;

/// The kernels, in the order they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kernel {
    /// `c = a`
    Copy,
    /// `b = 3 c`
    Scale,
    /// `c = a + b`
    Add,
    /// `a = b + 3 c`
    Triad,
}

impl Kernel {
    /// All, in the order they run.
    pub const ALL: [Kernel; 4] = [Kernel::Copy, Kernel::Scale, Kernel::Add, Kernel::Triad];

    /// Its name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Copy => "copy",
            Kernel::Scale => "scale",
            Kernel::Add => "add",
            Kernel::Triad => "triad",
        }
    }

    /// Arrays that are read or written: STREAM counts each once, and not what a processor reads of a line before it writes it.
    fn arrays(self) -> u64 {
        match self {
            Kernel::Copy | Kernel::Scale => 2,
            Kernel::Add | Kernel::Triad => 3,
        }
    }
}

/// What is run on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StreamPlan {
    /// Threads, at most one per processor of the node.
    pub threads: usize,
    /// Bytes of each of the three arrays, of all threads together.
    pub array_bytes: u64,
    /// Times each kernel runs; the first does not count.
    pub repetitions: u32,
}

/// Why memory was not measured.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// Arrays of the size that the caches call for do not fit.
    #[error(
        "NUMA node {node} has {free_bytes} bytes of free memory; three arrays of {array_bytes} bytes are needed, and half of it stays free: \
         stop other programs or name a smaller size"
    )]
    Memory {
        /// The node.
        node: u32,
        /// What it has free, bytes.
        free_bytes: u64,
        /// What an array needs, bytes.
        array_bytes: u64,
    },
    /// The kernel refuses threads.
    #[error(
        "cannot start {threads} threads: {answer}; let this user have more (ulimit -u, TasksMax= of its service)"
    )]
    Threads {
        /// How many were to run.
        threads: usize,
        /// The answer.
        answer: std::io::Error,
    },
    /// A thread could not be bound to its processor.
    #[error("stay on processor {processor}: {answer}")]
    Processor {
        /// Which.
        processor: usize,
        /// Why not.
        answer: std::io::Error,
    },
    /// The arrays do not hold what the kernels make.
    #[error(
        "wrong result in an array: {found} instead of {expected}; the memory or a processor of NUMA node {node} is faulty"
    )]
    Wrong {
        /// The node.
        node: u32,
        /// What is there.
        found: f64,
        /// What should be.
        expected: f64,
    },
    /// A thread ended without a result.
    #[error("a thread of the measurement panicked")]
    Panicked,
    /// Somebody asked to stop.
    #[error("stopped")]
    Stopped,
}

impl StreamPlan {
    /// STREAM's rules for this node: an array of four times its caches, a thread per processor, ten repetitions.
    ///
    /// # Errors
    /// [`StreamError::Memory`] when so much is not free.
    pub fn for_node(node: &NumaNode) -> Result<StreamPlan, StreamError> {
        let array_bytes = (node.cache_bytes * TIMES_CACHE).max(ARRAY_BYTES_MIN);
        let plan = StreamPlan { threads: node.processors.len(), array_bytes, repetitions: 10 };
        plan.check(node).map(|()| plan)
    }

    fn check(&self, node: &NumaNode) -> Result<(), StreamError> {
        let (free_bytes, array_bytes) = (node.free_bytes, self.array_bytes);
        if free_bytes > 0 && array_bytes.saturating_mul(3) > free_bytes / PART_OF_FREE {
            return Err(StreamError::Memory { node: node.number, free_bytes, array_bytes });
        }
        Ok(())
    }
}

/// What one kernel reached, bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// Which.
    pub kernel: Kernel,
    /// Of the fastest repetition: what STREAM reports.
    pub best: f64,
    /// Of the mean time.
    pub mean: f64,
    /// Of the slowest.
    pub worst: f64,
}

/// Arrays of one thread.
struct Arrays {
    a: Vec<f64>,
    b: Vec<f64>,
    c: Vec<f64>,
}

impl Arrays {
    /// Filled by the thread that will use them: memory comes from the node of whoever writes first.
    fn new(len: usize) -> Arrays {
        Arrays { a: vec![1.0; len], b: vec![2.0; len], c: vec![0.5; len] }
    }

    fn run(&mut self, kernel: Kernel) {
        let Arrays { a, b, c } = self;
        match kernel {
            Kernel::Copy => c.copy_from_slice(a),
            Kernel::Scale => b.iter_mut().zip(&*c).for_each(|(b, c)| *b = SCALAR * c),
            Kernel::Add => c.iter_mut().zip(a.iter().zip(&*b)).for_each(|(c, (a, b))| *c = a + b),
            Kernel::Triad => a.iter_mut().zip(b.iter().zip(&*c)).for_each(|(a, (b, c))| *a = b + SCALAR * c),
        }
    }

    /// As STREAM does at its end: computes what must be there, and compares every element.
    fn check(&self, repetitions: u32, node: u32) -> Result<(), StreamError> {
        let (mut a, mut b, mut c) = (1.0f64, 2.0f64, 0.5f64);
        for _ in 0..repetitions {
            c = a;
            b = SCALAR * c;
            c += b;
            a = b + SCALAR * c;
        }
        for (array, expected) in [(&self.a, a), (&self.b, b), (&self.c, c)] {
            let is_wrong = |found: &&f64| (**found - expected).abs() > expected.abs() * 1e-13;
            if let Some(&found) = array.iter().find(is_wrong) {
                return Err(StreamError::Wrong { node, found, expected });
            }
        }
        Ok(())
    }
}

/// When a thread began and ended a kernel.
type Span = (Instant, Instant);

/// Runs `plan` on `node`; one entry per kernel of [`Kernel::ALL`].
///
/// # Errors
/// When memory is short or wrong, or a thread cannot be bound to its processor; [`StreamError::Stopped`] when somebody sets `stop`.
pub fn stream(node: &NumaNode, plan: &StreamPlan, stop: &AtomicBool) -> Result<Vec<Rates>, StreamError> {
    plan.check(node)?;
    let threads = plan.threads.clamp(1, node.processors.len());
    let len = (plan.array_bytes / size_of::<f64>() as u64) as usize / threads;
    let start = &RwLock::new(false);
    let crew = &Crew { barrier: Barrier::new(threads), is_over: AtomicBool::new(false), stop };
    let spans = std::thread::scope(|scope| {
        // ORDER: nobody goes to the barrier before all are there, or they would wait for one that could not be started.
        let mut are_all_there = start.write();
        let mut running = Vec::with_capacity(threads);
        for &processor in &node.processors[..threads] {
            let body = move || match *start.read() {
                true => work(node.number, processor, len, plan.repetitions, crew),
                false => Ok(Vec::new()),
            };
            let started = std::thread::Builder::new().spawn_scoped(scope, body);
            running.push(started.map_err(|answer| StreamError::Threads { threads, answer })?);
        }
        *are_all_there = true;
        drop(are_all_there);
        let joined = running.into_iter().map(|thread| thread.join().unwrap_or(Err(StreamError::Panicked)));
        joined.collect::<Result<Vec<_>, _>>()
    })?;
    let bytes = (len * threads * size_of::<f64>()) as u64;
    Ok(Kernel::ALL
        .iter()
        .enumerate()
        .map(|(at, kernel)| rates(*kernel, bytes, &seconds(&spans, at)))
        .collect())
}

/// Threads that run each kernel together.
struct Crew<'a> {
    barrier: Barrier,
    is_over: AtomicBool,
    stop: &'a AtomicBool,
}

impl Crew<'_> {
    /// Whether somebody wants it stopped: all of them are told the same.
    fn is_stopped(&self) -> bool {
        if self.barrier.wait().is_leader() {
            self.is_over.store(self.stop.load(Relaxed), Relaxed);
        }
        self.barrier.wait();
        self.is_over.load(Relaxed)
    }
}

/// One thread; its times are kernel by kernel, repetition by repetition.
fn work(
    node: u32,
    processor: usize,
    len: usize,
    repetitions: u32,
    crew: &Crew<'_>,
) -> Result<Vec<Span>, StreamError> {
    let bound = stay_on(processor);
    let mut arrays = Arrays::new(if bound.is_ok() { len } else { 0 });
    let mut spans = Vec::with_capacity(repetitions as usize * Kernel::ALL.len());
    let mut is_stopped = false;
    // ORDER: one that is not bound takes part all the same, or the others would wait for it for ever.
    for _ in 0..repetitions {
        is_stopped = crew.is_stopped();
        if is_stopped {
            break;
        }
        for kernel in Kernel::ALL {
            crew.barrier.wait();
            let start = Instant::now();
            arrays.run(kernel);
            spans.push((start, Instant::now()));
        }
    }
    bound.map_err(|answer| StreamError::Processor { processor, answer })?;
    if is_stopped {
        return Err(StreamError::Stopped);
    }
    arrays.check(repetitions, node)?;
    Ok(spans)
}

/// Binds the calling thread to one processor.
fn stay_on(processor: usize) -> std::io::Result<()> {
    if processor >= CpuSet::MAX_CPU {
        return Err(std::io::Error::other(format!("only the first {} can be named", CpuSet::MAX_CPU)));
    }
    let mut only = CpuSet::new();
    only.set(processor);
    Ok(sched_setaffinity(None, &only)?)
}

/// From the first thread's start to the last one's end, for each repetition of kernel `at` but the first.
fn seconds(threads: &[Vec<Span>], at: usize) -> Vec<f64> {
    let runs = threads.first().map_or(0, Vec::len);
    (at..runs)
        .step_by(Kernel::ALL.len())
        .skip(1)
        .filter_map(|run| {
            let begin = threads.iter().map(|spans| spans[run].0).min()?;
            let end = threads.iter().map(|spans| spans[run].1).max()?;
            Some((end - begin).max(Duration::from_nanos(1)).as_secs_f64())
        })
        .collect()
}

fn rates(kernel: Kernel, array_bytes: u64, seconds: &[f64]) -> Rates {
    let bytes = (array_bytes * kernel.arrays()) as f64;
    let rate = |seconds: f64| if seconds.is_finite() && seconds > 0.0 { bytes / seconds } else { 0.0 };
    let mean = seconds.iter().sum::<f64>() / seconds.len() as f64;
    Rates {
        kernel,
        best: rate(seconds.iter().copied().fold(f64::INFINITY, f64::min)),
        mean: rate(mean),
        worst: rate(seconds.iter().copied().fold(0.0, f64::max)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.
mod tests {
    use super::super::nodes;
    use super::*;

    static GO_ON: AtomicBool = AtomicBool::new(false);

    #[test]
    fn the_kernels_make_what_stream_makes_and_damage_is_seen() {
        let mut arrays = Arrays::new(1000);
        for _ in 0..3 {
            Kernel::ALL.into_iter().for_each(|kernel| arrays.run(kernel));
        }
        arrays.check(3, 0).unwrap();
        assert!(arrays.check(2, 0).is_err());
        arrays.b[999] += 1.0;
        assert!(matches!(arrays.check(3, 7), Err(StreamError::Wrong { node: 7, .. })));
    }

    #[test]
    fn bytes_are_counted_as_in_stream_and_the_first_repetition_is_left_out() {
        let start = Instant::now();
        let span = |from: u64, to: u64| (start + Duration::from_secs(from), start + Duration::from_secs(to));
        // Two threads, three repetitions of four kernels; only kernel 3 (triad) is looked at.
        let mut one = vec![span(0, 1); 12];
        let mut two = vec![span(0, 1); 12];
        (one[3], two[3]) = (span(0, 100), span(0, 100));
        (one[7], two[7]) = (span(10, 12), span(11, 14));
        (one[11], two[11]) = (span(20, 22), span(20, 21));
        assert_eq!(seconds(&[one, two], 3), vec![4.0, 2.0]);
        let found = rates(Kernel::Triad, 8, &[4.0, 2.0]);
        assert_eq!((found.best, found.mean, found.worst), (12.0, 8.0, 6.0));
        assert_eq!(rates(Kernel::Copy, 8, &[2.0]).best, 8.0);
    }

    #[test]
    fn arrays_are_four_times_the_caches_and_must_leave_half_of_the_memory_free() {
        let node =
            |free_bytes, cache_bytes| NumaNode { number: 1, processors: vec![0, 1], free_bytes, cache_bytes };
        let plan = StreamPlan::for_node(&node(64 << 30, 48 << 20)).unwrap();
        assert_eq!((plan.threads, plan.array_bytes), (2, 192 << 20));
        assert_eq!(StreamPlan::for_node(&node(0, 0)).unwrap().array_bytes, ARRAY_BYTES_MIN);
        let error = StreamPlan::for_node(&node(1 << 30, 48 << 20)).unwrap_err();
        assert!(error.to_string().starts_with("NUMA node 1 has 1073741824 bytes"), "{error}");
    }

    #[test]
    fn every_kernel_has_a_rate_on_this_machine() {
        let nodes = nodes().unwrap();
        let plan = StreamPlan { threads: 64, array_bytes: 1 << 20, repetitions: 3 };
        let found = stream(&nodes[0], &plan, &GO_ON).unwrap();
        assert_eq!(found.iter().map(|rates| rates.kernel).collect::<Vec<_>>(), Kernel::ALL);
        assert!(found.iter().all(|r| r.best >= r.mean && r.mean >= r.worst && r.worst > 0.0), "{found:?}");
    }

    #[test]
    fn whoever_measures_memory_can_be_stopped() {
        let nodes = nodes().unwrap();
        // Hours of it: if it could not be stopped, this test would not end.
        let plan = StreamPlan { threads: 64, array_bytes: 8 << 20, repetitions: 1_000_000 };
        let stop = AtomicBool::new(false);
        let ended = std::thread::scope(|scope| {
            let measuring = scope.spawn(|| stream(&nodes[0], &plan, &stop));
            std::thread::sleep(Duration::from_millis(200));
            stop.store(true, Relaxed);
            measuring.join().unwrap()
        });
        assert!(matches!(ended, Err(StreamError::Stopped)), "{ended:?}");
    }

    #[test]
    fn a_processor_that_is_not_there_is_named_and_nobody_waits_for_ever() {
        let node = NumaNode { number: 0, processors: vec![0, 1023], free_bytes: 0, cache_bytes: 0 };
        let plan = StreamPlan { threads: 2, array_bytes: 1 << 16, repetitions: 2 };
        let error = stream(&node, &plan, &GO_ON).unwrap_err();
        assert!(matches!(error, StreamError::Processor { processor: 1023, .. }), "{error}");
    }
}
