//! Calls to the manager.

use crate::{ClusterId, ClusterMap, Epoch, NodeId, NodePolicy, Role, Roles, ShardId, TargetId};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// A call to the manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ManagerRequest {
    /// Become a node. Only for who has a token that was not used.
    Join {
        /// The name the node is to have.
        name: String,
        /// Its public key (ECDSA P-256, the uncompressed point, 65 bytes).
        public_key: Vec<u8>,
    },
    /// A new certificate for the caller, with the roles it has.
    Renew {
        /// Its public key, as in `Join`.
        public_key: Vec<u8>,
    },
    /// The map, as soon as there is a newer one than that of `have`; after a while the same once more.
    Map {
        /// What the caller has; epoch 0: nothing.
        have: Epoch,
    },
    /// Where the caller listens from now on.
    Listen {
        /// As what.
        role: Role,
        /// Its addresses, the preferred one first.
        addresses: Vec<SocketAddr>,
    },
    /// An id for a target that the caller is about to make.
    NewTarget {
        /// What it was drawn to be known by.
        uuid: [u8; 16],
        /// Its directory.
        path: String,
    },
    /// The targets that the caller serves from now on; others of the same node are offline.
    Serve {
        /// Id, uuid and directory of each.
        targets: Vec<(TargetId, [u8; 16], String)>,
    },
    /// What a metadata server needs to know of the file system. The first one that asks is the one that makes it.
    MetaIdentity {
        /// What its directory was drawn to be known by.
        uuid: [u8; 16],
        /// Its directory.
        path: String,
    },
    /// Shards change hands between two metadata servers, one of which is the caller.
    TransferShards {
        /// Which.
        shards: Vec<ShardId>,
        /// Who has them.
        from: NodeId,
        /// Who is to have them.
        to: NodeId,
    },
    /// A token by which a machine can become a node.
    NewToken {
        /// What the node may be.
        roles: Roles,
        /// For how long it can be used, seconds.
        valid_s: u32,
        /// What the node may do as a client.
        policy: NodePolicy,
    },
    /// Take a node out of the file system: its certificate is worth nothing from now on.
    RemoveNode {
        /// Which.
        node: NodeId,
    },
    /// Change what a node may do as a client.
    SetPolicy {
        /// Which.
        node: NodeId,
        /// What the caller has seen; if it is another one by now, nothing is changed.
        seen: NodePolicy,
        /// What is to be.
        policy: NodePolicy,
    },
}

/// What a manager needs besides its certificate. Secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagerPapers {
    /// The secrets of the file system, the authority's key among them, as managers keep them.
    pub secrets: Vec<u8>,
    /// Where the state of the file system is: JSON, see `docs/formats/cluster-state.md`.
    pub store: String,
}

// No secret in a log.
impl std::fmt::Debug for ManagerPapers {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("ManagerPapers(..)")
    }
}

/// The answer of the manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ManagerReply {
    /// Done; nothing to tell.
    Done,
    /// The caller is a node now.
    Joined {
        /// The file system.
        cluster: ClusterId,
        /// Its id.
        node: NodeId,
        /// What it may be.
        roles: Roles,
        /// Its certificate, PEM.
        certificate: String,
        /// The certificate of the authority, PEM.
        authority: String,
        /// Where managers are.
        managers: Vec<SocketAddr>,
        /// For one that may be a manager.
        manager: Option<ManagerPapers>,
    },
    /// A certificate, PEM.
    Certificate(String),
    /// The map.
    Map(Box<ClusterMap>),
    /// The id of a new target.
    Target(TargetId),
    /// What a metadata server needs to know.
    MetaIdentity {
        /// Key of the directory name hash.
        name_hash_key: [u8; 16],
        /// Of the map that says which shards it has.
        epoch: Epoch,
    },
    /// A token, as people pass it on.
    Token(String),
    /// It cannot be done; why, and what to do, for a person.
    Refused(String),
}
