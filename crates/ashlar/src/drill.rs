//! `ashlar drill`: failures on purpose, one after the other, while programs write and read files; then a report of what these have seen.
//!
//! ```text
//!  for each failure:  all copies there ── load ── failure ── load ── put right ── load until all copies are there ── every file compared
//!                                                                                          (redundancy)              (verify)
//! ```
//!
//! [`mod@thrash`] has several happen at once that nobody has chosen, round after round.
//!
//! [`failure`] is the list. In a lab [`emulate`] makes them, and whatever it changes is undone by [`broken`], also when something fails between. Elsewhere [`operator`] tells a person what to
//! do, and only after [`consent`]. What [`load`] does to files is in a [`ledger`], which is never kept in the file system under test.

mod broken;
mod call;
mod consent;
mod disk;
mod emulate;
mod failure;
mod histogram;
mod ledger;
mod load;
mod make_lab;
mod markdown;
mod operator;
mod outcome;
mod place;
mod redundancy;
mod repeated;
mod run;
mod thrash;
mod verify;

use crate::terminal::{say, say_json};
use anyhow::Result;

pub use run::run;
pub use thrash::thrash;

/// Prints the failures.
pub fn list(as_json: bool) -> Result<()> {
    if as_json {
        let all: Vec<_> = failure::ALL.iter().map(failure::Failure::object).collect();
        return say_json(&all);
    }
    for failure in failure::ALL {
        let number = failure.number.map_or("-".to_owned(), |number| number.to_string());
        say(format_args!("{:<16} {number:>2}  {}", failure.name, failure.title));
        say(format_args!("    in a lab: {}", failure.in_lab));
        if let Some(not) = failure.not_in_lab {
            say(format_args!("    not as in reality: {not}"));
        }
        say(format_args!("    operator: {}", failure.operator));
        say(format_args!("    and to put it right: {}", failure.operator_after));
    }
    Ok(())
}
