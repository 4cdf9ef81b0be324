//! What a mount is asked to be. One structure; every field has a default that fits Ashlar.

use crate::kernel_mask::KernelMask;
use crate::protocol::Features;
use std::num::NonZeroUsize;
use std::time::Duration;

/// Who calls mount(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MountVia {
    /// This process where it is root, `fusermount3` otherwise.
    #[default]
    Auto,
    /// This process (needs `CAP_SYS_ADMIN`).
    Kernel,
    /// The set-user-id program `fusermount3` of the package fuse3.
    Fusermount,
}

/// Which transport carries the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TransportChoice {
    /// io_uring where the kernel offers it (the administrator enabled it), /dev/fuse otherwise.
    #[default]
    Auto,
    /// /dev/fuse.
    Device,
}

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The source shown by mount(8).
    pub source: String,
    /// The type is shown as `fuse.<subtype>`.
    pub subtype: String,
    /// Other users may use the mount; needs root, or `user_allow_other` in /etc/fuse.conf.
    pub allow_other: bool,
    /// The kernel checks permission bits. Costs a GETATTR per access where attributes have no lifetime.
    pub default_permissions: bool,
    /// Nothing can be changed through this mount.
    pub read_only: bool,
    /// Let set-user-id and set-group-id programs take effect. Only root's own mounts can; a mount through fusermount3 never does.
    pub allow_set_id: bool,
    /// Let device nodes be opened as devices. Only root's own mounts can; a mount through fusermount3 never does.
    pub allow_devices: bool,
    /// Mount over a directory that is not empty.
    pub allow_nonempty: bool,
    /// Largest READ in bytes; `None` leaves it to the kernel (the size of the largest write).
    pub max_read: Option<u32>,
    /// Who calls mount(2).
    pub via: MountVia,
    /// Features to ask for. Those the kernel lacks are left out; see `Negotiated::features`.
    pub features: Features,
    /// What of the kernel to do without, to test what an older one does.
    pub mask: KernelMask,
    /// Largest WRITE in bytes, rounded down to whole pages. More than 1 MiB needs a larger
    /// /proc/sys/fs/fuse/max_pages_limit.
    pub max_write: u32,
    /// Read-ahead of buffered reads in bytes. The kernel starts with 128 KiB; a larger value is set for this mount alone,
    /// as root, through /sys/class/bdi.
    pub max_readahead: u32,
    /// Requests nobody waits for (read-ahead, direct I/O, release) in flight at a time.
    pub max_background: u16,
    /// From how many of them on the kernel considers the mount congested.
    pub congestion_threshold: u16,
    /// Granularity of timestamps in nanoseconds.
    pub time_granularity_ns: u32,
    /// Levels of stacking above a passthrough file; used only with `PASSTHROUGH`.
    pub stack_depth_max: u32,
    /// The kernel aborts the mount when a request takes longer (6.16 and later, whole seconds); `None` for never.
    pub request_timeout: Option<Duration>,
    /// Which transport.
    pub transport: TransportChoice,
    /// Threads that read /dev/fuse; `None` for one per processor, which measured best
    /// where handlers never wait.
    pub threads: Option<NonZeroUsize>,
    /// Whether each such thread gets a device of its own (`FUSE_DEV_IOC_CLONE`); `None` for: if there are more than two.
    pub clone_device: Option<bool>,
    /// Requests in the hands of one io_uring queue at a time.
    pub ring_depth: u16,
    /// Threads that share one io_uring queue (and its depth). One is fastest where handlers never wait. Where they do - for a
    /// server on the network - a waiting handler holds up every request of its thread: then take as many as requests shall be
    /// in progress per processor.
    pub threads_per_ring: NonZeroUsize,
    /// With io_uring, how long FORGETs may collect in the kernel before they are read (in one request).
    pub forget_delay: Duration,
    /// Blocking lock requests that may wait at a time; a further one gets ENOLCK.
    pub deferred_max: usize,
}

impl MountOptions {
    /// The features Ashlar asks for by default. Not in it, because they change semantics or cost: `POSIX_ACL` (switches
    /// `default_permissions` on), `PASSTHROUGH`, `WRITEBACK_CACHE`, `NO_OPEN_SUPPORT`, `ALLOW_IDMAP`, `SECURITY_CTX`,
    /// `AUTO_INVAL_DATA` (whoever asks for attributes drops the pages of a file that is written, also one whose write is on its way: it is filled
    /// with what was there before, and a store brings that back; recalls say when content has changed), `EXPLICIT_INVAL_DATA` (keeps pages
    /// when the length changes), `ATOMIC_O_TRUNC` (saves a request, but the kernel looks
    /// only after it whether the file is being executed or a security module forbids to empty it: a refused open has emptied it).
    pub const FEATURES_DEFAULT: Features = Features::ASYNC_READ
        .union(Features::POSIX_LOCKS)
        .union(Features::FLOCK_LOCKS)
        .union(Features::EXPORT_SUPPORT)
        .union(Features::BIG_WRITES)
        .union(Features::DONT_MASK)
        .union(Features::HAS_IOCTL_DIR)
        .union(Features::DO_READDIRPLUS)
        .union(Features::READDIRPLUS_AUTO)
        .union(Features::ASYNC_DIO)
        .union(Features::PARALLEL_DIROPS)
        .union(Features::ABORT_ERROR)
        .union(Features::MAX_PAGES)
        .union(Features::CACHE_SYMLINKS)
        // Where the second form is not offered (before Linux 5.11): without either, a write into a set-id file makes the kernel send a
        // chmod in the name of the writer, who need not be the owner.
        .union(Features::HANDLE_KILLPRIV)
        .union(Features::HANDLE_KILLPRIV_V2)
        .union(Features::SETXATTR_EXT)
        .union(Features::CREATE_SUPP_GROUP)
        .union(Features::HAS_EXPIRE_ONLY)
        .union(Features::DIRECT_IO_ALLOW_MMAP)
        .union(Features::HAS_RESEND);
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            source: "ashlar".into(),
            subtype: "ashlar".into(),
            allow_other: false,
            default_permissions: false,
            read_only: false,
            allow_set_id: false,
            allow_devices: false,
            allow_nonempty: false,
            max_read: None,
            via: MountVia::Auto,
            features: Self::FEATURES_DEFAULT,
            mask: KernelMask::NONE,
            max_write: 1 << 20,
            max_readahead: 1 << 20,
            max_background: 256,
            congestion_threshold: 192,
            time_granularity_ns: 1,
            stack_depth_max: 1,
            request_timeout: None,
            transport: TransportChoice::Auto,
            threads: None,
            clone_device: None,
            ring_depth: 8,
            threads_per_ring: NonZeroUsize::MIN,
            forget_delay: Duration::from_millis(20),
            deferred_max: 1024,
        }
    }
}
