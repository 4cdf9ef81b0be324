//! Making a failing sequence of steps short: leave pieces out as long as what remains still fails.

use std::time::{Duration, Instant};

use super::op::Step;
use super::run::{Divergence, Settings, Tally, run_steps};

/// A shorter failing sequence and how it fails.
#[derive(Debug)]
pub struct Shrunk {
    /// The steps.
    pub steps: Vec<Step>,
    /// The difference they lead to.
    pub divergence: Divergence,
}

/// Leaves out halves, quarters and so on down to single steps, for at most `budget`.
///
/// # Errors
/// When the directories for a trial cannot be made.
pub fn shrink(
    settings: &Settings,
    steps: Vec<Step>,
    divergence: Divergence,
    budget: Duration,
) -> anyhow::Result<Shrunk> {
    let end = Instant::now() + budget;
    // The trees are compared at the end of each trial, which is where the failure was.
    let settings = Settings { compare_every: usize::MAX, ..settings.clone() };
    let mut best = Shrunk { steps, divergence };
    let mut piece = best.steps.len() / 2;
    while piece > 0 {
        let mut at = 0;
        let before = best.steps.len();
        while at < best.steps.len() {
            if Instant::now() >= end {
                return Ok(best);
            }
            let mut trial = best.steps.clone();
            trial.drain(at..(at + piece).min(trial.len()));
            match run_steps(&settings, &mut trial.iter(), &mut Tally::default())? {
                Err(divergence) if divergence.class == best.divergence.class => {
                    trial.truncate(divergence.at + 1);
                    best = Shrunk { steps: trial, divergence };
                }
                _ => at += piece,
            }
        }
        // A pass over single steps may make others superfluous.
        if piece > 1 {
            piece /= 2;
        } else if best.steps.len() == before {
            break;
        }
    }
    Ok(best)
}
