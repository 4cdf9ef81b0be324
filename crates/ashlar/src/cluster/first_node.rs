//! The first node of a file system of many servers, which `ashlar init` and `ashlar promote` make.

use super::node_directory::{NodeDirectory, NodeName, Papers};
use crate::cli::FirstNodeArgs;
use anyhow::{Result, bail};
use ashlar_env::Env;
use ashlar_manager::{Manager, draw_key};
use ashlar_types::{Node, NodeId, NodePolicy, PeerId, Places, Role, Roles};

/// Its number: that which a single machine has in its own map.
pub const FIRST: NodeId = NodeId(1);

/// What is known of it before there is a file system.
pub struct FirstNode {
    directory: NodeDirectory,
    node: Node,
}

impl FirstNode {
    /// As `args` say: it may have every role but that of a console, and its manager listens.
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
        let places = Places {
            addresses: args.listen.clone(),
            management: args.management.clone(),
            ..Places::default()
        };
        places.check().map_err(|wrong| anyhow::anyhow!(wrong))?;
        let listening = places.entries(Role::Manager);
        let roles: Roles = Role::OF_FIRST_NODE.into_iter().collect();
        let policy = NodePolicy::of_new_node(roles);
        let node = Node { id: FIRST, name, roles, listening, policy, domain: String::new() };
        Ok(FirstNode { directory, node })
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
        let certificate =
            authority.issue(PeerId { cluster, node, roles, host: None }, &public_key, env.clock.now())?;
        let papers = Papers { certificate, key, authority: authority.certificate().to_owned() };
        let (mut managers, then) = self.node.reached_by(Role::Manager, Role::Manager);
        managers.extend(then);
        self.directory.store(&NodeName { cluster, node, name, roles, managers }, &papers)
    }
}
