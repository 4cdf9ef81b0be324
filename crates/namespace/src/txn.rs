//! A transaction: reads through a snapshot, changes kept aside, accounting done at the end.
//!
//! Inode records are decoded once and kept decoded; a verb changes them in place through [`Txn::inode_mut`] and they are
//! encoded once, in [`Txn::finish`]. What a verb changed and what its reply tells about ([`Txn::reveal`]) is kept for the
//! lease check of the service.

use crate::error::NsError;
use crate::key::{self, NameHash};
use crate::record::{self, Account, Bucket, Inode};
use ashlar_kv::{Key, Snapshot, WriteSet};
use ashlar_types::{Errno, InodeId, Name, ShardId, codec};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// What a finished transaction changes and touches.
#[derive(Debug, Default)]
pub struct TxnOutcome {
    /// The changes, per shard in ascending order; empty when nothing changed.
    pub writes: Vec<(ShardId, WriteSet)>,
    /// Inodes whose record or content changed.
    pub changed: SmallVec<[InodeId; 4]>,
    /// Inodes of which nothing changed but the blocks: what others know of their attributes is old, what they have of the content is not.
    pub recounted: SmallVec<[InodeId; 1]>,
    /// Inodes whose record was removed; filled in by whoever commits.
    pub removed: SmallVec<[InodeId; 1]>,
    /// Directory entries that were added, removed or replaced.
    pub entries: SmallVec<[(InodeId, SmallVec<[u8; 24]>); 2]>,
    /// Inodes whose attributes are in the reply.
    pub revealed: Revealed,
    /// Whether the transaction frees space or takes none worth counting (it is then taken even when space runs out).
    pub frees_space: bool,
    /// Whether a directory or file that changed wants its operations durable before they are answered.
    pub is_sync: bool,
    /// Inodes whose last name went and that nothing holds open, or whose data moved: garbage records were written.
    pub has_garbage: bool,
}

/// Inodes whose attributes a reply tells.
pub type Revealed = SmallVec<[InodeId; 4]>;

struct Slot {
    id: InodeId,
    /// The record as it was; filled when it is first changed.
    original: Option<Inode>,
    current: Option<Inode>,
    is_dirty: bool,
}

impl Slot {
    fn make_dirty(&mut self) {
        if !self.is_dirty {
            self.original.clone_from(&self.current);
            self.is_dirty = true;
        }
    }

    fn differs_in_blocks_only(&self) -> bool {
        let (Some(original), Some(current)) = (&self.original, &self.current) else { return false };
        Inode { blocks: current.blocks, ..original.clone() } == *current
    }
}

/// See the module.
pub struct Txn<'a> {
    base: &'a dyn Snapshot,
    writes: BTreeMap<Key, Option<Bytes>>,
    inodes: SmallVec<[Slot; 4]>,
    outcome: TxnOutcome,
}

impl<'a> Txn<'a> {
    /// A transaction that reads from `base`.
    pub fn new(base: &'a dyn Snapshot) -> Txn<'a> {
        Txn { base, writes: BTreeMap::new(), inodes: SmallVec::new(), outcome: TxnOutcome::default() }
    }

    /// The value of `key`, this transaction's own changes included. Not for inode records.
    ///
    /// # Errors
    /// [`NsError::Kv`] when the store cannot answer.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, NsError> {
        match self.writes.get(key) {
            Some(value) => Ok(value.clone()),
            None => Ok(self.base.get(key)?),
        }
    }

    /// The decoded value of `key`.
    ///
    /// # Errors
    /// [`NsError::Kv`] when the store cannot answer or the value does not decode.
    pub fn get_record<T: DeserializeOwned>(
        &self,
        key: &[u8],
        what: &'static str,
    ) -> Result<Option<T>, NsError> {
        match self.get(key)? {
            Some(bytes) => Ok(Some(codec::decode(&bytes, what)?)),
            None => Ok(None),
        }
    }

    /// Sets `key`.
    pub fn put(&mut self, key: Key, value: Bytes) {
        self.writes.insert(key, Some(value));
    }

    /// Sets `key` to the encoding of `record`.
    pub fn put_record<T: serde::Serialize>(&mut self, key: Key, record: &T) {
        self.put(key, codec::encode(record).into());
    }

    /// Removes `key`.
    pub fn delete(&mut self, key: Key) {
        self.writes.insert(key, None);
    }

