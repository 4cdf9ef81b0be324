//! `ashlar mount show`: what a mount tells of itself.

use super::{ANSWER_MAX, find, object, print, resolved};
use crate::command::umount::refuse_others;
use crate::node::TEXT_BYTES_MAX;
use crate::terminal::{say, say_json, shown};
use anyhow::{Context, Result};
use ashlar_console::object::with;
use ashlar_fuse::adaptor::MOUNT_ATTRIBUTE;
use ashlar_types::Timespec;
use serde_json::{Map, Value, json};
use std::ffi::{CStr, CString};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

/// What a mount that answers tells; of one that does not, each is null.
const TOLD: [&str; 22] = [
    "cluster",
    "version",
    "pid",
    "node",
    "started",
    "session",
    "session_text",
    "epoch",
    "managers",
    "metadata_servers",
    "storage_servers",
    "servers_left_out",
    "addresses_left_out",
    "coherence",
    "durability",
    "subdirectory",
    "error_after_s",
    "keep_s",
    "allow_other",
    "set_id",
    "devices",
    "transport",
];

pub fn show(mountpoint: &Path, is_json: bool) -> Result<()> {
    let path = resolved(mountpoint);
    refuse_others(mountpoint, &path)?;
    let mount = find(&path)?;
    let told = match asked(&path)? {
        Ok(text) => Some(
            serde_json::from_str::<Map<String, Value>>(&text)
                .context("what the mount tells is of another version")?,
        ),
        // Nobody serves it, or not in time.
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED))
                || error.kind() == io::ErrorKind::TimedOut =>
        {
            None
        }
        Err(error) => {
            let hint = match error.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => " (only root and the user who mounted it may)",
                Some(libc::ENODATA | libc::EOPNOTSUPP) => " (its process is of a version that does not tell)",
                _ => "",
            };
            return Err(error)
                .with_context(|| format!("cannot ask the mount at {}{hint}", shown(mountpoint)));
        }
    };
    if is_json {
        let nothing = || TOLD.iter().map(|name| ((*name).to_owned(), Value::Null)).collect();
        let shown = with(object(&mount), json!({ "is_answering": told.is_some() }));
        return say_json(&with(shown, Value::Object(told.unwrap_or_else(nothing))));
    }
    print(&mount);
    match told {
        Some(told) => told
            .iter()
            .filter_map(|(name, value)| line(name, value))
            .for_each(|line| say(format_args!("{line}"))),
        None => say("its process does not answer"),
    }
    Ok(())
}

/// What is told, for people; nothing where that says nothing, or is said already.
fn line(name: &str, value: &Value) -> Option<String> {
    let text = match name {
        "session_text" => None,
        "servers_left_out" | "addresses_left_out" if *value == 0 => None,
        "started" => value.as_i64().map(|secs| Timespec { secs, nanos: 0 }.utc()),
        _ => text(value),
    };
    Some(format!("{name}: {}", text?))
}

/// A value for people; nothing for one that says nothing.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.escape_debug().to_string()),
        Value::Array(all) => Some(all.iter().filter_map(text).collect::<Vec<_>>().join("; ")),
        Value::Object(fields) => {
            let name = fields.get("name").and_then(Value::as_str).unwrap_or_default().escape_debug();
            let addresses = fields.get("addresses").and_then(text);
            Some(addresses.map_or(name.to_string(), |addresses| format!("{name} at {addresses}")))
        }
        other => Some(other.to_string()),
    }
}

/// What the process of the mount says, if it does in time. A process asks that is left behind if it gets no answer: whoever waits for one that the kernel has handed over already cannot be ended, not
/// even killed, and this command is to end.
fn asked(path: &Path) -> Result<io::Result<String>> {
    let path = CString::new(path.as_os_str().as_bytes()).context("a path cannot contain a NUL byte")?;
    let mut text = vec![0u8; TEXT_BYTES_MAX];
    let (mut reader, writer) = io::pipe().context("cannot make a pipe")?;
    // SAFETY: until it ends the child does nothing but calls that are safe after a fork of a process with several threads: it allocates nothing and takes no lock.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()).context("cannot start a process"),
        0 => {
            // SAFETY: nobody in this process uses these any more; whoever waits for the end of what the command prints must not wait for this process.
            unsafe { (0..3).for_each(|stream| _ = libc::close(stream)) };
            tell_attribute(&path, &mut text, &writer)
        }
        child => {
            drop(writer);
            let told = read_until(&mut reader, Instant::now() + ANSWER_MAX);
            // SAFETY: kill and waitpid take no pointer but a null one, and the child has not been waited for.
            unsafe {
                match &told {
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => libc::kill(child, libc::SIGKILL),
                    _ => libc::waitpid(child, std::ptr::null_mut(), 0),
                }
            };
            Ok(told.and_then(|told| answer(&told)))
        }
    }
}

/// Asks, and writes the error number (0: none) and the text to `writer`.
fn tell_attribute(path: &CStr, text: &mut [u8], mut writer: &PipeWriter) -> ! {
    // SAFETY: the strings are NUL-terminated and live through the call, and the buffer is as long as said.
    let got = unsafe {
        libc::getxattr(path.as_ptr(), MOUNT_ATTRIBUTE.as_ptr(), text.as_mut_ptr().cast(), text.len())
    };
    let errno = if got < 0 { io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) } else { 0 };
    let told = text.get(..usize::try_from(got).unwrap_or(0)).unwrap_or_default();
    // Nobody may be reading any more.
    let _ = writer.write_all(&errno.to_ne_bytes()).and_then(|()| writer.write_all(told));
    // SAFETY: takes no pointer; nothing of the process that was copied is run down.
    unsafe { libc::_exit(0) }
}

/// All that comes until nobody writes any more.
///
/// # Errors
/// `TimedOut` at `deadline`.
fn read_until(reader: &mut PipeReader, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut told = Vec::new();
    let mut piece = [0u8; 4096];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut poll = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which lives through the call.
        match unsafe { libc::poll(&mut poll, 1, left.as_millis() as libc::c_int) } {
            0 => return Err(io::ErrorKind::TimedOut.into()),
            -1 => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => continue,
                error => return Err(error),
            },
            _ => {}
        }
        match reader.read(&mut piece)? {
            0 => return Ok(told),
            len => told.extend_from_slice(&piece[..len]),
        }
    }
}

/// What [`tell_attribute`] has written.
fn answer(told: &[u8]) -> io::Result<String> {
    let Some((errno, text)) = told.split_first_chunk() else {
        return Err(io::ErrorKind::UnexpectedEof.into());
    };
    match i32::from_ne_bytes(*errno) {
        0 => String::from_utf8(text.to_vec()).map_err(|_| io::ErrorKind::InvalidData.into()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_out_is_told_where_something_was() {
        for name in ["servers_left_out", "addresses_left_out"] {
            assert_eq!(line(name, &json!(0)), None);
            assert_eq!(line(name, &json!(5)), Some(format!("{name}: 5")));
            assert!(TOLD.contains(&name), "of a mount that does not answer it is null");
        }
    }
}
