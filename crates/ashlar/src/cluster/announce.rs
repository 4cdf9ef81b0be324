//! Telling whoever started a role that it serves.

use crate::terminal::say;
use ashlar_types::Role;
use std::net::SocketAddr;

/// One line on standard output, and the service manager's notification (sd_notify(3)).
pub fn serving(role: Role, addresses: &[SocketAddr]) {
    let addresses: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    say(format_args!("{role} serves at {}", addresses.join(", ")));
    notify("READY=1");
}

/// The same of a server that keeps copies, and serves what it is asked to.
pub fn keeping_copies(addresses: &[SocketAddr]) {
    let addresses: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    say(format_args!("meta keeps copies at {}", addresses.join(", ")));
    notify("READY=1");
}

/// Tells the service manager, if there is one.
pub fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let socket = std::os::unix::net::UnixDatagram::unbound();
    let sent = socket.and_then(|socket| match path.to_string_lossy().strip_prefix('@') {
        Some(name) => {
            use std::os::linux::net::SocketAddrExt;
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
            socket.send_to_addr(state.as_bytes(), &address)
        }
        None => socket.send_to(state.as_bytes(), &path),
    });
    if let Err(error) = sent {
        tracing::debug!(%error, "the service manager could not be told");
    }
}
