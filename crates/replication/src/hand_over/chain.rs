//! The hand-over of a chain of one copy.
//!
//! ```text
//!             Open ──note──▶ Noted ──close──▶ Closed ──seal──▶ Sealed ──ask──▶ Asked ─┬─ proven ─▶ Left    answers nobody any more
//!                             ▲ ▲               │                 │              ▲  │ └─ proven ─▶ Stayed  answers again
//!                             │ └── not yet ────┘                 │              └──┘ not known
//!                             └── it was not asked, for certain ──┘
//! ```
//!
//! A start that finds the note begins in *Asked*: a question may be under way, and nothing of it is known.

use ashlar_types::map::Move;
use ashlar_types::{ChainId, ClusterMap, Epoch, TargetId};

/// What a map says of one chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Of the map.
    pub epoch: Epoch,
    /// Whose it is.
    pub head: Option<TargetId>,
    /// Where it goes.
    pub moving: Option<Move>,
}

impl Seen {
    /// What `map` says of `chain`; `None` when it does not know it.
    pub fn of(map: &ClusterMap, chain: ChainId) -> Option<Seen> {
        let known = map.chain(chain)?;
        Some(Seen { epoch: map.epoch, head: known.targets.first().copied(), moving: known.moving })
    }
}

/// What a target has noted of a chain, durably.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Note {
    /// It may be another target's by the move of that epoch.
    Leaving(Epoch),
    /// All of it is here by the move of that epoch.
    Arrived(Epoch),
}

impl Note {
    /// The move it is of.
    pub fn since(self) -> Epoch {
        let (Note::Leaving(since) | Note::Arrived(since)) = self;
        since
    }
}

/// What the giver is to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Note, durably, that the chain may be gone.
    Note,
    /// Answer nobody about it any more, and wait for whoever is being answered.
    Close,
    /// Have the taker make durable what it has.
    Seal,
    /// Ask a manager to finish the move or, `is_given_up`, to end it in any case and to tell how it has ended.
    Ask {
        /// See above.
        is_given_up: bool,
    },
    /// Answer by the map, once it says that the chain is another target's.
    AwaitMap,
    /// Forget the note, and answer.
    Reopen,
}

/// What has become of a question to a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Told {
    /// A manager has proven whether the move is finished, and has ended it.
    Ended {
        /// Whether the chain is another target's.
        is_finished: bool,
    },
    /// No manager has got the question, and none will.
    NotAsked,
    /// Nobody knows. It may be carried out at any time from now on.
    Unknown,
}

/// A chain that a target gives away.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Giving {
    since: Epoch,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Open,
    Noted,
    Closed,
    Sealed,
    Asked,
    Left,
    Stayed,
}

impl Giving {
    /// By the move of `since`; nothing is noted.
    pub fn new(since: Epoch) -> Giving {
        Giving { since, stage: Stage::Open }
    }

    /// After a start that has found `note`; `None` when the chain can be answered for by the map.
    pub fn recovered(note: Note) -> Option<Giving> {
        match note {
            Note::Leaving(since) => Some(Giving { since, stage: Stage::Asked }),
            Note::Arrived(_) => None,
        }
    }

    /// The move.
    pub fn since(&self) -> Epoch {
        self.since
    }

    /// What to do next.
    pub fn step(&self) -> Step {
        match self.stage {
            // ORDER: noted before anybody could be told that the chain is the other target's: whoever starts with this note asks first. And before the first seal, see `Taking::begin`.
            Stage::Open => Step::Note,
            Stage::Noted => Step::Close,
            // ORDER: closed before the last of it is made durable there: nothing is acknowledged that is not part of that.
            Stage::Closed => Step::Seal,
            Stage::Sealed => Step::Ask { is_given_up: false },
            // It may be finished by an earlier question; if it is not, it had better be served again soon.
            Stage::Asked => Step::Ask { is_given_up: true },
            Stage::Left => Step::AwaitMap,
            Stage::Stayed => Step::Reopen,
        }
    }

    /// The note is durable.
    pub fn noted(&mut self) {
        debug_assert_eq!(self.stage, Stage::Open);
        self.stage = Stage::Noted;
    }

    /// Nobody is answered any more, and nobody is being answered.
    pub fn closed(&mut self) {
        debug_assert_eq!(self.stage, Stage::Noted);
        self.stage = Stage::Closed;
    }

    /// The taker has all of it, durably.
    pub fn sealed(&mut self) {
        debug_assert_eq!(self.stage, Stage::Closed);
        self.stage = Stage::Sealed;
    }

    /// The taker is not ready: the chain is answered for meanwhile, and closed later.
    pub fn not_yet(&mut self) {
        debug_assert_eq!(self.stage, Stage::Closed);
        self.stage = Stage::Noted;
    }

    /// What has become of the question that [`Giving::step`] has said.
    pub fn told(&mut self, told: Told) {
        debug_assert!(matches!(self.stage, Stage::Sealed | Stage::Asked));
        self.stage = match (told, self.stage) {
            (Told::Ended { is_finished: true }, _) => Stage::Left,
            (Told::Ended { is_finished: false }, _) => Stage::Stayed,
            // The first question is the only one there is: nothing can come of it.
            (Told::NotAsked, Stage::Sealed) => Stage::Noted,
            (Told::NotAsked | Told::Unknown, _) => Stage::Asked,
        };
    }

