//! Processes of a lab: how one is known again, and how it is ended.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time between looks at what is to end.
const TURN: Duration = Duration::from_millis(20);

/// A process, never to be taken for another one that got its number later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    pub pid: i32,
    /// Clock ticks after the start of the machine.
    started: u64,
    /// Which start of the machine.
    boot: String,
}

impl ProcessId {
    /// The process that has this number now.
    pub fn of(pid: i32) -> Result<ProcessId> {
        let (started, boot) = (start_time(pid)?, boot_id()?);
        Ok(ProcessId { pid, started, boot })
    }

    pub fn own() -> Result<ProcessId> {
        ProcessId::of(std::process::id().try_into()?)
    }

    /// Whether it runs; one that has ended and nobody has waited for does not.
    pub fn runs(&self) -> bool {
        boot_id().is_ok_and(|boot| boot == self.boot)
            && start_time(self.pid).is_ok_and(|started| started == self.started)
            && state(self.pid).is_some_and(|state| state != 'Z' && state != 'X')
    }

    pub fn signal(&self, signal: i32) {
        if self.runs() {
            // SAFETY: kill takes no pointer. That it has ended meanwhile is what is wanted.
            unsafe { libc::kill(self.pid, signal) };
        }
    }
}

/// Waits until none of them runs, for at most `patience`; tells whether.
pub fn wait_for_end(all: &[ProcessId], patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        if !all.iter().any(ProcessId::runs) {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(TURN);
    }
}

/// Processes in the network name space that is at `path`.
pub fn in_name_space(path: &Path) -> Vec<ProcessId> {
    let Ok(wanted) = fs::metadata(path) else { return Vec::new() };
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let is_inside = |pid: &i32| {
        fs::metadata(format!("/proc/{pid}/ns/net"))
            .is_ok_and(|found| (found.dev(), found.ino()) == (wanted.dev(), wanted.ino()))
    };
    pids.filter(is_inside).filter_map(|pid| ProcessId::of(pid).ok()).collect()
}

/// What stands behind the name in /proc/PID/stat: the name may hold anything.
fn fields(pid: i32) -> Result<String> {
    let path = format!("/proc/{pid}/stat");
    let bytes = fs::read(&path).with_context(|| format!("cannot read {path}"))?;
    let text = String::from_utf8_lossy(&bytes);
    let (_, rest) = text.rsplit_once(") ").with_context(|| format!("cannot understand {path}"))?;
    Ok(rest.to_owned())
}

/// Field 22 of proc(5), the third being the first behind the name.
fn start_time(pid: i32) -> Result<u64> {
    let fields = fields(pid)?;
    let field = fields.split(' ').nth(19).and_then(|field| field.parse().ok());
    field.with_context(|| format!("cannot understand /proc/{pid}/stat"))
}

fn state(pid: i32) -> Option<char> {
    fields(pid).ok()?.chars().next()
}

fn boot_id() -> Result<String> {
    let text =
        fs::read_to_string("/proc/sys/kernel/random/boot_id").context("cannot read the id of this boot")?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_more_than_its_number() {
        let own = ProcessId::own().unwrap();
        assert!(own.runs());
        let (mut older, mut before) = (own.clone(), own);
        older.started -= 1;
        before.boot = "another".into();
        assert!(!older.runs() && !before.runs());
    }

    #[test]
    fn one_that_nobody_has_waited_for_does_not_run() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let process = ProcessId::of(child.id() as i32).unwrap();
        assert!(!wait_for_end(std::slice::from_ref(&process), Duration::from_millis(50)));
        process.signal(libc::SIGKILL);
        assert!(wait_for_end(&[process], Duration::from_secs(20)));
        child.wait().unwrap();
    }
}
