//! Opening and closing files.

use super::in_directory::InDirectory;
use super::names::last_of;
use super::verb as number;
use crate::MetaService;
use ashlar_namespace::lease::LeaseTable;
use ashlar_namespace::{FileData, Kind, NsError, OpContext, Txn, verb};
use ashlar_rpc::Caller;
use ashlar_types::message::{LeaseSet, MetaReply, MetaRequest, OpenReply, ToldClose};
use ashlar_types::{Attr, Credentials, DescriptionId, Errno, FileType, InodeId, OpId, SessionId, Timespec};

/// Closes that one call tells.
// LIMIT: as a client keeps.
const CLOSES_MAX: usize = 256;

/// A file that is being opened, and whether anybody knows its length.
pub(crate) struct Opening {
    pub(crate) open: verb::OpenReply,
    is_settled: bool,
}

/// A file that is made, or that was there.
pub(crate) enum Creation {
    /// Opened; whether it is new.
    Here(verb::OpenReply, bool),
    /// It was there, and another server has it.
    Elsewhere(InodeId),
}

impl MetaService {
    pub(super) fn call_on_files(
        &self,
        caller: Caller<'_>,
        request: MetaRequest<'_>,
    ) -> Result<MetaReply, Errno> {
        let session = caller.op.session;
        match request {
            MetaRequest::Create { parent, name, mode, umask, exclusive, read, write, truncate, handle } => {
                self.mutate(
                    caller,
                    number::CREATE,
                    |txn, context| {
                        self.admit_open(session)?;
                        let args = verb::CreateArgs { mode, umask, exclusive };
                        let reply = verb::create(txn, context, parent, name, args)?;
                        if reply.attr.is_none() {
                            return InDirectory::of(
                                txn,
                                caller.alone(),
                                parent,
                                Creation::Elsewhere(reply.inode),
                            );
                        }
                        let args = verb::OpenArgs {
                            read,
                            write,
                            truncate: truncate && !reply.created,
                            wants_body: read && !reply.created,
                            is_granted: reply.created,
                            ..verb::OpenArgs::default()
                        };
                        let open = verb::open(txn, context, reply.inode, &args)?;
                        self.check_settled(txn, reply.inode)?;
                        // Where nothing was made, the directory is as it was.
                        let caller = if reply.created { caller } else { caller.alone() };
                        InDirectory::of(txn, caller, parent, Creation::Here(open, reply.created))
                    },
                    |creation, leases| {
                        let (open, created) = match creation.tell(caller, leases) {
                            Creation::Here(open, created) => (open, created),
                            Creation::Elsewhere(inode) => {
                                let leases = leases.grant(session, parent, LeaseSet::ENTRIES);
                                return MetaReply::Elsewhere { inode, leases };
                            }
                        };
                        let named = self.grant_named(session, parent, open.attr.inode, leases);
                        MetaReply::Opened {
                            open: self.opened(
                                session,
                                open,
                                (handle, write),
                                (named, LeaseSet::READ),
                                leases,
                            ),
                            created,
                        }
                    },
                )
            }
            MetaRequest::Tmpfile { parent, mode, umask, handle } => self.mutate(
                caller,
                number::TMPFILE,
                |txn, context| {
                    self.admit_open(session)?;
                    let reply = verb::tmpfile(txn, context, parent, mode, umask)?;
                    let args =
                        verb::OpenArgs { read: true, write: true, is_granted: true, ..Default::default() };
                    verb::open(txn, context, reply.attr.inode, &args).map(|open| (open, true))
                },
                |(open, _), leases| {
                    let held = leases.grant(session, open.attr.inode, LeaseSet::ATTR);
                    MetaReply::Opened {
                        open: self.opened(session, open, (handle, true), (held, LeaseSet::READ), leases),
                        created: true,
                    }
                },
            ),
            MetaRequest::Open { inode, read, write, truncate, handle } => {
                self.open(caller, inode, handle, (read, write, truncate))
            }
            MetaRequest::Release { inode, handle } => {
                let last = self.release(caller, inode, handle)?;
                Ok(MetaReply::Removed { last, leases: LeaseSet::NONE })
            }
            MetaRequest::Closes { of } => self.close_all(caller, &of),
            _ => Err(Errno::EPROTO),
        }
    }

