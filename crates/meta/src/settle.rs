//! After the death of a session: sizes that only it knew are asked of the chains, orphans are removed.

use crate::MetaService;
use crate::call::verb as number;
use crate::execute::{DECIDE_MAX, itself};
use crate::waiting::Waiter;
use ashlar_kv::Snapshot as _;
use ashlar_namespace::lease::{Conflict, LeaseTable};
use ashlar_namespace::record::Garbage;
use ashlar_namespace::{FileData, Kind, Txn, key, verb};
use ashlar_rpc::placed::at_each_place;
use ashlar_rpc::{Caller, LastingSessions as _, Payload};
use ashlar_types::map::TargetState;
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{Errno, FileLayout, InodeId, OpId, SessionId, ShardId, TargetId};
use smallvec::SmallVec;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Records looked at under one hold of the lane.
const RECORDS_PER_CALL: u32 = 256;

/// Nobody is granted anything on a file for as long as it lives.
pub(crate) struct Quiet<'a> {
    service: &'a MetaService,
    inode: InodeId,
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        self.service.leases.lock().end_block(self.inode);
        self.service.leases_changed.notify_all();
    }
}

impl MetaService {
    /// Cleans up after a dead session in every shard. Files it has written are measured, if `written` names them or is not known: of the
    /// others it has told everything when it gave WRITE back, and somebody else may be writing them, whose report is still to come.
    pub(crate) fn reap(&self, session: SessionId, written: Option<&[InodeId]>) -> Result<(), Errno> {
        let shards: Vec<ShardId> = self.shards_here().0.iter().collect();
        let mut all_reaped = Ok(());
        for shard in shards {
            match self.reap_shard(shard, session, written) {
                // It has gone meanwhile, and whoever has it does that.
                Err(_) if !self.is_here(shard) => {}
                // One file must not cost others their length: the mount tells it nobody any more.
                reaped => all_reaped = all_reaped.and(reaped),
            }
        }
        all_reaped
    }

    /// The same in one shard.
    pub(crate) fn reap_shard(
        &self,
        shard: ShardId,
        session: SessionId,
        written: Option<&[InodeId]>,
    ) -> Result<(), Errno> {
        let (mut from, mut all_settled) = (None, Ok(()));
        loop {
            let args = verb::ReapArgs { session, shard, from: from.take(), records_max: RECORDS_PER_CALL };
            let creds = itself();
            let reply = self.mutate(
                Caller::new(OpId::default(), &creds),
                number::REAP,
                |txn, context| verb::reap_session(txn, context, &args),
                |reply, _| reply,
            )?;
            for inode in reply.unsettled {
                let must_measure = match written {
                    Some(written) => written.contains(&inode),
                    None => !self.leases.lock().has_writer(inode),
                };
                // One that came with its shard, and that nobody has measured yet.
                let must_measure = must_measure || self.is_unsettled(inode);
                let settled = self.settle(inode, session, must_measure);
                if let (Err(errno), true) = (settled, must_measure && self.is_here(shard)) {
                    self.note_unmeasured(inode, session, errno);
                }
                all_settled = all_settled.and(settled);
            }
            from = reply.next;
            if from.is_none() {
                return all_settled;
            }
        }
    }

    /// Notes a file that could not be measured when `session` ended, because somebody who writes it besides has not given it back in time, say: nobody may use its content until that has
    /// been done, which is tried again.
    fn note_unmeasured(&self, inode: InodeId, session: SessionId, errno: Errno) {
        tracing::warn!(%errno, %inode, "the size of a file could not be found out when a session that wrote it ended; trying again");
        let creds = itself();
        let generation = self.inspect_for(
            // What holds the file may be why it could not be measured.
            Waiter::PastKeys,
            Caller::new(OpId { session, sequence: 0 }, &creds),
            |txn, _| Ok(txn.find_inode(inode)?.and_then(Self::generation_of)),
            |generation, _| generation,
        );
        if let Ok(Some(generation)) = generation {
            self.unsettled.note(inode, generation, errno);
        }
        self.unmeasured.note(inode, session);
    }

