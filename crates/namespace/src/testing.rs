//! A namespace in memory for tests: a store, a clock that moves one second per call, placement in turn, and open files.
//!
//! For tests of this crate and, behind the feature `testing`, of others. Verbs run through [`World::run`] exactly as in the
//! metadata service: on a snapshot, with their outcome applied when they succeed and dropped when they fail.

use crate::bootstrap::{RootSettings, bootstrap};
use crate::check::{CheckArgs, Finding, check};
use crate::context::{OpContext, Placement};
use crate::error::NsError;
use crate::key;
use crate::record::{Account, Inode};
use crate::txn::{Txn, TxnOutcome};
use crate::verb;
use ashlar_kv::{Key, KvError, Snapshot};
use ashlar_types::{
    ChainId, ClusterMap, Credentials, Errno, FilesetId, InodeId, LayoutPolicy, Name, Reach, SessionId,
    ShardId, Timespec, codec,
};
use bytes::Bytes;
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// Keys and values in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryStore {
    pairs: BTreeMap<Key, Bytes>,
}

impl MemoryStore {
    /// Makes the changes of a finished transaction.
    ///
    /// # Panics
    /// When a write set is not in ascending order, or holds a key of another shard: the caller's bug.
    pub fn apply(&mut self, outcome: &TxnOutcome) {
        for (shard, writes) in &outcome.writes {
            assert!(writes.0.windows(2).all(|pair| pair[0].0 < pair[1].0), "write set out of order");
            for (key, value) in &writes.0 {
                assert_eq!(key[..2], shard.0.to_be_bytes(), "key of another shard");
                match value {
                    Some(value) => self.pairs.insert(key.clone(), value.clone()),
                    None => self.pairs.remove(key),
                };
            }
        }
    }

    /// All pairs, in key order.
    pub fn pairs(&self) -> impl Iterator<Item = (&Key, &Bytes)> {
        self.pairs.iter()
    }

    /// All pairs of `table`, in key order, over all shards.
    pub fn table(&self, table: u8) -> impl Iterator<Item = (&Key, &Bytes)> {
        self.pairs.iter().filter(move |(key, _)| key.get(2) == Some(&table))
    }
}

impl Snapshot for MemoryStore {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        Ok(self.pairs.get(key).cloned())
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut ashlar_kv::Visit<'_>) -> Result<(), KvError> {
        let range = (std::ops::Bound::Included(from), std::ops::Bound::Excluded(to));
        for (key, value) in self.pairs.range::<[u8], _>(range) {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }
}

/// Shards in turn for directories; a fixed stripe for files.
#[derive(Debug, Default)]
pub struct PlacementInTurn {
    /// Shards to use, 1 or more; 0 counts as 1.
    pub shard_count: u16,
    /// What `chains_for_file` answers.
    pub chains: SmallVec<[ChainId; 4]>,
    directories: Cell<u16>,
}

impl Placement for PlacementInTurn {
    fn shard_for_directory(&self, _parent: InodeId) -> ShardId {
        let next = self.directories.get().wrapping_add(1) % self.shard_count.max(1);
        self.directories.set(next);
        ShardId(next)
    }

    fn shards_for_slices(&self, but: ShardId, count: u16) -> Vec<ShardId> {
        let others = (0..self.shard_count).map(ShardId).filter(|shard| *shard != but);
        others.take(usize::from(count)).collect()
    }

    fn chains_for_file(&self, _policy: &LayoutPolicy) -> SmallVec<[ChainId; 4]> {
        self.chains.clone()
    }
}

/// See the module.
pub struct World {
    /// What is stored.
    pub store: MemoryStore,
    /// The time the latest call was stamped with; the next one gets a second more.
    pub now: Timespec,
    /// The session that calls.
    pub session: SessionId,
    /// Sessions that have an inode open. Tests keep it as a service would.
    pub open: BTreeMap<InodeId, BTreeSet<SessionId>>,
    /// Placement decisions.
    pub placement: PlacementInTurn,
    /// Outside of this there are no inodes for who calls.
    pub reach: Option<(ClusterMap, FilesetId)>,
    /// What the latest successful call changed.
    pub outcome: TxnOutcome,
}

/// The hash key of the worlds.
pub const HASH_KEY: [u8; 16] = *b"a key for tests.";

/// Two names with the same hash under [`HASH_KEY`]: they share a bucket. (Found by a cycle search over 2^28 hashes.)
pub const COLLIDING_NAMES: [&str; 2] = ["0ed78471f3d28a", "e2ff7ce3fbd0f5"];

/// Checks a name that a test gives.
///
/// # Panics
/// When it is not a valid name.
pub fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("tests give valid names")
}

impl Default for World {
    fn default() -> World {
        World::new()
    }
}

impl World {
    /// Files of a world up to this many bytes live with their inode: several pieces, whatever the default is.
    pub const INLINE_BYTES: u64 = 64 << 10;

    /// The layout settings of a world's root.
    pub fn root_policy() -> LayoutPolicy {
        LayoutPolicy { inline_bytes: Some(Self::INLINE_BYTES as u32), ..LayoutPolicy::root_default() }
    }

    /// A file system with an empty root (mode 0755, owner root) over three shards.
    ///
    /// # Panics
    /// When bootstrapping fails.
    pub fn new() -> World {
        let mut world = World {
            store: MemoryStore::default(),
            now: Timespec::new(1_000_000_000, 7),
            session: SessionId(1),
            open: BTreeMap::new(),
            placement: PlacementInTurn { shard_count: 3, ..PlacementInTurn::default() },
            reach: None,
            outcome: TxnOutcome::default(),
        };
        let settings = RootSettings { policy: Self::root_policy(), ..RootSettings::default() };
        world
            .run(&Credentials::root(), |txn, context| bootstrap(txn, settings, context.now))
            .expect("an empty store can be bootstrapped");
        world
    }