    /// Visits the pairs in `[from, to)` in order, this transaction's own changes included, until `visit` breaks.
    ///
    /// # Errors
    /// [`NsError::Kv`] when the store cannot answer.
    pub fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &Bytes) -> ControlFlow<()>,
    ) -> Result<(), NsError> {
        let mut own =
            self.writes.range::<[u8], _>((std::ops::Bound::Included(from), std::ops::Bound::Excluded(to)));
        let mut next_own = own.next();
        let mut is_over = false;
        self.base.scan(from, to, &mut |key, value| {
            while let Some((own_key, own_value)) = next_own {
                if own_key.as_slice() > key {
                    break;
                }
                next_own = own.next();
                if let Some(own_value) = own_value
                    && visit(own_key, own_value).is_break()
                {
                    is_over = true;
                    return ControlFlow::Break(());
                }
                if own_key.as_slice() == key {
                    return ControlFlow::Continue(());
                }
            }
            let flow = visit(key, value);
            is_over = flow.is_break();
            flow
        })?;
        while let (false, Some((own_key, own_value))) = (is_over, next_own) {
            next_own = own.next();
            if let Some(own_value) = own_value {
                is_over = visit(own_key, own_value).is_break();
            }
        }
        Ok(())
    }

    fn slot(&mut self, id: InodeId) -> Result<&mut Slot, NsError> {
        let position = match self.inodes.iter().position(|slot| slot.id == id) {
            Some(position) => position,
            None => {
                let record: Option<Inode> = match self.base.get(&key::inode(id))? {
                    Some(bytes) => Some(codec::decode(&bytes, "inode record")?),
                    None => None,
                };
                self.inodes.push(Slot { id, original: None, current: record, is_dirty: false });
                self.inodes.len() - 1
            }
        };
        Ok(&mut self.inodes[position])
    }

    /// The record of `id`, if there is one.
    ///
    /// # Errors
    /// [`NsError::Kv`] when the store cannot answer.
    pub fn find_inode(&mut self, id: InodeId) -> Result<Option<&Inode>, NsError> {
        Ok(self.slot(id)?.current.as_ref())
    }

    /// The record of `id`.
    ///
    /// # Errors
    /// `ESTALE` when there is none.
    pub fn inode(&mut self, id: InodeId) -> Result<&Inode, NsError> {
        self.slot(id)?.current.as_ref().ok_or(NsError::Errno(Errno::ESTALE))
    }

    /// A copy of the record of `id` that the transaction does not keep: for calls that pass over many inodes.
    ///
    /// # Errors
    /// [`NsError::Kv`] when the store cannot answer.
    pub fn peek_inode(&self, id: InodeId) -> Result<Option<Inode>, NsError> {
        if let Some(slot) = self.inodes.iter().find(|slot| slot.id == id) {
            return Ok(slot.current.clone());
        }
        match self.base.get(&key::inode(id))? {
            Some(bytes) => Ok(Some(codec::decode(&bytes, "inode record")?)),
            None => Ok(None),
        }
    }

    /// The record of `id`, to be changed.
    ///
    /// # Errors
    /// `ESTALE` when there is none.
    pub fn inode_mut(&mut self, id: InodeId) -> Result<&mut Inode, NsError> {
        let slot = self.slot(id)?;
        slot.make_dirty();
        slot.current.as_mut().ok_or(NsError::Errno(Errno::ESTALE))
    }

    /// Adds a new inode.
    ///
    /// # Errors
    /// [`NsError::Kv`] when the store cannot answer.
    pub fn insert_inode(&mut self, id: InodeId, inode: Inode) -> Result<(), NsError> {
        // INVARIANT: ids are never reused, so there is no record under a fresh one; not reading it saves a lookup.
        debug_assert!(self.base.get(&key::inode(id))?.is_none());
        self.inodes.push(Slot { id, original: None, current: Some(inode), is_dirty: true });
        Ok(())
    }

    /// Removes the record of `id` (not its other tables).
    ///
    /// # Errors
    /// [`NsError::Kv`] when the store cannot answer.
    pub fn remove_inode(&mut self, id: InodeId) -> Result<(), NsError> {
        let slot = self.slot(id)?;
        slot.make_dirty();
        slot.current = None;
        Ok(())
    }

    /// A fresh inode id in `shard`.
    ///
    /// # Errors
    /// `ENOSPC` when the shard's 2^48 ids are used up.
    pub fn allocate_inode_id(&mut self, shard: ShardId) -> Result<InodeId, NsError> {
        let counter_key = key::counter(shard);
        let last: u64 = self.get_record(&counter_key, "inode counter")?.unwrap_or(1);
        let id = InodeId::new(shard, last + 1).ok_or(Errno::ENOSPC)?;
        self.put_record(counter_key, &(last + 1));
        Ok(id)
    }

    /// The entries of `directory` whose names hash to `hash`.
    ///
    /// # Errors
    /// [`NsError::Kv`] when the store cannot answer.
    pub fn bucket(&self, directory: InodeId, hash: NameHash) -> Result<Bucket, NsError> {
        Ok(match self.get(&key::bucket(directory, hash))? {
            Some(bytes) => codec::decode(&bytes, "directory bucket")?,
            None => Bucket::default(),
        })
    }

    /// Stores a bucket, or removes it when it is empty, and notes that `name` in `directory` changed.
    pub fn put_bucket(&mut self, directory: InodeId, hash: NameHash, bucket: &Bucket, name: Name<'_>) {
        let bucket_key = key::bucket(directory, hash);
        if bucket.entries.is_empty() {
            self.delete(bucket_key);
        } else {
            self.put_record(bucket_key, bucket);
        }
        self.outcome.entries.push((directory, SmallVec::from_slice(name.as_bytes())));
    }

    /// Notes that the reply tells the attributes of `id`.
    pub fn reveal(&mut self, id: InodeId) {
        if !self.outcome.revealed.contains(&id) {
            self.outcome.revealed.push(id);
        }
    }

    /// Notes that the content of `id` changed though its record may not have.
    pub fn touch(&mut self, id: InodeId) {
        if !self.outcome.changed.contains(&id) {
            self.outcome.changed.push(id);
        }
    }

    /// Notes that nothing of `id` but its blocks is going to change.
    pub fn recount(&mut self, id: InodeId) {
        if !self.outcome.recounted.contains(&id) {
            self.outcome.recounted.push(id);
        }
    }

    /// Declares that committing frees space, or notes what has happened to space that is taken already, so that it must be possible on
    /// a full file system.
    pub fn mark_frees_space(&mut self) {
        self.outcome.frees_space = true;
    }

    /// Declares that garbage records were written.
    pub fn mark_garbage(&mut self) {
        self.outcome.has_garbage = true;
    }

    /// Adjusts the accounting counters, encodes changed inodes, and sorts the changes by shard.
    ///
    /// # Errors
    /// [`NsError::Kv`] when the store cannot answer.
    pub fn finish(mut self) -> Result<TxnOutcome, NsError> {
        let slots = std::mem::take(&mut self.inodes);
        for slot in &slots {
            if !slot.is_dirty || slot.original == slot.current {
                continue;
            }
            if self.outcome.recounted.contains(&slot.id) {
                assert!(slot.differs_in_blocks_only(), "{:?} was only to be recounted", slot.id);
            } else {
                self.touch(slot.id);
            }
            self.outcome.is_sync |= wants_sync(slot);
            self.account(slot)?;
            let value = slot.current.as_ref().map(|inode| Bytes::from(codec::encode(inode)));
            self.writes.insert(key::inode(slot.id), value);
        }
        let mut outcome = self.outcome;
        for (key, value) in self.writes {
            let shard = ShardId(u16::from_be_bytes([key[0], key[1]]));
            match outcome.writes.last_mut() {
                Some((last, set)) if *last == shard => set.0.push((key, value)),
                _ => outcome.writes.push((shard, WriteSet(vec![(key, value)]))),
            }
        }
        Ok(outcome)
    }

    fn account(&mut self, slot: &Slot) -> Result<(), NsError> {
        let shard = slot.id.home();
        let line = |inode: &Inode| {
            let account_key =
                key::account(shard, inode.fileset, inode.uid, inode.gid, record::month(inode.mtime));
            let bytes = if inode.is_directory() { 0 } else { inode.size };
            (account_key, Account { inodes: 1, bytes, blocks: inode.blocks })
        };
        let before = slot.original.as_ref().map(line);
        let after = slot.current.as_ref().map(line);
        if before == after {
            return Ok(());
        }
        if let Some((account_key, amount)) = before {
            let mut account: Account = self.get_record(&account_key, "account")?.unwrap_or_default();
            // INVARIANT: what was charged is still there; fsck compares the sums, a clamp keeps a damaged counter usable.
            account.inodes = account.inodes.saturating_sub(amount.inodes);
            // Lengths of sparse files may sum up to more than 2^64: that is exact again once they are gone.
            account.bytes = account.bytes.wrapping_sub(amount.bytes);
            account.blocks = account.blocks.saturating_sub(amount.blocks);
            if account == Account::default() {
                self.delete(account_key);
            } else {
                self.put_record(account_key, &account);
            }
        }
        if let Some((account_key, amount)) = after {
            let mut account: Account = self.get_record(&account_key, "account")?.unwrap_or_default();
            account.inodes = account.inodes.saturating_add(amount.inodes);
            account.bytes = account.bytes.wrapping_add(amount.bytes);
            account.blocks = account.blocks.saturating_add(amount.blocks);
            self.put_record(account_key, &account);
        }
        Ok(())
    }
}

fn wants_sync(slot: &Slot) -> bool {
    slot.current.as_ref().is_some_and(|inode| inode.kind.is_sync())
}
