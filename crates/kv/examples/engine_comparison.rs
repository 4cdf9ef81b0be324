//! Candidates for the engine under the load they would get: checkpoints of 32 MiB of sorted changes, then reads.
//!
//! `cargo run --release -p ashlar-kv --features compare-lmdb --example engine_comparison -- ENGINE DIRECTORY FILES [BODY]`
//! with ENGINE one of `fjall`, `fjall-separate` and `lmdb`. Every file is an entry of ~12 bytes and an inode of 150 bytes, in
//! directories of 1,000; with BODY also a body of that many bytes. The numbers of docs/adr/0002-embedded-engine.md are from
//! here.

use ashlar_kv::{Engine, EngineChanges, FjallEngine, FjallOptions, Key, KvError};
use bytes::Bytes;
use heed::types::Bytes as Raw;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::ops::{Bound, ControlFlow};
use std::time::Instant;

const FILES_PER_DIRECTORY: u64 = 1000;
const CHECKPOINT_BYTES: usize = 32 << 20;
/// Overhead that the overlay counts per entry.
const ENTRY_BYTES: usize = 128;

fn mix(n: u64) -> u64 {
    n.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

fn key(kind: u8, a: u64, b: &[u8]) -> Key {
    let mut key = Key::from_slice(&[0, 0, kind]);
    key.extend_from_slice(&a.to_be_bytes());
    key.extend_from_slice(b);
    key
}

/// An entry, in the order of its name's hash.
fn entry_key(file: u64) -> Key {
    let hash = mix(file).to_be_bytes();
    key(2, file / FILES_PER_DIRECTORY, &[&hash, format!("file-{file:010}").as_bytes()].concat())
}

fn inode_key(file: u64) -> Key {
    key(3, file, &[])
}

fn body_key(file: u64) -> Key {
    key(5, file, &[])
}

fn fill(len: usize, seed: u64) -> Bytes {
    (0..len).map(|i| (mix(seed + i as u64 / 4) >> (8 * (i % 4))) as u8).collect::<Vec<u8>>().into()
}

/// LMDB through heed, one transaction per checkpoint, synced at commit.
struct Lmdb {
    env: heed::Env,
    pairs: heed::Database<Raw, Raw>,
    path: String,
}

impl Lmdb {
    fn open(path: &str) -> Result<Lmdb, KvError> {
        std::fs::create_dir_all(path).map_err(|source| KvError::Io { what: path.to_owned(), source })?;
        let mut options = heed::EnvOpenOptions::new();
        options.map_size(64 << 30).max_dbs(1);
        // SAFETY: nothing else writes to the directory while this program runs.
        let env = unsafe { options.open(path) }.map_err(other)?;
        let mut transaction = env.write_txn().map_err(other)?;
        let pairs = env.create_database(&mut transaction, None).map_err(other)?;
        transaction.commit().map_err(other)?;
        Ok(Lmdb { env, pairs, path: path.to_owned() })
    }
}

fn other(error: heed::Error) -> KvError {
    KvError::Io { what: "lmdb".to_owned(), source: std::io::Error::other(error.to_string()) }
}

impl Engine for Lmdb {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        let transaction = self.env.read_txn().map_err(other)?;
        let value = self.pairs.get(&transaction, key).map_err(other)?;
        Ok(value.map(Bytes::copy_from_slice))
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut ashlar_kv::Visit<'_>) -> Result<(), KvError> {
        let transaction = self.env.read_txn().map_err(other)?;
        for pair in
            self.pairs.range(&transaction, &(Bound::Included(from), Bound::Excluded(to))).map_err(other)?
        {
            let (key, value) = pair.map_err(other)?;
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn snapshot(&self) -> Result<ashlar_kv::LastingSnapshot, KvError> {
        Err(KvError::Invalid { what: "nothing is compared that needs one".to_owned() })
    }

    fn apply(&self, changes: &mut EngineChanges<'_>, note: &[u8]) -> Result<(), KvError> {
        let mut transaction = self.env.write_txn().map_err(other)?;
        self.pairs.put(&mut transaction, &[0], note).map_err(other)?;
        for (key, value) in changes {
            match value {
                Some(value) => self.pairs.put(&mut transaction, key, value).map_err(other)?,
                None => drop(self.pairs.delete(&mut transaction, key).map_err(other)?),
            }
        }
        transaction.commit().map_err(other)
    }

    fn note(&self) -> Result<Option<Bytes>, KvError> {
        self.get(&[0])
    }

    fn verify(&self) -> Result<ashlar_kv::EngineReport, KvError> {
        Ok(ashlar_kv::EngineReport::default())
    }

    fn bytes_used(&self) -> u64 {
        std::fs::metadata(format!("{}/data.mdb", self.path)).map_or(0, |metadata| metadata.len())
    }

    fn close(&self) -> Result<(), KvError> {
        Ok(())
    }
}

/// A counter of this process from /proc/self/io.
fn process_io(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim));
    line.and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks: u64 = [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}

fn main() -> Result<(), KvError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, dir, files, rest @ ..] = arguments.as_slice() else {
        eprintln!("engine_comparison ENGINE DIRECTORY FILES [BODY]");
        std::process::exit(2);
    };
    let files: u64 = files.parse().unwrap_or(100_000);
    let body: usize = rest.first().and_then(|body| body.parse().ok()).unwrap_or(0);
    let engine: Box<dyn Engine> = match name.as_str() {
        "lmdb" => Box::new(Lmdb::open(dir)?),
        separate => {
            let threshold = (separate == "fjall-separate").then_some(1024);
            let options = FjallOptions { separate_values_from: threshold, ..FjallOptions::default() };
            Box::new(FjallEngine::open(dir, options)?)
        }
    };
    println!("== {name}, {files} files, bodies of {body} bytes");
    create_all(engine.as_ref(), files, body)?;
    if body > 0 {
        rewrite_inodes(engine.as_ref(), files)?;
    }
    measure_gets(
        engine.as_ref(),
        "stat, a directory after the other",
        (0..files).step_by(7).take(200_000),
        inode_key,
    )?;
    let scattered = |count: u64| (0..count).map(|n| mix(n) % files);
    measure_gets(engine.as_ref(), "stat, scattered", scattered(100_000), inode_key)?;
    measure_gets(engine.as_ref(), "lookup, scattered", scattered(100_000), entry_key)?;
    measure_gets(
        engine.as_ref(),
        "lookup of absent names",
        scattered(100_000).map(|n| n + files),
        entry_key,
    )?;
    if body > 0 {
        measure_gets(engine.as_ref(), "read of a body, scattered", scattered(50_000), body_key)?;
    }
    measure_scans(engine.as_ref(), files)?;
    engine.close()
}

