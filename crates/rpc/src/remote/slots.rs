//! Slots in which a service keeps the answers of calls under way: as many as there are calls at once, used again and again, so that
//! what is kept is bounded by them and not by time.

use ashlar_types::Errno;
use parking_lot::{Condvar, Mutex};
use std::time::Instant;

/// Most slots of a session.
// LIMIT: of changes under way; who wants to make one more waits.
const SLOTS_MAX: u16 = 1024;

/// See the module.
#[derive(Default)]
pub(super) struct Slots {
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Default)]
struct State {
    free: Vec<u16>,
    /// Numbers below it were given out.
    next: u16,
}

/// A slot in use for as long as it lives.
pub(super) struct Slot<'a> {
    pub number: u16,
    slots: &'a Slots,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.slots.state.lock().free.push(self.number);
        self.slots.freed.notify_one();
    }
}

impl Slots {
    /// One that nobody uses; the one used last first, so that few are used at all.
    ///
    /// # Errors
    /// `ETIMEDOUT` when there is none until `deadline`.
    pub fn take(&self, deadline: Instant) -> Result<Slot<'_>, Errno> {
        let mut state = self.state.lock();
        loop {
            if let Some(number) = state.free.pop() {
                return Ok(Slot { number, slots: self });
            }
            if state.next < SLOTS_MAX {
                state.next += 1;
                return Ok(Slot { number: state.next - 1, slots: self });
            }
            if self.freed.wait_until(&mut state, deadline).timed_out() {
                return Err(Errno::ETIMEDOUT);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_calls_under_way_have_the_same_slot() {
        let slots = Slots::default();
        let now = Instant::now();
        let (first, second) = (slots.take(now).unwrap(), slots.take(now).unwrap());
        assert_ne!(first.number, second.number);
        let number = first.number;
        drop(first);
        assert_eq!(slots.take(now).unwrap().number, number, "used again");
        let all: Vec<_> = (0..SLOTS_MAX - 1).map(|_| slots.take(now).unwrap()).collect();
        assert_eq!(slots.take(now).err(), Some(Errno::ETIMEDOUT));
        drop(all);
        drop(second);
    }
}
