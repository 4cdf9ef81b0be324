//! A directory of the local file system as it would be after changes that are kept in memory: to look at what must not change.

use super::OsDisk;
use crate::{Continuity, Disk, DiskFile, DiskSpace, OpenMode};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes that change together.
const PAGE: u64 = 4096;

/// Files below one directory, which are only read; what is written is seen through this disk and nobody else. The directory may be
/// on a disk that is full or cannot be written to.
pub struct ViewDisk {
    below: OsDisk,
    changed: Mutex<Changed>,
}

#[derive(Default)]
struct Changed {
    /// LIMIT: one for each file that was opened, made, renamed or removed.
    files: BTreeMap<String, Option<Node>>,
    directories: BTreeSet<String>,
}

/// A file that is there.
#[derive(Clone)]
struct Node {
    /// Its path in the directory below; `None` for a new file.
    below: Option<String>,
    content: Arc<Mutex<Content>>,
}

/// How a file differs from the one below.
struct Content {
    len: u64,
    /// So many bytes of the file below are still part of it.
    kept_len: u64,
    /// Pages that were written to; `None` is all zeros.
    // LIMIT: what the caller writes: changes of a recovery, and no file's data.
    pages: BTreeMap<u64, Option<Box<[u8; PAGE as usize]>>>,
}

/// An open file of a [`ViewDisk`].
struct ViewFile {
    below: Option<Arc<dyn DiskFile>>,
    content: Arc<Mutex<Content>>,
}

impl ViewDisk {
    /// The tree below `root`, which should be an existing directory.
    pub fn new(root: impl Into<PathBuf>) -> ViewDisk {
        ViewDisk { below: OsDisk::new(root), changed: Mutex::default() }
    }
}

impl Changed {
    /// The file at `path`, if there is one.
    fn find(&mut self, below: &OsDisk, path: &str) -> io::Result<Option<Node>> {
        if let Some(known) = self.files.get(path) {
            return Ok(known.clone());
        }
        let len = match below.open(path, OpenMode::Read).and_then(|file| file.len()) {
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let content = Content { len, kept_len: len, pages: BTreeMap::new() };
        let node = Node { below: Some(path.to_owned()), content: Arc::new(Mutex::new(content)) };
        self.files.insert(path.to_owned(), Some(node.clone()));
        Ok(Some(node))
    }
}

impl Disk for ViewDisk {
    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut changed = self.changed.lock();
        let node = match (changed.find(&self.below, path)?, mode) {
            (Some(_), OpenMode::CreateNew) => return Err(ErrorKind::AlreadyExists.into()),
            (Some(node), _) => node,
            (None, OpenMode::Read | OpenMode::ReadWrite) => return Err(ErrorKind::NotFound.into()),
            (None, OpenMode::CreateOrOpen | OpenMode::CreateNew) => {
                let content = Content { len: 0, kept_len: 0, pages: BTreeMap::new() };
                let node = Node { below: None, content: Arc::new(Mutex::new(content)) };
                changed.files.insert(path.to_owned(), Some(node.clone()));
                node
            }
        };
        let below = node.below.map(|path| self.below.open(&path, OpenMode::Read)).transpose()?;
        Ok(Arc::new(ViewFile { below, content: node.content }))
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let changed = self.changed.lock();
        let mut names: BTreeSet<String> = match self.below.list(path) {
            Ok(names) => names.into_iter().collect(),
            Err(error) if error.kind() == ErrorKind::NotFound && changed.directories.contains(path) => {
                BTreeSet::new()
            }
            Err(error) => return Err(error),
        };
        let parent = |path: &str| path.rsplit_once('/').map_or("", |(parent, _)| parent).to_owned();
        let made = changed.directories.iter().filter(|made| !made.is_empty() && parent(made) == path);
        names.extend(made.map(|made| made.rsplit('/').next().unwrap_or_default().to_owned()));
        for (file, node) in &changed.files {
            let (directory, name) = file.rsplit_once('/').unwrap_or(("", file));
            if directory != path {
                continue;
            }
            match node {
                Some(_) => names.insert(name.to_owned()),
                None => names.remove(name),
            };
        }
        Ok(names.into_iter().collect())
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        let mut changed = self.changed.lock();
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        changed.directories.extend(ends.map(|end| path[..end].to_owned()));
        Ok(())
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let mut changed = self.changed.lock();
        if changed.find(&self.below, path)?.is_none() {
            return Err(ErrorKind::NotFound.into());
        }
        changed.files.insert(path.to_owned(), None);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut changed = self.changed.lock();
        let node = changed.find(&self.below, from)?.ok_or(ErrorKind::NotFound)?;
        changed.files.insert(from.to_owned(), None);
        changed.files.insert(to.to_owned(), Some(node));
        Ok(())
    }

