//! The caller's side: links to servers, made of channels, and calls on them.
//!
//! A thread that calls sends its request itself, and whoever waits first reads the answers for all who wait on the channel: a call costs no
//! hand-over between threads.

mod channel;
mod connect;

use super::error::NetError;
use super::frame::{Frame, Service};
use super::server::Epochs;
use super::tls::{TlsIdentity, Wanted};
use ashlar_types::Role;
use channel::Channel;
use connect::Connection;
use parking_lot::RwLock;
use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Who calls: one per process and role.
pub struct Caller {
    /// Its certificate; a new one is used from the next connection on.
    pub identity: Arc<RwLock<Arc<TlsIdentity>>>,
    /// What it acts as.
    pub role: Role,
    /// Which process it is: drawn at random.
    pub instance: [u8; 16],
    /// The maps.
    pub epochs: Arc<Epochs>,
    /// The number of the next channel.
    next_channel: AtomicU32,
    /// Whether it may still send calls, if that can end.
    may_send: Option<Arc<MaySend>>,
}

/// Tells whether a caller may send calls at this moment. Returns at once.
pub type MaySend = dyn Fn() -> bool + Send + Sync;

impl Caller {
    /// A caller that has `identity` and acts as `role`. `instance`: drawn at random for it. What it hears of maps is noted in `epochs`.
    pub fn new(
        identity: Arc<RwLock<Arc<TlsIdentity>>>,
        role: Role,
        instance: [u8; 16],
        epochs: Arc<Epochs>,
    ) -> Caller {
        Caller { identity, role, instance, epochs, next_channel: AtomicU32::new(0), may_send: None }
    }

    /// The same, for one that may be replaced: `may_send` is asked immediately before each call is sent, also when it is sent again. Where it says no, nothing is sent, and
    /// the call ends with [`NetError::Elsewhere`]. What is sent late although this was asked, as the process was paused just then, receivers have to see to.
    #[must_use]
    pub fn guarded(self, may_send: Arc<MaySend>) -> Caller {
        Caller { may_send: Some(may_send), ..self }
    }

    fn may_send(&self) -> bool {
        self.may_send.as_ref().is_none_or(|may_send| may_send())
    }

    /// The same, for a process that goes on for another one as the same instance: `first_channel` is a number that the other one has not used
    /// ([`Caller::next_channel`]).
    #[must_use]
    pub fn with_channels_from(self, first_channel: u32) -> Caller {
        Caller { next_channel: AtomicU32::new(first_channel), ..self }
    }

    /// The number that the next channel has.
    pub fn next_channel(&self) -> u32 {
        self.next_channel.load(Relaxed)
    }

    /// A channel at `place` of its link. A server knows a channel by the caller and its number, so no two have the same: the second would be taken
    /// for the first, and what it asks for what was answered long ago.
    fn add_channel(&self, place: u32) -> Channel {
        Channel::new(self.next_channel.fetch_add(1, Relaxed), place)
    }
}

/// A call.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// For whom.
    pub service: Service,
    /// The message.
    pub head: &'a [u8],
    /// Bulk data.
    pub payload: &'a [u8],
    /// It must not be carried out twice: the server keeps the answer until its caller has it.
    pub is_once: bool,
    /// It may be sent again to a server that does not remember whether it has carried it out.
    pub may_repeat: bool,
    /// Others may be waiting for it.
    pub is_urgent: bool,
}

/// The answer to a call.
pub struct Answer {
    frame: Frame,
    was_repeated: bool,
}

impl Answer {
    /// The message.
    pub fn head(&self) -> &[u8] {
        self.frame.head()
    }

    /// Bulk data.
    pub fn payload(&self) -> &[u8] {
        self.frame.payload()
    }

    /// Whether the server may have carried the call out before, and does not remember: it was sent again after the server had forgotten this caller.
    pub fn was_repeated(&self) -> bool {
        self.was_repeated
    }
}

/// What a caller looks at while it waits, and knows afterwards.
#[derive(Default)]
pub struct Watch<'a> {
    is_there: Option<&'a dyn Fn() -> bool>,
    was_sent: Cell<bool>,
}

impl<'a> Watch<'a> {
    /// The server is waited for as long as `is_there` says that it is the one to be asked.
    pub fn while_there(is_there: &'a dyn Fn() -> bool) -> Watch<'a> {
        Watch { is_there: Some(is_there), was_sent: Cell::new(false) }
    }

    /// Whether a server may have got the call.
    pub fn was_sent(&self) -> bool {
        self.was_sent.get()
    }

    fn look(&self) -> Result<(), NetError> {
        match self.is_there {
            Some(is_there) if !is_there() => Err(NetError::Elsewhere),
            _ => Ok(()),
        }
    }

    /// Until when to wait before the next look.
    fn until(&self, deadline: Instant) -> Instant {
        if self.is_there.is_some() { deadline.min(Instant::now() + LOOK_EVERY) } else { deadline }
    }
}

/// Everything that goes to one server.
pub struct Link {
    shared: Arc<Shared>,
    channels: Vec<Channel>,
    /// For calls that are answered late.
    parking: Channel,
}

struct Shared {
    caller: Arc<Caller>,
    wanted: Wanted,
    addresses: Box<Addresses>,
}

/// Tells where a server is at this moment: first, and if nobody answers at any of those.
pub type Addresses = dyn Fn() -> (Vec<SocketAddr>, Vec<SocketAddr>) + Send + Sync;

/// Shortest and longest time between two attempts to connect.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Time between two looks whether the server is still the one to be asked.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Time between two looks whether it is still where it is asked.
const ADDRESS_EVERY: Duration = Duration::from_millis(500);

impl Link {
    /// A link of `channels` channels to whoever is `wanted` at one of `addresses`, which are asked for before every attempt to connect. Nothing is
    /// connected before the first call.
    pub fn new(caller: Arc<Caller>, wanted: Wanted, addresses: Box<Addresses>, channels: u32) -> Link {
        let count = channels.max(1);
        let channels = (0..count).map(|place| caller.add_channel(place)).collect();
        let parking = caller.add_channel(count);
        Link { shared: Arc::new(Shared { caller, wanted, addresses }), channels, parking }
    }

