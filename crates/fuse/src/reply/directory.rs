//! Directory entries as READDIR and READDIRPLUS carry them (`fuse_dirent`, `fuse_direntplus`).

use super::{Entry, FileKind, ReplyBuffer};
use crate::protocol::wire;
use zerocopy::IntoBytes;

/// Records start at multiples of this.
const RECORD_ALIGN: usize = 8;

/// One name in a directory.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// Inode number shown to users.
    pub ino: u64,
    /// Where to continue after this entry; never 0, and stable while the directory is open.
    pub next_offset: u64,
    /// The type of the node.
    pub kind: FileKind,
    /// The name.
    pub name: &'a [u8],
}

/// A READDIR reply.
pub struct DirBuffer<'a, 'b> {
    reply: &'b mut ReplyBuffer<'a>,
}

impl<'a, 'b> DirBuffer<'a, 'b> {
    pub(crate) fn new(reply: &'b mut ReplyBuffer<'a>) -> Self {
        Self { reply }
    }

    /// Adds an entry. False: it does not fit, and the kernel will ask again from its predecessor's `next_offset`.
    #[must_use = "an entry that does not fit must be the first of the next reply"]
    pub fn push(&mut self, entry: &DirEntry<'_>) -> bool {
        put_record(self.reply, None, entry)
    }
}

/// A READDIRPLUS reply.
pub struct DirPlusBuffer<'a, 'b> {
    reply: &'b mut ReplyBuffer<'a>,
}

impl<'a, 'b> DirPlusBuffer<'a, 'b> {
    pub(crate) fn new(reply: &'b mut ReplyBuffer<'a>) -> Self {
        Self { reply }
    }

    /// Adds an entry with its node, which counts as one lookup if it is taken; `None` gives the name only (as for `.`
    /// and `..`, which must not be looked up). False: it does not fit, and nothing was counted.
    #[must_use = "an entry that does not fit must be the first of the next reply, and was not looked up"]
    pub fn push(&mut self, node: Option<&Entry>, entry: &DirEntry<'_>) -> bool {
        let out = node.map_or_else(wire::EntryOut::default, |node| node.to_wire());
        put_record(self.reply, Some(&out), entry)
    }
}

fn put_record(reply: &mut ReplyBuffer<'_>, node: Option<&wire::EntryOut>, entry: &DirEntry<'_>) -> bool {
    let head_len = if node.is_some() { size_of::<wire::EntryOut>() } else { 0 } + size_of::<wire::Dirent>();
    let len = (head_len + entry.name.len()).next_multiple_of(RECORD_ALIGN);
    let Ok(namelen) = u32::try_from(entry.name.len()) else { return false };
    let Some(record) = reply.spare().get_mut(..len) else { return false };
    let (head, tail) = record.split_at_mut(head_len);
    let (node_room, dirent_room) = head.split_at_mut(head_len - size_of::<wire::Dirent>());
    if let Some(node) = node {
        node_room.copy_from_slice(node.as_bytes());
    }
    let dirent =
        wire::Dirent { ino: entry.ino, off: entry.next_offset, namelen, kind: entry.kind.dirent_type() };
    dirent_room.copy_from_slice(dirent.as_bytes());
    let (name_room, padding) = tail.split_at_mut(entry.name.len());
    name_room.copy_from_slice(entry.name);
    padding.fill(0);
    reply.advance(len);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_does_not_fit_leaves_no_trace() {
        let mut bytes = [0u8; 70];
        let mut reply = ReplyBuffer::new(&mut bytes);
        let mut dir = DirBuffer::new(&mut reply);
        let entry = DirEntry { ino: 7, next_offset: 1, kind: FileKind::Regular, name: b"ninechars" };
        assert!(dir.push(&entry));
        assert!(!dir.push(&entry));
        assert_eq!(reply.len(), 40);
        assert_eq!(&bytes[24..33], b"ninechars");
        assert_eq!(bytes[20], 8, "DT_REG");
    }
}
