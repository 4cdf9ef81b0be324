//! What a flipped bit does to a candidate engine: `cargo run --release -p ashlar-kv --features compare-lmdb --example
//! engine_damage -- DIRECTORY [ROUNDS]`. Each round flips one random bit of the file with the data and reads everything in a
//! process of its own. Values carry the same checksum in both engines, so what is counted as silent is what the engine's own
//! structure lets happen. The numbers of docs/adr/0002-embedded-engine.md are from here.

use ashlar_env::sim::SimEntropy;
use heed::types::Bytes as Raw;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use ashlar_kv::{Engine, FjallEngine, FjallOptions, Key};
use bytes::Bytes;

const PAIRS: u32 = 20_000;

type Failure = Box<dyn std::error::Error>;

fn pairs() -> BTreeMap<Key, Bytes> {
    let pair = |n: u32| {
        let mut key = Key::from_slice(&[0, (n % 3) as u8, 2]);
        key.extend_from_slice(format!("{:08x} name {n}", n.wrapping_mul(0x9E37_79B9)).as_bytes());
        (key, Bytes::from(vec![n as u8; 100 + (n % 50) as usize]))
    };
    (0..PAIRS).map(pair).collect()
}

fn seal(key: &[u8], value: &[u8]) -> Vec<u8> {
    let crc = ashlar_types::codec::crc32c(ashlar_types::codec::crc32c(0, key), value);
    [&crc.to_le_bytes(), value].concat()
}

/// One candidate's reads: `Ok(None)` is absent, an error is reported damage.
trait Candidate {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Failure>;
}

struct Lmdb {
    env: heed::Env,
    pairs: heed::Database<Raw, Raw>,
}

impl Lmdb {
    fn open(dir: &Path) -> Result<Lmdb, Failure> {
        let mut options = heed::EnvOpenOptions::new();
        options.map_size(1 << 30);
        // SAFETY: nothing writes to the directory while this program runs.
        let env = unsafe { options.open(dir)? };
        let mut transaction = env.write_txn()?;
        let pairs = env.create_database(&mut transaction, None)?;
        transaction.commit()?;
        Ok(Lmdb { env, pairs })
    }
}

impl Candidate for Lmdb {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        let transaction = self.env.read_txn()?;
        let Some(stored) = self.pairs.get(&transaction, key)? else { return Ok(None) };
        let value = stored.get(4..).unwrap_or_default().to_vec();
        if stored == seal(key, &value) { Ok(Some(value)) } else { Err("checksum of the value".into()) }
    }
}

struct Fjall(FjallEngine);

impl Candidate for Fjall {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        Ok(self.0.get(key)?.map(|value| value.to_vec()))
    }
}

fn fill(name: &str, dir: &Path) -> Result<(), Failure> {
    fs::create_dir_all(dir)?;
    let pairs = pairs();
    if name == "lmdb" {
        let lmdb = Lmdb::open(dir)?;
        let mut transaction = lmdb.env.write_txn()?;
        for (key, value) in &pairs {
            lmdb.pairs.put(&mut transaction, key, &seal(key, value))?;
        }
        transaction.commit()?;
    } else {
        let engine = FjallEngine::open(dir, FjallOptions::default())?;
        engine.apply(&mut pairs.iter().map(|(key, value)| (key, Some(value))), b"note")?;
        engine.close()?;
    }
    Ok(())
}

/// The child: exit status 0 all is right, 1 reported, 3 a key is gone or wrong without any error at its read.
fn read(name: &str, dir: &Path) -> i32 {
    let candidate: Result<Box<dyn Candidate>, Failure> = if name == "lmdb" {
        Lmdb::open(dir).map(|lmdb| Box::new(lmdb) as Box<dyn Candidate>)
    } else {
        let opened = FjallEngine::open(dir, FjallOptions::default());
        opened.map(|engine| Box::new(Fjall(engine)) as Box<dyn Candidate>).map_err(Failure::from)
    };
    let Ok(candidate) = candidate else { return 1 };
    let mut status = 0;
    for (key, value) in pairs() {
        match candidate.get(&key) {
            Ok(Some(found)) if found == value => {}
            Ok(_) => return 3,
            Err(_) => status = 1,
        }
    }
    status
}

/// The file with the most bytes that are really there.
fn largest_file(dir: &Path) -> Result<std::path::PathBuf, Failure> {
    let mut largest = (0, dir.to_owned());
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let candidate = if path.is_dir() { largest_file(&path)? } else { path };
        let is_journal = candidate.extension().is_some_and(|extension| extension == "jnl");
        let len = fs::metadata(&candidate)?.len();
        if len > largest.0 && candidate.is_file() && !is_journal {
            largest = (len, candidate);
        }
    }
    Ok(largest.1)
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [command, name, dir] = arguments.as_slice()
        && command == "read"
    {
        std::process::exit(read(name, Path::new(dir)));
    }
    let dir = Path::new(arguments.first().ok_or("engine_damage DIRECTORY [ROUNDS]")?);
    let rounds = arguments.get(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(300);
    for name in ["fjall", "lmdb"] {
        let home = dir.join(name);
        fill(name, &home)?;
        let file = largest_file(&home)?;
        let pristine = fs::read(&file)?;
        let random = SimEntropy::new(1);
        let mut outcomes = BTreeMap::<&str, u32>::new();
        for _ in 0..rounds {
            let mut damaged = pristine.clone();
            let bit = random.below(pristine.len() as u64 * 8);
            damaged[(bit / 8) as usize] ^= 1 << (bit % 8);
            fs::write(&file, damaged)?;
            let mut child = Command::new(std::env::current_exe()?);
            child.args(["read", name]).arg(&home).stderr(std::process::Stdio::null());
            let outcome = match child.status()?.code() {
                Some(0) => "harmless",
                Some(1) => "reported",
                Some(3) => "silent: a key is gone or wrong",
                _ => "crash or abort",
            };
            *outcomes.entry(outcome).or_default() += 1;
        }
        println!("{name}, {} bytes, {rounds} flipped bits: {outcomes:?}", pristine.len());
    }
    Ok(())
}
