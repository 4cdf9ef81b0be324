//! `ashlar lab`: a file system of many servers on one machine, with a network name space for each server and client.
//!
//! ```text
//!  name space ashlar-ID-hub:   bridge ── port1    port2    port3     port4 ...
//!                                          │        │        │         │        veth pairs, shaped by tbf at both ends if wanted
//!  name spaces ashlar-ID-NODE:           eth0     eth0     eth0      eth0
//!                                       manager   meta1  storage1  client1
//! ```
//!
//! The bridge is in a name space, too: nothing of the machine's own network is touched, labs do not see each other, and all links go with the
//! name spaces. Only network name spaces are used; files, mounts and processes are those of the machine.
//!
//! What listens in such a name space is not reached from the machine's own network. For the console there is a [`mod@gateway`].
//!
//! `lab.json` in the directory of the lab says what there is ([`record`]). What can be left behind is written down there before it is made, so that
//! `down` removes all, whenever something was killed.

mod down;
mod exec;
mod gateway;
mod name_space;
mod network;
mod plan;
pub mod process;
mod record;
mod status;
mod up;

pub use down::down;
pub use exec::exec;
pub use gateway::gateway;
pub use status::status;
pub use up::up;
