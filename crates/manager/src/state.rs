//! What is stored of a file system under compare-and-set: the map, and what only managers need to know.

mod earlier;

use ashlar_coord::local_file::newer_format;
use ashlar_types::codec::{self, CodecError};
use ashlar_types::{
    ClusterMap, CopyNotes, NodeId, NodePolicy, PoolId, Roles, SharedDisk, Start, StartPlace, TargetId,
};
use serde::{Deserialize, Serialize};

/// What the value begins with that has disks which several servers reach, behind everything else. What is in front of them is as with [`MAGIC_9`].
const MAGIC: &[u8; 8] = b"ASHLSTAA";

/// What it begins with while there are none, and which has chains of several copies. What is in it is as with [`MAGIC_8`].
const MAGIC_9: &[u8; 8] = b"ASHLSTA9";

/// What it begins with while there are none, and which has, behind everything else, what is noted of moves and of copies of metadata servers. Software that knows nothing of such
/// chains reads it.
const MAGIC_8: &[u8; 8] = b"ASHLSTA8";

/// What it begins with while nothing is noted of copies. Software that knows nothing of them reads it.
const MAGIC_7: &[u8; 8] = b"ASHLSTA7";

/// What it begins with while nothing is noted of moves either. Software that knows nothing of that reads it.
const MAGIC_6: &[u8; 8] = b"ASHLSTA6";

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

/// A target that was promised an id and has not been served yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromisedTarget {
    /// The id.
    pub id: TargetId,
    /// What the target was drawn to be known by.
    pub uuid: [u8; 16],
    /// Its directory.
    pub path: String,
    /// The node that is about to make it.
    pub node: NodeId,
    /// The pool it is to be in.
    pub pool: PoolId,
}

/// What is known of the starts of a directory of a target or of metadata: no copy of it may be served (`crates/manager/src/holders.rs`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartRecord {
    /// What the directory is known by.
    pub uuid: [u8; 16],
    /// The last start that it was served in.
    pub last: Start,
    /// Starts that were given out since then: the directory may say one of them.
    pub joining: Vec<Joining>,
    /// Starts that it was served in before the last one, the newest last: who says one has a copy of it, and none is made up.
    pub earlier: Vec<Start>,
    /// The node that served it last.
    pub node: NodeId,
    /// Its path there.
    pub path: String,
    /// Where it was.
    pub place: StartPlace,
    /// Since when, seconds since 1970.
    pub since_s: u64,
}

/// A start of a directory that was given out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joining {
    /// Which.
    pub start: Start,
    /// The node that asked for it.
    pub node: NodeId,
    /// The path of the directory there.
    pub path: String,
    /// Where it is.
    pub place: StartPlace,
    /// When it asked last, seconds since 1970.
    pub since_s: u64,
}

/// Which keys of capabilities are the newest. The keys themselves are made of the secrets of managers, and stored nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyEpoch {
    /// The newest epoch, from 1.
    pub epoch: u64,
    /// Since when, seconds since 1970; 0: since the file system was made.
    pub since_s: u64,
}

impl Default for KeyEpoch {
    fn default() -> KeyEpoch {
        KeyEpoch { epoch: 1, since_s: 0 }
    }
}

/// What is drained or rebalanced: how far that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkRecord {
    /// The target that is drained; `None`: the pool is rebalanced.
    pub target: Option<TargetId>,
    /// The pool, or that of the target.
    pub pool: PoolId,
    /// Since when, seconds since 1970.
    pub since_s: u64,
    /// Chains that have gone since then.
    pub chains_done: u64,
    /// What they had by the last count before they went, bytes.
    pub bytes_done: u64,
}

/// What is noted of moves besides what everybody gets with the map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveNotes {
    /// Shards that are to be moved stay where they are for now.
    pub are_shards_paused: bool,
    /// What is drained and rebalanced.
    // LIMIT: as targets and pools.
    pub works: Vec<WorkRecord>,
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
    /// Targets that were promised an id and have not been served yet.
    pub promised: Vec<PromisedTarget>,
    /// The newest target there ever was: no id is given twice.
    pub last_target: TargetId,
    /// Keys of capabilities.
    pub keys: KeyEpoch,
    /// Starts of the directories of targets and metadata. One without a record was served by a software that did not count them, or never.
    pub starts: Vec<StartRecord>,
    /// What is noted of moves: stored behind the rest, where there is something.
    #[serde(skip)]
    pub moves: MoveNotes,
    /// Copies of metadata servers: stored behind that, where there are some.
    #[serde(skip)]
    pub copies: CopyNotes,
    /// Disks that several storage servers reach: stored behind that, where there are some; by id.
    // LIMIT: [`SharedDisk::COUNT_MAX`].
    #[serde(skip)]
    pub shared_disks: Vec<SharedDisk>,
}

