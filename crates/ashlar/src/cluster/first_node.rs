//! The first node of a file system of many servers, which `ashlar init` and `ashlar promote` make.

use super::node_directory::{NodeDirectory, NodeName, Papers};
use crate::cli::FirstNodeArgs;
use anyhow::{Result, bail};
use ashlar_env::Env;
use ashlar_manager::{Manager, draw_key};
use ashlar_types::node::Listening;
use ashlar_types::{Node, NodeId, NodePolicy, PeerId, Role, Roles};

/// Its number: that which a single machine has in its own map.
pub const FIRST: NodeId = NodeId(1);

/// What is known of it before there is a file system.
pub struct FirstNode {
    directory: NodeDirectory,
    node: Node,
}

impl FirstNode {
    /// As `args` say: it may have every role, and its manager listens.
    ///
    /// # Errors
    /// When this machine belongs to a file system already, the name is none, or others cannot connect to an address.
    pub fn new(args: &FirstNodeArgs) -> Result<FirstNode> {
        let directory = NodeDirectory::new(&args.node.node);
        directory.require_unused()?;
        let name = super::join::name_of(args.name.as_deref())?;
        if let Some(address) =
            args.listen.iter().find(|address| address.ip().is_unspecified() || address.port() == 0)
        {
            bail!("others cannot connect to {address}: name an address of this machine, and a port");
        }
        let listening = vec![Listening { role: Role::Manager, addresses: args.listen.clone() }];
        let roles: Roles = Role::ALL.into_iter().collect();
        let policy = NodePolicy::of_new_node(roles);
        Ok(FirstNode { directory, node: Node { id: FIRST, name, roles, listening, policy } })
    }

    /// As it is in the map.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Gives this machine its identity, certified by `manager`'s authority.
    ///
    /// # Errors
    /// When it cannot be stored.
    pub fn store_identity(&self, manager: &Manager, env: &Env) -> Result<()> {
        let cluster = manager.identity().cluster;
        let Node { id: node, name, roles, .. } = self.node.clone();
        let (authority, (key, public_key)) = (manager.authority()?, draw_key()?);
        let certificate = authority.issue(PeerId { cluster, node, roles }, &public_key, env.clock.now())?;
        let papers = Papers { certificate, key, authority: authority.certificate().to_owned() };
        let managers = self.node.addresses(Role::Manager).to_vec();
        self.directory.store(&NodeName { cluster, node, name, roles, managers }, &papers)
    }
}
