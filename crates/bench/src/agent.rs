//! Workloads on many machines: an agent on each, one coordinator.
//!
//! ```text
//! coordinator                          agent
//!   draws a key and a secret
//!   prints  fingerprint + secret  ──▶  is given them
//!                                 ◀──  connects (TLS 1.3)
//!   shows its key                 ──▶  compares it with the fingerprint
//!   compares it                   ◀──  shows the key that follows from the secret
//!                                 ◀─▶  versions
//!   the last has joined: nobody listens any more
//!   Do(chore), Clean              ──▶  tells what its machine is; removes what an interrupted run has left
//!   Prepare                       ──▶  makes or finds the directory of the run
//!   Begin(task)                   ──▶  threads are started       ─┐
//!                                 ◀──  Ready                      │ for each task
//!   all are ready: Go             ──▶  threads are let go         │
//!                                 ◀──  Done(latencies, duration, load) ─┘
//!   End                           ──▶  removes the directory, goes
//! ```
//!
//! - Nothing that a stranger sends is looked at but by TLS; who has no proof is turned away. An agent cannot play the coordinator to others.
//! - Agents have their numbers by the names of their machines, so that the same machines have the same ones in another run.
//! - An agent does tasks, only in directories it was started for, below one of the run's own; it is told names of nothing else. It also tells what
//!   its machine is, and removes what an interrupted run has left there: names with 16 hexadecimal digits that only runs have.
//! - Both say that they are there every 2 s. Who is silent for 10 s is lost: then all stop, and every agent removes what the run has made.
//! - No clock is compared with another one.

mod believe;
mod channel;
mod coordinator;
mod ground;
mod invitation;
mod keeper;
mod machines;
mod members;
mod message;
mod phase_time;
mod serve;
mod starter;
mod team;
mod tls;

pub use coordinator::Coordinator;
pub use invitation::Invitation;
pub use serve::Agent;
pub use team::{AgentTold, Team, draw_run};

pub(crate) use channel::wait_for_any;
pub(crate) use invitation::random;
pub(crate) use message::{Order, Report, Token};
