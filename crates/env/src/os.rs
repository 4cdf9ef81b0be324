//! The operating system as the environment: Linux system calls through `libc` and the standard library.
//!
//! Every call is repeated after EINTR, every short write is completed, and a path never leaves its root. Nothing is
//! cached: what a method returns is what the kernel answered.

mod clock;
mod continuity;
mod disk;
mod entropy;
mod file;
mod loss;
mod tasks;
mod view;

pub use clock::OsClock;
pub use disk::OsDisk;
pub use entropy::OsEntropy;
pub use file::OsFile;
pub use tasks::OsTasks;
pub use view::ViewDisk;
