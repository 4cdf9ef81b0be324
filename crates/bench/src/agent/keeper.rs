//! Tells the agents that somebody is there while the coordinator is busy with something else: with its journal on a slow disk, with a plan, with a
//! step of one agent.

use super::channel::ALIVE_EVERY;
use super::members::State;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Whether it should end.
#[derive(Default)]
struct End {
    is_near: Mutex<bool>,
    changed: Condvar,
}

/// A thread that does it until this value goes.
pub(super) struct Keeper {
    end: Arc<End>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// # Errors
    /// When no thread can be started.
    pub fn start(state: &Arc<Mutex<State>>) -> io::Result<Keeper> {
        let (state, end) = (state.clone(), Arc::new(End::default()));
        let own = end.clone();
        let keep = move || {
            let mut is_near = own.is_near.lock();
            while !*is_near {
                // Who waits for answers holds the state for as long, and tells them itself.
                if let Some(mut state) = state.try_lock() {
                    state.keep_alive();
                }
                own.changed.wait_for(&mut is_near, ALIVE_EVERY / 4);
            }
        };
        let thread = std::thread::Builder::new().name("keeper".into()).spawn(keep)?;
        Ok(Keeper { end, thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        *self.end.is_near.lock() = true;
        self.end.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It only ends.
            let _ = thread.join();
        }
    }
}