    /// Carries out `call` on the channel that has least to do.
    ///
    /// # Errors
    /// [`NetError`]; what the network does is tried again until `deadline`. [`NetError::Elsewhere`] where the caller may not send any more ([`Caller::guarded`]).
    pub fn call(&self, call: &Call<'_>, deadline: Instant) -> Result<Answer, NetError> {
        self.call_watched(call, deadline, &Watch::default())
    }

    /// As [`Link::call`], and looks at `watch` meanwhile.
    ///
    /// # Errors
    /// As [`Link::call`], and [`NetError::Elsewhere`].
    pub fn call_watched(
        &self,
        call: &Call<'_>,
        deadline: Instant,
        watch: &Watch<'_>,
    ) -> Result<Answer, NetError> {
        let mut best = (usize::MAX, &self.parking);
        for channel in &self.channels {
            let load = channel.load();
            if load < best.0 {
                best = (load, channel);
            }
            if load == 0 {
                break;
            }
        }
        self.call_on(best.1, call, deadline, watch)
    }

    /// Carries out a call whose answer the server holds back until there is something to tell. Such calls have a channel of their own.
    ///
    /// # Errors
    /// As [`Link::call`].
    pub fn park(&self, call: &Call<'_>, deadline: Instant) -> Result<Answer, NetError> {
        self.call_on(&self.parking, call, deadline, &Watch::default())
    }

    /// Ends every connection; whoever waits for an answer connects anew.
    pub fn reconnect(&self) {
        self.channels.iter().chain([&self.parking]).for_each(Channel::reconnect);
    }

    fn call_on(
        &self,
        channel: &Channel,
        call: &Call<'_>,
        deadline: Instant,
        watch: &Watch<'_>,
    ) -> Result<Answer, NetError> {
        let id = channel.begin(deadline)?;
        let outcome = self.exchange((channel, id), call, deadline, watch);
        channel.end(id);
        outcome
    }

    fn exchange(
        &self,
        (channel, id): (&Channel, u64),
        call: &Call<'_>,
        deadline: Instant,
        watch: &Watch<'_>,
    ) -> Result<Answer, NetError> {
        let mut first_sent = None;
        let mut was_repeated = false;
        let mut pause = PAUSE_MIN;
        loop {
            let connection = match channel.connection(&self.shared, deadline, watch.until(deadline)) {
                Ok(connection) => connection,
                Err(error @ (NetError::Io(_) | NetError::Closed | NetError::Stuck | NetError::NoAddress)) => {
                    watch.look()?;
                    // Not given up before the time: the server may come back in the last moment of it.
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(error);
                    }
                    let until = Instant::now() + pause.min(left);
                    while Instant::now() < until {
                        let nap = watch.until(until);
                        std::thread::sleep(nap.saturating_duration_since(Instant::now()));
                        watch.look()?;
                    }
                    pause = (pause * 2).min(PAUSE_MAX);
                    continue;
                }
                Err(other) => return Err(other),
            };
            was_repeated |= first_sent.is_some_and(|attempt| !channel.is_remembered_since(attempt));
            if was_repeated && call.is_once && !call.may_repeat {
                return Err(NetError::Restarted);
            }
            let begin = || {
                if !self.shared.caller.may_send() {
                    return Err(NetError::Elsewhere);
                }
                first_sent.get_or_insert(connection.attempt);
                watch.was_sent.set(true);
                Ok(())
            };
            let told = match channel.to_tell(&connection) {
                Some(ended) => connection.tell_ended(&self.shared, &ended, deadline),
                None => Ok(()),
            };
            let call_of = (id, channel.lowest());
            let sent = told.and_then(|()| connection.send(&self.shared, call_of, call, deadline, begin));
            match sent {
                Ok(()) => {}
                // The connection is as good for others as before.
                Err(NetError::Elsewhere) => return Err(NetError::Elsewhere),
                Err(error) => {
                    channel.broke(&connection, &error);
                    if Instant::now() >= deadline {
                        return Err(error);
                    }
                    continue;
                }
            }
            if let Some(frame) = self.await_answer((channel, id), &connection, deadline, watch)? {
                return channel::unwrap(frame).map(|frame| Answer { frame, was_repeated });
            }
        }
    }

    /// The answer to a call that was sent on `connection`; nothing when that broke, or its server is elsewhere by now, and the next one is to be used.
    fn await_answer(
        &self,
        (channel, id): (&Channel, u64),
        connection: &Arc<Connection>,
        deadline: Instant,
        watch: &Watch<'_>,
    ) -> Result<Option<Frame>, NetError> {
        let mut look = Instant::now() + ADDRESS_EVERY;
        loop {
            let until = watch.until(deadline).min(look);
            if let Some(frame) = channel.await_answer(id, connection, &self.shared, until)? {
                return Ok(Some(frame));
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(NetError::Stuck);
            }
            watch.look()?;
            if now >= look {
                // A machine that hangs, or was cut off, says nothing, and does not end its connections either.
                if connection.is_elsewhere(&self.shared) {
                    channel.broke(connection, &NetError::Elsewhere);
                }
                look = now + ADDRESS_EVERY;
            }
            if !channel.is_current(connection) {
                return Ok(None);
            }
        }
    }
}
