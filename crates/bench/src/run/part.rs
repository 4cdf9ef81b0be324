//! What a sweep is made of: each part is one plot of a report.

use crate::figure::{Figure, Spread, Summary};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What a rate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Bytes per second.
    Bytes,
    /// Operations per second.
    Operations,
}

impl Unit {
    /// The rate of `figure` that this counts, per second.
    pub fn rate(self, figure: &Figure) -> f64 {
        match self {
            Unit::Bytes => figure.bytes_per_second(),
            Unit::Operations => figure.operations_per_second(),
        }
    }

    /// The same of `summary`: mean, deviation, least and greatest.
    pub fn spread(self, summary: &Summary) -> Spread {
        match self {
            Unit::Bytes => summary.bytes_per_second,
            Unit::Operations => summary.operations_per_second,
        }
    }
}

/// A workload over all numbers of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Part {
    /// A file per thread from begin to end, 1 MiB at a time (IOzone's N-N).
    #[serde(rename = "sequential-n-n")]
    SequentialNN,
    /// One file for all threads, each its own stretch (IOR's N-1).
    #[serde(rename = "sequential-n-1")]
    SequentialN1,
    /// Records of 4 KiB, one request of each thread under way.
    #[serde(rename = "random-4k")]
    Random4k,
    /// Records of 4 KiB, 16 requests of each thread under way (fio's).
    #[serde(rename = "random-4k-deep")]
    Random4kDeep,
    /// Records of 1 KiB, which no direct I/O takes on most disks.
    #[serde(rename = "random-1k")]
    Random1k,
    /// Empty files, a directory for each thread (mdtest's).
    #[serde(rename = "metadata-0")]
    Metadata0,
    /// Files of 3 KiB.
    #[serde(rename = "metadata-3k")]
    Metadata3k,
    /// Files of 4 KiB.
    #[serde(rename = "metadata-4k")]
    Metadata4k,
    /// Empty files in one directory.
    #[serde(rename = "metadata-0-shared")]
    Metadata0Shared,
    /// Files of 3 KiB in one directory.
    #[serde(rename = "metadata-3k-shared")]
    Metadata3kShared,
    /// Files of 4 KiB in one directory.
    #[serde(rename = "metadata-4k-shared")]
    Metadata4kShared,
}

impl Part {
    /// All, in the order they are measured and told.
    pub const ALL: [Part; 11] = [
        Part::SequentialNN,
        Part::SequentialN1,
        Part::Random4k,
        Part::Random4kDeep,
        Part::Random1k,
        Part::Metadata0,
        Part::Metadata3k,
        Part::Metadata4k,
        Part::Metadata0Shared,
        Part::Metadata3kShared,
        Part::Metadata4kShared,
    ];

    /// What is left out when time is short, the first of them first. What is not in the list is always measured.
    pub const DISPENSABLE: [Part; 8] = [
        Part::Metadata3kShared,
        Part::Metadata4kShared,
        Part::Random1k,
        Part::Metadata3k,
        Part::Metadata0Shared,
        Part::Random4kDeep,
        Part::Metadata4k,
        Part::SequentialN1,
    ];