    /// Takes note of a map: one that is newer than the move, and says that the chain is another target's than `own`, proves that it is.
    pub fn see(&mut self, seen: Seen, own: TargetId) {
        // INVARIANT: a map from before the move knows nothing of how it has ended, also if the chain was another target's then.
        if self.stage == Stage::Asked && seen.epoch > self.since && seen.head != Some(own) {
            self.stage = Stage::Left;
        }
    }

    /// Whether a map shows the end of a move of which it is proven that it is finished: it says that the chain is another target's, or that it has come back to `own` since.
    pub fn is_ended_by(&self, seen: Seen, own: TargetId) -> bool {
        let is_this = seen.moving.is_some_and(|moving| moving.since == self.since);
        seen.epoch >= self.since && !(seen.head == Some(own) && is_this)
    }

    /// Whether the taker may be told to make durable what it has, while the chain is answered for.
    pub fn may_seal(&self) -> bool {
        self.stage == Stage::Noted
    }

    /// Whether nobody is answered.
    pub fn is_closed(&self) -> bool {
        !matches!(self.stage, Stage::Open | Stage::Noted)
    }

    /// Whether the chain can be answered for again at once: no question is under way that could be carried out.
    pub fn may_reopen(&self) -> bool {
        !matches!(self.stage, Stage::Asked | Stage::Left)
    }
}

/// Whether `own` answers for a chain: the map says that it is its, and it is not giving it away.
pub fn answers(seen: Seen, own: TargetId, is_closed: bool) -> bool {
    seen.head == Some(own) && !is_closed
}

/// Who copies a chain to a target: a process of some server, and which of its attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Copier<O> {
    /// The process.
    pub owner: O,
    /// The attempt, which grows.
    pub number: u64,
    /// The move.
    pub since: Epoch,
}

/// A chain that a target takes. It is in memory: a target that was started anew takes nothing before it is begun anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Taking<O> {
    by: Copier<O>,
    is_sealed: bool,
}

impl<O: Copy + Eq> Taking<O> {
    /// From `by`, who has begun.
    pub fn new(by: Copier<O>) -> Taking<O> {
        Taking { by, is_sealed: false }
    }

    /// The move.
    pub fn since(&self) -> Epoch {
        self.by.since
    }

    /// Whether it is `by` of whom changes are taken.
    pub fn takes(&self, by: &Copier<O>) -> bool {
        self.by == *by
    }

    /// Has `by` take the place of whoever copies, and tells whether it does. One that comes late does not: of the same process, because that has begun a later one. Of two processes it cannot
    /// be told which is the later one; but once one of them has had the chain sealed, it is the last one of the move: it had noted that before, and a process that comes after it finds the note and
    /// has the move given up.
    pub fn begin(&mut self, by: Copier<O>) -> bool {
        let before = self.by;
        let is_in_place = match before.owner == by.owner {
            true => by.number >= before.number && by.since >= before.since,
            false => by.since > before.since || by.since == before.since && !self.is_sealed,
        };
        if is_in_place && before != by {
            *self = Taking::new(by);
        }
        is_in_place
    }

    /// `by` is about to have what came made durable; false when nothing is taken of it.
    pub fn seal(&mut self, by: &Copier<O>) -> bool {
        self.is_sealed |= self.takes(by);
        self.takes(by)
    }
}

/// Whether the chain comes to `own` by the move of `since`.
pub fn is_coming(seen: Seen, own: TargetId, since: Epoch) -> bool {
    seen.moving.is_some_and(|moving| moving.to == own && moving.since == since)
}

/// Whether what is known of the move of `since` to `own` can be forgotten: the chain has come, or does not come.
pub fn is_over(seen: Seen, own: TargetId, since: Epoch) -> bool {
    // A map that is older than the move says nothing about it.
    !is_coming(seen, own, since) && seen.epoch >= since
}

/// What is noted of a chain when all of it has arrived by the move of `since`, where `before` was noted. A seal may have waited for a disk for so long that the chain has
/// left again meanwhile: what is noted of that stays.
pub fn arrived(before: Option<Note>, since: Epoch) -> Note {
    match before {
        Some(later) if later.since() > since => later,
        _ => Note::Arrived(since),
    }
}

/// Whether chunks of a chain have no business on `own`, by a map that is kept and may be old.
pub fn is_left_over(seen: Seen, own: TargetId, note: Option<Note>, is_known_to_come: bool) -> bool {
    let is_here = seen.head == Some(own);
    let moves_here = seen.moving.is_some_and(|moving| moving.to == own);
    // INVARIANT: what came or may be gone by a move is not thrown away by a map from before it.
    let is_new_enough = note.is_none_or(|note| seen.epoch > note.since());
    !is_here && !moves_here && !is_known_to_come && is_new_enough
}

/// What a manager makes of the end of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The chain is that target's.
    Finish(TargetId),
    /// The chain stays, and does not go to that target.
    GiveUp(TargetId),
    /// There is no such move, any more.
    Nothing,
}

/// What becomes of a chain whose copies are `targets`, of which `from` asks that the move of `since` is ended. What is told of it must be proven by a compare-and-set, also if
/// nothing is changed: then a question that was asked before and comes later finds no move.
pub fn end(
    targets: &[TargetId],
    moving: Option<Move>,
    (from, since): (TargetId, Epoch),
    is_given_up: bool,
) -> Ending {
    match moving.filter(|moving| moving.since == since && targets == [from]) {
        Some(moving) if is_given_up => Ending::GiveUp(moving.to),
        Some(moving) => Ending::Finish(moving.to),
        None => Ending::Nothing,
    }
}
