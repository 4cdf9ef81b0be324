//! What a node may do as a client: whose identity its users have at the servers, and whether it may change anything.
//!
//! A node asserts which user calls. Its policy bounds that, and is applied at one place, the edge of a service, where the node is known by its
//! certificate. The rules are those of Lustre's node maps (`lctl-nodemap-modify(8)`) and of `root_squash` of NFS (`exports(5)`).

use crate::{Attr, Capabilities, Credentials, Errno, FilesetId, InodeId, PATH_BYTES_MAX, Role, Roles};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The id that stands for "no change" in `chown(2)` and is nobody's.
const ID_NONE: u32 = u32::MAX;

/// Which users of a node become the anonymous user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Squash {
    /// User 0, and group 0 of everybody. Nobody of the node has a capability.
    #[default]
    Root,
    /// Everybody. Nobody of the node has a capability.
    All,
    /// Nobody: root is root, and capabilities count.
    Nobody,
}

/// What becomes of ids that no range has, where there are ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outside {
    /// Their calls are refused with `EACCES`.
    #[default]
    Refuse,
    /// They become anonymous.
    Squash,
}

/// Ids of a node, and those that they are at the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRange {
    /// The first, on the node.
    pub first: u32,
    /// The last, on the node.
    pub last: u32,
    /// What the first is at the servers; the others follow.
    pub server: u32,
}

impl IdRange {
    /// Whether no id in it is one that no range may have: 0, which is root, and 2^32-1, which is nobody.
    fn is_sound(&self) -> bool {
        self.first > 0
            && self.first <= self.last
            && self.last < ID_NONE
            && self.server > 0
            && self.server_last().is_some_and(|last| last < ID_NONE)
    }

    fn server_last(&self) -> Option<u32> {
        self.server.checked_add(self.last - self.first)
    }

    fn to_server(self, id: u32) -> Option<u32> {
        (self.first..=self.last).contains(&id).then(|| self.server + (id - self.first))
    }

    fn to_node(self, id: u32) -> Option<u32> {
        let at = id.checked_sub(self.server)?;
        (at <= self.last - self.first).then(|| self.first + at)
    }
}

impl fmt::Display for IdRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first)?,
            false => write!(f, "{}-{}", self.first, self.last)?,
        }
        if self.server == self.first { Ok(()) } else { write!(f, "={}", self.server) }
    }
}

impl FromStr for IdRange {
    type Err = String;

    /// Reads `1000-1999=5000`, `1000=5000`, or `1000-1999` for ids that stay what they are.
    fn from_str(text: &str) -> Result<IdRange, String> {
        let read = || {
            let (node, server) = match text.split_once('=') {
                Some((node, server)) => (node, Some(server)),
                None => (text, None),
            };
            let (first, last) = node.split_once('-').unwrap_or((node, node));
            let (first, last) = (first.parse().ok()?, last.parse().ok()?);
            let server = server.map_or(Some(first), |server| server.parse().ok())?;
            Some(IdRange { first, last, server })
        };
        read().filter(IdRange::is_sound).ok_or_else(|| {
            format!(
                "`{}` is no range of ids: write FIRST-LAST=FIRST_AT_THE_SERVERS, such as 1000-1999=5000, or FIRST-LAST for ids that stay \
                 what they are; 0 cannot be in one, what becomes of root says --squash",
                text.escape_debug()
            )
        })
    }
}

/// Users or groups of a node and their ids at the servers; without any range all ids are what they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdMap(pub Vec<IdRange>);

impl IdMap {
    // LIMIT: of the ranges of a map; each call looks at all of them.
    /// Most ranges.
    pub const RANGES_MAX: usize = 16;

    fn to_server(&self, id: u32) -> Option<u32> {
        self.0.iter().find_map(|range| range.to_server(id))
    }

    fn to_node(&self, id: u32) -> Option<u32> {
        self.0.iter().find_map(|range| range.to_node(id))
    }

    fn check(&self) -> Result<(), &'static str> {
        if self.0.len() > Self::RANGES_MAX {
            return Err("there are more than 16 ranges of ids");
        }
        if !self.0.iter().all(IdRange::is_sound) {
            return Err("a range of ids is empty, or has 0 or 4294967295 in it");
        }
        for (at, one) in self.0.iter().enumerate() {
            for other in &self.0[..at] {
                if one.first <= other.last && other.first <= one.last {
                    return Err("two ranges have the same id of the node");
                }
                if one.server <= other.server_last().unwrap_or(ID_NONE)
                    && other.server <= one.server_last().unwrap_or(ID_NONE)
                {
                    return Err("two ranges have the same id of the servers");
                }
            }
        }
        Ok(())
    }
}

/// The user that nobody is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anonymous {
    /// User id at the servers.
    pub uid: u32,
    /// Group id at the servers.
    pub gid: u32,
}

