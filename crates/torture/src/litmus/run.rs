//! Running a row once: folders, clients, judgement.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use anyhow::{Context, bail};

use super::client::{Client, Ended, Signals};
use super::condition::{Condition, Registers};
use super::history::History;
use super::statement::{Statement, parse};
use super::{Row, Stale};
use crate::rng::Rng;

/// LIMIT: for how long all clients of a row may take together.
const RUN_MAX: Duration = Duration::from_secs(120);

/// A row made ready to run.
#[derive(Debug)]
pub struct Litmus {
    row: &'static Row,
    before: Vec<Statement>,
    clients: Vec<Vec<Statement>>,
    finally: Vec<Statement>,
    forbidden: Vec<(&'static str, Condition)>,
}

/// What came out that may not.
#[derive(Debug)]
pub struct Violation {
    /// What it was.
    pub what: String,
    /// Who did what when.
    pub history: History,
    /// Whether a client hangs, so that nothing more can be run.
    pub is_stuck: bool,
}

/// Where a row is run.
#[derive(Clone, Debug)]
pub struct Place<'a> {
    /// The same directory through all mounts.
    pub dirs: &'a [PathBuf],
    /// The folder to make there.
    pub folder: &'a str,
    /// Whether a client has an old copy, as the row says.
    pub is_stale: bool,
}

impl Litmus {
    /// Reads a row.
    ///
    /// # Errors
    /// When a statement or condition cannot be read.
    pub fn new(row: &'static Row) -> anyhow::Result<Self> {
        let read = || -> anyhow::Result<Self> {
            Ok(Self {
                row,
                before: parse(row.before)?,
                clients: row.clients.iter().map(|text| parse(text)).collect::<anyhow::Result<_>>()?,
                finally: parse(row.finally)?,
                forbidden: row
                    .forbidden
                    .iter()
                    .map(|text| Ok((*text, Condition::parse(text)?)))
                    .collect::<anyhow::Result<_>>()?,
            })
        };
        read().with_context(|| format!("the row `{}`", row.name))
    }

    /// Runs it once; `Ok(Some(..))` is a violation.
    ///
    /// # Errors
    /// When the folders cannot be made or removed, or a statement makes no sense.
    pub fn run(&self, place: &Place<'_>, rng: &mut Rng) -> anyhow::Result<Option<Violation>> {
        // Each time another client is on the first mount.
        let first = rng.index(place.dirs.len());
        let root_of = |client: usize| place.dirs[(first + client) % place.dirs.len()].join(place.folder);
        let home = place.dirs[0].join(place.folder);
        for folder in [home.clone(), home.join("x"), home.join("y")] {
            fs::create_dir(&folder).with_context(|| format!("make {}", folder.display()))?;
        }
        let mut setter = Client::new(self.clients.len(), home.clone());
        if let Ended::Badly(what) = setter.run(&self.before, &Signals::default(), None) {
            let history = History { events: setter.events };
            return Ok(Some(Violation { what, history, is_stuck: false }));
        }
        let mut copies = Vec::new();
        let mut clients = Vec::new();
        for number in 0..self.clients.len() {
            let mut root = root_of(number);
            if place.is_stale && self.row.stale.client == number {
                root = copy(&root, self.row.stale)?;
                copies.push(root.clone());
            }
            clients.push(Client::new(number, root));
        }
        let violation = self.race(clients, setter, rng)?;
        if violation.as_ref().is_none_or(|violation| !violation.is_stuck) {
            for folder in copies.iter().chain([&home]) {
                fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))?;
            }
        }
        Ok(violation)
    }

    fn race(&self, clients: Vec<Client>, setter: Client, rng: &mut Rng) -> anyhow::Result<Option<Violation>> {
        let signals = Arc::new(Signals::default());
        let count = clients.len();
        let (ended, endings) = sync_channel(count);
        for (mut client, statements) in clients.into_iter().zip(self.clients.clone()) {
            let (ended, signals) = (ended.clone(), signals.clone());
            let delays = Rng::new(rng.next_u64());
            std::thread::spawn(move || {
                let how = client.run(&statements, &signals, Some(delays));
                // Nobody listens any more after a client that hangs.
                let _ = ended.send((client, how));
            });
        }
        drop(ended);
        let mut history = History { events: setter.events };
        let mut over: Vec<(Client, Ended)> = Vec::new();
        while over.len() < count {
            match endings.recv_timeout(RUN_MAX) {
                Ok(ending) => over.push(ending),
                Err(RecvTimeoutError::Disconnected) => bail!("a client of `{}` panicked", self.row.name),
                Err(RecvTimeoutError::Timeout) => {
                    let there: Vec<usize> = over.iter().map(|(client, _)| client.number).collect();
                    history.events.extend(over.into_iter().flat_map(|(client, _)| client.events));
                    let what =
                        format!("of {count} clients only {there:?} have ended after {} s", RUN_MAX.as_secs());
                    return Ok(Some(Violation { what, history, is_stuck: true }));
                }
            }
        }
        over.sort_by_key(|(client, _)| client.number);
        let what = self.judge(&mut over)?;
        history.events.extend(over.into_iter().flat_map(|(client, _)| client.events));
        Ok(what.map(|what| Violation { what, history, is_stuck: false }))
    }

    /// Does what is done finally, and says what may not be.
    fn judge(&self, over: &mut [(Client, Ended)]) -> anyhow::Result<Option<String>> {
        for (_, ended) in over.iter() {
            if let Ended::Badly(what) = ended {
                return Ok(Some(what.clone()));
            }
        }
        let mut registers = Registers::new();
        for (client, _) in over.iter() {
            registers.extend(client.registers.clone());
        }
        let mut views: Vec<Registers> = Vec::new();
        for (client, _) in over.iter_mut() {
            client.registers.clear();
            if let Ended::Badly(what) = client.run(&self.finally, &Signals::default(), None) {
                return Ok(Some(what));
            }
            views.push(client.registers.clone());
            client.close();
        }
        for (number, view) in views.iter().enumerate() {
            let mut all = registers.clone();
            all.extend(view.clone());
            for (text, condition) in &self.forbidden {
                if condition.holds(&all).with_context(|| format!("the row `{}`", self.row.name))? {
                    return Ok(Some(format!("forbidden: {text}; in the end client {number} has {all:?}")));
                }
            }
            if view != &views[0] {
                return Ok(Some(format!("client {number} sees {view:?}, and client 0 {:?}", views[0])));
            }
        }
        Ok(None)
    }
}

/// A folder beside `root` with a copy of the folders that are old, and the way to the others.
fn copy(root: &Path, stale: Stale) -> anyhow::Result<PathBuf> {
    let name = root.file_name().context("a folder has a name")?.to_string_lossy().into_owned();
    let old = root.with_file_name(format!("{name}-old"));
    fs::create_dir(&old).with_context(|| format!("make {}", old.display()))?;
    for folder in ["x", "y"] {
        let (from, to) = (root.join(folder), old.join(folder));
        if stale.folders.contains(folder) {
            let status = Command::new("cp").arg("-a").arg(&from).arg(&to).status().context("start cp")?;
            if !status.success() {
                bail!("cp -a {} {} ended with {status}", from.display(), to.display());
            }
        } else {
            symlink(&from, &to).with_context(|| format!("make {}", to.display()))?;
        }
    }
    Ok(old)
}
