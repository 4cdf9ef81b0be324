//! What a mount tells of itself: who it is, who serves it, and how it was mounted. `ashlar mount show` reads it.

use super::mounts::{MountConfig, Site};
use ashlar_client::Client;
use ashlar_console::object::node::reference;
use ashlar_fuse::{Errno, Transport};
use ashlar_types::{ClusterMap, NodeId, Role};
use parking_lot::RwLock;
use serde_json::{Value, json};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// Servers of a kind that are named.
// LIMIT: an extended attribute has 64 KiB at the most, and a server takes 250 bytes of that at the most, with its name and two addresses.
const SERVERS_MAX: usize = 64;

/// See the module.
pub struct MountFacts {
    map: Arc<RwLock<Arc<ClusterMap>>>,
    node: NodeId,
    /// Seconds since 1970.
    started: u64,
    config: MountConfig,
    /// Once the kernel has agreed.
    transport: OnceLock<Transport>,
}

impl MountFacts {
    /// Those of a mount of `site`, which is about to be made.
    pub fn new(site: &Site, config: &MountConfig) -> MountFacts {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        MountFacts {
            map: site.map.clone(),
            node: site.node,
            started: now.as_secs(),
            config: config.clone(),
            transport: OnceLock::new(),
        }
    }

    /// How requests come from the kernel.
    pub fn set_transport(&self, transport: Transport) {
        // A mount has one, and it is said once.
        let _ = self.transport.set(transport);
    }

    /// All of it as JSON, for root and the user of this process: numbers of processes and addresses of servers are not everybody's business.
    ///
    /// # Errors
    /// EPERM for others.
    pub fn text(&self, client: &Client, uid: u32) -> Result<String, Errno> {
        if uid != 0 && uid != rustix::process::geteuid().as_raw() {
            return Err(Errno::EPERM);
        }
        Ok(self.object(client).to_string())
    }

    fn object(&self, client: &Client) -> Value {
        let (map, session) = (self.map.read().clone(), client.session());
        let servers = |role| -> Vec<Value> {
            let listening = map.listening(role).take(SERVERS_MAX);
            listening
                .map(|node| json!({ "id": node.id.0, "name": node.name, "addresses": node.addresses(role) }))
                .collect()
        };
        let kinds = [Role::Manager, Role::Meta, Role::Storage];
        let left_out: usize = kinds.iter().map(|role| map.listening(*role).skip(SERVERS_MAX).count()).sum();
        let config = &self.config;
        json!({
            "cluster": map.cluster.to_string(),
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "node": reference(&map, self.node),
            "started": self.started,
            "session": session.0,
            "session_text": session.0.to_string(),
            "epoch": map.epoch.0,
            "managers": servers(Role::Manager),
            "metadata_servers": servers(Role::Meta),
            "storage_servers": servers(Role::Storage),
            "servers_left_out": left_out,
            "coherence": session.coherence().name(),
            "subdirectory": config.subdirectory,
            "error_after_s": config.error_after.map(|wait| wait.as_secs()),
            "keep_s": config.error_after.map(|_| config.keep.unwrap_or_default().as_secs()),
            "allow_other": config.allow_other,
            "set_id": config.allow_set_id,
            "devices": config.allow_devices,
            "transport": self.transport.get().map(ToString::to_string),
        })
    }
}
