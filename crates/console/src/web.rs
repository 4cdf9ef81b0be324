//! The page and the JSON of the console, for browsers and programs: HTTP/1.1 under TLS, for whoever has logged in.
//!
//! Everything is answered from memory: no request waits for a server. What a stranger can take up is bounded, in `accept`.

mod accept;
mod api;
mod gate;
mod pages;

pub use gate::{CODE_LIFE, Gate, Refusal, SESSION_LIFE};

use crate::watch::Watch;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

/// What whoever connects is served from.
pub(crate) struct Site {
    pub watch: Arc<Watch>,
    pub gate: Arc<Gate>,
    /// Of the software.
    pub version: &'static str,
}

/// What TLS goes by.
pub type TlsConfig = Arc<rustls::ServerConfig>;

/// Gives that, whenever somebody connects: certificates are renewed.
pub type TlsSource = dyn Fn() -> Result<TlsConfig, String> + Send + Sync;

/// A console that is shown. It ends when this is dropped.
pub struct Web {
    addresses: Vec<SocketAddr>,
    runtime: Option<tokio::runtime::Runtime>,
}

/// Threads that serve; nothing they do waits for anything but the network.
const THREADS: usize = 2;

impl Web {
    /// Shows what `watch` knows at `listeners`, to whom `gate` lets in.
    ///
    /// # Errors
    /// When there are no threads, or a listener is none.
    pub fn start(
        listeners: Vec<TcpListener>,
        tls: Box<TlsSource>,
        watch: Arc<Watch>,
        gate: Arc<Gate>,
        version: &'static str,
    ) -> io::Result<Web> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("console-web")
            .enable_io()
            .enable_time()
            .build()?;
        let router = pages::router(Arc::new(Site { watch, gate, version }));
        let entrance = Arc::new(accept::Entrance::new(router, tls));
        let addresses = listeners.iter().map(TcpListener::local_addr).collect::<io::Result<_>>()?;
        for listener in listeners {
            listener.set_nonblocking(true)?;
            let _inside = runtime.enter();
            let listener = tokio::net::TcpListener::from_std(listener)?;
            runtime.spawn(accept::accept(listener, entrance.clone()));
        }
        Ok(Web { addresses, runtime: Some(runtime) })
    }

    /// Where it is shown.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        // Connections are cut: there is nothing that could be lost.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