    /// Measures what could not be measured before, in a thread of its own: that may wait for others. To be called several times a second.
    pub(crate) fn begin_measuring(self: &Arc<Self>) {
        // Who shares a file and has not said so yet would not be asked to report.
        if self.is_awaiting() {
            return;
        }
        let left = self.unmeasured.take(self.env.clock.monotonic());
        if left.is_empty() {
            return;
        }
        let (service, again) = (self.clone(), left.clone());
        let measure = Box::new(move || {
            for (inode, session) in left {
                // ORDER: inside, so that its shard does not leave meanwhile. One that has left is forgotten here, and measured by whoever has it.
                let inside = service.enter(inode.home());
                let waits = inside.is_err() || service.waits_for_target(inode);
                if waits && service.unsettled.has(inode) {
                    service.unmeasured.note(inode, session);
                } else if inside.is_ok()
                    && let Err(errno) = service.settle(inode, session, service.is_unsettled(inode))
                {
                    service.note_unmeasured(inode, session, errno);
                }
            }
        });
        if self.env.tasks.spawn("ashlar-settle", measure).is_err() {
            again.into_iter().for_each(|(inode, session)| self.unmeasured.note(inode, session));
        }
    }

    /// Notes those to be measured that have come with `shard`, and that sessions have written which there are not.
    pub(crate) fn note_unmeasured_of(&self, shard: ShardId) -> Result<(), Errno> {
        let (from, to) = key::table_range(shard, b'W');
        let mut visit = |record_key: &[u8], _: &[u8]| {
            if let (Some(inode), Some(session)) =
                (key::inode_of(record_key), key::session_of_record(record_key))
                && self.unsettled.has(inode)
                && !self.sessions.has(session)
            {
                self.unmeasured.note(inode, session);
            }
            ControlFlow::Continue(())
        };
        self.lane.read().scan(&from, &to, &mut visit).map_err(|error| self.answer(&error.into()))
    }

    /// Whether nobody knows the length of a file, and so nobody uses its content: of the chunks that it has now.
    fn is_unsettled(&self, inode: InodeId) -> bool {
        let reader = self.lane.read();
        match Txn::new(&reader).find_inode(inode) {
            Ok(found) => found
                .and_then(Self::generation_of)
                .is_some_and(|generation| self.unsettled.is_of(inode, generation)),
            // Rather measured once more than not at all.
            Err(_) => true,
        }
    }

    /// Whether a target is missing that has chunks of a file: it is not asked, and nobody is kept from the file for it.
    fn waits_for_target(&self, inode: InodeId) -> bool {
        let reader = self.lane.read();
        let mut txn = Txn::new(&reader);
        let Ok(Some(Kind::Regular(FileData::Chunks { layout, .. }))) =
            txn.find_inode(inode).map(|found| found.map(|record| &record.kind))
        else {
            return false;
        };
        let map = self.map.read();
        let is_there =
            |head: TargetId| map.target(head).is_some_and(|target| target.state == TargetState::Online);
        !layout.chains.iter().all(|chain| map.head(*chain).is_some_and(is_there))
    }

