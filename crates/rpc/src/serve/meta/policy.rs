//! The policy of the caller's node: who its users are, what it may change, and whose ids it is told. It is applied here and nowhere else; behind
//! it are only users of the servers.

use super::MetaEndpoint;
use crate::Caller;
use ashlar_types::message::{LeaseSet, MetaReply, MetaRequest, Reclaim, SetAttr};
use ashlar_types::policy::IdKind;
use ashlar_types::{Attr, Errno, InodeId, NodePolicy, Reach, SessionId};

/// Access lists, whose entries have ids in them.
const LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

impl MetaEndpoint {
    /// A call of a node under `policy`.
    pub(super) fn call_under(
        &self,
        policy: &NodePolicy,
        caller: Caller<'_>,
        request: MetaRequest<'_>,
    ) -> Result<MetaReply, Errno> {
        let Some(subtree) = &policy.subtree else { return self.call_as(policy, caller, request) };
        let map = self.map.read().clone();
        let caller = Caller { reach: Some(Reach::new(&map, subtree.fileset)), ..caller };
        self.call_within(subtree, caller, request, |request| self.call_as(policy, caller, request))
    }

    /// A call of one of the users of a node under `policy`.
    fn call_as(
        &self,
        policy: &NodePolicy,
        caller: Caller<'_>,
        request: MetaRequest<'_>,
    ) -> Result<MetaReply, Errno> {
        if policy.is_trusting() {
            return self.meta.call(caller, request);
        }
        let has_list = matches!(&request, MetaRequest::Getxattr { name, .. } if LISTS.contains(name));
        let mut reply = self.carry_out_under(policy, caller, request)?;
        attributes_of(&mut reply, |attr| policy.attr_to_node(attr));
        if let MetaReply::Bytes(list) = &mut reply
            && has_list
        {
            *list = policy.acl_to_node(list).into();
        }
        Ok(reply)
    }

    fn carry_out_under(
        &self,
        policy: &NodePolicy,
        caller: Caller<'_>,
        request: MetaRequest<'_>,
    ) -> Result<MetaReply, Errno> {
        // Whether a call was carried out must not depend on a policy that came after it.
        let unless_carried_out =
            |errno| match caller.slot.map(|_| self.meta.kept(caller, &request)).transpose()?.flatten() {
                Some(reply) => Ok(reply),
                None => Err(errno),
            };
        if policy.read_only && request.is_change() {
            return unless_carried_out(Errno::EROFS);
        }
        let creds = match policy.admit(caller.creds) {
            Ok(creds) => creds,
            Err(errno) => return unless_carried_out(errno),
        };
        if let Err(errno) = self.require_open(caller.op.session, &request) {
            return unless_carried_out(errno);
        }
        let mut list = Vec::new();
        let request = self.request_under(policy, caller.op.session, request, &mut list)?;
        match &request {
            // A reader tells at the end when it has read; what it may not change it need not know.
            MetaRequest::CommitWrite { done: false, .. } if policy.read_only => Ok(MetaReply::Done),
            _ => self.meta.call(Caller { creds: &creds, ..caller }, request),
        }
    }

    /// Refuses calls on content by who has not opened the file. The rights are checked when it is opened, so who asks without would pass by them.
    ///
    /// # Errors
    /// `EBADF`.
    fn require_open(&self, session: SessionId, request: &MetaRequest<'_>) -> Result<(), Errno> {
        let (inode, write) = match request {
            // WRITE is also taken for a truncation by name of a file that is only read.
            MetaRequest::ReadInline { inode, .. } | MetaRequest::AcquireData { inode, .. } => (*inode, false),
            MetaRequest::WriteInline { inode, .. }
            | MetaRequest::AcquireShared { inode }
            | MetaRequest::AllocateInline { inode, .. }
            | MetaRequest::ProposeLayout { inode }
            | MetaRequest::SetLayout { inode, .. } => (*inode, true),
            MetaRequest::CommitWrite { inode, .. } if request.is_change() => (*inode, true),
            _ => return Ok(()),
        };
        if self.has_open(session, inode, write) { Ok(()) } else { Err(Errno::EBADF) }
    }

