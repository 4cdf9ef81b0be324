//! Changes that are in the log and not yet in the engine, in memory, in key order.

use crate::Key;
use bytes::Bytes;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;

/// What an entry costs besides its key and value: two inline fields, the node's slack, the allocation's header.
const ENTRY_BYTES: usize = 144;

/// A key beside its first bytes as numbers, which nearly always tell two keys apart without a look at the rest: a search compares some
/// thirty of them, and half of its time was the calls for that.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ranked {
    /// The first 16 bytes, big-endian; zeros where the key is shorter.
    head: [u64; 2],
    key: Key,
}

impl Ranked {
    fn new(key: Key) -> Ranked {
        let mut first = [0; 16];
        let len = key.len().min(first.len());
        first[..len].copy_from_slice(&key[..len]);
        let head = u128::from_be_bytes(first);
        Ranked { head: [(head >> 64) as u64, head as u64], key }
    }

    fn of(key: &[u8]) -> Ranked {
        Ranked::new(Key::from_slice(key))
    }
}

impl Ord for Ranked {
    fn cmp(&self, other: &Ranked) -> Ordering {
        // A shorter key filled up with zeros is not above a longer one that begins with it; if they look equal, the rest decides.
        self.head.cmp(&other.head).then_with(|| self.key.as_slice().cmp(other.key.as_slice()))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Ranked) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A sorted map of the newest change of each key; `None` is a deletion.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overlay {
    entries: BTreeMap<Ranked, Option<Bytes>>,
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
        if let Some(old) = self.entries.insert(Ranked::new(key), value) {
            self.bytes -= ENTRY_BYTES + spilled + value_bytes(old.as_ref());
        }
    }

    /// `None`: this overlay does not know the key. `Some(None)`: it is deleted.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&Option<Bytes>> {
        self.entries.get(&Ranked::of(key))
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
        self.entries.iter().map(|(ranked, value)| (&ranked.key, value.as_ref()))
    }

    fn range<'a>(&'a self, from: &[u8], to: &[u8]) -> Changes<'a> {
        let to = if from >= to { from } else { to };
        let (from, to) = (Ranked::of(from), Ranked::of(to));
        self.entries.range((Bound::Included(&from), Bound::Excluded(&to)))
    }
}

type Changes<'a> = std::collections::btree_map::Range<'a, Ranked, Option<Bytes>>;

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
        let newer = self.newer.peek().map(|(ranked, _)| *ranked);
        let older = self.older.as_mut().and_then(|older| older.peek().map(|(ranked, _)| *ranked));
        let first = match (newer, older) {
            (Some(newer), Some(older)) => Some(newer.min(older)),
            (newer, older) => newer.or(older),
        };
        first.map(|ranked| &ranked.key)
    }
}

fn change<'a>((ranked, value): (&'a Ranked, &'a Option<Bytes>)) -> (&'a Key, &'a Option<Bytes>) {
    (&ranked.key, value)
}

impl<'a> Iterator for MergedChanges<'a> {
    type Item = (&'a Key, &'a Option<Bytes>);

    fn next(&mut self) -> Option<Self::Item> {
        let Some(older) = &mut self.older else { return self.newer.next().map(change) };
        let order = match (self.newer.peek(), older.peek()) {
            (Some((newer, _)), Some((older, _))) => newer.cmp(older),
            (Some(_), None) => Ordering::Less,
            (None, _) => Ordering::Greater,
        };
        let next = match order {
            Ordering::Less => self.newer.next(),
            Ordering::Greater => older.next(),
            Ordering::Equal => {
                older.next();
                self.newer.next()
            }
        };
        next.map(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_rank_as_their_bytes_do_whatever_their_length() {
        let mut keys: Vec<Vec<u8>> = vec![vec![]];
        for len in [1, 7, 8, 9, 15, 16, 17, 24, 40, 41, 60] {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                keys.push(vec![byte; len]);
                for at in [0, len / 2, len - 1] {
                    let mut key = vec![byte; len];
                    key[at] ^= 1;
                    keys.push(key);
                }
            }
        }
        for a in &keys {
            for b in &keys {
                assert_eq!(Ranked::of(a).cmp(&Ranked::of(b)), a.cmp(b), "{a:?} and {b:?}");
            }
        }
    }
}
