//! What a run has done so far, beside its report: a line of JSON for each step, on the disk before the next begins.
//!
//! A run that was killed is gone on with from the last whole line. What it had left in the directory is known from here, and only that is removed.

use super::identity::Identity;
use super::plan::{Measured, Plan, Tool};
use crate::ceiling::Ceilings;
use crate::{BenchError, mark};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The first line's number; another one is another program's.
const FORMAT: u32 = 2;

/// LIMIT: how long somebody else's lock is waited for.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(1);

/// One repetition of one point by one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// How full the file system was made before, percent.
    pub fill_percent: Option<u8>,
    /// Its place in the plan's list.
    pub point: usize,
    /// Who made the load.
    pub tool: Tool,
    /// From 1.
    pub repetition: u32,
}

/// A line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Record {
    Begun { format: u32, identity: Identity },
    Place { run: String },
    Plan(Plan),
    Ceilings(Ceilings),
    Done { key: Key, seconds: f64, measured: Vec<Measured> },
}

/// What is known from the lines.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// What will be done, once it is known.
    pub plan: Option<Plan>,
    /// The ceilings, once they are measured.
    pub ceilings: Option<Ceilings>,
    /// What was measured, with the seconds that it took.
    pub done: BTreeMap<Key, (f64, Vec<Measured>)>,
    /// The runs whose directories were made or were about to be.
    places: Vec<String>,
}

impl Progress {
    fn take(&mut self, record: Record) {
        match record {
            Record::Begun { .. } => {}
            Record::Place { run } => self.places.push(run),
            Record::Plan(plan) => self.plan = Some(plan),
            Record::Ceilings(ceilings) => self.ceilings = Some(ceilings),
            Record::Done { key, seconds, measured } => {
                self.done.insert(key, (seconds, measured));
            }
        }
    }

    /// All figures, in the order of their keys.
    pub fn measured(&self) -> Vec<Measured> {
        self.done.values().flat_map(|(_, measured)| measured.clone()).collect()
    }

    /// Seconds of all that was done.
    pub fn seconds(&self) -> f64 {
        self.done.values().map(|(seconds, _)| seconds).sum()
    }

    /// Removes what an interrupted run has left in `directory`: what it has made, and nothing else.
    ///
    /// # Errors
    /// What a call answers.
    pub fn clean(&self, directory: &Path) -> Result<(), BenchError> {
        // The journal is a file that anybody may have written: only what has the mark of the run goes, and no name leads out of the directory.
        self.places
            .iter()
            .filter(|run| mark::is_run(run))
            .try_for_each(|run| mark::remove_left(directory, run))
    }

    /// The runs whose directories were made, or were about to be: for whoever sees the directory that was measured in.
    pub fn left(&self) -> &[String] {
        &self.places
    }
}

/// The file.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    /// What it says.
    pub progress: Progress,
}

impl Journal {
    /// Whether one can be begun at `path`, or gone on with: what can be refused before anything else is done.
    ///
    /// # Errors
    /// As [`Journal::begin`] and [`Journal::resume`].
    pub fn check(path: &Path, is_gone_on_with: bool) -> Result<(), BenchError> {
        match (path.exists(), is_gone_on_with) {
            (true, false) => Err(is_there(path)),
            (false, true) => Err(is_missing(path)),
            _ => Ok(()),
        }
    }

    /// Begins one at `path`, where none is.
    ///
    /// # Errors
    /// [`BenchError::Unfit`] if an interrupted run's is there; what a call answers.
    pub fn begin(path: &Path, identity: &Identity) -> Result<Journal, BenchError> {
        let file =
            OpenOptions::new().create_new(true).read(true).write(true).open(path).map_err(|answer| {
                if answer.kind() == std::io::ErrorKind::AlreadyExists {
                    is_there(path)
                } else {
                    BenchError::Io { what: "make", path: path.to_owned(), answer }
                }
            })?;
        let mut journal = Journal { path: path.to_owned(), file, progress: Progress::default() };
        journal.lock()?;
        journal.append(Record::Begun { format: FORMAT, identity: identity.clone() })?;
        Ok(journal)
    }

