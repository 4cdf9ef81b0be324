//! What is done while something goes wrong: for each operation that changes something, in each way that the code tells from others, a case
//! of one to three steps, over a small tree.

use crate::actor::{Worker, is_lost};
use crate::model::{Model, Op, Outcome, ROOT};
use ashlar_client::{AllocateMode, OpenFlags};
use ashlar_types::message::RenameFlags;
use std::sync::Arc;

/// A short piece of work.
#[derive(Debug)]
pub struct Case {
    pub name: &'static str,
    pub steps: &'static [Step],
}

/// Something that is done.
#[derive(Debug)]
pub enum Step {
    /// One operation; none if something that it is about is not there.
    Do(fn(&At) -> Option<Op>),
    /// The same so many times, with the number of the turn.
    Repeat(u64, fn(&At, u64) -> Option<Op>),
    /// Files are opened that way from here on.
    Open(OpenFlags),
}
use Step::{Do, Open, Repeat};

/// Where a step is taken: the tree as the model has it.
pub struct At {
    model: Model,
    opened: Vec<u64>,
}

impl At {
    /// The inode of a path from the root.
    fn path(&self, path: &str) -> Option<u64> {
        path.split('/')
            .filter(|name| !name.is_empty())
            .try_fold(ROOT, |inode, name| self.model.child(inode, name))
    }

    /// The same of a file that is open.
    fn open(&self, path: &str) -> Option<u64> {
        self.path(path).filter(|inode| self.opened.contains(inode))
    }

    /// The inode of what was opened last.
    fn last(&self) -> Option<u64> {
        self.opened.last().copied()
    }

    /// The inode of the file that is open from the beginning, whatever its name is now.
    fn held(&self) -> Option<u64> {
        self.opened.first().copied()
    }
}

/// Takes `steps`, fewer if the machine stops or the session ends; tells of the first one that was not taken, or failed.
pub fn follow(worker: &mut Worker, steps: &[Step]) -> Option<String> {
    let mut missed = None;
    for (number, step) in steps.iter().enumerate() {
        let turns = if let Repeat(turns, _) = step { *turns } else { 1 };
        for turn in 0..turns {
            worker.shared.scheduler.pause();
            let at = At { model: worker.shared.oracle.lock().model.clone(), opened: worker.opened() };
            let op = match step {
                Do(make) => make(&at),
                Repeat(_, make) => make(&at, turn),
                Open(flags) => {
                    worker.flags = Some(*flags);
                    continue;
                }
            };
            let Some(op) = op else {
                missed = missed.or(Some(format!("step {number} is about nothing that is there")));
                continue;
            };
            let outcome = worker.perform(op.clone());
            if worker.shared.is_off() {
                return missed.or(Some("the machine has stopped".into()));
            }
            if matches!(outcome, Outcome::Err(_) | Outcome::Gone) {
                missed = missed.or(Some(format!("{} answers {outcome:?}", op.brief())));
            }
            if worker.shared.oracle.lock().is_excused(worker.actor) && is_lost(&outcome) {
                return missed;
            }
        }
    }
    missed
}

const PLAIN: OpenFlags = OpenFlags {
    read: true,
    write: true,
    append: false,
    truncate: false,
    sync: false,
    exec: false,
    no_atime: false,
    past_cache: false,
};
const APPEND: OpenFlags = OpenFlags { append: true, ..PLAIN };
const SYNC: OpenFlags = OpenFlags { sync: true, ..PLAIN };

/// A file of some bytes that stays with its inode where files do, and one of three chunks.
const SMALL: u64 = 3000;
const BIG: u64 = 150_000;

fn create(parent: u64, name: &str) -> Option<Op> {
    Some(Op::Create { parent, name: name.into(), exclusive: true, truncate: false })
}

fn open(inode: u64) -> Option<Op> {
    Some(Op::Open { inode, truncate: false })
}

fn bytes(len: u64, seed: u8) -> Arc<Vec<u8>> {
    Arc::new((0..len).map(|at| seed.wrapping_add((at / 512) as u8) | 1).collect())
}

fn write(inode: u64, offset: u64, len: u64) -> Option<Op> {
    let data = bytes(len, (offset / 7 + len) as u8);
    Some(Op::Write { inode, offset, data, append: false, is_beside: false })
}

fn append(inode: u64, len: u64) -> Option<Op> {
    Some(Op::Write { inode, offset: 0, data: bytes(len, 91), append: true, is_beside: false })
}

fn read(inode: u64, len: u64) -> Option<Op> {
    Some(Op::Read { inode, offset: 0, len })
}

