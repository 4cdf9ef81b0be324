//! `ashlar mount show`: what a mount tells of itself.

use super::{ANSWER_MAX, find, object, print, resolved};
use crate::command::umount::refuse_others;
use crate::terminal::{say, say_json, shown};
use anyhow::{Context, Result};
use ashlar_console::object::with;
use ashlar_fuse::adaptor::MOUNT_ATTRIBUTE;
use ashlar_types::Timespec;
use serde_json::{Map, Value, json};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::mpsc::channel;

/// What a mount that answers tells; of one that does not, each is null.
const TOLD: [&str; 20] = [
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
    "coherence",
    "subdirectory",
    "error_after_s",
    "keep_s",
    "allow_other",
    "set_id",
    "devices",
    "transport",
];
/// LIMIT: longest value of an extended attribute that Linux hands out (XATTR_SIZE_MAX).
const TEXT_BYTES_MAX: usize = 64 << 10;

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
        "servers_left_out" if *value == 0 => None,
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

/// What the process of the mount says, if it does in time.
fn asked(path: &Path) -> Result<io::Result<String>> {
    let path = CString::new(path.as_os_str().as_bytes()).context("a path cannot contain a NUL byte")?;
    let (sender, answered) = channel();
    // It ends with this process if it gets no answer.
    std::thread::Builder::new()
        .name("ashlar-ask".into())
        .spawn(move || sender.send(attribute(&path)))
        .context("cannot start a thread")?;
    Ok(answered.recv_timeout(ANSWER_MAX).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())))
}

fn attribute(path: &CString) -> io::Result<String> {
    let mut text = vec![0u8; TEXT_BYTES_MAX];
    // SAFETY: the strings are NUL-terminated and live through the call, and the buffer is as long as said.
    let got = unsafe {
        libc::getxattr(path.as_ptr(), MOUNT_ATTRIBUTE.as_ptr(), text.as_mut_ptr().cast(), text.len())
    };
    let Ok(len) = usize::try_from(got) else { return Err(io::Error::last_os_error()) };
    text.truncate(len);
    String::from_utf8(text).map_err(|_| io::ErrorKind::InvalidData.into())
}
