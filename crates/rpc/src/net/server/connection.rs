//! One connection of a caller, from its handshake to its last answer.

use super::Peer;
use super::answers::Answers;
use super::outgoing::{CONNECTION_BYTES_MAX, Unsent};
use super::pool::Pool;
use crate::net::channel::{Admission, ChannelState};
use crate::net::error::NetError;
use crate::net::frame::{Assembler, Frame, HEADER_BYTES, Header, Kind, REQUEST_BYTES_MAX, Service};
use crate::net::hello::{EndedCalls, Hello, Welcome};
use crate::net::stream::{Stream, Turn};
use crate::net::tls::{joiner, peer_of};
use ashlar_types::Role;
use ashlar_types::codec::{decode, encode};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Calls of one connection that may wait or be at work, and their bytes; then no more is read from it.
// LIMIT: of a connection.
const CALLS_MAX: usize = 256;
const BYTES_MAX: usize = 64 << 20;

/// A channel and the caller it is of.
pub(crate) struct Channel {
    pub peer: Peer,
    pub state: Mutex<ChannelState<Weak<Connection>>>,
}

/// See the module.
pub(crate) struct Connection {
    pub token: u64,
    pub stream: Stream,
    pub since: Instant,
    reading: Mutex<Reading>,
    channel: Mutex<Option<Arc<Channel>>>,
    /// What is spoken, once that was agreed on.
    protocol: AtomicU16,
    calls: AtomicUsize,
    bytes: AtomicUsize,
    pub unsent: Unsent,
    /// Nothing is read from it. What it is waited for is changed under this lock.
    pub is_paused: Mutex<bool>,
    has_ended: AtomicBool,
}

struct Reading {
    assembler: Assembler,
    /// Whose calls these are, and which connection of the channel this is, once that was said.
    channel: Option<(Arc<Channel>, u64)>,
}

/// A call that is to be carried out.
pub(crate) struct Job {
    pub frame: Frame,
    pub replier: Replier,
}

impl Connection {
    pub fn new(token: u64, stream: Stream, unsent: Unsent) -> Connection {
        Connection {
            token,
            stream,
            since: Instant::now(),
            reading: Mutex::new(Reading { assembler: Assembler::new(REQUEST_BYTES_MAX), channel: None }),
            channel: Mutex::new(None),
            protocol: AtomicU16::new(0),
            calls: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            unsent,
            is_paused: Mutex::default(),
            has_ended: AtomicBool::new(false),
        }
    }

    /// Whether nobody has said yet whose connection it is.
    pub fn is_anonymous(&self) -> bool {
        self.channel.lock().is_none() && !self.has_ended.load(SeqCst)
    }

    /// It is nobody's any more.
    pub fn note_ended(&self) {
        self.has_ended.store(true, SeqCst);
    }

    pub fn channel(&self) -> Option<Arc<Channel>> {
        self.channel.lock().clone()
    }

    /// Whether more is under way on it than should be.
    pub fn is_full(&self) -> bool {
        self.calls.load(SeqCst) >= CALLS_MAX
            || self.bytes.load(SeqCst) >= BYTES_MAX
            || self.stream.kept() >= CONNECTION_BYTES_MAX
    }

    /// Reads what has come and tells the calls that are to be carried out. An error ends the connection.
    pub fn read(self: &Arc<Self>, pool: &Arc<Pool>) -> Result<Vec<Job>, NetError> {
        let mut reading = self.reading.lock();
        let mut turn = Turn::default();
        let outcome = self.stream.receive(&mut reading.assembler, &mut turn);
        let mut jobs = Vec::new();
        let mut taken = Ok(());
        for frame in turn.frames {
            taken = match &reading.channel {
                None => self.greet(pool, &frame).map(|known| reading.channel = Some(known)),
                Some((channel, attempt)) => {
                    self.take_call(pool, channel, *attempt, frame).map(|job| jobs.extend(job))
                }
            };
            if taken.is_err() {
                break;
            }
        }
        let closed = if turn.is_closed { Err(NetError::Closed) } else { Ok(()) };
        match taken.and(outcome).and(closed) {
            Ok(()) => Ok(jobs),
            Err(error) => {
                // What has come all the same is carried out: the caller may ask for the answers on its next connection, or has done so already.
                pool.enqueue(jobs);
                Err(error)
            }
        }
    }

