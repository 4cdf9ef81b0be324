//! Calls on content: inline bytes, layouts, data leases, reports of writers.

use super::verb as number;
use crate::MetaService;
use crate::execute::DECIDE_MAX;
use crate::kept::Told;
use crate::recall::{Alone, Wanting};
use ashlar_namespace::{FileData, verb};
use ashlar_rpc::Caller;
use ashlar_types::message::{DataGrant, LeaseSet, MetaReply, MetaRequest};
use ashlar_types::{Credentials, Errno, InodeId};
use std::time::Duration;

impl MetaService {
    pub(super) fn call_on_data(
        &self,
        caller: Caller<'_>,
        request: MetaRequest<'_>,
    ) -> Result<MetaReply, Errno> {
        let session = caller.op.session;
        match request {
            MetaRequest::ReadInline { inode, offset, len } => self
                .inspect(
                    caller,
                    |txn, context| verb::read_inline(txn, context, inode, offset, len),
                    |reply, _| reply,
                )
                .and_then(|reply| match reply {
                    verb::ReadInlineReply::Bytes { data, .. } => Ok(MetaReply::Bytes(data)),
                    verb::ReadInlineReply::InChunks { .. } => Err(Errno::EAGAIN),
                }),
            MetaRequest::WriteInline { inode, offset, data, append, kill_set_id, is_writeback } => {
                let args = verb::WriteArgs { append, kill_set_id, is_writeback };
                self.mutate(
                    caller,
                    number::WRITE_INLINE,
                    |txn, context| verb::write_inline(txn, context, inode, offset, data, args),
                    |reply, _| reply.told(),
                )
            }
            MetaRequest::AllocateInline { inode, mode, offset, len } => {
                let args = verb::AllocateArgs { mode, offset, len, kill_set_id: false };
                self.mutate(
                    caller,
                    number::ALLOCATE_INLINE,
                    |txn, context| verb::allocate_inline(txn, context, inode, &args).map(Allocated),
                    |reply, _| reply.told(),
                )
            }
            MetaRequest::ProposeLayout { inode } => self.propose_layout(caller, inode),
            MetaRequest::SetLayout { inode, layout, blocks, is_synced } => self.mutate(
                caller,
                number::SET_LAYOUT,
                |txn, context| {
                    // ORDER: under the lane's lock, where a sync notes what it promises (`MetaService::sync`).
                    if !is_synced && self.opens.lock().is_promised(session, inode) {
                        return Err(Errno::EAGAIN.into());
                    }
                    verb::set_layout(txn, context, inode, &layout, blocks).map(drop)
                },
                |(), _| {
                    self.proposals.forget(session, inode, layout.generation);
                    MetaReply::Done
                },
            ),
            MetaRequest::WithdrawLayout { inode, generation } => {
                if self.proposals.has(session, inode, generation) {
                    self.withdraw_layout(session, inode, generation)?;
                }
                Ok(MetaReply::Done)
            }
            MetaRequest::AcquireData { inode, write, is_writeback } => {
                self.acquire_data(caller, inode, (write, is_writeback))
            }
            MetaRequest::AcquireShared { inode } => self.acquire_shared(caller, inode),
            MetaRequest::CommitWrite {
                inode,
                generation,
                size_at_least,
                blocks_delta,
                mtime,
                atime,
                kill_set_id,
                keeps_capability,
                done,
            } => {
                let report = verb::CommitWrite {
                    generation,
                    size_at_least,
                    blocks_delta,
                    mtime,
                    atime,
                    kill_set_id,
                    keeps_capability,
                    done,
                };
                self.commit_write(caller, inode, &report)
            }
            _ => Err(Errno::EPROTO),
        }
    }

    fn commit_write(
        &self,
        caller: Caller<'_>,
        inode: InodeId,
        report: &verb::CommitWrite,
    ) -> Result<MetaReply, Errno> {
        let session = caller.op.session;
        self.mutate(
            caller,
            number::COMMIT_WRITE,
            |txn, context| {
                // Others may have written since; so they may where the session before this one of the same mount has ended.
                if !self.leases.lock().held(session, inode).has(LeaseSet::WRITE) {
                    txn.mark_beside(inode);
                }
                verb::commit_write(txn, context, inode, report)
            },
            |attr, leases| {
                if report.done {
                    leases.drop_leases(session, inode, LeaseSet::WRITING);
                    self.leases_changed.notify_all();
                }
                MetaReply::Attr { attr, leases: LeaseSet::NONE }
            },
        )
    }

