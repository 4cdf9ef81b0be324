//! A look at the engine's files before the engine opens them.
//!
//! fjall takes what is missing for what was never finished: a keyspace without its file `current` is removed, with all that is in
//! it; without a journal, versions are numbered from 0 again and old ones win. So nothing is opened before this module has seen
//! that it is whole, in the order in which fjall makes it:
//!
//! | file | what fjall does without it | when it may be missing |
//! |---|---|---|
//! | `version` | makes everything anew; fails if it is not all there | before anything else is there; it is written in two parts |
//! | `keyspaces/` | fails | before `version` |
//! | `*.jnl`, always without content here | numbers versions from 0 again | never once `version` is there; see [`put_back_journal`] |
//! | `keyspaces/0/current` | forgets all keyspaces, and removes them | before there are tables |
//! | `keyspaces/N/current` | removes the keyspace | before there are tables |
//! | `vN`, named by `current` with its checksum | fails, or takes another version | while no keyspace is known: what was made of one is removed, file by file |
//! | `tables/T`, `blobs/B`, named by `vN` | fails, or loses values | never |
//!
//! Files that no `vN` names are left from work that was cut short: fjall may remove them.

use crate::KvError;
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Written last when a database is made.
const VERSION: &str = "version";
/// What it says, in the third format, the only one that is opened.
const VERSION_BYTES: &[u8] = b"FJL\x03";
const KEYSPACES: &str = "keyspaces";
pub(super) const JOURNAL_SUFFIX: &str = "jnl";
/// The journal of a database that has never filled one.
const JOURNAL: &str = "0.jnl";
pub(super) const LOCK: &str = "lock";
const CURRENT: &str = "current";
pub(super) const TABLES: &str = "tables";
pub(super) const BLOBS: &str = "blobs";
/// The keyspace that knows the others.
const DIRECTORY_KEYSPACE: u64 = 0;
/// Bytes of `current`: number and checksum of a version, kind of checksum.
const CURRENT_BYTES: usize = 25;
/// xxh3, the only kind there is.
const CHECKSUM_KIND: u8 = 0;

/// What is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing, or the beginning of a first open that was cut short; no change was ever in it.
    Nothing,
    /// All that belongs to an engine.
    Whole,
    /// All but the journal.
    NoJournal,
}

/// Looks at the engine in `path` without changing anything.
///
/// # Errors
/// [`KvError::Corrupt`] naming the file that is missing or damaged, [`KvError::Io`].
pub(super) fn look(path: &Path) -> Result<Found, KvError> {
    let Some(names) = list(path)? else { return Ok(Found::Nothing) };
    let keyspaces = keyspaces(path)?;
    let (version, is_made) = (path.join(VERSION), names.iter().any(|name| name == VERSION));
    let is_begun = is_made && is_cut_short(&version)?;
    if !is_made || is_begun {
        return match keyspaces {
            None if !is_made => Ok(Found::Nothing),
            None => Err(missing(&path.join(KEYSPACES))),
            Some(keyspaces) if keyspaces.is_empty() => Ok(Found::Nothing),
            Some(_) if is_begun => Err(damaged(&version)),
            Some(_) => Err(missing(&version)),
        };
    }
    let Some(keyspaces) = keyspaces else { return Err(missing(&path.join(KEYSPACES))) };
    look_at_keyspaces(path, &keyspaces)?;
    let is_journal = |name: &String| Path::new(name).extension().is_some_and(|end| end == JOURNAL_SUFFIX);
    Ok(if names.iter().any(is_journal) { Found::Whole } else { Found::NoJournal })
}

/// The path of the journal if only that is missing.
///
/// # Errors
/// As [`look`].
pub(super) fn missing_journal(path: &Path) -> Result<Option<PathBuf>, KvError> {
    Ok((look(path)? == Found::NoJournal).then(|| path.join(JOURNAL)))
}

/// Makes the journal anew if only that is missing; tells its path then. No change ever goes through it, so the empty file is
/// what was lost, and the numbers of versions are taken from the tables again.
///
/// # Errors
/// As [`look`].
pub(super) fn put_back_journal(path: &Path) -> Result<Option<PathBuf>, KvError> {
    let Some(journal) = missing_journal(path)? else { return Ok(None) };
    let make = || {
        fs::File::create_new(&journal)?.sync_all()?;
        fs::File::open(path)?.sync_all()
    };
    make().map_err(|error| KvError::io(format!("make {}", journal.display()), error))?;
    Ok(Some(journal))
}

