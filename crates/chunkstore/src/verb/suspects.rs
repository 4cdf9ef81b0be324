//! Suspects: which files' chunks have to be compared with metadata after an unclean stop, and that it has been done.

use crate::error::ChunkError;
use crate::index::Verb;
use crate::key;
use crate::store::ChunkStore;
use crate::suspects::FileGeneration;
use ashlar_kv::{Key, Urgency};
use ashlar_types::ShardSet;

/// Records removed by one commit.
const CONFIRM_BATCH: usize = 512;

/// A page of suspects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SuspectPage {
    /// Files with their generation, ascending.
    pub found: Vec<FileGeneration>,
    /// What [`ChunkStore::confirm`] is to be told about all that was a suspect before the call.
    pub mark: u64,
}

impl ChunkStore {
    /// Those of `shards` among up to `limit` (512 at most) suspects behind `after`, or among the next ones: an empty page is the end.
    ///
    /// # Errors
    /// Those of the index.
    pub fn suspects(
        &self,
        after: Option<FileGeneration>,
        limit: usize,
        shards: &ShardSet,
    ) -> Result<SuspectPage, ChunkError> {
        self.check()?;
        // ORDER: the mark first: what a round adds from here on is not covered by it.
        let mark = self.rounds.completed();
        let (mut from, to) = key::table_range(key::SUSPECTS);
        if let Some(after) = after {
            from = key::suspect(after);
            from.push(0);
        }
        loop {
            let pairs = self.index.page(&from, &to, limit)?;
            let all: Vec<FileGeneration> =
                pairs.iter().map(|(key, _)| key::decode_suspect(key)).collect::<Result<_, _>>()?;
            let Some(&last) = all.last() else { return Ok(SuspectPage { found: Vec::new(), mark }) };
            let found: Vec<FileGeneration> =
                all.into_iter().filter(|(inode, _)| shards.has_home_of(*inode)).collect();
            if !found.is_empty() {
                return Ok(SuspectPage { found, mark });
            }
            from = key::suspect(last);
            from.push(0);
        }
    }

    /// Forgets suspects of `shards` up to `mark`: metadata knows them, durably, or has had them deleted and synced.
    ///
    /// # Errors
    /// Those of the index; what was not forgotten is a suspect still.
    pub fn confirm(&self, mark: u64, shards: &ShardSet) -> Result<(), ChunkError> {
        self.check()?;
        let (mut from, to) = key::table_range(key::SUSPECTS);
        loop {
            // A round that renews a record must not come between the look at it and its removal.
            let _gate = self.suspects_gate.lock();
            let pairs = self.index.page(&from, &to, CONFIRM_BATCH)?;
            let Some((last, _)) = pairs.last() else { return Ok(()) };
            from = last.clone();
            from.push(0);
            let mut done: Vec<Key> = Vec::with_capacity(pairs.len());
            for (key, value) in &pairs {
                let (inode, _) = key::decode_suspect(key)?;
                if key::decode_round(value)? <= mark && shards.has_home_of(inode) {
                    done.push(key.clone());
                }
            }
            // ORDER: not flushed. A suspect that comes back only costs the next start a look.
            self.index.commit(Verb::Confirm, Urgency::FreesSpace, |changes| {
                changes.extend(done.into_iter().map(|key| (key, None)));
            })?;
        }
    }
}