    /// Grants READ or WRITE on content, after others have given back what is in the way.
    fn acquire_data(
        &self,
        caller: Caller<'_>,
        inode: InodeId,
        (write, is_writeback): (bool, bool),
    ) -> Result<MetaReply, Errno> {
        let session = caller.op.session;
        let deadline = self.env.clock.monotonic() + DECIDE_MAX;
        let wanted = if write { LeaseSet::WRITE.with(LeaseSet::READ) } else { LeaseSet::READ };
        let creds = Credentials::root();
        let caller = Caller { yields: caller.yields, ..Caller::new(caller.op, &creds) };
        let _wanting = if write { Wanting::begin_for(self, caller, inode) } else { None };
        // Whoever asks for this has given SHARE back, or has never known that it has it.
        self.leases.lock().drop_leases(session, inode, LeaseSet::SHARE);
        let waiter = self.waiter(caller.op);
        let mut _alone = None;
        let mut is_again = false;
        loop {
            self.come_again_if_closing(is_again)?;
            is_again = true;
            let conflicts = self.leases.lock().conflicts_of_data(session, inode, write);
            if !conflicts.is_empty() {
                _alone = _alone.or_else(|| Alone::begin(self, &conflicts));
                self.recall_data(waiter, &conflicts, (session, inode), deadline)?;
                continue;
            }
            if write {
                self.begin_write(caller, inode, (is_writeback, false), deadline)?;
            }
            let args = verb::OpenArgs { wants_body: true, is_granted: true, ..verb::OpenArgs::default() };
            let (reply, is_granted) = self.inspect(
                caller,
                |txn, context| {
                    self.check_settled(txn, inode)?;
                    verb::open(txn, context, inode, &args)
                },
                |open, leases| {
                    // Not what it may hold besides: a client that has given up its WRITE after a cut that failed must not get it back for a
                    // read, or it would write what the cut then takes (`begin_write`).
                    let held = leases.grant_data(session, inode, wanted).and(wanted);
                    let recall_mark = leases.recall_mark();
                    let reply =
                        MetaReply::Granted { attr: open.attr, data: open.data, leases: held, recall_mark };
                    (reply, held.has(wanted))
                },
            )?;
            if is_granted {
                return Ok(reply);
            }
            self.wait_to_be_granted(waiter, inode, deadline)?;
        }
    }

    /// Grants WRITE to who writes past every cache, or SHARE if others write the file, too. A file without chunks has only one writer at a time.
    fn acquire_shared(&self, caller: Caller<'_>, inode: InodeId) -> Result<MetaReply, Errno> {
        let session = caller.op.session;
        if session.is_close_to_open() || !self.leases.lock().may_share(session, inode) {
            return self.acquire_data(caller, inode, (true, false));
        }
        let deadline = self.env.clock.monotonic() + DECIDE_MAX;
        let creds = Credentials::root();
        let caller = Caller { creds: &creds, ..caller };
        let waiter = self.waiter(caller.op);
        let mut is_again = false;
        loop {
            self.come_again_if_closing(is_again)?;
            is_again = true;
            let (has_pages, is_wanted_alone, conflicts) = {
                let leases = self.leases.lock();
                let has_pages = leases.held(session, inode).meets(LeaseSet::PAGES);
                (has_pages, leases.is_wanted_alone(inode), leases.conflicts_of_share(session, inode))
            };
            if has_pages {
                // The file was opened once more meanwhile, or a page of it is read.
                return self.acquire_data(caller, inode, (true, false));
            }
            if is_wanted_alone {
                self.wait_for_leases(waiter, deadline)?;
                continue;
            }
            if !conflicts.is_empty() {
                self.recall_to_share(waiter, &conflicts, (session, inode), deadline)?;
                continue;
            }
            {
                // A page may have been read since, as above.
                let _wanting = Wanting::begin_for(self, caller, inode);
                self.begin_write(caller, inode, (false, true), deadline)?;
            }
            let shared = self.inspect(
                caller,
                |txn, _| {
                    self.check_settled(txn, inode)?;
                    let found = txn.inode(inode)?;
                    Ok(match found.as_regular()? {
                        FileData::Chunks { layout, .. } => Some((found.attr(inode), layout.clone())),
                        FileData::Inline { .. } => None,
                    })
                },
                |found, leases| {
                    let Some((attr, layout)) = found else { return Shared::IsInline };
                    if leases.is_wanted_alone(inode) || !leases.grant_share(session, inode) {
                        return Shared::NotNow;
                    }
                    let recall_mark = leases.recall_mark();
                    let data = DataGrant::Chunks { layout };
                    let leases = LeaseSet::SHARE;
                    Shared::Granted(Box::new(MetaReply::Granted { attr, data, leases, recall_mark }))
                },
            )?;
            match shared {
                Shared::Granted(reply) => return Ok(*reply),
                Shared::IsInline => return self.acquire_data(caller, inode, (true, false)),
                Shared::NotNow => self.wait_to_be_granted(waiter, inode, deadline)?,
            }
        }
    }

    /// Records that the session is about to write chunks, so that the size can be settled if it dies. Nothing for inline files. A cut
    /// that is still to be carried out comes first, or it would take the new bytes with it.
    fn begin_write(
        &self,
        caller: Caller<'_>,
        inode: InodeId,
        (is_writeback, is_beside): (bool, bool),
        deadline: Duration,
    ) -> Result<(), Errno> {
        loop {
            let begun = self.mutate(
                caller,
                number::BEGIN_WRITE,
                |txn, context| {
                    self.check_settled(txn, inode)?;
                    if is_beside {
                        txn.mark_beside(inode);
                    }
                    verb::begin_write(txn, context, inode, false, is_writeback)
                },
                |_, _| (),
            );
            match begun {
                Err(Errno::EAGAIN) if self.env.clock.monotonic() < deadline => {
                    self.cut_pending(inode, caller.op.session)?
                }
                other => return other,
            }
        }
    }
}

/// What became of a wish to write beside others.
enum Shared {
    Granted(Box<MetaReply>),
    /// The file has no chunks.
    IsInline,
    /// A recall is under way, or somebody wants the file alone.
    NotNow,
}

/// What became of an allocation with the inode.
struct Allocated(verb::WriteReply);

impl Told for Allocated {
    fn told(&self) -> MetaReply {
        match &self.0 {
            verb::WriteReply::Written { attr, .. } => attr.told(),
            other => other.told(),
        }
    }
}
