//! What one side saw of one step, in a form that two sides can be compared by.

use crate::sys::Errno;
use crate::sys::attr::Stat;
use crate::sys::lock::Range;

use super::path::BytePath;

/// The answer to one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The call failed.
    Failed(Errno),
    /// The call succeeded and has no value.
    Done,
    /// Nothing was called: the slot named by the step holds no open file, or the step is left out by `allowed.rs`.
    Empty,
    /// A count, an offset, a mask.
    Value(i64),
    /// Content read.
    Bytes(Vec<u8>),
    /// Names, in a comparable order.
    Names(Vec<BytePath>),
    /// Attributes.
    Attributes(Attributes),
    /// The lock in the way.
    Lock(Option<Range>),
    /// A property this side must have by itself; the text says what was wrong. Never equal to anything but success.
    Violation(String),
}

/// The attributes two file systems must agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Type and permission bits.
    pub mode: u32,
    /// Number of names.
    pub nlink: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, for device nodes.
    pub rdev: u64,
    /// Size; `None` for directories, where it means nothing.
    pub size: Option<i64>,
    /// Access time if it was set explicitly (see [`explicit_time`]).
    pub atime: Option<(i64, i64)>,
    /// Modification time if it was set explicitly.
    pub mtime: Option<(i64, i64)>,
}

/// Test times are set before 2009 or after 2096, so a time in that range was set by hand and must be kept exactly; any
/// other time came from a clock and is only compared by when it changes.
#[must_use]
pub fn explicit_time(time: (i64, i64)) -> Option<(i64, i64)> {
    const CLOCK: std::ops::Range<i64> = 1_230_768_000..4_000_000_000;
    (!CLOCK.contains(&time.0)).then_some(time)
}

/// The modification time as far as two file systems must agree on it. Reads and writes of pipes and devices are stamped by the kernel
/// on its own file systems only: no request of them reaches others.
#[must_use]
pub fn comparable_mtime(stat: &Stat) -> Option<(i64, i64)> {
    if is_stamped(stat) { explicit_time(stat.mtime) } else { None }
}

/// Whether reads and writes of it reach the file system.
fn is_stamped(stat: &Stat) -> bool {
    matches!(stat.kind(), libc::S_IFREG | libc::S_IFDIR | libc::S_IFLNK)
}

impl From<&Stat> for Attributes {
    fn from(stat: &Stat) -> Self {
        let kind = stat.kind();
        Self {
            mode: stat.mode,
            nlink: stat.nlink,
            uid: stat.uid,
            gid: stat.gid,
            rdev: if kind == libc::S_IFCHR || kind == libc::S_IFBLK { stat.rdev } else { 0 },
            size: (kind != libc::S_IFDIR).then_some(stat.size),
            // Access times are lazy (relatime), so that only a value set by hand and still in place can be compared, and
            // a read may have replaced it on one side first: see `allowed.rs`.
            atime: None,
            mtime: comparable_mtime(stat),
        }
    }
}

/// How one object's times moved over a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// Neither before nor after there is such an object.
    Absent,
    /// It came into being.
    Appeared,
    /// It went away.
    Vanished,
    /// Another object has taken its name.
    Replaced,
    /// The same object as before.
    Same {
        /// Its modification time changed.
        mtime: bool,
        /// Its change time changed.
        ctime: bool,
    },
    /// The same object, but a time went backwards without being set by hand.
    Backwards,
}

/// Compares `before` and `after` of one object.
#[must_use]
pub fn moved(before: Option<&Stat>, after: Option<&Stat>) -> Moved {
    match (before, after) {
        (None, None) => Moved::Absent,
        (None, Some(_)) => Moved::Appeared,
        (Some(_), None) => Moved::Vanished,
        (Some(old), Some(new)) if old.ino != new.ino || old.kind() != new.kind() => Moved::Replaced,
        (Some(old), Some(new)) if new.ctime < old.ctime => Moved::Backwards,
        (Some(old), Some(new)) => {
            // Setting the modification time of a pipe to what only one of the sides has kept changes it on the other alone.
            let mtime = is_stamped(new) && old.mtime != new.mtime;
            Moved::Same { mtime, ctime: old.ctime != new.ctime }
        }
    }
}

/// Everything one side reports about one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The answer of the call.
    pub outcome: Outcome,
    /// The watched objects, in the order of `Op::touched` and `Op::touched_slots`.
    pub moved: Vec<Moved>,
}
