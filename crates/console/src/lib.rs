//! The console: how a file system of many servers is, for its administrators, on a web page and as JSON.
//!
//! [`Watch`] asks every server again and again, each in a thread of its own, and remembers what it was told; [`web`] shows what is remembered. So whoever
//! looks waits for no server, and one that is away is shown as it was last, with the age of that. Nothing here changes anything: the certificate of a console
//! is good for looking, and for nothing else.
//!
//! [`object`] has the JSON objects of what there is, the same for the commands' `--json`.

mod health;
pub mod object;
mod watch;
pub mod web;

pub use health::{Finding, Severity};
pub use watch::{Cluster, Watch};
