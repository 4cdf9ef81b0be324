//! Calls on attributes, layouts, space, and durability.

use super::verb as number;
use crate::MetaService;
use crate::execute::{DECIDE_MAX, itself};
use ashlar_kv::Snapshot;
use ashlar_namespace::{Txn, verb};
use ashlar_rpc::Caller;
use ashlar_types::message::{LeaseSet, MetaReply, MetaRequest, SetAttr, SyncScope};
use ashlar_types::{Errno, InodeId, OpId, ShardId, StatFs};

/// Bytes of storage an inode costs at the least, for the estimate of how many more can be made.
const INODE_BYTES_ESTIMATE: u64 = 1024;

impl MetaService {
    pub(super) fn call_on_attrs(
        &self,
        caller: Caller<'_>,
        request: MetaRequest<'_>,
    ) -> Result<MetaReply, Errno> {
        let session = caller.op.session;
        match request {
            MetaRequest::Getattr { inode } => self.inspect(
                caller,
                |txn, _| verb::getattr(txn, inode),
                |reply, leases| {
                    let held = leases.grant(session, inode, LeaseSet::ATTR);
                    MetaReply::Attr { attr: reply.attr, leases: held }
                },
            ),
            MetaRequest::Setattr { inode, changes } => self.setattr(caller, inode, &changes),
            MetaRequest::SetattrRemoved { last, changes } => self.inspect(
                caller,
                |_, context| verb::setattr_removed(context, &last, &changes),
                |attr, _| MetaReply::Attr { attr, leases: LeaseSet::NONE },
            ),
            MetaRequest::Access { inode, mask } => self.inspect(
                caller,
                |txn, context| verb::access(txn, context, inode, mask),
                |(), _| MetaReply::Done,
            ),
            MetaRequest::Readlink { inode } => self.inspect(
                caller,
                |txn, _| verb::readlink(txn, inode),
                |reply, _| MetaReply::Bytes(reply.target),
            ),
            MetaRequest::Statfs => self.statfs(),
            MetaRequest::Sync(scope) => self.sync(scope),
            MetaRequest::LayoutShow { inode } => self.inspect(
                caller,
                |txn, context| verb::layout_show(txn, context, inode),
                |reply, _| MetaReply::Policy { policy: reply.policy, layout: reply.layout },
            ),
            MetaRequest::LayoutSet { inode, policy } => {
                self.require_pool(&policy)?;
                self.require_shard(&policy)?;
                self.mutate(
                    caller,
                    number::LAYOUT_SET,
                    |txn, context| {
                        let set = verb::layout_set(txn, context, inode, &policy)?;
                        // What it has already may be of a map that is gone.
                        if policy.pool.is_some() || policy.copies.is_some() {
                            self.require_chains(&set)?;
                        }
                        Ok(())
                    },
                    |(), _| MetaReply::Done,
                )
            }
            MetaRequest::SetFileset { inode, from, fileset, slices } => self.mutate(
                caller,
                number::SET_FILESET,
                |txn, _| verb::set_fileset(txn, inode, (from, fileset), slices),
                |(), _| MetaReply::Done,
            ),
            MetaRequest::Slices { directory } => self.slices(caller, directory),
            MetaRequest::Split { directory, slices, of_new } => {
                let done = self.mutate(
                    caller,
                    number::SPLIT,
                    |txn, context| match of_new {
                        true => verb::split_new(txn, context, directory, slices),
                        false => verb::split_above(txn, context, directory, slices, self.splits.at_once()),
                    },
                    |(), leases| {
                        // What the caller itself was told of names nobody takes back: they change in slices from now on. It forgets them by itself.
                        leases.drop_leases(caller.op.session, directory, LeaseSet::ENTRIES);
                        MetaReply::Done
                    },
                );
                self.splits.wake();
                done
            }
            _ => Err(Errno::EPROTO),
        }
    }

    fn slices(&self, caller: Caller<'_>, directory: InodeId) -> Result<MetaReply, Errno> {
        let split =
            self.inspect(caller, |txn, context| verb::slices(txn, context, directory), |split, _| split)?;
        if !split.slices.is_empty() {
            // ORDER: before it is told. Who lists the directory goes by it, and no power cut may give names back that were in slices.
            self.lane.flush(self.lane.appended()).map_err(|error| self.answer(&error.into()))?;
        }
        Ok(MetaReply::Slices(split))
    }

