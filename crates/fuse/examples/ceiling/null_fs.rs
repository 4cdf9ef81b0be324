//! Names and attributes in memory, file data nowhere: a write only moves the size, a read returns whatever the buffer holds.
//! What is left is the cost of FUSE itself.

use ashlar_fuse::protocol::{
    Create, Flush, Forgets, Fsync, Mkdir, Mknod, Open, Read, ReadDir, Release, SetAttr, Write,
};
use ashlar_fuse::{
    Attr, AttrReply, Created, Deferral, DirBuffer, DirEntry, DirPlusBuffer, Ended, Entry, Errno, FileHandle,
    FileKind, Filesystem, NodeId, OpenReplyFlags, Opened, ReplyBuffer, Request, Statfs, Timestamp, Written,
};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

/// How the kernel shall treat what the server says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Behaviour {
    pub(crate) entry_lifetime: Duration,
    pub(crate) attr_lifetime: Duration,
    /// FLUSH is answered ENOSYS, and files are opened with NOFLUSH.
    pub(crate) no_flush: bool,
    pub(crate) no_open: bool,
    pub(crate) no_opendir: bool,
    pub(crate) no_create: bool,
    pub(crate) open_flags: OpenReplyFlags,
}

#[derive(Default)]
struct Directory {
    by_name: FxHashMap<Box<[u8]>, (u64, usize)>,
    /// In order of creation; a readdir offset is an index here plus one.
    slots: Vec<Option<(Box<[u8]>, u64)>>,
}

struct Node {
    attr: Mutex<Attr>,
    directory: Option<Mutex<Directory>>,
}

const SHARDS: usize = 64;

pub(crate) struct NullFs {
    shards: Vec<RwLock<FxHashMap<u64, Arc<Node>>>>,
    next_ino: AtomicU64,
    behaviour: Behaviour,
}

impl NullFs {
    pub(crate) fn new(behaviour: Behaviour) -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        let fs = Self { shards, next_ino: AtomicU64::new(2), behaviour };
        fs.insert(NodeId::ROOT.0, FileKind::Directory.mode_bits() | 0o755);
        fs
    }

    fn shard(&self, ino: u64) -> &RwLock<FxHashMap<u64, Arc<Node>>> {
        &self.shards[ino as usize % SHARDS]
    }

    fn insert(&self, ino: u64, mode: u32) -> Attr {
        let now = Timestamp::from(SystemTime::now());
        let is_directory = FileKind::from_mode(mode) == Some(FileKind::Directory);
        let nlink = if is_directory { 2 } else { 1 };
        let times = Attr { atime: now, mtime: now, ctime: now, ..Attr::default() };
        let attr = Attr { ino, mode, nlink, blksize: 4096, ..times };
        let directory = is_directory.then(Mutex::default);
        self.shard(ino).write().insert(ino, Arc::new(Node { attr: Mutex::new(attr), directory }));
        attr
    }

    fn node(&self, ino: u64) -> Result<Arc<Node>, Errno> {
        self.shard(ino).read().get(&ino).cloned().ok_or(Errno::ENOENT)
    }

    fn attr(&self, ino: u64) -> Result<Attr, Errno> {
        Ok(*self.node(ino)?.attr.lock())
    }

    fn make(&self, parent: NodeId, name: &[u8], mode: u32) -> Result<Attr, Errno> {
        let parent = self.node(parent.0)?;
        let mut directory = parent.directory.as_ref().ok_or(Errno::ENOTDIR)?.lock();
        if directory.by_name.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let ino = self.next_ino.fetch_add(1, Relaxed);
        let attr = self.insert(ino, mode);
        let slot = directory.slots.len();
        directory.slots.push(Some((name.into(), ino)));
        directory.by_name.insert(name.into(), (ino, slot));
        drop(directory);
        let mut parent_attr = parent.attr.lock();
        parent_attr.mtime = attr.mtime;
        parent_attr.nlink += u32::from(FileKind::from_mode(mode) == Some(FileKind::Directory));
        Ok(attr)
    }

    fn remove(&self, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        let parent = self.node(parent.0)?;
        let mut directory = parent.directory.as_ref().ok_or(Errno::ENOTDIR)?.lock();
        let (ino, slot) = directory.by_name.remove(name).ok_or(Errno::ENOENT)?;
        directory.slots[slot] = None;
        if directory.by_name.is_empty() {
            directory.slots.clear();
        }
        drop(directory);
        self.shard(ino).write().remove(&ino);
        parent.attr.lock().mtime = SystemTime::now().into();
        Ok(())
    }

    fn entry(&self, attr: Attr) -> Entry {
        Entry {
            node: NodeId(attr.ino),
            generation: 0,
            attr,
            entry_lifetime: self.behaviour.entry_lifetime,
            attr_lifetime: self.behaviour.attr_lifetime,
        }
    }

    fn attr_reply(&self, attr: Attr) -> AttrReply {
        AttrReply { attr, lifetime: self.behaviour.attr_lifetime }
    }

    fn opened(&self, ino: u64) -> Opened {
        Opened { fh: FileHandle(ino), flags: self.behaviour.open_flags, backing: None }
    }

    /// Calls `take(next_offset, name, attr)` for each name from `offset` on until it returns false.
    fn each_name(
        &self,
        ino: u64,
        offset: u64,
        mut take: impl FnMut(u64, &[u8], Attr) -> bool,
    ) -> Result<(), Errno> {
        let node = self.node(ino)?;
        let directory = node.directory.as_ref().ok_or(Errno::ENOTDIR)?.lock();
        for (index, slot) in directory.slots.iter().enumerate().skip(offset as usize) {
            let Some((name, ino)) = slot else { continue };
            let Ok(attr) = self.attr(*ino) else { continue };
            if !take(index as u64 + 1, name, attr) {
                break;
            }
        }
        Ok(())
    }
}

