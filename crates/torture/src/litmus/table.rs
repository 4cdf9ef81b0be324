//! The rows, by what they are about. What is not forbidden in a row may happen: the clients of most rows are not in step.

mod attributes;
mod close_to_open;
mod content;
mod locks;
mod names;
mod open_files;

use super::{Row, Stale};

/// All rows for strict clients.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    let tables = [content::ROWS, names::ROWS, attributes::ROWS, open_files::ROWS, locks::ROWS];
    tables.into_iter().flatten()
}

/// Those for clients that are close-to-open.
pub fn close_to_open_rows() -> impl Iterator<Item = &'static Row> {
    close_to_open::ROWS.iter()
}

const fn row(
    name: &'static str,
    before: &'static str,
    clients: &'static [&'static str],
    finally: &'static str,
    forbidden: &'static [&'static str],
    stale: Stale,
) -> Row {
    Row { name, before, clients, finally, forbidden, stale }
}

/// The second client has an old copy of folder `x`.
const X: Stale = Stale { client: 1, folders: "x" };
/// The second client has an old copy of both folders.
const XY: Stale = Stale { client: 1, folders: "xy" };
/// The third client has an old copy of folder `x`.
const X_OF_THIRD: Stale = Stale { client: 2, folders: "x" };
