//! A node that sees one directory alone: for its calls there is nothing outside of it. What a call finds by names is looked at where it is decided
//! (`Caller::reach`); here it is what a call names by number, also where no record is read, and what an answer tells of the directory above.

use super::MetaEndpoint;
use super::proof::{of_each, reclaim_admitted};
use crate::Caller;
use ashlar_types::message::{Addressee, MetaReply, MetaRequest, Reclaim};
use ashlar_types::policy::Subtree;
use ashlar_types::{Errno, InodeId, Reach};

/// Whether there is an inode for a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Inside,
    Outside,
    /// There is none for anybody.
    Gone,
}

impl MetaEndpoint {
    /// Whether the map here has the fileset that an inode is to go into, so that whoever may reach it does not lose sight of the inode.
    pub(super) fn knows_fileset(&self, request: &MetaRequest<'_>) -> bool {
        match request {
            MetaRequest::SetFileset { fileset, .. } => self.map.read().fileset(*fileset).is_some(),
            _ => true,
        }
    }

    /// Has `call` carry out what is inside of `subtree`.
    ///
    /// # Errors
    /// `ESTALE`, as for an inode that is not there, and what `call` answers.
    pub(super) fn call_within(
        &self,
        subtree: &Subtree,
        caller: Caller<'_>,
        request: MetaRequest<'_>,
        call: impl FnOnce(MetaRequest<'_>) -> Result<MetaReply, Errno>,
    ) -> Result<MetaReply, Errno> {
        let Some(reach) = caller.reach else { return call(request) };
        if let MetaRequest::Reclaim { server, incarnation, part } = request {
            let with = |part| call(MetaRequest::Reclaim { server, incarnation, part });
            return self.reclaim_within(reach, part, with);
        }
        self.require_inside(reach, &request)?;
        let listed =
            if let MetaRequest::Readdir { directory, .. } = &request { Some(*directory) } else { None };
        let mut reply = call(request)?;
        if let MetaReply::Entries { entries, .. } = &mut reply
            && listed == Some(subtree.root)
        {
            // As at the root of any mount.
            let above = entries.iter_mut().filter(|entry| &entry.name[..] == b"..");
            above.for_each(|entry| entry.inode = subtree.root);
        }
        Ok(reply)
    }

    fn standing(&self, reach: Reach<'_>, inode: InodeId) -> Result<Standing, Errno> {
        Ok(match self.meta.fileset_of(inode)? {
            Some(fileset) if reach.has(fileset) => Standing::Inside,
            Some(_) => Standing::Outside,
            None => Standing::Gone,
        })
    }

    /// Every request is either about nothing, or gives back what the session has, or names an inode that is looked at.
    fn require_inside(&self, reach: Reach<'_>, request: &MetaRequest<'_>) -> Result<(), Errno> {
        let inode = match (request, request.addressee()) {
            (
                MetaRequest::Release { .. }
                | MetaRequest::Closes { .. }
                | MetaRequest::LockRelease { .. }
                | MetaRequest::LockCancel { .. }
                | MetaRequest::WithdrawLayout { .. }
                | MetaRequest::RecallDone { .. },
                _,
            ) => return Ok(()),
            (_, Addressee::Home(inode)) => inode,
            (_, Addressee::Server(_) | Addressee::All | Addressee::Any) => return Ok(()),
        };
        let is_lock = matches!(
            request,
            MetaRequest::Lock { .. } | MetaRequest::LockWait { .. } | MetaRequest::LockTest(_)
        );
        match self.standing(reach, inode)? {
            Standing::Inside => Ok(()),
            // Who is decided by a record finds none.
            Standing::Gone if !is_lock => Ok(()),
            Standing::Gone | Standing::Outside => Err(Errno::ESTALE),
        }
    }

    /// Takes what a session tells that it has, and leaves out what is outside.
    fn reclaim_within(
        &self,
        reach: Reach<'_>,
        part: Reclaim,
        call: impl FnOnce(Reclaim) -> Result<MetaReply, Errno>,
    ) -> Result<MetaReply, Errno> {
        let is_inside = |inode| match self.meta.has_home_of(inode) {
            true => Ok(self.standing(reach, inode)? == Standing::Inside),
            // To be told to who has it.
            false => Err(Errno::EHOSTDOWN),
        };
        match part {
            Reclaim::Files(files) => {
                let inside = of_each(files.iter().map(|file| is_inside(file.inode)))?;
                reclaim_admitted(files, inside, call)
            }
            Reclaim::Locks(mut locks) => {
                let mut outcome = Ok(());
                locks.retain(|(request, _)| {
                    is_inside(request.inode).unwrap_or_else(|errno| {
                        if errno == Errno::EHOSTDOWN {
                            outcome = Err(errno);
                        }
                        false
                    })
                });
                outcome?;
                call(Reclaim::Locks(locks))
            }
            other @ (Reclaim::Done | Reclaim::Losses) => call(other),
        }
    }
}
