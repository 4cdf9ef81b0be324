//! A client of a row: it does its statements one after the other, on its own mount.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::condition::Registers;
use super::history::Event;
use super::statement::Statement;
use crate::rng::Rng;
use crate::sys::Errno;
use crate::sys::map::Mapping;

/// LIMIT: for how long a client waits for another one's `tell`.
const AWAIT_MAX: Duration = Duration::from_secs(60);

/// What clients have told each other.
#[derive(Debug, Default)]
pub struct Signals {
    told: Mutex<(BTreeSet<String>, bool)>,
    changed: Condvar,
}

impl Signals {
    fn tell(&self, number: &str) {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).0.insert(number.to_owned());
        self.changed.notify_all();
    }

    /// Has nobody wait any more.
    fn give_up(&self) {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.changed.notify_all();
    }

    fn wait_for(&self, number: &str) -> Result<(), Fault> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |(told, is_over): &mut (BTreeSet<String>, bool)| !told.contains(number) && !*is_over;
        let waited = self.changed.wait_timeout_while(told, AWAIT_MAX, waits);
        let (told, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if told.0.contains(number) { Ok(()) } else { Err(Fault::Alone) }
    }
}

/// Why a statement did not succeed.
#[derive(Debug)]
pub enum Fault {
    /// The kernel's answer.
    Call(Errno),
    /// The statement makes no sense.
    Statement(String),
    /// The other client has ended before it told.
    Alone,
}

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Self {
        Self::Call(errno)
    }
}

/// How a client ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It has done all its statements.
    Well,
    /// One that had to succeed did not.
    Badly(String),
    /// It waited for a client that ended badly.
    Alone,
}

/// See the module.
#[derive(Debug)]
pub struct Client {
    /// Its number, from 0.
    pub number: usize,
    /// Where its folders `x` and `y` are.
    pub root: PathBuf,
    /// The results it has kept.
    pub registers: Registers,
    /// What it has done.
    pub events: Vec<Event>,
    pub(super) handles: BTreeMap<String, OwnedFd>,
    pub(super) mappings: BTreeMap<String, Mapping>,
}

impl Client {
    /// A client that has done nothing yet.
    #[must_use]
    pub fn new(number: usize, root: PathBuf) -> Self {
        Self {
            number,
            root,
            registers: Registers::new(),
            events: Vec::new(),
            handles: BTreeMap::new(),
            mappings: BTreeMap::new(),
        }
    }

    /// Does the statements, with delays drawn from `delays` between them if there is one.
    pub fn run(&mut self, statements: &[Statement], signals: &Signals, mut delays: Option<Rng>) -> Ended {
        for statement in statements {
            if let Some(rng) = &mut delays {
                delay(rng);
            }
            let ended = self.step(statement, signals);
            if ended != Ended::Well {
                signals.give_up();
                return ended;
            }
        }
        Ended::Well
    }

    fn step(&mut self, statement: &Statement, signals: &Signals) -> Ended {
        let words: Vec<&str> = statement.words.iter().map(String::as_str).collect();
        let begin = Instant::now();
        let result = match words[..] {
            ["tell", number] => {
                signals.tell(number);
                Ok("told".to_owned())
            }
            ["await", number] => signals.wait_for(number).map(|()| "heard".to_owned()),
            _ => self.call(&words),
        };
        let (answer, ended) = match (result, &statement.register) {
            (Ok(answer), _) => (answer, Ended::Well),
            (Err(Fault::Call(errno)), Some(_)) => (format!("{errno:?}"), Ended::Well),
            (Err(Fault::Call(errno)), None) => (
                format!("{errno:?}"),
                Ended::Badly(format!("`{statement}` of client {}: {errno}", self.number)),
            ),
            (Err(Fault::Statement(what)), _) => {
                (what.clone(), Ended::Badly(format!("the statement `{statement}`: {what}")))
            }
            (Err(Fault::Alone), _) => ("never heard".to_owned(), Ended::Alone),
        };
        if let Some(register) = &statement.register {
            self.registers.insert(register.clone(), answer.clone());
        }
        self.events.push(Event {
            client: self.number,
            begin,
            end: Instant::now(),
            statement: statement.to_string(),
            answer,
        });
        ended
    }

    /// Closes all it has open.
    pub fn close(&mut self) {
        self.mappings.clear();
        self.handles.clear();
    }
}

/// Mostly nothing or very short, sometimes as long as a few calls over the network take.
fn delay(rng: &mut Rng) {
    match rng.below(10) {
        0..4 => {}
        4..6 => std::thread::yield_now(),
        6..9 => std::thread::sleep(Duration::from_micros(rng.below(300))),
        _ => std::thread::sleep(Duration::from_micros(rng.below(3000))),
    }
}
