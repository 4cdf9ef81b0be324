//! A small in-memory file system with real data, locks and extended attributes, for tests that mount for real.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, unused_imports, reason = "each test binary uses its part")]

mod locks;
mod mounted;
pub mod suite;
pub mod waits;

pub use mounted::{Mounted, RingSwitch, mount, mount_or_skip, skip_reason};

use ashlar_fuse::protocol::{
    Create, FileLock, Flush, Forgets, Fsync, Link, LockRequest, Mkdir, Mknod, Open, Read, ReadDir, Release,
    Rename, RetrieveReply, SetAttr, SetTime, SetXattr, Write,
};
use ashlar_fuse::{
    Attr, AttrReply, Created, Deferral, DirBuffer, DirEntry, DirPlusBuffer, Ended, Entry, Errno, FileHandle,
    FileKind, Filesystem, Negotiated, NodeId, Notifier, Opened, ReplyBuffer, Request, Statfs, Timestamp,
    Unique, Written, XattrBuffer,
};
use locks::{Held, Waiting};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime};

/// How many requests of a kind arrived.
#[derive(Default)]
pub struct Calls {
    pub lookup: AtomicU64,
    pub getattr: AtomicU64,
    pub forgotten: AtomicU64,
    pub interrupts: AtomicU64,
    pub destroyed: AtomicU64,
    /// Lookups of `slow...` in progress.
    pub sleeping: AtomicU64,
    /// Lets them go on.
    pub are_woken: AtomicBool,
    pub retrieved: Mutex<Vec<(u32, u64, Vec<u8>)>>,
}

enum Content {
    File(Vec<u8>),
    Directory(BTreeMap<Vec<u8>, u64>),
    Link(Vec<u8>),
    Special,
}

struct Node {
    attr: Attr,
    content: Content,
    parent: u64,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    locks: Vec<Held>,
}

struct State {
    nodes: HashMap<u64, Node>,
    next_ino: u64,
    waiting: Vec<Waiting>,
}

/// A handle: the session has one, the test another.
#[derive(Clone)]
pub struct MemoryFs {
    state: Arc<Mutex<State>>,
    pub calls: Arc<Calls>,
    lifetime: Duration,
}

impl MemoryFs {
    /// `lifetime` is how long the kernel may believe entries and attributes.
    pub fn new(lifetime: Duration) -> Self {
        let state = State { nodes: HashMap::new(), next_ino: 1, waiting: Vec::new() };
        let fs = Self { state: Arc::new(Mutex::new(state)), calls: Arc::default(), lifetime };
        fs.state.lock().insert(1, libc::S_IFDIR | 0o755, Content::Directory(BTreeMap::new()), 0, 0);
        fs
    }

    /// Changes a file behind the kernel's back.
    pub fn overwrite(&self, path: &[&str], data: &[u8]) -> NodeId {
        let mut state = self.state.lock();
        let ino = path.iter().fold(1, |ino, name| state.child(ino, name.as_bytes()).unwrap());
        let node = state.node(ino).unwrap();
        node.content = Content::File(data.to_vec());
        node.attr.size = data.len() as u64;
        node.attr.mtime = SystemTime::now().into();
        NodeId(ino)
    }

    /// Removes a name behind the kernel's back.
    pub fn remove_quietly(&self, parent: NodeId, name: &str) -> NodeId {
        let mut state = self.state.lock();
        NodeId(state.directory(parent.0).unwrap().remove(name.as_bytes()).unwrap())
    }

    /// Blocking lock requests that wait.
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }

    fn entry(&self, attr: Attr) -> Entry {
        let lifetime = self.lifetime;
        Entry {
            node: NodeId(attr.ino),
            generation: 0,
            attr,
            entry_lifetime: lifetime,
            attr_lifetime: lifetime,
        }
    }

    fn make(&self, request: &Request<'_>, name: &[u8], mode: u32, content: Content) -> Result<Entry, Errno> {
        let mut state = self.state.lock();
        let parent = request.node.0;
        if state.child(parent, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        let ino = state.insert(parent, mode, content, request.uid, request.gid);
        state.directory(parent)?.insert(name.to_vec(), ino);
        if mode & libc::S_IFMT == libc::S_IFDIR {
            state.node(parent)?.attr.nlink += 1;
        }
        Ok(self.entry(state.node(ino)?.attr))
    }
}

impl State {
    fn insert(&mut self, parent: u64, mode: u32, content: Content, uid: u32, gid: u32) -> u64 {
        let ino = self.next_ino;
        self.next_ino += 1;
        let now = Timestamp::from(SystemTime::now());
        let nlink = if matches!(content, Content::Directory(_)) { 2 } else { 1 };
        let size = if let Content::Link(target) = &content { target.len() as u64 } else { 0 };
        let attr = Attr {
            ino,
            size,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            mode,
            nlink,
            uid,
            gid,
            rdev: 0,
            blksize: 4096,
        };
        let node = Node { attr, content, parent, xattrs: BTreeMap::new(), locks: Vec::new() };
        self.nodes.insert(ino, node);
        ino
    }

