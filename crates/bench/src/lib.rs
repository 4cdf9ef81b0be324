//! The characterization method of storage papers as software: measure a system the same way every time, and say where its limit is.
//!
//! | module | what |
//! |---|---|
//! | [`memory`] | a ceiling: what the memory of each NUMA node moves (STREAM), and whether its modules are placed well |
//! | [`device`] | a ceiling: what the devices below do without the file system |
//! | [`data`] | a workload: reading and writing content, N-N and N-1, sequential and random |
//! | [`metadata`] | a workload: create, stat, read, utime and remove of many files |
//! | [`workload`] | one of them from beginning to end, with repetitions and honest caches |
//! | [`task`] | what all machines of a workload do at the same time, and who they are |
//! | [`chore`] | what each machine does for itself: it tells what it is, and measures its memory |
//! | [`figure`] | what comes out, and what must be said with it |
//! | [`network`] | a ceiling: what the network between agents carries, and how long a message takes |
//! | [`agent`] | workloads on many machines: agents and their coordinator |
//! | [`crew`] | threads that start together, and what they did |
//! | [`cache`] | what must not answer instead of the file system |
//! | [`ceiling`] | what a machine could do, measured |
//! | [`run`] | all of it: which workloads with how many threads fit into a time, interrupted and gone on with |
//! | [`sample`] | what processors, networks and disks did meanwhile, and which of them limits |
//! | [`tools`] | the same by the programs of the papers |
//! | [`report`] | what a run found, as a page, as Markdown and for programs |
//! | [`compare`] | two reports: what changed, and whether it is more than chance |
//! | [`published`] | figures of others to stand beside |
//! | [`inventory`] | what machine and software it was |
//! | [`place`] | the directory that is measured in |

pub mod agent;
mod buffer;
pub mod cache;
pub mod ceiling;
pub mod chore;
pub mod compare;
pub mod crew;
pub mod data;
pub mod device;
mod error;
pub mod figure;
pub mod inventory;
mod mark;
pub mod memory;
pub mod metadata;
pub mod network;
pub mod place;
pub mod published;
pub mod report;
pub mod run;
pub mod sample;
mod scatter;
pub mod task;
#[cfg(test)]
mod test_disk;
pub mod tools;
pub mod workload;

pub use error::BenchError;
