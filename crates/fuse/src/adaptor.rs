//! The adaptor: requests of the kernel become calls of the client library, and back. No semantics live here.
//!
//! Node ids are inode ids (but for the root of a mount that shows a part of the file system), so nothing is kept per inode and FORGET needs no answer. Lifetimes given to the kernel are those
//! the client's leases allow; a recalled lease reaches the kernel through [`cache::NotifierCache`].

mod cache;
mod convert;
mod directory;
mod file;
mod handles;
mod identity;
mod late;
mod lock;
mod name;
mod node;
mod removed;
mod resent;
mod xattr;

pub use cache::{FindRoot, NotifierCache};
pub use handles::HandleLog;
pub use identity::ProcCredentials;
pub use xattr::MOUNT_ATTRIBUTE;

use crate::errno::Errno;
use crate::id::{FileHandle, Unique};
use crate::negotiation::Negotiated;
use crate::notify::Notifier;
use crate::protocol::{
    CopyFileRange, Create, Fallocate, FileLock, Flush, Fsync, Link, LockRequest, Lseek, Mkdir, Mknod, Opcode,
    Open, Read, ReadDir, Release, Rename, SetAttr, SetXattr, StatxQuery, Write,
};
use crate::reply::{
    AttrReply, Created, DirBuffer, DirPlusBuffer, Entry, Opened, ReplyBuffer, Statfs, StatxReply, XattrBuffer,
};
use crate::request::Request;
use crate::{Deferral, Ended, Features, Filesystem, RequestCounts, Transport, Written};
use ashlar_client::Client;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether the mount shares its file system with other sessions, and how much the kernel may keep.
#[derive(Clone, Copy, Debug, Default)]
pub struct AdaptorOptions {
    /// No other session can exist: names may be kept even where the kernel cannot drop them in bulk.
    pub is_sole_session: bool,
}

/// What a mount tells of itself to a user, as the value of [`MOUNT_ATTRIBUTE`].
pub type Describe = Arc<dyn Fn(&Client, u32) -> Result<String, Errno> + Send + Sync>;

/// A mounted client.
pub struct Adaptor {
    client: Arc<Client>,
    options: AdaptorOptions,
    handles: handles::HandleTable,
    cache: Arc<NotifierCache>,
    describe: Option<Describe>,
    requests: Arc<RequestCounts>,
    removed: Arc<removed::RemovedInodes>,
    late: late::Late,
    /// Whether a file opened for direct I/O may be mapped all the same (Linux 6.6).
    maps_direct: AtomicBool,
    /// Whether a worker that waits for a disk leaves others that serve all processors.
    has_other_workers: AtomicBool,
    /// Held by the worker that is syncing a file itself.
    worker_sync: Mutex<()>,
}

impl Adaptor {
    /// An adaptor for `client`, to be mounted once.
    pub fn new(client: Arc<Client>, options: AdaptorOptions) -> Adaptor {
        let cache = Arc::new(NotifierCache::default());
        Adaptor {
            late: late::Late::new(client.clone(), cache.clone()),
            client,
            options,
            handles: Default::default(),
            cache,
            describe: None,
            requests: Arc::default(),
            removed: Default::default(),
            maps_direct: AtomicBool::new(false),
            has_other_workers: AtomicBool::new(false),
            worker_sync: Mutex::new(()),
        }
    }

    /// The same, which shows another directory as its root than the file system has.
    #[must_use]
    pub fn rooted_at(self, root: FindRoot) -> Adaptor {
        self.cache.set_root(root);
        self
    }

    /// The same, which tells of itself what `describe` says.
    #[must_use]
    pub fn described_by(self, describe: Describe) -> Adaptor {
        Adaptor { describe: Some(describe), ..self }
    }

    /// The same, which counts requests of the kernel in `requests`.
    #[must_use]
    pub fn counted_by(self, requests: Arc<RequestCounts>) -> Adaptor {
        Adaptor { requests, ..self }
    }

