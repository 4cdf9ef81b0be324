//! What a process counts, and the port where Prometheus fetches it.
//!
//! [`Calls`] counts calls by service and kind; [`Counted`] puts it around a service or around what stands for one that is away. A
//! [`Registry`] asks everybody who has something to tell, each time somebody fetches, and writes it as text. [`Server`] gives it to
//! whoever connects, and [`ProcessEndpoint`] to consoles and administrators over the network of the servers.
//!
//! All names are listed in `docs/metrics.md`, which a test compares with what processes show.

mod calls;
mod counted;
mod endpoint;
mod kind;
mod process;
mod registry;
mod server;
mod text;

pub use calls::{Calls, Side};
pub use counted::Counted;
pub use endpoint::ProcessEndpoint;
pub use kind::{ServiceKinds, kind_of_manager_call};
pub use registry::Registry;
pub use server::Server;
pub use text::{MetricType, Text};