/// Makes room for a first open, and lets the next one find its lock. To be called after [`look`] has answered `found`.
///
/// # Errors
/// [`KvError::Io`].
pub(super) fn prepare(path: &Path, found: Found) -> Result<(), KvError> {
    match found {
        Found::Nothing => {
            // A first open that was cut short left a journal, and the next would refuse to make it; or a part of `version`, which
            // the next would not understand.
            for name in list(path)?.unwrap_or_default() {
                if name == VERSION || Path::new(&name).extension().is_some_and(|end| end == JOURNAL_SUFFIX) {
                    let file = path.join(name);
                    fs::remove_file(&file)
                        .map_err(|e| KvError::io(format!("remove {}", file.display()), e))?;
                }
            }
            Ok(())
        }
        Found::Whole | Found::NoJournal => {
            let lock = path.join(LOCK);
            match fs::File::create_new(&lock) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    Err(KvError::io(format!("make {}", lock.display()), error))
                }
                _ => Ok(()),
            }
        }
    }
}

/// The error for a missing journal.
pub(super) fn journal_missing(path: &Path) -> KvError {
    let what = format!(
        "{} is missing, without which old versions of values would win; it never holds anything, so nothing is lost yet: put it \
         back as an empty file before the engine is opened",
        path.join(JOURNAL).display()
    );
    KvError::Corrupt { what }
}

