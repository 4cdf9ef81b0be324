//! A TLS stream over a socket that never blocks, shared by one who reads and several who write.
//!
//! The state of TLS is behind one lock that is held while bytes are encrypted or decrypted, never while anybody waits for the network.

use super::NetError;
use super::frame::{Assembler, Frame};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::Connection;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Bytes that are encrypted in one go: a reader of the same stream waits for that at the most.
const SLICE_BYTES: usize = 256 << 10;
/// Bytes and frames that are taken in one go, so that one stream does not keep a thread from others.
// LIMIT: of one turn of reading.
const TURN_BYTES: usize = 4 << 20;
const TURN_FRAMES: usize = 64;

/// Time between two looks of one who waits for the socket to take something whether to go on with it.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// See the module.
pub(crate) struct Stream {
    socket: TcpStream,
    tls: Mutex<Connection>,
    /// Held by whoever sends a frame, so that frames do not mix.
    sending: Mutex<()>,
    /// Bytes that are encrypted and not sent, about: what TLS adds is not counted, but something is if anything is left.
    // ORDER: changed under the lock of `tls`.
    kept: AtomicUsize,
}

/// What a turn of reading brought.
#[derive(Default)]
pub(crate) struct Turn {
    /// Whole frames.
    pub frames: Vec<Frame>,
    /// Whether the other side has ended the stream.
    pub is_closed: bool,
}

impl Stream {
    pub fn new(socket: TcpStream, mut tls: Connection) -> Result<Stream, NetError> {
        socket.set_nodelay(true).and_then(|()| socket.set_nonblocking(true)).map_err(NetError::Io)?;
        set_patience(&socket)?;
        tls.set_buffer_limit(None);
        Ok(Stream { socket, tls: Mutex::new(tls), sending: Mutex::new(()), kept: AtomicUsize::new(0) })
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Ends the stream at once, for both sides; whoever waits for it wakes.
    pub fn shut_down(&self) {
        // One that has ended already is as good.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    /// Says nothing more; the other side may still read what was said.
    pub fn fall_silent(&self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }

    /// Looks at the TLS state, for who the other side is.
    pub fn with_tls<T>(&self, look: impl FnOnce(&Connection) -> T) -> T {
        look(&self.tls.lock())
    }

    /// Waits until there is something to read, or to write if `for_writing`; tells whether there is before `deadline`.
    pub fn wait(&self, for_writing: bool, deadline: Instant) -> Result<bool, NetError> {
        let flags = if for_writing { PollFlags::OUT } else { PollFlags::IN };
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(&self.socket, flags)];
        match poll(&mut fds, Some(&timespec(left))) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(true),
            Err(errno) => Err(NetError::Io(errno.into())),
        }
    }

