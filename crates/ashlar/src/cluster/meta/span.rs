//! In which span of time the log of a metadata server without copies was used last, so that the next start knows whether something that was acknowledged may be lost.
//!
//! What cannot be noted stays as it was, which says of the next start that something may be lost: that keeps no server from being started or stopped.

use anyhow::{Context, Result};
use ashlar_env::{Continuity, Disk, OpenMode};
use std::io::{self, ErrorKind};

/// In the directory of `ashlar meta`: `closed`, or boot and mount ([`Continuity`]) as hexadecimal and decimal digits, or `unknown`; with spaces behind it. It is overwritten in place, so that a
/// full disk keeps nobody from it; no power cut tears so few bytes.
const FILE: &str = "used-in";
const CLOSED: &str = "closed";
/// Bytes of the file.
const FILE_BYTES: usize = 64;

fn text_of(span: Option<Continuity>) -> String {
    span.map_or_else(
        || "unknown".to_owned(),
        |span| format!("{:032x} {}", u128::from_be_bytes(span.boot), span.mount),
    )
}

/// Whether the log in the directory may lack something that was acknowledged: it was not closed, and not used last in the span of time in which it is now. Nothing is known of one that only
/// earlier versions have used.
///
/// # Errors
/// When the file cannot be read.
pub fn may_lack_something(disk: &dyn Disk) -> Result<bool> {
    let what = || format!("cannot read {}", disk.describe(FILE));
    let file = match disk.open(FILE, OpenMode::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error).with_context(what),
    };
    let mut bytes = [0; FILE_BYTES];
    let len = file.read_at(0, &mut bytes).with_context(what)?;
    let text = bytes[..len].trim_ascii_end();
    let is_same = disk.continuity().is_some_and(|now| *text == *text_of(Some(now)).as_bytes());
    Ok(!is_same && *text != *CLOSED.as_bytes())
}

/// Notes that the log is used from now on. To be called once whoever is to know what was lost can find that in the log.
pub fn begin(disk: &dyn Disk) {
    note(disk, &text_of(disk.continuity()));
}

/// Notes that the log was closed in good order.
pub fn end(disk: &dyn Disk) {
    note(disk, CLOSED);
}

fn note(disk: &dyn Disk, text: &str) {
    let write = || -> io::Result<()> {
        let before = disk.open(FILE, OpenMode::Read);
        let is_new = before.is_err_and(|error| error.kind() == ErrorKind::NotFound);
        let file = disk.open(FILE, OpenMode::CreateOrOpen)?;
        file.write_at(0, format!("{text:<FILE_BYTES$}").as_bytes())?;
        file.sync_data()?;
        if is_new { disk.sync_dir("") } else { Ok(()) }
    };
    if let Err(error) = write() {
        tracing::warn!(%error, file = disk.describe(FILE), "how a metadata log was used cannot be noted: the next start says that something may be lost");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ashlar_env::sim::SimDisk;

    #[test]
    fn a_power_cut_and_a_failed_disk_are_told_from_a_kill_and_a_stop() {
        let disk = SimDisk::new();
        assert!(!may_lack_something(&disk).unwrap(), "nobody has used it");
        begin(&disk);
        disk.kill_process();
        assert!(!may_lack_something(&disk).unwrap());
        disk.crash(1);
        assert!(may_lack_something(&disk).unwrap());
        assert!(may_lack_something(&disk).unwrap(), "until somebody goes on");
        begin(&disk);
        disk.note_loss("a test").unwrap();
        assert!(may_lack_something(&disk).unwrap());
        disk.end_loss().unwrap();
        assert!(may_lack_something(&disk).unwrap());
        begin(&disk);
        assert!(!may_lack_something(&disk).unwrap());
        end(&disk);
        disk.crash(2);
        assert!(!may_lack_something(&disk).unwrap());
    }
}
