//! The threads of a server and what they wait for together.

use super::anonymous::{ANONYMOUS_MAX, Anonymous};
use super::channels::Channels;
use super::connection::{Connection, Job};
use super::outgoing::Outgoing;
use super::{Epochs, Peer, ServerConfig};
use crate::net::error::NetError;
use crate::net::stream::Stream;
use crate::net::tls::{TlsIdentity, public_key_of};
use ashlar_env::Task;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{IpAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Threads that are there without work.
const THREADS_MIN: usize = 2;
/// Threads for calls, and more of them for calls that others may be waiting for.
// LIMIT: of a server; calls beyond wait.
const THREADS_MAX: usize = 256;
const THREADS_URGENT: usize = 32;
/// Bytes of calls that wait or are at work; beyond, nothing is read.
// LIMIT: of a server.
const BYTES_MAX: usize = 512 << 20;
/// Bytes of content that calls at work read: with more, callers are told to come again.
// LIMIT: of a server. It stops nobody from being read, so that a disk that hangs holds up its own calls only.
const CONTENT_BYTES_MAX: usize = 2 << 30;
/// Connections.
// LIMIT: of a server; beyond, they are closed as they come.
const CONNECTIONS_MAX: usize = 65_536;
/// For how long a caller may read why it was refused.
const LINGER_MAX: Duration = Duration::from_secs(2);
/// Time between two looks at whether certificates of callers are valid still, which takes a tenth of a millisecond for each.
const CERTIFICATES_EVERY: Duration = Duration::from_secs(10 * 60);
/// For how long a thread that is not needed stays.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// For how long calls under way are waited for at the end, and then until callers have taken the last answers.
const STOP_MAX: Duration = Duration::from_secs(5);
const LAST_ANSWERS_MAX: Duration = Duration::from_secs(1);
/// Time between looks at what is old.
const TIDY_EVERY: Duration = Duration::from_millis(500);

/// That something has come, or that nothing will any more.
const READING: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::RDHUP);

const WAKE: u64 = 0;
const FIRST_LISTENER: u64 = 1;
const FIRST_CONNECTION: u64 = 1 << 16;

/// Calls, and the threads for them.
#[derive(Default)]
struct Work {
    urgent: VecDeque<Job>,
    others: VecDeque<Job>,
    threads: usize,
    /// Threads that wait, less those that were woken for a call and have not looked yet. Below zero while one of these sees to something else, which
    /// had come before: whoever waits next is woken in its place.
    idle: isize,
    /// Threads that were woken for a call, or started, and have not looked yet.
    coming: isize,
    at_work: usize,
}

impl Work {
    /// The call whose turn it is; `None`, and the thread counts as one that waits, if there is none that it may carry out.
    fn take(&mut self) -> Option<Job> {
        let job = match self.urgent.pop_front() {
            Some(job) => Some(job),
            None if self.at_work < THREADS_MAX => self.others.pop_front(),
            None => None,
        };
        // ORDER: under the lock under which the calls were looked at, so that whoever brings the next one knows of this thread.
        match job {
            Some(_) => self.at_work += 1,
            None => self.idle += 1,
        }
        job
    }

    /// Whether nobody would be left to wait for what comes next.
    fn is_short(&self) -> bool {
        self.idle + self.coming <= (self.urgent.len() + self.others.len()) as isize
            && self.threads < THREADS_MAX + THREADS_URGENT
    }
}

/// Takes those out that are not full any more.
fn take_ready<T>(paused: &mut Vec<Weak<T>>, is_full: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
    let mut ready = Vec::new();
    // ORDER: each is asked once. What ends meanwhile makes room: to one that was full when it was asked first and is not when it is asked again, nobody would come back.
    paused.retain(|weak| {
        let Some(one) = weak.upgrade() else { return false };
        let is_full = is_full(&one);
        if !is_full {
            ready.push(one);
        }
        is_full
    });
    ready
}

