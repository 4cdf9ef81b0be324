//! What a check can find. Its text names the damage, and what [`crate::verb::repair`] would do.

use crate::key::NameHash;
use crate::record::Account;
use ashlar_kv::Key;
use ashlar_types::{FileType, FilesetId, InodeId, SessionId, ShardId};
use smallvec::SmallVec;
use std::fmt;

/// A directory entry, named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryName {
    /// The directory.
    pub directory: InodeId,
    /// The hash of the bucket it is in.
    pub hash: NameHash,
    /// The name.
    pub name: SmallVec<[u8; 24]>,
}

impl fmt::Display for EntryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "entry {:?} of directory {}", String::from_utf8_lossy(&self.name), self.directory)
    }
}

/// Something that breaks a rule of the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // Fields are as the text says.
pub enum Finding {
    /// A key that no table has, or of the wrong length.
    KeyMalformed { key: Key },
    /// A value that does not decode.
    ValueMalformed { key: Key },
    /// An inode that decodes but breaks a rule that nothing else in the store can restore.
    InodeMalformed { inode: InodeId, what: &'static str },
    /// A bucket that decodes but breaks its rules.
    BucketMalformed { directory: InodeId, hash: NameHash, what: &'static str },
    /// A record that belongs to no inode, or to one of another kind.
    RecordStray { key: Key },
    /// An accounting counter that is not the sum over the inodes.
    Account { shard: ShardId, owner: (FilesetId, u32, u32, u16), stored: Option<Account>, summed: Account },
    /// The inode counter is below an id in use.
    CounterLow { shard: ShardId, stored: u64, needed: u64 },
    /// The length of a directory is not its number of entries.
    DirectorySize { inode: InodeId, stored: u64, counted: u64 },
    /// The link count is not the number of names (of a directory: 2 and its subdirectories).
    Nlink { inode: InodeId, stored: u32, counted: u32 },
    /// The allocated units are not those of what is stored.
    Blocks { inode: InodeId, stored: u64, counted: u64 },
    /// Bytes are stored behind the end of an inline file.
    BodyBeyondEnd { inode: InodeId, size: u64 },
    /// The length of a symbolic link is not that of its target.
    LinkSize { inode: InodeId, stored: u64, counted: u64 },
    /// The note that there are extended attributes is wrong.
    XattrFlag { inode: InodeId, stored: bool },
    /// An orphan record for something that has a name.
    OrphanNamed { inode: InodeId, session: SessionId },
    /// A garbage record for chunks that are the file's.
    GarbageLive { inode: InodeId, generation: u32 },
    /// A garbage record of a generation that the file has yet to use.
    GarbageAhead { inode: InodeId, generation: u32 },
    /// An entry whose name does not have the hash it is stored under.
    EntryMisplaced { entry: EntryName },
    /// An entry in a part of a split directory that has names of other hashes.
    EntryOutside { entry: EntryName },
    /// An entry that points to nothing.
    EntryDangling { entry: EntryName, inode: InodeId },
    /// An entry that tells another type than the inode.
    EntryType { entry: EntryName, stored: FileType, actual: FileType },
    /// An entry that is one too many for a directory.
    EntryExtra { entry: EntryName, inode: InodeId },
    /// A directory's note of its parent is wrong.
    Parent { inode: InodeId, stored: InodeId, found: InodeId },
    /// Directories that contain each other, apart from the root; named by the smallest id.
    Loop { inode: InodeId },
    /// A slice that its directory does not have.
    SliceStray { inode: InodeId, of: InodeId },
    /// There is no note that a directory is being split, and so nobody goes on with it.
    SplitForgotten { inode: InodeId },
    /// A slice of a directory is not there.
    SliceMissing { directory: InodeId, index: u16, inode: InodeId },
    /// A slice has another owner, mode, access control list or other settings than its directory.
    SliceRules { directory: InodeId, inode: InodeId },
    /// Something with links but without a name.
    Unreachable { inode: InodeId },
    /// Something without links that no session holds.
    Forgotten { inode: InodeId },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Finding as F;
        match self {
            F::KeyMalformed { key } => write!(f, "key {key:02x?} is of no table"),
            F::ValueMalformed { key } => write!(f, "the value of key {key:02x?} does not decode"),
            F::InodeMalformed { inode, what } => write!(f, "inode {inode}: {what}"),
            F::BucketMalformed { directory, hash, what } => {
                write!(f, "directory {directory}, bucket {:014x}: {what}", hash.0)
            }
            F::RecordStray { key } => write!(f, "record {key:02x?} belongs to no inode of its kind"),
            F::Account { shard, owner: (fileset, uid, gid, month), stored, summed } => write!(
                f,
                "counter of {shard}, {fileset}, user {uid}, group {gid}, month {month} is {stored:?}, its inodes sum to {summed:?}"
            ),
            F::CounterLow { shard, stored, needed } => {
                write!(f, "the inode counter of {shard} is {stored}, ids up to {needed} are in use")
            }
            F::DirectorySize { inode, stored, counted } => {
                write!(f, "directory {inode} says {stored} entries and has {counted}")
            }
            F::Nlink { inode, stored, counted } => {
                write!(f, "inode {inode} says {stored} links and has {counted}")
            }
            F::Blocks { inode, stored, counted } => {
                write!(f, "inode {inode} says {stored} units of 512 bytes and has {counted}")
            }
            F::BodyBeyondEnd { inode, size } => {
                write!(f, "inode {inode} stores bytes behind its end at {size}")
            }
            F::LinkSize { inode, stored, counted } => {
                write!(f, "symbolic link {inode} says {stored} bytes and has {counted}")
            }
            F::XattrFlag { inode, stored } => {
                write!(f, "inode {inode}: extended attributes are noted as {stored}")
            }
            F::OrphanNamed { inode, session } => {
                write!(f, "inode {inode} has names and is noted as unlinked for {session}")
            }
            F::GarbageLive { inode, generation } => {
                write!(f, "chunks {inode}/{generation} are in use and noted as garbage")
            }
            F::GarbageAhead { inode, generation } => {
                write!(
                    f,
                    "chunks {inode}/{generation} are noted as garbage before the file came to that generation"
                )
            }
            F::EntryMisplaced { entry } => write!(f, "{entry} is stored under another name's hash"),
            F::EntryOutside { entry } => {
                write!(f, "{entry} is in a part of its directory that has other names")
            }
            F::SplitForgotten { inode } => {
                write!(f, "directory {inode} is being split, and there is no note to go on with it")
            }
            F::EntryDangling { entry, inode } => write!(f, "{entry} points to {inode}, which is not there"),
            F::EntryType { entry, stored, actual } => {
                write!(f, "{entry} says {stored:?}, the inode is {actual:?}")
            }
            F::EntryExtra { entry, inode } => write!(f, "{entry} is a second name of directory {inode}"),
            F::Parent { inode, stored, found } => {
                write!(f, "directory {inode} says its parent is {stored}, but is in {found}")
            }
            F::Loop { inode } => write!(f, "directory {inode} is inside itself"),
            F::SliceStray { inode, of } => {
                write!(f, "slice {inode} says it is of directory {of}, which does not have it")
            }
            F::SliceMissing { directory, index, inode } => {
                write!(f, "slice {index} of directory {directory}, {inode}, is not there")
            }
            F::SliceRules { directory, inode } => {
                write!(
                    f,
                    "slice {inode} has another owner, mode, list or setting than its directory {directory}"
                )
            }
            F::Unreachable { inode } => write!(f, "inode {inode} has no name"),
            F::Forgotten { inode } => write!(f, "inode {inode} has no links and nothing holds it open"),
        }
    }
}

impl Finding {
    /// What repair does about it; `None` when a person has to decide.
    pub fn remedy(&self) -> Option<&'static str> {
        use Finding as F;
        Some(match self {
            F::KeyMalformed { .. }
            | F::ValueMalformed { .. }
            | F::InodeMalformed { .. }
            | F::BucketMalformed { .. }
            | F::Loop { .. } => return None,
            F::RecordStray { .. } | F::OrphanNamed { .. } | F::GarbageLive { .. } => "remove the record",
            F::Account { .. } => "correct the counter by the difference",
            F::CounterLow { .. } => "raise the counter",
            F::DirectorySize { .. }
            | F::Nlink { .. }
            | F::Blocks { .. }
            | F::LinkSize { .. }
            | F::XattrFlag { .. } => "set the inode to what was counted",
            F::BodyBeyondEnd { .. } => "drop the bytes behind the end",
            F::GarbageAhead { .. } => "move the file past that generation",
            F::EntryMisplaced { .. } => "store the entry under its own hash",
            F::EntryOutside { .. } => "move the entry to the part that has its name, unless that has one",
            F::SplitForgotten { .. } => "note it",
            F::EntryDangling { .. } | F::EntryExtra { .. } => "remove the entry",
            F::EntryType { .. } => "set the entry to the inode's type",
            F::Parent { .. } => "set the parent to where the directory is",
            F::SliceStray { .. } => "remove it if it is empty, else make it a directory in lost+found",
            F::SliceMissing { .. } => "make the slice anew, without entries",
            F::SliceRules { .. } => "give the slice those of its directory",
            F::Unreachable { .. } => "give it a name in lost+found",
            F::Forgotten { .. } => "remove it with its content",
        })
    }
}