fn fsync(inode: u64) -> Option<Op> {
    Some(Op::Fsync { inode })
}

fn truncate(inode: u64, size: u64, by_handle: bool) -> Option<Op> {
    Some(Op::Truncate { inode, size, by_handle })
}

fn allocate(inode: u64, mode: AllocateMode, offset: u64, len: u64) -> Option<Op> {
    Some(Op::Allocate { inode, mode, offset, len })
}

fn rename(from: (u64, &str), to: (u64, &str), flags: RenameFlags) -> Option<Op> {
    Some(Op::Rename { from: (from.0, from.1.into()), to: (to.0, to.1.into()), flags })
}

fn unlink(parent: u64, name: &str) -> Option<Op> {
    Some(Op::Unlink { parent, name: name.into() })
}

fn mkdir(parent: u64, name: &str) -> Option<Op> {
    Some(Op::Mkdir { parent, name: name.into() })
}

fn setxattr(inode: u64, name: &str, len: usize) -> Option<Op> {
    Some(Op::Setxattr { inode, name: name.into(), value: vec![len as u8; len] })
}

/// The tree that cases begin with; `held` stays open, everything else is closed.
pub const PRELUDE: &[Step] = &[
    Open(PLAIN),
    Do(|_| create(ROOT, "held")),
    Do(|at| write(at.held()?, 0, SMALL)),
    Do(|_| mkdir(ROOT, "d")),
    Do(|_| mkdir(ROOT, "e")),
    Do(|at| mkdir(at.path("d")?, "sub")),
    Do(|at| create(at.path("d")?, "small")),
    Do(|at| write(at.last()?, 0, SMALL)),
    Do(|at| Some(Op::Close { inode: at.last()? })),
    Do(|at| create(at.path("d")?, "big")),
    Do(|at| write(at.last()?, 0, BIG)),
    Do(|at| Some(Op::Close { inode: at.last()? })),
    Do(|at| create(at.path("d")?, "other")),
    Do(|at| write(at.last()?, 0, BIG)),
    Do(|at| Some(Op::Close { inode: at.last()? })),
    Do(|at| Some(Op::Link { inode: at.path("d/small")?, parent: at.path("d")?, name: "link".into() })),
    Do(|_| Some(Op::Symlink { parent: ROOT, name: "symlink".into(), target: "d/small".into() })),
    Do(|_| Some(Op::Mknod { parent: ROOT, name: "pipe".into() })),
    Do(|at| setxattr(at.path("d/small")?, "user.a", 9)),
    Do(|_| Some(Op::Sync)),
    // Not synced: what a power cut may take.
    Do(|at| write(at.held()?, 1000, SMALL)),
    Do(|at| Some(Op::Chmod { inode: at.path("d/big")?, mode: 0o600 })),
];

/// What the next one does; much of it may not be there any more.
pub const AFTERWARDS: &[Step] = &[
    Open(PLAIN),
    Do(|_| Some(Op::Readdir { inode: ROOT })),
    Do(|at| Some(Op::Getattr { inode: at.path("d/small")? })),
    Do(|at| open(at.path("d/small")?)),
    Do(|at| read(at.open("d/small")?, BIG)),
    Do(|at| open(at.path("d/big")?)),
    Do(|at| read(at.open("d/big")?, BIG)),
    Do(|at| write(at.open("d/big")?, 60_000, 9000)),
    Do(|at| truncate(at.open("d/big")?, 100_000, true)),
    Do(|at| fsync(at.open("d/big")?)),
    Do(|at| open(at.path("held")?)),
    Do(|at| read(at.open("held")?, BIG)),
    Do(|_| create(ROOT, "afterwards")),
    Do(|at| write(at.open("afterwards")?, 0, BIG)),
    Do(|at| rename((ROOT, "afterwards"), (at.path("d")?, "new"), RenameFlags::Replace)),
    Do(|at| unlink(at.path("d")?, "small")),
];

