//! Black-box test programs that run against any mounted directory.
//!
//! Nothing here knows how Ashlar works inside: the programs see a directory, and some of them a server process they start and
//! kill. Each is known good because it passes on ext4 and XFS, and known to find errors because its own tests feed it broken
//! directories. All choices come from a seed that is printed with every failure.
//!
//! | program | question it answers |
//! |---|---|
//! | `differential` | does every call answer as on ext4, and do the trees stay equal? |
//! | `fsx` | does a file hold what was written, truncated, punched, mapped and copied into it? |
//! | `ledger-write`, `ledger-verify` | is everything there that was acknowledged, and nothing else? |
//! | `kill-cycles` | ... after the server was killed under load? |
//! | `power-loss` | ... that was synced, after the disk lost power? |
//! | `corrupt` | does damage to stored bytes show as EIO and never as wrong content? |
//! | `racer` | is the tree still a tree after threads raced on few names? |
//! | `share` | does every mount show at once what another wrote, while all are at the same files? |
//! | `litmus` | does every small program of two or three clients end as strict coherence promises? |
//! | `linear` | did each of the recorded calls on few names have its effect at one moment? |
//! | `pass-locks` | has each record lock one holder, and does who waits get it when it is let go? |
//! | `full` | ENOSPC and nothing else when full; do deletes work and make room? |
//! | `limits` | do names, links, attributes, directories and files end where they should? |
//! | `metabench`, `databench` | how fast, by one program for all file systems compared |
//! | `with-mount`, `with-disk` | run any other program on a mount, with a clean start and end; on a fresh ext4 or XFS |
//!
//! Only `xtask` and people run these programs; no crate depends on this one. Its tests are in `tests/` and beside the code.

pub mod command;
pub mod cycles;
pub mod differential;
pub mod fsx;
pub mod ledger;
pub mod linear;
pub mod litmus;
pub mod loop_disk;
pub mod measure;
pub mod race;
pub mod report;
pub mod rng;
pub mod server;
pub mod sys;
