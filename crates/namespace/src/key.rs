//! Keys of the namespace (`docs/formats/namespace.md`): shard (u16 big-endian), table letter, then the parts below, all integers
//! big-endian so that byte order is numeric order.
//!
//! | table | rest of the key | value |
//! |---|---|---|
//! | `A` accounting | fileset u32, uid u32, gid u32, month u16 | [`crate::record::Account`] |
//! | `B` body | inode u64, piece u32 | bytes of an inline file, [`BODY_PIECE_BYTES`] per piece |
//! | `C` counter | - | u64, last inode counter given out in the shard |
//! | `D` directory | inode u64, hash 7 bytes | [`crate::Bucket`] |
//! | `G` garbage | inode u64, generation u32 | [`crate::record::Garbage`], chunks still to delete |
//! | `H` halfway | inode u64 | empty: the directory is being split |
//! | `I` inode | inode u64 | [`crate::Inode`] |
//! | `K` known by hearsay | session u64 (shard 0 only); 0 is the service itself | u16 each, shards in which it has something: the session has come along with a shard, and its holder has not been here; of the service how often it was started, u64, as far as it notes this |
//! | `L` link target | inode u64 | bytes of a symbolic link |
//! | `N` session | session u64 (shard 0 only); 0 is the service itself | [`ashlar_types::node::SessionOwner`]; of the service how often it was started, u64 |
//! | `O` orphan | inode u64, session u64 | empty: unlinked, still open in that session; byte 1: made without a name, may get its first one |
//! | `R` reply | session u64, slot u16 (shard 0 only) | [`crate::record::KeptReply`], the answer to the last call in that slot |
//! | `S` starts | - (shard 0 only) | [`ashlar_types::Starts`] |
//! | `M` moves | - (shard 0 only) | u64, directories that got another parent while there were several servers |
//! | `J` joined | - (shard 0 only) | empty: the server has taken its share of empty shards, and takes no more by itself |
//! | `P` place | - | [`crate::record::Arriving`]: the shard is coming from another server, and is not served here yet |
//! | `T` transaction | kind u8, coordinator u16, era u64, number u64 | a part that is prepared, or a decision (`crates/meta/src/across`) |
//! | `W` writer | inode u64, session u64 | empty: writes chunks in that session, size in the inode may be old |
//! | `X` xattr | inode u64, name bytes | value bytes |

use ashlar_kv::Key;
pub use ashlar_types::name_hash::{COLLISION_BITS, COLLISIONS_MAX, Cookie, NameHash};
use ashlar_types::{FilesetId, InodeId, SessionId, ShardId};

/// Bytes of an inline file per stored piece: an overwrite logs whole pieces, a stat none.
pub const BODY_PIECE_BYTES: u32 = 16 << 10;

fn start(shard: ShardId, table: u8) -> Key {
    let [high, low] = shard.0.to_be_bytes();
    Key::from_slice(&[high, low, table])
}

fn of_inode(table: u8, inode: InodeId) -> Key {
    // In one piece: every call makes several.
    let mut key = [0; 11];
    key[..2].copy_from_slice(&inode.home().0.to_be_bytes());
    key[2] = table;
    key[3..].copy_from_slice(&inode.0.to_be_bytes());
    Key::from_slice(&key)
}

/// Key of an inode record.
pub fn inode(inode: InodeId) -> Key {
    of_inode(b'I', inode)
}

/// Key of the bucket that holds the entries of `directory` whose names hash to `hash`.
pub fn bucket(directory: InodeId, hash: NameHash) -> Key {
    let mut key = of_inode(b'D', directory);
    key.extend_from_slice(&hash.0.to_be_bytes()[1..]);
    key
}

/// Prefix of all buckets of `directory`.
pub fn bucket_prefix(directory: InodeId) -> Key {
    of_inode(b'D', directory)
}

/// The hash in a bucket's key, given the key.
pub fn bucket_hash(key: &[u8]) -> Option<NameHash> {
    let tail: [u8; 7] = key.get(11..)?.try_into().ok()?;
    let mut bytes = [0; 8];
    bytes[1..].copy_from_slice(&tail);
    Some(NameHash(u64::from_be_bytes(bytes)))
}

/// Key of the note that a directory is being split.
pub fn halfway(directory: InodeId) -> Key {
    of_inode(b'H', directory)
}

