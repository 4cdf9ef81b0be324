//! Sending and receiving at the same time, between one agent and others.

use super::STREAMS_MAX;
use super::listen::Listening;
use crate::BenchError;
use crate::agent::Token;
use crate::crew::{Barrier, Tally};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Bytes of one write(2).
const SEND_BYTES: usize = 256 << 10;
/// Bytes of one read(2): not more, because what arrives is counted by the read.
const RECEIVE_BYTES: usize = 64 << 10;
/// Bytes of a small message.
const MESSAGE_BYTES: usize = 64;
/// LIMIT: of connecting to another agent, and of one answer of it.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a thread that waits for the network looks whether it should end.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// LIMIT: how much longer than the receiver a sender goes on, should it hear nothing.
const SENDER_PATIENCE: Duration = Duration::from_secs(5);
/// LIMIT: of one measurement.
const TIME_MAX: Duration = Duration::from_secs(86_400);
/// LIMIT: connections of one agent at the same time.
const CONNECTIONS_MAX: usize = 4096;

/// What goes over a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// As much as possible.
    Stream,
    /// A small message there and back, and then the next.
    Echo,
}

/// A flow from here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outgoing {
    /// To where.
    pub to: SocketAddr,
    /// By which it is known there.
    pub token: Token,
    /// Connections.
    pub streams: u32,
}

/// Flows of one agent that run at the same time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Transfer {
    /// What goes over them.
    pub kind: Kind,
    /// Those from here.
    pub sends: Vec<Outgoing>,
    /// What is not measured at the begin.
    pub warm_up: Duration,
    /// What is measured.
    pub measured: Duration,
}

/// What came of a flow: a stream's bytes where they arrived, the latencies of an echo where it was asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FlowDone {
    /// Which flow.
    pub token: Token,
    /// Bytes that arrived while it was measured.
    pub bytes: u64,
    /// How long messages took; nothing of a stream.
    pub tally: Option<Box<Tally>>,
}

/// Who sends what is measured.
#[derive(Clone, Copy)]
enum Way {
    Out,
    In,
}

/// When what arrives counts.
#[derive(Clone, Copy)]
struct Window {
    begin: Instant,
    end: Instant,
}

impl Transfer {
    /// Connects to the others, waits until all have, sends and receives; tells what ended here.
    ///
    /// # Errors
    /// [`BenchError::Refused`] when a connection fails, [`BenchError::Stopped`] when somebody sets `stop`.
    pub fn carry_out(
        &self,
        listening: Option<Listening>,
        barrier: &dyn Barrier,
        stop: &AtomicBool,
    ) -> Result<Vec<FlowDone>, BenchError> {
        let streams: usize = self.sends.iter().map(|flow| flow.streams as usize).sum();
        if streams > CONNECTIONS_MAX || self.sends.iter().any(|flow| flow.streams > STREAMS_MAX) {
            return Err(BenchError::Refused(format!("{streams} connections are too many for one agent")));
        }
        if self.warm_up > TIME_MAX || self.measured > TIME_MAX {
            return Err(BenchError::Refused("so long no network is measured".into()));
        }
        // Both at the same time, or two agents with more connections than their kernels keep waiting would wait for each other.
        let (accepted, connected) = std::thread::scope(|scope| {
            let accept = || listening.map_or_else(|| Ok(Vec::new()), |listening| listening.accept(stop));
            let accepting = std::thread::Builder::new().spawn_scoped(scope, accept);
            let accepting = accepting.map_err(|answer| BenchError::Threads { threads: 1, answer })?;
            let connected: Result<Vec<_>, _> = self.sends.iter().map(|flow| connect(flow, stop)).collect();
            Ok((accepting.join().unwrap_or(Err(BenchError::Panicked)), connected))
        })?;
        // A connection that failed is the reason why the other side may not have come.
        let (connected, accepted) = (connected?, accepted?);
        let outgoing = self.sends.iter().zip(connected).flat_map(|(flow, connections)| {
            connections.into_iter().map(move |tcp| (Way::Out, flow.token, tcp))
        });
        let incoming = accepted.into_iter().map(|(token, tcp)| (Way::In, token, tcp));
        self.run(outgoing.chain(incoming).collect(), barrier, stop)
    }

