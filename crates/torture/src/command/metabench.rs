//! `ashlar-torture metabench`: rates of create, stat, read, list and remove, in the manner of mdtest.
//!
//! Each thread has a directory of its own, or all share one. Names are made before the clock starts, calls are relative to an open
//! directory, and every thread has a file table of its own, so that the file system is measured and not this program.
//!
//! With `--root` and `--phases` a tree is made by one run and looked at by later ones, for example after a restart.

use std::ffi::CString;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};

use crate::measure::{Samples, Server, measure, print};
use crate::rng::{Rng, pattern};
use crate::sys::{attr, data, dir, name};

/// Measure create, stat, read (open, read, close), list (a directory's entries) and remove.
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
    /// At most this many files in a directory; 0 means that all of a thread are in one.
    #[arg(long, default_value_t = 0)]
    per_directory: usize,
    /// Bytes per file.
    #[arg(long, default_value_t = 0)]
    size: usize,
    /// What to do with the files, in this order whatever the order given. Without `create` they must be there from an earlier
    /// run with the same options; without `remove` they stay.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "create,stat,read,remove")]
    phases: Vec<Step>,
    /// Name of the directory everything is in; by default one of this process.
    #[arg(long)]
    root: Option<String>,
    /// The directories are there from an earlier run with the same `--root`, and stay.
    #[arg(long, requires = "root")]
    existing: bool,
    /// What the names of the files begin with.
    #[arg(long, default_value = "f")]
    prefix: String,
    /// stat and read this many files per thread, drawn at random, instead of all in the order they were made.
    #[arg(long)]
    sample: Option<usize>,
    /// Call fsync after each create.
    #[arg(long)]
    fsync: bool,
    /// Do not compare what is read (a server without data measures the ceiling).
    #[arg(long)]
    unverified: bool,
    #[command(flatten)]
    server: Server,
    /// Print one line of JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// A list phase goes on until so many entries were seen by each thread.
const LISTED_MIN: usize = 100_000;

/// What is done with every file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Step {
    Create,
    Stat,
    Read,
    List,
    Remove,
}

impl Step {
    fn label(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Stat => "stat",
            Self::Read => "read",
            Self::List => "list",
            Self::Remove => "remove",
        }
    }
}

/// Runs the command.
///
/// # Errors
/// When any call fails.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut steps = arguments.phases.clone();
    steps.sort_unstable();
    steps.dedup();
    if arguments.sample.is_some() && steps.iter().any(|step| matches!(step, Step::Create | Step::Remove)) {
        bail!("--sample is for --phases stat,read: the same file may be drawn twice");
    }
    let root = match &arguments.root {
        Some(root) => arguments.dir.join(root),
        None => arguments.dir.join(format!("metabench-{}", std::process::id())),
    };
    let bench = Bench { arguments, root, content: pattern(1, arguments.size) };
    if steps.contains(&Step::Create) && !arguments.existing {
        bench.make_directories()?;
    }
    let names: Vec<Vec<CString>> =
        (0..arguments.threads).map(|thread| bench.names(thread)).collect::<Result<_, _>>()?;
    let phases = steps.iter().map(|step| bench.phase(*step, &names)).collect::<anyhow::Result<Vec<_>>>()?;
    if steps.contains(&Step::Remove) && !arguments.existing {
        fs::remove_dir_all(&bench.root).with_context(|| format!("remove {}", bench.root.display()))?;
    }
    print(&phases, arguments.json)
}

struct Bench<'a> {
    arguments: &'a Arguments,
    root: PathBuf,
    content: Vec<u8>,
}

