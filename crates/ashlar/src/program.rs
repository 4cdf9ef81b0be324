//! Other programs that a command runs.

use anyhow::{Context, Result};
use std::process::Child;
use std::time::{Duration, Instant};

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Whether a program ended well; nothing when it has not ended in time.
///
/// # Errors
/// When it cannot be waited for.
pub fn ended_within(child: &mut Child, wait: Duration) -> Result<Option<bool>> {
    let deadline = Instant::now() + wait;
    loop {
        match child.try_wait().context("cannot wait for a program")? {
            Some(status) => return Ok(Some(status.success())),
            None if Instant::now() >= deadline => return Ok(None),
            None => std::thread::sleep(LOOK_EVERY),
        }
    }
}
