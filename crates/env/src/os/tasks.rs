//! Threads of the operating system.

use crate::{Signal, Task, Tasks};
use std::io;

/// Threads and condition variables.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsTasks;

impl Tasks for OsTasks {
    fn spawn(&self, name: &str, run: Box<dyn FnOnce() + Send>) -> io::Result<Task> {
        std::thread::Builder::new().name(name.to_owned()).spawn(run).map(Task::Thread)
    }

    fn signal(&self) -> Signal {
        Signal::default()
    }

    fn give_way(&self) {
        let normal = libc::sched_param { sched_priority: 0 };
        // SAFETY: `normal` is read during the call; 0 is the calling thread.
        // Where that may not be called, the thread is as it was, and does less at once.
        let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const normal) };
    }

    fn contain(&self, item: &mut dyn FnMut()) -> bool {
        // The hook has told where and why. Locks here know no poison: what an item leaves half done is for its next turn to meet, as after a
        // crash of the process.
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(item)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn a_task_goes_on_after_an_item_that_panics() {
        assert!(!OsTasks.contain(&mut || panic!("an item of a test")));
        let mut is_done = false;
        assert!(OsTasks.contain(&mut || is_done = true));
        assert!(is_done);
    }

    #[test]
    fn a_task_wakes_who_waits_and_a_wait_ends_at_its_bound() {
        let shared = Arc::new((Mutex::new(false), OsTasks.signal()));
        let theirs = Arc::clone(&shared);
        let run = Box::new(move || {
            *theirs.0.lock() = true;
            theirs.1.notify_all();
        });
        let task = OsTasks.spawn("test", run).expect("a thread starts");
        assert!(!task.is_current());
        let mut is_set = shared.0.lock();
        while !*is_set {
            shared.1.wait(&mut is_set);
        }
        assert!(shared.1.another().wait_for(&mut is_set, Duration::from_millis(1)));
        drop(is_set);
        assert!(task.join());
    }
}
