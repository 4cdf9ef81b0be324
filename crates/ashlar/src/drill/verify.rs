//! The end of a failure: every file of the ledger is read through the other mount and compared byte by byte, and names that were removed are looked for.

use super::call::{Told, difference};
use super::ledger::content;
use super::load::{Dirs, Worker, ended_of, read, start_apart};
use crate::terminal::shown;
use anyhow::Result;
use std::io::ErrorKind;
use std::time::Duration;

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Verified {
    pub files: u64,
    pub bytes: u64,
    /// Files of which a call had failed, so that nobody knows what they must contain.
    pub in_doubt: u64,
    /// Files that are not what they must be, that could not be read, or are back.
    pub wrong: Told,
    /// Workers whose files could not be looked at in time.
    pub not_looked_at: usize,
}

/// Compares the files of all `workers`, who get them back; for at most `patience`.
pub fn verify(
    workers: Vec<Worker>,
    dirs: &Dirs,
    expected: usize,
    patience: Duration,
) -> Result<(Vec<Worker>, Verified)> {
    let look = |mut worker: Worker| {
        let dirs = dirs.clone();
        start_apart("ashlar-verify", move || {
            let found = of(&mut worker, &dirs);
            (worker, found)
        })
    };
    let threads: Result<Vec<_>> = workers.into_iter().map(look).collect();
    let ended = ended_of(threads?, patience);
    let mut all = Verified { not_looked_at: expected.saturating_sub(ended.len()), ..Verified::default() };
    let mut workers = Vec::new();
    for (worker, found) in ended {
        all.files += found.files;
        all.bytes += found.bytes;
        all.in_doubt += found.in_doubt;
        all.wrong.add_all(found.wrong);
        workers.push(worker);
    }
    workers.sort_by_key(Worker::number);
    Ok((workers, all))
}

fn of(worker: &mut Worker, dirs: &Dirs) -> Verified {
    let mut found = Verified { in_doubt: worker.ledger.take_in_doubt(), ..Verified::default() };
    // Each is told once.
    let mut told = Vec::new();
    for (name, steps) in worker.ledger.files() {
        let path = dirs.path(worker.number() + 1, name);
        found.files += 1;
        let wrong = match read(&path) {
            Ok(bytes) => {
                found.bytes += bytes.len() as u64;
                difference(&content(steps), &bytes)
            }
            Err(error) => Some(format!("cannot be read: {error}")),
        };
        told.extend(wrong.map(|what| (name.to_owned(), format!("{} {what}", shown(&path)))));
    }
    for name in worker.ledger.gone() {
        let path = dirs.path(worker.number() + 1, name);
        let wrong = match path.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => Some(format!("was removed, and now: {error}")),
            Ok(_) => Some("was removed, and is back".to_owned()),
        };
        told.extend(wrong.map(|what| (name.to_owned(), format!("{} {what}", shown(&path)))));
    }
    for (name, text) in told {
        worker.ledger.forget(&name);
        found.wrong.add(text);
    }
    found
}