    /// The first message: who calls.
    fn greet(self: &Arc<Self>, pool: &Arc<Pool>, frame: &Frame) -> Result<(Arc<Channel>, u64), NetError> {
        let (peer, hello, protocol) = match self.recognize(pool, frame) {
            Ok(known) => known,
            Err(text) => {
                self.refuse(pool, frame.header.service, 0, &text);
                return Err(NetError::Refused(text));
            }
        };
        let Some((channel, is_remembered)) = pool.channels.find_or_add(peer, hello.channel) else {
            let text = format!("{} has too many processes here, or had in the last minutes", peer.id.node);
            self.refuse(pool, frame.header.service, 0, &text);
            return Err(NetError::Refused(text));
        };
        {
            let mut state = channel.state.lock();
            if hello.attempt <= state.attempt {
                return Err(NetError::Malformed("a connection that is older than one there was"));
            }
            state.attempt = hello.attempt;
            state.left = None;
            self.protocol.store(protocol, SeqCst);
            *self.channel.lock() = Some(channel.clone());
            // ORDER: under the lock, so that no answer to an earlier call comes before it.
            let welcome = encode(&Welcome { protocol, is_remembered });
            let header = Header::plain(Kind::Welcome, frame.header.service, pool.epochs().known(), &welcome);
            self.stream.queue(&[&header.encode(&welcome), &welcome])?;
            // ORDER: from here on answers go to this connection, whichever the calls came by.
            let before = state.connection.replace(Arc::downgrade(self));
            if let Some(before) = before.and_then(|weak| weak.upgrade()) {
                before.stream.shut_down();
            }
        }
        Ok((channel, hello.attempt))
    }

    fn recognize(&self, pool: &Arc<Pool>, frame: &Frame) -> Result<(Peer, Hello, u16), String> {
        if frame.header.kind != Kind::Hello {
            return Err("the first message does not say who calls".into());
        }
        let hello: Hello = decode(frame.head(), "greeting").map_err(|error| error.to_string())?;
        let protocol = hello.agree()?;
        let own = pool.identity().peer();
        let certified = self.stream.with_tls(|tls| {
            tls.peer_certificates().and_then(|chain| Some((chain.first()?, chain))).map(
                |(certificate, chain)| {
                    // What the certificate of a token says is its holder's own word: the key decides. And a token that was good a moment ago,
                    // when TLS looked, makes nobody a node.
                    match pool.token_of(certificate) {
                        Some(token) => Ok((joiner(own.cluster), Some(token))),
                        None if pool.has_tokens() && !pool.identity().is_certified(chain) => {
                            let what = "the token is too old, or was used long ago: `ashlar token` on a manager makes a new one";
                            Err(NetError::Refused(what.into()))
                        }
                        None => peer_of(certificate).map(|id| (id, None)),
                    }
                },
            )
        });
        let (id, token) = match certified {
            Some(Ok(known)) => known,
            Some(Err(error)) => return Err(error.to_string()),
            None => return Err("the caller has shown no certificate".into()),
        };
        if hello.role == Role::Joiner && token.is_some() {
            return Ok((Peer { id, role: Role::Joiner, instance: hello.instance, token }, hello, protocol));
        }
        if id.cluster != own.cluster || hello.cluster != own.cluster {
            return Err(format!("this is file system {}, and the caller is of {}", own.cluster, id.cluster));
        }
        if !id.roles.has(hello.role) {
            return Err(format!("the certificate of {} does not allow it to act as {}", id.node, hello.role));
        }
        let peer = Peer { id, role: hello.role, instance: hello.instance, token: None };
        pool.admit(&peer)?;
        Ok((peer, hello, protocol))
    }

    fn take_call(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        channel: &Arc<Channel>,
        attempt: u64,
        frame: Frame,
    ) -> Result<Option<Job>, NetError> {
        let header = frame.header;
        if header.kind == Kind::Ended {
            return take_ended(channel, attempt, &frame).map(|()| None);
        }
        if header.kind != Kind::Request || header.id == 0 {
            return Err(NetError::Malformed("a frame that is no request"));
        }
        pool.epochs().note_heard(header.epoch);
        let admission = {
            let mut state = channel.state.lock();
            if state.attempt != attempt {
                return Err(NetError::Closed);
            }
            state.admit(header.id, header.lowest)
        };
        match admission {
            Admission::Known => Ok(None),
            Admission::Excess => Err(NetError::Crowded),
            Admission::Answered(reply) => {
                self.send(pool, (Kind::Reply, header.service, header.id), &reply, &[])?;
                Ok(None)
            }
            Admission::Run => {
                let bytes = frame.bytes();
                self.calls.fetch_add(1, SeqCst);
                self.bytes.fetch_add(bytes, SeqCst);
                pool.note_bytes(bytes);
                let replier = Replier {
                    pool: pool.clone(),
                    channel: channel.clone(),
                    came_by: self.clone(),
                    header,
                    bytes,
                    content_bytes: 0,
                    is_answered: false,
                };
                Ok(Some(Job { frame, replier }))
            }
        }
    }

    fn send(
        self: &Arc<Self>,
        pool: &Pool,
        what: (Kind, Service, u64),
        head: &[u8],
        payload: &[u8],
    ) -> Result<(), NetError> {
        pool.send(self, &[&header(pool, what, head, payload), head, payload])
    }

