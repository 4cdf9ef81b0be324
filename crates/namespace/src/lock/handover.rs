//! What a table has of the files of one shard, for the table of the server that has the shard next.

use super::{LockFrom, LockGrant, LockTable, LockWait, WaitArgs};
use ashlar_types::message::{LockKind, LockRequest};
use ashlar_types::{DescriptionId, SessionId, ShardId};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A lock that is held, as the request that would take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockHeld {
    /// Whose it is.
    pub session: SessionId,
    /// Through which description it was taken.
    pub through: DescriptionId,
    /// What was asked for.
    pub request: LockRequest,
}

/// A request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockWaiting {
    /// What it wants to hold.
    pub wanted: LockHeld,
    /// Its number in its session.
    pub ticket: u64,
    /// Whether the owner is known for an open file description.
    pub is_ofd: bool,
}

impl LockTable {
    /// All locks on files of `shard`, and the requests that wait there, those of a file in the order they came.
    pub fn of_shard(&self, shard: ShardId) -> (Vec<LockHeld>, Vec<LockWaiting>) {
        let (mut held, mut waiting) = (Vec::new(), Vec::new());
        for (inode, file) in self.files.iter().filter(|(inode, _)| inode.home() == shard) {
            held.extend(file.held(*inode));
            waiting.extend(file.waiting.iter().map(|waiter| LockWaiting {
                wanted: LockHeld {
                    session: waiter.id.session,
                    through: waiter.through,
                    request: waiter.request,
                },
                ticket: waiter.id.ticket,
                is_ofd: waiter.is_ofd,
            }));
        }
        (held, waiting)
    }

    /// Forgets all of that, without telling anybody.
    pub fn forget_shard(&mut self, shard: ShardId) {
        let of_shard = |inode: ashlar_types::InodeId| inode.home() == shard;
        let gone: usize =
            self.files.extract_if(|inode, _| of_shard(*inode)).map(|(_, file)| file.held_count()).sum();
        self.held -= gone;
        self.index.retain(|(_, inode)| !of_shard(*inode));
        let gone = self.waits.iter().filter(|(_, (inode, _))| of_shard(*inode)).map(|(wait, _)| *wait);
        for wait in gone.collect::<Vec<_>>() {
            self.forget_wait(wait);
        }
    }

    /// Takes over what [`LockTable::of_shard`] told. What cannot be held or waited for any more is put into `grants` with its errno.
    pub fn take_over(
        &mut self,
        (held, waiting): (&[LockHeld], &[LockWaiting]),
        now: Duration,
        grants: &mut Vec<LockGrant>,
    ) {
        for LockHeld { session, through, request } in held {
            debug_assert!(request.kind != LockKind::Unlock, "an unlock is not held");
            // Nobody else can have it, and there was room for it where it was.
            let _ = self.lock(LockFrom { session: *session, through: *through }, request, grants);
        }
        for LockWaiting { wanted, ticket, is_ofd } in waiting {
            let from = LockFrom { session: wanted.session, through: wanted.through };
            let args = WaitArgs { ticket: *ticket, is_ofd: *is_ofd, now };
            let outcome = match self.lock_wait(from, &wanted.request, args, grants) {
                Ok(LockWait::Queued) => continue,
                Ok(LockWait::Granted) => Ok(()),
                Err(errno) => Err(errno),
            };
            let wait = super::WaitId { session: wanted.session, ticket: *ticket };
            grants.push(LockGrant { wait, outcome });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::LockFrom;
    use ashlar_types::message::LockRange;
    use ashlar_types::{Errno, InodeId, LockOwner};

    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);

    fn from(session: SessionId) -> LockFrom {
        LockFrom { session, through: DescriptionId(session.0 * 10) }
    }

    fn request(inode: InodeId, owner: u64, kind: LockKind, range: (u64, u64), is_flock: bool) -> LockRequest {
        let range = LockRange { start: range.0, end: range.1 };
        LockRequest { inode, owner: LockOwner(owner), kind, range, pid: 7, is_flock }
    }

    #[test]
    fn locks_and_waits_of_a_shard_are_the_same_in_the_table_of_its_next_server() {
        let here = InodeId::new(ShardId(3), 5).unwrap();
        let other = InodeId::new(ShardId(4), 5).unwrap();
        let (mut table, mut next, mut grants) = (LockTable::default(), LockTable::default(), Vec::new());
        for inode in [here, other] {
            table.lock(from(A), &request(inode, 1, LockKind::Write, (0, 9), false), &mut grants).unwrap();
            table.lock(from(A), &request(inode, 1, LockKind::Read, (20, 29), false), &mut grants).unwrap();
            table.lock(from(B), &request(inode, 2, LockKind::Read, (25, 40), false), &mut grants).unwrap();
            table.lock(from(B), &request(inode, 2, LockKind::Write, (0, 0), true), &mut grants).unwrap();
        }
        let wait = |ticket| WaitArgs { ticket, is_ofd: false, now: Duration::ZERO };
        for (ticket, start) in [(1, 5), (2, 6)] {
            let wanted = request(here, 2, LockKind::Write, (start, 7), false);
            table.lock_wait(from(B), &wanted, wait(ticket), &mut grants).unwrap();
        }
        assert!(grants.is_empty());
        let (held, waiting) = table.of_shard(ShardId(3));
        assert_eq!((held.len(), waiting.len()), (4, 2));
        next.take_over((&held, &waiting), Duration::ZERO, &mut grants);
        assert!(grants.is_empty());
        table.forget_shard(ShardId(3));
        assert_eq!((table.held_count(), table.waiting_count()), (4, 0));
        assert_eq!((next.held_count(), next.waiting_count()), (4, 2));
        // The table that has forgotten gives to anybody what the other one does not.
        let wanted = request(here, 9, LockKind::Write, (0, 40), false);
        assert_eq!(next.lock(from(A), &wanted, &mut grants), Err(Errno::EAGAIN));
        table.lock(from(A), &wanted, &mut grants).unwrap();
        // Who waited first gets it first.
        next.release(A, (LockOwner(1), None), (here, false), &mut grants);
        let order: Vec<u64> = grants.iter().map(|grant| grant.wait.ticket).collect();
        assert_eq!(order, [1, 2]);
        assert!(grants.iter().all(|grant| grant.outcome == Ok(())));
    }
}
