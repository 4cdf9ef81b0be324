//! The file by which a run knows the directory that it has made. Without it nothing is removed when an interrupted run goes on: a journal, or a
//! coordinator, may name a directory that somebody else has made.

use crate::BenchError;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, openat, unlinkat};
use rustix::process::geteuid;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// What it is called.
const NAME: &str = "mark";
/// LIMIT: bytes of one.
const BYTES_MAX: u64 = 200;
/// Digits of a run's name.
const RUN_DIGITS: usize = 16;
/// What the directory of `run` is called.
pub(crate) fn directory_name(run: &str) -> String {
    format!("ashlar-bench.{run}")
}

/// Whether `run` is what a run can be called: 16 hexadecimal digits, and thus no way out of a directory.
pub(crate) fn is_run(run: &str) -> bool {
    run.len() == RUN_DIGITS && run.bytes().all(|digit| digit.is_ascii_hexdigit())
}

/// What stands in the mark of `run`; `token` is what only this run knows.
fn text(run: &str, token: &str) -> String {
    format!("{}{token}\n", head(run))
}

fn head(run: &str) -> String {
    format!("made by ashlar bench, run {run} ")
}

/// Makes the directory `root` of `run`, with its mark.
///
/// # Errors
/// What a call answers; then nothing is left.
pub(crate) fn make(root: &Path, run: &str, token: &str) -> Result<(), BenchError> {
    fs::create_dir(root).map_err(BenchError::io("make directory", root))?;
    let path = root.join(NAME);
    let written = File::create_new(&path).and_then(|mut file| file.write_all(text(run, token).as_bytes()));
    written.map_err(|error| {
        // It holds nothing but the mark.
        let _ = fs::remove_file(&path);
        let _ = fs::remove_dir(root);
        BenchError::io("write", &path)(error)
    })
}

/// Whether `root` shows the mark of `run` with this token.
pub(crate) fn is_shown(root: &Path, run: &str, token: &str) -> bool {
    open(root).and_then(|directory| read(&directory)).is_ok_and(|found| found == text(run, token))
}

/// Removes what `run` has left in `directory`, if the run made it: a directory of this user with the mark of the run in it, and no link to one. Of
/// another one nothing is touched, but that it goes if it is empty, or has an empty mark only: so it is left between its making and its marking.
///
/// # Errors
/// [`BenchError::Plan`] for what no run is called; what a call answers.
pub(crate) fn remove_left(directory: &Path, run: &str) -> Result<(), BenchError> {
    if !is_run(run) {
        return Err(BenchError::Plan("a run is named with what is no name of one".into()));
    }
    let root = directory.join(directory_name(run));
    let opened = match open(&root) {
        Ok(opened) => opened,
        // Not there, no directory, or somebody else's.
        Err(error) if is_absent(&error) || error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
        Err(error) => return Err(BenchError::io("open", &root)(error)),
    };
    let found = fstat(&opened).map_err(BenchError::errno("stat", &root))?;
    if found.st_uid != geteuid().as_raw() {
        return Ok(());
    }
    match read(&opened) {
        Ok(told) if told.starts_with(&head(run)) => {
            empty(&opened).map_err(BenchError::io("remove", &root))?
        }
        Ok(told) if told.is_empty() && names(&opened).is_ok_and(|names| names.len() == 1) => {
            // What is left if it is not there any more is an empty directory.
            let _ = unlinkat(&opened, NAME, AtFlags::empty());
        }
        _ => {}
    }
    match fs::remove_dir(&root) {
        Err(error) if !is_absent(&error) && error.kind() != io::ErrorKind::DirectoryNotEmpty => {
            Err(BenchError::io("remove", &root)(error))
        }
        // With something in it: not what the run made.
        _ => Ok(()),
    }
}

/// Removes `root`, which this process has made or has seen the mark of, with all that is in it. Others may do the same at the same time.
///
/// # Errors
/// What a call answers.
pub(crate) fn remove(root: &Path) -> io::Result<()> {
    empty(&open(root)?)?;
    fs::remove_dir(root)
}

/// Removes all that is in a directory.
fn empty(directory: &OwnedFd) -> io::Result<()> {
    // By the descriptor: it is the directory that was looked at, whatever has its name meanwhile.
    let within = path_of(directory);
    for name in names(directory)?.into_iter().filter(|name| name != NAME) {
        let path = within.join(&name);
        // Of a link the link goes, and not what it leads to.
        let removed = fs::symlink_metadata(&path).and_then(|found| {
            if found.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) }
        });
        match removed {
            // Others remove the same.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    // ORDER: the mark goes last. Whoever is killed in the middle of this leaves a directory that is known as the run's.
    match unlinkat(directory, NAME, AtFlags::empty()) {
        Err(error) if error != rustix::io::Errno::NOENT => Err(error.into()),
        _ => Ok(()),
    }
}

