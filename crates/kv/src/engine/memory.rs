//! An engine in memory whose content survives as long as one of its handles: the simulated engine, of which a crash
//! leaves the last checkpoint (`design.md` D11).

use super::{Changes, Engine, EngineReport, LastingSnapshot};
use crate::{Key, KvError, Snapshot};
use bytes::Bytes;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::Arc;

type Pairs = BTreeMap<Key, Bytes>;

/// A copy.
struct MemorySnapshot(Pairs);

impl Snapshot for MemorySnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        Ok(self.0.get(key).cloned())
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut crate::Visit<'_>) -> Result<(), KvError> {
        scan(&self.0, from, to, visit);
        Ok(())
    }
}

fn scan(pairs: &Pairs, from: &[u8], to: &[u8], visit: &mut crate::Visit<'_>) {
    if from >= to {
        return;
    }
    for (key, value) in pairs.range::<[u8], _>((Bound::Included(from), Bound::Excluded(to))) {
        if visit(key, value).is_break() {
            break;
        }
    }
}

#[derive(Debug, Default)]
struct Content {
    pairs: Pairs,
    note: Option<Bytes>,
    /// The next apply fails with this errno, after having been applied or not.
    failure: Option<(i32, bool)>,
}

/// Clones are handles to one engine; keep one over a simulated crash and open the next lane with another.
#[derive(Clone, Debug, Default)]
pub struct MemoryEngine {
    content: Arc<RwLock<Content>>,
}

impl MemoryEngine {
    /// An empty engine.
    pub fn new() -> MemoryEngine {
        MemoryEngine::default()
    }

    /// Makes the next [`Engine::apply`] fail with `errno`; with `applied`, only after everything has been applied, as a
    /// crash before the answer does.
    pub fn fail_next_apply(&self, errno: i32, applied: bool) {
        self.content.write().failure = Some((errno, applied));
    }
}

impl Engine for MemoryEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        Ok(self.content.read().pairs.get(key).cloned())
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut crate::Visit<'_>) -> Result<(), KvError> {
        scan(&self.content.read().pairs, from, to, visit);
        Ok(())
    }

    fn snapshot(&self) -> Result<LastingSnapshot, KvError> {
        Ok(Box::new(MemorySnapshot(self.content.read().pairs.clone())))
    }

    fn apply(&self, changes: &mut Changes<'_>, note: &[u8]) -> Result<(), KvError> {
        let mut content = self.content.write();
        let failure = content.failure.take();
        if !matches!(failure, Some((_, false))) {
            for (key, value) in changes {
                match value {
                    // Copied, as a disk would: a slice must not keep a whole log segment in memory.
                    Some(value) => content.pairs.insert(key.clone(), Bytes::copy_from_slice(value)),
                    None => content.pairs.remove(key),
                };
            }
            content.note = Some(Bytes::copy_from_slice(note));
        }
        match failure {
            Some((errno, _)) => {
                Err(KvError::io("checkpoint into memory", io::Error::from_raw_os_error(errno)))
            }
            None => Ok(()),
        }
    }

    fn note(&self) -> Result<Option<Bytes>, KvError> {
        Ok(self.content.read().note.clone())
    }

    fn verify(&self) -> Result<EngineReport, KvError> {
        let content = self.content.read();
        let bytes = content.pairs.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum();
        Ok(EngineReport { pairs: content.pairs.len() as u64, bytes })
    }

    fn bytes_used(&self) -> u64 {
        0
    }

    fn close(&self) -> Result<(), KvError> {
        Ok(())
    }
}
