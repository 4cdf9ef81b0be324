//! The port where Prometheus fetches: HTTP/1.1, `GET /metrics` and nothing else, one answer per connection.
//!
//! Every connection has a thread, for a bounded time. When there are as many as may be, the one goes that has been there longest without having asked: so those
//! who only connect keep nobody out.

use crate::registry::Registry;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Connections that are served at once.
// LIMIT: when all of them have asked, others wait in the queue of the socket.
const CONNECTIONS_MAX: usize = 32;
/// LIMIT: for how long a request may be on its way.
const REQUEST_MAX: Duration = Duration::from_secs(2);
/// LIMIT: for how long its answer may be.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// LIMIT: bytes of a request.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Time between two looks at whether the end has come.
const LOOK_NS: i64 = 200_000_000;
/// Time between two looks at whether somebody can be served again.
const FULL_PAUSE: Duration = Duration::from_millis(20);
/// The content type of the text format.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A running server; it takes no more connections when this is dropped.
pub struct Server {
    address: SocketAddr,
    is_stopping: Arc<AtomicBool>,
}

impl Server {
    /// Serves what `registry` tells at `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// When nobody can listen there, with the address, or there is no thread.
    pub fn start(address: SocketAddr, registry: Arc<Registry>) -> io::Result<Server> {
        let with_address = |error: io::Error| {
            io::Error::new(error.kind(), format!("cannot listen at {address} for metrics: {error}"))
        };
        let listener = TcpListener::bind(address).map_err(with_address)?;
        listener.set_nonblocking(true).map_err(with_address)?;
        let address = listener.local_addr().map_err(with_address)?;
        let is_stopping = Arc::new(AtomicBool::new(false));
        let server = Server { address, is_stopping: is_stopping.clone() };
        std::thread::Builder::new()
            .name("ashlar-metrics".into())
            .spawn(move || accept(&listener, &registry, &is_stopping))?;
        Ok(server)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Its threads are not waited for: one may be with a caller who is slow.
        self.is_stopping.store(true, Relaxed);
    }
}

/// A connection that is served.
struct Open {
    stream: Arc<TcpStream>,
    has_asked: AtomicBool,
}

/// The connections that are served, the oldest first.
#[derive(Default)]
struct Opens(Mutex<Vec<Arc<Open>>>);

impl Opens {
    /// Makes room for one more, if need be at the cost of one that has not asked.
    fn has_room(&self) -> bool {
        let mut opens = self.0.lock();
        if opens.len() < CONNECTIONS_MAX {
            return true;
        }
        let Some(at) = opens.iter().position(|open| !open.has_asked.load(Relaxed)) else { return false };
        // Its thread sees the end of what it reads.
        let _ = opens.remove(at).stream.shutdown(Shutdown::Both);
        true
    }

    fn add(&self, stream: TcpStream) -> Arc<Open> {
        let open = Arc::new(Open { stream: Arc::new(stream), has_asked: AtomicBool::new(false) });
        self.0.lock().push(open.clone());
        open
    }

    fn remove(&self, gone: &Arc<Open>) {
        self.0.lock().retain(|open| !Arc::ptr_eq(open, gone));
    }
}

fn accept(listener: &TcpListener, registry: &Arc<Registry>, is_stopping: &AtomicBool) {
    let opens = Arc::new(Opens::default());
    while !is_stopping.load(Relaxed) {
        let bound = Timespec { tv_sec: 0, tv_nsec: LOOK_NS };
        let mut waited = [PollFd::new(listener, PollFlags::IN)];
        if !poll(&mut waited, Some(&bound)).is_ok_and(|ready| ready > 0) {
            continue;
        }
        if !opens.has_room() {
            std::thread::sleep(FULL_PAUSE);
            continue;
        }
        match listener.accept() {
            Ok((stream, peer)) => begin(stream, peer, registry, &opens),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::warn!(%error, "cannot take a connection for metrics");
                // No descriptors, say.
                std::thread::sleep(Duration::from_nanos(LOOK_NS as u64));
            }
        }
    }
}

/// Serves a connection in a thread of its own.
fn begin(stream: TcpStream, peer: SocketAddr, registry: &Arc<Registry>, opens: &Arc<Opens>) {
    let (registry, opens, open) = (registry.clone(), opens.clone(), opens.add(stream));
    let (kept, refused) = (opens.clone(), open.clone());
    let run = move || {
        if let Err(error) = serve(&open, &registry) {
            tracing::debug!(%peer, %error, "metrics could not be given");
        }
        opens.remove(&open);
    };
    if let Err(error) = std::thread::Builder::new().name("ashlar-metrics".into()).spawn(run) {
        tracing::warn!(%error, "no thread for a connection for metrics");
        kept.remove(&refused);
    }
}