fn path_of(directory: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd()))
}

fn names(directory: &OwnedFd) -> io::Result<Vec<std::ffi::OsString>> {
    fs::read_dir(path_of(directory))?.map(|entry| Ok(entry?.file_name())).collect()
}

/// Opens a directory, and no link to one.
fn open(root: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(root, flags, Mode::empty())?)
}

/// The mark in `directory`: of a regular file only.
fn read(directory: &OwnedFd) -> io::Result<String> {
    // Not blocking: somebody's pipe of that name would be waited for.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(directory, NAME, flags, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = String::new();
    File::from(file).take(BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Whether nothing is there, or no directory (a link is none).
fn is_absent(error: &io::Error) -> bool {
    let is_link = error.raw_os_error() == Some(libc::ELOOP);
    is_link || matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::inotify;
    use std::os::unix::fs::symlink;

    const RUN: &str = "0123456789abcdef";

    fn root_in(directory: &Path) -> PathBuf {
        directory.join(directory_name(RUN))
    }

    #[test]
    fn what_a_run_has_made_goes_and_links_in_it_lead_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let (root, theirs) = (root_in(folder.path()), folder.path().join("theirs"));
        make(&root, RUN, "t").unwrap();
        assert!(is_shown(&root, RUN, "t") && !is_shown(&root, RUN, "u"));
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/file"), "x").unwrap();
        fs::create_dir(&theirs).unwrap();
        fs::write(theirs.join("file"), "x").unwrap();
        symlink(&theirs, root.join("link")).unwrap();
        symlink(&theirs, root.join("a/link")).unwrap();
        remove_left(folder.path(), RUN).unwrap();
        assert!(!root.exists() && theirs.join("file").exists());
        remove_left(folder.path(), RUN).unwrap();
    }

    #[test]
    fn a_directory_that_has_only_the_name_of_a_run_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let root = root_in(folder.path());
        fs::create_dir(&root).unwrap();
        fs::write(root.join("file"), "x").unwrap();
        let other = folder.path().join("other");
        make(&other, RUN, "t").unwrap();
        let remove = || remove_left(folder.path(), RUN).unwrap();
        remove();
        // The mark of another run, one that is a link to a right one, one that would be waited for, and an empty one beside others.
        fs::write(root.join(NAME), text("0123456789abcdee", "t")).unwrap();
        remove();
        fs::remove_file(root.join(NAME)).unwrap();
        symlink(other.join(NAME), root.join(NAME)).unwrap();
        remove();
        fs::remove_file(root.join(NAME)).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, root.join(NAME), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .unwrap();
        remove();
        fs::remove_file(root.join(NAME)).unwrap();
        fs::write(root.join(NAME), "").unwrap();
        remove();
        assert!(root.join("file").exists());
        // A link to a directory with the right mark.
        fs::remove_dir_all(&root).unwrap();
        symlink(&other, &root).unwrap();
        remove();
        assert!(other.join(NAME).exists() && fs::symlink_metadata(&root).unwrap().is_symlink());
        for name in ["../other", "", "0123456789abcdef0", "0123456789abcdeg"] {
            assert!(remove_left(folder.path(), name).is_err(), "{name}");
        }
    }

    #[test]
    fn what_is_left_between_making_and_marking_goes() {
        let folder = tempfile::tempdir().unwrap();
        let root = root_in(folder.path());
        fs::create_dir(&root).unwrap();
        remove_left(folder.path(), RUN).unwrap();
        assert!(!root.exists());
        fs::create_dir(&root).unwrap();
        fs::write(root.join(NAME), "").unwrap();
        remove_left(folder.path(), RUN).unwrap();
        assert!(!root.exists());
    }

    #[test]
    fn the_mark_goes_last_so_that_whoever_is_killed_before_leaves_it() {
        let folder = tempfile::tempdir().unwrap();
        let root = root_in(folder.path());
        make(&root, RUN, "t").unwrap();
        for number in 0..50 {
            fs::write(root.join(format!("data.{number}")), "x").unwrap();
            fs::create_dir(root.join(format!("files.{number}"))).unwrap();
        }
        let seen = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&seen, &root, inotify::WatchFlags::DELETE).unwrap();
        remove(&root).unwrap();
        let mut room = [std::mem::MaybeUninit::uninit(); 1 << 16];
        let mut events = inotify::Reader::new(&seen, &mut room);
        let mut removed = Vec::new();
        while let Ok(event) = events.next() {
            removed.extend(event.file_name().map(|name| name.to_str().unwrap().to_owned()));
        }
        assert_eq!((removed.len(), removed.last().map(String::as_str)), (101, Some(NAME)));
    }
}