    /// The same, whose open files are told to `log`, and which has `adopted` open already, by the numbers under which the kernel knows them.
    #[must_use]
    pub fn with_log(
        mut self,
        log: Arc<dyn HandleLog>,
        adopted: Vec<(u64, Arc<ashlar_client::Handle>)>,
    ) -> Adaptor {
        self.handles = handles::HandleTable::logged(log);
        adopted.into_iter().for_each(|(number, handle)| self.handles.adopt(number, handle));
        self
    }
}

impl Filesystem for Adaptor {
    fn init(&self, granted: &Negotiated, notifier: &Notifier) -> Result<(), Errno> {
        self.late.start()?;
        self.maps_direct.store(granted.features.contains(Features::DIRECT_IO_ALLOW_MMAP), Relaxed);
        // The option came with Linux 6.6, and nothing else tells Linux 5.14 from older ones.
        if self.maps_direct.load(Relaxed) {
            self.client.set_frees_filled_pages();
        }
        let has_others = matches!(granted.transport, Transport::Device { threads: 2.., .. });
        self.has_other_workers.store(has_others, Relaxed);
        self.cache.attach(notifier.clone());
        self.client.set_kernel_cache(self.cache.clone());
        let removed = self.removed.clone();
        self.client.set_note_gone(Box::new(move |remove| removed.during_all(remove)));
        Ok(())
    }

    fn note_request(&self, opcode: Opcode) {
        self.requests.note(opcode);
    }

    fn look(&self) {
        self.late.look();
    }

    fn is_at_rest(&self) -> bool {
        self.late.is_at_rest()
    }

    fn interrupt(&self, unique: Unique) {
        self.client.lock_cancel(unique.0);
    }

    fn lookup(&self, request: &Request<'_>, name: &[u8]) -> Result<Entry, Errno> {
        self.on_lookup(request, name)
    }

    fn getattr(&self, request: &Request<'_>, _fh: Option<FileHandle>) -> Result<AttrReply, Errno> {
        self.on_getattr(request)
    }

    fn setattr(&self, request: &Request<'_>, changes: &SetAttr) -> Result<AttrReply, Errno> {
        self.on_setattr(request, changes)
    }

    fn readlink(&self, request: &Request<'_>, reply: &mut ReplyBuffer<'_>) -> Result<(), Errno> {
        self.on_readlink(request, reply)
    }

    fn symlink(&self, request: &Request<'_>, name: &[u8], target: &[u8]) -> Result<Entry, Errno> {
        self.on_symlink(request, name, target)
    }

    fn mknod(&self, request: &Request<'_>, args: &Mknod<'_>) -> Result<Entry, Errno> {
        self.on_mknod(request, args)
    }

    fn mkdir(&self, request: &Request<'_>, args: &Mkdir<'_>) -> Result<Entry, Errno> {
        self.on_mkdir(request, args)
    }

    fn unlink(&self, request: &Request<'_>, name: &[u8]) -> Result<(), Errno> {
        self.on_unlink(request, name)
    }

    fn rmdir(&self, request: &Request<'_>, name: &[u8]) -> Result<(), Errno> {
        self.on_rmdir(request, name)
    }

    fn rename(&self, request: &Request<'_>, args: &Rename<'_>) -> Result<(), Errno> {
        self.on_rename(request, args)
    }

    fn link(&self, request: &Request<'_>, args: &Link<'_>) -> Result<Entry, Errno> {
        self.on_link(request, args)
    }

    fn open(&self, request: &Request<'_>, args: &Open) -> Result<Opened, Errno> {
        self.on_open(request, args)
    }

    fn read(&self, request: &Request<'_>, args: &Read, reply: &mut ReplyBuffer<'_>) -> Result<(), Errno> {
        self.on_read(request, args, reply)
    }

    fn write(
        &self,
        request: &Request<'_>,
        args: &Write<'_>,
        deferral: &Deferral<'_>,
    ) -> Result<Written, Errno> {
        self.on_write(request, args, deferral)
    }

    fn statfs(&self, _request: &Request<'_>) -> Result<Statfs, Errno> {
        self.on_statfs()
    }

    fn release(&self, _request: &Request<'_>, args: &Release) -> Result<(), Errno> {
        self.on_release(args)
    }

