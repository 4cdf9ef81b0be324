//! Where a file's bytes are: per-directory policy, and the layout a file got from it.

use crate::map::ChainCopies;
use crate::{ChainId, Errno, PoolId, ShardId};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::fmt;
use std::str::FromStr;

/// How durable an acknowledged operation is (`design.md` D14).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Durability {
    /// Acknowledged operations survive the death of any process at once; fsync makes them survive power loss.
    #[default]
    Async,
    /// On stable storage of every in-sync copy before the answer.
    Sync,
}

impl Durability {
    /// Its name, as it is written on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Durability::Async => "async",
            Durability::Sync => "sync",
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Durability {
    type Err = String;

    fn from_str(text: &str) -> Result<Durability, String> {
        let found = [Durability::Async, Durability::Sync].into_iter().find(|one| one.name() == text);
        found.ok_or_else(|| format!("`{text}` is no kind of durability: there are `async` and `sync`"))
    }
}

/// How the chains of a new file are chosen among those of its pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetChoice {
    /// The next ones in turn.
    #[default]
    RoundRobin,
    /// At random, weighted by the free space of their targets.
    FreeSpace,
    /// At random.
    Scatter,
}

/// Which shard a directory gets that is made in another one (`design.md` D3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DirectoryChoice {
    /// The next one in turn.
    #[default]
    RoundRobin,
    /// That of the directory it is made in; of one that is split, that of the slice which has its name.
    Inherit,
    /// This one.
    Pinned(ShardId),
}

impl fmt::Display for DirectoryChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DirectoryChoice::RoundRobin => f.write_str("round-robin"),
            DirectoryChoice::Inherit => f.write_str("inherit"),
            DirectoryChoice::Pinned(shard) => write!(f, "{shard}"),
        }
    }
}

impl FromStr for DirectoryChoice {
    type Err = Errno;

    /// What [`fmt::Display`] writes, or the number of a shard alone.
    fn from_str(text: &str) -> Result<DirectoryChoice, Errno> {
        match text {
            "round-robin" => Ok(DirectoryChoice::RoundRobin),
            "inherit" => Ok(DirectoryChoice::Inherit),
            _ => {
                let number = text.strip_prefix("shard-").unwrap_or(text);
                // The library would take a sign.
                let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
                let shard = number.parse().ok().filter(|_| is_number).ok_or(Errno::EINVAL)?;
                Ok(DirectoryChoice::Pinned(ShardId(shard)))
            }
        }
    }
}

/// Layout settings of a directory. `None` inherits from the parent directory; the root has every field set but for `directories`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Encoded", into = "Encoded")]
pub struct LayoutPolicy {
    /// Pool of targets for data.
    pub pool: Option<PoolId>,
    /// Chunk size in bytes, a power of two, [`LayoutPolicy::CHUNK_BYTES_MIN`] to [`LayoutPolicy::CHUNK_BYTES_MAX`].
    pub chunk_bytes: Option<u32>,
    /// Chains a file is striped over, 1 to [`LayoutPolicy::STRIPE_COUNT_MAX`]; 0 means all targets of the pool.
    pub stripe_count: Option<u16>,
    /// Files up to this many bytes live with their inode, 0 to [`LayoutPolicy::INLINE_BYTES_MAX`].
    pub inline_bytes: Option<u32>,
    /// How chains are chosen.
    pub choice: Option<TargetChoice>,
    /// Durability of acknowledged operations.
    pub durability: Option<Durability>,
    /// Where directories go that are made in the directory. With an inode `None` is what it is by default: so it is with those made before there was a
    /// choice, and with files, for which it means nothing.
    pub directories: Option<DirectoryChoice>,
    /// Copies of each chunk, on different targets, 1 to [`crate::map::ChainCopies::COPIES_MAX`]. With an inode `None` is one: so it is with those made before there was
    /// a choice.
    pub copies: Option<u8>,
}

/// How [`LayoutPolicy`] is encoded.
#[derive(Serialize, Deserialize)]
#[serde(rename = "LayoutPolicy")]
struct Encoded {
    pool: Option<PoolId>,
    chunk_bytes: Option<u32>,
    stripe_count: Option<u16>,
    inline_bytes: Option<u32>,
    choice: Option<TargetChoice>,
    last: Last,
}

/// The first two have the bytes of an optional [`Durability`], which was all there was before directories had a choice: every inode has such settings,
/// and those from before are read as they are.
#[derive(Serialize, Deserialize)]
#[serde(rename = "LastOfLayoutPolicy")]
enum Last {
    Nothing,
    Durability(Durability),
    Directories { durability: Option<Durability>, directories: DirectoryChoice },
    Copies { durability: Option<Durability>, directories: Option<DirectoryChoice>, copies: u8 },
}

