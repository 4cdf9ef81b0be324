//! From bytes to [`Operation`]. Total: any input gives an operation or [`Malformed`], never a panic.

use super::fields::Fields;
use super::operation::*;
use super::wire::{self, fattr, flag};
use super::{Extensions, Malformed, Opcode};
use crate::id::{FileHandle, LockOwner, NodeId, Unique};
use crate::notify::retrieve_tag;
use crate::reply::Timestamp;
use crate::request::Request;
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// What the negotiation changed about the bytes of a request.
#[derive(Clone, Copy, Debug)]
pub struct Dialect {
    /// The minor version agreed on; operations that are newer are unknown.
    pub minor: u32,
    /// SETXATTR has its 16-byte argument (`SETXATTR_EXT` was granted).
    pub setxattr_ext: bool,
}

impl Dialect {
    pub(crate) fn opcode(self, raw: u32) -> Result<Opcode, Malformed> {
        let known = Opcode::from_raw(raw).filter(|opcode| opcode.is_known_to(self.minor));
        known.ok_or(Malformed::UnknownOpcode(raw))
    }

    pub(crate) fn argument_len(self, opcode: Opcode) -> usize {
        match opcode {
            Opcode::Setxattr if self.setxattr_ext => size_of::<wire::SetxattrIn>(),
            _ => opcode.argument_len(),
        }
    }
}

/// One request as it came from /dev/fuse: header and body.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    pub(crate) header: wire::InHeader,
    body: &'a [u8],
}

impl<'a> Message<'a> {
    /// Splits the header off `bytes`.
    ///
    /// # Errors
    /// `Truncated` if there is no whole header; nothing can be replied to then.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, body) = wire::InHeader::read_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        Ok(Self { header, body })
    }

    /// Splits the body into its parts.
    ///
    /// # Errors
    /// If the length is not what the header says, the opcode is unknown, or the fixed argument is not whole.
    pub fn parts(&self, dialect: Dialect) -> Result<Parts<'a>, Malformed> {
        let opcode = dialect.opcode(self.header.opcode)?;
        if self.header.len as usize != size_of::<wire::InHeader>() + self.body.len() {
            return Err(Malformed::Length);
        }
        let split = self.body.split_at_checked(dialect.argument_len(opcode)).ok_or(Malformed::Truncated)?;
        Ok(Parts { opcode, argument: split.0, rest: split.1 })
    }
}

/// A request in the form both transports share.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// The operation.
    pub opcode: Opcode,
    /// Its fixed argument, of the length [`Dialect`] gives.
    pub argument: &'a [u8],
    /// Names, data and extensions.
    pub rest: &'a [u8],
}

impl<'a> Parts<'a> {
    /// Parses the operation and who asks for it.
    ///
    /// # Errors
    /// If anything in it is not whole.
    pub fn operation(&self, message: &Message<'_>) -> Result<(Request<'a>, Operation<'a>), Malformed> {
        parse(&message.header, self)
    }
}

fn argument<T: FromBytes + KnownLayout + Immutable>(parts: &Parts<'_>) -> Result<T, Malformed> {
    T::read_from_prefix(parts.argument).map(|(value, _)| value).map_err(|_| Malformed::Truncated)
}

