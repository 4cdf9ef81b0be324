//! Other programs that a command runs.

use anyhow::{Context, Result, bail};
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// LIMIT: of what a program prints, bytes: those of the lists of a large file system.
const OUTPUT_BYTES_MAX: u64 = 256 << 20;
/// LIMIT: for how long what it has printed is waited for once it has ended: another one may hold the other end of the pipe.
const READ_MAX: Duration = Duration::from_secs(5);

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

/// Runs a program to its end, for so long at the most; tells what it has printed. `shown` is how people know it.
///
/// # Errors
/// When it cannot be run, when it fails, with what it says of it, when what it has printed does not end with it, and when it has not ended in time: it is killed then, and not waited for, since one that waits for a disk does not end by it.
pub fn run_within(command: &mut Command, shown: &str, wait: Duration) -> Result<String> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {shown}"))?;
    let (printed, said) = (read_beside(child.stdout.take()), read_beside(child.stderr.take()));
    let Some(is_good) = ended_within(&mut child, wait)? else {
        let _ = child.kill();
        let _ = ended_within(&mut child, LOOK_EVERY);
        bail!("{shown} has not ended after {} s", wait.as_secs());
    };
    let printed = printed.recv_timeout(READ_MAX);
    if !is_good {
        let said = said.recv_timeout(READ_MAX).unwrap_or_default();
        // What is wrong may be what it was to print.
        let printed = printed.unwrap_or_default();
        bail!("{}", format!("{shown} failed: {} {}", said.trim(), printed.trim()).trim_end());
    }
    printed.with_context(|| format!("{shown} has ended, and another program holds what it has printed"))
}

/// Reads a stream to its end, on a thread: a program waits for whoever does not read.
fn read_beside(stream: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (to, from) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What could be read of it, for whoever still waits.
        let _ = stream.map(|stream| stream.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes));
        let _ = to.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    from
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn sh(script: &str, wait: Duration) -> Result<String> {
        run_within(Command::new("sh").args(["-c", script]), "`sh`", wait)
    }

    #[test]
    fn what_a_program_prints_is_told_be_it_more_than_a_pipe_takes() {
        let long = Duration::from_secs(20);
        assert_eq!(sh("head -c 300000 /dev/zero | tr '\\0' x; echo also >&2", long).unwrap().len(), 300_000);
        let failed = sh("echo printed; echo said >&2; exit 3", long).unwrap_err().to_string();
        assert_eq!(failed, "`sh` failed: said printed");
    }

    #[test]
    fn what_another_program_holds_back_is_not_taken_for_nothing() {
        let held = sh("echo printed; sleep 12 2>&- &", Duration::from_secs(20)).unwrap_err().to_string();
        assert_eq!(held, "`sh` has ended, and another program holds what it has printed");
    }

    #[test]
    fn one_that_does_not_end_is_ended() {
        let begun = Instant::now();
        let failed = sh("echo $$; exec sleep 100", Duration::from_millis(300)).unwrap_err().to_string();
        assert_eq!(failed, "`sh` has not ended after 0 s");
        assert!(begun.elapsed() < Duration::from_secs(50));
    }
}
