//! The target behind one in a chain, as that one knows it at one epoch.

use ashlar_types::ChunkId;
use std::collections::BTreeSet;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Link<R> {
    pub id: R,
    /// A change is answered only once it has made it: it is in sync, or may be by now.
    pub is_required: bool,
    /// What it may lack from before this epoch is in `unsettled`.
    pub is_compared: bool,
    /// How often calls were given up. One of an earlier turn, which may arrive at any time, is not taken once one of a later turn has come.
    pub turn: u64,
    /// Chunks that it may not have as they are here.
    // LIMIT: the chunks of a chain, of one that is caught up with from nothing; else those with changes under way.
    pub unsettled: BTreeSet<ChunkId>,
    /// Those of them that a change was made of here which may not be there, and which nobody was told of.
    pub unheard: BTreeSet<ChunkId>,
}

/// What becomes of a change here.
pub(super) enum Way {
    /// It goes to the target behind.
    On,
    /// It stays here: the chunk is sent whole later.
    Stays,
    /// What it may lack is not known yet.
    NotCompared,
    /// The chunk must be sent whole before.
    Unsettled,
}

impl<R> Link<R> {
    /// What a change of `chunk`, which begins now, is to do.
    pub fn way_of(&mut self, chunk: ChunkId) -> Way {
        match (self.is_compared, self.is_required) {
            (false, true) => Way::NotCompared,
            (false, false) => {
                self.unsettled.insert(chunk);
                Way::Stays
            }
            (true, true) if self.unsettled.contains(&chunk) => Way::Unsettled,
            (true, false) if self.unsettled.contains(&chunk) => Way::Stays,
            (true, _) => Way::On,
        }
    }

    /// A call of `turn` was given up. Others of that turn which are under way may not be taken because of that, and count as given up with it.
    pub fn give_up(&mut self, turn: u64) {
        if turn == self.turn {
            self.turn += 1;
        }
    }

    /// Whether what is here of `chunk` may be taken back if somebody else becomes head.
    pub fn holds_back(&self, chunk: ChunkId) -> bool {
        self.is_required && self.unsettled.contains(&chunk)
    }
}
