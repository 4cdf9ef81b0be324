//! Messages over TLS, with a bound on how long they are and how long anybody waits.
//!
//! The first message of both sides is their version and, on a line below, the number of what they say to each other, in a form that every version understands. All others are a length (u32, little-endian) and so
//! many bytes of postcard.

use crate::BenchError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::Connection;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// LIMIT: bytes of a message: the latencies of a machine need some 50 KiB.
const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// LIMIT: of making the connection safe, and of sending one message to somebody who does not take it.
const PATIENCE: Duration = Duration::from_secs(10);
/// Who has nothing to say says so, so often.
pub(super) const ALIVE_EVERY: Duration = Duration::from_secs(2);
/// LIMIT: who says nothing for so long is lost.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(10);

/// The number of what is said after that. It goes up with every change of a message, so that two builds of one version that differ in them do not
/// take each other's words for something else.
const PROTOCOL: u32 = 3;

/// Why a channel cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    /// The other side ended it.
    #[error("it ended the connection")]
    Closed,
    /// The network.
    #[error("{0}")]
    Io(io::Error),
    /// TLS, also that the other side is not who it should be.
    #[error("{0}")]
    Tls(rustls::Error),
    /// Nothing came for too long.
    #[error("nothing was heard from it for {} seconds", SILENCE_MAX.as_secs())]
    Silent,
    /// Nothing went for too long.
    #[error("it takes nothing")]
    Stuck,
    /// What came is no message.
    #[error("it sent what is no message ({0})")]
    Malformed(&'static str),
}

/// A connection that both sides have proven themselves on.
pub(crate) struct Channel {
    tcp: TcpStream,
    tls: Connection,
    /// Came, and not yet taken.
    incoming: Vec<u8>,
    is_closed: bool,
    heard: Instant,
    sent: Instant,
}

impl Channel {
    /// Makes `tcp` safe.
    pub fn new(tcp: TcpStream, tls: Connection) -> Result<Channel, Broken> {
        tcp.set_nodelay(true).and_then(|()| tcp.set_nonblocking(true)).map_err(Broken::Io)?;
        let now = Instant::now();
        let mut channel = Channel { tcp, tls, incoming: Vec::new(), is_closed: false, heard: now, sent: now };
        channel.tls.set_buffer_limit(None);
        let deadline = now + PATIENCE;
        while channel.tls.is_handshaking() {
            if channel.tls.wants_write() {
                channel.flush(deadline)?;
            } else {
                channel.wait(PollFlags::IN, deadline)?;
                let read = channel.read();
                // What is wrong is told to the other side, as far as it goes.
                if read.is_err() {
                    let _ = channel.flush(deadline);
                }
                read?;
            }
        }
        channel.flush(deadline)?;
        Ok(channel)
    }

