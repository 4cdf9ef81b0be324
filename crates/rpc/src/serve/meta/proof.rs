//! Proofs of opens: whoever opens something is given one, and what a session tells a server that does not know what it has is believed
//! of files alone whose open it proves. Before the policy of the node is looked at, so that what this leaves out is nothing for anybody behind it.

use super::{MetaEndpoint, RemoteSession};
use crate::capability::{is_proven, prove, ready};
use crate::wire::MetaAnswer;
use ashlar_types::message::{LeaseSet, MetaReply, MetaRequest, Reclaim, ReclaimedFile};
use ashlar_types::{
    ClusterId, Errno, InodeId, NodeId, OpenProof, ProvenOpen, SecretKey, SessionId, Timespec,
};
use ring::hmac;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What is known of a file that a session tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It has it open.
    Proven,
    Unproven,
    /// There is none.
    Gone,
}

/// What makes proofs of opens, and checks them.
pub struct Proofs {
    cluster: ClusterId,
    key: hmac::Key,
    refused: AtomicU64,
}

impl Proofs {
    /// For file system `cluster`, by its `key` for that.
    pub fn new(cluster: ClusterId, key: &SecretKey) -> Proofs {
        Proofs { cluster, key: ready(key), refused: AtomicU64::new(0) }
    }

    /// How many files and locks clients have claimed to have since the server was started without proving that they have the file open.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Of an open by `node`.
    fn prove(&self, node: NodeId, (inode, born): (InodeId, Timespec), write: bool) -> OpenProof {
        prove(&self.key, &ProvenOpen { cluster: self.cluster, node, inode, born, write })
    }

    /// Whether `node` proves what it tells of `file`, which was made at `born`. Leases that go beyond the proof are left out: a file that is only read is also truncated by its name under
    /// a lease for writing.
    fn admit(&self, node: NodeId, file: &mut ReclaimedFile, born: Timespec) -> bool {
        let Some(proof) = file.proof else { return false };
        let (cluster, inode) = (self.cluster, file.inode);
        let opened = ProvenOpen { cluster, node, inode, born, write: proof.write };
        let is_for_less = proof.write || file.handles.iter().all(|(_, write)| !write);
        if !is_for_less || !is_proven(&self.key, &opened, &proof) {
            return false;
        }
        if !proof.write {
            file.leases = file.leases.without(LeaseSet::WRITING);
        }
        true
    }
}