/// Names in `path`; `None` when there is no such directory.
fn list(path: &Path) -> Result<Option<Vec<String>>, KvError> {
    let read = || {
        let names = fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect::<io::Result<Vec<String>>>()
    };
    match read() {
        Ok(names) => Ok(Some(names)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(KvError::io(format!("list {}", path.display()), error)),
    }
}

/// Whether that is the beginning of what [`VERSION`] says.
fn is_cut_short(path: &Path) -> Result<bool, KvError> {
    let read = || {
        let mut begin = Vec::new();
        fs::File::open(path)?.take(VERSION_BYTES.len() as u64).read_to_end(&mut begin)?;
        Ok(begin)
    };
    let begin = read().map_err(|e| KvError::io(format!("read {}", path.display()), e))?;
    Ok(begin.len() < VERSION_BYTES.len() && VERSION_BYTES.starts_with(&begin))
}

/// Numbers of the directories of keyspaces.
fn keyspaces(path: &Path) -> Result<Option<Vec<u64>>, KvError> {
    let path = path.join(KEYSPACES);
    let Some(names) = list(&path)? else { return Ok(None) };
    let mut numbers = Vec::with_capacity(names.len());
    for name in names {
        match name.parse() {
            Ok(number) => numbers.push(number),
            Err(_) if path.join(&name).is_file() => {}
            Err(_) => {
                let what = format!("{} is not of the engine; take it away", path.join(name).display());
                return Err(KvError::Corrupt { what });
            }
        }
    }
    Ok(Some(numbers))
}

fn look_at_keyspaces(path: &Path, numbers: &[u64]) -> Result<(), KvError> {
    let directory = |number: u64| path.join(KEYSPACES).join(number.to_string());
    let others =
        numbers.iter().filter(|number| **number != DIRECTORY_KEYSPACE).map(|number| directory(*number));
    let known = directory(DIRECTORY_KEYSPACE);
    if !numbers.contains(&DIRECTORY_KEYSPACE) || look_at_tree(&known, true)? != Content::Tables {
        // A keyspace is made before it is known, and gets tables after that. One that is not known is removed by the next open, which may be cut short, too.
        for tree in others {
            if has_files(&tree)? {
                let (known, tree) = (known.display(), tree.display());
                let what =
                    format!("{known} does not know {tree}: files in it are missing; {}", super::WAY_OUT);
                return Err(KvError::Corrupt { what });
            }
        }
        return Ok(());
    }
    let mut has_other = false;
    for tree in others {
        has_other |= look_at_tree(&tree, false)? != Content::Nothing;
    }
    if has_other { Ok(()) } else { Err(missing(&directory(1).join(CURRENT))) }
}

/// Whether there are tables or values in `tree`, whoever names them.
fn has_files(tree: &Path) -> Result<bool, KvError> {
    for name in [TABLES, BLOBS] {
        if list(&tree.join(name))?.is_some_and(|names| !names.is_empty()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What is in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// It was not finished.
    Nothing,
    /// No table.
    Empty,
    Tables,
}

/// Looks at the tree in `tree`; reads its tables too if `is_reading`.
fn look_at_tree(tree: &Path, is_reading: bool) -> Result<Content, KvError> {
    let current_path = tree.join(CURRENT);
    let current = match fs::read(&current_path) {
        Ok(current) => current,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return if has_files(tree)? { Err(missing(&current_path)) } else { Ok(Content::Nothing) };
        }
        Err(error) => return Err(KvError::io(format!("read {}", current_path.display()), error)),
    };
    let (version, checksum) = decode_current(&current).ok_or_else(|| damaged(&current_path))?;
    let version_path = tree.join(format!("v{version}"));
    let bytes = read(&version_path)?;
    if xxhash_rust::xxh3::xxh3_128(&bytes) != checksum {
        let what = format!(
            "{} and {} do not belong together, or one of them is damaged; {}",
            current_path.display(),
            version_path.display(),
            super::WAY_OUT
        );
        return Err(KvError::Corrupt { what });
    }
    let named = named_by(&bytes).ok_or_else(|| damaged(&version_path))?;
    for (directory, files) in [(TABLES, &named.tables), (BLOBS, &named.blobs)] {
        for (number, checksum) in files {
            let file = tree.join(directory).join(number.to_string());
            if is_reading {
                if xxhash_rust::xxh3::xxh3_128(&read(&file)?) != *checksum {
                    return Err(damaged(&file));
                }
                continue;
            }
            match fs::metadata(&file) {
                Ok(found) if found.len() > 0 => {}
                Ok(_) => return Err(damaged(&file)),
                Err(error) if error.kind() == ErrorKind::NotFound => return Err(missing(&file)),
                Err(error) => return Err(KvError::io(format!("look at {}", file.display()), error)),
            }
        }
    }
    Ok(if named.tables.is_empty() { Content::Empty } else { Content::Tables })
}

fn read(path: &Path) -> Result<Vec<u8>, KvError> {
    fs::read(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => missing(path),
        _ => KvError::io(format!("read {}", path.display()), error),
    })
}

fn decode_current(bytes: &[u8]) -> Option<(u64, u128)> {
    let bytes: &[u8; CURRENT_BYTES] = bytes.try_into().ok()?;
    let (version, checksum) = (bytes[..8].try_into().ok()?, bytes[8..24].try_into().ok()?);
    (bytes[24] == CHECKSUM_KIND).then_some((u64::from_le_bytes(version), u128::from_le_bytes(checksum)))
}

/// Numbers and checksums of the files of a version.
#[derive(Debug, Default, PartialEq, Eq)]
struct Named {
    tables: Vec<(u64, u128)>,
    blobs: Vec<(u64, u128)>,
}

/// What the version in `bytes` names; `None` when it cannot be read.
fn named_by(bytes: &[u8]) -> Option<Named> {
    let archive = sfa::Reader::from_reader(&mut io::Cursor::new(bytes)).ok()?;
    let section = |name: &[u8]| {
        let section = archive.toc().section(name)?;
        let (from, len) = (usize::try_from(section.pos()).ok()?, usize::try_from(section.len()).ok()?);
        bytes.get(from..from.checked_add(len)?)
    };
    let mut named = Named::default();
    let mut tables = section(b"tables")?;
    for _level in 0..take::<1>(&mut tables)?[0] {
        for _run in 0..take::<1>(&mut tables)?[0] {
            for _table in 0..u32::from_le_bytes(take(&mut tables)?) {
                named.tables.push(take_file(&mut tables)?);
                let _version_of_all = take::<8>(&mut tables)?;
            }
        }
    }
    let mut blobs = section(b"blob_files")?;
    for _blob in 0..u32::from_le_bytes(take(&mut blobs)?) {
        named.blobs.push(take_file(&mut blobs)?);
    }
    Some(named)
}

fn take_file(input: &mut &[u8]) -> Option<(u64, u128)> {
    let number = u64::from_le_bytes(take(input)?);
    let [kind] = take(input)?;
    let checksum = u128::from_le_bytes(take(input)?);
    (kind == CHECKSUM_KIND).then_some((number, checksum))
}

fn take<const N: usize>(input: &mut &[u8]) -> Option<[u8; N]> {
    let mut out = [0; N];
    input.read_exact(&mut out).ok()?;
    Some(out)
}

fn missing(path: &Path) -> KvError {
    KvError::Corrupt { what: format!("{} is missing; {}", path.display(), super::WAY_OUT) }
}

fn damaged(path: &Path) -> KvError {
    KvError::Corrupt { what: format!("{} is damaged; {}", path.display(), super::WAY_OUT) }
}
