//! A transaction: reads through a snapshot, changes kept aside, accounting done at the end.
//!
//! Inode records are decoded once and kept decoded; a verb changes them in place through [`Txn::inode_mut`] and they are
//! encoded once, in [`Txn::finish`]. What a verb changed and what its reply tells about ([`Txn::reveal`]) is kept for the
//! lease check of the service.

use crate::elsewhere::{Charge, Elsewhere, Intent, ShardChange};
use crate::error::NsError;
use crate::key::{self, NameHash, shard_of};
use crate::record::{self, Account, Bucket, Inode, Kind};
use ashlar_kv::{Key, Snapshot, WriteSet};
use ashlar_types::{Errno, InodeId, Name, Reach, SessionId, ShardId, codec};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Changes that most transactions have room for at once: that of a create has five.
const WRITES_EXPECTED: usize = 8;

/// What a finished transaction changes and touches.
#[derive(Debug, Default)]
pub struct TxnOutcome {
    /// The changes, per shard in ascending order; empty when nothing changed.
    pub writes: Vec<(ShardId, WriteSet)>,
    /// Inodes whose record or content changed.
    pub changed: SmallVec<[InodeId; 4]>,
    /// Inodes of which nothing changed but the blocks: what others know of their attributes is old, what they have of the content is not.
    pub recounted: SmallVec<[InodeId; 1]>,
    /// Inodes of which nothing is noted but an access time that others may be told late: nobody's lease is in its way.
    pub lazy: SmallVec<[InodeId; 1]>,
    /// Files that this concerns beside other writers: their SHARE is not in its way, and what they have not reported is not asked for.
    pub beside: SmallVec<[InodeId; 1]>,
    /// Inodes whose record was removed; filled in by whoever commits.
    pub removed: SmallVec<[InodeId; 1]>,
    /// Inodes without a name that are to live on for a session which has them open; filled in by whoever commits.
    pub orphaned: SmallVec<[(InodeId, SessionId); 1]>,
    /// Inodes that had no name and have got one; filled in by whoever commits.
    pub named: SmallVec<[InodeId; 1]>,
    /// Directory entries that were added, removed or replaced.
    pub entries: SmallVec<[(InodeId, SmallVec<[u8; 24]>); 2]>,
    /// Inodes whose attributes are in the reply.
    pub revealed: Revealed,
    /// Directories that are being split: as long as they are, nobody gets a lease on names in them.
    pub in_split: SmallVec<[InodeId; 1]>,
    /// Directories of this server that have more entries after it than before, and how many.
    pub grown: SmallVec<[(InodeId, u64); 1]>,
    /// Whether the transaction frees space or takes none worth counting (it is then taken even when space runs out).
    pub frees_space: bool,
    /// Whether a directory or file that changed wants its operations durable before they are answered.
    pub is_sync: bool,
    /// Inodes whose last name went and that nothing holds open, or whose data moved: garbage records were written.
    pub has_garbage: bool,
    /// What is to be done in shards of other servers. If there is anything, `writes` are without accounts, and `charges` and `reads` are told.
    pub parts: Vec<(ShardId, ShardChange)>,
    /// What accounts of this server gain and lose, if there are parts.
    pub charges: Vec<Charge>,
    /// Keys of this server that were read, in a transaction that knows of other servers.
    pub reads: Vec<Key>,
}

impl TxnOutcome {
    /// Whether nothing is to be written, here or elsewhere: what was read of others needs no vote then.
    pub fn changes_nothing(&self) -> bool {
        let changes = |part: &ShardChange| {
            !part.writes.is_empty() || !part.charges.is_empty() || !part.drops.is_empty()
        };
        self.writes.is_empty() && self.charges.is_empty() && !self.parts.iter().any(|(_, part)| changes(part))
    }
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

    /// What the inode as it was is charged to which account.
    fn account_before(&self) -> Option<AccountLine> {
        self.original.as_ref().map(|inode| account_line(self.id, inode))
    }

    /// What the inode as it is now is charged to which account.
    fn account_after(&self) -> Option<AccountLine> {
        self.current.as_ref().map(|inode| account_line(self.id, inode))
    }

    fn differs_in_blocks_only(&self) -> bool {
        let (Some(original), Some(current)) = (&self.original, &self.current) else { return false };
        Inode { blocks: current.blocks, ..original.clone() } == *current
    }

    fn differs_in_atime_only(&self) -> bool {
        let (Some(original), Some(current)) = (&self.original, &self.current) else { return false };
        Inode { atime: current.atime, ..original.clone() } == *current
    }
}