impl From<Encoded> for LayoutPolicy {
    fn from(encoded: Encoded) -> LayoutPolicy {
        let Encoded { pool, chunk_bytes, stripe_count, inline_bytes, choice, last } = encoded;
        let (durability, directories, copies) = match last {
            Last::Nothing => (None, None, None),
            Last::Durability(durability) => (Some(durability), None, None),
            Last::Directories { durability, directories } => (durability, Some(directories), None),
            Last::Copies { durability, directories, copies } => (durability, directories, Some(copies)),
        };
        LayoutPolicy {
            pool,
            chunk_bytes,
            stripe_count,
            inline_bytes,
            choice,
            durability,
            directories,
            copies,
        }
    }
}

impl From<LayoutPolicy> for Encoded {
    fn from(policy: LayoutPolicy) -> Encoded {
        let LayoutPolicy {
            pool,
            chunk_bytes,
            stripe_count,
            inline_bytes,
            choice,
            durability,
            directories,
            copies,
        } = policy;
        let last = match (durability, directories, copies) {
            (durability, directories, Some(copies)) => Last::Copies { durability, directories, copies },
            (durability, Some(directories), None) => Last::Directories { durability, directories },
            (Some(durability), None, None) => Last::Durability(durability),
            (None, None, None) => Last::Nothing,
        };
        Encoded { pool, chunk_bytes, stripe_count, inline_bytes, choice, last }
    }
}

impl LayoutPolicy {
    /// Smallest chunk, bytes.
    pub const CHUNK_BYTES_MIN: u32 = 64 << 10;
    /// Largest chunk, bytes.
    pub const CHUNK_BYTES_MAX: u32 = 16 << 20;
    /// Most chains in one file's layout.
    pub const STRIPE_COUNT_MAX: u16 = 256;
    /// Largest inline threshold, bytes.
    pub const INLINE_BYTES_MAX: u32 = 256 << 10;

    /// The settings of a new file system's root (`docs/adr/` has the measurements behind them).
    pub fn root_default() -> LayoutPolicy {
        LayoutPolicy {
            pool: Some(PoolId(0)),
            chunk_bytes: Some(1 << 20),
            stripe_count: Some(4),
            inline_bytes: Some(16 << 10),
            choice: Some(TargetChoice::RoundRobin),
            durability: Some(Durability::Async),
            directories: None,
            copies: None,
        }
    }

    /// What a file that is made in a directory with these settings gets of them.
    pub fn of_file(self) -> LayoutPolicy {
        LayoutPolicy { directories: None, ..self }
    }

    /// The shard to which directories made in one with these settings are pinned.
    pub fn pin(&self) -> Option<ShardId> {
        match self.directories {
            Some(DirectoryChoice::Pinned(shard)) => Some(shard),
            _ => None,
        }
    }

    /// These settings where they are set, `parent`'s where not.
    pub fn or(self, parent: LayoutPolicy) -> LayoutPolicy {
        LayoutPolicy {
            pool: self.pool.or(parent.pool),
            chunk_bytes: self.chunk_bytes.or(parent.chunk_bytes),
            stripe_count: self.stripe_count.or(parent.stripe_count),
            inline_bytes: self.inline_bytes.or(parent.inline_bytes),
            choice: self.choice.or(parent.choice),
            durability: self.durability.or(parent.durability),
            directories: self.directories.or(parent.directories),
            copies: self.copies.or(parent.copies),
        }
    }

    /// Checks the ranges given at the fields.
    ///
    /// # Errors
    /// `EINVAL` when a field is out of its range.
    pub fn check(&self) -> Result<(), Errno> {
        let chunk = self.chunk_bytes.unwrap_or(Self::CHUNK_BYTES_MIN);
        let is_valid = chunk.is_power_of_two()
            && (Self::CHUNK_BYTES_MIN..=Self::CHUNK_BYTES_MAX).contains(&chunk)
            && self.stripe_count.unwrap_or(0) <= Self::STRIPE_COUNT_MAX
            && self.inline_bytes.unwrap_or(0) <= Self::INLINE_BYTES_MAX
            && (1..=ChainCopies::COPIES_MAX).contains(&self.copies.unwrap_or(1));
        if is_valid { Ok(()) } else { Err(Errno::EINVAL) }
    }
}

/// Where the bytes of one file are once it has outgrown its inode. Chunk `i` is on chain `chains[i % len]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLayout {
    /// Part of every chunk's name; bumped when the file is emptied and when it leaves its inode.
    pub generation: u32,
    /// Chunk size in bytes, a power of two.
    pub chunk_bytes: u32,
    /// The stripe, 1 to [`LayoutPolicy::STRIPE_COUNT_MAX`] chains.
    pub chains: SmallVec<[ChainId; 4]>,
}

