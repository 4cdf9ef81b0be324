//! What a process does again and again beside its calls, in a thread of its own.

use anyhow::{Context, Result};
use ashlar_env::Tasks;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Longest time between two looks whether it is to end.
const TURN: Duration = Duration::from_millis(200);

/// Goes on until it is dropped.
pub struct Background(Arc<AtomicBool>);

impl Drop for Background {
    fn drop(&mut self) {
        // Not waited for: it may be asking somebody who does not answer.
        self.0.store(true, Relaxed);
    }
}

impl Background {
    /// Runs `turn` now, and again after the time that it tells.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(
        tasks: &dyn Tasks,
        name: &str,
        mut turn: impl FnMut() -> Duration + Send + 'static,
    ) -> Result<Background> {
        let is_stopping = Arc::new(AtomicBool::new(false));
        let told = is_stopping.clone();
        let run = move || {
            while !told.load(Relaxed) {
                let until = Instant::now() + turn();
                while !told.load(Relaxed) && Instant::now() < until {
                    std::thread::sleep(TURN.min(until.saturating_duration_since(Instant::now())));
                }
            }
        };
        tasks.spawn(name, Box::new(run)).context("cannot start a thread")?;
        Ok(Background(is_stopping))
    }
}
