//! The hand-over of a metadata shard of one copy.
//!
//! The sender asks a manager for the shard to be the receiver's, by the epoch of a map. Each start of a metadata server makes a new epoch before it serves, so a question
//! is never carried out after one of both has forgotten what they agreed on, however late it comes.
//!
//! ```text
//!  Looking ──whole──▶ Ready(epoch) ──ask──▶ Unknown(epoch) ─┬─ done ──────▶ Given     the map says so; never served here again
//!     ▲                   ▲                      │          └─ refused ─┐
//!     └── newer map ── Refused(epoch) ◀──────────┴──────────────────────┘
//! ```

use ashlar_types::Epoch;

/// What the sender is to do next. The shard is closed meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Look at the map, and then ask the receiver whether it has everything.
    Look,
    /// Ask a manager, by the map of that epoch.
    Ask(Epoch),
    /// Wait, not for long, for a map that is newer than that.
    AwaitNewer(Epoch),
    /// Wait for the map that says so.
    AwaitMap,
}

/// What has become of a question to a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Told {
    /// The map says so.
    Done,
    /// It does not, and will not by this question or one before it.
    Refused,
    /// No manager has got the question, and none will.
    NotAsked,
    /// Nobody knows. It may be carried out at any time from now on.
    Unknown,
}

/// A shard that is closed and is to be given away.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Deciding {
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Looking,
    Ready(Epoch),
    Unknown { seen: Epoch, is_first: bool },
    Refused(Epoch),
    Given,
}

impl Default for Deciding {
    fn default() -> Deciding {
        Deciding { stage: Stage::Looking }
    }
}

impl Deciding {
    /// What to do next.
    pub fn step(&self) -> Step {
        match self.stage {
            Stage::Looking => Step::Look,
            Stage::Ready(seen) => Step::Ask(seen),
            // INVARIANT: by the same epoch. The answer to one of them is the answer to all.
            Stage::Unknown { seen, .. } => Step::Ask(seen),
            Stage::Refused(seen) => Step::AwaitNewer(seen),
            Stage::Given => Step::AwaitMap,
        }
    }

    /// The receiver has everything, asked after the map of `seen` was looked at.
    pub fn whole(&mut self, seen: Epoch) {
        debug_assert_eq!(self.stage, Stage::Looking);
        self.stage = Stage::Ready(seen);
    }

    /// The question that [`Deciding::step`] has said is about to be asked.
    pub fn asking(&mut self) {
        self.stage = match self.stage {
            Stage::Ready(seen) => Stage::Unknown { seen, is_first: true },
            Stage::Unknown { seen, .. } => Stage::Unknown { seen, is_first: false },
            other => other,
        };
    }

    /// What has become of the question that [`Deciding::step`] has said. [`Told::Refused`] must be proven to be so of the newest map: a manager that is behind may not know yet
    /// of the map of the question.
    pub fn told(&mut self, told: Told) {
        self.stage = match (told, self.stage) {
            (Told::Done, _) => Stage::Given,
            (Told::Refused, Stage::Unknown { seen, .. }) => Stage::Refused(seen),
            // It is the only one there is: nothing can come of it.
            (Told::NotAsked, Stage::Unknown { seen, is_first: true }) => Stage::Ready(seen),
            (Told::Unknown, Stage::Unknown { seen, .. }) => Stage::Unknown { seen, is_first: false },
            // What comes of an earlier question is not known.
            (_, before) => before,
        };
    }

    /// There is a newer map than the one by which it was refused.
    pub fn newer(&mut self) {
        if let Stage::Refused(_) = self.stage {
            self.stage = Stage::Looking;
        }
    }

    /// The map says that the shard is the receiver's.
    pub fn given(&mut self) {
        self.stage = Stage::Given;
    }

    /// Whether the shard may be served here again, and the receiver be told to forget it: no question can be carried out any more.
    pub fn may_keep(&self) -> bool {
        !matches!(self.stage, Stage::Unknown { .. } | Stage::Given)
    }
}

/// What a manager makes of a question for a shard of which the map of `epoch` says that `primary` has it: whether it is carried out now, or was before; `None`: neither.
pub fn transfer<N: Eq>(epoch: Epoch, primary: &N, from: &N, seen: Epoch) -> Option<bool> {
    if primary != from {
        // Asked for once more: the answer was lost, and the shard may have gone on since. Only who has it gives it away, so it was.
        return Some(false);
    }
    (epoch == seen).then_some(true)
}

/// What a start makes of a shard of which it is noted that it was coming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It has come, all of it.
    Come,
    /// It was given to this server before all of it was here. That must not be.
    NotWhole,
    /// It does not come: by no question that was asked before this start.
    DoesNotCome,
}

/// By the map of the start's own epoch: whether the shard `is_mine`, and whether all of it is here.
pub fn found_at_start(is_whole: bool, is_mine: bool) -> Found {
    match (is_mine, is_whole) {
        (true, true) => Found::Come,
        (true, false) => Found::NotWhole,
        (false, _) => Found::DoesNotCome,
    }
}

/// Whether a shard that is whole here does not come any more: its sender, which has the map of `told`, knows of no such move, and the map here, of `epoch`, is as new and does not say that it
/// has come.
pub fn does_not_come(epoch: Epoch, told: Epoch, is_mine: bool) -> bool {
    epoch >= told && !is_mine
}
