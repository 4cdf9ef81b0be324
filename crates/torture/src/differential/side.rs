//! One side of the comparison: a thread confined to its directory, with its own umask, identity and open files.
//!
//! If the directory is reached through several mounts, each step goes through the next one. Files stay open on the mount on which they were opened.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, bail};

use super::allowed::is_left_out;
use super::apply::follow_flag;
use super::observe::{Moved, Observation, Outcome, moved};
use super::op::{Op, SLOTS, Slot, Step};
use super::path::BytePath;
use super::run::Settings;
use crate::sys::SysResult;
use crate::sys::attr::{Stat, fstat, fstatat};
use crate::sys::cred::{User, as_user, enter, enter_open};
use crate::sys::data::{CWD, open_flags};

/// The state of the thread that does the work.
#[derive(Debug)]
pub struct Worker {
    /// Who may act; index 0 is root.
    pub users: Vec<User>,
    slots: Vec<Option<OwnedFd>>,
    turns: Turns,
    /// Whether one of the sides takes turns.
    is_shared: bool,
}

/// The mounts a side works through, in turns.
#[derive(Debug, Default)]
struct Turns {
    /// The working directory through each; none if the thread was confined to the only one.
    roots: Vec<OwnedFd>,
    /// Which is next.
    next: usize,
    /// Which is used now.
    now: usize,
    /// On which of them the file in each slot was opened.
    homes: [usize; SLOTS as usize],
}

impl Turns {
    /// Confines the calling thread to the next mount; for a name that is given to an open file, to the mount of that one, because there
    /// are no links between mounts.
    fn take(&mut self, op: &Op) -> SysResult<()> {
        if self.roots.is_empty() {
            return Ok(());
        }
        self.now = match op {
            Op::LinkFd { slot, .. } => self.homes.get(usize::from(slot.0)).copied().unwrap_or_default(),
            _ => self.next,
        };
        self.next = (self.next + 1) % self.roots.len();
        self.roots.get(self.now).map_or(Ok(()), |root| enter_open(root.as_fd()))
    }
}

impl Worker {
    /// A worker without open files.
    #[must_use]
    pub fn new(users: Vec<User>) -> Self {
        Self { users, slots: (0..SLOTS).map(|_| None).collect(), turns: Turns::default(), is_shared: false }
    }

    /// Leaves out, and does first, what makes up for what kernels do not do between mounts (docs/guides/kernel.md): pipes and locks of directories
    /// are those of a mount, that a copy overlaps itself is not seen between mounts, and one ends where the file ended when the mount last looked.
    #[must_use]
    pub fn shared(mut self, is_shared: bool) -> Self {
        self.is_shared = is_shared;
        self
    }

    /// Has the kernel know how long the file is.
    pub(super) fn look_at(&self, slot: Slot) {
        if self.is_shared
            && let Some(file) = self.file(slot)
        {
            // The copy that follows tells what is wrong.
            let _ = fstat(file);
        }
    }

    /// Has each step done through the next of these open directories, which are the same one through several mounts.
    #[must_use]
    pub fn taking_turns(mut self, roots: Vec<OwnedFd>) -> Self {
        self.turns.roots = roots;
        self
    }

    /// The open file in `slot`.
    #[must_use]
    pub fn file(&self, slot: Slot) -> Option<BorrowedFd<'_>> {
        self.slots.get(usize::from(slot.0)).and_then(|slot| slot.as_ref()).map(AsFd::as_fd)
    }

    /// Puts `file` into `slot` and returns what was there.
    pub fn put(&mut self, slot: Slot, file: Option<OwnedFd>) -> Option<OwnedFd> {
        let place = self.slots.get_mut(usize::from(slot.0))?;
        if file.is_some() {
            self.turns.homes[usize::from(slot.0)] = self.turns.now;
        }
        std::mem::replace(place, file)
    }

    /// Applies one step and looks at the objects it touched.
    pub fn observe(&mut self, step: &Step) -> Observation {
        if let Err(errno) = self.turns.take(&step.op) {
            let what = format!("cannot go to the next mount: {errno}");
            return Observation { outcome: Outcome::Violation(what), moved: Vec::new() };
        }
        let before = if step.watch { self.look(&step.op) } else { Vec::new() };
        let Some(user) = self.users.get(usize::from(step.user)).cloned() else {
            return Observation { outcome: Outcome::Violation("no such user".into()), moved: Vec::new() };
        };
        let outcome = if self.leaves_out(&step.op, user.uid) {
            Outcome::Empty
        } else {
            as_user(&user, || self.apply(&step.op)).unwrap_or_else(|errno| {
                Outcome::Violation(format!("cannot act as user {}: {errno}", user.uid))
            })
        };
        let after = if step.watch { self.look(&step.op) } else { Vec::new() };
        let moved: Vec<Moved> =
            before.iter().zip(&after).map(|(old, new)| moved(old.as_ref(), new.as_ref())).collect();
        Observation { outcome, moved }
    }

    /// Whether the table of allowed differences leaves `op` of user `uid` out.
    fn leaves_out(&self, op: &Op, uid: u32) -> bool {
        if let Op::CopyFileRange { from, to, .. } = op {
            let ino = |slot: &Slot| self.file(*slot).and_then(|fd| fstat(fd).ok()).map(|stat| stat.ino);
            return self.is_shared && ino(from) == ino(to);
        }
        if let Op::Open { path, .. } = op {
            let is_pipe = fstatat(CWD, &path.0, 0).is_ok_and(|stat| stat.kind() == libc::S_IFIFO);
            return self.is_shared && is_pipe;
        }
        let file = match op {
            Op::Chown { path, follow, .. } => fstatat(CWD, &path.0, follow_flag(*follow)).ok(),
            Op::Fchown { slot, .. } | Op::Flock { slot, .. } => {
                self.file(*slot).and_then(|fd| fstat(fd).ok())
            }
            _ => None,
        };
        let Some(file) = file else { return false };
        if matches!(op, Op::Flock { .. }) {
            return self.is_shared && file.kind() == libc::S_IFDIR;
        }
        let is_writer = |fd: BorrowedFd<'_>| {
            let flags = open_flags(fd).unwrap_or(libc::O_PATH);
            let may_write = flags & libc::O_PATH == 0 && flags & libc::O_ACCMODE != libc::O_RDONLY;
            // Mounts differ in their device numbers; all of a side is on one file system.
            may_write && fstat(fd).is_ok_and(|stat| stat.ino == file.ino)
        };
        is_left_out(op, uid, &file, self.slots.iter().flatten().any(|fd| is_writer(fd.as_fd())))
    }

    fn look(&self, op: &Op) -> Vec<Option<Stat>> {
        let by_path = |path: &BytePath| fstatat(CWD, &path.0, libc::AT_SYMLINK_NOFOLLOW).ok();
        // The kernel stamps reads and writes of pipes and devices on its own file systems only; no request reaches others.
        let is_stamped =
            |stat: &Stat| !matches!(stat.mode & libc::S_IFMT, libc::S_IFIFO | libc::S_IFCHR | libc::S_IFBLK);
        let by_slot = |slot: &Slot| self.file(*slot).and_then(|fd| fstat(fd).ok()).filter(is_stamped);
        op.touched().iter().map(by_path).chain(op.touched_slots().iter().map(by_slot)).collect()
    }
}