impl Filesystem for NullFs {
    fn lookup(&self, request: &Request<'_>, name: &[u8]) -> Result<Entry, Errno> {
        let parent = self.node(request.node.0)?;
        let directory = parent.directory.as_ref().ok_or(Errno::ENOTDIR)?;
        let (ino, _) = *directory.lock().by_name.get(name).ok_or(Errno::ENOENT)?;
        Ok(self.entry(self.attr(ino)?))
    }

    fn forget(&self, _forgets: Forgets<'_>) {}

    fn getattr(&self, request: &Request<'_>, _fh: Option<FileHandle>) -> Result<AttrReply, Errno> {
        Ok(self.attr_reply(self.attr(request.node.0)?))
    }

    fn setattr(&self, request: &Request<'_>, changes: &SetAttr) -> Result<AttrReply, Errno> {
        let node = self.node(request.node.0)?;
        let mut attr = node.attr.lock();
        if let Some(size) = changes.size {
            attr.size = size;
        }
        Ok(self.attr_reply(*attr))
    }

    fn mknod(&self, request: &Request<'_>, args: &Mknod<'_>) -> Result<Entry, Errno> {
        Ok(self.entry(self.make(request.node, args.name, args.mode)?))
    }

    fn mkdir(&self, request: &Request<'_>, args: &Mkdir<'_>) -> Result<Entry, Errno> {
        let mode = FileKind::Directory.mode_bits() | args.mode & 0o7777;
        Ok(self.entry(self.make(request.node, args.name, mode)?))
    }

    fn unlink(&self, request: &Request<'_>, name: &[u8]) -> Result<(), Errno> {
        self.remove(request.node, name)
    }

    fn rmdir(&self, request: &Request<'_>, name: &[u8]) -> Result<(), Errno> {
        self.remove(request.node, name)
    }

    fn create(&self, request: &Request<'_>, args: &Create<'_>) -> Result<Created, Errno> {
        if self.behaviour.no_create {
            return Err(Errno::ENOSYS);
        }
        let mode = FileKind::Regular.mode_bits() | args.mode & 0o7777;
        let attr = self.make(request.node, args.name, mode)?;
        Ok(Created { entry: self.entry(attr), opened: self.opened(attr.ino) })
    }

    fn open(&self, request: &Request<'_>, _args: &Open) -> Result<Opened, Errno> {
        if self.behaviour.no_open { Err(Errno::ENOSYS) } else { Ok(self.opened(request.node.0)) }
    }

    fn read(&self, request: &Request<'_>, args: &Read, reply: &mut ReplyBuffer<'_>) -> Result<(), Errno> {
        let left = self.attr(request.node.0)?.size.saturating_sub(args.offset);
        reply.advance(usize::try_from(left).unwrap_or(usize::MAX));
        Ok(())
    }

    fn write(&self, request: &Request<'_>, args: &Write<'_>, _: &Deferral<'_>) -> Result<Written, Errno> {
        let node = self.node(request.node.0)?;
        let mut attr = node.attr.lock();
        attr.size = attr.size.max(args.offset + args.data.len() as u64);
        attr.blocks = attr.size.div_ceil(512);
        attr.mtime = SystemTime::now().into();
        Ok(Written::Bytes(args.data.len() as u32))
    }

    fn statfs(&self, _request: &Request<'_>) -> Result<Statfs, Errno> {
        Ok(Statfs { block_size: 4096, fragment_size: 4096, name_len_max: 255, ..Statfs::default() })
    }

    fn release(&self, _request: &Request<'_>, _args: &Release) -> Result<(), Errno> {
        Ok(())
    }

    fn fsync(&self, _request: &Request<'_>, _args: &Fsync, _: &Deferral<'_>) -> Result<Ended, Errno> {
        Ok(Ended::Now)
    }

    fn flush(&self, _request: &Request<'_>, _args: &Flush) -> Result<(), Errno> {
        if self.behaviour.no_flush { Err(Errno::ENOSYS) } else { Ok(()) }
    }

    fn opendir(&self, request: &Request<'_>, _args: &Open) -> Result<Opened, Errno> {
        if self.behaviour.no_opendir {
            return Err(Errno::ENOSYS);
        }
        Ok(Opened { fh: FileHandle(request.node.0), ..Opened::default() })
    }

    fn readdir(
        &self,
        request: &Request<'_>,
        args: &ReadDir,
        reply: &mut DirBuffer<'_, '_>,
    ) -> Result<(), Errno> {
        self.each_name(request.node.0, args.offset, |next_offset, name, attr| {
            let kind = FileKind::from_mode(attr.mode).unwrap_or(FileKind::Regular);
            reply.push(&DirEntry { ino: attr.ino, next_offset, kind, name })
        })
    }

    fn readdirplus(
        &self,
        request: &Request<'_>,
        args: &ReadDir,
        reply: &mut DirPlusBuffer<'_, '_>,
    ) -> Result<(), Errno> {
        self.each_name(request.node.0, args.offset, |next_offset, name, attr| {
            let kind = FileKind::from_mode(attr.mode).unwrap_or(FileKind::Regular);
            reply.push(Some(&self.entry(attr)), &DirEntry { ino: attr.ino, next_offset, kind, name })
        })
    }

    fn releasedir(&self, _request: &Request<'_>, _args: &Release) -> Result<(), Errno> {
        Ok(())
    }

    fn fsyncdir(&self, _request: &Request<'_>, _args: &Fsync, _: &Deferral<'_>) -> Result<Ended, Errno> {
        Ok(Ended::Now)
    }
}
