//! What each machine of a run does for itself, beside the workloads: it tells what it is, and what it could do at best.

use crate::BenchError;
use crate::ceiling::{MemoryCeiling, NoMemory, memory};
use crate::inventory::Inventory;
use crate::memory::StreamError;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Chore {
    /// Tell what the machine is, and what is mounted at this directory.
    Describe(PathBuf),
    /// Find out whether files can be opened past the page cache where the machine works.
    TryDirect,
    /// Measure memory on every NUMA node; in a hurry with arrays that are too small for STREAM's rule.
    MeasureMemory {
        /// See there.
        is_in_a_hurry: bool,
    },
}

/// What came of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// What the machine is.
    Machine(Box<Inventory>),
    /// Whether files can be opened past the page cache.
    Direct(bool),
    /// What memory moves, or why that was not measured.
    Memory(Result<MemoryCeiling, String>),
}

impl Chore {
    /// What people call it.
    pub fn name(&self) -> &'static str {
        match self {
            Chore::Describe(_) => "looking at the machine",
            Chore::TryDirect => "looking at the file system",
            Chore::MeasureMemory { .. } => "measuring memory",
        }
    }

    /// Does it on this machine, which is number `machine` (from 0) of those that work in `root`.
    ///
    /// # Errors
    /// What a call answers; [`BenchError::Stopped`] when somebody sets `stop`.
    pub fn carry_out(&self, root: &Path, machine: usize, stop: &AtomicBool) -> Result<Answer, BenchError> {
        Ok(match self {
            Chore::Describe(directory) => Answer::Machine(Box::new(Inventory::collect(directory, &[]))),
            Chore::TryDirect => Answer::Direct(has_direct(root, machine)?),
            Chore::MeasureMemory { is_in_a_hurry } => match memory(*is_in_a_hurry, stop) {
                Err(NoMemory::Stream(StreamError::Stopped)) => return Err(BenchError::Stopped),
                told => Answer::Memory(told.map_err(|why| why.to_string())),
            },
        })
    }
}

/// Whether the file system of `root` lets a file be opened past the page cache, looked at with a file that goes again. Its name has the machine's
/// number in it: others may look at the same time.
fn has_direct(root: &Path, machine: usize) -> Result<bool, BenchError> {
    let path = root.join(format!("direct.{machine}"));
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let answer = match rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR) {
        Ok(_) => Ok(true),
        Err(rustix::io::Errno::INVAL) => Ok(false),
        Err(error) => return Err(BenchError::errno("open", &path)(error)),
    };
    // Some file systems make the file before they refuse the flag.
    if path.exists() {
        std::fs::remove_file(&path).map_err(BenchError::io("remove", &path))?;
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    static GO_ON: AtomicBool = AtomicBool::new(false);

    #[test]
    fn a_machine_tells_what_it_is_and_leaves_nothing() {
        let root = crate::test_disk::folder();
        let done = |chore: Chore| chore.carry_out(root.path(), 1, &GO_ON).unwrap();
        let Answer::Machine(told) = done(Chore::Describe(root.path().to_owned())) else { panic!("another") };
        assert!(told.hardware.processors > 0 && told.place.total_bytes > 0, "{told:?}");
        assert!(matches!(done(Chore::TryDirect), Answer::Direct(_)));
        let Answer::Memory(Ok(memory)) = done(Chore::MeasureMemory { is_in_a_hurry: true }) else {
            panic!("not measured")
        };
        assert!(memory.copy > 0.0 && memory.triad > 0.0 && !memory.is_beyond_caches);
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn many_machines_look_at_one_directory_at_the_same_time() {
        let root = crate::test_disk::folder();
        std::thread::scope(|scope| {
            let root = root.path();
            let look = move |machine| {
                for _ in 0..50 {
                    assert!(matches!(
                        Chore::TryDirect.carry_out(root, machine, &GO_ON),
                        Ok(Answer::Direct(_))
                    ));
                }
            };
            (0..8).for_each(|machine| drop(scope.spawn(move || look(machine))));
        });
    }
}