impl FileLayout {
    /// Index of the chunk that holds byte `offset`.
    pub fn chunk_index(&self, offset: u64) -> u64 {
        offset / u64::from(self.chunk_bytes)
    }

    /// The chain of chunk `index`.
    ///
    /// # Panics
    /// When the layout has no chain, which [`FileLayout::check`] excludes.
    pub fn chain(&self, index: u64) -> ChainId {
        self.chains[(index % self.chains.len() as u64) as usize]
    }

    /// Splits the byte range `[offset, offset + len)` at chunk borders: (chunk index, offset in the chunk, length).
    pub fn pieces(&self, offset: u64, len: u64) -> impl Iterator<Item = (u64, u32, u32)> + use<> {
        let chunk = u64::from(self.chunk_bytes);
        let end = offset.saturating_add(len);
        let mut at = offset;
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let within = at % chunk;
                let take = (chunk - within).min(end - at);
                let piece = (at / chunk, within as u32, take as u32);
                at += take;
                piece
            })
        })
    }

    /// Checks what decoding cannot.
    ///
    /// # Errors
    /// `EIO` when the layout breaks its own ranges.
    pub fn check(&self) -> Result<(), Errno> {
        let is_valid = !self.chains.is_empty()
            && self.chains.len() <= usize::from(LayoutPolicy::STRIPE_COUNT_MAX)
            && self.chunk_bytes.is_power_of_two()
            && (LayoutPolicy::CHUNK_BYTES_MIN..=LayoutPolicy::CHUNK_BYTES_MAX).contains(&self.chunk_bytes);
        if is_valid { Ok(()) } else { Err(Errno::EIO) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;
    use smallvec::smallvec;

    /// Every inode would have been damaged for software with a field more.
    #[test]
    fn settings_from_before_directories_had_a_choice_are_encoded_as_they_were() {
        #[derive(Serialize)]
        struct Before {
            pool: Option<PoolId>,
            chunk_bytes: Option<u32>,
            stripe_count: Option<u16>,
            inline_bytes: Option<u32>,
            choice: Option<TargetChoice>,
            durability: Option<Durability>,
        }
        for durability in [None, Some(Durability::Async), Some(Durability::Sync)] {
            let LayoutPolicy { pool, chunk_bytes, stripe_count, inline_bytes, choice, .. } =
                LayoutPolicy::root_default();
            let before = Before { pool, chunk_bytes, stripe_count, inline_bytes, choice, durability };
            let policy = LayoutPolicy { durability, ..LayoutPolicy::root_default() };
            let bytes = codec::encode(&before);
            assert_eq!(codec::encode(&policy), bytes);
            assert_eq!(codec::decode::<LayoutPolicy>(&bytes, "settings"), Ok(policy));
            for directories in
                [DirectoryChoice::RoundRobin, DirectoryChoice::Inherit, DirectoryChoice::Pinned(ShardId(300))]
            {
                let chosen = LayoutPolicy { directories: Some(directories), ..policy };
                let bytes = codec::encode(&chosen);
                assert_eq!(codec::decode::<LayoutPolicy>(&bytes, "settings"), Ok(chosen));
                assert!(codec::decode::<LayoutPolicy>(&bytes[..bytes.len() - 1], "settings").is_err());
                let copied = LayoutPolicy { copies: Some(2), ..chosen };
                assert_eq!(codec::decode::<LayoutPolicy>(&codec::encode(&copied), "settings"), Ok(copied));
            }
        }
    }

    #[test]
    fn a_choice_for_directories_is_read_as_it_is_written() {
        for (text, choice) in [
            ("round-robin", DirectoryChoice::RoundRobin),
            ("inherit", DirectoryChoice::Inherit),
            ("shard-7", DirectoryChoice::Pinned(ShardId(7))),
        ] {
            assert_eq!((text.parse(), choice.to_string()), (Ok(choice), text.to_owned()));
        }
        assert_eq!("65535".parse(), Ok(DirectoryChoice::Pinned(ShardId(u16::MAX))));
        for wrong in
            ["", "shard-", "shard-+7", "+7", "-1", "65536", "Inherit", "pinned", "shard-shard-7", "7 "]
        {
            assert_eq!(wrong.parse::<DirectoryChoice>(), Err(Errno::EINVAL), "{wrong}");
        }
    }

    #[test]
    fn pieces_cover_the_range_without_crossing_chunks() {
        let layout =
            FileLayout { generation: 1, chunk_bytes: 1 << 16, chains: smallvec![ChainId(7), ChainId(9)] };
        let pieces: Vec<_> = layout.pieces((1 << 16) - 10, 20 + (1 << 16)).collect();
        assert_eq!(pieces, vec![(0, 65526, 10), (1, 0, 65536), (2, 0, 10)]);
        assert_eq!(layout.pieces(5, 0).count(), 0);
        assert_eq!(layout.chain(3), ChainId(9));
    }
}
