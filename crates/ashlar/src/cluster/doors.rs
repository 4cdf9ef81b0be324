//! Where a server of a cluster listens: for everybody, and for management apart from that.

use super::member::Member;
use anyhow::{Context, Result};
use ashlar_rpc::net::{Endpoint, Listener, Peer, Server, ServerConfig, Service};
use ashlar_types::message::ManagerRequest;
use ashlar_types::{Epoch, NodeId, Places, Role};
use std::net::SocketAddr;
use std::sync::Arc;

/// Sockets that listen, before anybody is served.
pub struct Doors {
    everybody: Vec<Listener>,
    management: Vec<Listener>,
    /// Where they are.
    pub places: Places,
}

impl Doors {
    /// Listens.
    ///
    /// # Errors
    /// When an address is not of this machine or is used by somebody else.
    pub fn open(addresses: &[SocketAddr], management: &[SocketAddr]) -> Result<Doors> {
        let (everybody, addresses) = bind(addresses)?;
        let (management, at_management) = bind(management)?;
        let places = Places { addresses, management: at_management, targets: Vec::new() };
        Ok(Doors { everybody, management, places })
    }

    /// What managers are told.
    pub fn announcement(&self, role: Role) -> ManagerRequest {
        announcement(&self.places, role)
    }

    /// Serves; `config` makes what a server goes by, of whom it admits.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn serve(self, mut config: impl FnMut(Wicket) -> ServerConfig) -> Result<Serving> {
        let is_apart = !self.management.is_empty();
        let wicket = if is_apart { Wicket::NoAdministrators } else { Wicket::All };
        let mut servers = vec![Server::start(config(wicket), self.everybody).context("cannot serve")?];
        if is_apart {
            let config = config(Wicket::NoClients);
            servers.push(Server::start(config, self.management).context("cannot serve management")?);
        }
        Ok(Serving(servers))
    }
}

/// What managers are told of `places`.
pub fn announcement(places: &Places, role: Role) -> ManagerRequest {
    let Places { addresses, management, targets } = places.clone();
    // As earlier managers know it, wherever that says all.
    match management.is_empty() && targets.is_empty() {
        true => ManagerRequest::Listen { role, addresses },
        false => ManagerRequest::ListenApart { role, addresses, management, targets },
    }
}

/// The same for a metadata server that is served from a copy, since an epoch.
pub fn announcement_of_copy(places: &Places, (server, epoch): (NodeId, Epoch)) -> ManagerRequest {
    let Places { addresses, management, .. } = places.clone();
    ManagerRequest::ServeCopy { server, epoch, addresses, management }
}

fn bind(addresses: &[SocketAddr]) -> Result<(Vec<Listener>, Vec<SocketAddr>)> {
    let listeners =
        addresses.iter().map(|address| Listener::bind(*address)).collect::<Result<Vec<_>, _>>()?;
    let bound = listeners.iter().map(Listener::address).collect::<Result<Vec<_>, _>>()?;
    Ok((listeners, bound))
}

/// Who is let in besides being known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wicket {
    /// Everybody: there is no network for management.
    All,
    /// Administrators have addresses of their own.
    NoAdministrators,
    /// Those are these.
    NoClients,
}

impl Wicket {
    /// Lets `peer` in or not.
    ///
    /// # Errors
    /// The reason, for whoever is outside.
    pub fn admit(self, peer: &Peer) -> Result<(), String> {
        match (self, peer.role) {
            (Wicket::NoAdministrators, role) if role.is_of_management() => {
                Err("administrators and consoles connect to the addresses for management (--management)"
                    .into())
            }
            (Wicket::NoClients, Role::Client) => {
                Err("this address is for management, and clients connect to the others".into())
            }
            _ => Ok(()),
        }
    }
}

/// A server that is served at all its addresses.
pub struct Serving(Vec<Server>);

impl Serving {
    /// Ends connections of nodes that were removed.
    pub fn review(&self) {
        self.0.iter().for_each(Server::review);
    }

    /// Stops.
    pub fn stop(&self) {
        self.0.iter().for_each(Server::stop);
    }
}

impl Member {
    /// Serves `endpoints` at `doors`.
    ///
    /// # Errors
    /// As [`Doors::serve`].
    pub fn serve(&self, endpoints: &[(Service, Arc<dyn Endpoint>)], doors: Doors) -> Result<Serving> {
        doors.serve(|wicket| self.server_config(endpoints, wicket))
    }
}