impl Default for Anonymous {
    /// `nobody` and `nogroup`, as in `exports(5)`.
    fn default() -> Anonymous {
        Anonymous { uid: 65534, gid: 65534 }
    }
}

impl fmt::Display for Anonymous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

impl FromStr for Anonymous {
    type Err = String;

    /// Reads `UID:GID`.
    fn from_str(text: &str) -> Result<Anonymous, String> {
        let read = || {
            let (uid, gid) = text.split_once(':')?;
            Some(Anonymous { uid: uid.parse().ok()?, gid: gid.parse().ok()? })
        };
        read().filter(Anonymous::is_sound).ok_or_else(|| {
            format!(
                "`{}` is no anonymous user: write UID:GID, such as 65534:65534; neither can be 0",
                text.escape_debug()
            )
        })
    }
}

impl Anonymous {
    fn is_sound(&self) -> bool {
        [self.uid, self.gid].iter().all(|id| (1..ID_NONE).contains(id))
    }
}

/// The directory that is all a node sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subtree {
    /// Where it was when it was chosen, from the root of the file system. For people: the directory counts, wherever it is.
    pub path: String,
    /// The directory.
    pub root: InodeId,
    /// Its fileset, which is in everything that is in it.
    pub fileset: FilesetId,
}

impl Subtree {
    fn is_sound(&self) -> bool {
        self.fileset != FilesetId::default()
            && self.root != InodeId::ROOT
            && self.path.starts_with('/')
            && self.path.len() <= PATH_BYTES_MAX
    }
}

/// See the module. The default is that of a node that only mounts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePolicy {
    /// Who becomes anonymous.
    pub squash: Squash,
    /// Who that is.
    pub anonymous: Anonymous,
    /// Users.
    pub uids: IdMap,
    /// Groups.
    pub gids: IdMap,
    /// What becomes of ids that no range has.
    pub outside: Outside,
    /// Whether nothing may be changed by the node.
    pub read_only: bool,
    /// All that it sees; without one it sees everything.
    pub subtree: Option<Subtree>,
}

/// Whether an id is that of a user or of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdKind {
    /// Of a user.
    User,
    /// Of a group.
    Group,
}

impl NodePolicy {
    /// That of a node whose users are who they say: what is in one process with the services has it, too.
    pub fn trusting() -> NodePolicy {
        NodePolicy { squash: Squash::Nobody, ..NodePolicy::default() }
    }

    /// What a node with `roles` has unless an administrator says otherwise. One that administers could give itself any policy.
    pub fn of_new_node(roles: Roles) -> NodePolicy {
        if roles.has(Role::Admin) { NodePolicy::trusting() } else { NodePolicy::default() }
    }

    /// Whether calls and answers pass as they are, whatever inodes they are about.
    pub fn is_trusting(&self) -> bool {
        self.squash == Squash::Nobody && self.uids.0.is_empty() && self.gids.0.is_empty() && !self.read_only
    }

    /// Whether nobody of the node has any capability.
    pub fn takes_capabilities(&self) -> bool {
        self.squash != Squash::Nobody
    }