    /// Waits until the socket can be used.
    fn wait(&self, flags: PollFlags, deadline: Instant) -> Result<(), Broken> {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(&self.tcp, flags)];
        match poll(&mut fds, Some(&timespec(left))) {
            Ok(0) if left.is_zero() => Err(Broken::Stuck),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(Broken::Io(errno.into())),
        }
    }

    fn flush(&mut self, deadline: Instant) -> Result<(), Broken> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut &self.tcp) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(PollFlags::OUT, deadline)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Broken::Io(error)),
            }
        }
        Ok(())
    }

    /// Takes what has come, without waiting.
    fn read(&mut self) -> Result<(), Broken> {
        while !self.is_closed && self.frame_end()?.is_none() {
            match self.tls.read_tls(&mut &self.tcp) {
                Ok(0) => self.is_closed = true,
                Ok(_) => {
                    let state = self.tls.process_new_packets().map_err(Broken::Tls)?;
                    let mut plain = vec![0; state.plaintext_bytes_to_read()];
                    self.tls.reader().read_exact(&mut plain).map_err(Broken::Io)?;
                    if !plain.is_empty() {
                        self.heard = Instant::now();
                    }
                    self.incoming.append(&mut plain);
                    self.is_closed |= state.peer_has_closed();
                    if self.tls.is_handshaking() {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Broken::Io(error)),
            }
        }
        if self.is_closed && self.tls.is_handshaking() { Err(Broken::Closed) } else { Ok(()) }
    }

    /// Where the first message ends, if all of it is here.
    fn frame_end(&self) -> Result<Option<usize>, Broken> {
        let Some(head) = self.incoming.first_chunk::<4>() else { return Ok(None) };
        let len = u32::from_le_bytes(*head) as usize;
        if len > MESSAGE_BYTES_MAX {
            return Err(Broken::Malformed("too long"));
        }
        Ok((self.incoming.len() >= 4 + len).then_some(4 + len))
    }

    /// The next message that is here, without waiting.
    pub fn take_bytes(&mut self) -> Result<Option<Vec<u8>>, Broken> {
        self.read()?;
        match self.frame_end()? {
            Some(end) => {
                let frame: Vec<u8> = self.incoming.drain(..end).collect();
                Ok(Some(frame[4..].to_vec()))
            }
            None if self.is_closed => Err(Broken::Closed),
            None if self.heard.elapsed() > SILENCE_MAX => Err(Broken::Silent),
            None => Ok(None),
        }
    }

    /// The next message that is here, without waiting.
    pub fn take<M: DeserializeOwned>(&mut self) -> Result<Option<M>, Broken> {
        let Some(bytes) = self.take_bytes()? else { return Ok(None) };
        postcard::from_bytes(&bytes).map(Some).map_err(|_| Broken::Malformed("unknown"))
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(Broken::Malformed("ours is too long"));
        }
        let frame = [&(bytes.len() as u32).to_le_bytes(), bytes].concat();
        self.tls.writer().write_all(&frame).map_err(Broken::Io)?;
        self.flush(Instant::now() + PATIENCE)?;
        self.sent = Instant::now();
        Ok(())
    }

    pub fn send<M: Serialize>(&mut self, message: &M) -> Result<(), Broken> {
        let bytes = postcard::to_stdvec(message).map_err(|_| Broken::Malformed("ours"))?;
        self.send_bytes(&bytes)
    }

    /// Sends `message` if nothing was sent for a while.
    pub fn keep_alive<M: Serialize>(&mut self, message: &M) -> Result<(), Broken> {
        if self.sent.elapsed() < ALIVE_EVERY { Ok(()) } else { self.send(message) }
    }

    /// Waits for one message.
    pub fn receive_bytes(&mut self) -> Result<Vec<u8>, Broken> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(bytes) = self.take_bytes()? {
                return Ok(bytes);
            }
            self.wait(PollFlags::IN, deadline)?;
        }
    }

    /// Tells each other's versions, which have to be the same; theirs if not.
    pub fn compare_versions(&mut self, here: &str) -> Result<Result<(), String>, Broken> {
        let spoken = format!("{here}\n{PROTOCOL}");
        self.send_bytes(spoken.as_bytes())?;
        let there = String::from_utf8_lossy(&self.receive_bytes()?).into_owned();
        if there == spoken {
            return Ok(Ok(()));
        }
        let version = harmless(there.lines().next().unwrap_or_default(), 64);
        Ok(Err(if version == here { format!("{version} of another build") } else { version }))
    }

    /// The last one.
    pub fn close(&mut self) {
        self.tls.send_close_notify();
        // Whoever does not hear it sees the end of the connection.
        let _ = self.flush(Instant::now() + PATIENCE);
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }
}

/// Waits until one of `fds` has something to read, `time_max` at most.
pub(crate) fn wait_for_any(fds: &[BorrowedFd<'_>], time_max: Duration) -> Result<(), BenchError> {
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    match poll(&mut polled, Some(&timespec(time_max))) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(BenchError::Refused(format!("cannot wait for the network: {errno}"))),
    }
}

fn timespec(time: Duration) -> Timespec {
    // A millisecond more: a wait that ends too early is only begun again.
    let time = time + Duration::from_millis(1);
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) }
}

/// A text from elsewhere as a terminal or a page may have it: a space is in the place of what controls a terminal, turns the direction of what
/// follows, or is there and cannot be seen; what is longer than `len_max` characters is left out.
pub(crate) fn harmless(text: &str, len_max: usize) -> String {
    let shown = |sign: char| if sign.is_control() || is_unseen(sign) { ' ' } else { sign };
    text.chars().take(len_max).map(shown).collect()
}