    /// Goes on with the one at `path`.
    ///
    /// # Errors
    /// [`BenchError::Unfit`] if it is of another place, machine or task, or no journal at all; what a call answers.
    pub fn resume(path: &Path, identity: &Identity) -> Result<Journal, BenchError> {
        let fault = |text: String| BenchError::Unfit(format!("{}: {text}", path.display()));
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(|answer| {
            if answer.kind() == std::io::ErrorKind::NotFound {
                is_missing(path)
            } else {
                BenchError::Io { what: "open", path: path.to_owned(), answer }
            }
        })?;
        let mut journal = Journal { path: path.to_owned(), file, progress: Progress::default() };
        journal.lock()?;
        let mut text = Vec::new();
        journal.file.read_to_end(&mut text).map_err(BenchError::io("read", path))?;
        let (records, whole_bytes) = records(&text);
        let mut records = records.into_iter();
        match records.next() {
            Some(Record::Begun { format: FORMAT, identity: before }) => {
                let differences = before.differences(identity);
                if !differences.is_empty() {
                    return Err(fault(format!("it is of another run: {}", differences.join("; "))));
                }
            }
            _ => {
                return Err(fault(
                    "this is no journal of a run of this release; remove it to begin anew".into(),
                ));
            }
        }
        records.for_each(|record| journal.progress.take(record));
        // What was torn off in the middle of a line was not finished.
        journal.file.set_len(whole_bytes).map_err(BenchError::io("cut", path))?;
        journal.file.seek(SeekFrom::End(0)).map_err(BenchError::io("seek in", path))?;
        Ok(journal)
    }

    /// A program that was being started when the last run let go shares its lock until it runs, which is waited for.
    fn lock(&self) -> Result<(), BenchError> {
        let begun = Instant::now();
        while rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive).is_err() {
            if begun.elapsed() > LOCK_WAIT_MAX {
                let path = self.path.display();
                return Err(BenchError::Unfit(format!("{path}: another run is writing it at this moment")));
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
        Ok(())
    }

    fn append(&mut self, record: Record) -> Result<(), BenchError> {
        let mut line = serde_json::to_vec(&record).map_err(|error| BenchError::Unfit(error.to_string()))?;
        line.push(b'\n');
        self.file.write_all(&line).map_err(BenchError::io("write", &self.path))?;
        self.file.sync_data().map_err(BenchError::io("fsync", &self.path))?;
        self.progress.take(record);
        Ok(())
    }

    /// The directory of `run` is about to be made.
    ///
    /// # Errors
    /// What a call answers.
    pub fn place(&mut self, run: &str) -> Result<(), BenchError> {
        self.append(Record::Place { run: run.to_owned() })
    }

    /// It is known what will be done.
    ///
    /// # Errors
    /// What a call answers.
    pub fn plan(&mut self, plan: &Plan) -> Result<(), BenchError> {
        self.append(Record::Plan(plan.clone()))
    }

    /// Ceilings were measured.
    ///
    /// # Errors
    /// What a call answers.
    pub fn ceilings(&mut self, ceilings: &Ceilings) -> Result<(), BenchError> {
        self.append(Record::Ceilings(ceilings.clone()))
    }

    /// A step was measured, and took so long.
    ///
    /// # Errors
    /// What a call answers.
    pub fn done(&mut self, key: Key, seconds: f64, measured: Vec<Measured>) -> Result<(), BenchError> {
        self.append(Record::Done { key, seconds, measured })
    }

    /// Removes it: the report has everything.
    ///
    /// # Errors
    /// What a call answers.
    pub fn end(self) -> Result<(), BenchError> {
        fs::remove_file(&self.path).map_err(BenchError::io("remove", &self.path))
    }
}

fn is_there(path: &Path) -> BenchError {
    BenchError::Unfit(format!(
        "{} is there: a run was interrupted. Say --resume to go on with it, or remove the file to begin anew",
        path.display()
    ))
}

fn is_missing(path: &Path) -> BenchError {
    BenchError::Unfit(format!(
        "{}: there is no interrupted run to go on with; leave --resume out",
        path.display()
    ))
}

/// The records of whole lines up to the first that is none, and the bytes that they take.
fn records(text: &[u8]) -> (Vec<Record>, u64) {
    let (mut records, mut bytes) = (Vec::new(), 0);
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let whole = line.strip_suffix(b"\n").and_then(|line| serde_json::from_slice(line).ok());
        let Some(record) = whole else { break };
        records.push(record);
        bytes += line.len() as u64;
    }
    (records, bytes)
}