    /// Its name on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Part::SequentialNN => "sequential-n-n",
            Part::SequentialN1 => "sequential-n-1",
            Part::Random4k => "random-4k",
            Part::Random4kDeep => "random-4k-deep",
            Part::Random1k => "random-1k",
            Part::Metadata0 => "metadata-0",
            Part::Metadata3k => "metadata-3k",
            Part::Metadata4k => "metadata-4k",
            Part::Metadata0Shared => "metadata-0-shared",
            Part::Metadata3kShared => "metadata-3k-shared",
            Part::Metadata4kShared => "metadata-4k-shared",
        }
    }

    /// Its name above a plot.
    pub fn title(self) -> &'static str {
        match self {
            Part::SequentialNN => "Sequential, a file per thread (N-N)",
            Part::SequentialN1 => "Sequential, one shared file (N-1)",
            Part::Random4k => "Random 4 KiB",
            Part::Random4kDeep => "Random 4 KiB, 16 requests under way per thread",
            Part::Random1k => "Random 1 KiB",
            Part::Metadata0 => "Empty files, a directory per thread",
            Part::Metadata3k => "Files of 3 KiB, a directory per thread",
            Part::Metadata4k => "Files of 4 KiB, a directory per thread",
            Part::Metadata0Shared => "Empty files, one shared directory",
            Part::Metadata3kShared => "Files of 3 KiB, one shared directory",
            Part::Metadata4kShared => "Files of 4 KiB, one shared directory",
        }
    }

    /// Whether files are made and removed rather than read and written.
    pub fn is_metadata(self) -> bool {
        self.file_bytes().is_some()
    }

    /// Whether it hits records all over a file.
    pub fn is_random(self) -> bool {
        matches!(self, Part::Random4k | Part::Random4kDeep | Part::Random1k)
    }

    /// What its rates count.
    pub fn unit(self) -> Unit {
        match self {
            Part::SequentialNN | Part::SequentialN1 => Unit::Bytes,
            _ => Unit::Operations,
        }
    }

    /// Bytes of each file of a metadata part.
    pub fn file_bytes(self) -> Option<u64> {
        match self {
            Part::Metadata0 | Part::Metadata0Shared => Some(0),
            Part::Metadata3k | Part::Metadata3kShared => Some(3 << 10),
            Part::Metadata4k | Part::Metadata4kShared => Some(4 << 10),
            _ => None,
        }
    }

    /// Bytes of one read or write of a data part; 0 for metadata.
    pub fn record_bytes(self) -> u64 {
        match self {
            Part::SequentialNN | Part::SequentialN1 => 1 << 20,
            Part::Random4k | Part::Random4kDeep => 4 << 10,
            Part::Random1k => 1 << 10,
            _ => 0,
        }
    }

    /// Requests of one thread that are under way at the same time.
    pub fn depth(self) -> u32 {
        if self == Part::Random4kDeep { 16 } else { 1 }
    }

    /// Whether all threads share a file or directory.
    pub fn is_shared(self) -> bool {
        matches!(
            self,
            Part::SequentialN1 | Part::Metadata0Shared | Part::Metadata3kShared | Part::Metadata4kShared
        )
    }

    /// A part by its name, or the parts of a group: `sequential`, `random`, `metadata`, `all`.
    ///
    /// # Errors
    /// A sentence that names all that there is.
    pub fn named(name: &str) -> Result<Vec<Part>, String> {
        let chosen: Vec<Part> = match name {
            "all" => Part::ALL.to_vec(),
            "sequential" => vec![Part::SequentialNN, Part::SequentialN1],
            "random" => Part::ALL.into_iter().filter(|part| part.is_random()).collect(),
            "metadata" => Part::ALL.into_iter().filter(|part| part.is_metadata()).collect(),
            one => vec![one.parse()?],
        };
        Ok(chosen)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Part, String> {
        Part::ALL.into_iter().find(|part| part.name() == text).ok_or_else(|| {
            let all: Vec<&str> = Part::ALL.iter().map(|part| part.name()).collect();
            format!(
                "there is no part `{text}`; there are all, sequential, random, metadata, {}",
                all.join(", ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_one_name_everywhere() {
        for part in Part::ALL {
            assert_eq!(Part::named(part.name()), Ok(vec![part]));
            assert_eq!(serde_json::to_string(&part).unwrap(), format!("\"{}\"", part.name()));
        }
        assert_eq!(Part::named("random").unwrap().len(), 3);
        assert_eq!(Part::named("metadata").unwrap().len(), 6);
        assert!(Part::named("fast").unwrap_err().contains("sequential-n-1"));
    }
}