/// The handle the comparing thread holds.
#[derive(Debug)]
pub struct Side {
    /// `left` or `right`, for messages.
    pub name: &'static str,
    /// The directory the side works in.
    pub root: PathBuf,
    steps: Option<SyncSender<Step>>,
    answers: Receiver<Observation>,
    thread: Option<JoinHandle<()>>,
    stall: Duration,
}

impl Side {
    /// Starts the thread of one side in the existing, empty directory `root`, which `others` are through further mounts. A step that takes longer than the settings allow is an error.
    ///
    /// # Errors
    /// When the thread cannot be started or confined.
    pub fn start(
        name: &'static str,
        root: PathBuf,
        others: &[PathBuf],
        users: Vec<User>,
        settings: &Settings,
    ) -> anyhow::Result<Self> {
        let (stall, is_shared) = (settings.stall, !settings.right_also.is_empty());
        // LIMIT: one step in flight per side.
        let (steps, inbox) = sync_channel::<Step>(1);
        let (outbox, answers) = sync_channel::<Observation>(1);
        let (ready, started) = sync_channel(1);
        let directory = root.clone();
        let mut roots = Vec::new();
        if !others.is_empty() {
            for path in std::iter::once(&root).chain(others) {
                roots.push(File::open(path).with_context(|| format!("open {}", path.display()))?.into());
            }
        }
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let entered = enter(&directory);
            let failed = entered.is_err();
            // The receiver waits for exactly this message.
            let _ = ready.send(entered);
            if failed {
                return;
            }
            let mut worker = Worker::new(users).taking_turns(roots).shared(is_shared);
            while let Ok(step) = inbox.recv() {
                if outbox.send(worker.observe(&step)).is_err() {
                    return;
                }
            }
        })?;
        started
            .recv()
            .context("the side's thread died")?
            .with_context(|| format!("confine {}", root.display()))?;
        Ok(Self { name, root, steps: Some(steps), answers, thread: Some(thread), stall })
    }

    /// Hands the step to the side without waiting.
    ///
    /// # Errors
    /// When the side's thread has died.
    pub fn send(&self, step: &Step) -> anyhow::Result<()> {
        match &self.steps {
            Some(steps) => steps.send(step.clone()).with_context(|| format!("the {} thread died", self.name)),
            None => bail!("the {} side was stopped", self.name),
        }
    }

    /// Waits for the answer to the step sent last.
    ///
    /// # Errors
    /// When it does not come within the stall limit: the file system hangs.
    pub fn receive(&self) -> anyhow::Result<Observation> {
        match self.answers.recv_timeout(self.stall) {
            Ok(observation) => Ok(observation),
            Err(RecvTimeoutError::Timeout) => {
                bail!(
                    "the {} side ({}) did not answer within {:?}",
                    self.name,
                    self.root.display(),
                    self.stall
                )
            }
            Err(RecvTimeoutError::Disconnected) => bail!("the {} thread died", self.name),
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.steps = None;
        // A side that hangs in the kernel cannot be joined; its thread ends with the process.
        if let Some(thread) = self.thread.take()
            && let Err(RecvTimeoutError::Disconnected) = self.answers.recv_timeout(self.stall)
            && thread.join().is_err()
        {
            eprintln!("the {} thread panicked", self.name);
        }
    }
}
