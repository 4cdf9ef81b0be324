//! The sweep ([`crate::sweep`]) of operations that several metadata servers take part in: each with each of them stopped at each change
//! of its disk, and with each message between them lost, unanswered, or come twice.

use super::work::Work;
use super::{Site, SitePlan, run_plan};
use crate::run::Report;
use crate::scheduler::Scheduler;
use ashlar_types::message::RenameFlags::{self, Exchange, NoReplace, Replace};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::SeqCst};

/// For so long a server is away.
const AWAY_MS: u64 = 300;

/// A name: in a directory of which server, of a file (`f`) or a directory (`t`), and its number.
#[derive(Clone, Copy, Debug)]
pub struct Named(pub usize, pub &'static str, pub u64);

/// Something that is done.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    MakeFile(Named),
    /// The same, and it stays open.
    KeepFile(Named),
    Unlink(Named),
    Rename(Named, Named, RenameFlags),
    Link(Named, Named),
    MakeDirectory(Named),
    RemoveDirectory(Named),
}
use Step::{KeepFile, Link, MakeDirectory, MakeFile, RemoveDirectory, Rename, Unlink};

/// A short piece of work.
#[derive(Debug)]
pub struct Case {
    pub name: &'static str,
    steps: &'static [Step],
}

/// What goes wrong at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A server ends in the middle of a change of its disk.
    Kill { server: usize },
    /// Its power goes there.
    PowerCut { server: usize },
    /// A message from one server to another one does not come.
    MessageLost,
    /// It comes twice.
    MessageTwice,
    /// It comes, and the answer does not.
    AnswerLost,
}

pub const TROUBLES: [Trouble; 7] = [
    Trouble::Kill { server: 0 },
    Trouble::Kill { server: 1 },
    Trouble::PowerCut { server: 0 },
    Trouble::PowerCut { server: 1 },
    Trouble::MessageLost,
    Trouble::MessageTwice,
    Trouble::AnswerLost,
];

const FILE: Named = Named(0, "f", 0);
const OPEN: Named = Named(0, "f", 1);
const TREE: Named = Named(0, "t", 0);
const THEIR_FILE: Named = Named(1, "f", 0);
const THEIR_TREE: Named = Named(1, "t", 0);
const NEW_FILE: Named = Named(1, "f", 2);
const NEW_TREE: Named = Named(1, "t", 2);

/// What is there before.
const PRELUDE: &[Step] =
    &[MakeFile(FILE), KeepFile(OPEN), MakeDirectory(TREE), MakeFile(THEIR_FILE), MakeDirectory(THEIR_TREE)];

pub const CASES: &[Case] = &[
    Case { name: "file made", steps: &[MakeFile(NEW_FILE)] },
    Case { name: "file renamed to another server", steps: &[Rename(FILE, NEW_FILE, NoReplace)] },
    Case {
        name: "file renamed there and removed",
        steps: &[Rename(FILE, NEW_FILE, Replace), Unlink(NEW_FILE)],
    },
    Case {
        name: "file renamed there and back",
        steps: &[Rename(FILE, NEW_FILE, Replace), Rename(NEW_FILE, FILE, Replace)],
    },
    Case { name: "file renamed over one of another server", steps: &[Rename(FILE, THEIR_FILE, Replace)] },
    Case { name: "file renamed over one that is open", steps: &[Rename(THEIR_FILE, OPEN, Replace)] },
    Case { name: "open file renamed", steps: &[Rename(OPEN, NEW_FILE, Replace), Unlink(NEW_FILE)] },
    Case { name: "files exchanged", steps: &[Rename(FILE, THEIR_FILE, Exchange)] },
    Case { name: "link on another server", steps: &[Link(FILE, NEW_FILE), Unlink(FILE)] },
    Case { name: "link on another server removed", steps: &[Link(FILE, NEW_FILE), Unlink(NEW_FILE)] },
    Case {
        name: "directories made",
        steps: &[MakeDirectory(Named(0, "t", 1)), MakeDirectory(Named(0, "t", 2)), MakeDirectory(NEW_TREE)],
    },
    Case { name: "directories removed", steps: &[RemoveDirectory(TREE), RemoveDirectory(THEIR_TREE)] },
    Case { name: "directory renamed to another server", steps: &[Rename(TREE, NEW_TREE, Replace)] },
    Case {
        name: "directory renamed over one of another server",
        steps: &[Rename(TREE, THEIR_TREE, Replace)],
    },
    Case { name: "directories exchanged", steps: &[Rename(TREE, THEIR_TREE, Exchange)] },
];

/// A case with its trouble, while it runs.
pub(super) struct Across {
    case: &'static Case,
    trouble: Trouble,
    nth: u64,
    /// Messages until one goes wrong; negative: none does.
    messages_left: AtomicI64,
    is_met: Arc<AtomicBool>,
}

impl Across {
    /// Takes the steps, with something going wrong once what they need is there.
    pub fn work(&self, site: &Site, work: &mut Work) {
        work.follow(PRELUDE);
        match self.trouble {
            Trouble::Kill { server } | Trouble::PowerCut { server } => {
                site.servers[server].stop_after(self.nth, AWAY_MS);
            }
            _ => self.messages_left.store(self.nth as i64, SeqCst),
        }
        work.follow(self.case.steps);
        // What a server does afterwards is part of it.
        site.sleep_ms(12_000);
        self.messages_left.store(-1, SeqCst);
    }

    /// What becomes of a message, as numbers of the other simulations say it.
    pub fn message(&self) -> u64 {
        const COMES: u64 = u64::MAX;
        let left = self.messages_left.load(SeqCst);
        if left < 0 {
            return COMES;
        }
        self.messages_left.store(left - 1, SeqCst);
        if left > 0 {
            return COMES;
        }
        self.is_met.store(true, SeqCst);
        match self.trouble {
            Trouble::MessageLost => 0,
            Trouble::MessageTwice => 1,
            Trouble::AnswerLost => 3,
            Trouble::Kill { .. } | Trouble::PowerCut { .. } => COMES,
        }
    }
}

/// Runs a case with its trouble at the `nth` point; tells whether it has met it.
pub fn run(
    case: &'static Case,
    trouble: Trouble,
    (nth, round): (u64, u64),
    is_traced: bool,
    note: &dyn Fn(&Arc<Scheduler>),
) -> (Report, bool) {
    let is_met = Arc::new(AtomicBool::new(false));
    let plan = SitePlan {
        servers: 2,
        mounts: 1,
        operations: 0,
        pause_ms: 1,
        is_power: matches!(trouble, Trouble::PowerCut { .. }),
        move_every_ms: 0,
        splits: false,
        troubles: Vec::new(),
        storage: 0,
        changes: 0,
        change_pause_ms: 0,
        chain_every_ms: 0,
        is_at_few: false,
        keep_one_in: 1,
    };
    let sweep = Across { case, trouble, nth, messages_left: AtomicI64::new(-1), is_met: is_met.clone() };
    let report = run_plan(round, (plan, Some(sweep)), is_traced, note);
    let is_met = is_met.load(SeqCst) || report.crashes > 0;
    (report, is_met)
}
