//! Goal: what was locked through an open file description, and what is waited for through it, ends with that; nothing else does. Method: one table, two descriptions of one owner and another session.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

use ashlar_namespace::lock::{LockFrom, LockTable, LockWait, WaitArgs};
use ashlar_types::message::{LockKind, LockRange, LockRequest};
use ashlar_types::{DescriptionId, Errno, InodeId, LockOwner, SessionId};
use std::time::Duration;

const FILE: InodeId = InodeId(5);
const MINE: SessionId = SessionId(1);
const THEIRS: SessionId = SessionId(2);
const CLOSED: DescriptionId = DescriptionId(7);
const OPEN: DescriptionId = DescriptionId(8);

fn range(start: u64, end: u64) -> LockRequest {
    let range = LockRange { start, end };
    LockRequest { inode: FILE, owner: LockOwner(3), kind: LockKind::Write, range, pid: 1, is_flock: false }
}

fn mine(through: DescriptionId) -> LockFrom {
    LockFrom { session: MINE, through }
}

#[test]
fn and_nothing_else_does() {
    let (mut table, mut grants) = (LockTable::default(), Vec::new());
    let flock = LockRequest { is_flock: true, owner: LockOwner(7), ..range(0, 0) };
    table.lock(mine(CLOSED), &range(0, 9), &mut grants).unwrap();
    table.lock(mine(OPEN), &range(10, 19), &mut grants).unwrap();
    table.lock(mine(CLOSED), &flock, &mut grants).unwrap();
    // Descriptions are numbered by each session.
    table.lock(LockFrom { session: THEIRS, through: CLOSED }, &range(20, 29), &mut grants).unwrap();
    let wait = |ticket| WaitArgs { ticket, is_ofd: false, now: Duration::ZERO };
    assert_eq!(table.lock_wait(mine(CLOSED), &range(20, 24), wait(1), &mut grants), Ok(LockWait::Queued));
    assert_eq!(table.lock_wait(mine(OPEN), &range(25, 29), wait(2), &mut grants), Ok(LockWait::Queued));
    assert!(table.has_description(MINE, CLOSED, FILE));

    table.release_description(MINE, CLOSED, FILE, &mut grants);
    assert!(!table.has_description(MINE, CLOSED, FILE) && table.has_description(MINE, OPEN, FILE));
    assert!(!table.waits(MINE, 1) && table.waits(MINE, 2));
    let theirs = LockFrom { session: THEIRS, through: OPEN };
    assert_eq!(table.lock(theirs, &range(0, 9), &mut grants), Ok(()));
    assert_eq!(table.lock(theirs, &LockRequest { owner: LockOwner(8), ..flock }, &mut grants), Ok(()));
    assert_eq!(table.lock(theirs, &range(10, 19), &mut grants), Err(Errno::EAGAIN));
    assert!(grants.is_empty());

    table.release_description(THEIRS, CLOSED, FILE, &mut grants);
    assert_eq!(
        grants.iter().map(|grant| (grant.wait.ticket, grant.outcome)).collect::<Vec<_>>(),
        [(2, Ok(()))]
    );
    table.release_session(THEIRS, &mut grants);
    table.release_description(MINE, OPEN, FILE, &mut grants);
    assert_eq!((table.held_count(), table.waiting_count()), (0, 0));
}