    fn open(
        &self,
        caller: Caller<'_>,
        inode: InodeId,
        handle: DescriptionId,
        (read, write, truncate): (bool, bool, bool),
    ) -> Result<MetaReply, Errno> {
        let session = caller.op.session;
        let args = verb::OpenArgs { read, write, truncate, wants_body: read, ..verb::OpenArgs::default() };
        let decide = |txn: &mut Txn<'_>, context: &OpContext<'_>| {
            self.admit_open(session)?;
            let open = verb::open(txn, context, inode, &args)?;
            match self.check_settled(txn, inode) {
                // To empty it, the kernel opens it first. Whatever else is done with it asks for a lease, which is not granted.
                Err(_) if write => Ok(Opening { open, is_settled: false }),
                settled => settled.map(|()| Opening { open, is_settled: true }),
            }
        };
        let grant = |Opening { open, is_settled }: Opening, leases: &mut LeaseTable| {
            let held = leases.grant(session, inode, LeaseSet::ATTR);
            let content = if is_settled { LeaseSet::READ } else { LeaseSet::NONE };
            let open = self.opened(session, open, (handle, write), (held, content), leases);
            MetaReply::Opened { open, created: false }
        };
        // An unlinked file that is opened again (through /proc/self/fd) gets an orphan record; any other plain open changes nothing.
        let is_orphan = self.opens.lock().is_orphan(inode);
        if truncate || is_orphan {
            self.mutate(caller, number::OPEN, decide, grant)
        } else {
            self.inspect(caller, decide, grant)
        }
    }

    /// Refuses a session that has as much open as it may. Asked while the call is decided, so that one whose answer is kept is not refused when it comes again.
    fn admit_open(&self, session: SessionId) -> Result<(), NsError> {
        if self.opens.lock().has_room(session) {
            return Ok(());
        }
        tracing::debug!(%session, "a session has as many files open as it may");
        Err(Errno::EMFILE.into())
    }

    /// Lets each session have at most `max` descriptions open at this server from now on, instead of 1,048,576; what is open stays open. More
    /// are refused with `EMFILE`.
    pub fn limit_opens(&self, max: usize) {
        self.opens.lock().limit(max);
    }

    /// Notes the handle and grants what the opener may cache.
    fn opened(
        &self,
        session: SessionId,
        open: verb::OpenReply,
        (handle, write): (DescriptionId, bool),
        (held, content): (LeaseSet, LeaseSet),
        leases: &mut LeaseTable,
    ) -> OpenReply {
        let inode = open.attr.inode;
        let mut opens = self.opens.lock();
        // Nobody is asked for pages that such a session keeps for a moment only.
        let is_shared = !session.is_close_to_open() && opens.is_shared(session, inode, write);
        // A session that was ended meanwhile will not close what it opens.
        if leases.has_session(session) {
            opens.open(session, inode, (handle, write));
            if open.attr.nlink == 0 {
                // A close that found itself the last, and whose release has not come yet, has taken the note away.
                opens.note_orphan(inode);
            }
        }
        drop(opens);
        let kept_read = leases.held(session, inode).has(LeaseSet::READ);
        // Entries of a directory have a lease of their own.
        let is_file = open.attr.file_type() == FileType::Regular;
        let content = if is_file { leases.grant(session, inode, content) } else { LeaseSet::NONE };
        OpenReply {
            inline_bytes: open.inline_bytes,
            attr: open.attr,
            data: open.data,
            leases: held.with(content),
            recall_mark: leases.recall_mark(),
            is_shared,
            kept_read,
            durability: open.durability,
            proof: None,
        }
    }