/// Who opens something for neither reading nor writing has passed no check of rights, and could read it all the same: so it is asked whether he may.
pub(super) fn for_something(mut request: MetaRequest<'_>) -> MetaRequest<'_> {
    if let MetaRequest::Open { read, write, .. } | MetaRequest::Create { read, write, .. } = &mut request {
        *read |= !*write;
    }
    request
}

/// Whether what `request` opens is open for writing then.
pub(super) fn opens_for_writing(request: &MetaRequest<'_>) -> bool {
    match request {
        MetaRequest::Open { write, .. } | MetaRequest::Create { write, .. } => *write,
        MetaRequest::Tmpfile { .. } => true,
        _ => false,
    }
}

/// What was found of each file of a message. What is wrong with one, such as a record that cannot be read, takes none of the others; that some are to be told another server is of the whole.
pub(super) fn of_each<T>(
    found: impl Iterator<Item = Result<T, Errno>>,
) -> Result<Vec<Result<T, Errno>>, Errno> {
    let of_one = |one| match one {
        Err(Errno::EHOSTDOWN) => Err(Errno::EHOSTDOWN),
        other => Ok(other),
    };
    found.map(of_one).collect()
}

/// Has `call` take those of `files` that are admitted, and answers for all, in their order: `ESTALE` for those that are not.
pub(super) fn reclaim_admitted(
    files: Vec<ReclaimedFile>,
    admitted: Vec<Result<bool, Errno>>,
    call: impl FnOnce(Reclaim) -> Result<MetaReply, Errno>,
) -> Result<MetaReply, Errno> {
    let told = files.into_iter().zip(&admitted);
    let told = told.filter_map(|(file, is_admitted)| (*is_admitted == Ok(true)).then_some(file));
    let MetaReply::Reclaimed { files } = call(Reclaim::Files(told.collect()))? else {
        return Err(Errno::EPROTO);
    };
    let mut files = files.into_iter();
    let answer = |is_admitted: Result<bool, Errno>| match is_admitted? {
        true => files.next().unwrap_or(Err(Errno::EPROTO)),
        false => Err(Errno::ESTALE),
    };
    Ok(MetaReply::Reclaimed { files: admitted.into_iter().map(answer).collect() })
}

impl MetaEndpoint {
    /// `answer`, with a proof if it tells that something was opened.
    pub(super) fn with_proof(
        &self,
        session: &RemoteSession,
        may_write: bool,
        answer: MetaAnswer,
    ) -> MetaAnswer {
        let (reply, granted) = match answer {
            MetaAnswer::Reply(reply) => (reply, None),
            MetaAnswer::Granted(reply, granted) => (reply, Some(granted)),
            other => return other,
        };
        match (&reply, granted) {
            (MetaReply::Opened { open, .. }, granted) => {
                let proof =
                    self.proofs.prove(session.owner.node, (open.attr.inode, open.attr.btime), may_write);
                MetaAnswer::Opened(reply, proof, granted)
            }
            (_, Some(granted)) => MetaAnswer::Granted(reply, granted),
            (_, None) => MetaAnswer::Reply(reply),
        }
    }

    /// Whether a node proves what it tells of `file`. One that is gone proves nothing and claims nothing.
    fn standing_of(&self, node: NodeId, file: &mut ReclaimedFile) -> Result<Standing, Errno> {
        Ok(match self.meta.born(file.inode)? {
            Some(born) if self.proofs.admit(node, file, born) => Standing::Proven,
            Some(_) => Standing::Unproven,
            None if self.meta.has_home_of(file.inode) => Standing::Gone,
            // To be told to who has it.
            None => return Err(Errno::EHOSTDOWN),
        })
    }

    /// Takes what a session of a node tells that it has, and leaves out what it does not prove: such a file is `ESTALE`, and the others are as if it had not
    /// been told.
    pub(super) fn reclaim_proven(
        &self,
        (session, node): (SessionId, NodeId),
        part: Reclaim,
        call: impl FnOnce(Reclaim) -> Result<MetaReply, Errno>,
    ) -> Result<MetaReply, Errno> {
        match part {
            Reclaim::Files(mut files) => {
                let standings = of_each(files.iter_mut().map(|file| self.standing_of(node, file)))?;
                self.note_unproven((session, node), "is not proven to be open", || {
                    let of_all = files.iter().zip(&standings);
                    of_all
                        .filter(|(_, is)| **is == Ok(Standing::Unproven))
                        .map(|(file, _)| file.inode)
                        .collect()
                });
                let admitted =
                    standings.iter().map(|standing| Ok((*standing)? == Standing::Proven)).collect();
                reclaim_admitted(files, admitted, call)
            }
            Reclaim::Locks(mut locks) => {
                // To be told to who has it, which knows what is open there.
                if !locks.iter().all(|(lock, _)| self.meta.has_home_of(lock.inode)) {
                    return Err(Errno::EHOSTDOWN);
                }
                // Files are told first.
                let is_open = |inode| self.meta.opened(session, inode).is_some();
                self.note_unproven((session, node), "is locked and not proven to be open", || {
                    locks.iter().map(|(lock, _)| lock.inode).filter(|inode| !is_open(*inode)).collect()
                });
                locks.retain(|(lock, _)| is_open(lock.inode));
                call(Reclaim::Locks(locks))
            }
            other @ (Reclaim::Done | Reclaim::Losses) => call(other),
        }
    }

    /// Counts and tells claims that are not believed; one line for all of a message.
    fn note_unproven(
        &self,
        (session, node): (SessionId, NodeId),
        what: &str,
        which: impl FnOnce() -> Vec<InodeId>,
    ) {
        let which = which();
        let Some(inode) = which.first() else { return };
        self.proofs.refused.fetch_add(which.len() as u64, Relaxed);
        tracing::warn!(%session, %node, %inode, count = which.len(), "what a mount claims to have {what}; it is refused for these files");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ashlar_types::DescriptionId;

    const NODE: NodeId = NodeId(4);
    const BORN: Timespec = Timespec { secs: 8, nanos: 9 };

    fn proofs() -> Proofs {
        Proofs::new(ClusterId([1; 16]), &SecretKey([7; 32]))
    }

    fn file(proof: Option<OpenProof>, writes: &[bool]) -> ReclaimedFile {
        let handles = writes.iter().enumerate().map(|(at, write)| (DescriptionId(at as u64), *write));
        ReclaimedFile { inode: InodeId(5), handles: handles.collect(), leases: LeaseSet::CONTENT, proof }
    }

    #[test]
    fn a_file_of_which_nothing_can_be_read_takes_none_of_the_others() {
        let files: Vec<ReclaimedFile> =
            (1..5).map(|inode| ReclaimedFile { inode: InodeId(inode), ..file(None, &[false]) }).collect();
        let found = [Ok(true), Err(Errno::EIO), Ok(false), Ok(true)];
        let admitted = of_each(found.into_iter()).unwrap();
        let call = |part| {
            let Reclaim::Files(files) = part else { return Err(Errno::EPROTO) };
            assert_eq!(files.iter().map(|file| file.inode.0).collect::<Vec<_>>(), [1, 4]);
            Ok(MetaReply::Reclaimed { files: vec![Err(Errno::EAGAIN), Err(Errno::ENOSPC)] })
        };
        let MetaReply::Reclaimed { files } = reclaim_admitted(files, admitted, call).unwrap() else {
            panic!()
        };
        let answers: Vec<Errno> = files.into_iter().map(|answer| answer.unwrap_err()).collect();
        assert_eq!(answers, [Errno::EAGAIN, Errno::EIO, Errno::ESTALE, Errno::ENOSPC]);
        // To be told another server: all of it.
        let elsewhere = [Ok(true), Err(Errno::EIO), Err(Errno::EHOSTDOWN)];
        assert_eq!(of_each(elsewhere.into_iter()), Err(Errno::EHOSTDOWN));
    }

    #[test]
    fn a_file_is_told_as_far_as_its_proof_goes() {
        let proofs = proofs();
        let proof = |write| Some(proofs.prove(NODE, (InodeId(5), BORN), write));
        assert!(!proofs.admit(NODE, &mut file(None, &[false]), BORN));
        // One that is just being closed has no description any more.
        assert!(!proofs.admit(NODE, &mut file(None, &[]), BORN));
        let mut reading = file(proof(false), &[false, false]);
        assert!(proofs.admit(NODE, &mut reading, BORN));
        assert_eq!(reading.leases, LeaseSet::READ, "a reader has no lease for writing");
        assert!(!proofs.admit(NODE, &mut file(proof(false), &[false, true]), BORN));
        let mut writing = file(proof(true), &[false, true]);
        assert!(proofs.admit(NODE, &mut writing, BORN));
        assert_eq!(writing.leases, LeaseSet::CONTENT);
        assert!(proofs.admit(NODE, &mut file(proof(true), &[false]), BORN));
        // The number was given to another file.
        let later = Timespec { nanos: 10, ..BORN };
        assert!(!proofs.admit(NODE, &mut file(proof(true), &[false]), later));
        assert!(!proofs.admit(NodeId(3), &mut file(proof(true), &[false]), BORN));
        let other = Some(proofs.prove(NODE, (InodeId(6), BORN), true));
        assert!(!proofs.admit(NODE, &mut file(other, &[false]), BORN));
        let pretended = proof(false).map(|proof| OpenProof { write: true, ..proof });
        assert!(!proofs.admit(NODE, &mut file(pretended, &[true]), BORN));
    }
}
