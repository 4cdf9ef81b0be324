//! One channel to a server: its connection, the calls that wait for answers, and who reads for them.

use super::Shared;
use super::connect::{Connection, connect, text_of};
use crate::net::channel::WINDOW;
use crate::net::error::NetError;
use crate::net::frame::{ENDED_SINCE, Frame, Kind};
use crate::net::hello::EndedCalls;
use crate::net::stream::Turn;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Most calls under way on a channel.
// LIMIT: of a channel; who calls more waits.
const CALLS_MAX: usize = 192;
/// Calls that have ended, while an older one is waited for, before the server is told of them: it keeps the answers of some.
// LIMIT: with as many as may be under way far below `WINDOW`.
const UNTOLD_MAX: u64 = 256;
/// Longest sleep of one who waits: nobody depends on a wake-up that is lost.
const NAP: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Channel {
    /// By which the server knows it.
    number: u32,
    /// Which of its link it is: with which address it begins.
    place: u32,
    state: Mutex<State>,
    /// Signalled when a call ends.
    ended: Condvar,
    /// Held by whoever connects.
    connecting: Mutex<()>,
    load: AtomicUsize,
}

struct State {
    connection: Option<Arc<Connection>>,
    attempt: u64,
    /// Where the newest connection was made to.
    address: Option<SocketAddr>,
    /// The first connection since which the server has remembered the channel.
    memory_since: u64,
    next_id: u64,
    /// Calls that have ended since the server was told, and whether it can be.
    untold: u64,
    can_tell: bool,
    waiting: BTreeMap<u64, Waiting>,
    has_reader: bool,
}

struct Waiting {
    thread: Thread,
    answer: Option<Frame>,
}

impl Channel {
    pub fn new(number: u32, place: u32) -> Channel {
        let state = State {
            connection: None,
            attempt: 0,
            address: None,
            memory_since: 0,
            next_id: 1,
            untold: 0,
            can_tell: false,
            waiting: BTreeMap::new(),
            has_reader: false,
        };
        Channel {
            number,
            place,
            state: Mutex::new(state),
            ended: Condvar::new(),
            connecting: Mutex::new(()),
            load: AtomicUsize::new(0),
        }
    }

    /// Calls under way.
    pub fn load(&self) -> usize {
        self.load.load(Relaxed)
    }

    /// Begins a call; tells its number.
    pub fn begin(&self, deadline: Instant) -> Result<u64, NetError> {
        let mut state = self.state.lock();
        loop {
            let lowest = state.lowest();
            if state.waiting.len() < CALLS_MAX && (state.can_tell || state.next_id - lowest < WINDOW / 2) {
                break;
            }
            if self.ended.wait_until(&mut state, deadline).timed_out() {
                return Err(NetError::Crowded);
            }
        }
        let id = state.next_id;
        state.next_id += 1;
        state.waiting.insert(id, Waiting { thread: std::thread::current(), answer: None });
        self.load.store(state.waiting.len(), Relaxed);
        Ok(id)
    }

    /// Ends a call, answered or given up.
    pub fn end(&self, id: u64) {
        let mut state = self.state.lock();
        state.waiting.remove(&id);
        state.untold += 1;
        self.load.store(state.waiting.len(), Relaxed);
        drop(state);
        self.ended.notify_one();
    }

    /// What the server of `connection` is to be told of calls that have ended, before the next one is sent; nothing as long as the number of the oldest one that is waited for
    /// says enough.
    pub fn to_tell(&self, connection: &Connection) -> Option<EndedCalls> {
        let mut state = self.state.lock();
        if state.next_id - state.lowest() < UNTOLD_MAX {
            // What has ended is below it, or soon will be.
            state.untold = 0;
            return None;
        }
        if state.untold < UNTOLD_MAX || connection.protocol < ENDED_SINCE {
            return None;
        }
        state.untold = 0;
        let mut ended = Vec::new();
        let ends = state.waiting.keys().copied().chain([state.next_id]);
        for (before, next) in state.waiting.keys().zip(ends.skip(1)) {
            if before + 1 < next {
                ended.push((before + 1, next));
            }
        }
        Some(EndedCalls(ended))
    }

    /// The oldest call whose answer has not come.
    pub fn lowest(&self) -> u64 {
        self.state.lock().lowest()
    }

    /// Whether the server remembers what it did since connection `attempt`.
    pub fn is_remembered_since(&self, attempt: u64) -> bool {
        self.state.lock().memory_since <= attempt
    }

    /// Whether `connection` is the one that is used.
    pub fn is_current(&self, connection: &Connection) -> bool {
        self.state.lock().connection.as_ref().is_some_and(|now| now.attempt == connection.attempt)
    }

