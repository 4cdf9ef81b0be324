//! A write cut at block borders: whole blocks that go to disk as they came, and up to two edges that are merged with the
//! block that is there.

use crate::checksum::{BLOCK, BLOCK_BYTES, has_data, seal, sum_of};
use crate::error::ChunkError;
use ashlar_types::ChunkId;
use ashlar_types::codec::crc32c;
use smallvec::SmallVec;

/// Parts of one vectored write.
pub(crate) type Parts<'a> = SmallVec<[&'a [u8]; 4]>;

/// A partly written block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge<'d> {
    pub(crate) block: u32,
    /// First byte in the block.
    pub(crate) at: u32,
    pub(crate) data: &'d [u8],
}

/// A write, cut.
#[derive(Debug)]
pub(crate) struct Pieces<'d> {
    pub(crate) head: Option<Edge<'d>>,
    /// First whole block.
    body_block: u32,
    body: &'d [u8],
    body_sums: SmallVec<[u32; 16]>,
    pub(crate) tail: Option<Edge<'d>>,
}

/// A write with its edges merged, ready to go to disk.
pub(crate) struct Image<'d> {
    pub(crate) first_block: u32,
    pub(crate) sums: SmallVec<[u32; 16]>,
    head: Option<Box<[u8; BLOCK_BYTES]>>,
    body: &'d [u8],
    tail: Option<Box<[u8; BLOCK_BYTES]>>,
}

impl<'d> Pieces<'d> {
    /// Cuts `data` for `offset`, and compares the whole blocks with the sender's checksums.
    pub(crate) fn cut(
        chunk: ChunkId,
        offset: u32,
        data: &'d [u8],
        sums: Option<&[u32]>,
    ) -> Result<Pieces<'d>, ChunkError> {
        let at = offset % BLOCK;
        let is_inside = (at as usize + data.len()) <= BLOCK_BYTES && data.len() < BLOCK_BYTES;
        let head_bytes = match at {
            _ if is_inside => data.len(),
            0 => 0,
            _ => (BLOCK - at) as usize,
        };
        let (head, rest) = data.split_at(head_bytes);
        let body_block = offset.div_ceil(BLOCK);
        let body_blocks = rest.len() / BLOCK_BYTES;
        let (body, tail) = rest.split_at(body_blocks * BLOCK_BYTES);
        let body_sums: SmallVec<_> =
            body.chunks_exact(BLOCK_BYTES).map(|block| seal(crc32c(0, block))).collect();
        if let Some(sent) = sums {
            if sent.len() != body_blocks {
                return Err(ChunkError::BadRequest("not one checksum for each whole block"));
            }
            let wrong = body_sums.iter().zip(sent).position(|(sum, sent)| *sum != seal(*sent));
            if let Some(wrong) = wrong {
                return Err(ChunkError::InTransit { chunk, block: body_block + wrong as u32 });
            }
        }
        let head = (!head.is_empty()).then_some(Edge { block: offset / BLOCK, at, data: head });
        let tail_block = body_block + body_blocks as u32;
        let tail = (!tail.is_empty()).then_some(Edge { block: tail_block, at: 0, data: tail });
        Ok(Pieces { head, body_block, body, body_sums, tail })
    }

    /// First block and number of blocks.
    pub(crate) fn span(&self) -> (u32, u32) {
        let first = self.head.map_or(self.body_block, |head| head.block);
        let count =
            usize::from(self.head.is_some()) + self.body_sums.len() + usize::from(self.tail.is_some());
        (first, count as u32)
    }

    /// Merges the edges with what `old` gives for their blocks (`None`: zeros).
    pub(crate) fn merge(
        self,
        mut old: impl FnMut(&Edge<'_>) -> Result<Option<Box<[u8; BLOCK_BYTES]>>, ChunkError>,
    ) -> Result<Image<'d>, ChunkError> {
        let (first_block, count) = self.span();
        let mut sums = SmallVec::with_capacity(count as usize);
        let mut merge = |edge: &Edge<'_>| -> Result<Box<[u8; BLOCK_BYTES]>, ChunkError> {
            let mut block = old(edge)?.unwrap_or_else(|| Box::new([0; BLOCK_BYTES]));
            block[edge.at as usize..edge.at as usize + edge.data.len()].copy_from_slice(edge.data);
            Ok(block)
        };
        let head = self.head.as_ref().map(&mut merge).transpose()?;
        let tail = self.tail.as_ref().map(&mut merge).transpose()?;
        sums.extend(head.as_deref().map(|block| sum_of(block)));
        sums.extend(self.body_sums);
        sums.extend(tail.as_deref().map(|block| sum_of(block)));
        Ok(Image { first_block, sums, head, body: self.body, tail })
    }
}