impl Bench<'_> {
    /// The directory a thread's names are relative to.
    fn folder(&self, thread: usize) -> PathBuf {
        self.root.join(if self.arguments.shared { 0 } else { thread }.to_string())
    }

    /// The directory of a file below its thread's, if there is one in between.
    fn subfolder(&self, number: usize) -> Option<usize> {
        number.checked_div(self.arguments.per_directory)
    }

    fn make_directories(&self) -> anyhow::Result<()> {
        let make = |path: &Path| fs::create_dir(path).with_context(|| format!("create {}", path.display()));
        make(&self.root)?;
        for thread in 0..if self.arguments.shared { 1 } else { self.arguments.threads } {
            make(&self.folder(thread))?;
            let last = self.arguments.files.checked_sub(1).and_then(|number| self.subfolder(number));
            for subfolder in last.iter().flat_map(|last| 0..=*last) {
                make(&self.folder(thread).join(subfolder.to_string()))?;
            }
        }
        Ok(())
    }

    /// The files of one thread, in the order it uses them.
    fn names(&self, thread: usize) -> anyhow::Result<Vec<CString>> {
        let name = |number: usize| {
            let folder = self.subfolder(number).map_or_else(String::new, |folder| format!("{folder}/"));
            CString::new(format!("{folder}{}{thread}.{number}", self.arguments.prefix))
        };
        let files = self.arguments.files;
        Ok(match self.arguments.sample {
            Some(count) => {
                let mut rng = Rng::derive(u64::from(std::process::id()), thread as u64);
                (0..count).map(|_| name(rng.index(files))).collect::<Result<_, _>>()?
            }
            None => (0..files).map(name).collect::<Result<_, _>>()?,
        })
    }

    fn phase(&self, step: Step, names: &[Vec<CString>]) -> anyhow::Result<crate::measure::Phase> {
        let counted = if matches!(step, Step::Create | Step::Read) { self.arguments.size as u64 } else { 0 };
        measure(step.label(), self.arguments.threads, self.arguments.server, |thread| {
            let directory = own_directory(&self.folder(thread))?;
            if step == Step::List {
                return list(&directory);
            }
            let mut samples = Samples::with_capacity(names[thread].len());
            for name in &names[thread] {
                samples
                    .time(counted, || self.operate(step, &directory, name.to_bytes()))
                    .with_context(|| format!("{} {name:?}", step.label()))?;
            }
            Ok(samples)
        })
    }

    fn operate(&self, step: Step, directory: &OwnedFd, path: &[u8]) -> anyhow::Result<()> {
        match step {
            Step::Create => self.create(directory, path),
            Step::Stat => Ok(attr::fstatat(directory.as_fd(), path, 0).map(drop)?),
            Step::Read => self.read(directory, path),
            Step::List => bail!("a directory is listed, not each of its files"),
            Step::Remove => Ok(name::unlinkat(directory.as_fd(), path, 0)?),
        }
    }

    fn create(&self, directory: &OwnedFd, path: &[u8]) -> anyhow::Result<()> {
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
        let file = data::openat(directory.as_fd(), path, flags, 0o644)?;
        if !self.content.is_empty() {
            data::pwrite_all(file.as_fd(), &self.content, 0)?;
        }
        if self.arguments.fsync {
            data::fsync(file.as_fd(), false)?;
        }
        Ok(data::close(file)?)
    }

    fn read(&self, directory: &OwnedFd, path: &[u8]) -> anyhow::Result<()> {
        let file = data::openat(directory.as_fd(), path, libc::O_RDONLY, 0)?;
        let mut buffer = vec![0u8; self.content.len()];
        let got = data::pread_full(file.as_fd(), &mut buffer, 0)?;
        anyhow::ensure!(self.arguments.unverified || buffer[..got] == self.content[..], "wrong content");
        Ok(data::close(file)?)
    }
}

/// Lists a directory as often as it takes to have seen [`LISTED_MIN`] entries; each entry is an operation.
fn list(directory: &OwnedFd) -> anyhow::Result<Samples> {
    let mut samples = Samples::with_capacity(2 * LISTED_MIN);
    let mut listed = 0;
    while listed < LISTED_MIN {
        data::lseek(directory.as_fd(), 0, libc::SEEK_SET)?;
        let before = listed;
        loop {
            let start = Instant::now();
            let entries = dir::getdents(directory.as_fd(), 32_768)?.len();
            let Some(each) = start.elapsed().checked_div(entries as u32) else { break };
            (0..entries).for_each(|_| samples.add(each, 0));
            listed += entries;
        }
        anyhow::ensure!(listed > before, "the directory has not even an entry for itself");
    }
    Ok(samples)
}

/// Opens a directory on a thread that from now on shares no file table with the others.
pub(crate) fn own_directory(path: &Path) -> anyhow::Result<OwnedFd> {
    // SAFETY: unshare takes no memory; descriptors opened before stay valid in the private copy of the table.
    if unsafe { libc::unshare(libc::CLONE_FILES) } != 0 {
        return Err(std::io::Error::last_os_error()).context("unshare the file table");
    }
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    data::openat(data::CWD, path.as_os_str().as_bytes(), flags, 0)
        .with_context(|| format!("open {}", path.display()))
}
