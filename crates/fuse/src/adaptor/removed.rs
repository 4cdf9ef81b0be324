//! The last attributes of inodes that this mount removed lately: the kernel may still be asked about them, and to change them, through a
//! working directory, an `O_PATH` descriptor, or a pipe, socket or device (which the kernel opens itself), though nobody has them open.

use ashlar_types::{Attr, InodeId};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How many are remembered.
// LIMIT: about 150 bytes each.
const REMOVED_MAX: usize = 1024;

/// How long one who finds nothing waits for removals that are under way. They take this long only when the server is stuck.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct RemovedInodes {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    last: VecDeque<Attr>,
    /// Numbers of the removals that have begun and not ended.
    // LIMIT: one for each thread that serves requests.
    under_way: Vec<u64>,
    begun: u64,
}

impl State {
    fn find(&self, inode: InodeId) -> Option<Attr> {
        self.last.iter().rev().find(|attr| attr.inode == inode).cloned()
    }
}

impl RemovedInodes {
    /// Runs `remove`, which may take an inode away, and remembers the last attributes that it answers.
    ///
    /// # Errors
    /// Those of `remove`.
    pub(super) fn during<E>(&self, remove: impl FnOnce() -> Result<Option<Attr>, E>) -> Result<(), E> {
        let mut under_way = self.begin();
        under_way.last.extend(remove()?);
        Ok(())
    }

    /// The same of what may take several away.
    pub(super) fn during_all(&self, remove: &mut dyn FnMut() -> Vec<Attr>) {
        let mut under_way = self.begin();
        under_way.last = remove();
    }

    fn begin(&self) -> UnderWay<'_> {
        let mut state = self.state.lock();
        let number = state.begun;
        state.begun += 1;
        state.under_way.push(number);
        UnderWay { removed: self, number, last: Vec::new() }
    }

    /// Takes the place of what was remembered. The kernel lets only one change of an inode's attributes at a time through.
    pub(super) fn replace(&self, changed: &Attr) {
        if let Some(attr) = self.state.lock().last.iter_mut().rev().find(|attr| attr.inode == changed.inode) {
            *attr = changed.clone();
        }
    }

    /// The last attributes of an inode that the server does not know any more. Between the server's removal and its answer here nobody
    /// knows the inode: whoever asks then waits for the removals that began before.
    pub(super) fn find(&self, inode: InodeId) -> Option<Attr> {
        let mut state = self.state.lock();
        let before = state.begun;
        let end = Instant::now() + WAIT_MAX;
        loop {
            let found = state.find(inode);
            if found.is_some() || state.under_way.iter().all(|number| *number >= before) {
                return found;
            }
            if self.ended.wait_until(&mut state, end).timed_out() {
                return state.find(inode);
            }
        }
    }
}

/// A removal, until it is dropped, also by a panic.
struct UnderWay<'a> {
    removed: &'a RemovedInodes,
    number: u64,
    last: Vec<Attr>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut state = self.removed.state.lock();
        state.under_way.retain(|number| *number != self.number);
        for attr in self.last.drain(..) {
            if state.last.len() >= REMOVED_MAX {
                state.last.pop_front();
            }
            state.last.push_back(attr);
        }
        drop(state);
        self.removed.ended.notify_all();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.
mod tests {
    use super::*;
    use ashlar_types::{FilesetId, Timespec};
    use std::sync::Barrier;

    fn attr(inode: u64) -> Attr {
        let epoch = Timespec { secs: 0, nanos: 0 };
        Attr {
            inode: InodeId(inode),
            mode: 0o100_644,
            nlink: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 7,
            blocks: 0,
            atime: epoch,
            mtime: epoch,
            ctime: epoch,
            btime: epoch,
            block_size: 4096,
            fileset: FilesetId::default(),
        }
    }

    #[test]
    fn who_asks_before_the_answer_to_a_removal_is_here_waits_for_it() {
        let removed = RemovedInodes::default();
        let answer = Barrier::new(2);
        let gone = Barrier::new(2);
        std::thread::scope(|scope| {
            let removal = scope.spawn(|| {
                removed.during(|| {
                    gone.wait();
                    answer.wait();
                    Ok::<_, ()>(Some(attr(2)))
                })
            });
            gone.wait();
            let asked = scope.spawn(|| removed.find(InodeId(2)));
            std::thread::sleep(Duration::from_millis(20));
            answer.wait();
            assert_eq!(asked.join().unwrap(), Some(attr(2)));
            removal.join().unwrap().unwrap();
        });
        assert_eq!(removed.find(InodeId(3)), None, "nothing is under way: nobody waits");
    }

    #[test]
    fn a_removal_that_fails_keeps_nobody_waiting() {
        let removed = RemovedInodes::default();
        assert_eq!(removed.during(|| Err::<Option<Attr>, _>(7)), Err(7));
        assert_eq!(removed.find(InodeId(2)), None);
    }
}