/// An account's key, and what one inode adds to it.
type AccountLine = (Key, Account);

fn account_line(id: InodeId, inode: &Inode) -> AccountLine {
    let account_key =
        key::account(id.home(), inode.fileset, inode.uid, inode.gid, record::month(inode.mtime));
    let bytes = if inode.is_directory() { 0 } else { inode.size };
    (account_key, Account { inodes: 1, bytes, blocks: inode.blocks })
}

/// See the module.
pub struct Txn<'a> {
    base: &'a dyn Snapshot,
    /// By ascending key. Few, so that a list is cheaper than a tree; and as a whole it is what is committed when all are of one shard.
    // LIMIT: a verb that writes one record per record it finds bounds how many it looks at.
    writes: Vec<(Key, Option<Bytes>)>,
    inodes: SmallVec<[Slot; 4]>,
    outcome: TxnOutcome,
    elsewhere: Option<&'a dyn Elsewhere>,
    /// Keys read here, and keys of other servers with what was read: only where there are other servers.
    // LIMIT: as `writes`.
    reads: RefCell<Vec<Key>>,
    told: RefCell<Vec<(Key, Option<Bytes>)>>,
    drops: Vec<InodeId>,
    /// Outside of this there are no inodes for the caller.
    reach: Option<Reach<'a>>,
}

/// Whether another server has `key`.
fn is_elsewhere(elsewhere: &dyn Elsewhere, key: &[u8]) -> bool {
    elsewhere.has(shard_of(key)) && !key::is_of_server(key)
}

impl<'a> Txn<'a> {
    /// A transaction that reads from `base`, which has all shards.
    pub fn new(base: &'a dyn Snapshot) -> Txn<'a> {
        Txn {
            base,
            writes: Vec::new(),
            inodes: SmallVec::new(),
            outcome: TxnOutcome::default(),
            elsewhere: None,
            reads: RefCell::default(),
            told: RefCell::default(),
            drops: Vec::new(),
            reach: None,
        }
    }

    /// The same for a caller for whom there are no inodes outside of `reach`.
    #[must_use]
    pub fn within(self, reach: Option<Reach<'a>>) -> Txn<'a> {
        Txn { reach, ..self }
    }

    fn is_in_reach(&self, inode: &Inode) -> bool {
        self.reach.is_none_or(|reach| reach.has(inode.fileset))
    }

    /// A transaction that reads from `base` what is here, and has been told of other shards what `elsewhere` says.
    pub fn spanning(base: &'a dyn Snapshot, elsewhere: &'a dyn Elsewhere) -> Txn<'a> {
        Txn { elsewhere: Some(elsewhere), ..Txn::new(base) }
    }

    /// Whether there are other servers.
    pub fn has_others(&self) -> bool {
        self.elsewhere.is_some()
    }

    /// Who knows of `key`, if another server has it.
    fn other(&self, key: &[u8]) -> Option<&'a dyn Elsewhere> {
        self.elsewhere.filter(|elsewhere| is_elsewhere(*elsewhere, key))
    }

    /// Whether another server has `inode`.
    pub fn is_elsewhere(&self, inode: InodeId) -> bool {
        self.elsewhere.is_some_and(|elsewhere| elsewhere.has(inode.home()))
    }

    /// The value of `key` in the store, here or elsewhere.
    fn stored(&self, key: &[u8], intent: Intent) -> Result<Option<Bytes>, NsError> {
        let Some(other) = self.other(key) else {
            if self.elsewhere.is_some() {
                self.reads.borrow_mut().push(Key::from_slice(key));
            }
            return Ok(self.base.get(key)?);
        };
        let value = other.value(key, intent)?;
        self.told.borrow_mut().push((Key::from_slice(key), value.clone()));
        Ok(value)
    }