/// Parses `parts` of the request with this header.
pub(crate) fn parse<'a>(
    header: &wire::InHeader,
    parts: &Parts<'a>,
) -> Result<(Request<'a>, Operation<'a>), Malformed> {
    let extensions_len = usize::from(header.total_extlen) * 8;
    let split = parts.rest.len().checked_sub(extensions_len).ok_or(Malformed::Extension)?;
    let (rest, extensions) = parts.rest.split_at(split);
    let request = Request {
        unique: Unique(header.unique),
        node: NodeId(header.nodeid),
        uid: header.uid,
        gid: header.gid,
        pid: header.pid,
        extensions: if extensions.is_empty() {
            Extensions::default()
        } else {
            Extensions::parse(extensions)?
        },
    };
    let operation = match parts.opcode {
        Opcode::Lookup
        | Opcode::Symlink
        | Opcode::Mknod
        | Opcode::Mkdir
        | Opcode::Unlink
        | Opcode::Rmdir
        | Opcode::Rename
        | Opcode::Rename2
        | Opcode::Link
        | Opcode::Create
        | Opcode::Tmpfile => parse_name_operation(parts, Fields::new(rest))?,
        Opcode::Setxattr | Opcode::Getxattr | Opcode::Listxattr | Opcode::Removexattr => {
            parse_xattr_operation(parts, Fields::new(rest))?
        }
        Opcode::Forget | Opcode::BatchForget => Operation::Forget(parse_forgets(header, parts, rest)?),
        Opcode::Write => Operation::Write(parse_write(parts, rest)?),
        Opcode::Ioctl => Operation::Ioctl(parse_ioctl(parts, rest)?),
        Opcode::NotifyReply => {
            let arg: wire::NotifyRetrieveIn = argument(parts)?;
            let data = Fields::new(rest).bytes(arg.size as usize)?;
            Operation::NotifyReply(RetrieveReply {
                tag: retrieve_tag(header.unique),
                offset: arg.offset,
                data,
            })
        }
        Opcode::Setattr => Operation::Setattr(parse_setattr(argument(parts)?)),
        Opcode::Getlk => Operation::Getlk(parse_lock(argument(parts)?)?),
        Opcode::Setlk => Operation::Setlk(parse_lock(argument(parts)?)?),
        Opcode::Setlkw => Operation::Setlkw(parse_lock(argument(parts)?)?),
        Opcode::CopyFileRange => Operation::CopyFileRange(parse_copy(argument(parts)?, COPY_LEN_MAX_32)),
        Opcode::CopyFileRange64 => Operation::CopyFileRange64(parse_copy(argument(parts)?, u64::MAX)),
        _ => parse_fixed_operation(parts)?,
    };
    Ok((request, operation))
}

/// The reply of the older COPY_FILE_RANGE is 32 bits wide; the largest whole page below.
const COPY_LEN_MAX_32: u64 = 0xffff_f000;

fn parse_name_operation<'a>(parts: &Parts<'a>, mut fields: Fields<'a>) -> Result<Operation<'a>, Malformed> {
    let name = fields.name()?;
    Ok(match parts.opcode {
        Opcode::Lookup => Operation::Lookup { name },
        Opcode::Symlink => Operation::Symlink { name, target: fields.name()? },
        Opcode::Mknod => {
            let arg: wire::MknodIn = argument(parts)?;
            Operation::Mknod(Mknod { name, mode: arg.mode, rdev: arg.rdev, umask: arg.umask })
        }
        Opcode::Mkdir => {
            let arg: wire::MkdirIn = argument(parts)?;
            Operation::Mkdir(Mkdir { name, mode: arg.mode, umask: arg.umask })
        }
        Opcode::Unlink => Operation::Unlink { name },
        Opcode::Rmdir => Operation::Rmdir { name },
        Opcode::Rename => {
            let arg: wire::RenameIn = argument(parts)?;
            Operation::Rename(Rename {
                name,
                new_parent: NodeId(arg.newdir),
                new_name: fields.name()?,
                flags: 0,
            })
        }
        Opcode::Rename2 => {
            let arg: wire::Rename2In = argument(parts)?;
            let new_parent = NodeId(arg.newdir);
            Operation::Rename(Rename { name, new_parent, new_name: fields.name()?, flags: arg.flags })
        }
        Opcode::Link => {
            let arg: wire::LinkIn = argument(parts)?;
            Operation::Link(Link { node: NodeId(arg.oldnodeid), new_name: name })
        }
        Opcode::Create => Operation::Create(parse_create(argument(parts)?, name)),
        Opcode::Tmpfile => Operation::Tmpfile(parse_create(argument(parts)?, name)),
        _ => Operation::Unsupported,
    })
}

fn parse_create(arg: wire::CreateIn, name: &[u8]) -> Create<'_> {
    let kill_suid_gid = arg.open_flags & flag::OPEN_KILL_SUIDGID != 0;
    Create { name, mode: arg.mode, umask: arg.umask, flags: arg.flags, kill_suid_gid }
}

fn parse_xattr_operation<'a>(parts: &Parts<'a>, mut fields: Fields<'a>) -> Result<Operation<'a>, Malformed> {
    Ok(match parts.opcode {
        Opcode::Setxattr => {
            let arg: wire::SetxattrInCompat = argument(parts)?;
            let kill_sgid = wire::SetxattrIn::read_from_prefix(parts.argument)
                .is_ok_and(|(ext, _)| ext.setxattr_flags & flag::SETXATTR_ACL_KILL_SGID != 0);
            let name = fields.name()?;
            Operation::Setxattr(SetXattr {
                name,
                value: fields.bytes(arg.size as usize)?,
                flags: arg.flags,
                kill_sgid,
            })
        }
        Opcode::Getxattr => {
            let arg: wire::GetxattrIn = argument(parts)?;
            Operation::Getxattr { name: fields.name()?, size: arg.size }
        }
        Opcode::Listxattr => Operation::Listxattr { size: argument::<wire::GetxattrIn>(parts)?.size },
        _ => Operation::Removexattr { name: fields.name()? },
    })
}

