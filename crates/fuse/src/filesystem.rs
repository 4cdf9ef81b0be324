//! The trait a file system implements: one method per kind of request, typed and borrowed.
//!
//! Methods run on the transport's worker threads, several at a time, and reply by returning. Every default answers
//! ENOSYS, which the kernel takes for some operations as "never ask again" (OPEN, FLUSH, ACCESS, GETXATTR and others), for
//! the rest as the error it is. A panic in a method is one EIO.

use crate::deferral::{Deferral, Ended, Written};
use crate::errno::Errno;
use crate::id::{FileHandle, Unique};
use crate::negotiation::Negotiated;
use crate::notify::Notifier;
use crate::protocol::{
    CopyFileRange, Create, Fallocate, FileLock, Flush, Forgets, Fsync, Ioctl, Link, LockRequest, Lseek,
    Mkdir, Mknod, Opcode, Open, Poll, Read, ReadDir, Release, Rename, RetrieveReply, SetAttr, SetXattr,
    StatxQuery, Write,
};
use crate::reply::{
    AttrReply, Created, DirBuffer, DirPlusBuffer, Entry, Opened, ReplyBuffer, Statfs, StatxReply, XattrBuffer,
};
use crate::request::Request;

macro_rules! filesystem {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $kind:ty),*) -> $reply:ty;)*) => {
        /// A file system behind a mount. See the module for the rules.
        #[allow(unused_variables, reason = "the defaults use none of their arguments")]
        pub trait Filesystem: Send + Sync + 'static {
            /// Called once, after the negotiation and before the first request. `notifier` may be kept.
            ///
            /// # Errors
            /// An errno ends the mount before it is usable.
            fn init(&self, granted: &Negotiated, notifier: &Notifier) -> Result<(), Errno> {
                Ok(())
            }

            /// A request of this kind has come; it must not wait.
            fn note_request(&self, opcode: Opcode) {}

            /// Called once, after the last request.
            fn destroy(&self) {}

            /// Called a few times a second while the mount serves, by a thread that serves nothing; it must not wait.
            fn look(&self) {}

            /// Whether nothing is left to be done of requests that were answered.
            fn is_at_rest(&self) -> bool {
                true
            }

            /// The kernel gives lookups back; there is no reply. A node may be dropped when it has none left.
            fn forget(&self, forgets: Forgets<'_>) {}

            /// The caller of `unique` got a signal. A deferred request should be answered EINTR soon; one that is unknown
            /// or not worth stopping is ignored.
            fn interrupt(&self, unique: Unique) {}

            /// The answer to `Notifier::retrieve`.
            fn retrieve_reply(&self, request: &Request<'_>, reply: &RetrieveReply<'_>) {}

            /// Set a lock, waiting for it: return `Now`, an error, or take a replier from `deferral` and return
            /// `Deferred`. It must not block.
            ///
            /// # Errors
            /// EDEADLK, ENOLCK and the errnos of fcntl(2).
            fn setlkw(
                &self,
                request: &Request<'_>,
                lock: &LockRequest,
                deferral: &Deferral<'_>,
            ) -> Result<Ended, Errno> {
                Err(Errno::ENOSYS)
            }

            /// Write: return the number of bytes taken, or take a replier from `deferral` when they are, and return `Deferred`.
            ///
            /// # Errors
            /// Those of write(2).
            fn write(
                &self,
                request: &Request<'_>,
                args: &Write<'_>,
                deferral: &Deferral<'_>,
            ) -> Result<Written, Errno> {
                Err(Errno::ENOSYS)
            }

            /// Make a file durable: return `Now` when it is, or take a replier from `deferral` and return `Deferred`.
            ///
            /// # Errors
            /// Those of fsync(2).
            fn fsync(
                &self,
                request: &Request<'_>,
                args: &Fsync,
                deferral: &Deferral<'_>,
            ) -> Result<Ended, Errno> {
                Err(Errno::ENOSYS)
            }

            /// Make a directory durable; answered as `fsync`.
            ///
            /// # Errors
            /// Those of fsync(2).
            fn fsyncdir(
                &self,
                request: &Request<'_>,
                args: &Fsync,
                deferral: &Deferral<'_>,
            ) -> Result<Ended, Errno> {
                Err(Errno::ENOSYS)
            }

            /// Make the file system durable; answered as `fsync`.
            ///
            /// # Errors
            /// Those of syncfs(2).
            fn syncfs(&self, request: &Request<'_>, deferral: &Deferral<'_>) -> Result<Ended, Errno> {
                Err(Errno::ENOSYS)
            }

            /// Allocate, punch or zero a range; answered as `fsync`.
            ///
            /// # Errors
            /// Those of fallocate(2).
            fn fallocate(
                &self,
                request: &Request<'_>,
                args: &Fallocate,
                deferral: &Deferral<'_>,
            ) -> Result<Ended, Errno> {
                Err(Errno::ENOSYS)
            }

            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// Those of the POSIX function of that name.
                fn $name(&self, request: &Request<'_>, $($arg: $kind),*) -> Result<$reply, Errno> {
                    Err(Errno::ENOSYS)
                }
            )*
        }
    };
}

