//! `ashlar-torture metabench`: rates of create, stat, read and remove, in the manner of mdtest.
//!
//! Each thread has a directory of its own, or all share one. Names are made before the clock starts, calls are relative to an open
//! directory, and every thread has a file table of its own, so that the file system is measured and not this program.

use std::ffi::CString;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use crate::measure::{Phase, Samples, measure, print};
use crate::rng::pattern;
use crate::sys::{attr, data, name};

/// Measure create, stat, read (open, read, close) and remove.
#[derive(Args, Debug)]
pub struct Arguments {
    /// A directory on the file system to be measured.
    #[arg(long)]
    dir: PathBuf,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Files per thread.
    #[arg(long, default_value_t = 10_000)]
    files: usize,
    /// All threads in one directory.
    #[arg(long)]
    shared: bool,
    /// Bytes per file.
    #[arg(long, default_value_t = 0)]
    size: usize,
    /// Call fsync after each create.
    #[arg(long)]
    fsync: bool,
    /// Do not compare what is read (a server without data measures the ceiling).
    #[arg(long)]
    unverified: bool,
    /// Print one line of JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// When any call fails.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let root = arguments.dir.join(format!("metabench-{}", std::process::id()));
    fs::create_dir(&root).with_context(|| format!("create {}", root.display()))?;
    let folder = |thread: usize| root.join(if arguments.shared { 0 } else { thread }.to_string());
    for thread in 0..if arguments.shared { 1 } else { arguments.threads } {
        fs::create_dir(folder(thread))?;
    }
    let names: Vec<Vec<CString>> = (0..arguments.threads)
        .map(|thread| {
            (0..arguments.files).map(|number| CString::new(format!("f{thread}.{number}"))).collect()
        })
        .collect::<Result<_, _>>()?;
    let content = pattern(1, arguments.size);
    let bytes = arguments.size as u64;
    let phase = |label: &str, operation: &(dyn Fn(&OwnedFd, &[u8]) -> anyhow::Result<()> + Sync)| {
        let counted = if matches!(label, "create" | "read") { bytes } else { 0 };
        measure(label, arguments.threads, |thread| {
            let directory = own_directory(&folder(thread))?;
            let mut samples = Samples::with_capacity(arguments.files);
            for name in &names[thread] {
                samples
                    .time(counted, || operation(&directory, name.to_bytes()))
                    .with_context(|| format!("{label} {name:?}"))?;
            }
            Ok(samples)
        })
    };
    let create = |directory: &OwnedFd, name: &[u8]| {
        let file =
            data::openat(directory.as_fd(), name, libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, 0o644)?;
        if !content.is_empty() {
            data::pwrite_all(file.as_fd(), &content, 0)?;
        }
        if arguments.fsync {
            data::fsync(file.as_fd(), false)?;
        }
        Ok(data::close(file)?)
    };
    let read = |directory: &OwnedFd, name: &[u8]| {
        let file = data::openat(directory.as_fd(), name, libc::O_RDONLY, 0)?;
        let mut buffer = vec![0u8; arguments.size];
        let got = data::pread_full(file.as_fd(), &mut buffer, 0)?;
        anyhow::ensure!(arguments.unverified || buffer[..got] == content[..], "wrong content");
        Ok(data::close(file)?)
    };
    let phases: Vec<Phase> = vec![
        phase("create", &create)?,
        phase("stat", &|directory, name| Ok(attr::fstatat(directory.as_fd(), name, 0).map(drop)?))?,
        phase("read", &read)?,
        phase("remove", &|directory, name| Ok(name::unlinkat(directory.as_fd(), name, 0)?))?,
    ];
    fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))?;
    print(&phases, arguments.json)
}

/// Opens a directory on a thread that from now on shares no file table with the others.
pub(crate) fn own_directory(path: &std::path::Path) -> anyhow::Result<OwnedFd> {
    // SAFETY: unshare takes no memory; descriptors opened before stay valid in the private copy of the table.
    if unsafe { libc::unshare(libc::CLONE_FILES) } != 0 {
        return Err(std::io::Error::last_os_error()).context("unshare the file table");
    }
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    data::openat(data::CWD, path.as_os_str().as_bytes(), flags, 0)
        .with_context(|| format!("open {}", path.display()))
}
