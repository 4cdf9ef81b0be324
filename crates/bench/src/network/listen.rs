//! Taking the connections of flows, and nobody else's.

use crate::BenchError;
use crate::agent::{Token, wait_for_any};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// LIMIT: connections that have not shown a token yet; more wait in the kernel.
const STRANGERS_MAX: usize = 256;
/// LIMIT: of showing it, and of all that are expected.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Ports that agents may be connected to on, from the first to the last of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
    /// The first.
    pub first: u16,
    /// The last, not less than the first.
    pub last: u16,
}

impl FromStr for Ports {
    type Err = String;

    /// `5000-5010`, or one port.
    fn from_str(text: &str) -> Result<Ports, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        // `parse` would take a sign.
        let is_number = |text: &&str| text.bytes().all(|digit| digit.is_ascii_digit());
        let port = |text: &str| Some(text).filter(is_number)?.parse::<u16>().ok().filter(|port| *port > 0);
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Ports { first, last }),
            _ => {
                Err("ports are a number from 1 to 65535, or two: the first and the last, as 5000-5010".into())
            }
        }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// A port that flows of one phase can connect to.
pub(crate) struct Listening {
    listener: TcpListener,
    /// Tokens, and how many connections may still come with each.
    expected: Vec<(Token, u32)>,
}

/// A connection that has not shown its whole token yet.
struct Stranger {
    tcp: TcpStream,
    shown: Vec<u8>,
    since: Instant,
}

impl Listening {
    /// Listens on the first of `ports` of `address` that is free; without them on one that the system chooses.
    ///
    /// # Errors
    /// [`BenchError::Refused`] with what the system answers.
    pub fn open(
        address: IpAddr,
        ports: Option<Ports>,
        expected: Vec<(Token, u32)>,
    ) -> Result<Listening, BenchError> {
        let cannot = |error: io::Error| BenchError::Refused(format!("cannot listen on {address}: {error}"));
        let listener = match ports {
            None => TcpListener::bind((address, 0)).map_err(cannot)?,
            // An agent of the same machine may have the first of them.
            Some(ports) => (ports.first..=ports.last)
                .find_map(|port| match TcpListener::bind((address, port)) {
                    Err(error) if error.kind() == io::ErrorKind::AddrInUse => None,
                    bound => Some(bound),
                })
                .unwrap_or_else(|| {
                    let text = format!("none of the ports {ports} is free: name others with --data-ports");
                    Err(io::Error::new(io::ErrorKind::AddrInUse, text))
                })
                .map_err(cannot)?,
        };
        listener.set_nonblocking(true).map_err(cannot)?;
        Ok(Listening { listener, expected })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// [`BenchError::Refused`] if the system does not tell.
    pub fn address(&self) -> Result<SocketAddr, BenchError> {
        self.listener.local_addr().map_err(|error| BenchError::Refused(format!("cannot listen: {error}")))
    }

    /// Waits for all connections that are expected, each with its token. Then nobody listens any more.
    ///
    /// # Errors
    /// [`BenchError::Refused`] when they do not come, [`BenchError::Stopped`] when somebody sets `stop`.
    pub fn accept(mut self, stop: &AtomicBool) -> Result<Vec<(Token, TcpStream)>, BenchError> {
        let (mut flows, mut strangers) = (Vec::new(), Vec::<Stranger>::new());
        let deadline = Instant::now() + PATIENCE;
        while self.expected.iter().any(|(_, left)| *left > 0) {
            if stop.load(Relaxed) {
                return Err(BenchError::Stopped);
            }
            if Instant::now() > deadline {
                let text = "another agent does not connect: is there a firewall between the machines? (--data-ports names the ports that it has to let through)";
                return Err(BenchError::Refused(text.into()));
            }
            while strangers.len() < STRANGERS_MAX
                && let Ok((tcp, _)) = self.listener.accept()
            {
                if tcp.set_nonblocking(true).is_ok() {
                    strangers.push(Stranger { tcp, shown: Vec::new(), since: Instant::now() });
                }
            }
            for mut stranger in std::mem::take(&mut strangers) {
                match stranger.token() {
                    // Who is not expected is closed without a word.
                    Some(token) => flows.extend(self.admit(token).map(|token| (token, stranger.tcp))),
                    None if stranger.since.elapsed() < PATIENCE && !stranger.is_gone() => {
                        strangers.push(stranger);
                    }
                    None => {}
                }
            }
            let mut fds: Vec<BorrowedFd<'_>> = vec![self.listener.as_fd()];
            fds.extend(strangers.iter().map(|stranger| stranger.tcp.as_fd()));
            wait_for_any(&fds, LOOK_EVERY)?;
        }
        Ok(flows)
    }

    fn admit(&mut self, shown: Token) -> Option<Token> {
        let known = self.expected.iter_mut().find(|(token, left)| is_same(token, &shown) && *left > 0)?;
        known.1 -= 1;
        Some(shown)
    }
}

impl Stranger {
    fn token(&mut self) -> Option<Token> {
        let mut bytes = Token::default();
        let room = bytes.len() - self.shown.len();
        if let Ok(len) = self.tcp.read(&mut bytes[..room]) {
            self.shown.extend(&bytes[..len]);
        }
        self.shown.as_slice().try_into().ok()
    }

