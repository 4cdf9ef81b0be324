//! The differences that are not failures: one table, each entry with its reason. Keep it as short as it can be.
//!
//! Besides these, a few things are not compared at all because POSIX leaves them to the file system: sizes of directories,
//! the order of directory entries and their positions, inode numbers (only who shares one), access times (relatime, lazily written), the
//! exact value of times taken from a clock (only when they change), and where holes begin and end (only that holes read as zeros).

use super::observe::{Moved, Outcome};
use super::op::Op;
use crate::sys::Errno;
use crate::sys::attr::Stat;
use crate::sys::lock::Range;

/// One allowed difference between the outcomes of a step.
#[derive(Clone, Copy)]
pub struct AllowedOutcome {
    /// Why both answers are right.
    pub reason: &'static str,
    /// Whether this difference is it: operation, reference, file system under test.
    pub applies: fn(&Op, &Outcome, &Outcome) -> bool,
}

/// The table of outcomes.
pub const OUTCOMES: &[AllowedOutcome] = &[
    AllowedOutcome {
        reason: "a file system may share or lack the EOPNOTSUPP/EINVAL answer to a fallocate mode that punches without KEEP_SIZE; \
                 both refuse",
        applies: |op, left, right| {
            matches!(op, Op::Fallocate { mode, .. } if mode & libc::FALLOC_FL_PUNCH_HOLE != 0)
                && refused(left)
                && refused(right)
        },
    },
    AllowedOutcome {
        reason: "where locks of several owners are in the way, POSIX lets F_GETLK show any of them; both show one",
        applies: |op, left, right| match (op, left, right) {
            (Op::Getlk { range, .. }, Outcome::Lock(Some(left)), Outcome::Lock(Some(right))) => {
                blocks(left, range) && blocks(right, range)
            }
            _ => false,
        },
    },
];

/// Whether somebody else's lock `held` is in the way of `wanted`.
fn blocks(held: &Range, wanted: &Range) -> bool {
    let end = |range: &Range| if range.len == 0 { i64::MAX } else { range.start + range.len };
    let overlap = held.start < end(wanted) && wanted.start < end(held);
    overlap && (held.kind == libc::F_WRLCK || wanted.kind == libc::F_WRLCK)
}

/// Extended attributes that are left out of the comparison of the trees: prefix and reason.
pub const UNCOMPARED_XATTRS: &[(&[u8], &str)] =
    &[(b"trusted.SGI_ACL_", "XFS shows its own copy of every access control list under this name")];

/// Whether a step is left out on both sides, because what it does is not to be told from something else below the kernel: uid of who acts,
/// the file the step names, and whether that is open for writing.
///
/// The kernel's FUSE sends the same request for `chown(path, -1, -1)` and before a write that clears set-id bits: a change of attributes that
/// changes none. Without a descriptor open for writing it can only be the former, which is refused to all but the owner; with one, the
/// bits must be cleared for whoever asks, or writes would fail.
#[must_use]
pub fn is_left_out(op: &Op, uid: u32, file: &Stat, is_open_for_writing: bool) -> bool {
    const KEEP: u32 = u32::MAX;
    let changes_no_owner =
        matches!(op, Op::Chown { uid: KEEP, gid: KEEP, .. } | Op::Fchown { uid: KEEP, gid: KEEP, .. });
    let has_set_id = file.kind() == libc::S_IFREG && file.mode & (libc::S_ISUID | libc::S_ISGID) != 0;
    changes_no_owner && has_set_id && uid != 0 && uid != file.uid && is_open_for_writing
}

fn refused(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Failed(Errno(libc::EOPNOTSUPP | libc::EINVAL)))
}

/// Whether the outcomes of a step agree, or may differ by the table.
#[must_use]
pub fn outcomes_agree(op: &Op, left: &Outcome, right: &Outcome) -> bool {
    let broken = |outcome: &Outcome| matches!(outcome, Outcome::Violation(_));
    if broken(left) || broken(right) {
        return false;
    }
    left == right || OUTCOMES.iter().any(|allowed| (allowed.applies)(op, left, right))
}