/// Key of a piece of an inline file's bytes.
pub fn body(inode: InodeId, piece: u32) -> Key {
    let mut key = of_inode(b'B', inode);
    key.extend_from_slice(&piece.to_be_bytes());
    key
}

/// Prefix of all pieces of an inline file.
pub fn body_prefix(inode: InodeId) -> Key {
    of_inode(b'B', inode)
}

/// Key of a symbolic link's target.
pub fn link_target(inode: InodeId) -> Key {
    of_inode(b'L', inode)
}

/// Key of an extended attribute.
pub fn xattr(inode: InodeId, name: &[u8]) -> Key {
    let mut key = of_inode(b'X', inode);
    key.extend_from_slice(name);
    key
}

/// Prefix of all extended attributes of an inode.
pub fn xattr_prefix(inode: InodeId) -> Key {
    of_inode(b'X', inode)
}

/// Key of an orphan record.
pub fn orphan(inode: InodeId, session: SessionId) -> Key {
    let mut key = of_inode(b'O', inode);
    key.extend_from_slice(&session.0.to_be_bytes());
    key
}

/// The inode and the session in a key of table `O`.
pub fn orphan_of(key: &[u8]) -> Option<(InodeId, SessionId)> {
    let session = u64::from_be_bytes(key.get(11..)?.try_into().ok()?);
    Some((inode_of(key)?, SessionId(session)))
}

/// Prefix of all orphan records of an inode.
pub fn orphan_prefix(inode: InodeId) -> Key {
    of_inode(b'O', inode)
}

/// Prefix of the records of all sessions that write chunks of a file.
pub fn writer(inode: InodeId) -> Key {
    of_inode(b'W', inode)
}

/// Key of the record that `session` writes chunks of a file.
pub fn writer_of(inode: InodeId, session: SessionId) -> Key {
    let mut key = of_inode(b'W', inode);
    key.extend_from_slice(&session.0.to_be_bytes());
    key
}

/// Prefix of all garbage records of an inode.
pub fn garbage_prefix(inode: InodeId) -> Key {
    of_inode(b'G', inode)
}

/// Key of chunks to be deleted.
pub fn garbage(inode: InodeId, generation: u32) -> Key {
    let mut key = of_inode(b'G', inode);
    key.extend_from_slice(&generation.to_be_bytes());
    key
}

/// Key of a shard's inode counter.
pub fn counter(shard: ShardId) -> Key {
    start(shard, b'C')
}

/// Key of the number of directories that have got another parent, while there are several servers: who decides such a move reads it first.
pub fn moves() -> Key {
    start(ShardId(0), b'M')
}