filesystem! {
    /// Find `name` in the directory `request.node`. ENOENT, or a negative entry that the kernel may cache.
    fn lookup(name: &[u8]) -> Entry;
    /// Read attributes.
    fn getattr(fh: Option<FileHandle>) -> AttrReply;
    /// Change attributes; the reply has all of them.
    fn setattr(changes: &SetAttr) -> AttrReply;
    /// Read a symbolic link into `reply`, without a NUL.
    fn readlink(reply: &mut ReplyBuffer<'_>) -> ();
    /// Make the symbolic link `name` to `target`.
    fn symlink(name: &[u8], target: &[u8]) -> Entry;
    /// Make a file, fifo, socket or device node.
    fn mknod(args: &Mknod<'_>) -> Entry;
    /// Make a directory.
    fn mkdir(args: &Mkdir<'_>) -> Entry;
    /// Remove a name of a non-directory.
    fn unlink(name: &[u8]) -> ();
    /// Remove an empty directory.
    fn rmdir(name: &[u8]) -> ();
    /// Rename, exchange or white out.
    fn rename(args: &Rename<'_>) -> ();
    /// Add a name to a node.
    fn link(args: &Link<'_>) -> Entry;
    /// Open a file.
    fn open(args: &Open) -> Opened;
    /// Read into `reply`, which holds at most what was asked for; less means end of file.
    fn read(args: &Read, reply: &mut ReplyBuffer<'_>) -> ();
    /// Totals of the file system.
    fn statfs() -> Statfs;
    /// Last close of an open file; the kernel does not wait for the answer.
    fn release(args: &Release) -> ();
    /// Set an extended attribute.
    fn setxattr(args: &SetXattr<'_>) -> ();
    /// Read an extended attribute; ENODATA if there is none.
    fn getxattr(name: &[u8], reply: &mut XattrBuffer<'_, '_>) -> ();
    /// List extended attributes.
    fn listxattr(reply: &mut XattrBuffer<'_, '_>) -> ();
    /// Remove an extended attribute; ENODATA if there is none.
    fn removexattr(name: &[u8]) -> ();
    /// One close(2): report write errors, drop this owner's POSIX locks.
    fn flush(args: &Flush) -> ();
    /// Open a directory.
    fn opendir(args: &Open) -> Opened;
    /// Names from `args.offset` on, until `reply` is full or the directory ends.
    fn readdir(args: &ReadDir, reply: &mut DirBuffer<'_, '_>) -> ();
    /// Names with their nodes; every node taken by `reply` counts as a lookup.
    fn readdirplus(args: &ReadDir, reply: &mut DirPlusBuffer<'_, '_>) -> ();
    /// Last close of an open directory; the kernel does not wait for the answer.
    fn releasedir(args: &Release) -> ();
    /// The first lock in the way of `lock`, or one of kind `Unlock`.
    fn getlk(lock: &LockRequest) -> FileLock;
    /// Set or clear a lock; EAGAIN if it is taken.
    fn setlk(lock: &LockRequest) -> ();
    /// access(2) with `mask` of `R_OK`, `W_OK`, `X_OK`.
    fn access(mask: u32) -> ();
    /// Create and open a file; with `O_EXCL` EEXIST if it is there.
    fn create(args: &Create<'_>) -> Created;
    /// Create and open a file without a name.
    fn tmpfile(args: &Create<'_>) -> Created;
    /// Block number of a block of the file.
    fn bmap(block: u64, block_size: u32) -> u64;
    /// ioctl(2); output goes into `reply`, the reply value is the call's result.
    fn ioctl(args: &Ioctl<'_>, reply: &mut ReplyBuffer<'_>) -> i32;
    /// Events that hold now.
    fn poll(args: &Poll) -> u32;
    /// The next data or hole.
    fn lseek(args: &Lseek) -> u64;
    /// Copy inside the file system; the reply is the number of bytes.
    fn copy_file_range(args: &CopyFileRange) -> u64;
    /// Attributes beyond getattr's.
    fn statx(args: &StatxQuery) -> StatxReply;
}