    /// Takes what has come, without waiting. Whole frames that came before an error are kept in `turn`.
    pub fn receive(&self, assembler: &mut Assembler, turn: &mut Turn) -> Result<(), NetError> {
        let mut tls = self.tls.lock();
        let mut bytes = 0;
        let mut failed = None;
        loop {
            bytes += take_plain(&mut tls, assembler, &mut turn.frames)?;
            if let Some(error) = failed {
                return Err(error);
            }
            let is_enough = !turn.frames.is_empty() && assembler.is_at_border();
            if is_enough || bytes >= TURN_BYTES || turn.frames.len() >= TURN_FRAMES || turn.is_closed {
                return Ok(());
            }
            match tls.read_tls(&mut &self.socket) {
                Ok(0) => turn.is_closed = true,
                Ok(_) => {
                    let outcome = tls.process_new_packets();
                    // What is wrong, or the next step of the handshake, is told to the other side as far as it goes.
                    let told = if tls.wants_write() { self.drain(&mut tls).map(drop) } else { Ok(()) };
                    let taken = outcome.map_err(NetError::Tls).map(|state| state.peer_has_closed());
                    // What came before it is taken all the same.
                    match told.and(taken) {
                        Ok(has_closed) => turn.is_closed |= has_closed,
                        Err(error) => failed = Some(error),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(NetError::Io(error)),
            }
        }
    }

    /// Sends `parts` one behind the other, as a whole frame.
    pub fn send(&self, parts: &[&[u8]], deadline: Instant) -> Result<(), NetError> {
        self.send_if(parts, deadline, || Ok(()), || Ok(()))
    }

    /// The same if `begin` does not say otherwise, which is asked when nothing else is sent any more, and for as long as `goes_on`, which is asked from time to time while
    /// the socket takes nothing. After an error of `begin` nothing was sent; after any other one the stream can be used no more.
    pub fn send_if(
        &self,
        parts: &[&[u8]],
        deadline: Instant,
        begin: impl FnOnce() -> Result<(), NetError>,
        goes_on: impl Fn() -> Result<(), NetError>,
    ) -> Result<(), NetError> {
        self.push(parts, begin, || self.flush_while(deadline, &goes_on).map(|()| true)).map(drop)
    }

    /// The same without waiting: what the socket does not take now is kept. Tells whether nothing is.
    pub fn queue(&self, parts: &[&[u8]]) -> Result<bool, NetError> {
        self.push(parts, || Ok(()), || Ok(false))
    }

    /// Takes `parts` as a whole frame that goes with whatever is sent next: the caller has [`Stream::send_kept`] do that soon.
    pub fn keep(&self, parts: &[&[u8]]) -> Result<(), NetError> {
        let _sending = self.sending.lock();
        for slice in parts.iter().flat_map(|part| part.chunks(SLICE_BYTES)) {
            let mut tls = self.tls.lock();
            tls.writer().write_all(slice).map_err(NetError::Io)?;
            self.kept.fetch_add(slice.len(), SeqCst);
        }
        Ok(())
    }

    fn push(
        &self,
        parts: &[&[u8]],
        begin: impl FnOnce() -> Result<(), NetError>,
        blocked: impl Fn() -> Result<bool, NetError>,
    ) -> Result<bool, NetError> {
        let _sending = self.sending.lock();
        // ORDER: asked when it is this one's turn: whoever was before it may have had to wait for long.
        begin()?;
        let mut slices = parts.iter().flat_map(|part| part.chunks(SLICE_BYTES)).peekable();
        loop {
            let mut is_sent = {
                let mut tls = self.tls.lock();
                // Small parts go together, into one record and one system call.
                let mut taken = 0;
                while let Some(slice) =
                    slices.next_if(|slice| taken == 0 || taken + slice.len() <= SLICE_BYTES)
                {
                    tls.writer().write_all(slice).map_err(NetError::Io)?;
                    taken += slice.len();
                }
                self.kept.fetch_add(taken, SeqCst);
                self.drain(&mut tls)?.is_all
            };
            if !is_sent {
                is_sent = blocked()?;
            }
            if slices.peek().is_none() {
                return Ok(is_sent);
            }
        }
    }

    /// Sends of what was kept as much as the socket takes; tells whether it took anything, and whether nothing is kept any more.
    pub fn send_kept(&self) -> Result<(bool, bool), NetError> {
        let Drained { bytes, is_all } = self.drain(&mut self.tls.lock())?;
        Ok((bytes > 0, is_all))
    }

    /// Bytes that are kept until the socket takes them; 0 only if there are none.
    pub fn kept(&self) -> usize {
        self.kept.load(SeqCst)
    }

    /// Has what is kept be gone; nobody is to get it any more.
    pub fn forget_kept(&self) {
        let mut tls = self.tls.lock();
        while tls.wants_write() && tls.write_tls(&mut io::sink()).is_ok() {}
        self.kept.store(0, SeqCst);
    }

    /// Writes what is encrypted as far as the socket takes it.
    fn drain(&self, tls: &mut Connection) -> Result<Drained, NetError> {
        let drained = drain(tls, &self.socket)?;
        let left = match drained.is_all {
            true => 0,
            false => self.kept.load(SeqCst).saturating_sub(drained.bytes).max(1),
        };
        self.kept.store(left, SeqCst);
        Ok(drained)
    }

    /// Writes what is encrypted; waits for the network, without the lock.
    pub fn flush(&self, deadline: Instant) -> Result<(), NetError> {
        self.flush_while(deadline, &|| Ok(()))
    }

    fn flush_while(
        &self,
        deadline: Instant,
        goes_on: &dyn Fn() -> Result<(), NetError>,
    ) -> Result<(), NetError> {
        let mut look = Instant::now() + LOOK_EVERY;
        loop {
            let is_ready = self.wait(true, deadline.min(look))?;
            if is_ready && self.drain(&mut self.tls.lock())?.is_all {
                return Ok(());
            }
            let now = Instant::now();
            if !is_ready && now >= deadline {
                return Err(NetError::Stuck);
            }
            if now >= look {
                goes_on()?;
                look = now + LOOK_EVERY;
            }
        }
    }

    /// Carries the handshake out, for a caller.
    pub fn shake_hands(&self, assembler: &mut Assembler, deadline: Instant) -> Result<(), NetError> {
        loop {
            let (is_done, is_sent) = {
                let mut tls = self.tls.lock();
                let is_sent = self.drain(&mut tls)?.is_all;
                (!tls.is_handshaking(), is_sent)
            };
            if is_done && is_sent {
                return Ok(());
            }
            if !self.wait(!is_sent, deadline)? {
                return Err(NetError::Stuck);
            }
            let mut turn = Turn::default();
            self.receive(assembler, &mut turn)?;
            if turn.is_closed {
                return Err(NetError::Closed);
            }
        }
    }
}

/// Moves plain bytes into frames; tells how many.
fn take_plain(
    tls: &mut Connection,
    assembler: &mut Assembler,
    frames: &mut Vec<Frame>,
) -> Result<usize, NetError> {
    let mut bytes = 0;
    if tls.is_handshaking() {
        return Ok(0);
    }
    loop {
        match tls.reader().read(assembler.room()) {
            Ok(0) => return Ok(bytes),
            Ok(len) => {
                bytes += len;
                frames.extend(assembler.filled(len).map_err(NetError::Malformed)?);
            }
            // The end without a farewell is one all the same: frames say what is whole.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::UnexpectedEof) =>
            {
                return Ok(bytes);
            }
            Err(error) => return Err(NetError::Io(error)),
        }
    }
}

/// What a socket took.
struct Drained {
    bytes: usize,
    /// Whether nothing is left.
    is_all: bool,
}

/// Writes what is encrypted as far as the socket takes it.
fn drain(tls: &mut Connection, socket: &TcpStream) -> Result<Drained, NetError> {
    let mut bytes = 0;
    while tls.wants_write() {
        match tls.write_tls(&mut &*socket) {
            Ok(written) => bytes += written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(Drained { bytes, is_all: false });
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(NetError::Io(error)),
        }
    }
    Ok(Drained { bytes, is_all: true })
}

/// Has the kernel notice a peer that is gone: within ten seconds whether or not something was sent to it.
fn set_patience(socket: &TcpStream) -> Result<(), NetError> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(socket, true)
        .and_then(|()| sockopt::set_tcp_keepidle(socket, Duration::from_secs(4)))
        .and_then(|()| sockopt::set_tcp_keepintvl(socket, Duration::from_secs(2)))
        .and_then(|()| sockopt::set_tcp_keepcnt(socket, 3))
        .and_then(|()| sockopt::set_tcp_user_timeout(socket, 10_000))
        .map_err(|errno| NetError::Io(errno.into()))
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs().min(i64::MAX as u64) as i64, tv_nsec: i64::from(time.subsec_nanos()) }
}
