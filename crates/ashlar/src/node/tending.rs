//! The background work of a target in service: syncs, checkpoints, cleaning of slots.

use anyhow::{Context, Result};
use ashlar_chunkstore::{ChunkError, ChunkStore};
use ashlar_env::Tasks;
use ashlar_types::TargetId;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between turns of background work of a target.
const TICK: Duration = Duration::from_millis(100);
/// Slots of background work per turn and target.
const TICK_SLOTS: usize = 64;

/// The thread that does it; each target has its own, as one whose disk hangs must not keep others from being synced.
pub struct Tending {
    is_ending: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Tending {
    /// Begins.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(id: TargetId, store: Arc<ChunkStore>, tasks: Arc<dyn Tasks>) -> Result<Tending> {
        let is_ending = Arc::new(AtomicBool::new(false));
        let told = is_ending.clone();
        // A target that has stopped says so once, and does no more work.
        let tick = move || match store.background_tick(TICK_SLOTS) {
            Ok(_) | Err(ChunkError::Stopped { .. }) => {}
            Err(error) => tracing::error!(target_id = %id, %error, "background work of a target failed"),
        };
        let tend = move || {
            while !told.load(Relaxed) {
                std::thread::sleep(TICK);
                // A panic ends this turn only: nobody else would notice that the target is not synced any more.
                if !tasks.contain(&mut || tick()) {
                    tracing::error!(target_id = %id, "background work of a target ended by a panic");
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("ashlar-target".into())
            .spawn(tend)
            .context("cannot start a thread")?;
        Ok(Tending { is_ending, thread })
    }

    /// Says that it is to end; whoever has several waits for all of them together then.
    pub fn note_ending(&self) {
        self.is_ending.store(true, Relaxed);
    }

    /// Ends it, and waits for that: nothing is done to the target any more.
    pub fn end(self) {
        self.note_ending();
        if self.thread.join().is_err() {
            tracing::error!("the background thread of a target ended by a panic");
        }
    }
}