    fn fsync(&self, _request: &Request<'_>, args: &Fsync, deferral: &Deferral<'_>) -> Result<Ended, Errno> {
        self.on_fsync(args, deferral)
    }

    fn setxattr(&self, request: &Request<'_>, args: &SetXattr<'_>) -> Result<(), Errno> {
        self.on_setxattr(request, args)
    }

    fn getxattr(
        &self,
        request: &Request<'_>,
        name: &[u8],
        reply: &mut XattrBuffer<'_, '_>,
    ) -> Result<(), Errno> {
        self.on_getxattr(request, name, reply)
    }

    fn listxattr(&self, request: &Request<'_>, reply: &mut XattrBuffer<'_, '_>) -> Result<(), Errno> {
        self.on_listxattr(request, reply)
    }

    fn removexattr(&self, request: &Request<'_>, name: &[u8]) -> Result<(), Errno> {
        self.on_removexattr(request, name)
    }

    fn flush(&self, _request: &Request<'_>, args: &Flush) -> Result<(), Errno> {
        self.on_flush(args)
    }

    fn opendir(&self, request: &Request<'_>, args: &Open) -> Result<Opened, Errno> {
        self.on_opendir(request, args)
    }

    fn readdir(
        &self,
        request: &Request<'_>,
        args: &ReadDir,
        reply: &mut DirBuffer<'_, '_>,
    ) -> Result<(), Errno> {
        self.on_readdir(request, args, reply)
    }

    fn readdirplus(
        &self,
        request: &Request<'_>,
        args: &ReadDir,
        reply: &mut DirPlusBuffer<'_, '_>,
    ) -> Result<(), Errno> {
        self.on_readdirplus(request, args, reply)
    }

    fn releasedir(&self, _request: &Request<'_>, args: &Release) -> Result<(), Errno> {
        self.on_releasedir(args)
    }

    fn fsyncdir(&self, request: &Request<'_>, _: &Fsync, deferral: &Deferral<'_>) -> Result<Ended, Errno> {
        self.sync(late::Sync::Names(self.inode(request.node)), None, deferral)
    }

    fn getlk(&self, request: &Request<'_>, lock: &LockRequest) -> Result<FileLock, Errno> {
        self.on_getlk(request, lock)
    }

    fn setlk(&self, request: &Request<'_>, lock: &LockRequest) -> Result<(), Errno> {
        self.on_setlk(request, lock)
    }

    fn setlkw(
        &self,
        request: &Request<'_>,
        lock: &LockRequest,
        deferral: &Deferral<'_>,
    ) -> Result<Ended, Errno> {
        self.on_setlkw(request, lock, deferral)
    }

    fn access(&self, request: &Request<'_>, mask: u32) -> Result<(), Errno> {
        Ok(self.client.access(&identity::who(request), self.inode(request.node), mask)?)
    }

    fn create(&self, request: &Request<'_>, args: &Create<'_>) -> Result<Created, Errno> {
        self.on_create(request, args)
    }

    fn tmpfile(&self, request: &Request<'_>, args: &Create<'_>) -> Result<Created, Errno> {
        self.on_tmpfile(request, args)
    }

    fn fallocate(
        &self,
        request: &Request<'_>,
        args: &Fallocate,
        deferral: &Deferral<'_>,
    ) -> Result<Ended, Errno> {
        self.on_fallocate(request, args, deferral)
    }

    fn lseek(&self, _request: &Request<'_>, args: &Lseek) -> Result<u64, Errno> {
        self.on_lseek(args)
    }

    fn copy_file_range(&self, request: &Request<'_>, args: &CopyFileRange) -> Result<u64, Errno> {
        self.on_copy_file_range(request, args)
    }

    fn syncfs(&self, _request: &Request<'_>, deferral: &Deferral<'_>) -> Result<Ended, Errno> {
        self.sync(late::Sync::All, None, deferral)
    }

    fn statx(&self, request: &Request<'_>, _args: &StatxQuery) -> Result<StatxReply, Errno> {
        self.on_statx(request)
    }
}
