//! Calls on names.

use super::in_directory::InDirectory;
use super::verb as number;
use crate::MetaService;
use crate::execute::itself;
use ashlar_kv::Snapshot;
use ashlar_namespace::key::Cookie;
use ashlar_namespace::lease::LeaseTable;
use ashlar_namespace::{NsError, OpContext, Txn, verb};
use ashlar_rpc::Caller;
use ashlar_types::message::{DirEntry, LeaseSet, MetaReply, MetaRequest, RenameFlags};
use ashlar_types::{Attr, Errno, InodeId, Name, SessionId};
use bytes::BytesMut;
use std::cell::RefCell;
use std::ops::ControlFlow;

/// Bytes a listed entry costs besides its name, with and without attributes, as the kernel packs them.
const ENTRY_BYTES: u32 = 24;
const ENTRY_BYTES_WITH_ATTRIBUTES: u32 = 152;
/// Most bytes of entries in one reply.
// LIMIT: a reply is built in memory while the lane is read-locked.
const LISTING_BYTES_MAX: u32 = 256 << 10;
/// Names of a listing that share a piece of memory, bytes.
const NAMES_BYTES: usize = 4096;

/// What `name` stands for before it is replaced, if anything; the verb itself decides what is an error.
fn victim(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    parent: InodeId,
    name: Name<'_>,
) -> Result<Option<Attr>, NsError> {
    match verb::lookup(txn, context, parent, name) {
        Ok(verb::LookupReply { attr: Some(attr), .. }) => Ok(Some(attr)),
        // The verb reads it, too.
        Ok(verb::LookupReply { inode, attr: None }) => {
            Ok(txn.find_inode(inode)?.map(|found| found.attr(inode)))
        }
        Err(NsError::Errno(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The last attributes of `victim` if its inode is gone now: somebody may still ask through a descriptor that is not an open file.
pub(super) fn last_of(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    victim: Option<Attr>,
) -> Result<Option<Attr>, NsError> {
    let Some(attr) = victim else { return Ok(None) };
    let is_gone = txn.is_gone(attr.inode)?;
    // With the last descriptor of what had lost its names before, nothing changes but that it is gone.
    let ctime = if attr.nlink == 0 { attr.ctime } else { context.now };
    Ok(is_gone.then_some(Attr { nlink: 0, ctime, ..attr }.for_programs()))
}

impl MetaService {
    /// The reply for a name in `parent` that stands for `attr`, with the leases that go with it.
    fn named(&self, session: SessionId, parent: InodeId, attr: Attr, leases: &mut LeaseTable) -> MetaReply {
        let held = self.grant_named(session, parent, attr.inode, leases);
        MetaReply::Attr { attr, leases: held }
    }

    /// Grants what goes with a name in `parent` that stands for `inode`. Of what another server has, that one grants leases.
    pub(super) fn grant_named(
        &self,
        session: SessionId,
        parent: InodeId,
        inode: InodeId,
        leases: &mut LeaseTable,
    ) -> LeaseSet {
        let of_name = leases.grant(session, parent, LeaseSet::ENTRIES);
        if !self.is_here(inode.home()) {
            return of_name;
        }
        of_name.with(leases.grant(session, inode, LeaseSet::ATTR))
    }

    pub(super) fn call_on_names(
        &self,
        caller: Caller<'_>,
        request: MetaRequest<'_>,
    ) -> Result<MetaReply, Errno> {
        let session = caller.op.session;
        match request {
            MetaRequest::Lookup { parent, name } => self.lookup(caller, parent, name),
            MetaRequest::Mkdir { parent, name, mode, umask } => self.mutate(
                caller,
                number::MKDIR,
                |txn, context| {
                    let made = verb::mkdir(txn, context, parent, name, mode, umask)?;
                    InDirectory::of(txn, caller, parent, made)
                },
                |reply, leases| {
                    let reply = reply.tell(caller, leases);
                    self.named(session, parent, reply.attr, leases)
                },
            ),
            MetaRequest::Mknod { parent, name, mode, umask, rdev } => self.mutate(
                caller,
                number::MKNOD,
                |txn, context| {
                    let args = verb::MknodArgs { mode, umask, rdev };
                    let made = verb::mknod(txn, context, parent, name, args)?;
                    InDirectory::of(txn, caller, parent, made)
                },
                |reply, leases| {
                    let reply = reply.tell(caller, leases);
                    self.named(session, parent, reply.attr, leases)
                },
            ),
            MetaRequest::Symlink { parent, name, target } => self.mutate(
                caller,
                number::SYMLINK,
                |txn, context| {
                    let made = verb::symlink(txn, context, parent, name, target)?;
                    InDirectory::of(txn, caller, parent, made)
                },
                |reply, leases| {
                    let reply = reply.tell(caller, leases);
                    self.named(session, parent, reply.attr, leases)
                },
            ),
            MetaRequest::Link { inode, parent, name } => self.mutate(
                caller,
                number::LINK,
                |txn, context| {
                    let reply = verb::link(txn, context, inode, parent, name)?;
                    txn.reveal(inode);
                    InDirectory::of(txn, caller, parent, reply)
                },
                |reply, leases| {
                    let reply = reply.tell(caller, leases);
                    self.named(session, parent, reply.attr, leases)
                },
            ),
            MetaRequest::Unlink { parent, name } => self.mutate(
                caller,
                number::UNLINK,
                |txn, context| {
                    let reply = verb::unlink(txn, context, parent, name)?;
                    let last = last_of(txn, context, Some(reply.before))?;
                    InDirectory::of(txn, caller, parent, last)
                },
                |last, leases| MetaReply::Removed { last: last.tell(caller, leases), leases: LeaseSet::NONE },
            ),
            MetaRequest::Rmdir { parent, name } => self.mutate(
                caller,
                number::RMDIR,
                |txn, context| {
                    let reply = verb::rmdir(txn, context, parent, name)?;
                    let last = last_of(txn, context, Some(reply.before))?;
                    InDirectory::of(txn, caller, parent, last)
                },
                |last, leases| MetaReply::Removed { last: last.tell(caller, leases), leases: LeaseSet::NONE },
            ),
            MetaRequest::Rename { from_parent, from_name, to_parent, to_name, flags } => {
                self.rename(caller, (from_parent, from_name), (to_parent, to_name), flags)
            }
            MetaRequest::Readdir { directory, after, bytes_max, with_attributes } => {
                self.readdir(caller, directory, Cookie(after), bytes_max, with_attributes)
            }
            _ => Err(Errno::EPROTO),
        }
    }

    fn rename(
        &self,
        caller: Caller<'_>,
        (from_parent, from_name): (InodeId, Name<'_>),
        (to_parent, to_name): (InodeId, Name<'_>),
        flags: RenameFlags,
    ) -> Result<MetaReply, Errno> {
        let session = caller.op.session;
        self.mutate(
            caller,
            number::RENAME,
            |txn, context| {
                let victim = victim(txn, context, to_parent, to_name)?;
                verb::rename(txn, context, from_parent, from_name, to_parent, to_name, flags)?;
                let last = last_of(txn, context, victim)?;
                // There is room for one.
                let caller = if from_parent == to_parent { caller } else { caller.alone() };
                InDirectory::of(txn, caller, from_parent, last)
            },
            |last, leases| {
                let last = last.tell(caller, leases);
                let both = [to_parent, from_parent];
                let named = if flags == RenameFlags::Exchange { &both[..] } else { &both[..1] };
                let keeps = from_parent == to_parent
                    || named.iter().all(|parent| match self.is_here(parent.home()) {
                        true => leases.keeps_entries(session, *parent),
                        false => leases.keeps_entries_elsewhere(),
                    });
                let leases = if keeps { LeaseSet::ENTRIES } else { LeaseSet::NONE };
                MetaReply::Removed { last, leases }
            },
        )
    }

    fn lookup(&self, caller: Caller<'_>, parent: InodeId, name: Name<'_>) -> Result<MetaReply, Errno> {
        let session = caller.op.session;
        self.inspect(
            caller,
            |txn, context| match verb::lookup(txn, context, parent, name) {
                Ok(reply) => Ok(Some(reply)),
                Err(error) if error.errno() == Errno::ENOENT => Ok(None),
                Err(error) => Err(error),
            },
            |found, leases| match found {
                Some(verb::LookupReply { attr: Some(attr), .. }) => self.named(session, parent, attr, leases),
                Some(verb::LookupReply { inode, attr: None }) => {
                    MetaReply::Elsewhere { inode, leases: leases.grant(session, parent, LeaseSet::ENTRIES) }
                }
                None => MetaReply::NoEntry { leases: leases.grant(session, parent, LeaseSet::ENTRIES) },
            },
        )
    }

    fn readdir(
        &self,
        caller: Caller<'_>,
        directory: InodeId,
        after: Cookie,
        bytes_max: u32,
        with_attributes: bool,
    ) -> Result<MetaReply, Errno> {
        let listed = self.list(caller, directory, after, bytes_max, with_attributes);
        if listed == Err(Errno::EACCES)
            && let Some(whole) = self.split_directory_of(directory)?
            && self.has_opened(caller.op, whole)?
        {
            // Who has a directory open was checked when he opened it, and of a slice the server of the directory knows that.
            let by_itself = itself();
            return self.list(Caller { creds: &by_itself, ..caller }, directory, after, bytes_max, false);
        }
        listed
    }

    /// The directory of which `inode` is a slice, if it is one.
    fn split_directory_of(&self, inode: InodeId) -> Result<Option<InodeId>, Errno> {
        let reader = self.lane.read();
        let snapshot: &dyn Snapshot = &reader;
        let found = Txn::new(snapshot).peek_inode(inode).map_err(|error| self.answer(&error))?;
        Ok(found.map(|found| found.shown_as(inode)).filter(|shown| *shown != inode))
    }

    fn list(
        &self,
        caller: Caller<'_>,
        directory: InodeId,
        after: Cookie,
        bytes_max: u32,
        with_attributes: bool,
    ) -> Result<MetaReply, Errno> {
        let session = caller.op.session;
        let bytes_max = bytes_max.min(LISTING_BYTES_MAX);
        let base = if with_attributes { ENTRY_BYTES_WITH_ATTRIBUTES } else { ENTRY_BYTES };
        let listed = RefCell::new(Vec::new());
        self.inspect(
            caller,
            |txn, context| {
                let mut entries = listed.borrow_mut();
                entries.clear();
                let mut bytes = 0;
                // A piece of memory for many names; a piece for each was a tenth of a listing's time.
                let mut names = BytesMut::with_capacity(NAMES_BYTES);
                verb::readdir(txn, context, directory, after, with_attributes, &mut |entry| {
                    bytes += base + entry.name.len() as u32;
                    if bytes > bytes_max && !entries.is_empty() {
                        return ControlFlow::Break(());
                    }
                    names.extend_from_slice(entry.name);
                    let name = names.split().freeze();
                    entries.push(DirEntry {
                        cookie: entry.cookie.0,
                        inode: entry.inode,
                        file_type: entry.file_type,
                        name,
                        attr: entry.attr,
                        leases: LeaseSet::NONE,
                    });
                    ControlFlow::Continue(())
                })
            },
            |is_end, leases| {
                let mut entries = listed.take();
                for entry in entries.iter_mut().filter(|entry| entry.attr.is_some()) {
                    entry.leases = self.grant_named(session, directory, entry.inode, leases);
                }
                MetaReply::Entries { entries, is_end }
            },
        )
    }
}
