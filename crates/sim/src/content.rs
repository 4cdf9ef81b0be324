//! The content of a file in the model: pages shared between versions, so that keeping many versions is cheap.

use std::collections::BTreeMap;
use std::sync::Arc;

const PAGE: u64 = 4096;

/// Bytes and length. What no page holds is zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    size: u64,
    pages: BTreeMap<u64, Arc<[u8; PAGE as usize]>>,
}

impl Content {
    /// The length, bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The byte at `offset`; zero where nothing is.
    pub fn byte(&self, offset: u64) -> u8 {
        self.pages.get(&(offset / PAGE)).map_or(0, |page| page[(offset % PAGE) as usize])
    }

    fn for_pages(offset: u64, len: u64, mut visit: impl FnMut(u64, usize, usize)) {
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let within = at % PAGE;
            let take = (PAGE - within).min(end - at);
            visit(at / PAGE, within as usize, take as usize);
            at += take;
        }
    }

    /// Writes `data`, extending the file as needed.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let mut done = 0;
        Content::for_pages(offset, data.len() as u64, |page, within, take| {
            let page = self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE as usize]));
            Arc::make_mut(page)[within..within + take].copy_from_slice(&data[done..done + take]);
            done += take;
        });
        if !data.is_empty() {
            self.size = self.size.max(offset + data.len() as u64);
        }
    }

    /// Makes a range read as zeros; the length stays.
    pub fn zero(&mut self, offset: u64, len: u64) {
        let pages = &mut self.pages;
        Content::for_pages(offset, len, |page, within, take| {
            if take == PAGE as usize {
                pages.remove(&page);
            } else if let Some(page) = pages.get_mut(&page) {
                Arc::make_mut(page)[within..within + take].fill(0);
            }
        });
    }

    /// Sets the length; what is cut off is gone.
    pub fn set_size(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, self.size.next_multiple_of(PAGE) - size);
            self.pages.retain(|page, _| page * PAGE < size);
        }
        self.size = size;
    }

    /// Extends the length to `size` if it is shorter.
    pub fn grow(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    /// Up to `len` bytes at `offset`, fewer at the end.
    pub fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        let len = len.min(self.size.saturating_sub(offset));
        let mut out = vec![0; len as usize];
        let mut done = 0;
        Content::for_pages(offset, len, |page, within, take| {
            if let Some(page) = self.pages.get(&page) {
                out[done..done + take].copy_from_slice(&page[within..within + take]);
            }
            done += take;
        });
        out
    }

    /// The first byte of `found` that no version has at its place, where bytes of a version are also what is behind its end.
    pub fn first_foreign(found: &[u8], versions: &[Content]) -> Option<u64> {
        let is_known = |(at, byte): (u64, &u8)| versions.iter().any(|version| version.byte(at) == *byte);
        (0..).zip(found).find(|&pair| !is_known(pair)).map(|(at, _)| at)
    }

    /// Whether each byte of `found`, at `offset`, is that of some version.
    pub fn is_mixture(offset: u64, found: &[u8], versions: &[Content]) -> bool {
        let is_of_one = |at: u64, bytes: &[u8]| {
            let is_same = |version: &Content| (at..).zip(bytes).all(|(at, byte)| version.byte(at) == *byte);
            versions.iter().any(is_same)
        };
        // A part at a time, which mostly is of one version.
        (offset..).step_by(512).zip(found.chunks(512)).all(|(at, part)| {
            is_of_one(at, part) || (at..).zip(part).all(|(at, byte)| is_of_one(at, &[*byte]))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_reads_what_was_written_and_zeros_elsewhere() {
        let mut content = Content::default();
        content.write(4090, b"0123456789");
        assert_eq!((content.size(), content.read(4088, 100)), (4100, b"\0\x000123456789".to_vec()));
        let older = content.clone();
        content.zero(4094, 2);
        content.set_size(4098);
        content.set_size(4100);
        assert_eq!(content.read(4090, 10), b"0123\x00\x0067\x00\x00");
        assert_eq!(Content::first_foreign(&older.read(0, 4100), &[older.clone(), content.clone()]), None);
        assert_eq!(Content::first_foreign(&older.read(0, 4100), &[content]), Some(4094));
    }
}