fn report(what: &str, count: u64, start: Instant, processor: f64) {
    let each = |seconds: f64| seconds / count.max(1) as f64 * 1e6;
    let clock = start.elapsed().as_secs_f64();
    let processor = processor_seconds() - processor;
    println!("{what}: {:.2} us each ({:.2} us of processor), {clock:.1} s", each(clock), each(processor));
}

/// Applies checkpoints of full overlays.
struct Batches<'a> {
    engine: &'a dyn Engine,
    overlay: BTreeMap<Key, Bytes>,
    bytes: usize,
    slowest: f64,
    total: f64,
    count: u32,
}

impl Batches<'_> {
    fn new(engine: &dyn Engine) -> Batches<'_> {
        Batches { engine, overlay: BTreeMap::new(), bytes: 0, slowest: 0.0, total: 0.0, count: 0 }
    }

    fn put(&mut self, key: Key, value: Bytes) -> Result<(), KvError> {
        self.bytes += ENTRY_BYTES + value.len();
        self.overlay.insert(key, value);
        if self.bytes >= CHECKPOINT_BYTES { self.apply() } else { Ok(()) }
    }

    fn apply(&mut self) -> Result<(), KvError> {
        let start = Instant::now();
        let mut changes = self.overlay.iter().map(|(key, value)| (key, Some(value)));
        self.engine.apply(&mut changes, b"note")?;
        let took = start.elapsed().as_secs_f64();
        (self.slowest, self.total, self.count) = (self.slowest.max(took), self.total + took, self.count + 1);
        (self.overlay, self.bytes) = (BTreeMap::new(), 0);
        Ok(())
    }
}

fn create_all(engine: &dyn Engine, files: u64, body: usize) -> Result<(), KvError> {
    let (start, processor, written) = (Instant::now(), processor_seconds(), process_io("write_bytes"));
    let mut batches = Batches::new(engine);
    let inode = fill(150, 1);
    // Directories are filled in parallel, sixteen at a time.
    for n in 0..files {
        let block = n / (16 * FILES_PER_DIRECTORY);
        let within = n % (16 * FILES_PER_DIRECTORY);
        let file = block * 16 * FILES_PER_DIRECTORY + (within % 16) * FILES_PER_DIRECTORY + within / 16;
        batches.put(entry_key(file), Bytes::from_static(&[7; 12]))?;
        batches.put(inode_key(file), inode.clone())?;
        if body > 0 {
            batches.put(body_key(file), fill(body, file))?;
        }
    }
    batches.apply()?;
    report("create", files, start, processor);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "  {} checkpoints, mean {:.2} s, slowest {:.2} s; {:.0} MiB written, {:.0} MiB on disk, {:.0} MiB logical",
        batches.count,
        batches.total / f64::from(batches.count),
        batches.slowest,
        mib(process_io("write_bytes") - written),
        mib(engine.bytes_used()),
        mib(files * (150 + 12 + 11 + 34 + body as u64)),
    );
    Ok(())
}

/// What chmod, utimes and writes do to files that have a body: the inode changes, the body does not.
fn rewrite_inodes(engine: &dyn Engine, files: u64) -> Result<(), KvError> {
    let (start, processor, written) = (Instant::now(), processor_seconds(), process_io("write_bytes"));
    let mut batches = Batches::new(engine);
    for n in 0..files {
        batches.put(inode_key(mix(n) % files), fill(150, n))?;
    }
    batches.apply()?;
    report("inode update, scattered", files, start, processor);
    println!("  {} MiB written", (process_io("write_bytes") - written) >> 20);
    Ok(())
}

fn measure_gets(
    engine: &dyn Engine,
    what: &str,
    files: impl Iterator<Item = u64>,
    key: impl Fn(u64) -> Key,
) -> Result<(), KvError> {
    let (start, processor) = (Instant::now(), processor_seconds());
    let (mut count, mut found) = (0, 0);
    for file in files {
        count += 1;
        found += u64::from(black_box(engine.get(&key(file))?).is_some());
    }
    report(&format!("{what} ({found} of {count} found)"), count, start, processor);
    Ok(())
}

fn measure_scans(engine: &dyn Engine, files: u64) -> Result<(), KvError> {
    let (start, processor) = (Instant::now(), processor_seconds());
    let mut pairs = 0;
    for n in 0..300 {
        let directory = mix(n) % (files / FILES_PER_DIRECTORY).max(1);
        engine.scan(&key(2, directory, &[]), &key(2, directory + 1, &[]), &mut |_, value| {
            pairs += 1;
            black_box(value);
            ControlFlow::Continue(())
        })?;
    }
    report("readdir, per entry", pairs, start, processor);
    Ok(())
}
