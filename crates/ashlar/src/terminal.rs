//! Printing for people and pipes. A reader who leaves does not end the work (a repair must not stop half-way because nobody reads about it
//! any more), and names of files cannot play tricks on a terminal.

use anyhow::Result;
use serde::Serialize;
use std::fmt::{Display, Write as _};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether something could not be printed, other than to a reader who had seen enough.
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

/// Prints a line on standard output.
pub fn say(line: impl Display) {
    let mut text = line.to_string();
    text.push('\n');
    // One write per line: lines of several processes in one pipe do not mix.
    if let Err(error) = std::io::stdout().lock().write_all(text.as_bytes())
        && error.kind() != std::io::ErrorKind::BrokenPipe
        && !HAS_FAILED.swap(true, Relaxed)
    {
        let _ = writeln!(std::io::stderr(), "ashlar: cannot print: {error}");
    }
}

/// Prints a document for programs on standard output: the only one of its command.
///
/// # Errors
/// When it cannot be written as JSON.
pub fn say_json(document: &(impl Serialize + ?Sized)) -> Result<()> {
    say(serde_json::to_string_pretty(document)?);
    Ok(())
}

/// Whether [`say`] lost something that somebody waits for, as on a full disk.
pub fn has_failed() -> bool {
    HAS_FAILED.load(Relaxed)
}

/// A path as a terminal and a log may have it: what is no text, controls the terminal or turns its direction is written as `\xNN`, byte by
/// byte.
pub fn shown(path: &Path) -> String {
    shown_bytes(path.as_os_str().as_bytes())
}

/// As [`shown`], for the bytes of a name.
pub fn shown_bytes(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for part in name.utf8_chunks() {
        for character in part.valid().chars() {
            if is_harmless(character) {
                text.push(character);
            } else {
                escape(&mut text, character.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        escape(&mut text, part.invalid());
    }
    text
}

fn is_harmless(character: char) -> bool {
    let turns_direction =
        matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !character.is_control() && !turns_direction
}

fn escape(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing into a String cannot fail.
        let _ = write!(text, "\\x{byte:02x}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_control_the_terminal() {
        assert_eq!(shown_bytes("plain ä name".as_bytes()), "plain ä name");
        assert_eq!(shown_bytes(b"a\x1b[2Jb\nc"), "a\\x1b[2Jb\\x0ac");
        assert_eq!(shown_bytes(b"\xff\xfe.txt"), "\\xff\\xfe.txt");
        assert_eq!(shown_bytes("\u{202e}gnp.exe".as_bytes()), "\\xe2\\x80\\xaegnp.exe");
    }
}
