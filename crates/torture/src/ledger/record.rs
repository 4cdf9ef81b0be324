//! The lines of a ledger and the file they are in.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// A directory of a writer; 0 is its top directory, which always exists.
pub type DirId = u64;
/// A file of a writer.
pub type ObjectId = u64;

/// A name in a directory of the writer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// The directory.
    pub dir: DirId,
    /// The name.
    pub name: String,
}

impl Place {
    /// The path below the writer's top directory.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        dir_path(self.dir).join(&self.name)
    }
}

/// Where a directory is below the writer's top directory.
#[must_use]
pub fn dir_path(dir: DirId) -> PathBuf {
    if dir == 0 { PathBuf::new() } else { PathBuf::from(dir_name(dir)) }
}

/// The name of a directory in the top directory.
#[must_use]
pub fn dir_name(dir: DirId) -> String {
    format!("d{dir}")
}

/// One operation of a writer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the fields are named after what they are
pub enum Op {
    Mkdir {
        dir: DirId,
    },
    Rmdir {
        dir: DirId,
    },
    Create {
        object: ObjectId,
        place: Place,
    },
    /// `count` blocks from block `index` on, each with `version`.
    Write {
        object: ObjectId,
        place: Place,
        index: u64,
        count: u64,
        version: u64,
    },
    Truncate {
        object: ObjectId,
        place: Place,
        blocks: u64,
    },
    Rename {
        object: ObjectId,
        from: Place,
        to: Place,
        replaced: Option<ObjectId>,
    },
    Unlink {
        object: ObjectId,
        place: Place,
    },
    FsyncFile {
        object: ObjectId,
        place: Place,
    },
    FsyncDir {
        dir: DirId,
    },
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Line {
    /// The operation is about to be called.
    Intent(u64, Op),
    /// Its call returned success.
    Returned(u64),
    /// Its call returned this errno; the writer stops there.
    Failed(u64, i32),
}

/// The ledger of one writer, appended line by line.
#[derive(Debug)]
pub struct Ledger {
    file: File,
    path: PathBuf,
}

impl Ledger {
    /// The path of writer `writer`'s ledger in `directory`.
    #[must_use]
    pub fn path(directory: &Path, writer: u32) -> PathBuf {
        directory.join(format!("writer-{writer}.ledger"))
    }

    /// Starts an empty ledger.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn create(directory: &Path, writer: u32) -> anyhow::Result<Self> {
        let path = Self::path(directory, writer);
        let file = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .open(&path)
            .with_context(|| format!("create {}", path.display()))?;
        Ok(Self { file, path })
    }

    /// Appends a line with a single write, so that it survives the death of this process too.
    ///
    /// # Errors
    /// When the write fails.
    pub fn append(&mut self, line: &Line) -> anyhow::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.file.write_all(&text).with_context(|| format!("write {}", self.path.display()))
    }

    /// Reads a ledger back. An incomplete last line (the writing process died) counts as not written.
    ///
    /// # Errors
    /// When the file cannot be read or a line before the last is malformed.
    pub fn read(path: &Path) -> anyhow::Result<Vec<Line>> {
        let mut reader =
            BufReader::new(File::open(path).with_context(|| format!("open {}", path.display()))?);
        let mut lines = Vec::new();
        let mut text = String::new();
        loop {
            text.clear();
            reader.read_line(&mut text).with_context(|| format!("read {}", path.display()))?;
            if !text.ends_with('\n') {
                return Ok(lines);
            }
            let number = lines.len() + 1;
            lines.push(
                serde_json::from_str(&text).with_context(|| format!("{} line {number}", path.display()))?,
            );
        }
    }
}
