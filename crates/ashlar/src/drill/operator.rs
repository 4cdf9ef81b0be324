//! A person at the terminal who has failures happen where a program may or can not.

use super::failure::Failure;
use crate::terminal::say;
use anyhow::{Context, Result, bail};
use std::io::{BufRead, IsTerminal, stdin};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Time between two looks whether the drill is told to stop.
const TURN: Duration = Duration::from_millis(100);

/// What somebody says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    Skip,
    End,
}

/// See the module.
pub struct Operator {
    lines: Receiver<String>,
}

impl Operator {
    /// Nobody, if there is no terminal.
    pub fn at_terminal() -> Result<Option<Operator>> {
        if !stdin().is_terminal() {
            return Ok(None);
        }
        let (sender, lines) = channel();
        let read = move || {
            for line in stdin().lock().lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new()
            .name("ashlar-lines".into())
            .spawn(read)
            .context("cannot start a thread")?;
        Ok(Some(Operator { lines }))
    }

    /// Has a failure happen.
    pub fn has_it_happen(&self, failure: &Failure, is_told_to_stop: &AtomicBool) -> Result<Answer> {
        say(format_args!("{}: {}", failure.name, failure.operator));
        say("Enter when it is done; s to leave this one out; q to end the drill");
        self.answer(is_told_to_stop)
    }

    /// Has it put right. This is asked for until it is said to be done.
    pub fn puts_it_right(&self, failure: &Failure, is_told_to_stop: &AtomicBool) -> Result<()> {
        say(format_args!("{}: put it right: {}", failure.name, failure.operator_after));
        say("Enter when it is done");
        self.answer(is_told_to_stop).map(drop)
    }

    fn answer(&self, is_told_to_stop: &AtomicBool) -> Result<Answer> {
        loop {
            match self.lines.recv_timeout(TURN) {
                Ok(line) => match meaning(&line) {
                    Some(answer) => return Ok(answer),
                    None => say("Enter, s or q"),
                },
                Err(RecvTimeoutError::Timeout) if is_told_to_stop.load(Relaxed) => bail!("told to stop"),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("nobody is at the terminal any more"),
            }
        }
    }
}

fn meaning(line: &str) -> Option<Answer> {
    match line.trim() {
        "" => Some(Answer::Done),
        "s" => Some(Answer::Skip),
        "q" => Some(Answer::End),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_error_has_nothing_happen() {
        assert_eq!(meaning("\r\n"), Some(Answer::Done));
        assert_eq!((meaning(" s"), meaning("q\n")), (Some(Answer::Skip), Some(Answer::End)));
        assert_eq!((meaning("yes"), meaning("skip")), (None, None));
    }
}
