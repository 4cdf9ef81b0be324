//! POSIX access control lists (`acl(5)`): the form they are stored in, and the rules of Linux' `fs/posix_acl.c` and POSIX 1003.1e.
//!
//! The stored form is the kernel's form of the attributes `system.posix_acl_access` and `system.posix_acl_default`: a 32-bit
//! version (2), then entries of 8 bytes each: tag u16, permissions u16, id u32, all little-endian. Whoever stores bytes has them
//! from [`Acl::encode`], so that only valid lists are on disk; whoever reads them parses them again and takes anything else
//! for damage. An access ACL that says no more than the mode is not stored at all ([`Acl::equivalent_mode`]).

use crate::error::NsError;
use crate::record::Inode;
use ashlar_kv::KvError;
use ashlar_types::{Credentials, Errno};
use bytes::Bytes;
use smallvec::SmallVec;

/// Name of the extended attribute that shows the access ACL.
pub const XATTR_ACCESS: &[u8] = b"system.posix_acl_access";
/// Name of the extended attribute that shows the default ACL.
pub const XATTR_DEFAULT: &[u8] = b"system.posix_acl_default";

/// Most entries of one ACL: what fits the 4096 bytes the kernel hands to a FUSE file system.
// LIMIT: ACLs are in the inode record, which every lookup reads.
pub const ENTRIES_MAX: usize = (4096 - HEADER_BYTES) / ENTRY_BYTES;

const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
const VERSION: u32 = 2;
/// The id of entries that name nobody.
const ID_UNDEFINED: u32 = u32::MAX;

/// Whom an entry is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub enum Tag {
    /// The owner.
    UserObj = 0x01,
    /// A named user.
    User = 0x02,
    /// The owning group.
    GroupObj = 0x04,
    /// A named group.
    Group = 0x08,
    /// The most that named users and any group get.
    Mask = 0x10,
    /// Everybody else.
    Other = 0x20,
}

impl Tag {
    fn from_raw(raw: u16) -> Option<Tag> {
        Some(match raw {
            0x01 => Tag::UserObj,
            0x02 => Tag::User,
            0x04 => Tag::GroupObj,
            0x08 => Tag::Group,
            0x10 => Tag::Mask,
            0x20 => Tag::Other,
            _ => return None,
        })
    }
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Whom it is for.
    pub tag: Tag,
    /// Permissions: 4 read, 2 write, 1 execute.
    pub perm: u16,
    /// User or group id; for other tags without meaning.
    pub id: u32,
}

/// A valid ACL: owner, named users, owning group, named groups, mask (if anybody is named), others, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: SmallVec<[Entry; 6]>,
}

/// What a new inode gets from the default ACL of its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inherited {
    /// The mode, with permission bits taken away as the ACL demands.
    pub mode: u32,
    /// Its access ACL, absent when the mode says it all.
    pub access: Option<Bytes>,
}

