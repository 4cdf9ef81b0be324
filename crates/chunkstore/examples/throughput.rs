//! Measures a store on a directory against a plain loop of `pwrite` and CRC-32C on the same file system.
//!
//! Usage: `throughput <empty directory> [MiB]`. Every line is one figure: per second of the clock, and per second of processor
//! time (which is what counts on a busy machine). Only ratios inside one run count.

use ashlar_chunkstore::{ChunkStore, Config, ENGINE_DIR, TargetIdentity, TargetUuid};
use ashlar_env::os::OsDisk;
use ashlar_env::{Disk, Env, OpenMode};
use ashlar_kv::{FjallEngine, FjallOptions};
use ashlar_types::codec::crc32c;
use ashlar_types::{ChunkId, ClusterId, InodeId, TargetId};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const MIB: usize = 1 << 20;
const SMALL_OPS: u64 = 300_000;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let root = PathBuf::from(arguments.next().ok_or("usage: throughput <empty directory> [MiB]")?);
    let chunks: u64 = arguments.next().map_or(Ok(1024), |count| count.parse())?;
    std::fs::create_dir_all(&root)?;
    let raw = raw_loop(&root, chunks)?;
    let store = open(&root)?;
    let data = vec![0x5a; MIB];
    let fresh = rate("new 1 MiB chunks", chunks, || write_all(&store, 1, chunks, &data))?;
    println!("    {:.0} % of the plain loop", 100.0 * fresh / raw.0);
    timed("sync", || Ok(store.sync()?))?;
    let before = store.stats();
    let over = rate("sequential overwrite, 1 MiB", chunks, || write_all(&store, 1, chunks, &data))?;
    let after = store.stats();
    println!(
        "    {:.0} % of the plain loop; {} flushes marked {} regions",
        100.0 * over / raw.1,
        after.mark_flushes - before.mark_flushes,
        after.regions_marked - before.regions_marked
    );
    rate("read 1 MiB", chunks, || read_all(&store, 1, chunks))?;
    for threads in [1, 2] {
        small(&store, threads, chunks, "random 4 KiB overwrite", &|store, id, at, buffer| {
            Ok(store.write(id, MIB as u32, at, buffer, None).map(|_| ())?)
        })?;
        small(&store, threads, chunks, "random 4 KiB read", &|store, id, at, buffer| {
            Ok(store.read(id, MIB as u32, at, buffer).map(|_| ())?)
        })?;
    }
    timed("sync", || Ok(store.sync()?))?;
    synced_overwrites(&store, chunks)?;
    recycle(&store, chunks, &data, raw.1)?;
    pieces(&store, 512)?;
    println!("{:?}", store.stats());
    timed("close", || Ok(store.close()?))?;
    drop(store);
    timed("open", || open(&root).map(drop))
}

fn open(root: &std::path::Path) -> Result<ChunkStore, Failure> {
    let disk = Arc::new(OsDisk::new(root));
    let identity =
        TargetIdentity { cluster: ClusterId([1; 16]), target: TargetId(1), uuid: TargetUuid([2; 16]) };
    if ChunkStore::header(&*disk).is_err() {
        ChunkStore::format(&*disk, &identity)?;
    }
    let engine = root.join(ENGINE_DIR);
    let make = move || Ok(Box::new(FjallEngine::open(engine, FjallOptions::default())?) as Box<_>);
    let (store, report) = ChunkStore::open(disk, make, &Env::os(), &identity, Config::default())?;
    println!("opened: {report:?}");
    Ok(store)
}

fn id(inode: u64, index: u64) -> ChunkId {
    ChunkId { inode: InodeId(inode), generation: 1, index }
}

/// Processor time of this process so far, seconds.
fn processor_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer, and the call keeps no reference to it.
    let answer = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    if answer == 0 { time.tv_sec as f64 + time.tv_nsec as f64 / 1e9 } else { f64::NAN }
}

