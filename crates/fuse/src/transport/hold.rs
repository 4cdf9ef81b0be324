//! Holding the workers of a device back, so that another process can go on with the mount: a request that is just being read when its reader is killed is answered
//! with EIO by the kernel, and what a worker is at would be done twice. Workers that are held take no further request, and none is lost: the kernel keeps them.
//!
//! | a worker | is held |
//! |---|---|
//! | waits in read(2) | at once: a signal ends the read, which has taken nothing |
//! | is at a request | when that is answered |

use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Time between two signals: one that comes just before a read(2) ends nothing.
const SIGNAL_EVERY: Duration = Duration::from_millis(5);

/// Ends a read(2); nothing else of this process is to send it to its threads, or to take it.
const SIGNAL: libc::c_int = libc::SIGUSR1;

/// See the module.
#[derive(Default)]
pub(crate) struct Hold {
    is_held: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    // LIMIT: as workers of the device.
    workers: Vec<Arc<Place>>,
    held: usize,
}

struct Place {
    thread: libc::pid_t,
    is_reading: AtomicBool,
}

/// A worker, for as long as it serves.
pub(crate) struct Reader<'a> {
    hold: &'a Hold,
    place: Arc<Place>,
}

impl Hold {
    /// Has the calling thread count as a worker.
    pub(crate) fn enter(&self) -> Reader<'_> {
        // SAFETY: gettid takes and changes nothing.
        let thread = unsafe { libc::gettid() };
        let place = Arc::new(Place { thread, is_reading: AtomicBool::new(false) });
        self.state.lock().workers.push(place.clone());
        Reader { hold: self, place }
    }

    /// Holds all workers back; tells whether none is at anything within `bound`. If not, they go on.
    ///
    /// # Errors
    /// When the signal cannot be taken.
    pub(crate) fn hold(&self, bound: Duration) -> io::Result<bool> {
        take_signal()?;
        let give_up = Instant::now() + bound;
        self.is_held.store(true, SeqCst);
        let mut state = self.state.lock();
        while state.held < state.workers.len() {
            if Instant::now() >= give_up {
                drop(state);
                self.release();
                return Ok(false);
            }
            for place in state.workers.iter().filter(|place| place.is_reading.load(SeqCst)) {
                // SAFETY: tgkill takes no pointer; the thread counts as a worker, so it has not ended.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), place.thread, SIGNAL) };
            }
            self.changed.wait_for(&mut state, SIGNAL_EVERY);
        }
        Ok(true)
    }

    /// Whether they are to be.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held.load(SeqCst)
    }

    /// Has them go on.
    pub(crate) fn release(&self) {
        self.is_held.store(false, SeqCst);
        drop(self.state.lock());
        self.changed.notify_all();
    }
}

impl Reader<'_> {
    /// Does `read`, which waits for a request; before it, waits for as long as workers are held back.
    pub(crate) fn read<T>(&self, read: impl FnOnce() -> T) -> T {
        if self.hold.is_held.load(SeqCst) {
            let mut state = self.hold.state.lock();
            state.held += 1;
            self.hold.changed.notify_all();
            while self.hold.is_held.load(SeqCst) {
                self.hold.changed.wait(&mut state);
            }
            state.held -= 1;
        }
        // ORDER: whoever holds the workers back afterwards finds that this one reads, and goes on to signal it until it is held.
        self.place.is_reading.store(true, SeqCst);
        let outcome = read();
        self.place.is_reading.store(false, SeqCst);
        outcome
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let mut state = self.hold.state.lock();
        state.workers.retain(|place| !Arc::ptr_eq(place, &self.place));
        drop(state);
        self.hold.changed.notify_all();
    }
}

/// Has the signal do nothing but end what waits in the kernel (without SA_RESTART, sigaction(2)).
fn take_signal() -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the action is whole, and its handler touches nothing.
    let outcome = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(SIGNAL, &raw const action, std::ptr::null_mut())
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::channel;

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn workers_that_wait_are_held_at_once_and_lose_nothing() {
        let hold = Arc::new(Hold::default());
        let (mut near, far) = UnixStream::pair().unwrap();
        let (sender, got) = channel();
        let (holding, mut reading) = (hold.clone(), far.try_clone().unwrap());
        std::thread::spawn(move || {
            let reader = holding.enter();
            loop {
                let mut byte = [0];
                match reader.read(|| reading.read(&mut byte)) {
                    Ok(1) => sender.send(byte[0]).unwrap(),
                    Ok(_) => return,
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::Interrupted),
                }
            }
        });
        near.write_all(&[1]).unwrap();
        assert_eq!(got.recv_timeout(LONG).unwrap(), 1);
        for turn in 2..50 {
            assert!(hold.hold(LONG).unwrap());
            near.write_all(&[turn]).unwrap();
            assert!(got.try_recv().is_err(), "read by a worker that is held");
            hold.release();
            assert_eq!(got.recv_timeout(LONG).unwrap(), turn);
        }
        drop((near, far));
    }

    #[test]
    fn a_worker_at_a_request_is_waited_for_and_otherwise_all_go_on() {
        let hold = Arc::new(Hold::default());
        let (go_on, may_go_on) = channel::<()>();
        let (begun, has_begun) = channel();
        let holding = hold.clone();
        let worker = std::thread::spawn(move || {
            let reader = holding.enter();
            reader.read(|| ());
            begun.send(()).unwrap();
            may_go_on.recv().unwrap();
            reader.read(|| ());
        });
        has_begun.recv().unwrap();
        assert!(!hold.hold(Duration::from_millis(30)).unwrap(), "it is at a request");
        let (holding, (held, is_held)) = (hold.clone(), channel());
        let holder = std::thread::spawn(move || held.send(holding.hold(LONG).unwrap()).unwrap());
        assert!(is_held.recv_timeout(Duration::from_millis(30)).is_err());
        go_on.send(()).unwrap();
        assert!(is_held.recv().unwrap());
        hold.release();
        holder.join().unwrap();
        worker.join().unwrap();
    }
}