    /// Takes size and blocks of a file's chunks over into its inode, and ends the session's writing. If a target does not tell, the
    /// writer's record stays, and nobody may use the content until it does, which is looked at again and again ([`crate::unsettled`]).
    pub(crate) fn settle(&self, inode: InodeId, session: SessionId, must_measure: bool) -> Result<(), Errno> {
        let creds = itself();
        let caller = Caller::new(OpId { session, sequence: 0 }, &creds);
        // ORDER: before anything is looked at; what they report counts.
        // The sole writer has ended, and nobody else has got the file since.
        let sharers = |leases: &LeaseTable| leases.sharers(inode);
        let _quiet = must_measure.then(|| self.quiet(inode, sharers)).transpose()?;
        let layout = self.inspect(
            caller,
            |txn, _| {
                Ok(match txn.find_inode(inode)?.map(|record| &record.kind) {
                    Some(Kind::Regular(FileData::Chunks { layout, .. })) => Some(layout.clone()),
                    _ => None,
                })
            },
            |found, _| found,
        )?;
        let layout = layout.filter(|_| must_measure);
        let (size_at_least, chunk_blocks) = match &layout {
            Some(layout) => match self.measure(inode, layout) {
                Ok(measured) => measured,
                Err(errno) => {
                    if !self.unsettled.has(inode) {
                        tracing::warn!(%inode, %errno, "the size of a file waits for a target that is missing or out of service");
                    }
                    self.unsettled.note(inode, layout.generation, errno);
                    self.unmeasured.note(inode, session);
                    return Ok(());
                }
            },
            None => (0, 0),
        };
        let generation = layout.map(|layout| layout.generation);
        let report =
            verb::CommitWrite { generation, size_at_least, done: true, ..verb::CommitWrite::default() };
        let settled = self.mutate(
            caller,
            number::COMMIT_WRITE,
            |txn, context| {
                let mut report = report;
                // ORDER: compared with what is counted now: the end of another session that wrote it may have counted the same meanwhile.
                if let (Some(_), Some(record)) = (generation, txn.find_inode(inode)?) {
                    report.blocks_delta = chunk_blocks as i64 - record.blocks as i64;
                    report.mtime = (report.blocks_delta != 0).then_some(context.now);
                }
                let garbage_key = generation.map(|generation| key::garbage(inode, generation));
                let cut: Option<Garbage> =
                    garbage_key.map_or(Ok(None), |key| txn.get_record(&key, "garbage record"))?;
                // What a truncation takes that is still to be carried out, because a block is damaged, was not written after it.
                if let Some(cut) = cut.filter(|cut| cut.keep_bytes > 0) {
                    report.size_at_least = report.size_at_least.min(cut.keep_bytes);
                }
                verb::commit_write(txn, context, inode, &report)
            },
            |_, _| (),
        );
        if must_measure && settled.is_ok() {
            self.unsettled.forget(inode);
        }
        match settled {
            // It was unlinked meanwhile: there is nothing left to settle.
            Err(Errno::ESTALE) => Ok(()),
            other => other,
        }
    }

    /// Has those of `whom` report what they have written of a file, and give that back until the end of what is returned: what chunks have is compared with what the inode
    /// says.
    pub(crate) fn quiet(
        &self,
        inode: InodeId,
        whom: impl FnOnce(&LeaseTable) -> SmallVec<[Conflict; 2]>,
    ) -> Result<Quiet<'_>, Errno> {
        self.leases.lock().begin_block(inode);
        let quiet = Quiet { service: self, inode };
        let writers = whom(&self.leases.lock());
        self.recall(Waiter::Itself, &writers, self.env.clock.monotonic() + DECIDE_MAX)?;
        Ok(quiet)
    }

    /// Length in bytes and allocated units of 512 bytes of what the chains have of a file.
    pub(crate) fn measure(&self, inode: InodeId, layout: &FileLayout) -> Result<(u64, u64), Errno> {
        let (mut size, mut blocks) = (0, 0);
        at_each_place(&self.map, &*self.env.tasks, layout, |target, chains| {
            let request = StorageRequest::Extent { target, inode, generation: layout.generation, chains };
            match self.storage.call(&request, Payload::None)? {
                StorageReply::Extent(Some((index, len, target_blocks))) => {
                    size = size.max(index * u64::from(layout.chunk_bytes) + u64::from(len));
                    blocks += target_blocks;
                }
                StorageReply::Extent(None) => {}
                _ => return Err(Errno::EPROTO),
            }
            Ok(())
        })?;
        Ok((size, blocks))
    }
}
