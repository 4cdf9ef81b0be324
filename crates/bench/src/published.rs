//! Figures that others have published, with the machines they had, to stand beside one's own.

use crate::run::Part;
use serde::{Deserialize, Serialize};

/// The file that ships with the program.
const DATA: &str = include_str!("../data/published.json");

/// One figure of a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PublishedFigure {
    /// The phase, as ours are called: `sequential write`, `create`.
    pub what: String,
    /// Highest rate: bytes or operations per second.
    pub peak: f64,
    /// With so many threads, where it is told.
    #[serde(default)]
    pub threads: Option<u32>,
    /// Sustained rate, where it is told.
    #[serde(default)]
    pub sustained: Option<f64>,
}

/// One configuration and workload of one source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The row's number in the list of what the sources tell: source and row.
    pub row: String,
    /// The paper.
    pub source: String,
    /// File system, servers and disks.
    pub system: String,
    /// Which of our parts is the same workload.
    pub part: Part,
    /// What differs from ours or must be known.
    #[serde(default)]
    pub note: String,
    /// Figures.
    pub figures: Vec<PublishedFigure>,
}

/// All rows.
pub fn rows() -> Vec<Row> {
    let rows: Result<Vec<Row>, _> = serde_json::from_str(DATA);
    rows.unwrap_or_else(|error| unreachable!("the file is part of the program, and a test reads it: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_that_ships_is_whole() {
        let rows = rows();
        assert!(rows.len() >= 20, "{}", rows.len());
        for row in &rows {
            let (source, number) = row.row.split_once('-').unwrap();
            assert!(source.len() == 3 && number.len() == 2, "{}", row.row);
            assert!(
                !row.source.is_empty() && !row.system.is_empty() && !row.figures.is_empty(),
                "{}",
                row.row
            );
            for figure in &row.figures {
                let known: &[&str] = match (row.part.is_metadata(), row.part.is_random()) {
                    (true, _) => &["create", "stat", "read", "utime", "remove"],
                    (false, true) => &["random write", "random read"],
                    (false, false) => &["sequential write", "sequential read"],
                };
                assert!(known.contains(&figure.what.as_str()), "{}: {}", row.row, figure.what);
                assert!(
                    figure.peak > 0.0 && figure.sustained.is_none_or(|rate| rate <= figure.peak),
                    "{}",
                    row.row
                );
            }
        }
        let of = |part: Part| rows.iter().filter(|row| row.part == part).count();
        assert!(of(Part::SequentialNN) > 5 && of(Part::Metadata0) > 0 && of(Part::Random4kDeep) > 0);
    }
}
