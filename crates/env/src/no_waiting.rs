//! Locks under which nobody may wait, and the check that nobody does.
//!
//! A lock that everybody needs may be held for as long as it takes to compute something, and not while its holder waits for a disk or for
//! another thread. On the operating system a mistake costs time, where nobody looks for it; in a simulation, where all tasks are on one
//! thread, the next task that wants the lock would stop everything for ever. So whoever holds such a lock says so, and whoever is about to
//! wait is told.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    /// Locks held by this thread under which it may not wait, and the name of the newest.
    static HELD: Cell<(u32, &'static str)> = const { Cell::new((0, "")) };
}

/// For as long as it lives, this thread holds a lock under which it may not wait.
#[derive(Debug)]
pub struct NoWaiting {
    /// A thread's own.
    _not_send: PhantomData<*const ()>,
}

impl NoWaiting {
    /// The lock `name` has just been taken.
    #[must_use]
    pub fn begin(name: &'static str) -> NoWaiting {
        HELD.set((HELD.get().0 + 1, name));
        NoWaiting { _not_send: PhantomData }
    }

    /// Runs `run` while this thread has let go of all such locks.
    pub fn suspended<T>(run: impl FnOnce() -> T) -> T {
        struct Back((u32, &'static str));
        impl Drop for Back {
            fn drop(&mut self) {
                HELD.set(self.0);
            }
        }
        let _back = Back(HELD.replace((0, "")));
        run()
    }

    /// The lock because of which this thread may not wait now.
    #[must_use]
    pub fn because_of() -> Option<&'static str> {
        let (count, name) = HELD.get();
        (count > 0).then_some(name)
    }
}

impl Drop for NoWaiting {
    fn drop(&mut self) {
        let (count, name) = HELD.get();
        HELD.set((count.saturating_sub(1), name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Signal;
    use parking_lot::Mutex;
    use std::time::Duration;

    #[test]
    fn a_thread_knows_whether_it_may_wait() {
        assert_eq!(NoWaiting::because_of(), None);
        let outer = NoWaiting::begin("a lock");
        {
            let _inner = NoWaiting::begin("another");
            assert_eq!(NoWaiting::because_of(), Some("another"));
            NoWaiting::suspended(|| assert_eq!(NoWaiting::because_of(), None));
            assert_eq!(NoWaiting::because_of(), Some("another"));
        }
        assert!(NoWaiting::because_of().is_some());
        drop(outer);
        assert_eq!(NoWaiting::because_of(), None);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "waits while it holds the lock of a test")]
    fn a_wait_under_such_a_lock_is_named() {
        let _held = NoWaiting::begin("the lock of a test");
        Signal::default().wait_for(&mut Mutex::new(()).lock(), Duration::from_millis(1));
    }
}
