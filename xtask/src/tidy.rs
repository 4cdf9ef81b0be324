//! The rules of the repository that a program can check, one file each. Every rule has a test that breaks it.
//!
//! | rule | file |
//! |---|---|
//! | a crate uses only crates of lower layers | `layers.rs` |
//! | every source file begins with what it is | `headers.rs` |
//! | functions to 100 lines, files to 800 lines without tests | `lengths.rs` |
//! | no module is called `utils` or the like | `names.rs` |
//! | layer 3 names no file, socket or clock | `determinism.rs` |
//! | no path of a particular machine | `machine_paths.rs` |
//! | every third-party dependency says why it is there | `dependencies.rs` |
//! | every deliberate breakage for simulations can still be made | `mutants.rs` |

mod dependencies;
mod determinism;
mod headers;
mod layers;
mod lengths;
mod machine_paths;
mod mutants;
mod names;
pub mod tree;

use tree::Tree;

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// File, and line if there is one.
    pub place: String,
    /// What is wrong and what to do.
    pub what: String,
}

impl Finding {
    fn new(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { place: place.into(), what: what.into() }
    }
}

/// A rule's name and check.
type Rule = (&'static str, fn(&Tree) -> Vec<Finding>);

/// All rules.
pub const RULES: &[Rule] = &[
    ("layers", layers::check),
    ("headers", headers::check),
    ("lengths", lengths::check),
    ("names", names::check),
    ("determinism", determinism::check),
    ("machine paths", machine_paths::check),
    ("dependencies", dependencies::check),
    ("mutants", mutants::check),
];