/// Signs that change how others look and are not seen themselves: marks of direction, of no width, of variants, and what is left empty (Unicode's
/// `Default_Ignorable_Code_Point`, and the separators of lines and paragraphs).
fn is_unseen(sign: char) -> bool {
    matches!(
        sign,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::super::invitation::{Invitation, random};
    use super::super::tls::{self, Key};
    use super::*;
    use std::net::TcpListener;
    use std::sync::Arc;

    /// Two ends of a connection.
    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener.accept().unwrap().0, there)
    }

    fn coordinator() -> (Arc<rustls::ServerConfig>, Invitation) {
        let key = Key::from_seed(&random().unwrap()).unwrap();
        let invitation = Invitation::draw(key.public()).unwrap();
        (tls::coordinator(&key, &invitation).unwrap(), invitation)
    }

    type Ends = (Result<Channel, Broken>, Result<Channel, Broken>);

    /// A handshake of a coordinator with whoever `client` is.
    fn handshake(config: &Arc<rustls::ServerConfig>, client: Connection) -> Ends {
        let (here, there) = connected();
        let server = Connection::from(tls::accepted(config).unwrap());
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| Channel::new(here, server));
            let client = Channel::new(there, client);
            (accepting.join().unwrap(), client)
        })
    }

    fn joined() -> (Channel, Channel) {
        let (config, invitation) = coordinator();
        let (server, client) = handshake(&config, tls::agent(&invitation).unwrap().into());
        (server.unwrap(), client.unwrap())
    }

    fn receive<M: DeserializeOwned>(channel: &mut Channel) -> Result<M, Broken> {
        loop {
            if let Some(message) = channel.take()? {
                return Ok(message);
            }
        }
    }

    #[test]
    fn messages_arrive_as_they_were_sent_whatever_their_length() {
        let (mut here, mut there) = joined();
        let messages: Vec<Vec<u64>> =
            [0, 1, 100, 20_000].map(|len| (0..len).map(|number| number * 7).collect()).into();
        let sent = messages.clone();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                sent.iter().for_each(|message| there.send(message).unwrap());
                there.close();
            });
            for message in &messages {
                assert_eq!(&receive::<Vec<u64>>(&mut here).unwrap(), message);
            }
            assert!(matches!(receive::<Vec<u64>>(&mut here), Err(Broken::Closed)));
        });
    }

    #[test]
    fn what_is_no_message_or_too_long_ends_the_connection() {
        let (mut here, mut there) = joined();
        there.send_bytes(&[0xff; 20]).unwrap();
        assert!(matches!(receive::<Option<bool>>(&mut here), Err(Broken::Malformed("unknown"))));
        there.tls.writer().write_all(&(MESSAGE_BYTES_MAX as u32 + 1).to_le_bytes()).unwrap();
        there.flush(Instant::now() + PATIENCE).unwrap();
        assert!(matches!(receive::<bool>(&mut here), Err(Broken::Malformed("too long"))));
        assert!(there.send_bytes(&vec![0; MESSAGE_BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn keys_of_another_invitation_are_believed_by_neither() {
        let ((config, invitation), (_, other)) = (coordinator(), coordinator());
        let (server, client) = handshake(&config, tls::agent(&other).unwrap().into());
        assert!(server.is_err());
        let told = client.err();
        assert!(
            matches!(told, Some(Broken::Tls(rustls::Error::InvalidCertificate(_)))),
            "the agent looks before it shows anything: {told:?}"
        );
        // The coordinator is right, and the secret is another one: half of one invitation with half of the other.
        let mixed = format!("{}{}", &invitation.text()[..32], &other.text()[32..]);
        let mixed = Invitation::parse(&mixed).unwrap();
        let (server, _) = handshake(&config, tls::agent(&mixed).unwrap().into());
        assert!(matches!(server, Err(Broken::Tls(rustls::Error::InvalidCertificate(_)))));
    }

    #[test]
    fn whoever_shows_no_key_or_speaks_no_tls_is_no_agent() {
        let (config, invitation) = coordinator();
        let anonymous = tls::anonymous(&invitation);
        let (server, _) = handshake(&config, anonymous.into());
        assert!(server.is_err(), "a client without a key");
        for sent in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 0xff, 0xff], &[0; 70_000]] {
            let (here, mut there) = connected();
            let server = Connection::from(tls::accepted(&config).unwrap());
            let sending = std::thread::spawn({
                let sent = sent.to_vec();
                move || {
                    // It may be closed before all is sent.
                    let _ = there.write_all(&sent);
                }
            });
            assert!(Channel::new(here, server).is_err());
            sending.join().unwrap();
        }
    }

    #[test]
    fn signs_that_turn_the_direction_or_are_not_seen_do_not_reach_a_report() {
        assert_eq!(harmless("plain ä \u{5d0}\u{4e2d} name", 100), "plain ä \u{5d0}\u{4e2d} name");
        for sign in [
            '\u{202e}',
            '\u{2066}',
            '\u{200f}',
            '\u{61c}',
            '\u{200b}',
            '\u{feff}',
            '\u{2028}',
            '\u{e0041}',
            '\u{ad}',
        ] {
            assert_eq!(harmless(&format!("a{sign}b"), 100), "a b", "{}", sign.escape_unicode());
        }
        assert_eq!(harmless("abc", 2), "ab");
    }

    #[test]
    fn versions_that_differ_are_told_to_both_without_what_controls_a_terminal() {
        for (other, shown) in [("1.0.0", None), ("2.0\u{1b}[2J", Some("2.0 [2J".to_owned()))] {
            let (mut here, mut there) = joined();
            let other_told = std::thread::scope(|scope| {
                let other_told = scope.spawn(move || there.compare_versions(other).unwrap());
                assert_eq!(here.compare_versions("1.0.0").unwrap().err(), shown);
                other_told.join().unwrap()
            });
            assert_eq!(other_told.is_ok(), shown.is_none());
        }
        // Builds before there was a number, and later ones.
        for other in ["1.0.0", "1.0.0\n2", "1.0.0\n4"] {
            let (mut here, mut there) = joined();
            there.send_bytes(other.as_bytes()).unwrap();
            assert_eq!(
                here.compare_versions("1.0.0").unwrap().err().as_deref(),
                Some("1.0.0 of another build")
            );
        }
    }
}
