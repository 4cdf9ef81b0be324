//! What files of a worker must contain, and a file on another file system that says what was done, as it is done.
//!
//! What a call that failed has done is not known: its file is *in doubt*, and nothing is said about it.

use anyhow::{Context, Result};
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// LIMIT: names of files that were removed, which are looked for in the end.
const GONE_MAX: usize = 200;

/// Something done to the content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Write { at: usize, len: usize, seed: u64 },
    Cut { len: usize },
}

/// Bytes that follow from a number, and that no two numbers have in common.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out
}

/// What a file contains after these steps.
pub fn content(steps: &[Step]) -> Vec<u8> {
    let mut found = Vec::new();
    for step in steps {
        match *step {
            Step::Write { at, len, seed } => {
                if found.len() < at + len {
                    found.resize(at + len, 0);
                }
                if let Some(place) = found.get_mut(at..at + len) {
                    place.copy_from_slice(&bytes(seed, len));
                }
            }
            Step::Cut { len } => found.resize(len, 0),
        }
    }
    found
}

/// Files of a worker, by the name below the directory of the drill.
#[derive(Debug, Default)]
pub struct Ledger {
    files: BTreeMap<String, Vec<Step>>,
    /// In the order in which they were made.
    order: VecDeque<String>,
    gone: VecDeque<String>,
    in_doubt: u64,
}

impl Ledger {
    pub fn made(&mut self, name: &str, steps: Vec<Step>) {
        self.files.insert(name.to_owned(), steps);
        self.order.push_back(name.to_owned());
    }

    pub fn done(&mut self, name: &str, step: Step) {
        if let Some(steps) = self.files.get_mut(name) {
            steps.push(step);
        }
    }

    pub fn renamed(&mut self, from: &str, to: &str) {
        if let Some(steps) = self.files.remove(from) {
            self.order.retain(|name| name != from);
            self.made(to, steps);
            self.note_gone(from);
        }
    }

    pub fn removed(&mut self, name: &str) {
        if self.files.remove(name).is_some() {
            self.order.retain(|known| known != name);
            self.note_gone(name);
        }
    }

    fn note_gone(&mut self, name: &str) {
        self.gone.push_back(name.to_owned());
        if self.gone.len() > GONE_MAX {
            self.gone.pop_front();
        }
    }

    /// Nobody knows any more what is there.
    pub fn doubt(&mut self, name: &str) {
        self.forget(name);
        self.in_doubt += 1;
    }

    /// It is not looked at any more: what is wrong with it has been told.
    pub fn forget(&mut self, name: &str) {
        self.files.remove(name);
        self.order.retain(|known| known != name);
        self.gone.retain(|known| known != name);
    }

    /// How many files are in doubt since the last time that this was asked.
    pub fn take_in_doubt(&mut self) -> u64 {
        std::mem::take(&mut self.in_doubt)
    }

    pub fn files(&self) -> impl Iterator<Item = (&str, &[Step])> {
        self.files.iter().map(|(name, steps)| (name.as_str(), steps.as_slice()))
    }

    pub fn gone(&self) -> impl Iterator<Item = &str> {
        self.gone.iter().map(String::as_str)
    }

    pub fn steps(&self, name: &str) -> &[Step] {
        self.files.get(name).map_or(&[], Vec::as_slice)
    }

    /// The oldest one, if there are more than so many.
    pub fn oldest_of_more_than(&self, most: usize) -> Option<&str> {
        self.order.front().filter(|_| self.order.len() > most).map(String::as_str)
    }

    /// One of them, by any number.
    pub fn any(&self, number: u64) -> Option<&str> {
        let count = self.order.len() as u64;
        let at = number.checked_rem(count).unwrap_or(0);
        self.order.get(at as usize).map(String::as_str)
    }
}

/// The file of it. What could not be written does not hold up a drill; it is told in the end.
pub struct Diary {
    file: Mutex<(File, Option<std::io::Error>)>,
}

impl Diary {
    pub fn make(path: &Path) -> Result<Diary> {
        let file = File::create(path)
            .with_context(|| format!("cannot make {}: name another file with --ledger", path.display()))?;
        Ok(Diary { file: Mutex::new((file, None)) })
    }

    /// A line of it: with the call alone it is there whatever becomes of this process.
    pub fn write(&self, line: &Value) {
        let mut file = self.file.lock();
        if file.1.is_none()
            && let Err(error) = file.0.write_all(format!("{line}\n").as_bytes())
        {
            file.1 = Some(error);
        }
    }

    /// Why it is not complete, if it is not.
    pub fn trouble(&self) -> Option<String> {
        self.file.lock().1.as_ref().map(ToString::to_string)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn content_follows_from_what_was_done() {
        let steps = [Step::Write { at: 0, len: 10, seed: 1 }, Step::Write { at: 4, len: 3, seed: 2 }];
        let found = content(&steps);
        assert_eq!(found[..4], bytes(1, 10)[..4]);
        assert_eq!((&found[4..7], &found[7..]), (&bytes(2, 3)[..], &bytes(1, 10)[7..]));
        let cut = content(&[steps[0], Step::Cut { len: 4 }, Step::Write { at: 6, len: 1, seed: 3 }]);
        assert_eq!(cut, [&bytes(1, 4)[..], &[0, 0], &bytes(3, 1)[..]].concat());
        assert!(bytes(1, 100) != bytes(2, 100));
    }

    #[test]
    fn what_a_call_has_done_that_failed_is_in_doubt() {
        let mut ledger = Ledger::default();
        ledger.made("a", vec![Step::Cut { len: 1 }]);
        ledger.made("b", vec![Step::Cut { len: 2 }]);
        ledger.renamed("a", "c");
        ledger.doubt("b");
        assert_eq!(ledger.files().map(|(name, _)| name).collect::<Vec<_>>(), ["c"]);
        assert_eq!(ledger.gone().collect::<Vec<_>>(), ["a"], "of the one in doubt nothing is known");
        assert_eq!((ledger.take_in_doubt(), ledger.oldest_of_more_than(0)), (1, Some("c")));
        ledger.removed("c");
        assert_eq!((ledger.gone().count(), ledger.any(7)), (2, None));
    }

    #[test]
    fn a_diary_has_every_line_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger");
        let diary = Diary::make(&path).unwrap();
        diary.write(&serde_json::json!({ "call": "write" }));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"call\":\"write\"}\n");
        assert_eq!(diary.trouble(), None);
        assert!(Diary::make(&dir.path().join("no/ledger")).is_err());
    }
}
