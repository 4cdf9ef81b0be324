//! The machine and the software that a figure was measured with.

mod agents;
mod hardware;
mod place;
mod software;

pub use agents::{AgentMachine, Kind, kinds, line as machines};
pub(crate) use hardware::has_link;
pub use hardware::{Disk, Hardware, Interface, Node};
pub use place::PlaceFacts;
pub use software::{Software, version_of};

use crate::run::Tool;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inventory {
    /// Processors, memory, disks, interfaces.
    pub hardware: Hardware,
    /// Kernel, distribution, tools and settings.
    pub software: Software,
    /// What is measured.
    pub place: PlaceFacts,
}

impl Inventory {
    /// Looks at this machine, `directory` and `tools`. What cannot be found out is said to be unknown: an inventory never fails.
    pub fn collect(directory: &Path, tools: &[Tool]) -> Inventory {
        Inventory {
            hardware: Hardware::collect(),
            software: Software::collect(tools),
            place: PlaceFacts::of(directory),
        }
    }

    /// The machine in one line.
    pub fn machine(&self) -> String {
        self.hardware.line()
    }
}

/// The text of a file of the kernel without space around it; nothing if it is not there or empty.
fn line_of(path: impl AsRef<Path>) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let text = text.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_described() {
        let root = tempfile::tempdir().unwrap();
        let found = Inventory::collect(root.path(), &[]);
        assert!(found.hardware.processors > 0 && found.hardware.memory_bytes > 1 << 24, "{found:?}");
        assert!(!found.software.kernel.is_empty() && found.place.total_bytes > 0);
        assert!(found.machine().contains("GiB"));
    }
}