    /// A thread for each connection; all begin when the barrier opens.
    fn run(
        &self,
        connections: Vec<(Way, Token, TcpStream)>,
        barrier: &dyn Barrier,
        stop: &AtomicBool,
    ) -> Result<Vec<FlowDone>, BenchError> {
        let threads = connections.len();
        let window: &RwLock<Option<Window>> = &RwLock::new(None);
        std::thread::scope(|scope| {
            // ORDER: all threads are there before it is said that this machine is ready, and go when they can read what the window is.
            let mut to_come = window.write();
            let mut running = Vec::with_capacity(threads);
            for (way, token, tcp) in connections {
                let body = move || {
                    let Some(window) = *window.read() else { return Err(BenchError::Stopped) };
                    match way {
                        Way::Out => self.send(token, tcp, window, stop),
                        Way::In => self.receive(token, tcp, window, stop),
                    }
                };
                let started = std::thread::Builder::new().spawn_scoped(scope, body);
                running.push(started.map_err(|answer| BenchError::Threads { threads, answer })?);
            }
            let begin = barrier.pass()? + self.warm_up;
            *to_come = Some(Window { begin, end: begin + self.measured });
            drop(to_come);
            let ended = running.into_iter();
            let ended = ended.map(|thread| thread.join().unwrap_or(Err(BenchError::Panicked)));
            let ended: Vec<FlowDone> = ended.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
            Ok(sum_up(ended))
        })
    }

    fn send(
        &self,
        token: Token,
        tcp: TcpStream,
        window: Window,
        stop: &AtomicBool,
    ) -> Result<Option<FlowDone>, BenchError> {
        match self.kind {
            Kind::Stream => pour(tcp, window, stop).map(|()| None),
            Kind::Echo => {
                let tally = ask(tcp, window, stop)?;
                Ok(Some(FlowDone { token, bytes: tally.bytes(), tally: Some(Box::new(tally)) }))
            }
        }
    }

    fn receive(
        &self,
        token: Token,
        tcp: TcpStream,
        window: Window,
        stop: &AtomicBool,
    ) -> Result<Option<FlowDone>, BenchError> {
        match self.kind {
            Kind::Stream => {
                let bytes = count(tcp, window, stop)?;
                Ok(Some(FlowDone { token, bytes, tally: None }))
            }
            Kind::Echo => answer(tcp, window, stop).map(|()| None),
        }
    }
}

/// The connections of a flow are told as one.
fn sum_up(ended: Vec<FlowDone>) -> Vec<FlowDone> {
    let mut flows: Vec<FlowDone> = Vec::new();
    for one in ended {
        match flows.iter_mut().find(|flow| flow.token == one.token) {
            Some(flow) => flow.bytes += one.bytes,
            None => flows.push(one),
        }
    }
    flows
}

fn connect(flow: &Outgoing, stop: &AtomicBool) -> Result<Vec<TcpStream>, BenchError> {
    let cannot = |error: std::io::Error| {
        let to = flow.to;
        BenchError::Refused(format!(
            "cannot connect to the agent at {to}: {error}; is there a firewall between the machines (--data-ports names the ports that it has to let through), or does --address name another network?"
        ))
    };
    let connect = |_| {
        if stop.load(Relaxed) {
            return Err(BenchError::Stopped);
        }
        let mut tcp = TcpStream::connect_timeout(&flow.to, PATIENCE).map_err(cannot)?;
        tcp.write_all(&flow.token).map_err(cannot)?;
        Ok(tcp)
    };
    (0..flow.streams).map(connect).collect()
}

