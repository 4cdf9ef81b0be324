//! A workload that writes down, outside of the file system under test, what it was promised; and the check of the promises.
//!
//! ```text
//! writer thread --- operation ---> file system under test
//!       |   before: Intent(n, op)       after: Returned(n)
//!       '-----------> ledger file (outside) ---> Expectation ---> verify the tree
//! ```
//!
//! Two modes say what a promise is. `returned`: an operation holds once its call has returned (the process may die, the machine
//! lives). `fsynced`: a file's data and size hold once `fsync` on it has returned, a name once `fsync` on its directory has;
//! what came later may be there or not, but never anything else. A last operation without an answer may have happened or not in
//! both modes. File content is made of 4 KiB blocks that say which file, place and version they are, under a checksum.

pub mod block;
pub mod expect;
pub mod record;
pub mod verify;
pub mod writer;
