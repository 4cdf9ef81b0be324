//! Advisory locks: ranges per owner, waiters in order of arrival.

use super::State;
use ashlar_fuse::protocol::{FileLock, LockKind, LockRequest};
use ashlar_fuse::{Deferral, Ended, Errno, LockOwner, Replier, Unique};

#[derive(Clone, Copy)]
pub(super) struct Held {
    owner: LockOwner,
    is_flock: bool,
    lock: FileLock,
}

pub(super) struct Waiting {
    ino: u64,
    request: LockRequest,
    replier: Replier,
}

impl Held {
    fn conflicts(&self, wanted: &LockRequest) -> bool {
        let lock = &wanted.lock;
        self.owner != wanted.owner
            && self.is_flock == wanted.is_flock
            && self.lock.start <= lock.end
            && lock.start <= self.lock.end
            && lock.kind != LockKind::Unlock
            && (lock.kind == LockKind::Write || self.lock.kind == LockKind::Write)
    }

    /// What is left of this lock outside of `range`.
    fn outside(self, range: &FileLock) -> impl Iterator<Item = Held> {
        let part = move |start, end| Held { lock: FileLock { start, end, ..self.lock }, ..self };
        let before = (self.lock.start < range.start)
            .then(|| part(self.lock.start, self.lock.end.min(range.start - 1)));
        let after =
            (self.lock.end > range.end).then(|| part(self.lock.start.max(range.end + 1), self.lock.end));
        before.into_iter().chain(after)
    }
}

impl State {
    pub(super) fn test_lock(&mut self, ino: u64, wanted: &LockRequest) -> Result<FileLock, Errno> {
        let conflict = self.node(ino)?.locks.iter().find(|held| held.conflicts(wanted));
        Ok(conflict.map_or(FileLock { kind: LockKind::Unlock, ..wanted.lock }, |held| held.lock))
    }

    pub(super) fn set_lock(&mut self, ino: u64, wanted: &LockRequest) -> Result<(), Errno> {
        if self.test_lock(ino, wanted)?.kind != LockKind::Unlock {
            return Err(Errno::EAGAIN);
        }
        let node = self.node(ino)?;
        let is_mine = |held: &Held| held.owner == wanted.owner && held.is_flock == wanted.is_flock;
        let held = std::mem::take(&mut node.locks);
        for lock in held {
            if is_mine(&lock) {
                node.locks.extend(lock.outside(&wanted.lock));
            } else {
                node.locks.push(lock);
            }
        }
        if wanted.lock.kind == LockKind::Unlock {
            self.grant_waiting();
        } else {
            node.locks.push(Held { owner: wanted.owner, is_flock: wanted.is_flock, lock: wanted.lock });
        }
        Ok(())
    }

    pub(super) fn wait_lock(
        &mut self,
        ino: u64,
        wanted: &LockRequest,
        deferral: &Deferral<'_>,
    ) -> Result<Ended, Errno> {
        match self.set_lock(ino, wanted) {
            Ok(()) => Ok(Ended::Now),
            Err(Errno::EAGAIN) => {
                let replier = deferral.defer()?;
                self.waiting.push(Waiting { ino, request: *wanted, replier });
                Ok(Ended::Deferred)
            }
            Err(errno) => Err(errno),
        }
    }

    pub(super) fn drop_locks(&mut self, ino: u64, owner: LockOwner) {
        if let Ok(node) = self.node(ino) {
            node.locks.retain(|held| held.owner != owner);
        }
        self.grant_waiting();
    }

    pub(super) fn interrupt(&mut self, unique: Unique) {
        if let Some(index) = self.waiting.iter().position(|waiting| waiting.replier.unique() == unique) {
            self.waiting.remove(index).replier.reply(Err(Errno::EINTR));
        }
    }

    fn grant_waiting(&mut self) {
        for waiting in std::mem::take(&mut self.waiting) {
            match self.set_lock(waiting.ino, &waiting.request) {
                Err(Errno::EAGAIN) => self.waiting.push(waiting),
                result => waiting.replier.reply(result),
            }
        }
    }
}
