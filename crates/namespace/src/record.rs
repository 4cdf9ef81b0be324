//! Stored values of the namespace. Their bytes are postcard encodings, documented in `docs/formats/namespace.md`.

use crate::error::NsError;
use ashlar_types::attr::MODE_TYPE_MASK;
use ashlar_types::message::MetaReply;
use ashlar_types::{
    Attr, Durability, Errno, FileLayout, FileType, FilesetId, InodeId, LayoutPolicy, NameHash, NodeId,
    Timespec,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// Preferred I/O size reported by stat, bytes.
pub const BLOCK_SIZE: u32 = 4096;
/// Most hard links of one file.
pub const NLINK_MAX: u32 = 1 << 20;

/// What every inode has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inode {
    /// Type and permission bits.
    pub mode: u32,
    /// Hard links; directories count themselves, their entry and their subdirectories.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u32,
    /// Length in bytes: content of a file, target of a symbolic link, number of entries of a directory.
    pub size: u64,
    /// Allocated units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timespec,
    /// Last change of the content.
    pub mtime: Timespec,
    /// Last change of the inode.
    pub ctime: Timespec,
    /// Creation.
    pub btime: Timespec,
    /// Fileset it is accounted to.
    pub fileset: FilesetId,
    /// What the type adds.
    pub kind: Kind,
    /// POSIX ACL of the object (`acl(5)`), absent when the mode says it all. Encoding: `crate::acl`.
    pub acl_access: Option<Bytes>,
    /// POSIX default ACL of a directory.
    pub acl_default: Option<Bytes>,
    /// Whether there are extended attributes in table `X` (so that most lookups of one need no read).
    pub has_xattrs: bool,
}

/// What an inode's type adds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A directory.
    Directory {
        /// The directory it is in; the root is its own parent. An orphaned directory keeps its last parent.
        parent: InodeId,
        /// Settings for new files and directories in it, whole as those of the root (copied from the parent by mkdir).
        policy: LayoutPolicy,
    },
    /// A regular file.
    Regular(FileData),
    /// A symbolic link; its target is in table `L`.
    Symlink,
    /// Device node, pipe or socket.
    Special,
    /// A symbolic link made in a directory with `durability=sync`: its changes are as durable as those of a file there.
    SyncSymlink,
    /// A device node, pipe or socket made in a directory with `durability=sync`.
    SyncSpecial,
    /// A directory that is split, or that has directories made in it split.
    WideDirectory {
        /// As of any directory.
        parent: InodeId,
        /// As of any directory.
        policy: LayoutPolicy,
        /// Where its entries are.
        wide: Wide,
    },
    /// A part of the entries of a directory that is split: those whose names have a certain range of hashes. It has no name, and nobody but clients that call
    /// with such a name knows of it. What decides who may do what in the directory is in its record as it is in that of the directory.
    Slice {
        /// The directory.
        of: InodeId,
        /// Which slice it is.
        index: u16,
        /// Of how many.
        count: u16,
        /// That of the directory.
        policy: LayoutPolicy,
        /// That of the directory.
        slices_of_new: u16,
    },
    /// A directory that is being split: names whose hashes are below the border are in its slices, the others still here.
    DirectoryInSplit {
        /// As of any directory.
        parent: InodeId,
        /// As of any directory.
        policy: LayoutPolicy,
        /// As of a directory that is split.
        wide: Wide,
        /// The smallest hash of names that are here.
        border: NameHash,
        /// The modification time that the slices were given, once names here have changed since: then the directory's is that of the last change of
        /// names here.
        mtime_of_slices: Option<Timespec>,
    },
    /// A slice that does not have all of its names yet.
    SliceInSplit {
        /// As of any slice.
        of: InodeId,
        /// As of any slice.
        index: u16,
        /// As of any slice.
        count: u16,
        /// As of any slice.
        policy: LayoutPolicy,
        /// As of any slice.
        slices_of_new: u16,
        /// The smallest hash of its range of which the directory still has the names.
        until: NameHash,
    },
}

/// How a directory is split.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wide {
    /// Its slices, in the order of the hashes they have; none: it has its entries itself. They are gone when it has been removed.
    // LIMIT: `SLICES_MAX`.
    pub slices: Vec<InodeId>,
    /// How many slices directories get that are made in it; 0: they are not split.
    pub slices_of_new: u16,
}

impl Kind {
    /// The kind of a new symbolic link in a directory with `policy`.
    pub fn new_symlink(policy: &LayoutPolicy) -> Kind {
        if policy.durability == Some(Durability::Sync) { Kind::SyncSymlink } else { Kind::Symlink }
    }

