//! `ashlar layout`: settings of a directory, through the extended attribute `ashlar.layout`, so that every user may ask and the
//! file system's own permissions decide.

use crate::cli::{Choice, DurabilityChoice, LayoutArgs, LayoutCommand, LayoutSetArgs};
use crate::terminal::{say, say_json};
use anyhow::{Context, Result, bail};
use ashlar_types::{DirectoryChoice, ShardId};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Time between looks how far a split is.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Shortest time between lines that say so.
const TELL_EVERY: Duration = Duration::from_secs(1);
const ATTRIBUTE: &std::ffi::CStr = c"ashlar.layout";
/// Longest text of a layout, bytes: 256 chains and their targets.
const TEXT_BYTES_MAX: usize = 16 << 10;

pub fn run(args: &LayoutArgs) -> Result<ExitCode> {
    match &args.command {
        LayoutCommand::Show { path, json } => show(path, *json)?,
        LayoutCommand::Set(args) => set(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn show(path: &Path, json: bool) -> Result<()> {
    let text = get(path)?;
    if json {
        let pairs: serde_json::Map<String, serde_json::Value> = text
            .split_whitespace()
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.parse::<u64>().map_or(value.into(), Into::into)))
            .collect();
        say_json(&pairs)?;
    } else {
        text.split_whitespace().for_each(|pair| say(pair.replacen('=', ": ", 1)));
    }
    Ok(())
}

fn set(args: &LayoutSetArgs) -> Result<()> {
    let mut pairs = Vec::new();
    pairs.extend(args.pool.as_ref().map(|pool| format!("pool={pool}")));
    pairs.extend(args.chunk_size.map(|bytes| format!("chunk_bytes={bytes}")));
    pairs.extend(args.stripe_count.map(|count| format!("stripe_count={count}")));
    pairs.extend(args.copies.map(|count| format!("copies={count}")));
    pairs.extend(args.inline_size.map(|bytes| format!("inline_bytes={bytes}")));
    pairs.extend(args.choice.map(|choice| {
        let name = match choice {
            Choice::RoundRobin => "round-robin",
            Choice::FreeSpace => "free-space",
            Choice::Scatter => "scatter",
        };
        format!("choice={name}")
    }));
    pairs.extend(args.durability.map(|durability| {
        let name = if durability == DurabilityChoice::Sync { "sync" } else { "async" };
        format!("durability={name}")
    }));
    pairs.extend(args.directories.map(|directories| format!("directories={directories}")));
    pairs.extend(args.slices.map(|count| format!("slices={count}")));
    pairs.extend(args.slices_of_new.map(|count| format!("slices_of_new={count}")));
    if pairs.is_empty() {
        bail!(
            "nothing to set; give at least one of --pool, --chunk-size, --stripe-count, --copies, --inline-size, --choice, --durability, --directories, --slices, --slices-of-new"
        );
    }
    let text = pairs.join(" ");
    let path = c_path(&args.path)?;
    // SAFETY: the strings are NUL-terminated and live through the call, and the length is that of the value.
    let done =
        unsafe { libc::setxattr(path.as_ptr(), ATTRIBUTE.as_ptr(), text.as_ptr().cast(), text.len(), 0) };
    if done != 0 {
        let error = std::io::Error::last_os_error();
        let hint = hint(args, error.raw_os_error());
        return Err(error)
            .with_context(|| format!("cannot set the layout of {} ({hint})", args.path.display()));
    }
    if args.slices.is_some() && !args.no_wait {
        await_split(&args.path)?;
    }
    if args.json { show(&args.path, true) } else { Ok(()) }
}

/// What to do about a refusal.
fn hint(args: &LayoutSetArgs, errno: Option<i32>) -> String {
    let splits = args.slices.is_some() || args.slices_of_new.is_some();
    let hint = match errno {
        Some(libc::EEXIST) => "it is split already, into another number of slices, and is split once",
        Some(libc::ENOTDIR) => "it is no directory, and only directories have slices and directories in them",
        Some(libc::ENODEV) => return of_unknown_shard(args.directories),
        // Ranges were checked with the command line.
        Some(libc::EINVAL) if splits && args.pool.is_none() => {
            "each slice is in a shard of its own, besides that of the directory: see `ashlar shard list` for how many there are"
        }
        Some(libc::EINVAL) if args.copies.is_some_and(|copies| copies > 1) => return of_few_copies(args),
        Some(libc::EINVAL) if args.pool.is_some() => {
            "is there a pool of this name, see `ashlar status`, with chains for as many copies as the directory is to have, see `ashlar pool list`, and is it a directory, or a file without data outside of its inode?"
        }
        Some(libc::EINVAL) => {
            "it is neither a directory nor a file without data outside of its inode; a copy of a file gets the layout of the directory it is made in"
        }
        Some(libc::EOPNOTSUPP) => "it is not on an Ashlar mount",
        Some(libc::EPERM | libc::EACCES) => "only the owner of a directory and root may",
        _ => "see above",
    };
    hint.into()
}

fn of_few_copies(args: &LayoutSetArgs) -> String {
    let (copies, pool) = (args.copies.unwrap_or(1), args.pool.as_deref());
    format!(
        "is there {}, with chains of {copies} copies? `ashlar pool list` shows that, and `ashlar pool copies {} {copies}` on a machine that may administer makes some; and is it a directory, or a file without data outside of its inode?",
        pool.map_or("the pool of the directory".to_owned(), |pool| format!("a pool {pool}")),
        pool.unwrap_or("POOL"),
    )
}

fn of_unknown_shard(directories: Option<DirectoryChoice>) -> String {
    let Some(DirectoryChoice::Pinned(shard)) = directories else { return "see above".into() };
    let (first, last) = (ShardId(0), ShardId(ShardId::COUNT_DEFAULT - 1));
    format!(
        "there is no {shard}: there are {first} to {last}, and `ashlar shard list` shows which metadata server of a cluster has which"
    )
}

/// Waits until all entries of a directory are in its slices, and tells how far it is.
fn await_split(path: &Path) -> Result<()> {
    let mut told = None;
    let mut told_at = Instant::now();
    loop {
        let text = get(path)?;
        let percent = text.split_whitespace().find_map(|pair| pair.strip_prefix("split_percent="));
        let Some(percent) = percent else { return Ok(()) };
        if told.as_deref() != Some(percent) && told_at.elapsed() >= TELL_EVERY {
            eprintln!(
                "{}: {percent} % of its names are in slices; it goes on without this command",
                path.display()
            );
            (told, told_at) = (Some(percent.to_owned()), Instant::now());
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn get(path: &Path) -> Result<String> {
    let c_path = c_path(path)?;
    let mut text = vec![0u8; TEXT_BYTES_MAX];
    // SAFETY: the strings are NUL-terminated and live through the call, and the buffer is as long as said.
    let got =
        unsafe { libc::getxattr(c_path.as_ptr(), ATTRIBUTE.as_ptr(), text.as_mut_ptr().cast(), text.len()) };
    let Ok(len) = usize::try_from(got) else {
        let error = std::io::Error::last_os_error();
        let hint = match error.raw_os_error() {
            Some(libc::EINVAL) => " (only directories and regular files have one)",
            Some(libc::EOPNOTSUPP | libc::ENODATA) => " (it is not on an Ashlar mount)",
            _ => "",
        };
        return Err(error).with_context(|| format!("cannot read the layout of {}{hint}", path.display()));
    };
    text.truncate(len);
    String::from_utf8(text).context("the layout is not text")
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).context("a path cannot contain a NUL byte")
}
