//! The bytes of an inline file: table `B`, in pieces of [`BODY_PIECE_BYTES`].
//!
//! A piece holds the bytes from its start to the last one ever written in it; what is not stored (a missing piece, the rest of
//! a short one) reads as zeros. So a file may be longer than its stored bytes, and only touched pieces are rewritten.
//! Functions that change pieces return by how many units of 512 bytes the stored bytes grew; each piece is rounded up by
//! itself, so that the change can be told without reading the others. A piece is never stored empty, hence `blocks == 0`
//! exactly when there is none.

use crate::error::NsError;
use crate::key::{self, BODY_PIECE_BYTES};
use crate::record::Inode;
use crate::txn::Txn;
use ashlar_types::{InodeId, LayoutPolicy};
use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;
use std::ops::{ControlFlow, Range};

const PIECE: u64 = BODY_PIECE_BYTES as u64;
/// No inline file stores bytes beyond this.
pub(crate) const BODY_BYTES_MAX: u64 = LayoutPolicy::INLINE_BYTES_MAX as u64;

/// Units of 512 bytes that a piece of `len` bytes counts for.
pub(crate) fn units(len: usize) -> i64 {
    len.div_ceil(512) as i64
}

/// Up to where a file with this policy may store bytes inline.
pub(crate) fn limit(policy: &LayoutPolicy) -> u64 {
    let bytes = policy.inline_bytes.or(LayoutPolicy::root_default().inline_bytes).unwrap_or(0);
    u64::from(bytes).min(BODY_BYTES_MAX)
}

/// The pieces that `range` touches: (piece, range within it).
fn pieces(range: Range<u64>) -> impl Iterator<Item = (u32, Range<usize>)> {
    let end = range.end.min(BODY_BYTES_MAX);
    let mut at = range.start;
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let within = at % PIECE;
            let stop = (within + end - at).min(PIECE);
            // LIMIT: `at` is below BODY_BYTES_MAX, so a piece number has at most 5 bits.
            let piece = (at / PIECE) as u32;
            at += stop - within;
            (piece, within as usize..stop as usize)
        })
    })
}

/// The bytes `[offset, offset + len)`, zeros where nothing is stored. The caller bounds `len`.
pub(crate) fn read(txn: &Txn<'_>, inode: InodeId, offset: u64, len: usize) -> Result<Bytes, NsError> {
    let range = offset..offset.saturating_add(len as u64);
    if let Some((piece, within)) = pieces(range.clone()).next()
        && within.len() == len
        && let Some(stored) = txn.get(&key::body(inode, piece))?
        && stored.len() >= within.end
    {
        return Ok(stored.slice(within));
    }
    let mut out = BytesMut::zeroed(len);
    let mut rest: &mut [u8] = &mut out;
    for (piece, within) in pieces(range) {
        let (here, later) = rest.split_at_mut(within.len());
        rest = later;
        if let Some(stored) = txn.get(&key::body(inode, piece))? {
            let stored = &stored[within.start.min(stored.len())..within.end.min(stored.len())];
            here[..stored.len()].copy_from_slice(stored);
        }
    }
    Ok(out.freeze())
}

/// Rewrites one piece through `change`, which gets its stored bytes; trailing emptiness is the caller's wish.
fn rewrite(
    txn: &mut Txn<'_>,
    piece_key: ashlar_kv::Key,
    old: Option<Bytes>,
    change: impl FnOnce(&mut Vec<u8>),
) -> i64 {
    let before = old.as_ref().map_or(0, Bytes::len);
    let mut new = Vec::with_capacity(before);
    new.extend_from_slice(old.as_deref().unwrap_or_default());
    change(&mut new);
    let after = new.len();
    if new.is_empty() {
        if old.is_some() {
            txn.delete(piece_key);
        }
    } else if old.is_none_or(|old| *old != *new) {
        txn.put(piece_key, new.into());
    }
    units(after) - units(before)
}

/// Stores `data` at `offset`; it must end within [`BODY_BYTES_MAX`].
pub(crate) fn write(
    txn: &mut Txn<'_>,
    inode: InodeId,
    offset: u64,
    data: &[u8],
    is_empty: bool,
) -> Result<i64, NsError> {
    let mut delta = 0;
    let mut rest = data;
    for (piece, within) in pieces(offset..offset.saturating_add(data.len() as u64)) {
        let (here, later) = rest.split_at(within.len());
        rest = later;
        let piece_key = key::body(inode, piece);
        let old = if is_empty { None } else { txn.get(&piece_key)? };
        delta += rewrite(txn, piece_key, old, |bytes| {
            bytes.resize(bytes.len().max(within.end), 0);
            bytes[within].copy_from_slice(here);
        });
    }
    Ok(delta)
}

/// Makes the bytes of `range` zeros; whole pieces and tails of pieces are no longer stored.
pub(crate) fn punch(txn: &mut Txn<'_>, inode: InodeId, range: Range<u64>) -> Result<i64, NsError> {
    let mut delta = 0;
    for (piece, within) in pieces(range) {
        let piece_key = key::body(inode, piece);
        let Some(old) = txn.get(&piece_key)? else { continue };
        delta += rewrite(txn, piece_key, Some(old), |bytes| {
            if within.end >= bytes.len() {
                bytes.truncate(within.start);
            } else {
                bytes[within].fill(0);
            }
        });
    }
    Ok(delta)
}

/// Stores zeros where `range` is not stored.
pub(crate) fn fill(txn: &mut Txn<'_>, inode: InodeId, range: Range<u64>) -> Result<i64, NsError> {
    let mut delta = 0;
    for (piece, within) in pieces(range) {
        let piece_key = key::body(inode, piece);
        let old = txn.get(&piece_key)?;
        delta += rewrite(txn, piece_key, old, |bytes| bytes.resize(bytes.len().max(within.end), 0));
    }
    Ok(delta)
}

/// Drops every byte from `keep` on.
pub(crate) fn cut(txn: &mut Txn<'_>, inode: InodeId, keep: u64) -> Result<i64, NsError> {
    if keep >= BODY_BYTES_MAX {
        return Ok(0);
    }
    let from = key::body(inode, (keep / PIECE) as u32);
    let to = key::after_prefix(&key::body_prefix(inode));
    // LIMIT: a file has at most BODY_BYTES_MAX / BODY_PIECE_BYTES = 16 pieces; a damaged store may have more, all go.
    let mut found: SmallVec<[(ashlar_kv::Key, usize); 4]> = SmallVec::new();
    txn.scan(&from, &to, &mut |piece_key, value| {
        found.push((ashlar_kv::Key::from_slice(piece_key), value.len()));
        ControlFlow::Continue(())
    })?;
    let mut delta = 0;
    for (piece_key, len) in found {
        let kept = if piece_key == from { (keep % PIECE) as usize } else { 0 };
        if kept > 0 {
            let old = txn.get(&piece_key)?;
            delta += rewrite(txn, piece_key, old, |bytes| bytes.truncate(kept));
        } else {
            txn.delete(piece_key);
            delta -= units(len);
        }
    }
    Ok(delta)
}

/// Adds a change of stored units to the inode's count.
pub(crate) fn add_blocks(inode: &mut Inode, delta: i64) {
    inode.blocks = inode.blocks.saturating_add_signed(delta);
}
