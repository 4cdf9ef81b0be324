//! Calls of programs as they are seen from outside: how long each took, which failed, and what was not what it should be.

use super::histogram::Histogram;
use super::ledger::Diary;
use crate::terminal::shown;
use parking_lot::Mutex;
use serde_json::json;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// LIMIT: failed calls, and damaged files, that are told one by one.
const TOLD_MAX: usize = 20;
/// What takes longer is in the diary, also if it changes nothing.
const SLOW: Duration = Duration::from_secs(1);

/// What was seen in a while.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub histogram: Histogram,
    pub failed: Told,
    pub damaged: Told,
}

/// Things that were seen: all are counted, the first of them told.
#[derive(Clone, Debug, Default)]
pub struct Told {
    pub count: u64,
    pub first: Vec<String>,
}

impl Told {
    pub fn add(&mut self, text: String) {
        self.count += 1;
        if self.first.len() < TOLD_MAX {
            self.first.push(text);
        }
    }

    pub fn add_all(&mut self, other: Told) {
        self.count += other.count;
        let room = TOLD_MAX.saturating_sub(self.first.len());
        self.first.extend(other.first.into_iter().take(room));
    }
}

/// A call that has begun.
#[derive(Clone, Debug)]
struct Begun {
    call: &'static str,
    path: PathBuf,
    since: Instant,
}

/// Where all workers note what they see.
pub struct Calls {
    started: Instant,
    diary: Arc<Diary>,
    seen: Mutex<Seen>,
    /// By worker.
    under_way: Vec<Mutex<Option<Begun>>>,
}

impl Calls {
    pub fn new(diary: Arc<Diary>, workers: usize) -> Calls {
        let under_way = (0..workers).map(|_| Mutex::new(None)).collect();
        Calls { started: Instant::now(), diary, seen: Mutex::default(), under_way }
    }

    /// Does a call of a worker; nothing if it fails, which is noted.
    pub fn call<T>(
        &self,
        (worker, call): (usize, &'static str),
        path: &Path,
        does: impl FnOnce() -> io::Result<T>,
    ) -> Option<T> {
        let since = Instant::now();
        self.note_under_way(worker, Some(Begun { call, path: path.to_owned(), since }));
        let outcome = does();
        let took = since.elapsed();
        self.note_under_way(worker, None);
        let mut seen = self.seen.lock();
        seen.histogram.add(took);
        if let Err(error) = &outcome {
            let after = took.as_secs_f64();
            seen.failed.add(format!("{call} {}: {error}, after {after:.1} s", shown(path)));
        }
        drop(seen);
        if !matches!(call, "read" | "open") || outcome.is_err() || took > SLOW {
            self.diary.write(&json!({
                "at_ms": self.started.elapsed().as_millis() as u64,
                "worker": worker,
                "call": call,
                "path": shown(path),
                "took_ms": took.as_millis() as u64,
                "error": outcome.as_ref().err().map(ToString::to_string),
            }));
        }
        outcome.ok()
    }

    /// Where in the drill what follows in the diary is.
    pub fn mark(&self, failure: &str, what: &str) {
        let at_ms = self.started.elapsed().as_millis() as u64;
        self.diary.write(&json!({ "failure": failure, "what": what, "at_ms": at_ms }));
    }

    fn note_under_way(&self, worker: usize, begun: Option<Begun>) {
        if let Some(place) = self.under_way.get(worker) {
            *place.lock() = begun;
        }
    }

    /// Something that a file must not contain.
    pub fn damaged(&self, text: String) {
        self.diary.write(&json!({ "damaged": text, "at_ms": self.started.elapsed().as_millis() as u64 }));
        self.seen.lock().damaged.add(text);
    }

    /// What was seen since the last time that this was asked.
    pub fn take(&self) -> Seen {
        std::mem::take(&mut *self.seen.lock())
    }

    /// Calls that have not ended, and for how long the oldest one goes on.
    pub fn under_way(&self) -> (Vec<String>, Duration) {
        let begun: Vec<Begun> = self.under_way.iter().filter_map(|one| one.lock().clone()).collect();
        let longest = begun.iter().map(|one| one.since.elapsed()).max().unwrap_or_default();
        let tell = |one: &Begun| {
            format!("{} {}, for {:.1} s", one.call, shown(&one.path), one.since.elapsed().as_secs_f64())
        };
        (begun.iter().map(tell).collect(), longest)
    }
}

/// Where two contents begin to differ, for people; nothing if they do not.
pub fn difference(expected: &[u8], found: &[u8]) -> Option<String> {
    if expected == found {
        return None;
    }
    let at = expected.iter().zip(found).position(|(one, other)| one != other);
    Some(match at {
        None => format!("is {} bytes long instead of {}", found.len(), expected.len()),
        Some(at) => {
            let differ = expected.iter().zip(found).filter(|(one, other)| one != other).count();
            format!(
                "has other bytes than were written from byte {at} on, {differ} of {} ({} were written)",
                found.len(),
                expected.len()
            )
        }
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_difference_says_where() {
        assert_eq!(difference(b"same", b"same"), None);
        assert!(difference(b"longer", b"long").unwrap().contains("4 bytes long instead of 6"));
        assert!(difference(b"abcd", b"abXd").unwrap().contains("from byte 2 on, 1 of 4"));
    }

    #[test]
    fn a_call_that_fails_is_told_with_its_file_and_one_that_waits_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let calls = Calls::new(Arc::new(Diary::make(&dir.path().join("ledger")).unwrap()), 2);
        let path = Path::new("w1/f2");
        assert_eq!(calls.call((0, "write"), path, || Ok(7)), Some(7));
        let waiting = calls.call((1, "fsync"), path, || Ok(calls.under_way().0)).unwrap();
        assert!(waiting.len() == 1 && waiting[0].starts_with("fsync w1/f2"), "{waiting:?}");
        let failed: Option<()> =
            calls.call((1, "read"), path, || Err(io::Error::from_raw_os_error(libc::EIO)));
        assert!(failed.is_none() && calls.under_way().0.is_empty());
        let seen = calls.take();
        assert_eq!((seen.histogram.total(), seen.failed.count), (3, 1));
        let told = &seen.failed.first[0];
        assert!(told.contains("read w1/f2") && told.contains("os error 5"), "{told}");
        assert_eq!(calls.take().histogram.total(), 0, "it was taken");
        let diary = std::fs::read_to_string(dir.path().join("ledger")).unwrap();
        assert_eq!(diary.lines().count(), 3);
    }
}
