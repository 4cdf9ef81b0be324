//! How many requests of each kind a mount has been asked by the kernel.

use crate::protocol::Opcode;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Numbers of operations are below it.
const NUMBERS: usize = 64;

/// See the module. Whoever counts pays one relaxed addition.
pub struct RequestCounts([AtomicU64; NUMBERS]);

impl Default for RequestCounts {
    fn default() -> RequestCounts {
        RequestCounts(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl fmt::Debug for RequestCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.all()).finish()
    }
}

impl RequestCounts {
    /// One more.
    pub(crate) fn note(&self, opcode: Opcode) {
        if let Some(count) = self.0.get(opcode as usize) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Each kind that there has been, in lower case, and how many.
    pub fn all(&self) -> Vec<(String, u64)> {
        let count = |opcode: &Opcode| self.0.get(*opcode as usize).map_or(0, |count| count.load(Relaxed));
        let named = |opcode: &Opcode| (format!("{opcode:?}").to_lowercase(), count(opcode));
        Opcode::ALL.iter().map(named).filter(|(_, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_counted_by_its_name() {
        let counts = RequestCounts::default();
        assert!(counts.all().is_empty());
        Opcode::ALL
            .iter()
            .filter(|opcode| (**opcode as usize) < NUMBERS)
            .for_each(|opcode| counts.note(*opcode));
        counts.note(Opcode::Getattr);
        let all = counts.all();
        assert!(
            all.contains(&("getattr".to_owned(), 2)) && all.contains(&("statx".to_owned(), 1)),
            "{all:?}"
        );
    }
}