pub const CASES: &[Case] = &[
    Case { name: "create", steps: &[Do(|at| create(at.path("d")?, "new"))] },
    Case {
        name: "create and write",
        steps: &[Do(|at| create(at.path("d")?, "new")), Do(|at| write(at.last()?, 0, SMALL))],
    },
    Case {
        name: "create, write and sync",
        steps: &[
            Do(|at| create(at.path("d")?, "new")),
            Do(|at| write(at.last()?, 0, BIG)),
            Do(|at| fsync(at.last()?)),
        ],
    },
    Case {
        name: "create that empties",
        steps: &[Do(|at| {
            Some(Op::Create { parent: at.path("d")?, name: "big".into(), exclusive: false, truncate: true })
        })],
    },
    Case { name: "mkdir", steps: &[Do(|at| mkdir(at.path("d")?, "new"))] },
    Case { name: "mknod", steps: &[Do(|at| Some(Op::Mknod { parent: at.path("d")?, name: "new".into() }))] },
    Case {
        name: "symlink",
        steps: &[Do(|at| {
            Some(Op::Symlink { parent: at.path("d")?, name: "new".into(), target: "anywhere".into() })
        })],
    },
    Case {
        name: "link",
        steps: &[Do(|at| {
            Some(Op::Link { inode: at.path("d/big")?, parent: at.path("e")?, name: "new".into() })
        })],
    },
    Case { name: "unlink", steps: &[Do(|_| unlink(ROOT, "pipe"))] },
    Case { name: "unlink of chunks", steps: &[Do(|at| unlink(at.path("d")?, "big"))] },
    Case { name: "unlink of one name of two", steps: &[Do(|at| unlink(at.path("d")?, "link"))] },
    Case {
        name: "unlink of an open file",
        steps: &[
            Do(|_| unlink(ROOT, "held")),
            Do(|at| write(at.held()?, 0, BIG)),
            Do(|at| Some(Op::Close { inode: at.held()? })),
        ],
    },
    Case { name: "rmdir", steps: &[Do(|_| Some(Op::Rmdir { parent: ROOT, name: "e".into() }))] },
    Case {
        name: "rename",
        steps: &[Do(|at| rename((at.path("d")?, "small"), (at.path("d")?, "new"), RenameFlags::Replace))],
    },
    Case {
        name: "rename to another directory",
        steps: &[Do(|at| rename((at.path("d")?, "big"), (at.path("e")?, "big"), RenameFlags::NoReplace))],
    },
    Case {
        name: "rename over a file",
        steps: &[Do(|at| rename((at.path("d")?, "small"), (at.path("d")?, "big"), RenameFlags::Replace))],
    },
    Case {
        name: "rename over a file that is open",
        steps: &[
            Do(|at| rename((at.path("d")?, "big"), (ROOT, "held"), RenameFlags::Replace)),
            Do(|at| write(at.held()?, 0, SMALL)),
        ],
    },
    Case {
        name: "rename of a directory over another one",
        steps: &[Do(|at| rename((ROOT, "e"), (at.path("d")?, "sub"), RenameFlags::Replace))],
    },
    Case {
        name: "exchange",
        steps: &[Do(|at| rename((at.path("d")?, "big"), (ROOT, "e"), RenameFlags::Exchange))],
    },
    Case {
        name: "file without a name",
        steps: &[
            Do(|at| Some(Op::Tmpfile { parent: at.path("d")? })),
            Do(|at| write(at.last()?, 0, BIG)),
            Do(|at| Some(Op::Link { inode: at.last()?, parent: at.path("d")?, name: "new".into() })),
        ],
    },
    Case {
        name: "file without a name that is closed",
        steps: &[
            Do(|at| Some(Op::Tmpfile { parent: at.path("d")? })),
            Do(|at| write(at.last()?, 0, BIG)),
            Do(|at| Some(Op::Close { inode: at.last()? })),
        ],
    },
    Case {
        name: "open that empties",
        steps: &[
            Do(|at| Some(Op::Open { inode: at.path("d/big")?, truncate: true })),
            Do(|at| write(at.last()?, 0, SMALL)),
            Do(|at| Some(Op::Close { inode: at.last()? })),
        ],
    },
    Case { name: "chmod", steps: &[Do(|at| Some(Op::Chmod { inode: at.path("d/small")?, mode: 0o640 }))] },
    Case { name: "truncate of chunks", steps: &[Do(|at| truncate(at.path("d/big")?, 70_001, false))] },
    Case { name: "truncate to nothing", steps: &[Do(|at| truncate(at.path("d/big")?, 0, false))] },
    Case {
        name: "truncate beyond the end",
        steps: &[
            Do(|at| open(at.path("d/big")?)),
            Do(|at| truncate(at.last()?, 400_000, true)),
            Do(|at| write(at.last()?, 399_000, 200)),
        ],
    },
    Case {
        name: "truncate of what was not synced",
        steps: &[Do(|at| truncate(at.held()?, 1500, true)), Do(|at| truncate(at.held()?, 5000, true))],
    },
    Case { name: "setxattr", steps: &[Do(|at| setxattr(at.path("d/small")?, "user.b", 30))] },
    Case { name: "setxattr that replaces", steps: &[Do(|at| setxattr(at.path("d/small")?, "user.a", 40))] },
    Case {
        name: "removexattr",
        steps: &[Do(|at| Some(Op::Removexattr { inode: at.path("d/small")?, name: "user.a".into() }))],
    },
    Case { name: "write", steps: &[Do(|at| write(at.held()?, 100, 900))] },
    Case {
        name: "write and sync",
        steps: &[Do(|at| write(at.held()?, 100, 900)), Do(|at| fsync(at.held()?))],
    },
    Case {
        name: "write and sync of everything",
        steps: &[
            Do(|at| write(at.held()?, 100, 900)),
            Do(|at| create(at.path("d")?, "new")),
            Do(|_| Some(Op::Sync)),
        ],
    },
    Case {
        name: "write that outgrows the inode",
        steps: &[Do(|at| write(at.held()?, 2000, BIG)), Do(|at| fsync(at.held()?))],
    },
    Case {
        name: "write over blocks",
        steps: &[
            Do(|at| open(at.path("d/big")?)),
            Do(|at| write(at.last()?, 4096, 69_632)),
            Do(|at| fsync(at.last()?)),
        ],
    },
    Case {
        name: "write over parts of blocks",
        steps: &[
            Do(|at| open(at.path("d/big")?)),
            Do(|at| write(at.last()?, 65_000, 1234)),
            Do(|at| write(at.last()?, 65_100, 12)),
            Do(|at| fsync(at.last()?)),
        ],
    },
    Case {
        name: "append",
        steps: &[
            Open(APPEND),
            Do(|at| open(at.path("d/big")?)),
            Do(|at| append(at.last()?, 5000)),
            Do(|at| append(at.last()?, 70_000)),
        ],
    },
    Case {
        name: "append to a small file",
        steps: &[
            Open(APPEND),
            Do(|at| open(at.path("d/small")?)),
            Do(|at| append(at.last()?, 500)),
            Do(|at| Some(Op::Close { inode: at.last()? })),
        ],
    },
    Case {
        name: "synchronous write",
        steps: &[
            Open(SYNC),
            Do(|at| open(at.path("d/big")?)),
            Do(|at| write(at.last()?, 140_000, 20_000)),
            Do(|at| write(at.last()?, 10, 10)),
        ],
    },
    Case {
        name: "allocation",
        steps: &[
            Do(|at| open(at.path("d/big")?)),
            Do(|at| allocate(at.last()?, AllocateMode::Allocate, 100_000, 120_000)),
        ],
    },
    Case {
        name: "allocation behind the end",
        steps: &[
            Do(|at| open(at.path("d/big")?)),
            Do(|at| allocate(at.last()?, AllocateMode::KeepSize, 150_000, 100_000)),
        ],
    },
    Case {
        name: "hole",
        steps: &[
            Do(|at| open(at.path("d/big")?)),
            Do(|at| allocate(at.last()?, AllocateMode::PunchHole, 4000, 130_000)),
            Do(|at| fsync(at.last()?)),
        ],
    },
    Case {
        name: "hole in a small file",
        steps: &[Do(|at| allocate(at.held()?, AllocateMode::PunchHole, 500, 600))],
    },
    Case {
        name: "range of zeros",
        steps: &[
            Do(|at| open(at.path("d/big")?)),
            Do(|at| allocate(at.last()?, AllocateMode::ZeroRange, 140_000, 50_000)),
        ],
    },
    Case {
        name: "range of zeros behind the end",
        steps: &[Do(|at| allocate(at.held()?, AllocateMode::ZeroRangeKeepSize, 2000, 50_000))],
    },
    Case {
        name: "split of a directory",
        steps: &[
            Do(|at| Some(Op::Split { inode: at.path("d")?, of_new: false })),
            Do(|at| create(at.path("d")?, "new")),
            Do(|at| unlink(at.path("d")?, "link")),
        ],
    },
    Case {
        name: "split of new directories",
        steps: &[
            Do(|at| Some(Op::Split { inode: at.path("e")?, of_new: true })),
            Do(|at| mkdir(at.path("e")?, "new")),
            Do(|at| create(at.path("e/new")?, "one")),
        ],
    },
    Case {
        name: "looks",
        steps: &[
            Do(|at| Some(Op::Lookup { parent: at.path("d")?, name: "big".into() })),
            Do(|_| Some(Op::Readdir { inode: ROOT })),
            Do(|at| Some(Op::Getattr { inode: at.path("d/big")? })),
            Do(|at| Some(Op::Readlink { inode: at.path("symlink")? })),
            Do(|at| Some(Op::Getxattr { inode: at.path("d/small")?, name: "user.a".into() })),
            Do(|at| open(at.path("d/big")?)),
            Do(|at| read(at.last()?, BIG)),
        ],
    },
    Case {
        name: "many changes",
        steps: &[
            Repeat(40, |at, turn| setxattr(at.path("d/small")?, "user.b", 700 + turn as usize)),
            Repeat(6, |at, turn| create(at.path("e")?, &format!("new{turn}"))),
            Do(|_| Some(Op::Sync)),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Which operation it is. Whoever adds one adds a case.
    fn kind(op: &Op) -> &'static str {
        match op {
            Op::Lookup { .. } => "lookup",
            Op::Getattr { .. } => "getattr",
            Op::Readdir { .. } => "readdir",
            Op::Readlink { .. } => "readlink",
            Op::Mkdir { .. } => "mkdir",
            Op::Mknod { .. } => "mknod",
            Op::Symlink { .. } => "symlink",
            Op::Create { .. } => "create",
            Op::Tmpfile { .. } => "tmpfile",
            Op::Link { .. } => "link",
            Op::Unlink { .. } => "unlink",
            Op::Rmdir { .. } => "rmdir",
            Op::Rename { flags: RenameFlags::Replace, .. } => "rename",
            Op::Rename { flags: RenameFlags::NoReplace, .. } => "rename to where nothing is",
            Op::Rename { flags: RenameFlags::Exchange, .. } => "exchange",
            Op::Rename { flags: RenameFlags::Whiteout | RenameFlags::WhiteoutNoReplace, .. } => {
                panic!("the reference knows no whiteouts")
            }
            Op::Open { .. } => "open",
            Op::Close { .. } => "close",
            Op::Chmod { .. } => "chmod",
            Op::Truncate { .. } => "truncate",
            Op::Setxattr { .. } => "setxattr",
            Op::Getxattr { .. } => "getxattr",
            Op::Removexattr { .. } => "removexattr",
            Op::Write { append: false, .. } => "write",
            Op::Write { append: true, .. } => "append",
            Op::Read { .. } => "read",
            Op::Allocate { mode: AllocateMode::Allocate, .. } => "allocation",
            Op::Allocate { mode: AllocateMode::KeepSize, .. } => "allocation that keeps the length",
            Op::Allocate { mode: AllocateMode::PunchHole, .. } => "hole",
            Op::Allocate { mode: AllocateMode::ZeroRange, .. } => "zeros",
            Op::Allocate { mode: AllocateMode::ZeroRangeKeepSize, .. } => "zeros that keep the length",
            Op::Fsync { .. } => "fsync",
            Op::Sync => "sync",
            Op::Split { .. } => "split",
        }
    }

    const KINDS: usize = 33;

    /// Takes `steps` in the model alone; each must work there.
    fn take(at: &mut At, steps: &[Step], seen: &mut BTreeSet<&'static str>) {
        for (number, step) in steps.iter().enumerate() {
            let turns = if let Repeat(turns, _) = step { *turns } else { 1 };
            for turn in 0..turns {
                let op = match step {
                    Do(make) => make(at),
                    Repeat(_, make) => make(at, turn),
                    Open(_) => continue,
                };
                let op = op.unwrap_or_else(|| panic!("step {number} is about nothing that is there"));
                let new = 100 + at.model.nodes.len() as u64;
                let outcome = at.model.run(0, &op, new);
                match &outcome {
                    Outcome::Opened(view, _) => at.opened.push(view.inode),
                    Outcome::Gone | Outcome::Err(_) => panic!("{} answers {outcome:?}", op.brief()),
                    _ => {}
                }
                if let Op::Close { inode } = &op {
                    let place = at.opened.iter().position(|opened| opened == inode);
                    at.opened.remove(place.expect("what is closed was open"));
                }
                seen.insert(kind(&op));
            }
        }
    }

    #[test]
    fn each_operation_has_a_case_and_each_case_can_be_carried_out() {
        let (mut at, mut seen) = (At { model: Model::new(), opened: Vec::new() }, BTreeSet::new());
        take(&mut at, PRELUDE, &mut BTreeSet::new());
        for case in CASES {
            let mut at = At { model: at.model.clone(), opened: at.opened.clone() };
            take(&mut at, case.steps, &mut seen);
        }
        assert_eq!(seen.len(), KINDS, "{seen:?}");
    }
}