/// Whether the times of a watched object moved alike. `fine` says that the reference's clock is fine enough for an unmoved
/// time to mean something.
#[must_use]
pub fn moves_agree(op: &Op, fine: bool, left: Moved, right: Moved) -> bool {
    match (left, right) {
        (Moved::Backwards, _) | (_, Moved::Backwards) => false,
        (Moved::Same { mtime: lm, ctime: lc }, Moved::Same { mtime: rm, ctime: rc }) => {
            // POSIX allows the times of a write through a mapping to change at any moment between the store and msync, and file
            // systems differ in whether msync of a page that was dirty before changes them again.
            let mapped = matches!(op, Op::MapWrite { .. });
            let agree = |left: bool, right: bool| left == right || mapped || (!left && !fine);
            agree(lm, rm) && agree(lc, rc)
        }
        _ => left == right,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::lock::LockOwner;

    #[test]
    fn a_violation_never_agrees_even_with_itself() {
        let broken = Outcome::Violation("x".into());
        let op = Op::Umask { mask: 0 };
        assert!(!outcomes_agree(&op, &broken, &broken));
        assert!(outcomes_agree(&op, &Outcome::Value(1), &Outcome::Value(1)));
        assert!(!outcomes_agree(&op, &Outcome::Value(1), &Outcome::Value(2)));
    }

    #[test]
    fn a_time_that_stays_on_a_coarse_reference_says_nothing() {
        let op = Op::Umask { mask: 0 };
        let still = Moved::Same { mtime: false, ctime: false };
        let changed = Moved::Same { mtime: false, ctime: true };
        assert!(!moves_agree(&op, true, still, changed));
        assert!(moves_agree(&op, false, still, changed));
        assert!(!moves_agree(&op, false, changed, still));
        assert!(!moves_agree(&op, false, Moved::Appeared, Moved::Absent));
    }

    #[test]
    fn only_a_chown_to_nobody_of_an_open_set_id_file_by_a_stranger_is_left_out() {
        let path = tempfile::NamedTempFile::new().expect("a file");
        let plain = crate::sys::attr::fstat(std::os::fd::AsFd::as_fd(path.as_file())).expect("open");
        let set_id = Stat { mode: libc::S_IFREG | 0o4755, uid: 7, ..plain };
        let chown = |uid| Op::Fchown { slot: crate::differential::op::Slot(0), uid, gid: u32::MAX };
        assert!(is_left_out(&chown(u32::MAX), 8, &set_id, true));
        assert!(!is_left_out(&chown(u32::MAX), 8, &set_id, false));
        assert!(!is_left_out(&chown(8), 8, &set_id, true));
        for uid in [0, 7] {
            assert!(!is_left_out(&chown(u32::MAX), uid, &set_id, true));
        }
        assert!(!is_left_out(&chown(u32::MAX), 8, &Stat { mode: libc::S_IFREG | 0o755, ..set_id }, true));
    }

    #[test]
    fn any_lock_that_is_in_the_way_may_be_shown_and_no_other() {
        let range = |kind, start, len| Range { kind, start, len };
        let shown = |range| Outcome::Lock(Some(range));
        let wanted = range(libc::F_WRLCK, 15, 34);
        let slot = crate::differential::op::Slot(0);
        let op = Op::Getlk { slot, owner: LockOwner::Description, range: wanted };
        let (first, second) = (range(libc::F_RDLCK, 48, 24), range(libc::F_RDLCK, 10, 0));
        assert!(outcomes_agree(&op, &shown(first), &shown(second)));
        assert!(!outcomes_agree(&op, &shown(first), &shown(range(libc::F_RDLCK, 49, 1))));
        assert!(!outcomes_agree(&op, &shown(first), &Outcome::Lock(None)));
        let read = Op::Getlk { slot, owner: LockOwner::Description, range: range(libc::F_RDLCK, 15, 34) };
        assert!(!outcomes_agree(&read, &shown(range(libc::F_WRLCK, 20, 1)), &shown(first)));
    }
}
