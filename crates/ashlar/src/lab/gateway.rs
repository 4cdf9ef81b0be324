//! The process that lets browsers of this machine in to the console of a lab.
//!
//! A socket belongs to the network in which it was made, whoever has it. So `ashlar lab up` makes one that listens in the machine's own network, and this process,
//! which is in the lab's, has it as its standard input: what is accepted there comes from the machine, and what is connected goes to the lab.

use crate::terminal::say;
use anyhow::{Context, Result};
use std::convert::Infallible;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// LIMIT: connections at a time; a browser makes a few.
const CONNECTIONS_MAX: usize = 64;
/// LIMIT: for how long the console is waited for.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Time to rest when nobody can be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// Goes on until it is killed.
pub fn gateway(to: SocketAddr) -> Result<Infallible> {
    let input = io::stdin().as_fd().try_clone_to_owned().context("cannot use the standard input")?;
    let listener = TcpListener::from(input);
    listener
        .local_addr()
        .context("the standard input is no socket that listens: `ashlar lab up` starts this")?;
    say(format_args!("gateway serves"));
    // Whoever has one of these has a connection.
    let places = Arc::new(());
    loop {
        let Ok((browser, _)) = listener.accept() else {
            std::thread::sleep(PAUSE);
            continue;
        };
        if Arc::strong_count(&places) > CONNECTIONS_MAX {
            tracing::warn!("too many connections to the console; one is refused");
            continue;
        }
        let place = places.clone();
        let carry = move || {
            if let Err(error) = carry(&browser, to) {
                tracing::debug!(%error, "a connection to the console has ended");
            }
            drop(place);
        };
        if let Err(error) = std::thread::Builder::new().name("ashlar-gateway".into()).spawn(carry) {
            tracing::warn!(%error, "cannot start a thread");
        }
    }
}

/// Carries everything in both directions until both have ended.
fn carry(browser: &TcpStream, to: SocketAddr) -> io::Result<()> {
    let console = TcpStream::connect_timeout(&to, CONNECT_MAX)?;
    std::thread::scope(|scope| {
        scope.spawn(|| one_way(&console, browser));
        one_way(browser, &console)
    })
}

fn one_way(mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    let copied = io::copy(&mut from, &mut to);
    // An end is passed on; after a failure the other direction ends, too.
    let how = if copied.is_ok() { Shutdown::Write } else { Shutdown::Both };
    let _ = to.shutdown(how);
    if copied.is_err() {
        let _ = from.shutdown(Shutdown::Both);
    }
    copied.map(drop)
}
