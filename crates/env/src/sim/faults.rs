//! What goes wrong on a simulated disk, and when.

/// Kinds of operations that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultOp {
    /// `read_at`.
    Read,
    /// `write_at`, `write_vectored_at`, `punch_hole` and `set_len`.
    Write,
    /// `allocate`.
    Allocate,
    /// `sync_data`.
    Sync,
    /// `sync_dir`.
    SyncDir,
    /// `open` that may create, `create_dir`, `remove` and `rename`.
    Name,
}

/// Operations carried out since the disk was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounts {
    /// `read_at`.
    pub reads: u64,
    /// `write_at`, `write_vectored_at`, `punch_hole` and `set_len`.
    pub writes: u64,
    /// `allocate`.
    pub allocations: u64,
    /// `sync_data`.
    pub syncs: u64,
    /// `sync_dir`.
    pub dir_syncs: u64,
    /// `open` that may create, `create_dir`, `remove` and `rename`.
    pub names: u64,
}

impl DiskCounts {
    fn count(&mut self, op: FaultOp) {
        let counter = match op {
            FaultOp::Read => &mut self.reads,
            FaultOp::Write => &mut self.writes,
            FaultOp::Allocate => &mut self.allocations,
            FaultOp::Sync => &mut self.syncs,
            FaultOp::SyncDir => &mut self.dir_syncs,
            FaultOp::Name => &mut self.names,
        };
        *counter += 1;
    }
}

/// What becomes of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It works.
    Proceed,
    /// It fails with this errno, perhaps half done.
    Fail(i32),
    /// Power goes off in the middle of it.
    PowerCut,
    /// Power is off already.
    PowerIsOff,
}

/// The faults in store.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// (operation, how many of them until it fails, errno).
    failures: Vec<(FaultOp, u64, i32)>,
    /// Changing operations until the power goes off.
    power_cut_in: Option<u64>,
    pub(super) is_power_off: bool,
    pub(super) is_frozen: bool,
    pub(super) counts: DiskCounts,
}

impl Plan {
    pub(super) fn fail_nth(&mut self, op: FaultOp, nth: u64, errno: i32) {
        self.failures.push((op, nth.max(1), errno));
    }

    /// Failures that have not come yet.
    pub(super) fn failures_left(&self) -> usize {
        self.failures.len()
    }

    /// Those do not come.
    pub(super) fn forget_failures(&mut self) {
        self.failures.clear();
    }

    pub(super) fn cut_power_after(&mut self, operations: u64) {
        self.power_cut_in = Some(operations);
    }

    /// Power is back; no fault is left.
    pub(super) fn reset(&mut self) {
        *self = Plan { counts: self.counts, ..Plan::default() };
    }

    pub(super) fn judge(&mut self, op: FaultOp) -> Verdict {
        if self.is_power_off {
            return Verdict::PowerIsOff;
        }
        self.counts.count(op);
        if op != FaultOp::Read
            && let Some(left) = &mut self.power_cut_in
        {
            if *left == 0 {
                self.is_power_off = true;
                return Verdict::PowerCut;
            }
            *left -= 1;
        }
        let mut verdict = Verdict::Proceed;
        self.failures.retain_mut(|(failing, left, errno)| {
            if *failing != op {
                return true;
            }
            *left -= 1;
            if *left == 0 {
                verdict = Verdict::Fail(*errno);
            }
            *left > 0
        });
        verdict
    }
}