    fn sync_dir(&self, _path: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }

    /// What is written takes no space below.
    fn space(&self) -> io::Result<DiskSpace> {
        let space = self.below.space()?;
        Ok(DiskSpace { bytes_free: space.bytes_total, ..space })
    }

    fn continuity(&self) -> Option<Continuity> {
        self.below.continuity()
    }

    fn note_loss(&self, _what: &str) -> io::Result<()> {
        Ok(())
    }

    /// The note stays, for whoever goes on.
    fn end_loss(&self) -> io::Result<bool> {
        let is_noted = self.below.is_loss_noted()?;
        if is_noted {
            self.below.forget_pages()?;
        }
        Ok(is_noted)
    }

    fn describe(&self, path: &str) -> String {
        self.below.describe(path)
    }
}

impl ViewFile {
    /// Bytes of the file below, with zeros where it is not part of this one.
    fn read_below(&self, kept_len: u64, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let wanted = kept_len.saturating_sub(offset).min(out.len() as u64) as usize;
        let got = match &self.below {
            Some(below) if wanted > 0 => below.read_at(offset, &mut out[..wanted])?,
            _ => 0,
        };
        out[got..].fill(0);
        Ok(())
    }

    fn write_locked(&self, content: &mut Content, mut offset: u64, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let (number, within) = (offset / PAGE, (offset % PAGE) as usize);
            let step = data.len().min(PAGE as usize - within);
            let mut page = match content.pages.remove(&number) {
                Some(page) => page.unwrap_or_else(|| Box::new([0; PAGE as usize])),
                None => {
                    let mut page = Box::new([0; PAGE as usize]);
                    self.read_below(content.kept_len, number * PAGE, &mut page[..])?;
                    page
                }
            };
            page[within..within + step].copy_from_slice(&data[..step]);
            content.pages.insert(number, Some(page));
            offset += step as u64;
            data = &data[step..];
        }
        content.len = content.len.max(offset);
        Ok(())
    }

    fn zero_locked(&self, content: &mut Content, from: u64, to: u64) -> io::Result<()> {
        let mut at = from;
        while at < to {
            let (number, within) = (at / PAGE, at % PAGE);
            let step = (PAGE - within).min(to - at);
            if step == PAGE {
                content.pages.insert(number, None);
            } else {
                self.write_locked(content, at, &[0; PAGE as usize][..step as usize])?;
            }
            at += step;
        }
        Ok(())
    }
}

impl DiskFile for ViewFile {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let content = self.content.lock();
        let got = content.len.saturating_sub(offset).min(out.len() as u64) as usize;
        let out = &mut out[..got];
        self.read_below(content.kept_len, offset, out)?;
        let end = offset + got as u64;
        for (number, page) in content.pages.range(offset / PAGE..end.div_ceil(PAGE)) {
            let start = number * PAGE;
            let (from, to) = (offset.max(start), end.min(start + PAGE));
            let target = &mut out[(from - offset) as usize..(to - offset) as usize];
            match page {
                Some(page) => target.copy_from_slice(&page[(from - start) as usize..(to - start) as usize]),
                None => target.fill(0),
            }
        }
        Ok(got)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_locked(&mut self.content.lock(), offset, data)
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        let mut content = self.content.lock();
        let mut offset = offset;
        for part in parts {
            self.write_locked(&mut content, offset, part)?;
            offset += part.len() as u64;
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut content = self.content.lock();
        if len < content.len {
            // What comes back when it grows again is zeros.
            let end = len.next_multiple_of(PAGE);
            self.zero_locked(&mut content, len, end)?;
            content.pages.retain(|number, _| number * PAGE < end);
            content.kept_len = content.kept_len.min(len);
        }
        content.len = len;
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.content.lock().len)
    }

    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut content = self.content.lock();
        let (end, kept) = (offset.saturating_add(len).min(content.len), content.len);
        self.zero_locked(&mut content, offset, end)?;
        content.len = kept;
        Ok(())
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut content = self.content.lock();
        content.len = content.len.max(offset.saturating_add(len));
        Ok(())
    }

    /// Of the file below, so that nobody changes it meanwhile.
    fn try_lock(&self) -> io::Result<()> {
        self.below.as_ref().map_or(Ok(()), |below| below.try_lock())
    }
}
