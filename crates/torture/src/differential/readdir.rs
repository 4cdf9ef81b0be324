//! Directory reading: plain, from a remembered position, and while the directory changes.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::observe::Outcome;
use super::path::BytePath;
use crate::rng::Rng;
use crate::sys::attr::fstatat;
use crate::sys::data::{self, CWD};
use crate::sys::dir::{DirEntry, getdents, read_all};
use crate::sys::{Errno, SysResult, name};

fn open_directory(path: &BytePath) -> SysResult<OwnedFd> {
    data::openat(CWD, &path.0, libc::O_RDONLY | libc::O_DIRECTORY, 0)
}

fn finish(result: SysResult<Outcome>) -> Outcome {
    result.unwrap_or_else(Outcome::Failed)
}

/// The names of a directory with their types, sorted; a violation when an entry appears twice or its type is wrong.
#[must_use]
pub fn list(path: &BytePath) -> Outcome {
    finish((|| {
        let dir = open_directory(path)?;
        let entries = read_all(dir.as_fd())?;
        let mut names = Vec::with_capacity(entries.len());
        for entry in &entries {
            if let Some(wrong) = check_entry(dir.as_fd(), entry) {
                return Ok(Outcome::Violation(wrong));
            }
            names.push(BytePath(entry.name.clone()));
        }
        names.sort();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Ok(Outcome::Violation(format!("{:?} is listed twice in {path:?}", pair[0])));
        }
        Ok(Outcome::Names(names))
    })())
}

fn check_entry(dir: BorrowedFd<'_>, entry: &DirEntry) -> Option<String> {
    // The acting user may list the directory without being allowed to search it; then there is nothing to compare with.
    let stat = fstatat(dir, &entry.name, libc::AT_SYMLINK_NOFOLLOW).ok()?;
    let kind = (stat.kind() >> 12) as u8;
    let shown = BytePath(entry.name.clone());
    if entry.kind != libc::DT_UNKNOWN && entry.kind != kind {
        return Some(format!("{shown:?} is listed with type {} but is of type {kind}", entry.kind));
    }
    // `..` of the top directory may be the mount point's parent.
    if entry.name != b".." && entry.ino != stat.ino {
        return Some(format!("{shown:?} is listed with inode {} but has inode {}", entry.ino, stat.ino));
    }
    None
}

/// Reads a directory, goes back to the position after a random entry, and expects the same rest; then rewinds.
#[must_use]
pub fn seek(path: &BytePath, seed: u64) -> Outcome {
    finish((|| {
        let dir = open_directory(path)?;
        let all = read_all(dir.as_fd())?;
        let mut rng = Rng::new(seed);
        for _ in 0..3 {
            let at = rng.index(all.len());
            let Some(entry) = all.get(at) else { break };
            data::lseek(dir.as_fd(), entry.next, libc::SEEK_SET)?;
            let rest = read_all(dir.as_fd())?;
            if names(&rest) != names(&all[at + 1..]) {
                return Ok(Outcome::Violation(format!(
                    "after seeking behind entry {at} of {} in {path:?}: {} entries instead of {}",
                    all.len(),
                    rest.len(),
                    all.len() - at - 1
                )));
            }
        }
        data::lseek(dir.as_fd(), 0, libc::SEEK_SET)?;
        let again = read_all(dir.as_fd())?;
        if names(&again) != names(&all) {
            return Ok(Outcome::Violation(format!("{path:?} reads differently after rewinding")));
        }
        Ok(Outcome::Value(all.len() as i64))
    })())
}

fn names(entries: &[DirEntry]) -> Vec<&[u8]> {
    entries.iter().map(|entry| entry.name.as_slice()).collect()
}

fn name_of(prefix: char, number: u16) -> Vec<u8> {
    format!("{prefix}{number:04}-{}", "pad".repeat(usize::from(number % 5) + 1)).into_bytes()
}

/// Fills a directory, reads it with a small buffer while entries with even numbers are removed or renamed and new ones appear,
/// and checks what POSIX promises: every entry that stays is returned exactly once, no name is returned twice.
#[must_use]
pub fn while_modifying(path: &BytePath, entries: u16, room: usize, seed: u64) -> Outcome {
    finish((|| {
        let dir = open_directory(path)?;
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
        let mut created = 0;
        let filled: SysResult<()> = (0..entries).try_for_each(|number| {
            drop(data::openat(dir.as_fd(), &name_of('w', number), flags, 0o600)?);
            created += 1;
            Ok(())
        });
        let outcome = filled.and_then(|()| read_and_modify(dir.as_fd(), entries, room, seed));
        let cleaned = clean(dir.as_fd(), entries);
        match outcome? {
            Some(wrong) => Ok(Outcome::Violation(wrong)),
            // How many entries one call returns is the file system's choice, so the number of changes made is not compared.
            None => cleaned.map(|()| Outcome::Done),
        }
    })())
}

fn read_and_modify(dir: BorrowedFd<'_>, entries: u16, room: usize, seed: u64) -> SysResult<Option<String>> {
    let mut rng = Rng::new(seed);
    let mut seen: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    let mut added = 0u16;
    loop {
        let batch = getdents(dir, room)?;
        if batch.is_empty() {
            break;
        }
        for entry in batch {
            *seen.entry(entry.name).or_default() += 1;
        }
        // LIMIT: new names, so that the listing ends even where they are all returned.
        if added < entries {
            modify(dir, &mut rng, entries, added)?;
            added += 1;
        }
    }
    if let Some((twice, times)) = seen.iter().find(|(_, times)| **times > 1) {
        return Ok(Some(format!("{:?} was returned {times} times", BytePath(twice.clone()))));
    }
    let missing =
        (0..entries).filter(|number| number % 2 == 1).find(|n| !seen.contains_key(&name_of('w', *n)));
    Ok(missing.map(|number| {
        format!("{:?} was there all the time but not returned", BytePath(name_of('w', number)))
    }))
}

fn modify(dir: BorrowedFd<'_>, rng: &mut Rng, entries: u16, added: u16) -> SysResult<()> {
    let even = (rng.below(u64::from(entries)) & !1) as u16;
    let result = match rng.below(3) {
        0 => name::unlinkat(dir, &name_of('w', even), 0),
        1 => name::renameat2(dir, &name_of('w', even), &name_of('r', even), 0),
        _ => {
            let flags = libc::O_CREAT | libc::O_WRONLY;
            data::openat(dir, &name_of('n', added), flags, 0o600).map(drop)
        }
    };
    // The even entry may have been removed or renamed by an earlier round.
    if result == Err(Errno(libc::ENOENT)) { Ok(()) } else { result }
}

/// Removes what the test made.
fn clean(dir: BorrowedFd<'_>, entries: u16) -> SysResult<()> {
    for number in 0..entries {
        for prefix in ['w', 'r', 'n'] {
            match name::unlinkat(dir, &name_of(prefix, number), 0) {
                Ok(()) | Err(Errno(libc::ENOENT)) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(())
}