fn timed(what: &str, call: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    let start = Instant::now();
    call()?;
    println!("{what}: {:.3} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// MiB per second of processor time.
fn rate(what: &str, mib: u64, call: impl FnOnce() -> Result<(), Failure>) -> Result<f64, Failure> {
    count(what, "MiB", mib, call)
}

fn count(
    what: &str,
    unit: &str,
    number: u64,
    call: impl FnOnce() -> Result<(), Failure>,
) -> Result<f64, Failure> {
    let (start, processor) = (Instant::now(), processor_seconds());
    call()?;
    let elapsed = number as f64 / start.elapsed().as_secs_f64();
    let rate = number as f64 / (processor_seconds() - processor);
    println!("{what}: {elapsed:.0} {unit}/s, {rate:.0} per processor second");
    Ok(rate)
}

/// The ceiling: one file, one `pwrite` and one CRC-32C per 4 KiB for each MiB; into new space, and over old data.
fn raw_loop(root: &std::path::Path, chunks: u64) -> Result<(f64, f64), Failure> {
    let disk = OsDisk::new(root);
    let file = disk.open("raw", OpenMode::CreateOrOpen)?;
    let data = vec![0x5a; MIB];
    let mut sum = 0;
    let mut pass = |what: &str| {
        rate(what, chunks, || {
            for index in 0..chunks {
                sum = data.chunks(4096).fold(sum, |sum, block| sum ^ crc32c(0, block));
                file.write_at(index * MIB as u64, &data)?;
            }
            Ok(())
        })
    };
    let result = (pass("plain loop, 1 MiB, new space")?, pass("plain loop, 1 MiB, overwrite")?);
    let mut block = vec![0x5a; 4096];
    let mut random = 1_u64;
    count("plain loop, 4 KiB, half written, half read", "ops", SMALL_OPS, || {
        for op in 0..SMALL_OPS {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (random >> 33) % (chunks * 256) * 4096;
            if op % 2 == 0 {
                file.write_at(at, &block)?;
            } else {
                file.read_at(at, &mut block)?;
            }
            sum ^= crc32c(0, &block);
        }
        Ok(())
    })?;
    disk.remove("raw")?;
    std::hint::black_box(sum);
    Ok(result)
}

fn write_all(store: &ChunkStore, inode: u64, chunks: u64, data: &[u8]) -> Result<(), Failure> {
    for index in 0..chunks {
        store.write(id(inode, index), MIB as u32, 0, data, None)?;
    }
    Ok(())
}

fn read_all(store: &ChunkStore, inode: u64, chunks: u64) -> Result<(), Failure> {
    let mut out = vec![0; MIB];
    for index in 0..chunks {
        store.read(id(inode, index), MIB as u32, 0, &mut out)?;
    }
    Ok(())
}

/// One small operation: store, chunk, offset, buffer.
type SmallCall = dyn Fn(&ChunkStore, ChunkId, u32, &mut [u8]) -> Result<(), Failure> + Sync;

fn small(store: &ChunkStore, threads: u64, chunks: u64, what: &str, call: &SmallCall) -> Result<(), Failure> {
    let run = |thread: u64| {
        let mut buffer = vec![0x33; 4096];
        let mut random = thread + 7;
        for _ in 0..SMALL_OPS {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (random >> 33) % (chunks * 256);
            call(store, id(1, at / 256), (at % 256) as u32 * 4096, &mut buffer)?;
        }
        Ok(())
    };
    let run = &run;
    count(&format!("{what}, {threads} threads"), "ops", SMALL_OPS * threads, || {
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
            workers.into_iter().try_for_each(|worker| {
                worker.join().unwrap_or_else(|_| Err(Failure::from("a worker panicked")))
            })
        })
    })?;
    Ok(())
}

/// What an fsync after every overwrite costs, region marks included.
fn synced_overwrites(store: &ChunkStore, chunks: u64) -> Result<(), Failure> {
    count("4 KiB overwrite and sync", "ops", 200, || {
        for index in 0..200 {
            store.write(id(1, index * 7 % chunks), MIB as u32, 8192, &[1; 4096], None)?;
            store.sync()?;
        }
        Ok(())
    })?;
    Ok(())
}

/// Deletes everything and writes it again into the same slots.
fn recycle(store: &ChunkStore, chunks: u64, data: &[u8], raw: f64) -> Result<(), Failure> {
    count("delete", "chunks", chunks, || {
        let mut from = Some(0);
        while let Some(index) = from {
            from = store.delete_generation(InodeId(1), 1, index)?.next;
        }
        Ok(())
    })?;
    store.sync()?;
    let rate = rate("new 1 MiB chunks in recycled slots", chunks, || write_all(store, 2, chunks, data))?;
    println!("    {:.0} % of the plain loop", 100.0 * rate / raw);
    Ok(())
}

/// Chunks of 1 MiB written in pieces of 64 KiB, aligned and not.
fn pieces(store: &ChunkStore, chunks: u64) -> Result<(), Failure> {
    for (what, size) in [("64 KiB appends, aligned", 65_536), ("61,000 byte appends", 61_000)] {
        let data = vec![7; size];
        rate(what, chunks, || {
            for index in 0..chunks {
                let mut at = 0;
                while at < MIB {
                    let len = size.min(MIB - at);
                    store.write(id(size as u64, index), MIB as u32, at as u32, &data[..len], None)?;
                    at += len;
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}
