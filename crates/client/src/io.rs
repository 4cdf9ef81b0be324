//! Reading, writing and what else `fallocate(2)`, `lseek(2)`, `copy_file_range(2)` and `fsync(2)` do to content.

mod allocate;
mod chunk;
mod copy;
mod count;
mod fill;
mod fsync;
mod overwrite;
mod read;
mod seek;
mod set_id;
mod spill;
mod take_back;
mod write;

pub use allocate::AllocateMode;
pub(crate) use chunk::{BlockDoubt, Growth};
pub(crate) use fill::Fills;
pub use seek::Seek;
pub(crate) use set_id::SetId;
pub(crate) use write::FILE_BYTES_MAX;
pub use write::{Left, Taken, WriteFlags, Written};