fn parse_forgets<'a>(
    header: &wire::InHeader,
    parts: &Parts<'a>,
    rest: &'a [u8],
) -> Result<Forgets<'a>, Malformed> {
    if parts.opcode == Opcode::Forget {
        let arg: wire::ForgetIn = argument(parts)?;
        return Ok(Forgets { one: Some((NodeId(header.nodeid), arg.nlookup)), batch: &[] });
    }
    let arg: wire::BatchForgetIn = argument(parts)?;
    let len = (arg.count as usize).checked_mul(size_of::<wire::ForgetOne>()).ok_or(Malformed::Truncated)?;
    Ok(Forgets { one: None, batch: Fields::new(rest).bytes(len)? })
}

fn parse_write<'a>(parts: &Parts<'a>, rest: &'a [u8]) -> Result<Write<'a>, Malformed> {
    let arg: wire::WriteIn = argument(parts)?;
    Ok(Write {
        fh: FileHandle(arg.fh),
        offset: arg.offset,
        data: Fields::new(rest).bytes(arg.size as usize)?,
        lock_owner: (arg.write_flags & flag::WRITE_LOCKOWNER != 0).then_some(LockOwner(arg.lock_owner)),
        flags: arg.flags,
        from_cache: arg.write_flags & flag::WRITE_CACHE != 0,
        kill_suid_gid: arg.write_flags & flag::WRITE_KILL_SUIDGID != 0,
    })
}

fn parse_ioctl<'a>(parts: &Parts<'a>, rest: &'a [u8]) -> Result<Ioctl<'a>, Malformed> {
    let arg: wire::IoctlIn = argument(parts)?;
    Ok(Ioctl {
        fh: FileHandle(arg.fh),
        flags: arg.flags,
        cmd: arg.cmd,
        arg: arg.arg,
        input: Fields::new(rest).bytes(arg.in_size as usize)?,
        output_len: arg.out_size,
    })
}

fn parse_setattr(arg: wire::SetattrIn) -> SetAttr {
    let has = |bit: u32| arg.valid & bit != 0;
    let at = |secs: u64, nanos: u32| Timestamp { secs: secs as i64, nanos: nanos.min(999_999_999) };
    let time = |bit: u32, now: u32, secs: u64, nanos: u32| {
        has(bit).then(|| if has(now) { SetTime::Now } else { SetTime::At(at(secs, nanos)) })
    };
    SetAttr {
        fh: has(fattr::FH).then_some(FileHandle(arg.fh)),
        mode: has(fattr::MODE).then_some(arg.mode),
        uid: has(fattr::UID).then_some(arg.uid),
        gid: has(fattr::GID).then_some(arg.gid),
        size: has(fattr::SIZE).then_some(arg.size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, arg.atime, arg.atimensec),
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, arg.mtime, arg.mtimensec),
        ctime: has(fattr::CTIME).then(|| at(arg.ctime, arg.ctimensec)),
        lock_owner: has(fattr::LOCKOWNER).then_some(LockOwner(arg.lock_owner)),
        kill_suid_gid: has(fattr::KILL_SUIDGID),
    }
}

fn parse_lock(arg: wire::LkIn) -> Result<LockRequest, Malformed> {
    let kind = match arg.lk.kind as i32 {
        libc::F_RDLCK => LockKind::Read,
        libc::F_WRLCK => LockKind::Write,
        libc::F_UNLCK => LockKind::Unlock,
        _ => return Err(Malformed::Value),
    };
    Ok(LockRequest {
        fh: FileHandle(arg.fh),
        owner: LockOwner(arg.owner),
        lock: FileLock { start: arg.lk.start, end: arg.lk.end, kind, pid: arg.lk.pid },
        is_flock: arg.lk_flags & flag::LK_FLOCK != 0,
    })
}

fn parse_copy(arg: wire::CopyFileRangeIn, length_max: u64) -> CopyFileRange {
    CopyFileRange {
        fh_in: FileHandle(arg.fh_in),
        offset_in: arg.off_in,
        node_out: NodeId(arg.nodeid_out),
        fh_out: FileHandle(arg.fh_out),
        offset_out: arg.off_out,
        length: arg.len.min(length_max),
        flags: arg.flags,
    }
}