impl Image<'_> {
    /// Number of blocks.
    pub(crate) fn blocks(&self) -> u32 {
        self.sums.len() as u32
    }

    /// The bytes of the blocks `[from, to)`, counted in the chunk.
    pub(crate) fn parts(&self, from: u32, to: u32) -> Parts<'_> {
        let (mut from, to) = ((from - self.first_block) as usize, (to - self.first_block) as usize);
        let mut parts = Parts::new();
        let head_blocks = usize::from(self.head.is_some());
        let body_end = head_blocks + self.body.len() / BLOCK_BYTES;
        if let Some(head) = &self.head
            && from == 0
            && to > 0
        {
            parts.push(head.as_slice());
            from = 1;
        }
        if from < to.min(body_end) {
            let start = (from - head_blocks) * BLOCK_BYTES;
            parts.push(&self.body[start..(to.min(body_end) - head_blocks) * BLOCK_BYTES]);
        }
        if let Some(tail) = &self.tail
            && from <= body_end
            && to > body_end
        {
            parts.push(tail.as_slice());
        }
        parts
    }
}

/// Runs of blocks that all have data or all have none: (first, end, has data).
pub(crate) fn runs(first: u32, sums: &[u32]) -> impl Iterator<Item = (u32, u32, bool)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let kind = has_data(*sums.get(at)?);
        let start = at;
        at += sums[start..].iter().take_while(|sum| has_data(**sum) == kind).count();
        Some((first + start as u32, first + at as u32, kind))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_types::InodeId;

    const ID: ChunkId = ChunkId { inode: InodeId(1), generation: 0, index: 0 };

    #[test]
    fn every_cut_puts_every_byte_where_it_belongs() {
        let data: Vec<u8> = (0..3 * BLOCK_BYTES).map(|at| (at % 251) as u8).collect();
        for offset in [0, 1, 4095, 4096, 5000] {
            for len in [1, 100, 4095, 4096, 4097, 8192, 9000, 12288] {
                let pieces = Pieces::cut(ID, offset, &data[..len], None).unwrap();
                let (first, count) = pieces.span();
                let image = pieces.merge(|_| Ok(None)).unwrap();
                assert_eq!((image.first_block, image.blocks()), (first, count), "{offset} {len}");
                let mut expected = vec![0; count as usize * BLOCK_BYTES];
                let within = (offset - first * BLOCK) as usize;
                expected[within..within + len].copy_from_slice(&data[..len]);
                assert_eq!(image.parts(first, first + count).concat(), expected, "{offset} {len}");
                for block in 0..count {
                    let range = block as usize * BLOCK_BYTES..(block as usize + 1) * BLOCK_BYTES;
                    assert_eq!(
                        image.parts(first + block, first + block + 1).concat(),
                        expected[range.clone()]
                    );
                    assert_eq!(image.sums[block as usize], sum_of(&expected[range]));
                }
            }
        }
    }

    #[test]
    fn a_checksum_that_does_not_match_names_the_block() {
        let data = vec![1; 3 * BLOCK_BYTES];
        let good = crc32c(0, &data[..BLOCK_BYTES]);
        assert!(Pieces::cut(ID, 100, &data, Some(&[good, good])).is_ok());
        let wrong = Pieces::cut(ID, 100, &data, Some(&[good, good ^ 1])).unwrap_err();
        assert!(matches!(wrong, ChunkError::InTransit { block: 2, .. }), "{wrong}");
        assert!(matches!(Pieces::cut(ID, 100, &data, Some(&[good])), Err(ChunkError::BadRequest(_))));
    }

    #[test]
    fn runs_alternate_between_data_and_none() {
        let all: Vec<_> = runs(5, &[0, crate::checksum::SUM_RESERVED, 9, 9, 0]).collect();
        assert_eq!(all, vec![(5, 7, false), (7, 9, true), (9, 10, false)]);
    }
}
