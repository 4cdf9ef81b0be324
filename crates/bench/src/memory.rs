//! `ashlar bench memory`: how fast memory is, and whether its modules are where they should be.
//!
//! The kernels are those of STREAM (J. D. McCalpin, "Memory Bandwidth and Machine Balance in Current High Performance Computers", IEEE TCCA
//! Newsletter, 1995) and its rules for array size, counting and checking. The placement of modules is read from the tables
//! of the firmware (DMTF DSP0134, SMBIOS).

mod numa;
mod population;
#[cfg(test)]
#[allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.
mod recorded;
mod smbios;
mod stream;

pub use numa::{NumaError, NumaNode, nodes};
pub use population::{Advice, Module, advise, modules};
pub use smbios::{SmbiosError, TABLE_PATH, read_table};
pub use stream::{Kernel, Rates, StreamError, StreamPlan, stream};
