//! Coherence litmus tests: small programs of two or three clients, and for each the outcomes that strict coherence forbids.
//!
//! A row of the [`table`] says what is made before, what each client does, and which results may not come out. It is run many times, each time
//! in a new folder, with random delays between the calls and the clients shared out anew among the mounts. What clients tell
//! each other (`tell`, `await`) goes through the memory of this process, so a call after an `await` starts after the calls before the `tell`
//! have returned, for every observer. Two folders, `x` and `y`, hold the files of a row.
//!
//! A row that cannot fail shows nothing. Each names a [`Stale`] part: with `--stale` that client gets a copy of that folder, made
//! before the clients start, as from a cache that is never told of changes; and the row must find it.

pub mod client;
pub mod condition;
pub mod history;
pub mod run;
pub mod statement;
pub mod table;
mod verb;

/// A program of several clients and what may not come out of it.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What is promised, as a sentence.
    pub name: &'static str,
    /// Statements done before, through the first mount; see [`statement`].
    pub before: &'static str,
    /// What each client does.
    pub clients: &'static [&'static str],
    /// Statements done through the mount of each client when all have ended. All must get the same results.
    pub finally: &'static str,
    /// What may not come out, each a conjunction; see [`condition`].
    pub forbidden: &'static [&'static str],
    /// Whose view has to be how old for the row to fail.
    pub stale: Stale,
}

/// A view that is not coherent.
#[derive(Clone, Copy, Debug)]
pub struct Stale {
    /// The client, from 0.
    pub client: usize,
    /// The folders of which it has a copy: `x`, `y` or `xy`.
    pub folders: &'static str,
}
