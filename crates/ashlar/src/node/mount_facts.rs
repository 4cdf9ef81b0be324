//! What a mount tells of itself: who it is, who serves it, and how it was mounted. `ashlar mount show` reads it.

use super::mounts::{MountConfig, Site};
use ashlar_client::Client;
use ashlar_console::object::node::reference;
use ashlar_fuse::{Errno, Transport};
use ashlar_types::{ClusterMap, Node, NodeId, Role, SessionId};
use parking_lot::RwLock;
use serde_json::{Value, json};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// Servers of a kind that are named.
// LIMIT: of what is told, beside its bytes.
const SERVERS_MAX: usize = 64;
/// LIMIT: bytes of all that is told: the longest value of an extended attribute that Linux hands out (XATTR_SIZE_MAX).
pub const TEXT_BYTES_MAX: usize = 64 << 10;
/// The kinds of servers, in the order in which they get room.
const KINDS: [Role; 3] = [Role::Manager, Role::Meta, Role::Storage];

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
        Ok(self.text_of(client.session()))
    }

    /// As much of it as may be told.
    fn text_of(&self, session: SessionId) -> String {
        let map = self.map.read().clone();
        // With the largest numbers of what is left out: they are not known yet.
        let without =
            self.object(&map, session, &Servers { left_out: [usize::MAX; 2], ..Servers::default() });
        let servers = Servers::that_fit(&map, TEXT_BYTES_MAX.saturating_sub(without.to_string().len()));
        self.object(&map, session, &servers).to_string()
    }

    fn object(&self, map: &ClusterMap, session: SessionId, servers: &Servers<'_>) -> Value {
        let [managers, metadata_servers, storage_servers] = servers.objects();
        let [servers_left_out, addresses_left_out] = servers.left_out;
        let config = &self.config;
        json!({
            "cluster": map.cluster.to_string(),
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "node": reference(map, self.node),
            "started": self.started,
            "session": session.0,
            "session_text": session.0.to_string(),
            "epoch": map.epoch.0,
            "managers": managers,
            "metadata_servers": metadata_servers,
            "storage_servers": storage_servers,
            "servers_left_out": servers_left_out,
            "addresses_left_out": addresses_left_out,
            "coherence": session.coherence().name(),
            "durability": session.durability().name(),
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

/// Servers that are told, and how many of their addresses.
#[derive(Default)]
struct Servers<'a> {
    /// Of each of [`KINDS`].
    told: [Vec<(&'a Node, usize)>; 3],
    /// Servers that are not told, and addresses of those that are.
    left_out: [usize; 2],
}

impl<'a> Servers<'a> {
    /// Those for which there is room in so many bytes of JSON: each with its first address, then all with their second one, and so on.
    fn that_fit(map: &'a ClusterMap, mut room: usize) -> Servers<'a> {
        let mut servers = Servers::default();
        for (role, told) in KINDS.into_iter().zip(&mut servers.told) {
            for node in map.listening(role) {
                // And a comma.
                let bytes = object(node, role, 1).to_string().len() + 1;
                if told.len() < SERVERS_MAX && bytes <= room {
                    room -= bytes;
                    told.push((node, 1));
                } else {
                    servers.left_out[0] += 1;
                }
            }
        }
        for at in 1..Node::ADDRESSES_MAX {
            for (role, told) in KINDS.into_iter().zip(&mut servers.told) {
                for (node, addresses) in told {
                    let Some(address) = node.addresses(role).get(at) else { continue };
                    let bytes = json!(address).to_string().len() + 1;
                    // Those before it are told: the preferred ones come first.
                    if *addresses == at && bytes <= room {
                        room -= bytes;
                        *addresses += 1;
                    } else {
                        servers.left_out[1] += 1;
                    }
                }
            }
        }
        servers
    }

    fn objects(&self) -> [Vec<Value>; 3] {
        let mut objects = [(); 3].map(|()| Vec::new());
        for ((role, told), objects) in KINDS.into_iter().zip(&self.told).zip(&mut objects) {
            objects.extend(told.iter().map(|(node, addresses)| object(node, role, *addresses)));
        }
        objects
    }
}

/// A server with the first few of its addresses.
fn object(node: &Node, role: Role, addresses: usize) -> Value {
    let all = node.addresses(role);
    json!({ "id": node.id.0, "name": node.name, "addresses": all.get(..addresses).unwrap_or(all) })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::cli::FuseTransport;
    use ashlar_fuse::KernelMask;
    use ashlar_types::node::Listening;
    use ashlar_types::testing::map_of_shards;
    use ashlar_types::{NodePolicy, Roles};

    const SESSION: SessionId = SessionId(7);

    fn facts(map: ClusterMap, subdirectory: Option<String>) -> MountFacts {
        let config = MountConfig {
            source: "ashlar".into(),
            allow_other: false,
            read_only: false,
            allow_set_id: false,
            allow_devices: false,
            transport: FuseTransport::Auto,
            mask: KernelMask::default(),
            is_sole_session: false,
            error_after: None,
            subdirectory,
            keep: None,
            requests: Arc::default(),
        };
        let map = Arc::new(RwLock::new(Arc::new(map)));
        MountFacts { map, node: NodeId(1), started: 0, config, transport: OnceLock::new() }
    }

    /// Servers each of which is of all kinds, with so many addresses as each; the names and addresses are long ones.
    fn map(servers: u32, addresses: u16) -> ClusterMap {
        let node = |number: u32| {
            let at = |port| format!("[fd00:1111:2222:3333:4444:5555:6666:{number:x}]:{}", 20000 + port);
            let addresses: Vec<_> = (0..addresses).map(|port| at(port).parse().unwrap()).collect();
            Node {
                id: NodeId(number),
                name: format!("{number:0>64}"),
                roles: KINDS.into_iter().collect::<Roles>(),
                listening: KINDS.map(|role| Listening { role, addresses: addresses.clone() }).into(),
                policy: NodePolicy::default(),
                domain: String::new(),
            }
        };
        ClusterMap { nodes: (1..=servers).map(node).collect(), ..map_of_shards(&[1], &[]) }
    }

    /// What is told of servers: addresses of each, by kind.
    fn told(text: &str) -> ([Vec<usize>; 3], u64, u64) {
        let value: Value = serde_json::from_str(text).unwrap();
        let addresses = |server: &Value| server["addresses"].as_array().unwrap().len();
        let of_kind = |name| value[name].as_array().unwrap().iter().map(addresses).collect();
        let kinds = ["managers", "metadata_servers", "storage_servers"].map(of_kind);
        let left_out = |name: &str| value[name].as_u64().unwrap();
        (kinds, left_out("servers_left_out"), left_out("addresses_left_out"))
    }

    /// `ashlar mount show` failed as a whole: the kernel hands out no value that is longer.
    #[test]
    fn a_mount_with_very_many_addresses_tells_those_that_fit() {
        let text = facts(map(60, 16), None).text_of(SESSION);
        assert!(text.len() <= TEXT_BYTES_MAX, "{}", text.len());
        assert!(
            text.len() > TEXT_BYTES_MAX - 500,
            "{} bytes of room are not used",
            TEXT_BYTES_MAX - text.len()
        );
        let (kinds, servers_left_out, addresses_left_out) = told(&text);
        assert_eq!((kinds.each_ref().map(Vec::len), servers_left_out), ([60; 3], 0), "all servers are told");
        let all = kinds.concat();
        assert_eq!(all.iter().sum::<usize>() + addresses_left_out as usize, 3 * 60 * 16);
        let (least, most) = (all.iter().min().unwrap(), all.iter().max().unwrap());
        assert!(*least >= 1 && most - least <= 1, "each server has as many as any other: {least} to {most}");
    }

    #[test]
    fn what_fits_is_told_as_a_whole() {
        let text = facts(map(8, 16), None).text_of(SESSION);
        assert_eq!(told(&text), ([(); 3].map(|()| vec![16; 8]), 0, 0));
        let text = facts(map(70, 1), None).text_of(SESSION);
        assert_eq!(told(&text), ([(); 3].map(|()| vec![1; 64]), 3 * 6, 0));
    }

    /// A path that is as long as one may be, of characters that take six bytes in JSON.
    #[test]
    fn what_else_is_told_may_be_long() {
        let text = facts(map(64, 16), Some("\u{1}".repeat(4096))).text_of(SESSION);
        assert!(text.len() <= TEXT_BYTES_MAX, "{}", text.len());
        assert!(told(&text).2 > 0);
    }
}