fn is_wait(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn set_up(tcp: &TcpStream, has_delay: bool) -> Result<(), BenchError> {
    tcp.set_nonblocking(false)
        .and_then(|()| tcp.set_nodelay(!has_delay))
        .and_then(|()| tcp.set_read_timeout(Some(LOOK_EVERY)))
        .and_then(|()| tcp.set_write_timeout(Some(LOOK_EVERY)))
        .map_err(|error| BenchError::Refused(format!("cannot set up a connection: {error}")))
}

fn broken(tcp: &TcpStream, error: &str) -> BenchError {
    let peer = tcp.peer_addr().map_or_else(|_| "another agent".to_owned(), |peer| peer.to_string());
    BenchError::Refused(format!("the connection with {peer} ended while it was measured: {error}"))
}

/// Sends until nobody takes it any more.
fn pour(mut tcp: TcpStream, window: Window, stop: &AtomicBool) -> Result<(), BenchError> {
    set_up(&tcp, true)?;
    let bytes = crate::buffer::AlignedBuffer::noise(SEND_BYTES, 1)?;
    while !stop.load(Relaxed) && Instant::now() < window.end + SENDER_PATIENCE {
        match tcp.write(bytes.as_slice()) {
            Err(error) if !is_wait(&error) => break,
            _ => {}
        }
    }
    // The receiver ends it when it has seen enough; if it was too early, it is the one to tell.
    Ok(())
}

/// Counts what arrives in the window.
fn count(mut tcp: TcpStream, window: Window, stop: &AtomicBool) -> Result<u64, BenchError> {
    set_up(&tcp, true)?;
    let (mut room, mut bytes) = (vec![0; RECEIVE_BYTES], 0);
    loop {
        let read = tcp.read(&mut room);
        let now = Instant::now();
        if stop.load(Relaxed) {
            return Err(BenchError::Stopped);
        }
        if now >= window.end {
            return Ok(bytes);
        }
        match read {
            Ok(0) => return Err(broken(&tcp, "the other side closed it")),
            Ok(len) if now >= window.begin => bytes += len as u64,
            Ok(_) => {}
            Err(error) if is_wait(&error) => {}
            Err(error) => return Err(broken(&tcp, &error.to_string())),
        }
    }
}

/// Sends a message, waits for its return, and begins anew until the window ends.
fn ask(mut tcp: TcpStream, window: Window, stop: &AtomicBool) -> Result<Tally, BenchError> {
    set_up(&tcp, false)?;
    let (message, mut room) = ([7; MESSAGE_BYTES], [0; MESSAGE_BYTES]);
    let mut tally = Tally::default();
    loop {
        let begin = Instant::now();
        if begin >= window.end {
            return Ok(tally);
        }
        tcp.write_all(&message).map_err(|error| broken(&tcp, &error.to_string()))?;
        let mut len = 0;
        while len < MESSAGE_BYTES {
            match tcp.read(&mut room[len..]) {
                Ok(0) => return Err(broken(&tcp, "the other side closed it")),
                Ok(more) => len += more,
                Err(error) if is_wait(&error) && begin.elapsed() < PATIENCE && !stop.load(Relaxed) => {}
                Err(_) if stop.load(Relaxed) => return Err(BenchError::Stopped),
                Err(error) => return Err(broken(&tcp, &error.to_string())),
            }
        }
        if begin >= window.begin {
            tally.add(begin.elapsed(), MESSAGE_BYTES as u64);
        }
    }
}

/// Sends back what comes until the other side has enough.
fn answer(mut tcp: TcpStream, window: Window, stop: &AtomicBool) -> Result<(), BenchError> {
    set_up(&tcp, false)?;
    let mut room = [0; MESSAGE_BYTES];
    while !stop.load(Relaxed) && Instant::now() < window.end + PATIENCE {
        match tcp.read(&mut room) {
            Ok(0) => return Ok(()),
            Ok(len) => tcp.write_all(&room[..len]).map_err(|error| broken(&tcp, &error.to_string()))?,
            Err(error) if is_wait(&error) => {}
            // Gone after the last message.
            Err(_) if Instant::now() >= window.end => return Ok(()),
            Err(error) => return Err(broken(&tcp, &error.to_string())),
        }
    }
    Ok(())
}