    /// The kind of a new device node, pipe or socket in a directory with `policy`.
    pub fn new_special(policy: &LayoutPolicy) -> Kind {
        if policy.durability == Some(Durability::Sync) { Kind::SyncSpecial } else { Kind::Special }
    }

    /// Whether it is a part of a directory that is split.
    pub fn is_slice(&self) -> bool {
        matches!(self, Kind::Slice { .. } | Kind::SliceInSplit { .. })
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        matches!(self, Kind::Symlink | Kind::SyncSymlink)
    }

    /// Whether every change is durable before it is answered.
    pub fn is_sync(&self) -> bool {
        match self {
            Kind::Directory { policy, .. }
            | Kind::WideDirectory { policy, .. }
            | Kind::Slice { policy, .. }
            | Kind::DirectoryInSplit { policy, .. }
            | Kind::SliceInSplit { policy, .. }
            | Kind::Regular(FileData::Inline { policy, .. } | FileData::Chunks { policy, .. }) => {
                policy.durability == Some(Durability::Sync)
            }
            Kind::Symlink | Kind::Special => false,
            Kind::SyncSymlink | Kind::SyncSpecial => true,
        }
    }
}

/// Where a file's bytes are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileData {
    /// In table `B`, with the settings the file will take its layout from when it outgrows the inode.
    Inline {
        /// Settings of the directory it was created in, as [`LayoutPolicy::of_file`] has them.
        policy: LayoutPolicy,
        /// The last chunk generation used (0: none yet).
        generation: u32,
    },
    /// In chunks.
    Chunks {
        /// Where.
        layout: FileLayout,
        /// Settings, kept so that an emptied file starts inline again.
        policy: LayoutPolicy,
    },
}

impl Inode {
    /// A new inode without content.
    pub fn new(mode: u32, uid: u32, gid: u32, fileset: FilesetId, now: Timespec, kind: Kind) -> Inode {
        Inode {
            mode,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            fileset,
            kind,
            acl_access: None,
            acl_default: None,
            has_xattrs: false,
        }
    }

    /// The type.
    pub fn file_type(&self) -> FileType {
        FileType::from_mode(self.mode & MODE_TYPE_MASK).unwrap_or(FileType::Regular)
    }

    /// Whether it is a directory, or a slice of one.
    pub fn is_directory(&self) -> bool {
        match self.kind {
            Kind::Directory { .. } | Kind::WideDirectory { .. } | Kind::DirectoryInSplit { .. } => true,
            _ => self.kind.is_slice(),
        }
    }

    /// Parent and policy of a directory; of a slice, the directory and its policy.
    ///
    /// # Errors
    /// `ENOTDIR` for anything else.
    pub fn as_directory(&self) -> Result<(InodeId, LayoutPolicy), NsError> {
        match &self.kind {
            Kind::Directory { parent, policy }
            | Kind::WideDirectory { parent, policy, .. }
            | Kind::DirectoryInSplit { parent, policy, .. } => Ok((*parent, *policy)),
            Kind::Slice { of, policy, .. } | Kind::SliceInSplit { of, policy, .. } => Ok((*of, *policy)),
            _ => Err(Errno::ENOTDIR.into()),
        }
    }

    /// Notes where a directory is now.
    pub fn set_parent(&mut self, new: InodeId) {
        if let Kind::Directory { parent, .. }
        | Kind::WideDirectory { parent, .. }
        | Kind::DirectoryInSplit { parent, .. } = &mut self.kind
        {
            *parent = new;
        }
    }

    /// The slices of a directory that is split, or being split, and has not been removed.
    pub fn slices(&self) -> &[InodeId] {
        match &self.kind {
            Kind::WideDirectory { wide, .. } | Kind::DirectoryInSplit { wide, .. } if self.nlink > 0 => {
                &wide.slices
            }
            _ => &[],
        }
    }

    /// How many slices directories get that are made in this one; 0: they are not split.
    pub fn slices_of_new(&self) -> u16 {
        match &self.kind {
            Kind::WideDirectory { wide, .. } | Kind::DirectoryInSplit { wide, .. } => wide.slices_of_new,
            Kind::Slice { slices_of_new, .. } | Kind::SliceInSplit { slices_of_new, .. } => *slices_of_new,
            _ => 0,
        }
    }

    /// Whether it is a directory that is split by itself once it is large: it has a name and no slices, and what is made in it is not to be in one place.
    pub fn splits_when_large(&self) -> bool {
        match &self.kind {
            Kind::Directory { policy, .. } => self.nlink > 0 && policy.pin().is_none(),
            Kind::WideDirectory { wide, policy, .. } => {
                self.nlink > 0 && wide.slices.is_empty() && policy.pin().is_none()
            }
            _ => false,
        }
    }

