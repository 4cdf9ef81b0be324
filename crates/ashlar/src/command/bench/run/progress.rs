//! What a run is doing, on a line that stays where it is on a terminal, on lines of their own otherwise.

use crate::terminal::say;
use ashlar_bench::report::number;
use ashlar_bench::run::execute::Told;
use std::io::{IsTerminal, Write};

/// Most characters that a line on a terminal takes.
const WIDTH: usize = 79;

/// Where progress is shown.
pub struct Shown {
    is_terminal: bool,
}

impl Shown {
    /// On standard output.
    pub fn new() -> Shown {
        Shown { is_terminal: std::io::stdout().is_terminal() }
    }

    /// Shows a step.
    pub fn tell(&self, told: &Told) {
        let Some(line) = line(told) else { return };
        if !self.is_terminal {
            say(line);
            return;
        }
        let line: String = line.chars().take(WIDTH).collect();
        // Nobody waits for this: what cannot be shown is not shown.
        let _ = write!(std::io::stdout(), "\r{line:<WIDTH$}").and_then(|()| std::io::stdout().flush());
    }

    /// Takes the line away.
    pub fn end(&self) {
        if self.is_terminal {
            let _ = write!(std::io::stdout(), "\r{:<WIDTH$}\r", "").and_then(|()| std::io::stdout().flush());
        }
    }
}

fn line(told: &Told) -> Option<String> {
    let step = told.step.as_ref()?;
    let width = told.all.to_string().len();
    Some(format!("{:>width$}/{}  {} left  {step}", told.done + 1, told.all, number::time(told.seconds_left)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_told_with_what_is_left() {
        let told = Told {
            step: Some("random-4k, 2 threads, repetition 1".into()),
            done: 8,
            all: 120,
            seconds_left: 95.0,
        };
        assert_eq!(line(&told).unwrap(), "  9/120  1 min 35 s left  random-4k, 2 threads, repetition 1");
        assert!(line(&Told { step: None, ..told }).is_none());
    }
}
