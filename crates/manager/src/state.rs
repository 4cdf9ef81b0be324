//! What is stored of a file system under compare-and-set: the map, and what only managers need to know.

mod earlier;

use ashlar_types::codec::{self, CodecError};
use ashlar_types::{ClusterMap, NodeId, NodePolicy, Roles};
use serde::{Deserialize, Serialize};

/// What the value begins with, since there is more in it than a map.
const MAGIC: &[u8; 8] = b"ASHLSTA3";

/// A token that was given out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// The public key (Ed25519) that is derived from it; the token itself is nowhere.
    pub public_key: [u8; 32],
    /// What the node may be that joins with it.
    pub roles: Roles,
    /// Until when it can be used, seconds since 1970.
    pub expires_s: u64,
    /// The node that used it, with the public key it joined with: a join whose answer was lost is answered once more.
    pub used_by: Option<(NodeId, Vec<u8>)>,
    /// What the node may do as a client.
    pub policy: NodePolicy,
}

/// The directory that holds the metadata of some shards. No other one may serve them: an empty one would be an empty file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetadataRecord {
    /// Drawn at random when it was made; also in the directory.
    pub uuid: [u8; 16],
    /// The node that served it last.
    pub node: NodeId,
    /// Its path there.
    pub path: String,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterState {
    /// The map, which everybody gets.
    pub map: ClusterMap,
    /// Tokens that can be used, or were lately.
    pub tokens: Vec<TokenRecord>,
    /// The newest node there ever was.
    pub last_node: NodeId,
    /// Where the metadata is, once there is some: one of each metadata server.
    pub metadata: Vec<MetadataRecord>,
    /// Targets that were promised an id and have not been served yet: id, uuid, directory, node.
    pub promised: Vec<(ashlar_types::TargetId, [u8; 16], String, NodeId)>,
}

impl ClusterState {
    // LIMIT: of tokens that can be used at the same time.
    /// Most tokens that are remembered.
    pub const TOKENS_MAX: usize = 10_000;

    /// The state of a new file system.
    pub fn new(map: ClusterMap) -> ClusterState {
        ClusterState {
            last_node: map.nodes.last().map_or(NodeId(0), |node| node.id),
            map,
            tokens: Vec::new(),
            metadata: Vec::new(),
            promised: Vec::new(),
        }
    }

    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        codec::encode_into(self, &mut out);
        out
    }

    /// Reads the stored form, also those of earlier versions.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn decode(bytes: &[u8]) -> Result<ClusterState, String> {
        let malformed = |error: CodecError| error.to_string();
        let state = match bytes.strip_prefix(MAGIC) {
            Some(rest) => codec::decode(rest, "cluster state").map_err(malformed)?,
            None => match bytes.strip_prefix(earlier::MAGIC_2) {
                Some(rest) => earlier::decode_2(rest).map_err(malformed)?,
                None => earlier::decode_1(bytes).map_err(malformed)?,
            },
        };
        state.check().map(|()| state).map_err(str::to_owned)
    }

    fn check(&self) -> Result<(), &'static str> {
        self.map.check()?;
        if self.map.nodes.last().is_some_and(|node| node.id > self.last_node) {
            return Err("a node is newer than the newest");
        }
        if self.last_node.0 > u32::MAX / 2 {
            return Err("the id of a node is out of range");
        }
        if self.tokens.len() > Self::TOKENS_MAX {
            return Err("it has too many tokens");
        }
        if self.tokens.iter().any(|token| token.policy.check().is_err()) {
            return Err("the policy of a token contradicts itself");
        }
        Ok(())
    }
}