    fn has_open(&self, session: SessionId, inode: InodeId, write: bool) -> bool {
        self.meta.opened(session, inode).is_some_and(|may_write| may_write || !write)
    }

    /// `request` with ids of the servers; `list` keeps what it borrows.
    fn request_under<'a>(
        &self,
        policy: &NodePolicy,
        session: SessionId,
        mut request: MetaRequest<'a>,
        list: &'a mut Vec<u8>,
    ) -> Result<MetaRequest<'a>, Errno> {
        match &mut request {
            MetaRequest::Setattr { inode, changes } => {
                changes_to_server(policy, changes)?;
                changes.has_handle &= self.has_open(session, *inode, true);
            }
            MetaRequest::SetattrRemoved { last, changes } => {
                policy.attr_to_server(last);
                changes_to_server(policy, changes)?;
            }
            MetaRequest::Setxattr { name, value, .. } if LISTS.contains(name) => {
                *list = policy.acl_to_server(value)?;
                *value = list;
            }
            // Who writes takes set-id bits away unless he has a capability, which the node's kernel believes and the servers do not.
            MetaRequest::WriteInline { kill_set_id, is_writeback, .. } if policy.takes_capabilities() => {
                *kill_set_id |= !*is_writeback;
            }
            MetaRequest::CommitWrite { mtime, atime, kill_set_id, keeps_capability, .. } => {
                *kill_set_id |= policy.takes_capabilities() && mtime.is_some() && !*keeps_capability;
                if policy.read_only {
                    *atime = None;
                }
            }
            MetaRequest::Closes { of } if policy.read_only => {
                of.iter_mut().for_each(|close| close.atime = None)
            }
            MetaRequest::Reclaim { part: Reclaim::Files(files), .. } if policy.read_only => {
                for file in files {
                    file.leases = file.leases.without(LeaseSet::WRITING);
                    file.handles.iter_mut().for_each(|(_, write)| *write = false);
                }
            }
            _ => {}
        }
        Ok(request)
    }
}

fn changes_to_server(policy: &NodePolicy, changes: &mut SetAttr) -> Result<(), Errno> {
    changes.uid = changes.uid.map(|id| policy.id_to_server(IdKind::User, id)).transpose()?;
    changes.gid = changes.gid.map(|id| policy.id_to_server(IdKind::Group, id)).transpose()?;
    Ok(())
}

/// Every reply is named, so that a new one is thought about.
fn attributes_of(reply: &mut MetaReply, mut change: impl FnMut(&mut Attr)) {
    match reply {
        MetaReply::Attr { attr, .. }
        | MetaReply::Granted { attr, .. }
        | MetaReply::WrittenInline { attr, .. } => change(attr),
        MetaReply::Removed { last, .. } => last.iter_mut().for_each(change),
        MetaReply::Closed { gone } => gone.iter_mut().for_each(change),
        MetaReply::Opened { open, .. } => change(&mut open.attr),
        MetaReply::Entries { entries, .. } => {
            entries.iter_mut().filter_map(|entry| entry.attr.as_mut()).for_each(change);
        }
        MetaReply::Done
        | MetaReply::NoEntry { .. }
        | MetaReply::Elsewhere { .. }
        | MetaReply::Bytes(_)
        | MetaReply::NeedsChunks
        | MetaReply::Layout { .. }
        | MetaReply::Policy { .. }
        | MetaReply::StatFs(_)
        | MetaReply::LockQueued
        | MetaReply::LockConflict { .. }
        | MetaReply::Reclaimed { .. }
        | MetaReply::LostSince(_)
        | MetaReply::Slices(_) => {}
    }
}
