//! Writes past the page cache that are under way while programs may store into the kernel's pages of their files.
//!
//! Such a page may be from before the write, and be written back after it, with what was stored into it and all else as it was. So whatever is
//! written back while the write is under way gets its bytes.

use ashlar_types::InodeId;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// The bytes of a write, and where they are.
#[derive(Clone, Debug)]
pub(super) struct Bytes {
    pub(super) offset: u64,
    pub(super) data: Arc<[u8]>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    // LIMIT: the writes that programs have under way.
    writes: Mutex<FxHashMap<InodeId, Vec<Bytes>>>,
    count: AtomicUsize,
}

/// A write is under way for as long as it lives.
pub(super) struct WriteUnderWay<'a> {
    all: &'a UnderWay,
    inode: InodeId,
    bytes: Bytes,
}

impl Drop for WriteUnderWay<'_> {
    fn drop(&mut self) {
        let mut writes = self.all.writes.lock();
        if let Some(of_file) = writes.get_mut(&self.inode) {
            of_file.retain(|bytes| !Arc::ptr_eq(&bytes.data, &self.bytes.data));
            if of_file.is_empty() {
                writes.remove(&self.inode);
            }
        }
        self.all.count.fetch_sub(1, SeqCst);
    }
}

impl UnderWay {
    pub(super) fn begin(&self, inode: InodeId, bytes: Bytes) -> WriteUnderWay<'_> {
        self.count.fetch_add(1, SeqCst);
        self.writes.lock().entry(inode).or_default().push(bytes.clone());
        WriteUnderWay { all: self, inode, bytes }
    }

    /// What is to be written at `offset` when the kernel writes `data` back there.
    pub(super) fn over<'a>(&self, inode: InodeId, offset: u64, data: &'a [u8]) -> Cow<'a, [u8]> {
        let mut merged = Cow::Borrowed(data);
        if self.count.load(SeqCst) == 0 {
            return merged;
        }
        for bytes in self.writes.lock().get(&inode).into_iter().flatten() {
            let (begin, end) = (offset.max(bytes.offset), data.len() as u64 + offset);
            let end = end.min(bytes.offset + bytes.data.len() as u64);
            if begin < end {
                // Both ends lie within both pieces, which are in memory.
                let place = |base: u64| (begin - base) as usize..(end - base) as usize;
                merged.to_mut()[place(offset)].copy_from_slice(&bytes.data[place(bytes.offset)]);
            }
        }
        merged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_written_back_beside_a_write_gets_its_bytes() {
        let all = UnderWay::default();
        let file = InodeId(3);
        let page = [b'.'; 10];
        let write = |offset, text: &str| {
            let bytes = Bytes { offset, data: text.as_bytes().into() };
            all.begin(file, bytes)
        };
        let over = |inode, offset| String::from_utf8(all.over(inode, offset, &page).into_owned()).unwrap();
        assert!(matches!(all.over(file, 100, &page), Cow::Borrowed(_)));
        let (before, inside, behind) = (write(95, "abcdefg"), write(104, "XY"), write(109, "mnop"));
        assert_eq!(over(file, 100), "fg..XY...m");
        assert_eq!(over(file, 110), "nop.......");
        assert_eq!(over(file, 85), "..........");
        assert_eq!(over(InodeId(4), 100), "..........");
        drop(before);
        assert_eq!(over(file, 100), "....XY...m");
        // Longer than the page.
        let all_of_it = write(50, &"-".repeat(200));
        assert_eq!(over(file, 100), "----------");
        drop((inside, behind, all_of_it));
        assert!(matches!(all.over(file, 100, &page), Cow::Borrowed(_)) && all.writes.lock().is_empty());
    }
}
