//! Which chunks a call means that names a file and not a chunk: those of some chains.

use crate::ChainId;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// See the module. A chunk whose chain its target does not know is meant by all of them: it never left the target it was made on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OfChains {
    /// Those of every chain that the target has.
    All,
    /// Those of these chains, each of which the target is to have.
    // LIMIT: as chains of a target.
    Only(SmallVec<[ChainId; 4]>),
    /// Those of every chain that the target has, but for these.
    // LIMIT: as chains in a layout.
    Except(SmallVec<[ChainId; 4]>),
}

impl OfChains {
    /// Whether a chunk of `chain` is meant.
    pub fn has(&self, chain: Option<ChainId>) -> bool {
        match (self, chain) {
            (OfChains::All, _) | (_, None) => true,
            (OfChains::Only(chains), Some(chain)) => chains.contains(&chain),
            (OfChains::Except(chains), Some(chain)) => !chains.contains(&chain),
        }
    }
}
