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
//! With `--disks`, each storage server has [disks](mod@disk) of its own, which `ashlar drill` can break.
//!
//! `lab.json` in the directory of the lab says what there is ([`record`]). What can be left behind is written down there before it is made, so that
//! `down` removes all, whenever something was killed.

mod disk;
mod down;
mod exec;
mod gateway;
mod name_space;
mod network;
mod plan;
pub mod process;
mod record;
mod start;
mod status;
mod up;

pub use disk::{BLKIO, Disk, limit};
pub use down::{down, require_root};
pub use exec::exec;
pub use gateway::gateway;
pub use name_space::{enter, ip};
pub use plan::{FIRST_MANAGER, LabRole, manager_beside};
pub use start::Lab;
pub use status::status;
pub use up::up;