/// What is left of the time of a connection.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn serve(open: &Open, registry: &Registry) -> io::Result<()> {
    let stream = &*open.stream;
    stream.set_nonblocking(false)?;
    let asked = request(stream, Instant::now() + REQUEST_MAX)?;
    open.has_asked.store(true, Relaxed);
    let deadline = Instant::now() + ANSWER_MAX;
    let (status, content) = match asked {
        Asked::Metrics => ("200 OK", registry.text()),
        Asked::Elsewhere => ("404 Not Found", "There is only /metrics here.\n".to_owned()),
        Asked::OtherMethod => ("405 Method Not Allowed", "Only GET is understood.\n".to_owned()),
        Asked::Nonsense => ("400 Bad Request", "That is no request.\n".to_owned()),
    };
    let allow = if status.starts_with("405") { "Allow: GET\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
        content.len()
    );
    write(stream, head.as_bytes(), deadline)?;
    write(stream, content.as_bytes(), deadline)?;
    stream.shutdown(Shutdown::Write)
}

/// As `write_all`, with one deadline for all of it.
fn write(mut stream: &TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Metrics,
    Elsewhere,
    OtherMethod,
    Nonsense,
}

/// Reads up to the empty line that ends a request.
fn request(mut stream: &TcpStream, deadline: Instant) -> io::Result<Asked> {
    let mut got = Vec::new();
    let mut part = [0; 1024];
    while !has_ended(&got) {
        if got.len() >= REQUEST_BYTES_MAX {
            return Ok(Asked::Nonsense);
        }
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut part) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => got.extend_from_slice(&part[..read]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(asked(&got))
}

fn has_ended(got: &[u8]) -> bool {
    got.windows(4).any(|four| four == b"\r\n\r\n") || got.windows(2).any(|two| two == b"\n\n")
}

fn asked(got: &[u8]) -> Asked {
    let line = got.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let Ok(line) = std::str::from_utf8(line) else { return Asked::Nonsense };
    let words: Vec<&str> = line.trim_end().split(' ').collect();
    let [method, path, version] = words[..] else { return Asked::Nonsense };
    if !version.starts_with("HTTP/1.") {
        return Asked::Nonsense;
    }
    match (method, path.split('?').next()) {
        ("GET", Some("/metrics")) => Asked::Metrics,
        ("GET", _) => Asked::Elsewhere,
        _ => Asked::OtherMethod,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn exchange(address: SocketAddr, sent: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(sent).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn started() -> Server {
        Server::start(([127, 0, 0, 1], 0).into(), Arc::new(Registry::new("1", "meta"))).unwrap()
    }

    #[test]
    fn only_metrics_are_given() {
        let server = started();
        let given = exchange(server.address(), b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(given.starts_with("HTTP/1.1 200 OK\r\n") && given.contains("version=0.0.4"), "{given}");
        assert!(given.contains("\nashlar_build_info{version=\"1\",role=\"meta\"} 1\n"), "{given}");
        for (sent, status) in [
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("GET /metrics/x HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", "405"),
            ("GET /metrics\r\n\r\n", "400"),
            ("\r\n\r\n", "400"),
            ("GET /metrics SPDY/3\r\n\r\n", "400"),
        ] {
            let answer = exchange(server.address(), sent.as_bytes());
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{sent:?}: {answer}");
        }
        let many = vec![b'a'; REQUEST_BYTES_MAX];
        assert!(exchange(server.address(), &many).starts_with("HTTP/1.1 400 "));
    }

    #[test]
    fn callers_who_say_nothing_keep_nobody_out() {
        let server = started();
        // More than are served at once, and each goes on saying a little.
        let mut silent: Vec<TcpStream> =
            (0..3 * CONNECTIONS_MAX).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
        for stream in &mut silent {
            // It may have been put out already.
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nX-Slow: ");
        }
        let begun = Instant::now();
        for _ in 0..3 {
            let given = exchange(server.address(), b"GET /metrics HTTP/1.1\r\n\r\n");
            assert!(given.starts_with("HTTP/1.1 200 OK\r\n"), "{given}");
        }
        assert!(begun.elapsed() < REQUEST_MAX, "{:?}", begun.elapsed());
        // Those who stay silent are put out in time.
        let mut last = silent.pop().unwrap();
        last.set_read_timeout(Some(2 * REQUEST_MAX)).unwrap();
        let mut answer = Vec::new();
        // A reset is an end as well.
        let ended = last.read_to_end(&mut answer).or_else(|error| match error.kind() {
            ErrorKind::ConnectionReset => Ok(0),
            _ => Err(error),
        });
        assert_eq!((ended.unwrap(), answer.len()), (0, 0));
    }

    #[test]
    fn many_who_fetch_at_once_all_get_everything() {
        let registry = Arc::new(Registry::new("1", "meta"));
        registry.add(|text| {
            std::thread::sleep(Duration::from_millis(5));
            text.single("ashlar_slow", crate::MetricType::Gauge, "Slow.", 1);
        });
        let server = Server::start(([127, 0, 0, 1], 0).into(), registry).unwrap();
        let address = server.address();
        let fetch = move || exchange(address, b"GET /metrics HTTP/1.1\r\n\r\n").contains("\nashlar_slow 1\n");
        let threads: Vec<_> = (0..16).map(|_| std::thread::spawn(fetch)).collect();
        assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
    }
}
