//! Programs that use files on mounts all the time, check what they read, and note how long each call took.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

/// Bytes of a read or write; not a multiple of pages, so that hardly any is aligned.
const RECORD_BYTES: usize = 40_000;
/// Records of the file of a program, which it overwrites and reads at random places.
const RECORDS: usize = 512;
/// One of so many writes is followed by fsync.
const SYNC_EVERY: u64 = 16;
/// One of so many rounds makes, looks at and removes a file.
const NAMES_EVERY: u64 = 4;

/// How long calls took.
#[derive(Debug, Default)]
pub(super) struct Latencies(Vec<Duration>);

impl Latencies {
    pub(super) fn calls(&self) -> usize {
        self.0.len()
    }

    /// That of the call of which so many of a thousand are shorter, ms.
    pub(super) fn milliseconds(&mut self, of_thousand: usize) -> f64 {
        self.0.sort_unstable();
        let at = (self.0.len() * of_thousand / 1000).min(self.0.len().saturating_sub(1));
        self.0.get(at).map_or(0.0, |took| took.as_secs_f64() * 1e3)
    }
}

/// One program.
struct Program {
    file: File,
    dir: PathBuf,
    number: u64,
    /// The round in which each record was written the last time; 0: never.
    written: Vec<u64>,
    random: u64,
}

impl Program {
    fn new(dir: &Path, number: u64) -> anyhow::Result<Self> {
        let path = dir.join(format!("busy{number}"));
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.with_context(|| format!("open {}", path.display()))?;
        let random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(number + 1);
        Ok(Self { file, dir: dir.to_owned(), number, written: vec![0; RECORDS], random })
    }

    fn any_record(&mut self) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as usize % RECORDS
    }

    fn round(&mut self, round: u64, timed: &mut dyn FnMut(Duration)) -> anyhow::Result<()> {
        let mut time = |call: &mut dyn FnMut() -> std::io::Result<()>| {
            let begun = Instant::now();
            let done = call();
            timed(begun.elapsed());
            done
        };
        let record = self.any_record();
        let data = content(self.number, record, round);
        let file = &self.file;
        time(&mut || file.write_all_at(&data, offset(record))).context("a write")?;
        self.written[record] = round;
        if round.is_multiple_of(SYNC_EVERY) {
            time(&mut || file.sync_data()).context("a sync")?;
        }
        let record = self.any_record();
        if self.written[record] != 0 {
            let mut found = vec![0; RECORD_BYTES];
            let file = &self.file;
            time(&mut || file.read_exact_at(&mut found, offset(record))).context("a read")?;
            let is_right = found == content(self.number, record, self.written[record]);
            ensure!(is_right, "record {record} of file {} is not what was written", self.number);
        }
        if round.is_multiple_of(NAMES_EVERY) {
            let path = self.dir.join(format!("short{}", self.number));
            time(&mut || File::create_new(&path).map(drop)).context("a create")?;
            time(&mut || fs::metadata(&path).map(drop)).context("a stat")?;
            time(&mut || fs::remove_file(&path)).context("a remove")?;
        }
        Ok(())
    }
}

fn offset(record: usize) -> u64 {
    (record * RECORD_BYTES) as u64
}

fn content(file: u64, record: usize, round: u64) -> Vec<u8> {
    let seed =
        file.wrapping_mul(1_000_003) ^ (record as u64).wrapping_mul(7_919) ^ round.wrapping_mul(104_729);
    (0..RECORD_BYTES as u64).map(|at| (seed.wrapping_add(at * 31) >> (at % 5)) as u8).collect()
}

/// Has one program work in each of `dirs` while `change` is made; what that gives, and how long calls took.
///
/// # Errors
/// When a call fails, content is wrong, or `change` fails.
pub(super) fn during<T>(
    dirs: &[PathBuf],
    change: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(T, Latencies)> {
    let (is_over, latencies) = (AtomicBool::new(false), Mutex::new(Latencies::default()));
    let (is_over, latencies_of_all) = (&is_over, &latencies);
    let run = move |number: usize, dir: &Path| -> anyhow::Result<()> {
        let mut program = Program::new(dir, number as u64)?;
        let mut own = Vec::new();
        let result = (1..)
            .take_while(|_| !is_over.load(SeqCst))
            .try_for_each(|round| program.round(round, &mut |took| own.push(took)));
        if let Ok(mut all) = latencies_of_all.lock() {
            all.0.append(&mut own);
        }
        result.with_context(|| format!("in {}", dir.display()))
    };
    let changed = std::thread::scope(|scope| {
        let programs: Vec<_> =
            dirs.iter().enumerate().map(|(number, dir)| scope.spawn(move || run(number, dir))).collect();
        let changed = change();
        is_over.store(true, SeqCst);
        for program in programs {
            match program.join() {
                Ok(result) => result?,
                Err(_) => bail!("a program panicked"),
            }
        }
        changed
    })?;
    let latencies = latencies.into_inner().map_err(|_| anyhow::anyhow!("a program panicked"))?;
    Ok((changed, latencies))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_find_what_they_have_written_and_their_calls_are_counted() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let dirs = vec![directory.path().to_owned(); 2];
        let work = || {
            std::thread::sleep(Duration::from_millis(200));
            Ok(7)
        };
        let (made, mut latencies) = during(&dirs, work).expect("no call fails");
        assert_eq!(made, 7);
        assert!(latencies.calls() > 50 && latencies.milliseconds(990) >= latencies.milliseconds(500));
    }

    #[test]
    fn wrong_content_is_noticed() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("busy0");
        let spoil = || {
            std::thread::sleep(Duration::from_millis(50));
            let file = OpenOptions::new().write(true).open(&path)?;
            for _ in 0..100 {
                let end = offset(RECORDS);
                (0..end).step_by(1000).try_for_each(|at| file.write_all_at(b"spoilt", at))?;
            }
            Ok(())
        };
        let error = during(&[directory.path().to_owned()], spoil).expect_err("it is noticed");
        assert!(format!("{error:#}").contains("is not what was written"), "{error:#}");
    }

    #[test]
    fn the_longest_call_is_the_last_of_a_thousand() {
        let mut latencies = Latencies((1..=1000).map(Duration::from_millis).collect());
        assert_eq!([500, 990, 1000].map(|part| latencies.milliseconds(part)), [501.0, 991.0, 1000.0]);
    }
}