    fn node(&mut self, ino: u64) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&ino).ok_or(Errno::ENOENT)
    }

    fn directory(&mut self, ino: u64) -> Result<&mut BTreeMap<Vec<u8>, u64>, Errno> {
        match &mut self.node(ino)?.content {
            Content::Directory(names) => Ok(names),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn file(&mut self, ino: u64) -> Result<(&mut Attr, &mut Vec<u8>), Errno> {
        let node = self.node(ino)?;
        match &mut node.content {
            Content::File(data) => Ok((&mut node.attr, data)),
            Content::Directory(_) => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    fn child(&mut self, parent: u64, name: &[u8]) -> Result<u64, Errno> {
        self.directory(parent)?.get(name).copied().ok_or(Errno::ENOENT)
    }

    fn unlink(&mut self, parent: u64, name: &[u8]) -> Result<(), Errno> {
        let ino = self.directory(parent)?.remove(name).ok_or(Errno::ENOENT)?;
        self.node(ino)?.attr.nlink -= 1;
        Ok(())
    }

    fn rename(&mut self, parent: u64, args: &Rename<'_>) -> Result<(), Errno> {
        let ino = self.child(parent, args.name)?;
        let target = self.child(args.new_parent.0, args.new_name).ok();
        if target.is_some() && args.flags & libc::RENAME_NOREPLACE != 0 {
            return Err(Errno::EEXIST);
        }
        if args.flags & libc::RENAME_EXCHANGE != 0 {
            let other = target.ok_or(Errno::ENOENT)?;
            self.directory(parent)?.insert(args.name.to_vec(), other);
        } else {
            self.directory(parent)?.remove(args.name);
        }
        self.directory(args.new_parent.0)?.insert(args.new_name.to_vec(), ino);
        Ok(())
    }

    /// Every name of a directory after `offset`, as `(next_offset, ino, name)`. The offset of a name is that of its node, so
    /// that removing others while reading moves nothing.
    fn names(&mut self, ino: u64, offset: u64) -> Result<Vec<(u64, u64, Vec<u8>)>, Errno> {
        let parent = self.node(ino)?.parent.max(1);
        let mut names: Vec<_> = vec![(1, ino, b".".to_vec()), (2, parent, b"..".to_vec())];
        names.extend(self.directory(ino)?.iter().map(|(name, ino)| (ino + 2, *ino, name.clone())));
        names.retain(|(next_offset, ..)| *next_offset > offset);
        names.sort();
        Ok(names)
    }
}

impl Filesystem for MemoryFs {
    fn init(&self, granted: &Negotiated, _notifier: &Notifier) -> Result<(), Errno> {
        assert!(granted.max_write >= 4096);
        Ok(())
    }

    fn destroy(&self) {
        self.calls.destroyed.fetch_add(1, SeqCst);
    }

    fn forget(&self, forgets: Forgets<'_>) {
        self.calls.forgotten.fetch_add(forgets.iter().map(|(_, lookups)| lookups).sum(), SeqCst);
    }

    fn interrupt(&self, unique: Unique) {
        self.calls.interrupts.fetch_add(1, SeqCst);
        self.state.lock().interrupt(unique);
    }

    fn retrieve_reply(&self, _request: &Request<'_>, reply: &RetrieveReply<'_>) {
        self.calls.retrieved.lock().push((reply.tag, reply.offset, reply.data.to_vec()));
    }

    fn lookup(&self, request: &Request<'_>, name: &[u8]) -> Result<Entry, Errno> {
        self.calls.lookup.fetch_add(1, SeqCst);
        assert_ne!(name, b"panic", "a panic asked for by a test");
        if name.starts_with(b"slow") {
            self.calls.sleeping.fetch_add(1, SeqCst);
            // Bounded, so that a test that fails ends.
            let end = Instant::now() + Duration::from_secs(50);
            while !self.calls.are_woken.load(SeqCst) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.calls.sleeping.fetch_sub(1, SeqCst);
        }
        let mut state = self.state.lock();
        let ino = match name {
            b"." => request.node.0,
            _ => state.child(request.node.0, name)?,
        };
        Ok(self.entry(state.node(ino)?.attr))
    }

    fn getattr(&self, request: &Request<'_>, _fh: Option<FileHandle>) -> Result<AttrReply, Errno> {
        self.calls.getattr.fetch_add(1, SeqCst);
        let attr = self.state.lock().node(request.node.0)?.attr;
        Ok(AttrReply { attr, lifetime: self.lifetime })
    }

    fn setattr(&self, request: &Request<'_>, changes: &SetAttr) -> Result<AttrReply, Errno> {
        let mut state = self.state.lock();
        if let Some(size) = changes.size {
            let (attr, data) = state.file(request.node.0)?;
            data.resize(size as usize, 0);
            attr.size = size;
        }
        let attr = &mut state.node(request.node.0)?.attr;
        let at = |time| match time {
            SetTime::Now => SystemTime::now().into(),
            SetTime::At(time) => time,
        };
        attr.mode = changes.mode.unwrap_or(attr.mode);
        attr.uid = changes.uid.unwrap_or(attr.uid);
        attr.gid = changes.gid.unwrap_or(attr.gid);
        attr.atime = changes.atime.map_or(attr.atime, at);
        attr.mtime = changes.mtime.map_or(attr.mtime, at);
        Ok(AttrReply { attr: *attr, lifetime: self.lifetime })
    }

    fn readlink(&self, request: &Request<'_>, reply: &mut ReplyBuffer<'_>) -> Result<(), Errno> {
        match &self.state.lock().node(request.node.0)?.content {
            Content::Link(target) => reply.put(target),
            _ => return Err(Errno::EINVAL),
        };
        Ok(())
    }

    fn symlink(&self, request: &Request<'_>, name: &[u8], target: &[u8]) -> Result<Entry, Errno> {
        self.make(request, name, libc::S_IFLNK | 0o777, Content::Link(target.to_vec()))
    }

    fn mknod(&self, request: &Request<'_>, args: &Mknod<'_>) -> Result<Entry, Errno> {
        let is_file = args.mode & libc::S_IFMT == libc::S_IFREG;
        let content = if is_file { Content::File(Vec::new()) } else { Content::Special };
        self.make(request, args.name, args.mode & !args.umask, content)
    }

    fn mkdir(&self, request: &Request<'_>, args: &Mkdir<'_>) -> Result<Entry, Errno> {
        let mode = libc::S_IFDIR | args.mode & !args.umask & 0o7777;
        self.make(request, args.name, mode, Content::Directory(BTreeMap::new()))
    }

    fn unlink(&self, request: &Request<'_>, name: &[u8]) -> Result<(), Errno> {
        self.state.lock().unlink(request.node.0, name)
    }

    fn rmdir(&self, request: &Request<'_>, name: &[u8]) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let ino = state.child(request.node.0, name)?;
        if !state.directory(ino)?.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        state.unlink(request.node.0, name)?;
        state.node(request.node.0)?.attr.nlink -= 1;
        Ok(())
    }

    fn rename(&self, request: &Request<'_>, args: &Rename<'_>) -> Result<(), Errno> {
        self.state.lock().rename(request.node.0, args)
    }

    fn link(&self, request: &Request<'_>, args: &Link<'_>) -> Result<Entry, Errno> {
        let mut state = self.state.lock();
        state.directory(request.node.0)?.insert(args.new_name.to_vec(), args.node.0);
        let attr = &mut state.node(args.node.0)?.attr;
        attr.nlink += 1;
        Ok(self.entry(*attr))
    }

    fn open(&self, request: &Request<'_>, args: &Open) -> Result<Opened, Errno> {
        let mut state = self.state.lock();
        if args.flags & libc::O_TRUNC as u32 != 0 {
            let (attr, data) = state.file(request.node.0)?;
            data.clear();
            attr.size = 0;
        }
        Ok(Opened { fh: FileHandle(request.node.0), ..Opened::default() })
    }

    fn create(&self, request: &Request<'_>, args: &Create<'_>) -> Result<Created, Errno> {
        let mode = libc::S_IFREG | args.mode & !args.umask & 0o7777;
        let entry = self.make(request, args.name, mode, Content::File(Vec::new()))?;
        Ok(Created { entry, opened: Opened { fh: FileHandle(entry.node.0), ..Opened::default() } })
    }

    fn tmpfile(&self, request: &Request<'_>, args: &Create<'_>) -> Result<Created, Errno> {
        let mut state = self.state.lock();
        let mode = libc::S_IFREG | args.mode & 0o7777;
        let ino = state.insert(request.node.0, mode, Content::File(Vec::new()), request.uid, request.gid);
        state.node(ino)?.attr.nlink = 0;
        let entry = self.entry(state.node(ino)?.attr);
        Ok(Created { entry, opened: Opened { fh: FileHandle(ino), ..Opened::default() } })
    }

    fn read(&self, request: &Request<'_>, args: &Read, reply: &mut ReplyBuffer<'_>) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let (_, data) = state.file(request.node.0)?;
        reply.put(data.get(args.offset as usize..).unwrap_or_default());
        Ok(())
    }

    fn write(&self, request: &Request<'_>, args: &Write<'_>, _: &Deferral<'_>) -> Result<Written, Errno> {
        assert_eq!(args.data.as_ptr().align_offset(4096), 0, "write data starts on a page");
        let mut state = self.state.lock();
        let (attr, data) = state.file(request.node.0)?;
        let (start, end) = (args.offset as usize, args.offset as usize + args.data.len());
        data.resize(data.len().max(end), 0);
        data[start..end].copy_from_slice(args.data);
        attr.size = data.len() as u64;
        attr.blocks = attr.size.div_ceil(512);
        attr.mtime = SystemTime::now().into();
        Ok(Written::Bytes(args.data.len() as u32))
    }

    fn statfs(&self, _request: &Request<'_>) -> Result<Statfs, Errno> {
        let files = self.state.lock().nodes.len() as u64;
        let sizes = Statfs { block_size: 4096, fragment_size: 4096, name_len_max: 255, ..Statfs::default() };
        Ok(Statfs { blocks: 1000, blocks_free: 500, blocks_available: 400, files, ..sizes })
    }

    fn release(&self, request: &Request<'_>, args: &Release) -> Result<(), Errno> {
        if let Some(owner) = args.flock_unlock {
            self.state.lock().drop_locks(request.node.0, owner);
        }
        Ok(())
    }

    fn flush(&self, request: &Request<'_>, args: &Flush) -> Result<(), Errno> {
        self.state.lock().drop_locks(request.node.0, args.lock_owner);
        Ok(())
    }

    fn fsync(&self, _request: &Request<'_>, _args: &Fsync, _: &Deferral<'_>) -> Result<Ended, Errno> {
        Ok(Ended::Now)
    }

    fn setxattr(&self, request: &Request<'_>, args: &SetXattr<'_>) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let xattrs = &mut state.node(request.node.0)?.xattrs;
        if args.flags & libc::XATTR_CREATE as u32 != 0 && xattrs.contains_key(args.name) {
            return Err(Errno::EEXIST);
        }
        xattrs.insert(args.name.to_vec(), args.value.to_vec());
        Ok(())
    }

    fn getxattr(
        &self,
        request: &Request<'_>,
        name: &[u8],
        reply: &mut XattrBuffer<'_, '_>,
    ) -> Result<(), Errno> {
        reply.put(self.state.lock().node(request.node.0)?.xattrs.get(name).ok_or(Errno::ENODATA)?);
        Ok(())
    }

    fn listxattr(&self, request: &Request<'_>, reply: &mut XattrBuffer<'_, '_>) -> Result<(), Errno> {
        self.state.lock().node(request.node.0)?.xattrs.keys().for_each(|name| reply.put_name(name));
        Ok(())
    }

    fn removexattr(&self, request: &Request<'_>, name: &[u8]) -> Result<(), Errno> {
        let removed = self.state.lock().node(request.node.0)?.xattrs.remove(name);
        removed.map(drop).ok_or(Errno::ENODATA)
    }

    fn opendir(&self, _request: &Request<'_>, _args: &Open) -> Result<Opened, Errno> {
        Ok(Opened::default())
    }

    fn readdir(
        &self,
        request: &Request<'_>,
        args: &ReadDir,
        reply: &mut DirBuffer<'_, '_>,
    ) -> Result<(), Errno> {
        let mut state = self.state.lock();
        for (next_offset, ino, name) in state.names(request.node.0, args.offset)? {
            let kind = FileKind::from_mode(state.node(ino)?.attr.mode).unwrap();
            if !reply.push(&DirEntry { ino, next_offset, kind, name: &name }) {
                break;
            }
        }
        Ok(())
    }

    fn readdirplus(
        &self,
        request: &Request<'_>,
        args: &ReadDir,
        reply: &mut DirPlusBuffer<'_, '_>,
    ) -> Result<(), Errno> {
        let mut state = self.state.lock();
        for (next_offset, ino, name) in state.names(request.node.0, args.offset)? {
            let attr = state.node(ino)?.attr;
            let kind = FileKind::from_mode(attr.mode).unwrap();
            let entry = (!name.starts_with(b".")).then(|| self.entry(attr));
            if !reply.push(entry.as_ref(), &DirEntry { ino, next_offset, kind, name: &name }) {
                break;
            }
        }
        Ok(())
    }

    fn getlk(&self, request: &Request<'_>, lock: &LockRequest) -> Result<FileLock, Errno> {
        self.state.lock().test_lock(request.node.0, lock)
    }

    fn setlk(&self, request: &Request<'_>, lock: &LockRequest) -> Result<(), Errno> {
        self.state.lock().set_lock(request.node.0, lock)
    }

    fn setlkw(
        &self,
        request: &Request<'_>,
        lock: &LockRequest,
        deferral: &Deferral<'_>,
    ) -> Result<Ended, Errno> {
        self.state.lock().wait_lock(request.node.0, lock, deferral)
    }
}
