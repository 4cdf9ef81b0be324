//! The differences that are not failures: one table, each entry with its reason. Keep it as short as it can be.
//!
//! Besides these, a few things are not compared at all because POSIX leaves them to the file system: sizes of directories,
//! the order of directory entries and their positions, inode numbers (only who shares one), access times (relatime, lazily written), the
//! exact value of times taken from a clock (only when they change), and where holes begin and end (only that holes read as zeros).

use super::observe::{Moved, Outcome};
use super::op::Op;
use crate::sys::Errno;

/// One allowed difference between the outcomes of a step.
#[derive(Clone, Copy)]
pub struct AllowedOutcome {
    /// Why both answers are right.
    pub reason: &'static str,
    /// Whether this difference is it: operation, reference, file system under test.
    pub applies: fn(&Op, &Outcome, &Outcome) -> bool,
}

/// The table of outcomes.
pub const OUTCOMES: &[AllowedOutcome] = &[AllowedOutcome {
    reason: "a file system may share or lack the EOPNOTSUPP/EINVAL answer to a fallocate mode that punches without KEEP_SIZE; \
                 both refuse",
    applies: |op, left, right| {
        matches!(op, Op::Fallocate { mode, .. } if mode & libc::FALLOC_FL_PUNCH_HOLE != 0)
            && refused(left)
            && refused(right)
    },
}];

/// Extended attributes that are left out of the comparison of the trees: prefix and reason.
pub const UNCOMPARED_XATTRS: &[(&[u8], &str)] =
    &[(b"trusted.SGI_ACL_", "XFS shows its own copy of every access control list under this name")];

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
}
