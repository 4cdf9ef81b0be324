//! Segment files: names, and the directory they are in.

use super::format::{LogIdentity, SEGMENT_HEADER_BYTES};
use crate::KvError;
use ashlar_env::{Disk, DiskFile};
use std::sync::Arc;

/// Where a lane's log is.
#[derive(Clone)]
pub(crate) struct LogDir {
    pub(crate) disk: Arc<dyn Disk>,
    /// The log's directory on that disk.
    pub(crate) path: String,
    pub(crate) identity: LogIdentity,
}

/// One segment's place in the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentName {
    pub(crate) first: u64,
    /// Path on the disk.
    pub(crate) path: String,
}

/// What is in the log directory.
#[derive(Debug, Default)]
pub(crate) struct LogFiles {
    /// In stream order.
    pub(crate) segments: Vec<SegmentName>,
    /// Paths of files kept for reuse.
    pub(crate) spares: Vec<String>,
}

const SPARE_PREFIX: &str = "spare-";
const SEGMENT_SUFFIX: &str = ".log";

impl LogDir {
    pub(crate) fn segment_path(&self, first: u64) -> String {
        format!("{}/{first:016x}{SEGMENT_SUFFIX}", self.path)
    }

    pub(crate) fn spare_path(&self, number: u64) -> String {
        format!("{}/{SPARE_PREFIX}{number}", self.path)
    }

    /// The absolute path of one of the log's files, for messages.
    pub(crate) fn describe(&self, path: &str) -> String {
        self.disk.describe(path)
    }

    pub(crate) fn list(&self) -> Result<LogFiles, KvError> {
        let names = self.disk.list(&self.path);
        let names = names.map_err(|e| KvError::io(format!("list {}", self.describe(&self.path)), e))?;
        let mut files = LogFiles::default();
        for name in names {
            let path = format!("{}/{name}", self.path);
            let number = name.strip_suffix(SEGMENT_SUFFIX).filter(|number| number.len() == 16);
            if let Some(first) = number.and_then(|number| u64::from_str_radix(number, 16).ok()) {
                files.segments.push(SegmentName { first, path });
            } else if name.starts_with(SPARE_PREFIX) {
                files.spares.push(path);
            } else {
                tracing::warn!(file = self.describe(&path), "a file that is not of the log; left alone");
            }
        }
        files.segments.sort_by_key(|segment| segment.first);
        files.spares.sort();
        Ok(files)
    }

    pub(crate) fn sync(&self) -> Result<(), KvError> {
        let synced = self.disk.sync_dir(&self.path);
        synced.map_err(|e| KvError::of_sync(&format!("directory {}", self.describe(&self.path)), e))
    }

    pub(crate) fn remove(&self, path: &str) -> Result<(), KvError> {
        self.disk.remove(path).map_err(|e| KvError::io(format!("remove {}", self.describe(path)), e))
    }
}

/// Where in its file the record at `position` begins.
pub(crate) fn file_offset(first: u64, position: u64) -> u64 {
    SEGMENT_HEADER_BYTES as u64 + (position - first)
}

/// A segment that has been written to and may not be durable yet.
#[derive(Clone)]
pub(crate) struct SegmentFile {
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) path: String,
    pub(crate) first: u64,
    /// Bytes of the file.
    pub(crate) file_bytes: u64,
    /// Where its first group of use begins: what is before can only be skipped.
    pub(crate) from: u64,
    /// Groups before that one, as [`crate::GroupNumber::sequence`] counts them.
    pub(crate) behind: u64,
}