    fn is_gone(&self) -> bool {
        let mut byte = [0];
        self.tcp.peek(&mut byte).is_ok_and(|len| len == 0)
    }
}

/// Takes as long wherever the difference is.
fn is_same(one: &Token, other: &Token) -> bool {
    one.iter().zip(other).fold(0, |difference, (one, other)| difference | (one ^ other)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    static GO_ON: AtomicBool = AtomicBool::new(false);

    #[test]
    fn only_connections_with_a_token_that_is_expected_are_taken_and_each_once() {
        let listening =
            Listening::open([127, 0, 0, 1].into(), None, vec![([1; 16], 2), ([2; 16], 1)]).unwrap();
        let address = listening.address().unwrap();
        let connect = |token: &[u8]| {
            let mut tcp = TcpStream::connect(address).unwrap();
            tcp.write_all(token).unwrap();
            tcp
        };
        let _silent = TcpStream::connect(address).unwrap();
        let mut refused = [connect(&[3; 16]), connect(&[1; 3])];
        let _expected = [connect(&[1; 16]), connect(&[1; 16])];
        let mut replayed = connect(&[1; 16]);
        let _last = connect(&[2; 16]);
        let flows = listening.accept(&GO_ON).unwrap();
        let mut tokens: Vec<u8> = flows.iter().map(|(token, _)| token[0]).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, [1, 1, 2]);
        refused[0].set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        for tcp in [&mut refused[0], &mut replayed] {
            assert!(matches!(tcp.read(&mut [0]), Ok(0) | Err(_)), "it was closed");
        }
    }

    #[test]
    fn ports_that_a_firewall_lets_through_are_used_and_no_others() {
        let open = |ports| Listening::open([127, 0, 0, 1].into(), Some(ports), Vec::new());
        let (first, here) = (20_000..30_000)
            .step_by(7)
            .find_map(|first| Some((first, open(Ports { first, last: first }).ok()?)))
            .unwrap();
        assert_eq!(here.address().unwrap().port(), first);
        let refused = open(Ports { first, last: first }).map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("--data-ports") && refused.contains(&first.to_string()), "{refused}");
        let next = open(Ports { first, last: first + 100 }).unwrap().address().unwrap().port();
        assert!((first + 1..=first + 100).contains(&next), "{next} of {first}");
        assert_eq!("5000-5010".parse(), Ok(Ports { first: 5000, last: 5010 }));
        assert_eq!("5000".parse(), Ok(Ports { first: 5000, last: 5000 }));
        for wrong in ["", "0", "5010-5000", "0-5", "70000", "5000-", "-5", "1-2-3", "x", "+5"] {
            assert!(wrong.parse::<Ports>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn whoever_waits_for_connections_can_be_stopped() {
        let listening = Listening::open([127, 0, 0, 1].into(), None, vec![([1; 16], 1)]).unwrap();
        assert!(matches!(listening.accept(&AtomicBool::new(true)), Err(BenchError::Stopped)));
    }
}
