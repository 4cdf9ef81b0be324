//! A program that is run to its end, unless somebody asks to stop.

use crate::BenchError;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Whether a program of this name is in PATH.
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| {
        use std::os::unix::fs::PermissionsExt;
        let about = folder.join(program).metadata();
        about.is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
    })
}

/// A file without a name in the memory or temporary directory: what a program prints is not to be in the file system that is measured.
fn paper() -> std::io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_TMPFILE);
    options.open("/dev/shm").or_else(|_| options.open(std::env::temp_dir()))
}

/// Runs it in `folder` and returns what it printed.
///
/// # Errors
/// [`BenchError::Unfit`] with its last lines when it fails; [`BenchError::Stopped`].
pub fn run(arguments: &[String], folder: &Path, cancel: &AtomicBool) -> Result<String, BenchError> {
    let [program, rest @ ..] = arguments else {
        return Err(BenchError::Unfit("there is no command for this".into()));
    };
    let name = Path::new(program);
    let (mut printed, mut complained) = paper()
        .and_then(|one| Ok((one, paper()?)))
        .map_err(BenchError::io("make a file for what is printed by", name))?;
    let twin = |file: &File| file.try_clone().map(Stdio::from).map_err(BenchError::io("start", name));
    let mut command = Command::new(program);
    command.args(rest).current_dir(folder).stdin(Stdio::null());
    // A group of its own: what it starts ends with it, and Ctrl-C reaches us alone.
    command.stdout(twin(&printed)?).stderr(twin(&complained)?).process_group(0);
    let mut child = command.spawn().map_err(BenchError::io("start", name))?;
    let status = loop {
        match child.try_wait().map_err(BenchError::io("wait for", name))? {
            Some(status) => break status,
            None if cancel.load(Relaxed) => {
                end(&mut child);
                return Err(BenchError::Stopped);
            }
            None => std::thread::park_timeout(Duration::from_millis(10)),
        }
    };
    let text = text_of(&mut printed).map_err(BenchError::io("read the output of", name))?;
    if status.success() {
        return Ok(text);
    }
    let complaint = text_of(&mut complained).map_err(BenchError::io("read the output of", name))?;
    let all = format!("{text}\n{complaint}");
    let last: Vec<&str> = all.lines().rev().filter(|line| !line.trim().is_empty()).take(3).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    Err(BenchError::Unfit(format!("{program} ended with {status}: {}", last.join(" | "))))
}

fn text_of(file: &mut File) -> std::io::Result<String> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn end(child: &mut Child) {
    // SAFETY: kill takes no pointer; the child has not been waited for, so the group's number is still its own.
    unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
    // It is gone either way.
    let _ = child.wait();
}
