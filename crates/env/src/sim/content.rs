//! The content of one simulated file: what reads see, what a power cut leaves, and the blocks that differ.

use super::entropy::split_mix;
use super::{BLOCK_BYTES, SECTOR_BYTES};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;

type Block = [u8; BLOCK_BYTES];

/// Bytes and length at one moment; absent blocks read as zeros. Blocks are shared between images.
#[derive(Clone, Debug, Default)]
struct Image {
    len: u64,
    blocks: BTreeMap<u64, Arc<Block>>,
}

impl Image {
    fn block_mut(&mut self, index: u64) -> &mut Block {
        Arc::make_mut(self.blocks.entry(index).or_insert_with(|| Arc::new([0; BLOCK_BYTES])))
    }

    fn set_block(&mut self, index: u64, block: Option<Arc<Block>>) {
        match block {
            Some(block) => self.blocks.insert(index, block),
            None => self.blocks.remove(&index),
        };
    }

    /// Drops what lies behind the length.
    fn trim(&mut self) {
        let _behind = self.blocks.split_off(&self.len.div_ceil(BLOCK));
        let tail = (self.len % BLOCK) as usize;
        if tail != 0 && self.blocks.contains_key(&(self.len / BLOCK)) {
            self.block_mut(self.len / BLOCK)[tail..].fill(0);
        }
    }
}

/// A file's bytes, in memory and on the platter.
#[derive(Debug, Default)]
pub(super) struct Content {
    live: Image,
    durable: Image,
    /// Blocks written since the last sync.
    dirty: BTreeSet<u64>,
    /// Blocks that a failed sync has had for clean without making them durable, as Linux does.
    doomed: BTreeSet<u64>,
    /// Blocks that hold space, written or reserved.
    reserved: BTreeSet<u64>,
}

/// The pieces of `[offset, offset + len)` by block: (block, first byte in it, bytes).
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + len as u64;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let within = (at % BLOCK) as usize;
        let step = (BLOCK_BYTES - within).min((end - at) as usize);
        let piece = (at / BLOCK, within, step);
        at += step as u64;
        Some(piece)
    })
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.live.len
    }

    /// Blocks that hold space.
    pub(super) fn blocks_held(&self) -> u64 {
        self.reserved.len() as u64
    }

    /// Blocks of a range that hold no space yet.
    pub(super) fn blocks_missing(&self, offset: u64, len: u64) -> u64 {
        if len == 0 {
            return 0;
        }
        let (first, last) = (offset / BLOCK, (offset + len - 1) / BLOCK);
        (last - first + 1) - self.reserved.range(first..=last).count() as u64
    }

    /// The next blocks from `offset` on that were written.
    pub(super) fn next_data(&self, offset: u64) -> Option<Range<u64>> {
        let mut written = self.live.blocks.range(offset / BLOCK..).map(|(block, _)| *block);
        let first = written.next()?;
        let last = written.zip(first + 1..).take_while(|(block, next)| block == next).last();
        let end = (last.map_or(first, |(block, _)| block) + 1) * BLOCK;
        let range = (first * BLOCK).max(offset)..end.min(self.live.len);
        (!range.is_empty()).then_some(range)
    }

    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> usize {
        let got = self.live.len.saturating_sub(offset).min(out.len() as u64) as usize;
        let mut done = 0;
        for (index, within, step) in pieces(offset, got) {
            let target = &mut out[done..done + step];
            match self.live.blocks.get(&index) {
                Some(block) => target.copy_from_slice(&block[within..within + step]),
                None => target.fill(0),
            }
            done += step;
        }
        got
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let mut done = 0;
        for (index, within, step) in pieces(offset, data.len()) {
            self.live.block_mut(index)[within..within + step].copy_from_slice(&data[done..done + step]);
            self.dirty.insert(index);
            self.reserved.insert(index);
            done += step;
        }
        if !data.is_empty() {
            self.live.len = self.live.len.max(offset + data.len() as u64);
        }
    }

    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.live.len {
            let kept = len.div_ceil(BLOCK);
            self.dirty.extend(self.live.blocks.range(len / BLOCK..).map(|(index, _)| *index));
            let _freed = self.reserved.split_off(&kept);
        }
        self.live.len = len;
        self.live.trim();
    }

    pub(super) fn allocate(&mut self, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        self.reserved.extend(offset / BLOCK..=(offset + len - 1) / BLOCK);
        self.live.len = self.live.len.max(offset + len);
    }

    pub(super) fn punch_hole(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(self.live.len);
        if offset >= end {
            return;
        }
        for (index, within, step) in pieces(offset, (end - offset) as usize) {
            if step == BLOCK_BYTES {
                self.live.blocks.remove(&index);
                self.reserved.remove(&index);
            } else if self.live.blocks.contains_key(&index) {
                self.live.block_mut(index)[within..within + step].fill(0);
            }
            self.dirty.insert(index);
        }
    }

    /// A successful sync.
    pub(super) fn sync(&mut self) {
        for index in std::mem::take(&mut self.dirty) {
            self.durable.set_block(index, self.live.blocks.get(&index).cloned());
            self.doomed.remove(&index);
        }
        self.durable.len = self.live.len;
        self.durable.trim();
    }

    /// A failed sync: the blocks count as clean from now on and are not on the disk.
    pub(super) fn fail_sync(&mut self) {
        self.doomed.append(&mut self.dirty);
    }

    /// Memory is let go of: blocks that count as clean are read from the disk again, those that `is_kept` excepted.
    pub(super) fn reread(&mut self, mut is_kept: impl FnMut() -> bool) {
        for index in std::mem::take(&mut self.doomed) {
            if self.dirty.contains(&index) {
                // Written again since, as a whole.
                continue;
            }
            if is_kept() {
                self.doomed.insert(index);
                continue;
            }
            // What is behind the length is not read.
            let durable = self.durable.blocks.get(&index).cloned();
            self.reserved.extend(durable.is_some().then_some(index));
            self.live.set_block(index, durable);
        }
        self.live.trim();
    }

    /// A power cut: every dirty block is kept, lost or torn; a new length is kept or lost.
    pub(super) fn crash(&mut self, random: &mut u64) {
        for index in std::mem::take(&mut self.dirty) {
            let written = self.live.blocks.get(&index).cloned();
            match split_mix(random) % 3 {
                0 => self.durable.set_block(index, written),
                1 => {}
                _ => self.tear(index, written.as_deref(), split_mix(random)),
            }
        }
        if split_mix(random).is_multiple_of(2) {
            self.durable.len = self.live.len;
        }
        self.durable.trim();
        self.doomed.clear();
        self.live = self.durable.clone();
        let _lost = self.reserved.split_off(&self.live.len.div_ceil(BLOCK));
        self.reserved.extend(self.live.blocks.keys());
    }

    /// Keeps the sectors of `written` whose bit is set in `kept`.
    fn tear(&mut self, index: u64, written: Option<&Block>, kept: u64) {
        let target = self.durable.block_mut(index);
        for sector in (0..BLOCK_BYTES / SECTOR_BYTES).filter(|sector| kept >> sector & 1 == 1) {
            let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
            match written {
                Some(block) => target[range.clone()].copy_from_slice(&block[range]),
                None => target[range].fill(0),
            }
        }
    }

    /// Changes one bit, in memory and on the platter.
    pub(super) fn flip_bit(&mut self, bit: u64) {
        let (byte, mask) = (bit / 8, 1 << (bit % 8));
        for image in [&mut self.live, &mut self.durable] {
            if byte < image.len {
                image.block_mut(byte / BLOCK)[(byte % BLOCK) as usize] ^= mask;
            }
        }
    }
}