    /// The last attributes, if the inode is gone with that.
    fn release(
        &self,
        caller: Caller<'_>,
        inode: InodeId,
        handle: DescriptionId,
    ) -> Result<Option<Attr>, Errno> {
        self.drop_locks_of(caller.op.session, handle, inode);
        match self.opens.lock().close(caller.op.session, inode, handle) {
            true => {}
            false => return Ok(None),
        }
        self.forget_orphan(caller.op, inode)
    }

    /// Closes that are told together. One that fails keeps none of the others open, and none waits for what is noted of reads.
    ///
    /// # Errors
    /// `EINVAL` where they are not all of one shard or too many, `EHOSTDOWN` when it has to come again.
    fn close_all(&self, caller: Caller<'_>, all: &[ToldClose]) -> Result<MetaReply, Errno> {
        let is_of = |home| all.iter().all(|close| close.inode.home() == home);
        if all.len() > CLOSES_MAX || !all.first().is_none_or(|first| is_of(first.inode.home())) {
            return Err(Errno::EINVAL);
        }
        let mut gone = Vec::new();
        let read = |close: &ToldClose| {
            close
                .atime
                .filter(|_| self.opened_by(caller.op.session, close.inode))
                .map(|atime| (close.inode, atime))
        };
        // Only of what it has open.
        let reads: Vec<(InodeId, Timespec)> = all.iter().filter_map(read).collect();
        for ToldClose { inode, handle, .. } in all {
            match self.release(caller, *inode, *handle) {
                Ok(last) => gone.extend(last),
                Err(Errno::EHOSTDOWN) => return Err(Errno::EHOSTDOWN),
                Err(errno) => {
                    tracing::warn!(%errno, %inode, "a close failed; the end of its session closes it")
                }
            }
        }
        for (inode, atime) in reads {
            if let Err(errno) = self.note_read(caller, inode, atime) {
                tracing::debug!(%errno, %inode, "when a file was read is not noted");
            }
        }
        Ok(MetaReply::Closed { gone })
    }

    fn opened_by(&self, session: SessionId, inode: InodeId) -> bool {
        self.opens.lock().opened(session, inode).is_some()
    }

    /// Notes when an inode was read that nobody has changed since.
    fn note_read(&self, caller: Caller<'_>, inode: InodeId, atime: Timespec) -> Result<(), Errno> {
        let report = verb::CommitWrite { atime: Some(atime), ..verb::CommitWrite::default() };
        self.mutate(
            caller,
            number::COMMIT_WRITE,
            |txn, context| {
                // Whoever sets times has changed it; what he has set stays.
                if txn.inode(inode)?.ctime <= atime {
                    verb::commit_write(txn, context, inode, &report)?;
                }
                Ok(())
            },
            |(), _| (),
        )
    }

    /// Has `session` not hold an inode without a name any more, unless it has it open.
    pub(crate) fn release_orphan(&self, inode: InodeId, session: SessionId) -> Result<(), Errno> {
        self.forget_orphan(OpId { session, sequence: 0 }, inode).map(drop)
    }

    /// The last attributes, if the inode is gone with that.
    fn forget_orphan(&self, op: OpId, inode: InodeId) -> Result<Option<Attr>, Errno> {
        let (creds, session) = (Credentials::root(), op.session);
        let forgotten = self.mutate(
            Caller::new(op, &creds),
            number::RELEASE,
            |txn, context| {
                let held = txn.find_inode(inode)?.map(|found| found.attr(inode));
                // ORDER: asked while nobody can open it. An open between the close and this one found the inode, and holds it.
                if (context.open_in)(inode).contains(&session) {
                    return Ok(None);
                }
                verb::release(txn, context, inode, session)?;
                last_of(txn, context, held)
            },
            |last, _| last,
        );
        if forgotten.is_err() {
            // It is closed, whether the caller comes again or not.
            self.unreleased.note(inode, session);
        }
        forgotten
    }

    /// The layout generation of a file's chunks, if it has any.
    pub(crate) fn generation_of(inode: &ashlar_namespace::Inode) -> Option<u32> {
        match &inode.kind {
            Kind::Regular(FileData::Chunks { layout, .. }) => Some(layout.generation),
            _ => None,
        }
    }
}
