//! Filesets: parts of the tree that are told apart by a number which every inode has (`design.md` D10).
//!
//! What is made in a directory is of its fileset, and no name is moved or linked from one into another, so the number says for good in which part an inode
//! is. A machine that may see one directory alone is held to it by that (`docs/adr/0020-a-subtree-is-a-fileset.md`).

use crate::{ClusterMap, FilesetId, InodeId};
use serde::{Deserialize, Serialize};

/// A fileset that was made of a directory. All that is in none of these is of fileset 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fileset {
    /// Its id, never reused.
    pub id: FilesetId,
    /// The one that the directory was in: that of the directory above it.
    pub parent: FilesetId,
    /// The directory.
    pub root: InodeId,
}

impl Fileset {
    // LIMIT: of the map.
    /// Most filesets besides fileset 0.
    pub const COUNT_MAX: usize = 4096;
}

/// What a caller may reach: one fileset, and those inside of it.
#[derive(Clone, Copy, Debug)]
pub struct Reach<'a> {
    map: &'a ClusterMap,
    outermost: FilesetId,
}

impl<'a> Reach<'a> {
    /// That of `outermost` by `map`.
    pub fn new(map: &'a ClusterMap, outermost: FilesetId) -> Reach<'a> {
        Reach { map, outermost }
    }

    /// Whether inodes of `fileset` are in it.
    pub fn has(&self, fileset: FilesetId) -> bool {
        self.map.is_inside(fileset, self.outermost)
    }
}

impl ClusterMap {
    /// The fileset `id`, if it is one that was made of a directory.
    pub fn fileset(&self, id: FilesetId) -> Option<&Fileset> {
        self.filesets.get((id.0 as usize).checked_sub(1)?).filter(|known| known.id == id)
    }

    /// Whether `fileset` is `outer`, or inside of it. One that the map does not know is in itself alone.
    pub fn is_inside(&self, fileset: FilesetId, outer: FilesetId) -> bool {
        let mut at = fileset;
        // LIMIT: as filesets; a map in which they go round is refused.
        for _ in 0..=self.filesets.len() {
            if at == outer {
                return true;
            }
            let Some(known) = self.fileset(at) else { return false };
            at = known.parent;
        }
        false
    }

    /// Whether filesets are in order, each in one that is there, and none in itself.
    pub(crate) fn are_filesets_sound(&self) -> bool {
        let is_sound = |(at, known): (u32, &Fileset)| {
            known.id.0 == at && known.root != InodeId::ROOT && self.is_inside(known.id, FilesetId::default())
        };
        self.filesets.len() <= Fileset::COUNT_MAX && (1..).zip(&self.filesets).all(is_sound)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::testing::map_of_shards;

    fn map(parents: &[u32]) -> ClusterMap {
        let fileset = |(id, parent): (u32, &u32)| Fileset {
            id: FilesetId(id),
            parent: FilesetId(*parent),
            root: InodeId(100 + u64::from(id)),
        };
        ClusterMap { filesets: (1..).zip(parents).map(fileset).collect(), ..map_of_shards(&[1], &[1]) }
    }

    #[test]
    fn a_fileset_reaches_itself_and_what_is_inside() {
        // 1 and 4 are in 0, 2 in 1, 3 in 2.
        let map = map(&[0, 1, 2, 0]);
        map.check().unwrap();
        let reach = |outer| -> Vec<u32> {
            let reach = Reach::new(&map, FilesetId(outer));
            (0..6).filter(|id| reach.has(FilesetId(*id))).collect()
        };
        assert_eq!(reach(1), [1, 2, 3]);
        assert_eq!(reach(2), [2, 3]);
        assert_eq!(reach(4), [4]);
        assert_eq!(reach(0), [0, 1, 2, 3, 4], "and nothing that is not known");
    }

    #[test]
    fn filesets_that_go_round_or_are_out_of_order_are_refused() {
        for parents in [&[1][..], &[2, 1], &[7], &[0, 3, 2]] {
            assert!(map(parents).check().is_err(), "{parents:?}");
        }
        let mut swapped = map(&[0, 0]);
        swapped.filesets.swap(0, 1);
        assert!(swapped.check().is_err());
        let mut of_root = map(&[0]);
        of_root.filesets[0].root = InodeId::ROOT;
        assert!(of_root.check().is_err());
    }
}
