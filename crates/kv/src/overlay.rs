//! Changes that are in the log and not yet in the engine, in memory, in key order.

use crate::Key;
use bytes::Bytes;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;

/// What an entry costs besides its key and value: two inline fields, the node's slack, the allocation's header.
const ENTRY_BYTES: usize = 128;

/// A sorted map of the newest change of each key; `None` is a deletion.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    entries: BTreeMap<Key, Option<Bytes>>,
    bytes: usize,
}

fn value_bytes(value: Option<&Bytes>) -> usize {
    value.map_or(0, Bytes::len)
}

/// Bytes of a key outside its entry.
fn key_bytes(key: &Key) -> usize {
    if key.spilled() { key.len() } else { 0 }
}

impl Overlay {
    pub(crate) fn insert(&mut self, key: Key, value: Option<Bytes>) {
        let added = ENTRY_BYTES + key_bytes(&key) + value_bytes(value.as_ref());
        let spilled = key_bytes(&key);
        self.bytes += added;
        if let Some(old) = self.entries.insert(key, value) {
            self.bytes -= ENTRY_BYTES + spilled + value_bytes(old.as_ref());
        }
    }

    /// `None`: this overlay does not know the key. `Some(None)`: it is deleted.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&Option<Bytes>> {
        self.entries.get(key)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Memory in use, estimated, bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, Option<&Bytes>)> {
        self.entries.iter().map(|(key, value)| (key, value.as_ref()))
    }

    fn range<'a>(&'a self, from: &[u8], to: &[u8]) -> Changes<'a> {
        if from >= to {
            return self.entries.range::<[u8], _>((Bound::Included(from), Bound::Excluded(from)));
        }
        self.entries.range::<[u8], _>((Bound::Included(from), Bound::Excluded(to)))
    }
}

type Changes<'a> = std::collections::btree_map::Range<'a, Key, Option<Bytes>>;

/// The changes of a range in two overlays, in key order; where both know a key, the newer one counts.
pub(crate) struct MergedChanges<'a> {
    newer: std::iter::Peekable<Changes<'a>>,
    older: Option<std::iter::Peekable<Changes<'a>>>,
}

impl<'a> MergedChanges<'a> {
    pub(crate) fn new(newer: &'a Overlay, older: Option<&'a Overlay>, from: &[u8], to: &[u8]) -> Self {
        let older = older.map(|overlay| overlay.range(from, to).peekable());
        MergedChanges { newer: newer.range(from, to).peekable(), older }
    }

    /// The next key without taking it.
    pub(crate) fn peek_key(&mut self) -> Option<&'a Key> {
        let newer = self.newer.peek().map(|(key, _)| *key);
        let older = self.older.as_mut().and_then(|older| older.peek().map(|(key, _)| *key));
        match (newer, older) {
            (Some(newer), Some(older)) => Some(newer.min(older)),
            (newer, older) => newer.or(older),
        }
    }
}

impl<'a> Iterator for MergedChanges<'a> {
    type Item = (&'a Key, &'a Option<Bytes>);

    fn next(&mut self) -> Option<Self::Item> {
        let Some(older) = &mut self.older else { return self.newer.next() };
        let order = match (self.newer.peek(), older.peek()) {
            (Some((newer, _)), Some((older, _))) => newer.cmp(older),
            (Some(_), None) => Ordering::Less,
            (None, _) => Ordering::Greater,
        };
        match order {
            Ordering::Less => self.newer.next(),
            Ordering::Greater => older.next(),
            Ordering::Equal => {
                older.next();
                self.newer.next()
            }
        }
    }
}
