//! Suspects: generations of files whose chunks here may be durable although what metadata knows of them is not, or the other way round.
//!
//! The two are made durable on their own. After a power cut a target may have chunks that the metadata log has forgotten, and
//! the generation would be given out again with old bytes in it. So a target remembers durably what changed length or space, until
//! metadata says that everything it knew at the time is durable (`confirm`):
//!
//! | change | where it is remembered |
//! |---|---|
//! | not synced yet | fresh slots (table `n`) and dirty regions (table `d`); an open turns them into suspects |
//! | synced, not confirmed | table `s`, written by the sync round in the commit that forgets the fresh slots |
//! | confirmed | nowhere |

use ashlar_types::{ChunkId, InodeId};
use parking_lot::Mutex;
use rustc_hash::FxHashSet;

/// A file's data under one layout.
pub(crate) type FileGeneration = (InodeId, u32);

const SHARDS: usize = 16;

/// What changed length or space since the last sync round began.
pub(crate) struct Touched {
    // LIMIT: a round empties it, every few seconds, and before more slots are fresh or regions dirty than the target allows. Growing a chunk
    // takes one or the other.
    shards: Vec<Mutex<FxHashSet<FileGeneration>>>,
}

impl Touched {
    pub(crate) fn new() -> Touched {
        Touched { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, inode: InodeId) -> &Mutex<FxHashSet<FileGeneration>> {
        &self.shards[inode.0 as usize % SHARDS]
    }

    /// Notes a change of a chunk. ORDER: before the change ends, so that the round that makes it durable finds the note.
    pub(crate) fn note(&self, chunk: ChunkId) {
        self.shard(chunk.inode).lock().insert((chunk.inode, chunk.generation));
    }

    /// Takes all.
    pub(crate) fn take(&self) -> Vec<FileGeneration> {
        self.shards.iter().flat_map(|shard| std::mem::take(&mut *shard.lock())).collect()
    }

    /// Puts back what a round that failed had taken.
    pub(crate) fn put_back(&self, taken: Vec<FileGeneration>) {
        for file in taken {
            self.shard(file.0).lock().insert(file);
        }
    }
}