impl ClusterState {
    // LIMIT: of tokens that can be used at the same time.
    /// Most tokens that are remembered.
    pub const TOKENS_MAX: usize = 10_000;
    // LIMIT: an etcd takes 1 MiB for everything.
    /// Bytes of the stored form that tokens may have, more or less one.
    const TOKENS_BYTES_MAX: usize = 384 << 10;

    /// The state of a new file system.
    pub fn new(map: ClusterMap) -> ClusterState {
        ClusterState {
            last_node: map.nodes.last().map_or(NodeId(0), |node| node.id),
            last_target: map.targets.last().map_or(TargetId(0), |target| target.id),
            map,
            tokens: Vec::new(),
            metadata: Vec::new(),
            promised: Vec::new(),
            keys: KeyEpoch::default(),
            starts: Vec::new(),
            moves: MoveNotes::default(),
            copies: CopyNotes::default(),
            shared_disks: Vec::new(),
        }
    }

    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let has_copied_chains = self.map.chains_of_copies().next().is_some();
        let has_disks = !self.shared_disks.is_empty();
        let has_copies = has_disks || has_copied_chains || self.copies != CopyNotes::default();
        let has_moves = self.moves != MoveNotes::default();
        let magic = match (has_copies, has_moves) {
            _ if has_disks => MAGIC,
            _ if has_copied_chains => MAGIC_9,
            (true, _) => MAGIC_8,
            (false, true) => MAGIC_7,
            (false, false) => MAGIC_6,
        };
        let mut out = magic.to_vec();
        codec::encode_into(self, &mut out);
        if has_copies || has_moves {
            codec::encode_into(&self.moves, &mut out);
        }
        if has_copies {
            codec::encode_into(&self.copies, &mut out);
        }
        if has_disks {
            codec::encode_into(&self.shared_disks, &mut out);
        }
        out
    }

    /// What to say of `bytes`, which are in `place`, if a newer software has stored them.
    pub(crate) fn newer(place: &str, bytes: &[u8]) -> Option<String> {
        newer_format(place, bytes, MAGIC)
    }

    /// Reads the stored form, also those of earlier versions.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn decode(bytes: &[u8]) -> Result<ClusterState, String> {
        let malformed = |error: CodecError| error.to_string();
        let state = if let Some(rest) = bytes.strip_prefix(MAGIC) {
            let (state, moves, copies, shared_disks) =
                codec::decode(rest, "cluster state").map_err(malformed)?;
            ClusterState { moves, copies, shared_disks, ..state }
        } else if let Some(rest) = bytes.strip_prefix(MAGIC_9).or_else(|| bytes.strip_prefix(MAGIC_8)) {
            let (state, moves, copies) = codec::decode(rest, "cluster state").map_err(malformed)?;
            ClusterState { moves, copies, ..state }
        } else if let Some(rest) = bytes.strip_prefix(MAGIC_7) {
            let (state, moves) = codec::decode(rest, "cluster state").map_err(malformed)?;
            ClusterState { moves, ..state }
        } else if let Some(rest) = bytes.strip_prefix(MAGIC_6) {
            codec::decode(rest, "cluster state").map_err(malformed)?
        } else {
            earlier::decode(bytes).map_err(malformed)?
        };
        state.check().map(|()| state).map_err(str::to_owned)
    }

    /// Whether one more token may be remembered.
    pub(crate) fn has_room_for_tokens(&self) -> bool {
        self.tokens.len() < Self::TOKENS_MAX && codec::encode(&self.tokens).len() < Self::TOKENS_BYTES_MAX
    }

    fn check(&self) -> Result<(), &'static str> {
        self.map.check()?;
        crate::service::check_copies(&self.copies)?;
        crate::service::check_disks(&self.shared_disks)?;
        if self.map.nodes.last().is_some_and(|node| node.id > self.last_node) {
            return Err("a node is newer than the newest");
        }
        if self.map.targets.last().is_some_and(|target| target.id > self.last_target) {
            return Err("a target is newer than the newest");
        }
        if self.last_target.0 > u32::MAX / 2 {
            return Err("the id of a target is out of range");
        }
        if self.last_node.0 > u32::MAX / 2 {
            return Err("the id of a node is out of range");
        }
        if !(1..=u64::MAX / 2).contains(&self.keys.epoch) {
            return Err("the epoch of its keys is out of range");
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