    /// What a check of all that is stored finds.
    ///
    /// # Panics
    /// When the check cannot be done.
    pub fn findings(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        let args = CheckArgs::new(self.placement.shard_count, &HASH_KEY);
        check(&self.store, &args, &mut |finding| {
            found.push(finding);
            ControlFlow::Continue(())
        })
        .expect("a store in memory can be read");
        found
    }

    /// Runs a verb as `creds`, and makes its changes if it succeeds.
    ///
    /// # Errors
    /// What the verb answers.
    ///
    /// # Panics
    /// When the store is damaged (a verb failed without an errno of its own).
    pub fn run<T>(
        &mut self,
        creds: &Credentials,
        verb: impl FnOnce(&mut Txn<'_>, &OpContext<'_>) -> Result<T, NsError>,
    ) -> Result<T, Errno> {
        self.try_run(creds, verb).map_err(|error| match error {
            NsError::Errno(errno) => errno,
            NsError::Kv(error) => panic!("the store failed: {error}"),
            NsError::Elsewhere => panic!("all shards are here"),
        })
    }

    /// Runs a verb as `creds`, also on a store that may be damaged, and makes its changes if it succeeds.
    ///
    /// # Errors
    /// What the verb answers, or what the store could not tell.
    pub fn try_run<T>(
        &mut self,
        creds: &Credentials,
        verb: impl FnOnce(&mut Txn<'_>, &OpContext<'_>) -> Result<T, NsError>,
    ) -> Result<T, NsError> {
        self.now = Timespec::new(self.now.secs + 1, self.now.nanos);
        let open = &self.open;
        let open_in = |inode: InodeId| {
            open.get(&inode).map(|sessions| sessions.iter().copied().collect()).unwrap_or_default()
        };
        let context = OpContext {
            now: self.now,
            creds,
            session: self.session,
            hash_key: &HASH_KEY,
            placement: &self.placement,
            open_in: &open_in,
        };
        let reach = self.reach.as_ref().map(|(map, outermost)| Reach::new(map, *outermost));
        let mut txn = Txn::new(&self.store).within(reach);
        let reply = verb(&mut txn, &context)?;
        self.outcome = txn.finish()?;
        self.store.apply(&self.outcome);
        Ok(reply)
    }

    /// Runs a verb as root.
    ///
    /// # Errors
    /// What the verb answers.
    pub fn as_root<T>(
        &mut self,
        verb: impl FnOnce(&mut Txn<'_>, &OpContext<'_>) -> Result<T, NsError>,
    ) -> Result<T, Errno> {
        self.run(&Credentials::root(), verb)
    }

    /// The record of `inode`, if there is one.
    ///
    /// # Panics
    /// When it does not decode.
    pub fn find_inode(&self, inode: InodeId) -> Option<Inode> {
        let bytes = self.store.pairs.get(&key::inode(inode))?;
        Some(codec::decode(bytes, "inode record").expect("inode records decode"))
    }

    /// The record of `inode`.
    ///
    /// # Panics
    /// When there is none.
    pub fn inode(&self, inode: InodeId) -> Inode {
        self.find_inode(inode).expect("the inode is there")
    }

    /// Changes the record of `inode` behind the verbs' back, with accounting.
    ///
    /// # Panics
    /// When there is none.
    pub fn edit(&mut self, inode: InodeId, change: impl FnOnce(&mut Inode)) {
        self.as_root(|txn, _| {
            change(txn.inode_mut(inode)?);
            Ok(())
        })
        .expect("the inode is there");
    }

    /// Makes a directory as root, mode 0777.
    ///
    /// # Panics
    /// When that is refused.
    pub fn make_directory(&mut self, parent: InodeId, text: &str) -> InodeId {
        let made = self.as_root(|txn, context| verb::mkdir(txn, context, parent, name(text), 0o777, 0));
        made.expect("root may make a directory").attr.inode
    }

    /// Makes an empty file as root, mode 0666.
    ///
    /// # Panics
    /// When that is refused, or something of this name is there.
    pub fn make_file(&mut self, parent: InodeId, text: &str) -> InodeId {
        let args = verb::CreateArgs { mode: 0o666, umask: 0, exclusive: true };
        let made = self.as_root(|txn, context| verb::create(txn, context, parent, name(text), args));
        made.expect("root may make a file").inode
    }

    /// What `text` stands for in `parent`, if anything.
    ///
    /// # Panics
    /// When looking is refused to root.
    pub fn find(&mut self, parent: InodeId, text: &str) -> Option<InodeId> {
        match self.as_root(|txn, context| verb::lookup(txn, context, parent, name(text))) {
            Ok(reply) => Some(reply.inode),
            Err(Errno::ENOENT) => None,
            Err(errno) => panic!("{errno}"),
        }
    }

    /// Notes that `session` holds `inode` open.
    pub fn hold_open(&mut self, inode: InodeId, session: SessionId) {
        self.open.entry(inode).or_default().insert(session);
    }

    /// The sum of all accounting counters.
    ///
    /// # Panics
    /// When a counter does not decode.
    pub fn accounted(&self) -> Account {
        let mut sum = Account::default();
        for (_, value) in self.store.table(b'A') {
            let account: Account = codec::decode(value, "account").expect("accounts decode");
            sum.inodes += account.inodes;
            sum.bytes = sum.bytes.wrapping_add(account.bytes);
            sum.blocks += account.blocks;
        }
        sum
    }
}
