//! How many groups a second one thread commits, and what a read of the overlay costs.
//!
//! `cargo run --release -p ashlar-kv --example lane_throughput -- DIRECTORY [GROUPS]`, with the directory on the file system
//! to measure. The group is that of a create: an entry and an inode, a parent's times, a counter. Besides the time on the
//! clock it prints the processor time of the measuring thread, which a busy machine does not blur.

use ashlar_env::Env;
use ashlar_env::os::OsDisk;
use ashlar_kv::{
    FjallEngine, FjallOptions, Frame, Key, KvError, Lane, LaneConfig, Snapshot, Urgency, WriteSet,
};
use ashlar_types::{ClusterId, Epoch, OpId, SessionId, ShardId};
use bytes::Bytes;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

const FILES_PER_DIRECTORY: u64 = 1000;

fn key(kind: u8, a: u64, b: &[u8]) -> Key {
    let mut key = Key::from_slice(&[0, 0, kind]);
    key.extend_from_slice(&a.to_be_bytes());
    key.extend_from_slice(b);
    key
}

/// Spreads names as a hash of the name does.
fn mix(n: u64) -> u64 {
    n.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

fn entry_key(file: u64) -> Key {
    key(2, file / FILES_PER_DIRECTORY, format!("{}file-{file:010}", mix(file)).as_bytes())
}

fn create(file: u64) -> Frame {
    let directory = file / FILES_PER_DIRECTORY;
    let mut writes = vec![
        (key(1, directory, &[]), Some(Bytes::from(vec![1; 120]))),
        (entry_key(file), Some(Bytes::from(vec![2; 12]))),
        (key(3, file, &[]), Some(Bytes::from(vec![3; 150]))),
        (key(4, 0, &[]), Some(Bytes::from(vec![4; 40]))),
    ];
    writes.sort_by(|a, b| a.0.cmp(&b.0));
    Frame {
        shard: ShardId(0),
        epoch: Epoch(1),
        op: OpId { session: SessionId(1), sequence: file },
        verb: 1,
        writes: WriteSet(writes),
        reply: Bytes::from_static(&[0; 60]),
    }
}

/// Time on the clock and on the processor, since the start.
struct Stopwatch {
    clock: Instant,
    processor: Duration,
}

impl Stopwatch {
    fn start() -> Stopwatch {
        Stopwatch { clock: Instant::now(), processor: thread_time() }
    }

    /// Seconds: (clock, processor).
    fn elapsed(&self) -> (f64, f64) {
        (self.clock.elapsed().as_secs_f64(), (thread_time() - self.processor).as_secs_f64())
    }
}

fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec to write to; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn main() -> Result<(), KvError> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().unwrap_or_else(|| "/dev/shm/lane_throughput".to_owned());
    let groups: u64 = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(1_000_000);
    let io = |e| KvError::Io { what: dir.clone(), source: e };
    std::fs::create_dir_all(format!("{dir}/lane")).map_err(io)?;
    let engine = FjallEngine::open(format!("{dir}/lane/engine"), FjallOptions::default())?;
    let config = LaneConfig { reserve_bytes: 0, ..LaneConfig::default() };
    let disk = Arc::new(OsDisk::new(&dir));
    let lane = Lane::open(disk, "lane", Box::new(engine), &Env::os(), ClusterId([1; 16]), config)?;

    // Groups are made beforehand, a batch at a time, so that only the lane is measured.
    let (mut clock, mut processor, mut slowest) = (0.0, 0.0, 0.0_f64);
    for first in (0..groups).step_by(10_000) {
        let batch: Vec<_> = (first..first + 10_000).map(|file| vec![create(file)]).collect();
        let watch = Stopwatch::start();
        for frames in batch {
            lane.write().commit(frames, Urgency::Normal)?;
        }
        let took = watch.elapsed();
        (clock, processor, slowest) = (clock + took.0, processor + took.1, slowest.max(took.0));
    }
    let groups_f = groups as f64;
    println!(
        "commits: {:.0}/s ({:.2} us of processor each), slowest batch {:.0}/s",
        groups_f / clock,
        processor / groups_f * 1e6,
        10_000.0 / slowest
    );
    println!("{:?}", lane.stats());

    let recent: Vec<Key> =
        (0..100_000).map(|n| entry_key(groups - 1 - mix(n) % 20_000.min(groups))).collect();
    measure_gets(&lane, "recent", &recent)?;
    let any: Vec<Key> = (0..200_000).map(|n| entry_key(mix(n) % groups)).collect();
    measure_gets(&lane, "any", &any)?;
    let absent: Vec<Key> = (0..200_000).map(|n| entry_key(groups + mix(n) % groups)).collect();
    measure_gets(&lane, "absent", &absent)?;
    measure_scans(&lane, groups)?;

    let start = Instant::now();
    lane.close()?;
    println!("close: {:.2} s", start.elapsed().as_secs_f64());
    Ok(())
}

fn measure_gets(lane: &Lane, what: &str, keys: &[Key]) -> Result<(), KvError> {
    let watch = Stopwatch::start();
    let mut found = 0;
    for key in keys {
        found += usize::from(black_box(lane.read().get(key)?).is_some());
    }
    let (clock, processor) = watch.elapsed();
    let each = |seconds: f64| seconds / keys.len() as f64 * 1e6;
    let (clock, processor) = (each(clock), each(processor));
    println!(
        "get of {what} keys: {clock:.2} us ({processor:.2} us of processor), {found} of {} found",
        keys.len()
    );
    Ok(())
}

fn measure_scans(lane: &Lane, groups: u64) -> Result<(), KvError> {
    let watch = Stopwatch::start();
    let mut pairs = 0_u64;
    let directories = (groups / FILES_PER_DIRECTORY).min(200);
    for n in 0..directories {
        let directory = mix(n) % (groups / FILES_PER_DIRECTORY);
        lane.read().scan(&key(2, directory, &[]), &key(2, directory + 1, &[]), &mut |key, value| {
            pairs += black_box((key, value)).0.len().min(1) as u64;
            ControlFlow::Continue(())
        })?;
    }
    let (clock, processor) = watch.elapsed();
    let each = |seconds: f64| seconds / pairs.max(1) as f64 * 1e6;
    println!("scans: {:.2} us per pair ({:.2} us of processor), {pairs} pairs", each(clock), each(processor));
    Ok(())
}