    fn refuse(self: &Arc<Self>, pool: &Pool, service: Service, id: u64, text: &str) {
        if let Err(error) = self.send(pool, (Kind::Refused, service, id), text.as_bytes(), &[]) {
            tracing::debug!(%error, "a caller could not be told that it is refused");
        }
    }
}

fn header(
    pool: &Pool,
    (kind, service, id): (Kind, Service, u64),
    head: &[u8],
    payload: &[u8],
) -> [u8; HEADER_BYTES] {
    let plain = Header::plain(kind, service, pool.epochs().known(), head);
    Header { id, payload_bytes: payload.len() as u32, ..plain }.encode(head)
}

/// The caller says which calls have ended for it.
fn take_ended(channel: &Channel, attempt: u64, frame: &Frame) -> Result<(), NetError> {
    let ended = decode::<EndedCalls>(frame.head(), "ended calls");
    let ended = ended.ok().filter(EndedCalls::is_sound);
    let ended = ended.ok_or(NetError::Malformed("calls that cannot have ended"))?;
    let mut state = channel.state.lock();
    if state.attempt != attempt {
        return Err(NetError::Closed);
    }
    state.note_ended(ended);
    Ok(())
}

/// Gives the answer to one call.
pub struct Replier {
    pool: Arc<Pool>,
    channel: Arc<Channel>,
    came_by: Arc<Connection>,
    header: Header,
    bytes: usize,
    content_bytes: usize,
    is_answered: bool,
}

impl Replier {
    /// Whether the call is of those that others may be waiting for.
    pub(crate) fn is_urgent(&self) -> bool {
        self.header.is_urgent
    }

    /// Whether the caller waits for the answer, as far as it has said.
    pub(crate) fn is_awaited(&self) -> bool {
        self.channel.state.lock().is_awaited(self.header.id)
    }

    /// What was spoken where the call came.
    pub(crate) fn protocol(&self) -> u16 {
        self.came_by.protocol.load(SeqCst)
    }

    /// Who calls.
    pub fn peer(&self) -> Peer {
        self.channel.peer
    }

    /// Counts `bytes` of content that is made for the answer. Tells whether there is room for them.
    pub(crate) fn take_room(&mut self, bytes: usize) -> bool {
        self.content_bytes += bytes;
        self.pool.note_content(bytes)
    }

    /// The service it is for.
    pub(crate) fn service(&self) -> Service {
        self.header.service
    }

    /// The caller's answer. Whether it gets it cannot be known; it asks again if it does not.
    pub fn reply(mut self, head: &[u8], payload: &[u8]) {
        self.is_answered = true;
        self.answer(Kind::Reply, head, payload);
    }

    /// The same together with other answers.
    pub fn reply_with(mut self, answers: &mut Answers, head: &[u8]) {
        self.is_answered = true;
        let Some(connection) = self.finish(Kind::Reply, head) else { return };
        let what = (Kind::Reply, self.header.service, self.header.id);
        let kept = connection.stream.keep(&[&header(&self.pool, what, head, &[]), head]);
        match kept {
            Ok(()) => answers.add(&self.pool, connection),
            Err(error) => self.give_up(&connection, &error),
        }
    }

    /// No answer but a text for a person.
    pub fn refuse(mut self, text: &str) {
        self.is_answered = true;
        self.answer(Kind::Refused, text.as_bytes(), &[]);
    }

    fn answer(&self, kind: Kind, head: &[u8], payload: &[u8]) {
        let Some(connection) = self.finish(kind, head) else { return };
        let what = (kind, self.header.service, self.header.id);
        if let Err(error) = connection.send(&self.pool, what, head, payload) {
            self.give_up(&connection, &error);
        }
    }

    /// The call is over; where its answer goes.
    fn finish(&self, kind: Kind, head: &[u8]) -> Option<Arc<Connection>> {
        let mut state = self.channel.state.lock();
        // Only what may not be carried out twice is kept.
        state.finish(self.header.id, (self.header.is_once && kind == Kind::Reply).then(|| head.to_vec()));
        state.connection.as_ref().and_then(Weak::upgrade)
    }

    fn give_up(&self, connection: &Connection, error: &NetError) {
        tracing::debug!(peer = %self.channel.peer.id, %error, "an answer could not be sent; the caller has to ask again");
        connection.stream.shut_down();
    }
}

impl Drop for Replier {
    fn drop(&mut self) {
        if !self.is_answered {
            // A panic, which was logged where it happened.
            self.answer(
                Kind::Refused,
                b"the call ended without an answer: the log of the server has more",
                &[],
            );
        }
        self.came_by.calls.fetch_sub(1, SeqCst);
        self.came_by.bytes.fetch_sub(self.bytes, SeqCst);
        self.pool.call_ended(self.bytes, self.content_bytes);
    }
}
