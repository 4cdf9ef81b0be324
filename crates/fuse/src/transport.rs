//! How requests reach the worker threads and replies reach the kernel: reading /dev/fuse, or FUSE over io_uring.
//!
//! Both bring a request to [`crate::service::Service`] in the same form. io_uring is used where the kernel offers it, which
//! it does only if the administrator set `/sys/module/fuse/parameters/enable_uring` (Linux 6.14 and later); Ashlar never
//! sets it. Measured against /dev/fuse: create +34..68 %, stat +20..30 %, open-read-close +45 %, direct reads +55 %.

pub(crate) mod cpu;
pub(crate) mod device;
pub(crate) mod hold;
pub(crate) mod mailbox;
pub(crate) mod region;
pub(crate) mod ring;
pub(crate) mod standby;

use crate::errno::Errno;
use crate::id::Unique;
use crate::protocol::wire;
use crate::reply::fixed::FixedReply;
use device::Device;
use mailbox::Mailbox;
use std::fmt;
use std::sync::Weak;

/// The transport of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Threads that read /dev/fuse.
    Device {
        /// How many.
        threads: usize,
        /// Whether each has a device of its own.
        is_cloned: bool,
    },
    /// FUSE over io_uring, one queue per processor.
    Ring {
        /// Queues.
        queues: usize,
        /// Requests in the hands of one queue at a time.
        depth: usize,
    },
}

impl Transport {
    /// Whether all requests come by one device, so that another process can go on with it.
    pub(crate) fn is_one_device(self) -> bool {
        matches!(self, Self::Device { is_cloned: false, .. })
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device { threads, .. } => write!(f, "/dev/fuse, {threads} threads"),
            Self::Ring { queues, depth } => write!(f, "io_uring, {queues} queues of {depth}"),
        }
    }
}

/// Where the administrator's switch for FUSE over io_uring is.
const RING_SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// What an administrator could gain by another transport, in a sentence; `None` if io_uring is in use.
pub(crate) fn hint(in_use: Transport) -> Option<String> {
    if matches!(in_use, Transport::Ring { .. }) {
        return None;
    }
    let gain = "FUSE over io_uring would make creates 30-60 % and direct reads 50 % faster";
    Some(match std::fs::read_to_string(RING_SWITCH) {
        Ok(switch) if switch.trim() == "Y" => {
            format!("{gain}; it is enabled in the kernel but this mount could not use it (see its log)")
        }
        Ok(_) => format!("{gain}; to enable it for new mounts, as root: echo 1 > {RING_SWITCH}"),
        Err(_) => format!("{gain}; it needs Linux 6.14 or later with CONFIG_FUSE_IO_URING"),
    })
}

/// What a deferred reply says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LateReply {
    /// It is done; there is no more to say.
    Done,
    /// So many bytes were written.
    Written(u32),
}

impl LateReply {
    /// Puts the body of a reply together and tells its result.
    pub(crate) fn put(late: Result<LateReply, Errno>, body: &mut FixedReply) -> Result<(), Errno> {
        body.clear();
        if let LateReply::Written(size) = late? {
            body.put(&wire::WriteOut { size, padding: 0 });
        }
        Ok(())
    }
}

/// The way of a deferred reply.
pub(crate) enum Route {
    /// Write it to the device the request came from.
    Device(Weak<Device>),
    /// Hand it to the thread that owns the ring entry.
    Ring {
        /// That thread's mailbox.
        mailbox: Weak<Mailbox>,
        /// The entry that holds the request.
        entry: u32,
    },
}

impl Route {
    /// Sends a reply. A session that is gone has answered the caller already.
    pub(crate) fn send(self, unique: Unique, result: Result<LateReply, Errno>) {
        match self {
            Self::Device(device) => {
                let Some(device) = device.upgrade() else { return };
                let mut reply = FixedReply::new();
                let result = LateReply::put(result, &mut reply);
                if let Err(errno) = device.write(reply.message(unique.0, result)) {
                    device::report_reply_failure(errno, unique.0);
                }
            }
            Self::Ring { mailbox, entry } => {
                if let Some(mailbox) = mailbox.upgrade() {
                    mailbox.post(mailbox::Parcel { entry, unique, result });
                }
            }
        }
    }
}
