//! `mkdir(2)`.

use super::new_inode::{self, AskedMode};
use super::slice;
use crate::context::OpContext;
use crate::error::NsError;
use crate::record::{Inode, Kind, Wide};
use crate::txn::Txn;
use ashlar_types::{Attr, DirectoryChoice, Errno, FileType, InodeId, Name, ShardId};

/// What [`mkdir`] tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MkdirReply {
    /// Attributes of the new directory.
    pub attr: Attr,
}

/// Makes the directory `name` in `parent`, with the parent's layout settings and in the shard that they choose. Of `mode` only the
/// permission and sticky bits count; `umask` is without effect where the parent has a default ACL. Where the parent says so it is made split: whatever the
/// choice is, its slices are spread.
///
/// # Errors
/// `EEXIST`, `ENOTDIR`, `EACCES`; `ENOENT` in a removed directory; `EMLINK`, `ENOSPC`.
pub fn mkdir(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    parent: InodeId,
    name: Name<'_>,
    mode: u32,
    umask: u32,
) -> Result<MkdirReply, NsError> {
    let (directory, place) = new_inode::find_free_place(txn, context, parent, name)?;
    let (_, policy) = directory.as_directory()?;
    let asked = AskedMode { file_type: FileType::Directory, mode, umask };
    let kind = Kind::Directory { parent: directory.shown_as(parent), policy };
    let mut inode = new_inode::plan(context, &directory, asked, kind)?;
    let shard = match policy.directories.unwrap_or_default() {
        DirectoryChoice::RoundRobin => context.placement.shard_for_directory(parent),
        // In a slice it is where its name is, as it is elsewhere.
        DirectoryChoice::Inherit => parent.home(),
        DirectoryChoice::Pinned(shard) => shard,
    };
    let id = match split_into(context, shard, directory.slices_of_new()) {
        shards if shards.is_empty() => txn.allocate_inode_id(shard)?,
        shards => make_slices(txn, context, (shard, shards), &mut inode)?,
    };
    let attr = new_inode::apply(txn, context, place, id, inode)?;
    Ok(MkdirReply { attr })
}

/// The shards of the slices of a new directory in `shard`; none where it is not to be split, or cannot be now.
fn split_into(context: &OpContext<'_>, shard: ShardId, count: u16) -> Vec<ShardId> {
    if count < 2 {
        return Vec::new();
    }
    let shards = context.placement.shards_for_slices(shard, count);
    if shards.len() < usize::from(count) { Vec::new() } else { shards }
}

/// Makes slices for a new directory, and gives it its id.
fn make_slices(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    (shard, mut shards): (ShardId, Vec<ShardId>),
    inode: &mut Inode,
) -> Result<InodeId, NsError> {
    let (parent, policy) = inode.as_directory()?;
    shards.push(shard);
    let mut ids = txn.allocate_inode_ids(&shards)?;
    let id = ids.pop().ok_or(Errno::EIO)?;
    for (index, slice) in (0..).zip(&ids) {
        txn.insert_inode(*slice, slice::new_slice((id, inode), (index, ids.len() as u16), context.now))?;
    }
    let wide = Wide { slices: ids, slices_of_new: 0 };
    inode.kind = Kind::WideDirectory { parent, policy, wide };
    Ok(id)
}
