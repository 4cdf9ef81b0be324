//! In which span of time the log of a metadata server without copies was used last, so that the next start knows whether something that was acknowledged may be lost.

use anyhow::{Context, Result};
use ashlar_env::{Continuity, Disk, OpenMode, replace_file};
use std::io::ErrorKind;

/// In the directory of `ashlar meta`: `closed`, or boot and mount ([`Continuity`]) as hexadecimal and decimal digits, or `unknown`.
const FILE: &str = "used-in";
const CLOSED: &str = "closed";
/// LIMIT: bytes of the file that are read.
const BYTES_MAX: usize = 256;

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
    let mut text = [0; BYTES_MAX];
    let len = file.read_at(0, &mut text).with_context(what)?;
    let now = disk.continuity();
    let is_whole = [CLOSED.to_owned(), text_of(now)].iter().any(|whole| text[..len] == *whole.as_bytes());
    Ok(!is_whole || now.is_none() && text[..len] != *CLOSED.as_bytes())
}

/// Notes that the log is used from now on. To be called once whoever is to know what was lost can find that in the log.
///
/// # Errors
/// When it cannot be noted.
pub fn begin(disk: &dyn Disk) -> Result<()> {
    note(disk, &text_of(disk.continuity()))
}

/// Notes that the log was closed in good order.
///
/// # Errors
/// When it cannot be noted: the next start takes it for one that was not.
pub fn end(disk: &dyn Disk) -> Result<()> {
    note(disk, CLOSED)
}

fn note(disk: &dyn Disk, text: &str) -> Result<()> {
    replace_file(disk, FILE, text.as_bytes()).with_context(|| format!("cannot write {}", disk.describe(FILE)))
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
        begin(&disk).unwrap();
        disk.kill_process();
        assert!(!may_lack_something(&disk).unwrap());
        disk.crash(1);
        assert!(may_lack_something(&disk).unwrap());
        assert!(may_lack_something(&disk).unwrap(), "until somebody goes on");
        begin(&disk).unwrap();
        disk.note_loss("a test").unwrap();
        assert!(may_lack_something(&disk).unwrap());
        disk.end_loss().unwrap();
        assert!(may_lack_something(&disk).unwrap());
        begin(&disk).unwrap();
        assert!(!may_lack_something(&disk).unwrap());
        end(&disk).unwrap();
        disk.crash(2);
        assert!(!may_lack_something(&disk).unwrap());
    }
}
