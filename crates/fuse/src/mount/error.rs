//! Why a mount was refused, in sentences that name the thing and the remedy.

use crate::errno::Errno;
use crate::negotiation::NegotiationError;
use std::io;
use std::path::PathBuf;

/// Why a mount could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// There is no such directory.
    #[error("mount point {path} does not exist; create it with: mkdir -p {path}", path = .0.display())]
    Missing(PathBuf),
    /// It is something else.
    #[error("mount point {path} is not a directory; name a directory", path = .0.display())]
    NotADirectory(PathBuf),
    /// Files there would be hidden.
    #[error("mount point {path} is not empty; its content would be hidden: empty it, or name another directory", path = .0.display())]
    NotEmpty(PathBuf),
    /// A FUSE file system is mounted there.
    #[error("{path} already has a {fstype} mount (source {source_name}); unmount it first with: {remedy}", path = .path.display())]
    AlreadyMounted {
        /// Where.
        path: PathBuf,
        /// Its type.
        fstype: String,
        /// Its source.
        source_name: String,
        /// How to unmount it.
        remedy: String,
    },
    /// A FUSE mount whose server is gone.
    #[error("{path} has a mount whose server is gone (transport endpoint is not connected); remove it with: {remedy}", path = .path.display())]
    Dead {
        /// Where.
        path: PathBuf,
        /// How to unmount it.
        remedy: String,
    },
    /// A FUSE mount whose server does not answer.
    #[error("{path} has a mount whose server does not answer; remove it with: umount -l {path}", path = .path.display())]
    Unresponsive {
        /// Where.
        path: PathBuf,
    },
    /// The path cannot be used.
    #[error("cannot use {path} as a mount point: {error}", path = .path.display())]
    Inaccessible {
        /// Where.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The kernel has no FUSE, or it is not allowed here.
    #[error("cannot open /dev/fuse: {0}; load it with: modprobe fuse (in a container, pass the device in)")]
    Device(io::Error),
    /// mount(2) failed.
    #[error("cannot mount at {path}: {error}", path = .path.display())]
    Refused {
        /// Where.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A user needs the helper.
    #[error(
        "fusermount3 is not installed, and without root it is needed to mount; install the package fuse3, or mount as root"
    )]
    FusermountMissing,
    /// The helper failed.
    #[error("fusermount3 could not mount {path}: {message}", path = .path.display())]
    Fusermount {
        /// Where.
        path: PathBuf,
        /// What it said.
        message: String,
    },
    /// The mount table could not be read.
    #[error("cannot read /proc/self/mountinfo: {0}")]
    MountTable(io::Error),
    /// Somebody unmounted it at once.
    #[error("the mount at {path} disappeared while it was being set up", path = .0.display())]
    Vanished(PathBuf),
    /// The kernel did not speak first.
    #[error("the kernel sent no INIT within {0} s")]
    NoInit(u64),
    /// INIT failed.
    #[error(transparent)]
    Negotiation(#[from] NegotiationError),
    /// Threads, buffers, devices.
    #[error("cannot start the session: {0}")]
    Start(io::Error),
    /// `Filesystem::init` said no.
    #[error("the file system refused to start: {0}")]
    Filesystem(Errno),
}