/// Key of a part of a transaction that is not decided, or of a decision not all participants know of; `kind` tells them apart.
pub fn transaction(shard: ShardId, kind: u8, (coordinator, era, number): (ShardId, u64, u64)) -> Key {
    let mut key = start(shard, b'T');
    key.push(kind);
    key.extend_from_slice(&coordinator.0.to_be_bytes());
    key.extend_from_slice(&era.to_be_bytes());
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// The shard of a key, which begins with it.
pub fn shard_of(key: &[u8]) -> ShardId {
    ShardId(u16::from_be_bytes([key[0], key[1]]))
}

/// Whether a key is of what a server keeps for itself, whichever shards it has: sessions and which of them are unmet, kept answers, starts, notes of shards to come, whether it
/// has taken its share, and when it has lost something.
pub fn is_of_server(key: &[u8]) -> bool {
    matches!(key.get(2), Some(b'J' | b'K' | b'N' | b'P' | b'R' | b'S' | b'U'))
}

/// Key of the note that the server has taken its share of empty shards.
pub fn joined() -> Key {
    start(ShardId(0), b'J')
}

/// All keys of a shard.
pub fn shard_prefix(shard: ShardId) -> Key {
    Key::from_slice(&shard.0.to_be_bytes())
}

/// The session of a kept answer, given its key; `None` for the key of something else.
pub fn reply_of(key: &[u8]) -> Option<SessionId> {
    let session = u64::from_be_bytes(key.get(3..11)?.try_into().ok()?);
    (key[2] == b'R' && shard_of(key) == ShardId(0)).then_some(SessionId(session))
}

/// The session of an orphan's or writer's record, given its key.
pub fn session_of_record(key: &[u8]) -> Option<SessionId> {
    Some(SessionId(u64::from_be_bytes(key.get(11..19)?.try_into().ok()?)))
}

/// Key of the note that a shard is coming from another server.
pub fn arriving(shard: ShardId) -> Key {
    start(shard, b'P')
}

/// Kind and id in a key of table `T`.
pub fn transaction_of(key: &[u8]) -> Option<(u8, (ShardId, u64, u64))> {
    let number = |from: usize| Some(u64::from_be_bytes(key.get(from..from + 8)?.try_into().ok()?));
    let coordinator = u16::from_be_bytes(key.get(4..6)?.try_into().ok()?);
    Some((*key.get(3)?, (ShardId(coordinator), number(6)?, number(14)?)))
}

/// Key of what is known of the starts of the file system.
pub fn starts() -> Key {
    start(ShardId(0), b'S')
}

/// Key of a session that outlives the service.
pub fn session(session: SessionId) -> Key {
    let mut key = start(ShardId(0), b'N');
    key.extend_from_slice(&session.0.to_be_bytes());
    key
}

/// Key of the note that the holder of a session has not been here, which has come along with a shard.
pub fn unmet(session: SessionId) -> Key {
    let mut key = start(ShardId(0), b'K');
    key.extend_from_slice(&session.0.to_be_bytes());
    key
}

/// The session in a key of table `N` or `K`.
pub fn session_of(key: &[u8]) -> Option<SessionId> {
    Some(SessionId(u64::from_be_bytes(key.get(3..)?.try_into().ok()?)))
}

/// Key of how often the service was started.
pub fn incarnation() -> Key {
    session(SessionId(0))
}

/// Key of the last start of the service after which something that was acknowledged may have been lost.
pub fn last_loss() -> Key {
    start(ShardId(0), b'U')
}

/// Key of the answer to the last call of `session` in `slot`.
pub fn reply(session: SessionId, slot: u16) -> Key {
    let mut key = reply_prefix(session);
    key.extend_from_slice(&slot.to_be_bytes());
    key
}

/// Prefix of all kept answers of a session.
pub fn reply_prefix(session: SessionId) -> Key {
    let mut key = start(ShardId(0), b'R');
    key.extend_from_slice(&session.0.to_be_bytes());
    key
}

/// Key of an accounting counter. `month` is the month of mtime ([`crate::record::month`]).
pub fn account(shard: ShardId, fileset: FilesetId, uid: u32, gid: u32, month: u16) -> Key {
    let mut key = [0; 17];
    key[..2].copy_from_slice(&shard.0.to_be_bytes());
    key[2] = b'A';
    key[3..7].copy_from_slice(&fileset.0.to_be_bytes());
    key[7..11].copy_from_slice(&uid.to_be_bytes());
    key[11..15].copy_from_slice(&gid.to_be_bytes());
    key[15..].copy_from_slice(&month.to_be_bytes());
    Key::from_slice(&key)
}

/// The range of all keys of `table` in `shard`.
pub fn table_range(shard: ShardId, table: u8) -> (Key, Key) {
    (start(shard, table), start(shard, table + 1))
}

/// The smallest key above every key with prefix `key`.
pub fn after_prefix(key: &[u8]) -> Key {
    let mut end = Key::from_slice(key);
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // LIMIT: prefixes begin with a shard number, which is far below 0xffff.
    Key::from_slice(&[u8::MAX; 16])
}

/// The inode id in a key of a table whose first part is one.
pub fn inode_of(key: &[u8]) -> Option<InodeId> {
    Some(InodeId(u64::from_be_bytes(key.get(3..11)?.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_types::Name;

    #[test]
    fn keys_of_one_inode_sort_together_and_by_number() {
        let (a, b) = (InodeId::new(ShardId(3), 255).unwrap(), InodeId::new(ShardId(3), 256).unwrap());
        assert!(inode(a) < inode(b));
        assert!(body(a, 1) < body(a, 256) && body(a, u32::MAX) < body(b, 0));
        assert_eq!(inode_of(&body(b, 7)), Some(b));
        assert!(xattr(a, b"user.x") < after_prefix(&xattr_prefix(a)));
        assert!(after_prefix(&xattr_prefix(a)) <= xattr_prefix(b));
    }

    #[test]
    fn bucket_key_gives_its_hash_back() {
        let hash = NameHash::of(Name::new(b"x").unwrap(), &[7; 16]);
        assert!(hash.0 > 0 && hash.0 >> 56 == 0);
        assert_eq!(bucket_hash(&bucket(InodeId::ROOT, hash)), Some(hash));
        assert_eq!(Cookie::new(hash, 5).hash(), hash);
    }
}