    /// The value of `key`, this transaction's own changes included. Not for inode records.
    ///
    /// # Errors
    /// [`NsError::Kv`] when the store cannot answer.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, NsError> {
        match self.place_of(key) {
            Ok(at) => Ok(self.writes[at].1.clone()),
            Err(_) => self.stored(key, Intent::Change),
        }
    }

    /// Where `key` is among the changes, or would be.
    fn place_of(&self, key: &[u8]) -> Result<usize, usize> {
        self.writes.binary_search_by(|(written, _)| written.as_slice().cmp(key))
    }

    fn write(&mut self, key: Key, value: Option<Bytes>) {
        match self.place_of(&key) {
            Ok(at) => self.writes[at].1 = value,
            Err(at) => {
                if self.writes.is_empty() {
                    self.writes.reserve(WRITES_EXPECTED);
                }
                self.writes.insert(at, (key, value));
            }
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
        self.write(key, Some(value));
    }

    /// Sets `key` to the encoding of `record`.
    pub fn put_record<T: serde::Serialize>(&mut self, key: Key, record: &T) {
        self.put(key, codec::encode_exact(record));
    }

    /// Removes `key`.
    pub fn delete(&mut self, key: Key) {
        self.write(key, None);
    }

    /// Visits the pairs in `[from, to)` in order, this transaction's own changes included, until `visit` breaks.
    ///
    /// # Errors
    /// [`NsError::Kv`] when the store cannot answer.
    pub fn scan(&self, from: &[u8], to: &[u8], visit: &mut ashlar_kv::Visit<'_>) -> Result<(), NsError> {
        if let Some(other) = self.other(from) {
            // Of what others have only all records of an inode are asked for, before any of them is changed.
            for (key, value) in other.pairs(from)? {
                if visit(&key, &value).is_break() {
                    break;
                }
            }
            return Ok(());
        }
        let place = |key| self.place_of(key).unwrap_or_else(|at| at);
        let mut own = self.writes.get(place(from)..place(to)).unwrap_or_default().iter();
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
                let record: Option<Inode> = match self.stored(&key::inode(id), Intent::Change)? {
                    Some(bytes) => Some(codec::decode(&bytes, "inode record")?),
                    None => None,
                };
                let record = record.filter(|found| self.is_in_reach(found));
                if record.as_ref().is_some_and(|found| matches!(found.kind, Kind::DirectoryInSplit { .. })) {
                    self.outcome.in_split.push(id);
                }
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
        match self.stored(&key::inode(id), Intent::Look)? {
            Some(bytes) => {
                let found: Inode = codec::decode(&bytes, "inode record")?;
                Ok(Some(found).filter(|found| self.is_in_reach(found)))
            }
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

    /// The record of `id`, there or not, to be changed or made.
    ///
    /// # Errors
    /// [`NsError::Kv`] when the store cannot answer.
    pub(crate) fn inode_slot(&mut self, id: InodeId) -> Result<&mut Option<Inode>, NsError> {
        let slot = self.slot(id)?;
        slot.make_dirty();
        Ok(&mut slot.current)
    }

    /// Adds a new inode.
    ///
    /// # Errors
    /// [`NsError::Kv`] when the store cannot answer.
    pub fn insert_inode(&mut self, id: InodeId, inode: Inode) -> Result<(), NsError> {
        // INVARIANT: ids are never reused, so there is no record under a fresh one; not reading it saves a lookup. A start has seen to it
        // that the counter is above all ids in use.
        if cfg!(debug_assertions) && !self.is_elsewhere(id) && self.base.get(&key::inode(id))?.is_some() {
            return Err(ashlar_kv::KvError::Corrupt {
                what: format!("the inode counter gives out {id}, which is in use"),
            }
            .into());
        }
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
        if let Some(other) = self.elsewhere
            && (other.has(shard) || self.spans())
        {
            // A counter is not locked for as long as servers talk about a transaction.
            return other.new_inode_id(shard);
        }
        let counter_key = key::counter(shard);
        let last: u64 = self.get_record(&counter_key, "inode counter")?.unwrap_or(1);
        let next = last.checked_add(1).ok_or(Errno::ENOSPC)?;
        let id = InodeId::new(shard, next).ok_or(Errno::ENOSPC)?;
        self.put_record(counter_key, &next);
        Ok(id)
    }

    /// Fresh inode ids, one in each of several shards, which are different ones.
    ///
    /// # Errors
    /// As [`Txn::allocate_inode_id`]; [`NsError::Elsewhere`].
    pub fn allocate_inode_ids(&mut self, shards: &[ShardId]) -> Result<Vec<InodeId>, NsError> {
        let other = self.elsewhere.filter(|other| shards.iter().any(|shard| other.has(*shard)));
        match other {
            Some(other) => {
                // All are asked for before the first that is not known ends it.
                let ids: Vec<_> = shards.iter().map(|shard| other.new_inode_id(*shard)).collect();
                ids.into_iter().collect()
            }
            None => shards.iter().map(|shard| self.allocate_inode_id(*shard)).collect(),
        }
    }

    /// Whether anything was read of other servers, or is to be changed there.
    fn spans(&self) -> bool {
        !self.told.borrow().is_empty()
            || !self.drops.is_empty()
            || self.writes.iter().any(|(key, _)| self.other(key).is_some())
            || self.inodes.iter().any(|slot| slot.is_dirty && self.is_elsewhere(slot.id))
    }

    /// Has the server of `inode` drop one name's link of it; the links that are left. `None` where it is this server's.
    ///
    /// # Errors
    /// `ESTALE` when there is no such inode; [`NsError::Elsewhere`].
    pub(crate) fn drop_elsewhere(&mut self, inode: InodeId) -> Result<Option<u32>, NsError> {
        if !self.is_elsewhere(inode) {
            return Ok(None);
        }
        let record = self.inode(inode)?;
        let left = if record.is_directory() { 0 } else { record.nlink.saturating_sub(1) };
        self.drops.push(inode);
        Ok(Some(left))
    }

    /// Whether `inode` is gone after this transaction; of one that another server has, as far as is known here.
    ///
    /// # Errors
    /// [`NsError::Kv`] when the store cannot answer.
    pub fn is_gone(&mut self, inode: InodeId) -> Result<bool, NsError> {
        if self.drops.contains(&inode) {
            let record = self.inode(inode)?;
            let has_other_links = !record.is_directory() && record.nlink > 1;
            return Ok(!has_other_links && self.elsewhere.is_none_or(|other| !other.is_open(inode)));
        }
        Ok(self.find_inode(inode)?.is_none())
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

    /// Notes that entries of `directory` are going to be changed, by somebody else.
    pub fn touch_entries(&mut self, directory: InodeId) {
        self.outcome.entries.push((directory, SmallVec::new()));
    }

    /// Notes that nothing of `id` but its blocks is going to change.
    pub fn recount(&mut self, id: InodeId) {
        if !self.outcome.recounted.contains(&id) {
            self.outcome.recounted.push(id);
        }
    }

    /// Notes that an access time of `id` may be told late.
    pub fn note_lazily(&mut self, id: InodeId) {
        self.outcome.lazy.push(id);
    }

    /// Notes that this is what a writer of `id` does beside others, who do not matter to it.
    pub fn mark_beside(&mut self, id: InodeId) {
        self.outcome.beside.push(id);
    }

    /// Whether [`Txn::mark_beside`] was called for `id`.
    pub fn is_beside(&self, id: InodeId) -> bool {
        self.outcome.beside.contains(&id)
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
        let spans = self.elsewhere.is_some() && self.spans();
        // By number: the slots are long, and most transactions change none of them.
        for at in 0..self.inodes.len() {
            let slot = &self.inodes[at];
            if !slot.is_dirty || slot.original == slot.current {
                continue;
            }
            let id = slot.id;
            let (before, after) = (slot.account_before(), slot.account_after());
            let is_sync = wants_sync(slot);
            if let (Some(before), Some(now)) = (&slot.original, &slot.current)
                && now.size > before.size
                && now.splits_when_large()
                // Of another server's directory that one notes it, as it carries the change out.
                && !self.is_elsewhere(id)
            {
                self.outcome.grown.push((id, now.size));
            }
            let value = slot.current.as_ref().map(codec::encode_exact);
            if self.outcome.recounted.contains(&id) {
                assert!(slot.differs_in_blocks_only(), "{id:?} was only to be recounted");
            } else if !self.outcome.lazy.contains(&id) || !slot.differs_in_atime_only() {
                self.touch(id);
            }
            self.outcome.is_sync |= is_sync;
            if before != after {
                let charges = before
                    .map(|(key, amount)| Charge { key, amount, is_added: false })
                    .into_iter()
                    .chain(after.map(|(key, amount)| Charge { key, amount, is_added: true }));
                for charge in charges {
                    if spans { self.outcome.charges.push(charge) } else { self.charge(&charge)? }
                }
            }
            self.write(key::inode(id), value);
        }
        let drops = std::mem::take(&mut self.drops);
        let mut outcome = self.outcome;
        outcome.reads = self.reads.into_inner();
        let mut writes = self.writes;
        if let (true, Some(elsewhere)) = (spans, self.elsewhere) {
            split(&mut outcome, &mut writes, elsewhere, self.told.into_inner(), drops);
        }
        outcome.writes = by_shard(writes);
        Ok(outcome)
    }

    /// What a transaction comes to that was refused: what it has read, here and of other servers.
    pub fn into_refused(self) -> TxnOutcome {
        let mut outcome = TxnOutcome { reads: self.reads.into_inner(), ..TxnOutcome::default() };
        if let Some(elsewhere) = self.elsewhere {
            split(&mut outcome, &mut Vec::new(), elsewhere, self.told.into_inner(), Vec::new());
        }
        outcome
    }

    /// Adds to an account, or takes from it.
    ///
    /// # Errors
    /// [`NsError::Kv`] when the store cannot answer.
    pub fn charge(&mut self, charge: &Charge) -> Result<(), NsError> {
        let Charge { key: account_key, amount, is_added } = charge;
        let mut account: Account = self.get_record(account_key, "account")?.unwrap_or_default();
        if *is_added {
            account.inodes = account.inodes.saturating_add(amount.inodes);
            account.bytes = account.bytes.wrapping_add(amount.bytes);
            account.blocks = account.blocks.saturating_add(amount.blocks);
        } else {
            // INVARIANT: what was charged is still there; fsck compares the sums, a clamp keeps a damaged counter usable.
            account.inodes = account.inodes.saturating_sub(amount.inodes);
            // Lengths of sparse files may sum up to more than 2^64: that is exact again once they are gone.
            account.bytes = account.bytes.wrapping_sub(amount.bytes);
            account.blocks = account.blocks.saturating_sub(amount.blocks);
        }
        if account == Account::default() {
            self.delete(account_key.clone());
        } else {
            self.put_record(account_key.clone(), &account);
        }
        Ok(())
    }
}

/// Changes by ascending key, per shard.
fn by_shard(mut writes: Vec<(Key, Option<Bytes>)>) -> Vec<(ShardId, WriteSet)> {
    let shard_of = |(key, _): &(Key, Option<Bytes>)| shard_of(key);
    let mut sets = Vec::new();
    // From the last shard on, so that the first, nearly always the only one, keeps the list.
    while let Some(shard) = writes.last().map(shard_of) {
        let begin = writes.partition_point(|write| shard_of(write) < shard);
        let set = if begin == 0 { std::mem::take(&mut writes) } else { writes.split_off(begin) };
        sets.push((shard, WriteSet(set)));
    }
    sets.reverse();
    sets
}

/// Takes out of an outcome what is to be done elsewhere.
fn split(
    outcome: &mut TxnOutcome,
    writes: &mut Vec<(Key, Option<Bytes>)>,
    elsewhere: &dyn Elsewhere,
    told: Vec<(Key, Option<Bytes>)>,
    drops: Vec<InodeId>,
) {
    let mut parts: BTreeMap<ShardId, ShardChange> = BTreeMap::new();
    for read in told {
        parts.entry(shard_of(&read.0)).or_default().reads.push(read);
    }
    for inode in drops {
        let part = parts.entry(inode.home()).or_default();
        part.drops.push(inode);
        part.changed.push(inode);
    }
    let is_there = |(key, _): &mut (Key, Option<Bytes>)| is_elsewhere(elsewhere, key);
    for write in writes.extract_if(.., is_there) {
        parts.entry(shard_of(&write.0)).or_default().writes.push(write);
    }
    for charge in outcome.charges.extract_if(.., |charge| elsewhere.has(shard_of(&charge.key))) {
        parts.entry(shard_of(&charge.key)).or_default().charges.push(charge);
    }
    for &inode in outcome.changed.iter().filter(|inode| elsewhere.has(inode.home())) {
        parts.entry(inode.home()).or_default().changed.push(inode);
    }
    for (directory, name) in outcome.entries.iter().filter(|(directory, _)| elsewhere.has(directory.home())) {
        parts.entry(directory.home()).or_default().entries.push((*directory, name.to_vec()));
    }
    outcome.parts = parts.into_iter().collect();
}

fn wants_sync(slot: &Slot) -> bool {
    slot.current.as_ref().is_some_and(|inode| inode.kind.is_sync())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_several_shards_are_sorted_by_shard_and_key() {
        let write = |shard: u16, last: u8| {
            let [high, low] = shard.to_be_bytes();
            (Key::from_slice(&[high, low, b'I', last]), None)
        };
        let sorted = vec![write(0, 3), write(1, 1), write(1, 2), write(256, 0)];
        let set = |shard, from: usize, to: usize| (ShardId(shard), WriteSet(sorted[from..to].to_vec()));
        assert_eq!(by_shard(sorted.clone()), vec![set(0, 0, 1), set(1, 1, 3), set(256, 3, 4)]);
        assert_eq!(by_shard(sorted[1..3].to_vec()), vec![set(1, 1, 3)]);
        assert!(by_shard(Vec::new()).is_empty());
    }
}