    /// Whether it keeps the rules of its parts.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self) -> Result<(), &'static str> {
        if !self.anonymous.is_sound() {
            return Err("the anonymous user or group is 0 or 4294967295");
        }
        if self.subtree.as_ref().is_some_and(|subtree| !subtree.is_sound()) {
            return Err("the subtree is the root, or none");
        }
        self.uids.check().and(self.gids.check())
    }

    fn map(&self, kind: IdKind) -> &IdMap {
        match kind {
            IdKind::User => &self.uids,
            IdKind::Group => &self.gids,
        }
    }

    fn anonymous_id(&self, kind: IdKind) -> u32 {
        match kind {
            IdKind::User => self.anonymous.uid,
            IdKind::Group => self.anonymous.gid,
        }
    }

    /// Who `caller`, a user of the node, is at the servers. A caller whose user becomes anonymous has no other group than the anonymous one.
    ///
    /// # Errors
    /// `EACCES` for a user or group outside of all ranges, if such are refused.
    pub fn admit(&self, caller: &Credentials) -> Result<Credentials, Errno> {
        let Some(uid) = self.caller_id(IdKind::User, caller.uid)? else {
            let Anonymous { uid, gid } = self.anonymous;
            return Ok(Credentials { uid, gid, complete: caller.complete, ..Credentials::default() });
        };
        let gid = self.caller_id(IdKind::Group, caller.gid)?.unwrap_or(self.anonymous.gid);
        // What somebody is not a member of gives no rights, so groups that mean nothing here are left out.
        let groups = caller
            .groups
            .iter()
            .filter_map(|group| self.caller_id(IdKind::Group, *group).unwrap_or_default())
            .collect();
        let caps = if self.takes_capabilities() { Capabilities::default() } else { caller.caps };
        Ok(Credentials { uid, gid, groups, caps, complete: caller.complete })
    }

    /// `None` for one who becomes anonymous.
    fn caller_id(&self, kind: IdKind, id: u32) -> Result<Option<u32>, Errno> {
        match (self.squash, id) {
            (Squash::All, _) | (Squash::Root, 0) => return Ok(None),
            (Squash::Nobody, 0) => return Ok(Some(0)),
            _ => {}
        }
        let map = self.map(kind);
        if map.0.is_empty() {
            return Ok(Some(id));
        }
        match (map.to_server(id), self.outside) {
            (None, Outside::Refuse) => Err(Errno::EACCES),
            (found, _) => Ok(found),
        }
    }

    /// What `id` of the node is at the servers where it is not the caller's: an owner to set, an entry of an access list.
    ///
    /// # Errors
    /// `EINVAL` for one that is nobody at the servers, as for an id that a user name space does not have (`user_namespaces(7)`).
    pub fn id_to_server(&self, kind: IdKind, id: u32) -> Result<u32, Errno> {
        let map = self.map(kind);
        match (map.0.is_empty(), id, self.squash) {
            (true, ..) | (_, 0, Squash::Nobody) => Ok(id),
            _ => map.to_server(id).ok_or(Errno::EINVAL),
        }
    }

    /// What `id` of the servers is on the node; one that is nobody there is shown as the anonymous one.
    pub fn id_to_node(&self, kind: IdKind, id: u32) -> u32 {
        let map = self.map(kind);
        match (map.0.is_empty(), id, self.squash) {
            (true, ..) | (_, 0, Squash::Nobody) => id,
            _ => map.to_node(id).unwrap_or(self.anonymous_id(kind)),
        }
    }

    /// Attributes as the node is told them.
    pub fn attr_to_node(&self, attr: &mut Attr) {
        attr.uid = self.id_to_node(IdKind::User, attr.uid);
        attr.gid = self.id_to_node(IdKind::Group, attr.gid);
    }

    /// Attributes that the node was told once, as they were at the servers, as far as that can be known.
    pub fn attr_to_server(&self, attr: &mut Attr) {
        attr.uid = self.id_to_server(IdKind::User, attr.uid).unwrap_or(self.anonymous.uid);
        attr.gid = self.id_to_server(IdKind::Group, attr.gid).unwrap_or(self.anonymous.gid);
    }

    /// An access list (`acl(5)`), in the kernel's form of its attribute, with the ids of the servers. What is no list stays as it is, for who stores it
    /// to refuse.
    ///
    /// # Errors
    /// As [`NodePolicy::id_to_server`].
    pub fn acl_to_server(&self, list: &[u8]) -> Result<Vec<u8>, Errno> {
        map_acl(list, |kind, id| self.id_to_server(kind, id))
    }

    /// The same, with the ids of the node.
    pub fn acl_to_node(&self, list: &[u8]) -> Vec<u8> {
        map_acl(list, |kind, id| Ok(self.id_to_node(kind, id))).unwrap_or_else(|_| list.to_vec())
    }
}

/// `linux/posix_acl_xattr.h`: a version u32, then entries of tag u16, permissions u16 and id u32, little-endian.
fn map_acl(list: &[u8], change: impl Fn(IdKind, u32) -> Result<u32, Errno>) -> Result<Vec<u8>, Errno> {
    const HEADER_BYTES: usize = 4;
    const USER: u16 = 0x02;
    const GROUP: u16 = 0x08;
    let mut out = list.to_vec();
    let Some((_, entries)) = out.split_at_mut_checked(HEADER_BYTES) else { return Ok(out) };
    for [tag_low, tag_high, _, _, id @ ..] in entries.as_chunks_mut::<8>().0 {
        let kind = match u16::from_le_bytes([*tag_low, *tag_high]) {
            USER => IdKind::User,
            GROUP => IdKind::Group,
            _ => continue,
        };
        *id = change(kind, u32::from_le_bytes(*id))?.to_le_bytes();
    }
    Ok(out)
}

impl fmt::Display for NodePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.squash {
            Squash::Root => write!(f, "root becomes {}", self.anonymous)?,
            Squash::All => write!(f, "everybody becomes {}", self.anonymous)?,
            Squash::Nobody => f.write_str("root is root")?,
        }
        for (what, map) in [("uids", &self.uids), ("gids", &self.gids)] {
            if !map.0.is_empty() {
                let ranges: Vec<String> = map.0.iter().map(IdRange::to_string).collect();
                write!(f, ", {what} {}", ranges.join(","))?;
            }
        }
        if !(self.uids.0.is_empty() && self.gids.0.is_empty()) {
            match self.outside {
                Outside::Refuse => f.write_str(", others are refused")?,
                Outside::Squash => write!(f, ", others become {}", self.anonymous)?,
            }
        }
        if let Some(Subtree { path, .. }) = &self.subtree {
            write!(f, ", sees {} alone", path.escape_debug())?;
        }
        f.write_str(if self.read_only { ", read-only" } else { "" })
    }
}

#[cfg(test)]
mod policy_test;