    /// Makes everything acknowledged durable, and notes whose content is promised to be.
    fn sync(&self, scope: SyncScope) -> Result<MetaReply, Errno> {
        let position = {
            // ORDER: under the lane's lock. The binding of a layout whose chunks are not durable is decided either before, and then it shows
            // here, or afterwards, and then it sees the note.
            let writer = self.lane.write();
            match scope {
                SyncScope::Names => {}
                SyncScope::All => self.opens.lock().promise_all(),
                SyncScope::File { inode, generation } => {
                    let snapshot: &dyn Snapshot = &writer;
                    let mut txn = Txn::new(snapshot);
                    let found = txn.find_inode(inode).map_err(|error| self.answer(&error))?;
                    // Of a file that is gone nothing is left to be promised.
                    if found.is_some_and(|now| Self::generation_of(now) != generation) {
                        return Err(Errno::EAGAIN);
                    }
                    self.opens.lock().promise(inode);
                }
            }
            self.lane.appended()
        };
        self.lane.flush(position).map_err(|error| self.answer(&error.into()))?;
        Ok(MetaReply::Done)
    }

    fn setattr(&self, caller: Caller<'_>, inode: InodeId, changes: &SetAttr) -> Result<MetaReply, Errno> {
        let deadline = self.env.clock.monotonic() + DECIDE_MAX;
        loop {
            match self.setattr_once(caller, inode, changes) {
                // An earlier truncation has not been carried out yet; it comes first.
                Err(Errno::EAGAIN) if self.env.clock.monotonic() < deadline => {
                    self.cut_pending(inode, caller.op.session)?
                }
                other => return other,
            }
        }
    }

    fn setattr_once(
        &self,
        caller: Caller<'_>,
        inode: InodeId,
        changes: &SetAttr,
    ) -> Result<MetaReply, Errno> {
        let session = caller.op.session;
        if changes.size.is_some_and(|size| size > 0) {
            // Asked before the lane is held, for `check_can_be_cut`.
            let map = self.map.read().clone();
            self.space(&map);
        }
        let is_of_a_write = changes.kill_set_id && changes.has_handle && changes.size.is_none();
        let (reply, must_cut) = self.mutate(
            caller,
            if is_of_a_write { number::CLEAR_SET_ID } else { number::SETATTR },
            |txn, context| {
                let was_pending = changes.size.is_some() && Self::has_cut_pending(txn, inode)?;
                let reply = verb::setattr(txn, context, inode, changes)?;
                if changes.size.is_some() {
                    self.check_settled(txn, inode)?;
                }
                if reply.must_cut {
                    self.check_can_be_cut(txn.inode(inode)?)?;
                }
                let generation = Self::generation_of(txn.inode(inode)?);
                txn.reveal(inode);
                Ok((reply, generation.map(|generation| (generation, was_pending))))
            },
            |(reply, chunks), leases| {
                let cut = chunks.filter(|_| reply.must_cut);
                if cut.is_some() {
                    // ORDER: before the grant, so that nothing is granted: the cut will change the blocks that this reply tells.
                    leases.begin_block(inode);
                }
                let held = leases.grant(session, inode, LeaseSet::ATTR);
                (MetaReply::Attr { attr: reply.attr, leases: held }, cut)
            },
        )?;
        if let Some((generation, was_pending)) = must_cut {
            let outcome = self.cut(inode, generation, (session, was_pending));
            self.leases.lock().end_block(inode);
            self.leases_changed.notify_all();
            outcome?;
        }
        Ok(reply)
    }

    /// Inodes in use, from the accounting.
    ///
    /// # Errors
    /// `EIO` when it cannot be read.
    pub fn inodes_used(&self) -> Result<u64, Errno> {
        let shards: Vec<ShardId> = self.shards_here().0.iter().collect();
        let creds = itself();
        let caller = Caller::new(OpId::default(), &creds);
        Ok(self.inspect(caller, |txn, context| verb::statfs(txn, context, &shards), |used, _| used)?.inodes)
    }

    fn statfs(&self) -> Result<MetaReply, Errno> {
        let map = self.map.read().clone();
        let space = self.space(&map);
        let bytes_total: u64 = space.values().map(|(total, _)| total).sum();
        let bytes_free: u64 = space.values().map(|(_, free)| free).sum();
        // A file needs a record before it needs bytes, and the log may be on a file system of its own.
        let is_short = self.lane.stats().is_space_low;
        Ok(MetaReply::StatFs(StatFs {
            bytes_total,
            bytes_free,
            bytes_available: bytes_free,
            inodes_used: self.inodes_used()?,
            inodes_free: if is_short { 0 } else { bytes_free / INODE_BYTES_ESTIMATE },
        }))
    }
}