impl Acl {
    /// Reads the kernel's form; `None` for a list without entries, which in `setxattr(2)` means removal.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for another version, `E2BIG` above [`ENTRIES_MAX`] entries, `EINVAL` for anything else that is not a valid ACL.
    pub fn parse(bytes: &[u8]) -> Result<Option<Acl>, Errno> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(Errno::EINVAL)?;
        if u32::from_le_bytes(*header) != VERSION {
            return Err(Errno::EOPNOTSUPP);
        }
        let (raw_entries, []) = rest.as_chunks::<ENTRY_BYTES>() else {
            return Err(Errno::EINVAL);
        };
        if raw_entries.is_empty() {
            return Ok(None);
        }
        if raw_entries.len() > ENTRIES_MAX {
            return Err(Errno::E2BIG);
        }
        let mut entries = SmallVec::with_capacity(raw_entries.len());
        for [tag_low, tag_high, perm_low, perm_high, id @ ..] in raw_entries {
            let tag = Tag::from_raw(u16::from_le_bytes([*tag_low, *tag_high])).ok_or(Errno::EINVAL)?;
            let id = match tag {
                Tag::User | Tag::Group => u32::from_le_bytes(*id),
                _ => ID_UNDEFINED,
            };
            entries.push(Entry { tag, perm: u16::from_le_bytes([*perm_low, *perm_high]), id });
        }
        let acl = Acl { entries };
        acl.check()?;
        Ok(Some(acl))
    }

    /// An ACL of these entries.
    ///
    /// # Errors
    /// As [`Acl::parse`].
    pub fn from_entries(entries: &[Entry]) -> Result<Acl, Errno> {
        if entries.len() > ENTRIES_MAX {
            return Err(Errno::E2BIG);
        }
        let mut acl = Acl { entries: SmallVec::from_slice(entries) };
        for entry in &mut acl.entries {
            if !matches!(entry.tag, Tag::User | Tag::Group) {
                entry.id = ID_UNDEFINED;
            }
        }
        acl.check()?;
        Ok(acl)
    }

    /// Reads an ACL as an inode has it.
    fn stored(bytes: &[u8]) -> Result<Acl, NsError> {
        match Acl::parse(bytes) {
            Ok(Some(acl)) => Ok(acl),
            Ok(None) | Err(_) => {
                Err(KvError::Corrupt { what: "access control list of an inode".into() }.into())
            }
        }
    }

    /// The rules of `posix_acl_valid`: order, one of each unnamed entry, a mask when somebody is named.
    fn check(&self) -> Result<(), Errno> {
        let mut previous: Option<Tag> = None;
        let mut needs_mask = false;
        for entry in &self.entries {
            let is_named = matches!(entry.tag, Tag::User | Tag::Group);
            let is_in_order = match previous {
                None => entry.tag == Tag::UserObj,
                Some(previous) => previous < entry.tag || (is_named && previous == entry.tag),
            };
            let skips_owner_group = entry.tag > Tag::GroupObj && previous < Some(Tag::GroupObj);
            let is_valid_id = !is_named || entry.id != ID_UNDEFINED;
            if !is_in_order || skips_owner_group || entry.perm > 7 || !is_valid_id {
                return Err(Errno::EINVAL);
            }
            needs_mask = (needs_mask || is_named) && entry.tag != Tag::Mask;
            if entry.tag == Tag::Other && needs_mask {
                return Err(Errno::EINVAL);
            }
            previous = Some(entry.tag);
        }
        if previous == Some(Tag::Other) { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// The entries, in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The kernel's form, also the stored form.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(HEADER_BYTES + ENTRY_BYTES * self.entries.len());
        out.extend_from_slice(&VERSION.to_le_bytes());
        for entry in &self.entries {
            out.extend_from_slice(&(entry.tag as u16).to_le_bytes());
            out.extend_from_slice(&entry.perm.to_le_bytes());
            out.extend_from_slice(&entry.id.to_le_bytes());
        }
        out.into()
    }

    /// The nine permission bits that stand for this ACL in a mode, and whether they say all of it
    /// (`posix_acl_equiv_mode`); if so it needs no storing.
    pub fn equivalent_mode(&self) -> (u32, bool) {
        let mut mode = 0;
        let mut is_exact = true;
        for entry in &self.entries {
            let perm = u32::from(entry.perm);
            match entry.tag {
                Tag::UserObj => mode |= perm << 6,
                Tag::GroupObj => mode |= perm << 3,
                Tag::Other => mode |= perm,
                Tag::Mask => (mode, is_exact) = (mode & !0o070 | perm << 3, false),
                Tag::User | Tag::Group => is_exact = false,
            }
        }
        (mode, is_exact)
    }

    /// The entry whose permissions are the group bits of the mode: the mask, or else the owning group's.
    fn group_class_mut(&mut self) -> Option<&mut Entry> {
        let tag =
            if self.entries.iter().any(|entry| entry.tag == Tag::Mask) { Tag::Mask } else { Tag::GroupObj };
        self.entries.iter_mut().find(|entry| entry.tag == tag)
    }

    /// Narrows this copy of a directory's default ACL to what `mode` asks for and returns the resulting mode
    /// (`posix_acl_create_masq`).
    fn narrow(&mut self, mode: u32) -> u32 {
        let mut granted = mode;
        let mut narrow_one = |entry: &mut Entry, shift: u32| {
            entry.perm &= (mode >> shift & 7) as u16;
            granted &= u32::from(entry.perm) << shift | !(7 << shift);
        };
        for entry in &mut self.entries {
            match entry.tag {
                Tag::UserObj => narrow_one(entry, 6),
                Tag::Other => narrow_one(entry, 0),
                _ => {}
            }
        }
        if let Some(entry) = self.group_class_mut() {
            narrow_one(entry, 3);
        }
        granted
    }
}