fn parse_read(arg: wire::ReadIn) -> Read {
    Read {
        fh: FileHandle(arg.fh),
        offset: arg.offset,
        size: arg.size,
        lock_owner: (arg.read_flags & flag::READ_LOCKOWNER != 0).then_some(LockOwner(arg.lock_owner)),
        flags: arg.flags,
    }
}

fn parse_release(arg: wire::ReleaseIn) -> Release {
    let has = |bit: u32| arg.release_flags & bit != 0;
    Release {
        fh: FileHandle(arg.fh),
        flags: arg.flags,
        flush: has(flag::RELEASE_FLUSH),
        flock_unlock: has(flag::RELEASE_FLOCK_UNLOCK).then_some(LockOwner(arg.lock_owner)),
    }
}

/// Operations whose fixed argument says everything.
fn parse_fixed_operation<'a>(parts: &Parts<'a>) -> Result<Operation<'a>, Malformed> {
    let open = |arg: wire::OpenIn| Open {
        flags: arg.flags,
        kill_suid_gid: arg.open_flags & flag::OPEN_KILL_SUIDGID != 0,
    };
    let fsync = |arg: wire::FsyncIn| Fsync {
        fh: FileHandle(arg.fh),
        datasync: arg.fsync_flags & flag::FSYNC_FDATASYNC != 0,
    };
    let readdir = |arg: wire::ReadIn| ReadDir { fh: FileHandle(arg.fh), offset: arg.offset, size: arg.size };
    let handle = |flags: u32, fh: u64| (flags & flag::GETATTR_FH != 0).then_some(FileHandle(fh));
    Ok(match parts.opcode {
        Opcode::Getattr => {
            let arg: wire::GetattrIn = argument(parts)?;
            Operation::Getattr { fh: handle(arg.getattr_flags, arg.fh) }
        }
        Opcode::Statx => {
            let arg: wire::StatxIn = argument(parts)?;
            Operation::Statx(StatxQuery {
                fh: handle(arg.getattr_flags, arg.fh),
                flags: arg.sx_flags,
                mask: arg.sx_mask,
            })
        }
        Opcode::Readlink => Operation::Readlink,
        Opcode::Open => Operation::Open(open(argument(parts)?)),
        Opcode::Opendir => Operation::Opendir(open(argument(parts)?)),
        Opcode::Read => Operation::Read(parse_read(argument(parts)?)),
        Opcode::Readdir => Operation::Readdir(readdir(argument(parts)?)),
        Opcode::Readdirplus => Operation::Readdirplus(readdir(argument(parts)?)),
        Opcode::Statfs => Operation::Statfs,
        Opcode::Release => Operation::Release(parse_release(argument(parts)?)),
        Opcode::Releasedir => Operation::Releasedir(parse_release(argument(parts)?)),
        Opcode::Fsync => Operation::Fsync(fsync(argument(parts)?)),
        Opcode::Fsyncdir => Operation::Fsyncdir(fsync(argument(parts)?)),
        Opcode::Flush => {
            let arg: wire::FlushIn = argument(parts)?;
            Operation::Flush(Flush { fh: FileHandle(arg.fh), lock_owner: LockOwner(arg.lock_owner) })
        }
        Opcode::Init => Operation::Init,
        Opcode::Access => Operation::Access { mask: argument::<wire::AccessIn>(parts)?.mask },
        Opcode::Interrupt => {
            Operation::Interrupt { unique: Unique(argument::<wire::InterruptIn>(parts)?.unique) }
        }
        Opcode::Bmap => {
            let arg: wire::BmapIn = argument(parts)?;
            Operation::Bmap { block: arg.block, block_size: arg.blocksize }
        }
        Opcode::Destroy => Operation::Destroy,
        Opcode::Poll => {
            let arg: wire::PollIn = argument(parts)?;
            let wakeup = (arg.flags & flag::POLL_SCHEDULE_NOTIFY != 0).then_some(arg.kh);
            Operation::Poll(Poll { fh: FileHandle(arg.fh), wakeup, events: arg.events })
        }
        Opcode::Fallocate => {
            let arg: wire::FallocateIn = argument(parts)?;
            let fh = FileHandle(arg.fh);
            Operation::Fallocate(Fallocate { fh, offset: arg.offset, length: arg.length, mode: arg.mode })
        }
        Opcode::Lseek => {
            let arg: wire::LseekIn = argument(parts)?;
            Operation::Lseek(Lseek { fh: FileHandle(arg.fh), offset: arg.offset, whence: arg.whence })
        }
        Opcode::Syncfs => Operation::Syncfs,
        _ => Operation::Unsupported,
    })
}
