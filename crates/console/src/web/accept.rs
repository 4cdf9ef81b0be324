//! Connections, and what each of them may take up.

use super::TlsSource;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

// LIMIT: connections, all together and from one address; those beyond are closed as they come.
const CONNECTIONS_MAX: usize = 256;
const CONNECTIONS_OF_ONE_MAX: usize = 32;
/// LIMIT: for how long TLS may be agreed on.
const GREETING_MAX: Duration = Duration::from_secs(5);
/// LIMIT: for how long the head of a request may be on its way.
const HEAD_MAX: Duration = Duration::from_secs(5);
/// LIMIT: of the head of a request.
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;
/// LIMIT: for how long a connection is kept, and for how much longer an answer that has begun. Browsers come back by themselves.
const CONNECTION_MAX: Duration = Duration::from_secs(60);
const LAST_ANSWER_MAX: Duration = Duration::from_secs(5);
/// Time to rest when no connection can be taken: no descriptors, say.
const PAUSE: Duration = Duration::from_millis(200);

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct From(pub IpAddr);

/// What all connections share.
pub(super) struct Entrance {
    router: Router,
    tls: Box<TlsSource>,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

impl Entrance {
    pub fn new(router: Router, tls: Box<TlsSource>) -> Entrance {
        Entrance { router, tls, open: Mutex::default() }
    }

    /// A place for a connection from `from`, if there is one.
    fn take_place(self: &Arc<Entrance>, from: IpAddr) -> Option<Place> {
        let mut open = self.open.lock();
        let of_one = open.by_address.get(&from).copied().unwrap_or_default();
        if open.all >= CONNECTIONS_MAX || of_one >= CONNECTIONS_OF_ONE_MAX {
            return None;
        }
        open.all += 1;
        open.by_address.insert(from, of_one + 1);
        Some(Place { entrance: self.clone(), from })
    }
}

/// A connection that is counted, for as long as this lives.
struct Place {
    entrance: Arc<Entrance>,
    from: IpAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.entrance.open.lock();
        open.all -= 1;
        match open.by_address.get_mut(&self.from) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(open.by_address.remove(&self.from)),
        }
    }
}

/// Whom addresses are counted for: a network of IPv6 that one machine may have all of counts as one.
fn counted(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 => v4,
    }
}

/// Takes connections for as long as the runtime lives.
pub(super) async fn accept(listener: TcpListener, entrance: Arc<Entrance>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                if let Some(place) = entrance.take_place(counted(peer.ip())) {
                    tokio::spawn(serve(stream, peer, place));
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot take a connection to the console");
                sleep(PAUSE).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, peer: SocketAddr, place: Place) {
    let entrance = &place.entrance;
    let config = match (entrance.tls)() {
        Ok(config) => config,
        Err(error) => return tracing::warn!(error, "nobody can be served: the certificate cannot be used"),
    };
    let stream = match timeout(GREETING_MAX, TlsAcceptor::from(config).accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            return tracing::debug!(%peer, %error, "somebody does not speak TLS with the console");
        }
        Err(_) => return tracing::debug!(%peer, "somebody does not say anything to the console"),
    };
    let service = entrance.router.clone().layer(Extension(From(place.from)));
    let mut protocol = http1::Builder::new();
    protocol.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX);
    protocol.max_buf_size(HEAD_BYTES_MAX).max_headers(HEADERS_MAX).half_close(false);
    let mut connection =
        pin!(protocol.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = sleep(CONNECTION_MAX) => {
            connection.as_mut().graceful_shutdown();
            timeout(LAST_ANSWER_MAX, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a connection to the console ended");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn one_address_cannot_take_all_places_and_gives_them_back() {
        let entrance = Arc::new(Entrance::new(Router::new(), Box::new(|| Err("none".into()))));
        let address = |last: u16| counted(Ipv6Addr::new(0xfd00, 0, 0, last, 7, 7, 7, last).into());
        let places: Vec<_> =
            (0..CONNECTIONS_OF_ONE_MAX).map(|_| entrance.take_place(address(1)).unwrap()).collect();
        assert!(entrance.take_place(address(1)).is_none());
        let others: Vec<_> = (2..1000).map_while(|last| entrance.take_place(address(last))).collect();
        assert_eq!(places.len() + others.len(), CONNECTIONS_MAX);
        drop(places);
        assert!(entrance.take_place(address(1)).is_some());
        drop(others);
        assert!(entrance.open.lock().by_address.is_empty() && entrance.open.lock().all == 0);
    }

    #[test]
    fn addresses_of_one_network_count_as_one() {
        let at = |text: &str| counted(text.parse().unwrap());
        assert_eq!(at("fd00::1"), at("fd00::ffff:1"));
        assert_ne!(at("fd00::1"), at("fd00:0:0:1::1"));
        assert_eq!(at("::ffff:10.0.0.1"), at("10.0.0.1"));
        assert_ne!(at("10.0.0.2"), at("10.0.0.1"));
    }
}