    /// Names with hashes below are in the slices of the directory, the others in itself: 0 for a directory that has no slices, [`NameHash::END`] for one that
    /// is split.
    pub fn border(&self) -> NameHash {
        match &self.kind {
            Kind::DirectoryInSplit { border, .. } if !self.slices().is_empty() => *border,
            _ if !self.slices().is_empty() => NameHash::END,
            _ => NameHash(0),
        }
    }

    /// The directory that users see where this inode, which is `id`, has the entries.
    pub fn shown_as(&self, id: InodeId) -> InodeId {
        match &self.kind {
            Kind::Slice { of, .. } | Kind::SliceInSplit { of, .. } => *of,
            _ => id,
        }
    }

    /// Refuses a slice of a directory as what a call is about: it is nothing by itself.
    ///
    /// # Errors
    /// `ESTALE`.
    pub fn require_whole(&self) -> Result<(), NsError> {
        if self.kind.is_slice() { Err(Errno::ESTALE.into()) } else { Ok(()) }
    }

    /// The data of a regular file.
    ///
    /// # Errors
    /// `EISDIR` for a directory, `EINVAL` for anything else.
    pub fn as_regular(&self) -> Result<&FileData, NsError> {
        match &self.kind {
            Kind::Regular(data) => Ok(data),
            _ if self.is_directory() => Err(Errno::EISDIR.into()),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    /// What stat reports; of a directory that is split, what it reports with [`Attr::of_whole`].
    pub fn attr(&self, inode: InodeId) -> Attr {
        let mut slices = self.slices().len() as u32;
        if slices > 0 && matches!(self.kind, Kind::DirectoryInSplit { mtime_of_slices: Some(_), .. }) {
            slices |= Attr::CHANGED_ITSELF;
        }
        Attr {
            inode,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: if slices > 0 { slices } else { self.rdev },
            size: self.size,
            blocks: self.blocks,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            block_size: BLOCK_SIZE,
            fileset: self.fileset,
        }
    }
}

/// Entries of one directory whose names share a hash: nearly always one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// The entries, by ascending collision number.
    pub entries: SmallVec<[BucketEntry; 1]>,
}

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketEntry {
    /// Tells entries of one bucket apart in readdir cookies; never changes while the entry lives.
    pub collision: u8,
    /// The type of what it points to.
    pub file_type: FileType,
    /// What it points to, possibly in another shard.
    pub inode: InodeId,
    /// The name, 1 to 255 bytes.
    #[serde(with = "serde_bytes_small")]
    pub name: SmallVec<[u8; 24]>,
}

/// Names as byte strings on disk, small ones without an allocation in memory.
mod serde_bytes_small {
    use serde::{Deserialize, Deserializer, Serializer};
    use smallvec::SmallVec;

    pub fn serialize<S: Serializer>(bytes: &SmallVec<[u8; 24]>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SmallVec<[u8; 24]>, D::Error> {
        let bytes: &[u8] = <&[u8]>::deserialize(deserializer)?;
        Ok(SmallVec::from_slice(bytes))
    }
}

/// Bytes in chunks that no file refers to any more, of the generation in the record's key. They are cut on the targets after
/// this record is durable, and the record goes when they are gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Garbage {
    /// Where they are.
    pub layout: FileLayout,
    /// Leading bytes of the file that stay; 0 when every chunk of the generation goes.
    pub keep_bytes: u64,
}

/// A shard that another server is sending here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arriving {
    /// From whom it comes.
    pub from: NodeId,
    /// Which attempt to move it this is: drawn at random by the sender.
    pub attempt: u64,
    /// Whether all of it is here. What is not whole is never served.
    pub is_whole: bool,
}

/// The answer to a call of a session that outlives the service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptReply {
    /// The call's number in its session.
    pub sequence: u64,
    /// The answer, without leases.
    pub reply: MetaReply,
}

/// One accounting counter: the sum over the inodes of a shard, fileset, owner, group and month of mtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Account {
    /// Number of inodes.
    pub inodes: u64,
    /// Sum of sizes of regular files and symbolic links, bytes.
    pub bytes: u64,
    /// Sum of allocated units of 512 bytes.
    pub blocks: u64,
}

/// The accounting month of a time: 1970-01 is 0, months of 30.436875 days; times out of range count to the nearest.
pub fn month(time: Timespec) -> u16 {
    (time.secs / 2_629_746).clamp(0, i64::from(u16::MAX)) as u16
}