#[cfg(test)]
mod tests {
    use super::super::identity::tests::identity;
    use super::super::plan::tests::{plan, point};
    use super::*;
    use crate::run::Part;

    const KEY: Key = Key { fill_percent: None, point: 0, tool: Tool::Ashlar, repetition: 1 };

    #[test]
    fn a_run_goes_on_from_the_last_whole_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.journal");
        let mut journal = Journal::begin(&path, &identity()).unwrap();
        journal.plan(&plan(vec![point(Part::Random4k, 2)])).unwrap();
        journal.done(KEY, 2.5, Vec::new()).unwrap();
        let before = journal.progress.clone();
        drop(journal);
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"done\":{\"key\"").unwrap();
        let mut journal = Journal::resume(&path, &identity()).unwrap();
        assert_eq!(journal.progress, before);
        assert_eq!(journal.progress.seconds(), 2.5);
        journal.done(Key { repetition: 2, ..KEY }, 1.0, Vec::new()).unwrap();
        drop(journal);
        let journal = Journal::resume(&path, &identity()).unwrap();
        assert_eq!(journal.progress.done.len(), 2);
        journal.end().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn another_task_another_machine_and_a_run_under_way_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.journal");
        assert!(Journal::resume(&path, &identity()).unwrap_err().to_string().contains("leave --resume out"));
        let journal = Journal::begin(&path, &identity()).unwrap();
        assert!(Journal::begin(&path, &identity()).unwrap_err().to_string().contains("--resume"));
        assert!(Journal::check(&path, false).unwrap_err().to_string().contains("--resume"));
        assert!(Journal::check(&path, true).is_ok());
        assert!(Journal::resume(&path, &identity()).unwrap_err().to_string().contains("another run"));
        drop(journal);
        let other = Identity { directory: "/mnt/other".into(), ..identity() };
        let refused = Journal::resume(&path, &other).unwrap_err().to_string();
        assert!(refused.contains("the directory was /mnt/scratch and is /mnt/other"), "{refused}");
        fs::write(&path, "something else\n").unwrap();
        assert!(Journal::resume(&path, &identity()).unwrap_err().to_string().contains("no journal"));
    }

    #[test]
    fn only_what_the_run_made_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.journal");
        let place = folder.path().join("place");
        let runs = ["0000000000000001", "0000000000000002", "0000000000000003"];
        fs::create_dir_all(place.join("theirs")).unwrap();
        for run in [runs[0], runs[2]] {
            mark::make(&place.join(mark::directory_name(run)), run, "").unwrap();
        }
        // The name of a run, made by somebody else.
        fs::create_dir(place.join(mark::directory_name(runs[1]))).unwrap();
        for name in runs.map(mark::directory_name).iter().map(String::as_str).chain(["theirs"]) {
            fs::write(place.join(name).join("x"), "x").unwrap();
        }
        let mut journal = Journal::begin(&path, &identity()).unwrap();
        for run in [runs[0], runs[1], "theirs", "../theirs", "1/../../theirs/."] {
            journal.place(run).unwrap();
        }
        journal.progress.clean(&place).unwrap();
        let mut left: Vec<_> =
            fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["ashlar-bench.0000000000000002", "ashlar-bench.0000000000000003", "theirs"]);
        let theirs = place.join("ashlar-bench.0000000000000002");
        assert!(theirs.join("x").exists() && place.join("theirs/x").exists());
    }
}