/// The access ACL `bytes` after `chmod(2)` to `mode` (`posix_acl_chmod`).
///
/// # Errors
/// [`NsError::Kv`] when `bytes` is no ACL.
pub fn chmod(bytes: &[u8], mode: u32) -> Result<Bytes, NsError> {
    let mut acl = Acl::stored(bytes)?;
    for entry in &mut acl.entries {
        match entry.tag {
            Tag::UserObj => entry.perm = (mode >> 6 & 7) as u16,
            Tag::Other => entry.perm = (mode & 7) as u16,
            _ => {}
        }
    }
    if let Some(entry) = acl.group_class_mut() {
        entry.perm = (mode >> 3 & 7) as u16;
    }
    Ok(acl.encode())
}

/// What an inode created with `mode` gets in a directory whose default ACL is `default_acl` (`posix_acl_create`). The umask plays no part.
///
/// # Errors
/// [`NsError::Kv`] when `default_acl` is no ACL.
pub fn inherit(default_acl: &[u8], mode: u32) -> Result<Inherited, NsError> {
    let mut acl = Acl::stored(default_acl)?;
    let mode = acl.narrow(mode);
    let (_, is_exact) = acl.equivalent_mode();
    Ok(Inherited { mode, access: (!is_exact).then(|| acl.encode()) })
}

/// Whether the access ACL `bytes` of `inode` grants all `wanted` bits to the caller, capabilities aside (`posix_acl_permission`). While
/// the caller's groups are not all known, what others get counts only if every group gets it, too.
///
/// # Errors
/// [`NsError::Kv`] when `bytes` is no ACL.
pub(crate) fn permits(
    bytes: &[u8],
    inode: &Inode,
    creds: &Credentials,
    wanted: u32,
) -> Result<bool, NsError> {
    let acl = Acl::stored(bytes)?;
    let mask =
        acl.entries.iter().find(|entry| entry.tag == Tag::Mask).map_or(7, |entry| u32::from(entry.perm));
    let mut may_be_refused_by_group = false;
    for entry in &acl.entries {
        let perm = u32::from(entry.perm);
        let is_in_group = match entry.tag {
            Tag::UserObj if creds.uid == inode.uid => return Ok(perm & wanted == wanted),
            Tag::User if creds.uid == entry.id => return Ok(perm & mask & wanted == wanted),
            Tag::GroupObj => creds.in_group(inode.gid),
            Tag::Group => creds.in_group(entry.id),
            Tag::Other => return Ok(!may_be_refused_by_group && perm & wanted == wanted),
            _ => continue,
        };
        if is_in_group && perm & wanted == wanted {
            return Ok(mask & wanted == wanted);
        }
        may_be_refused_by_group |= is_in_group || (!creds.complete && perm & mask & wanted != wanted);
    }
    Ok(false)
}

#[cfg(test)]
#[path = "acl/acl_test.rs"]
mod tests;
