//! Making a connection of a channel.

use super::{Call, Shared};
use crate::net::error::NetError;
use crate::net::frame::{Assembler, Frame, Header, Kind, PROTOCOL, PROTOCOL_MIN, REPLY_BYTES_MAX, Service};
use crate::net::hello::{EndedCalls, Hello, Welcome};
use crate::net::stream::{Stream, Turn};
use crate::net::tls::connecting;
use ashlar_types::codec::{decode, encode};
use parking_lot::Mutex;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// For how long one address is tried.
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// A connection of a channel.
pub(super) struct Connection {
    pub stream: Stream,
    /// Which of the channel, from 1.
    pub attempt: u64,
    /// Where the server was when it was made.
    pub address: SocketAddr,
    /// What is spoken on it.
    pub protocol: u16,
    /// Where frames are put together, by whoever reads for all.
    pub assembler: Mutex<Assembler>,
}

impl Connection {
    /// Sends call `id`, unless `begin` says at the moment of it that it must not be: nothing was sent then. After any other error the connection is of no more use.
    pub fn send(
        &self,
        shared: &Shared,
        (id, lowest): (u64, u64),
        call: &Call<'_>,
        deadline: Instant,
        begin: impl FnOnce() -> Result<(), NetError>,
    ) -> Result<(), NetError> {
        let header = Header {
            kind: Kind::Request,
            service: call.service,
            is_once: call.is_once,
            is_urgent: call.is_urgent,
            head_bytes: call.head.len() as u32,
            payload_bytes: call.payload.len() as u32,
            id,
            epoch: shared.caller.epochs.known(),
            lowest,
        };
        let parts = [&header.encode(call.head), call.head, call.payload];
        self.stream.send_if(&parts, deadline, begin, || self.require_good(shared))
    }

    /// Says which calls have ended for the caller.
    pub fn tell_ended(&self, shared: &Shared, ended: &EndedCalls, deadline: Instant) -> Result<(), NetError> {
        let head = encode(ended);
        let header = Header::plain(Kind::Ended, Service::Process, shared.caller.epochs.known(), &head);
        let parts = [&header.encode(&head)[..], &head];
        self.stream.send_if(&parts, deadline, || Ok(()), || self.require_good(shared))
    }

    /// Whether the server is told to be elsewhere by now. Where it is told to be nowhere this connection is as good as any.
    pub fn is_elsewhere(&self, shared: &Shared) -> bool {
        let (first, then) = (shared.addresses)();
        let is_known = !first.is_empty() || !then.is_empty();
        is_known && !first.contains(&self.address) && !then.contains(&self.address)
    }

    /// Has a frame that its server does not take be given up, where it is not to be sent any more.
    fn require_good(&self, shared: &Shared) -> Result<(), NetError> {
        // A part of a frame is nothing to a server. Whether there is to be another attempt is looked at before that.
        if self.is_elsewhere(shared) || !shared.caller.may_send() { Err(NetError::Closed) } else { Ok(()) }
    }
}

/// Connects channel `channel`, which is at `place` of its link, for the `attempt`th time; tells whether the server remembers it. `before`: where it was connected to the last time.
pub(super) fn connect(
    shared: &Shared,
    (channel, place): (u32, u32),
    (attempt, before): (u64, Option<SocketAddr>),
    deadline: Instant,
) -> Result<(Connection, bool), NetError> {
    let (first, then) = (shared.addresses)();
    // A server that has gone elsewhere is another process. If that remembers the channel, it is from a time before the last connection.
    let is_same = before.is_none_or(|before| first.contains(&before) || then.contains(&before));
    let (mut outcome, mut refusal) = (Err(NetError::NoAddress), None);
    for address in spread(&first, place).chain(spread(&then, place)) {
        let bound = deadline.min(Instant::now() + CONNECT_MAX);
        outcome = connect_to(shared, address, (channel, attempt), bound);
        match outcome {
            Err(NetError::Io(_) | NetError::Stuck | NetError::Closed) if Instant::now() < deadline => {}
            // Others may be let in there: a machine that has just joined knows addresses, and not yet for whom they are.
            Err(NetError::Refused(_)) => {
                refusal = Some(std::mem::replace(&mut outcome, Err(NetError::NoAddress)))
            }
            _ => break,
        }
    }
    match refusal {
        // Its words say more than that nobody answered elsewhere.
        Some(refused) if outcome.is_err() => refused,
        _ => outcome.map(|(connection, is_remembered)| (connection, is_remembered && is_same)),
    }
}

/// All, but the channels of a link begin with different ones, so that they spread over the interfaces of a server; the first with the first.
fn spread(addresses: &[SocketAddr], place: u32) -> impl Iterator<Item = SocketAddr> {
    let begin = if addresses.is_empty() { 0 } else { place as usize % addresses.len() };
    addresses[begin..].iter().chain(&addresses[..begin]).copied()
}

fn connect_to(
    shared: &Shared,
    address: SocketAddr,
    (channel, attempt): (u32, u64),
    deadline: Instant,
) -> Result<(Connection, bool), NetError> {
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let socket = TcpStream::connect_timeout(&address, left).map_err(NetError::Io)?;
    let identity = shared.caller.identity.read().clone();
    let tls = connecting(&identity.calling(shared.wanted)?)?;
    let stream = Stream::new(socket, tls.into())?;
    let mut assembler = Assembler::new(REPLY_BYTES_MAX);
    stream.shake_hands(&mut assembler, deadline)?;
    let hello = Hello {
        protocol_min: PROTOCOL_MIN,
        protocol_max: PROTOCOL,
        cluster: identity.peer().cluster,
        role: shared.caller.role,
        instance: shared.caller.instance,
        channel,
        attempt,
    };
    let head = encode(&hello);
    let header = Header::plain(Kind::Hello, Service::Manager, shared.caller.epochs.known(), &head);
    stream.send(&[&header.encode(&head), &head], deadline)?;
    let welcome = first_frame(&stream, &mut assembler, deadline)?;
    shared.caller.epochs.note_heard(welcome.header.epoch);
    match welcome.header.kind {
        Kind::Welcome => {
            let welcome: Welcome = decode(welcome.head(), "welcome")
                .map_err(|_| NetError::Malformed("a welcome that is none"))?;
            if !welcome.is_offered() {
                return Err(NetError::Malformed("a protocol that was not offered"));
            }
            let (protocol, assembler) = (welcome.protocol, Mutex::new(assembler));
            Ok((Connection { stream, attempt, address, protocol, assembler }, welcome.is_remembered))
        }
        Kind::Refused => Err(NetError::Refused(text_of(&welcome))),
        _ => Err(NetError::Malformed("something else than a welcome")),
    }
}

fn first_frame(stream: &Stream, assembler: &mut Assembler, deadline: Instant) -> Result<Frame, NetError> {
    loop {
        let mut turn = Turn::default();
        let outcome = stream.receive(assembler, &mut turn);
        if let Some(frame) = turn.frames.into_iter().next() {
            return Ok(frame);
        }
        outcome?;
        if turn.is_closed {
            return Err(NetError::Closed);
        }
        if !stream.wait(false, deadline)? {
            return Err(NetError::Stuck);
        }
    }
}

/// The words of a refusal, without what could disturb a terminal.
pub(super) fn text_of(frame: &Frame) -> String {
    // LIMIT: of words of a server that go into a log.
    let head = frame.head();
    let head = &head[..head.len().min(1024)];
    String::from_utf8_lossy(head).chars().filter(|letter| !letter.is_control()).collect()
}
