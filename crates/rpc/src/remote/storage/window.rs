//! How much one caller has under way at a target. Targets of a server share its connections, of which each takes so many calls and bytes and no more: without a bound per
//! target the calls of one whose disk hangs would keep those of all others out.

use crate::net::NetError;
use ashlar_types::TargetId;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

// LIMIT: calls of one caller at a target: as many as a server carries out at a time for one; and their bytes, unless it is one call. More calls wait.
const CALLS_MAX: usize = 64;
const BYTES_MAX: usize = 16 << 20;
/// Time between two looks whether the target is still the one to be asked.
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Load {
    calls: usize,
    bytes: usize,
    /// Somebody finds out whether the server takes more.
    is_tried: bool,
}

impl Load {
    fn takes(&self, bytes: usize) -> bool {
        self.calls == 0 || self.calls < CALLS_MAX && self.bytes + bytes <= BYTES_MAX
    }
}

#[derive(Default)]
struct Window {
    load: Mutex<Load>,
    freed: Condvar,
}

/// See the module.
#[derive(Default)]
pub(super) struct Windows {
    // LIMIT: as targets that there have been.
    by_target: Mutex<FxHashMap<TargetId, Arc<Window>>>,
}

/// A call is under way for as long as it lives.
pub(super) struct UnderWay {
    window: Arc<Window>,
    bytes: usize,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut load = self.window.load.lock();
        load.calls -= 1;
        load.bytes -= self.bytes;
        drop(load);
        // All: there may be room for a short one only.
        self.window.freed.notify_all();
    }
}

/// Who has it asks a server again that has too much to do, in place of all who were told so.
pub(super) struct Trying(Arc<Window>);

impl Drop for Trying {
    fn drop(&mut self) {
        self.0.load.lock().is_tried = false;
        self.0.freed.notify_all();
    }
}

impl UnderWay {
    /// Waits until nobody else asks the server of this target again.
    ///
    /// # Errors
    /// As [`Windows::enter`].
    pub fn wait_to_try(
        &self,
        deadline: Instant,
        look: &dyn Fn() -> Result<(), NetError>,
    ) -> Result<Trying, NetError> {
        let mut load = self.window.load.lock();
        while load.is_tried {
            self.window.wait(&mut load, deadline, look)?;
        }
        load.is_tried = true;
        Ok(Trying(self.window.clone()))
    }
}

impl Window {
    fn wait(
        &self,
        load: &mut MutexGuard<'_, Load>,
        deadline: Instant,
        look: &dyn Fn() -> Result<(), NetError>,
    ) -> Result<(), NetError> {
        let until = deadline.min(Instant::now() + LOOK_EVERY);
        if self.freed.wait_until(load, until).timed_out() {
            if Instant::now() >= deadline {
                return Err(NetError::Stuck);
            }
            look()?;
        }
        Ok(())
    }
}

impl Windows {
    /// Waits until a call with so many bytes may be sent to `target`, and `look` has nothing against it.
    ///
    /// # Errors
    /// [`NetError::Stuck`] at `deadline`, and what `look` says.
    pub fn enter(
        &self,
        target: TargetId,
        bytes: usize,
        deadline: Instant,
        look: &dyn Fn() -> Result<(), NetError>,
    ) -> Result<UnderWay, NetError> {
        let window = self.by_target.lock().entry(target).or_default().clone();
        let mut load = window.load.lock();
        while !load.takes(bytes) {
            window.wait(&mut load, deadline, look)?;
        }
        load.calls += 1;
        load.bytes += bytes;
        drop(load);
        Ok(UnderWay { window, bytes })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const HUNG: TargetId = TargetId(1);
    const SOON: Duration = Duration::from_millis(250);

    fn enter(windows: &Windows, target: TargetId, bytes: usize) -> Result<UnderWay, NetError> {
        windows.enter(target, bytes, Instant::now() + SOON, &|| Ok(()))
    }

    #[test]
    fn a_target_that_answers_nothing_takes_so_many_calls_and_keeps_no_other_from_its_own() {
        let windows = Windows::default();
        let calls: Vec<UnderWay> = (0..CALLS_MAX).map(|_| enter(&windows, HUNG, 0).unwrap()).collect();
        assert!(matches!(enter(&windows, HUNG, 0), Err(NetError::Stuck)), "who waits is told in time");
        enter(&windows, TargetId(2), BYTES_MAX * 2).unwrap();
        drop(calls);
        let most = enter(&windows, HUNG, BYTES_MAX - 1).unwrap();
        let short = enter(&windows, HUNG, 1).unwrap();
        assert!(enter(&windows, HUNG, 1).is_err());
        drop(most);
        drop((short, enter(&windows, HUNG, BYTES_MAX - 1).unwrap()));
        let look = || Err(NetError::Elsewhere);
        let _all = enter(&windows, HUNG, BYTES_MAX * 2).unwrap();
        let late = Instant::now() + Duration::from_secs(60);
        assert!(matches!(windows.enter(HUNG, 1, late, &look), Err(NetError::Elsewhere)));
    }

    #[test]
    fn who_waits_goes_on_when_one_has_ended() {
        let windows = Windows::default();
        let first = enter(&windows, HUNG, BYTES_MAX).unwrap();
        std::thread::scope(|scope| {
            let (late, windows) = (Instant::now() + Duration::from_secs(60), &windows);
            let waiting = scope.spawn(move || windows.enter(HUNG, 5, late, &|| Ok(())).map(drop));
            std::thread::sleep(SOON);
            assert!(!waiting.is_finished());
            drop(first);
            waiting.join().unwrap().unwrap();
        });
    }

    #[test]
    fn one_of_those_who_were_told_to_come_again_does_so_at_a_time() {
        let windows = Windows::default();
        let (one, other) = (enter(&windows, HUNG, 5).unwrap(), enter(&windows, HUNG, 5).unwrap());
        let wait = |call: &UnderWay| call.wait_to_try(Instant::now() + SOON, &|| Ok(()));
        let trying = wait(&one).unwrap();
        assert!(matches!(wait(&other), Err(NetError::Stuck)));
        drop(trying);
        wait(&other).unwrap();
    }
}