/// See the module.
pub(crate) struct Pool {
    config: ServerConfig,
    epoll: OwnedFd,
    wake: OwnedFd,
    listeners: Mutex<Vec<TcpListener>>,
    /// Connections of callers that were told something and may not have read it yet, and since when.
    lingering: Mutex<VecDeque<(Instant, Arc<Connection>)>>,
    connections: Mutex<FxHashMap<u64, Arc<Connection>>>,
    anonymous: Anonymous,
    outgoing: Outgoing,
    next_token: AtomicU64,
    pub channels: Channels,
    work: Mutex<Work>,
    bytes: AtomicUsize,
    content_bytes: AtomicUsize,
    /// Connections that are not read from because too much is under way.
    paused: Mutex<Vec<Weak<Connection>>>,
    is_stopping: AtomicBool,
    tasks: Mutex<Vec<Task>>,
}

impl Pool {
    pub fn start(config: ServerConfig, listeners: Vec<TcpListener>) -> Result<Arc<Pool>, NetError> {
        let os = |errno: rustix::io::Errno| NetError::Io(errno.into());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(os)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE)
            .map_err(os)?;
        // One thread at a time: all would be woken, to find that another has taken what there was.
        let one = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE), one).map_err(os)?;
        for (token, listener) in (FIRST_LISTENER..).zip(&listeners) {
            epoll::add(&epoll, listener, epoll::EventData::new_u64(token), one).map_err(os)?;
        }
        let pool = Arc::new(Pool {
            config,
            epoll,
            wake,
            listeners: Mutex::new(listeners),
            lingering: Mutex::default(),
            connections: Mutex::default(),
            anonymous: Anonymous::default(),
            outgoing: Outgoing::default(),
            next_token: AtomicU64::new(FIRST_CONNECTION),
            channels: Channels::default(),
            work: Mutex::default(),
            bytes: AtomicUsize::new(0),
            content_bytes: AtomicUsize::new(0),
            paused: Mutex::default(),
            is_stopping: AtomicBool::new(false),
            tasks: Mutex::default(),
        });
        for _ in 0..THREADS_MIN {
            pool.add_thread().map_err(NetError::Io)?;
        }
        let weak = Arc::downgrade(&pool);
        let tidy = Box::new(move || {
            let mut certificates_seen = Instant::now();
            while let Some(pool) = weak.upgrade() {
                if pool.is_stopping.load(SeqCst) {
                    return;
                }
                pool.tidy();
                if certificates_seen.elapsed() > CERTIFICATES_EVERY {
                    pool.end_expired();
                    certificates_seen = Instant::now();
                }
                drop(pool);
                std::thread::sleep(TIDY_EVERY);
            }
        });
        let task = pool.config.tasks.spawn("ashlar-net-old", tidy).map_err(NetError::Io)?;
        pool.tasks.lock().push(task);
        Ok(pool)
    }

    pub fn identity(&self) -> Arc<TlsIdentity> {
        self.config.identity.read().clone()
    }

    /// The token whose certificate this is, if it can be used.
    pub fn token_of(&self, certificate: &rustls::pki_types::CertificateDer<'_>) -> Option<[u8; 32]> {
        self.config.tokens.as_ref().and_then(|knows| knows(&public_key_of(certificate)?))
    }

    /// Whether TLS lets anybody in whom the authority does not stand behind.
    pub fn has_tokens(&self) -> bool {
        self.config.tokens.is_some()
    }

    pub fn epochs(&self) -> &Epochs {
        &self.config.epochs
    }

    pub fn admit(self: &Arc<Self>, peer: &Peer) -> Result<(), String> {
        // It may wait, for a map that names who has just joined.
        self.leave_somebody();
        (self.config.admit)(peer)
    }

    /// Sees to it that somebody is there for what comes while this thread waits.
    fn leave_somebody(self: &Arc<Self>) {
        let is_short = self.work.lock().is_short();
        if is_short && let Err(error) = self.add_thread() {
            tracing::warn!(%error, "no further thread for connections");
        }
    }

    pub fn threads(&self) -> usize {
        self.work.lock().threads
    }

    pub fn note_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, SeqCst);
    }

    /// Answers that are being made take `bytes` more; tells whether there is room for them.
    pub fn note_content(&self, bytes: usize) -> bool {
        self.content_bytes.fetch_add(bytes, SeqCst) + bytes <= CONTENT_BYTES_MAX
    }

    fn add_thread(self: &Arc<Self>) -> std::io::Result<()> {
        {
            let mut work = self.work.lock();
            (work.threads, work.coming) = (work.threads + 1, work.coming + 1);
        }
        let pool = self.clone();
        let run = Box::new(move || pool.work());
        self.config.tasks.spawn("ashlar-net", run).map(drop).inspect_err(|_| {
            let mut work = self.work.lock();
            (work.threads, work.coming) = (work.threads - 1, work.coming - 1);
        })
    }

    /// What a thread does.
    fn work(self: &Arc<Self>) {
        self.work.lock().coming -= 1;
        while !self.is_stopping.load(SeqCst) {
            if let Some(job) = self.take_job() {
                self.carry_out(job);
                continue;
            }
            let mut events =
                [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(WAKE) }];
            let bound = rustix::event::Timespec { tv_sec: IDLE_MAX.as_secs() as i64, tv_nsec: 0 };
            let woken = epoll::wait(&self.epoll, &mut events, Some(&bound));
            let token = matches!(woken, Ok(count) if count > 0).then(|| events[0].data.u64());
            let mut work = self.work.lock();
            match token {
                // Whoever has brought a call has counted this thread.
                Some(WAKE) => work.coming -= 1,
                _ => work.idle -= 1,
            }
            match token {
                Some(token) => {
                    drop(work);
                    // A panic ends this turn only.
                    self.config.tasks.contain(&mut || self.see_to(token));
                }
                None if woken == Ok(0) && work.idle >= THREADS_MIN as isize => break,
                None => {}
            }
        }
        self.work.lock().threads -= 1;
    }

    fn see_to(self: &Arc<Self>, token: u64) {
        match token {
            WAKE => {
                let mut taken = [0; 8];
                let _ = rustix::io::read(&self.wake, &mut taken);
                self.arm(&self.wake, WAKE, READING);
            }
            listener if listener < FIRST_CONNECTION => self.accept((listener - FIRST_LISTENER) as usize),
            connection => {
                let found = self.connections.lock().get(&connection).cloned();
                if let Some(connection) = found {
                    self.go_on(&connection);
                }
            }
        }
    }

    fn accept(self: &Arc<Self>, at: usize) {
        let listeners = self.listeners.lock();
        let Some(listener) = listeners.get(at) else { return };
        // LIMIT: of one turn.
        for _ in 0..64 {
            match listener.accept() {
                Ok((socket, address)) => {
                    if let Err(error) = self.begin(socket, address.ip()) {
                        tracing::debug!(%error, "a connection could not be taken");
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => {
                    tracing::warn!(%error, "cannot take a connection");
                    // No descriptors, say: others may be closed meanwhile.
                    std::thread::sleep(Duration::from_millis(50));
                    break;
                }
            }
        }
        self.arm(listener, FIRST_LISTENER + at as u64, READING);
    }

    fn begin(self: &Arc<Self>, socket: std::net::TcpStream, address: IpAddr) -> Result<(), NetError> {
        let tls = self.identity().accepting()?;
        let stream = Stream::new(socket, tls.into())?;
        let token = self.next_token.fetch_add(1, SeqCst);
        let connection = Arc::new(Connection::new(token, stream, self.outgoing.none()));
        {
            let mut connections = self.connections.lock();
            if connections.len() >= CONNECTIONS_MAX {
                return Err(NetError::Crowded);
            }
            connections.insert(token, connection.clone());
        }
        if let Some(other) = self.anonymous.add(address, &connection) {
            self.end(&other, false);
        }
        let flags = READING | epoll::EventFlags::ONESHOT;
        epoll::add(&self.epoll, connection.stream.as_fd(), epoll::EventData::new_u64(token), flags)
            .map_err(|errno| NetError::Io(errno.into()))
    }

    /// Has whoever waits next told of `source` again, once.
    fn arm(&self, source: &impl AsFd, token: u64, flags: epoll::EventFlags) {
        let flags = flags | epoll::EventFlags::ONESHOT;
        if let Err(error) = epoll::modify(&self.epoll, source, epoll::EventData::new_u64(token), flags) {
            tracing::debug!(%error, "a connection is not waited for any more");
        }
    }

    /// Has whoever waits next told of a connection again, as far as it is waited for.
    fn wait_for(&self, connection: &Arc<Connection>, change: impl FnOnce(&mut bool)) {
        // ORDER: under the lock, so that what is waited for is what was wanted last.
        let mut is_paused = connection.is_paused.lock();
        change(&mut is_paused);
        let kept = connection.stream.kept();
        let excess = self.outgoing.note(connection, kept);
        let mut flags = if *is_paused { epoll::EventFlags::empty() } else { READING };
        flags.set(epoll::EventFlags::OUT, kept > 0);
        // One that is waited for by nothing was told of, and is not again.
        if !flags.is_empty() {
            self.arm(&connection.stream.as_fd(), connection.token, flags);
        }
        drop(is_paused);
        if let Some(excess) = excess {
            tracing::info!("a connection is ended: too many answers wait for callers to take them");
            self.end(&excess, false);
        }
    }

    /// Sees to a connection that has something to be read, or room for answers.
    fn go_on(self: &Arc<Self>, connection: &Arc<Connection>) {
        if connection.stream.kept() > 0 {
            match connection.stream.send_kept() {
                Ok((has_taken, _)) if has_taken => connection.unsent.note_taken(Instant::now()),
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%error, "answers could not be sent; the caller has to ask again");
                    return self.end(connection, false);
                }
            }
        }
        let is_paused = *connection.is_paused.lock();
        if is_paused {
            self.wait_for(connection, |_| {});
            // It may have been for the answers that it was paused.
            self.resume();
        } else {
            self.read(connection);
        }
    }

    /// Sends `parts` as far as the connection takes them; the rest follows when it takes more.
    pub fn send(&self, connection: &Arc<Connection>, parts: &[&[u8]]) -> Result<(), NetError> {
        if !connection.stream.queue(parts)? {
            self.wait_for(connection, |_| {});
        }
        Ok(())
    }

    /// Sends what is kept for `connection` as far as it takes it, if nobody has by now.
    pub fn send_kept(&self, connection: &Arc<Connection>) {
        if connection.stream.kept() == 0 {
            return;
        }
        match connection.stream.send_kept() {
            // It may have been for them that it was paused.
            Ok((_, true)) if !self.paused.lock().is_empty() => self.resume(),
            Ok((_, true)) => {}
            Ok((_, false)) => self.wait_for(connection, |_| {}),
            Err(error) => {
                tracing::debug!(%error, "answers could not be sent; the caller has to ask again");
                connection.stream.shut_down();
            }
        }
    }

    fn read(self: &Arc<Self>, connection: &Arc<Connection>) {
        if connection.is_anonymous() {
            // Who it is may have to be looked up in the state of the file system, in the middle of the handshake.
            self.leave_somebody();
        }
        match connection.read(self) {
            Ok(jobs) => {
                self.enqueue(jobs);
                if connection.is_full() || self.bytes.load(SeqCst) >= BYTES_MAX {
                    self.pause(connection);
                } else {
                    self.wait_for(connection, |_| {});
                }
            }
            Err(error) => {
                if !matches!(error, NetError::Closed | NetError::Io(_)) {
                    let peer = connection.channel().map(|channel| channel.peer.id.to_string());
                    tracing::info!(?peer, %error, "a connection is ended");
                }
                self.end(connection, matches!(error, NetError::Tls(_) | NetError::Refused(_)));
            }
        }
    }

    /// Ends a connection. `was_told`: the caller is to have the time to read why.
    fn end(&self, connection: &Arc<Connection>, was_told: bool) {
        self.connections.lock().remove(&connection.token);
        connection.note_ended();
        self.outgoing.note(connection, 0);
        // Closing the descriptor would do, but a call under way may hold it open.
        let _ = epoll::delete(&self.epoll, connection.stream.as_fd());
        if was_told {
            connection.stream.fall_silent();
            let mut lingering = self.lingering.lock();
            if lingering.len() >= ANONYMOUS_MAX {
                lingering.pop_front();
            }
            lingering.push_back((Instant::now(), connection.clone()));
        } else {
            connection.stream.shut_down();
            connection.stream.forget_kept();
        }
        if let Some(channel) = connection.channel() {
            let mut state = channel.state.lock();
            let is_current =
                state.connection.as_ref().is_some_and(|weak| weak.as_ptr() == Arc::as_ptr(connection));
            if is_current {
                (state.connection, state.left) = (None, Some(Instant::now()));
            }
        }
    }

    fn pause(&self, connection: &Arc<Connection>) {
        self.wait_for(connection, |is_paused| *is_paused = true);
        self.paused.lock().push(Arc::downgrade(connection));
        // ORDER: what ended before it was in the list has not looked there.
        self.resume();
    }

    fn resume(&self) {
        if self.bytes.load(SeqCst) >= BYTES_MAX {
            return;
        }
        let ready = take_ready(&mut self.paused.lock(), Connection::is_full);
        for connection in ready {
            self.wait_for(&connection, |is_paused| *is_paused = false);
        }
    }

    /// A call has ended.
    pub fn call_ended(&self, bytes: usize, content_bytes: usize) {
        self.bytes.fetch_sub(bytes, SeqCst);
        self.content_bytes.fetch_sub(content_bytes, SeqCst);
        if !self.paused.lock().is_empty() {
            self.resume();
        }
    }

    /// Has `jobs` carried out, one by the caller. Threads are woken for the others; what there are none for is taken by those that are at work, or
    /// that are added meanwhile.
    pub fn enqueue(self: &Arc<Self>, jobs: Vec<Job>) {
        let Some(others) = jobs.len().checked_sub(1) else { return };
        let woken = {
            let mut work = self.work.lock();
            for job in jobs {
                if job.replier.is_urgent() { work.urgent.push_back(job) } else { work.others.push_back(job) }
            }
            let woken = (others as isize).min(work.idle.max(0));
            (work.idle, work.coming) = (work.idle - woken, work.coming + woken);
            woken
        };
        self.wake(woken as usize);
    }

    fn wake(&self, count: usize) {
        if count > 0 {
            let _ = rustix::io::write(&self.wake, &(count as u64).to_ne_bytes());
        }
    }

    fn take_job(self: &Arc<Self>) -> Option<Job> {
        let (job, is_short) = {
            let mut work = self.work.lock();
            let job = work.take()?;
            (job, work.is_short())
        };
        if is_short && let Err(error) = self.add_thread() {
            tracing::warn!(%error, "no further thread for calls");
        }
        Some(job)
    }

    fn carry_out(&self, job: Job) {
        let Job { frame, replier } = job;
        let endpoint = self.config.endpoints.iter().find(|(service, _)| *service == replier.service());
        let peer = replier.peer();
        match endpoint {
            None => replier.refuse("that is not served at this address"),
            Some((_, endpoint)) => {
                let mut call = Some((frame, replier));
                let went_well = self.config.tasks.contain(&mut || {
                    if let Some((frame, replier)) = call.take() {
                        endpoint.serve(&peer, frame, replier);
                    }
                });
                if !went_well {
                    tracing::error!(peer = %peer.id, "a call ended by a panic");
                }
            }
        }
        // What waits is taken by this thread.
        self.work.lock().at_work -= 1;
    }

    /// Ends what is too old.
    fn tidy(&self) {
        let now = Instant::now();
        for connection in self.anonymous.take_late(now) {
            self.end(&connection, false);
        }
        for connection in self.outgoing.stuck(now) {
            let peer = connection.channel().map(|channel| channel.peer.id.to_string());
            tracing::info!(?peer, "a connection is ended: its caller does not take its answers");
            self.end(&connection, false);
        }
        self.lingering.lock().retain(|(since, _)| now.duration_since(*since) < LINGER_MAX);
        for peer in self.channels.forget(now) {
            for (_, endpoint) in &self.config.endpoints {
                endpoint.forgotten(&peer);
            }
        }
    }

    /// Ends connections whose certificates are too old by now. Whoever has a new one makes another connection with it.
    pub fn end_expired(&self) {
        let identity = self.identity();
        let connections: Vec<Arc<Connection>> = self.connections.lock().values().cloned().collect();
        for connection in connections {
            let Some(channel) = connection.channel().filter(|channel| channel.peer.token.is_none()) else {
                continue;
            };
            let is_certified = connection
                .stream
                .with_tls(|tls| tls.peer_certificates().is_some_and(|chain| identity.is_certified(chain)));
            if !is_certified {
                tracing::info!(peer = %channel.peer.id, "a connection is ended: its certificate is not valid any more");
                self.end(&connection, false);
            }
        }
    }

    pub fn review(&self) {
        let connections: Vec<Arc<Connection>> = self.connections.lock().values().cloned().collect();
        for connection in connections {
            if let Some(channel) = connection.channel()
                && let Err(text) = (self.config.admit)(&channel.peer)
            {
                tracing::info!(peer = %channel.peer.id, text, "a connection is ended");
                self.end(&connection, false);
            }
        }
    }

    pub fn stop(&self) {
        if self.is_stopping.swap(true, SeqCst) {
            return;
        }
        self.wake(THREADS_MAX + THREADS_URGENT);
        let end = Instant::now() + STOP_MAX;
        while self.work.lock().threads > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
        }
        // ORDER: answers first, then the connections they go by.
        let connections: Vec<Arc<Connection>> = self.connections.lock().drain().map(|(_, one)| one).collect();
        let last = Instant::now() + LAST_ANSWERS_MAX;
        for connection in &connections {
            let _ = connection.stream.send_kept();
        }
        for connection in connections {
            if connection.stream.kept() > 0 {
                // Who does not take them asks somebody else.
                let _ = connection.stream.flush(last);
            }
            connection.stream.shut_down();
        }
        for task in std::mem::take(&mut *self.tasks.lock()).into_iter().filter(|task| !task.is_current()) {
            task.join();
        }
        self.listeners.lock().clear();
        let mut work = self.work.lock();
        (work.urgent, work.others) = (VecDeque::new(), VecDeque::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_has_room_again_just_then_is_read_from_again() {
        let all: Vec<Arc<AtomicUsize>> = (0..4).map(|_| Arc::default()).collect();
        let mut paused: Vec<Weak<AtomicUsize>> = all.iter().map(Arc::downgrade).collect();
        // Each call of the others that ends makes room meanwhile.
        let is_full = |asked: &AtomicUsize| asked.fetch_add(1, SeqCst) == 0;
        assert!(take_ready(&mut paused, is_full).is_empty());
        assert_eq!((paused.len(), take_ready(&mut paused, is_full).len(), paused.len()), (4, 4, 0));
        drop(all);
    }
}
