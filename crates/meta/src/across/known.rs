//! What one call knows of other servers' shards, and what it still has to ask.

use super::{MetaService, ShardSet};
use ashlar_kv::Key;
use ashlar_namespace::{Elsewhere, Intent, NsError, Placement, key};
use ashlar_types::{ChainId, InodeId, LayoutPolicy, ShardId};
use bytes::Bytes;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// Pairs of keys and values, as stored.
pub(crate) type Pairs = Vec<(Bytes, Bytes)>;

/// A question to the server of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    Value(Key, Intent),
    Pairs(Key),
    NewId(ShardId),
}

/// See the module.
#[derive(Default)]
pub(crate) struct Known {
    here: Arc<ShardSet>,
    // LIMIT: what one call reads: a few records, for a directory that is moved those of its ancestors.
    pub values: FxHashMap<Key, Option<Bytes>>,
    pub pairs: FxHashMap<Key, Pairs>,
    pub open: FxHashSet<InodeId>,
    pub ids: FxHashMap<ShardId, InodeId>,
    missing: RefCell<Vec<Question>>,
}

impl Known {
    /// Nothing, but which shards are here.
    pub(crate) fn new(here: Arc<ShardSet>) -> Known {
        Known { here, ..Known::default() }
    }

    /// What has to be asked.
    pub(crate) fn take_missing(&mut self) -> Vec<Question> {
        std::mem::take(&mut *self.missing.borrow_mut())
    }

    /// Forgets everything but ids, which are good for any try: it may not be so any more. Ids of a shard whose server does not answer, too: another one waits for it without
    /// holding anything.
    pub(crate) fn forget(&mut self, is_silent: impl Fn(ShardId) -> bool) {
        self.ids.retain(|shard, _| !is_silent(*shard));
        let ids = std::mem::take(&mut self.ids);
        *self = Known { ids, ..Known::new(self.here.clone()) };
    }

    fn note(&self, question: Question) -> NsError {
        self.missing.borrow_mut().push(question);
        NsError::Elsewhere
    }
}

impl Elsewhere for Known {
    fn has(&self, shard: ShardId) -> bool {
        !self.here.has(shard)
    }

    fn value(&self, key: &[u8], intent: Intent) -> Result<Option<Bytes>, NsError> {
        let key = Key::from_slice(key);
        match self.values.get(&key) {
            Some(value) => Ok(value.clone()),
            None => Err(self.note(Question::Value(key, intent))),
        }
    }

    fn pairs(&self, prefix: &[u8]) -> Result<Pairs, NsError> {
        let prefix = Key::from_slice(prefix);
        match self.pairs.get(&prefix) {
            Some(pairs) => Ok(pairs.clone()),
            None => Err(self.note(Question::Pairs(prefix))),
        }
    }

    fn is_open(&self, inode: InodeId) -> bool {
        self.open.contains(&inode)
    }

    fn new_inode_id(&self, shard: ShardId) -> Result<InodeId, NsError> {
        self.ids.get(&shard).copied().ok_or_else(|| self.note(Question::NewId(shard)))
    }
}

/// Placement that stays the same however often a call is decided.
pub(crate) struct PlacementOnce<'a> {
    service: &'a MetaService,
    shard: Cell<Option<ShardId>>,
    slices: RefCell<Option<Vec<ShardId>>>,
    at_home: Cell<bool>,
}

impl<'a> PlacementOnce<'a> {
    pub(crate) fn new(service: &'a MetaService) -> PlacementOnce<'a> {
        PlacementOnce {
            service,
            shard: Cell::new(None),
            slices: RefCell::new(None),
            at_home: Cell::new(false),
        }
    }

    /// Whether a directory, or a slice of it, was to be made at a server that does not answer.
    pub(crate) fn is_silent(&self) -> bool {
        let slices = self.slices.borrow();
        let mut chosen = self.shard.get().into_iter().chain(slices.iter().flatten().copied());
        !self.at_home.get() && chosen.any(|shard| self.service.is_silent(shard))
    }

    /// From now on directories are made where their parent is, and without slices.
    pub(crate) fn prefer_home(&self) {
        self.at_home.set(true);
    }
}

impl Placement for PlacementOnce<'_> {
    fn shard_for_directory(&self, parent: InodeId) -> ShardId {
        if self.at_home.get() {
            return parent.home();
        }
        let shard = self.shard.get().unwrap_or_else(|| self.service.shard_for_directory(parent));
        self.shard.set(Some(shard));
        shard
    }

    fn shards_for_slices(&self, but: ShardId, count: u16) -> Vec<ShardId> {
        if self.at_home.get() {
            return Vec::new();
        }
        self.slices.borrow_mut().get_or_insert_with(|| self.service.shards_for_slices(but, count)).clone()
    }

    fn chains_for_file(&self, policy: &LayoutPolicy) -> SmallVec<[ChainId; 4]> {
        self.service.chains_for_file(policy)
    }

    fn first_generation(&self) -> u32 {
        self.service.first_generation()
    }
}

/// The inode whose record is under `key`, if it is one of table `I`.
pub(super) fn inode_record(key: &[u8]) -> Option<InodeId> {
    key::inode_of(key).filter(|_| key.get(2) == Some(&b'I'))
}

/// The directory of which an entry is under `key`, if it is one of table `D`.
pub(super) fn directory_of(key: &[u8]) -> Option<InodeId> {
    key::inode_of(key).filter(|_| key.get(2) == Some(&b'D'))
}