    /// The connection, made if there is none; while somebody else makes it he is waited for until `turn`.
    pub fn connection(
        &self,
        shared: &Shared,
        deadline: Instant,
        turn: Instant,
    ) -> Result<Arc<Connection>, NetError> {
        if let Some(connection) = self.state.lock().connection.clone() {
            return Ok(connection);
        }
        let Some(_connecting) = self.connecting.try_lock_until(turn) else { return Err(NetError::Stuck) };
        let (attempt, before) = {
            let mut state = self.state.lock();
            if let Some(connection) = state.connection.clone() {
                return Ok(connection);
            }
            state.attempt += 1;
            (state.attempt, state.address)
        };
        let (connection, is_remembered) =
            connect(shared, (self.number, self.place), (attempt, before), deadline)?;
        let connection = Arc::new(connection);
        let mut state = self.state.lock();
        if !is_remembered {
            state.memory_since = attempt;
        }
        state.address = Some(connection.address);
        state.connection = Some(connection.clone());
        state.can_tell = connection.protocol >= ENDED_SINCE;
        // What was told may not have come.
        state.untold = state.untold.max(UNTOLD_MAX);
        Ok(connection)
    }

    /// `connection` cannot be used any more: whoever waits asks again on the next one.
    pub fn broke(&self, connection: &Arc<Connection>, error: &NetError) {
        let mut state = self.state.lock();
        if state.connection.as_ref().is_some_and(|current| current.attempt == connection.attempt) {
            tracing::debug!(channel = self.number, %error, "a connection broke");
            state.connection = None;
        }
        connection.stream.shut_down();
        state.waiting.values().for_each(|waiting| waiting.thread.unpark());
    }

    /// Ends the connection, if there is one.
    pub fn reconnect(&self) {
        let connection = self.state.lock().connection.clone();
        if let Some(connection) = connection {
            self.broke(&connection, &NetError::Closed);
        }
    }

    /// The answer to call `id`, or nothing when the connection broke or time is up.
    pub fn await_answer(
        &self,
        id: u64,
        connection: &Arc<Connection>,
        shared: &Shared,
        deadline: Instant,
    ) -> Result<Option<Frame>, NetError> {
        let mut state = self.state.lock();
        loop {
            if let Some(frame) = state.take_answer(id) {
                state.pass_reading_on(id);
                return Ok(Some(frame));
            }
            let is_current = state.connection.as_ref().is_some_and(|now| now.attempt == connection.attempt);
            let now = Instant::now();
            if !is_current || now >= deadline {
                state.pass_reading_on(id);
                return Ok(None);
            }
            if state.has_reader {
                MutexGuard::unlocked(&mut state, || std::thread::park_timeout(NAP.min(deadline - now)));
                continue;
            }
            state.has_reader = true;
            let outcome =
                MutexGuard::unlocked(&mut state, || self.read_until(id, connection, shared, deadline));
            state.has_reader = false;
            if let Err(error) = outcome {
                MutexGuard::unlocked(&mut state, || self.broke(connection, &error));
            }
        }
    }

    /// Reads answers for all who wait, until that of `id` is there or time is up.
    fn read_until(
        &self,
        id: u64,
        connection: &Connection,
        shared: &Shared,
        deadline: Instant,
    ) -> Result<(), NetError> {
        let mut assembler = connection.assembler.lock();
        loop {
            let mut turn = Turn::default();
            let outcome = connection.stream.receive(&mut assembler, &mut turn);
            if !turn.frames.is_empty() && self.deliver(id, turn.frames, shared)? {
                return Ok(());
            }
            outcome?;
            if turn.is_closed {
                return Err(NetError::Closed);
            }
            if !connection.stream.wait(false, deadline)? && Instant::now() >= deadline {
                return Ok(());
            }
        }
    }

    /// Gives answers to those who wait for them; tells whether that of `id` is among them.
    fn deliver(&self, id: u64, frames: Vec<Frame>, shared: &Shared) -> Result<bool, NetError> {
        let mut is_here = false;
        let mut state = self.state.lock();
        for frame in frames {
            shared.caller.epochs.note_heard(frame.header.epoch);
            if frame.header.id == 0 || !matches!(frame.header.kind, Kind::Reply | Kind::Refused) {
                return Err(NetError::Malformed("a frame that is no answer"));
            }
            let answered = frame.header.id;
            // Nobody waits for what was answered twice, or given up.
            let Some(waiting) = state.waiting.get_mut(&answered) else { continue };
            waiting.answer = Some(frame);
            if answered == id {
                is_here = true;
            } else {
                waiting.thread.unpark();
            }
        }
        Ok(is_here)
    }
}

impl State {
    fn lowest(&self) -> u64 {
        self.waiting.keys().next().copied().unwrap_or(self.next_id)
    }

    fn take_answer(&mut self, id: u64) -> Option<Frame> {
        self.waiting.get_mut(&id)?.answer.take()
    }

    /// Wakes somebody to read for all, now that the one who ends call `id` does not.
    fn pass_reading_on(&self, id: u64) {
        if self.has_reader {
            return;
        }
        let next = self.waiting.iter().find(|(other, waiting)| **other != id && waiting.answer.is_none());
        if let Some((_, waiting)) = next {
            waiting.thread.unpark();
        }
    }
}

/// A refusal is an error.
pub(super) fn unwrap(frame: Frame) -> Result<Frame, NetError> {
    match frame.header.kind {
        Kind::Refused => Err(NetError::Refused(text_of(&frame))),
        _ => Ok(frame),
    }
}
