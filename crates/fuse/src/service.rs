//! From a parsed request to a method of the file system and back to reply bytes. Shared by all transports; has no state of
//! its own that workers would contend for.

use crate::deferral::{Deferral, Deferred, Ended, Written};
use crate::errno::Errno;
use crate::filesystem::Filesystem;
use crate::id::Unique;
use crate::protocol::{Dialect, Malformed, Opcode, Operation, Parts, wire};
use crate::reply::fixed::FixedReply;
use crate::reply::{Created, DirBuffer, DirPlusBuffer, ReplyBuffer, XattrBuffer};
use crate::request::Request;
use crate::transport::Route;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Reply with this result (and the body built on success).
    Reply(Result<(), Errno>),
    /// The kernel expects no reply.
    OneWay,
    /// A replier has it.
    Deferred,
}

/// The file system and what its handlers need around them.
pub(crate) struct Service<F> {
    pub(crate) fs: Arc<F>,
    pub(crate) dialect: Dialect,
    pub(crate) deferred: Arc<Deferred>,
}

impl<F: Filesystem> Service<F> {
    /// Serves a request whose reply has a fixed size; the body ends up in `body`.
    pub(crate) fn serve(
        &self,
        header: &wire::InHeader,
        parts: &Parts<'_>,
        body: &mut FixedReply,
        route: &dyn Fn() -> Option<Route>,
    ) -> Outcome {
        body.clear();
        self.fs.note_request(parts.opcode);
        let (request, operation) = match crate::protocol::parse(header, parts) {
            Ok(parsed) => parsed,
            Err(malformed) => return refuse(header, malformed, parts.opcode.is_one_way()),
        };
        let is_taken = Cell::new(false);
        let deferral =
            Deferral { deferred: &self.deferred, route, unique: request.unique, is_taken: &is_taken };
        let result = contained(header, || self.call(&request, &operation, body, &deferral));
        if parts.opcode.is_one_way() {
            return Outcome::OneWay;
        }
        if is_taken.get() {
            if self.deferred.settle(request.unique) {
                self.interrupt(header, request.unique);
            }
            return Outcome::Deferred;
        }
        Outcome::Reply(result)
    }

    /// Serves a request whose reply is data; it ends up at the start of `out`. `parts` must not borrow from `out`.
    pub(crate) fn serve_buffered(
        &self,
        header: &wire::InHeader,
        parts: &Parts<'_>,
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        self.fs.note_request(parts.opcode);
        let (request, operation) = match crate::protocol::parse(header, parts) {
            Ok(parsed) => parsed,
            Err(malformed) => {
                refuse(header, malformed, false);
                return Err(Errno::EIO);
            }
        };
        let mut len = 0;
        contained(header, || {
            len = self.call_buffered(&request, &operation, out)?;
            Ok(())
        })?;
        Ok(len)
    }

    fn interrupt(&self, header: &wire::InHeader, unique: Unique) {
        // A panic is logged; an interrupt has no reply to carry it.
        let _ = contained(header, || {
            self.fs.interrupt(unique);
            Ok(())
        });
    }

    #[rustfmt::skip]
    fn call(&self, request: &Request<'_>, operation: &Operation<'_>, body: &mut FixedReply, deferral: &Deferral<'_>)
        -> Result<(), Errno>
    {
        use Operation as Op;
        let fs = &self.fs;
        match operation {
            Op::Lookup { name } => body.put(&fs.lookup(request, name)?.to_wire()),
            Op::Getattr { fh } => body.put(&fs.getattr(request, *fh)?.to_wire()),
            Op::Setattr(changes) => body.put(&fs.setattr(request, changes)?.to_wire()),
            Op::Symlink { name, target } => body.put(&fs.symlink(request, name, target)?.to_wire()),
            Op::Mknod(args) => body.put(&fs.mknod(request, args)?.to_wire()),
            Op::Mkdir(args) => body.put(&fs.mkdir(request, args)?.to_wire()),
            Op::Link(args) => body.put(&fs.link(request, args)?.to_wire()),
            Op::Create(args) => put_created(body, fs.create(request, args)?),
            Op::Tmpfile(args) => put_created(body, fs.tmpfile(request, args)?),
            Op::Open(args) => body.put(&fs.open(request, args)?.to_wire()),
            Op::Opendir(args) => body.put(&fs.opendir(request, args)?.to_wire()),
            Op::Statfs => body.put(&fs.statfs(request)?.to_wire()),
            Op::Statx(args) => body.put(&fs.statx(request, args)?.to_wire()),
            Op::Getlk(lock) => body.put(&fs.getlk(request, lock)?.to_wire()),
            Op::Bmap { block, block_size } => body.put(&wire::BmapOut { block: fs.bmap(request, *block, *block_size)? }),
            Op::Poll(args) => body.put(&wire::PollOut { revents: fs.poll(request, args)?, padding: 0 }),
            Op::Lseek(args) => body.put(&wire::LseekOut { offset: fs.lseek(request, args)? }),
            Op::CopyFileRange(args) => {
                let copied = fs.copy_file_range(request, args)?.min(args.length);
                body.put(&wire::WriteOut { size: u32::try_from(copied).unwrap_or(u32::MAX), padding: 0 });
            }
            Op::CopyFileRange64(args) => {
                body.put(&wire::CopyFileRangeOut { bytes_copied: fs.copy_file_range(request, args)? });
            }
            Op::Write(args) => match fs.write(request, args, deferral)? {
                Written::Bytes(size) => body.put(&wire::WriteOut { size, padding: 0 }),
                Written::Deferred => return taken("write", request, deferral),
            },
            Op::Setlkw(lock) => return ended("setlkw", fs.setlkw(request, lock, deferral)?, request, deferral),
            Op::Setlk(lock) => return fs.setlk(request, lock),
            Op::Unlink { name } => return fs.unlink(request, name),
            Op::Rmdir { name } => return fs.rmdir(request, name),
            Op::Rename(args) => return fs.rename(request, args),
            Op::Release(args) => return fs.release(request, args),
            Op::Releasedir(args) => return fs.releasedir(request, args),
            Op::Flush(args) => return fs.flush(request, args),
            Op::Fsync(args) => return ended("fsync", fs.fsync(request, args, deferral)?, request, deferral),
            Op::Fsyncdir(args) => return ended("fsyncdir", fs.fsyncdir(request, args, deferral)?, request, deferral),
            Op::Setxattr(args) => return fs.setxattr(request, args),
            Op::Removexattr { name } => return fs.removexattr(request, name),
            Op::Access { mask } => return fs.access(request, *mask),
            Op::Fallocate(args) => return ended("fallocate", fs.fallocate(request, args, deferral)?, request, deferral),
            Op::Syncfs => return ended("syncfs", fs.syncfs(request, deferral)?, request, deferral),
            Op::Forget(forgets) => fs.forget(*forgets),
            Op::NotifyReply(reply) => fs.retrieve_reply(request, reply),
            Op::Interrupt { unique } => if self.deferred.interrupt(*unique) { fs.interrupt(*unique) },
            // The session calls `destroy` itself when the last worker has ended; DESTROY only needs its reply.
            Op::Destroy => {}
            Op::Init | Op::Unsupported => return Err(Errno::ENOSYS),
            Op::Read(_) | Op::Readdir(_) | Op::Readdirplus(_) | Op::Readlink | Op::Getxattr { .. }
            | Op::Listxattr { .. } | Op::Ioctl(_) => return Err(Errno::EIO),
        }
        Ok(())
    }

    fn call_buffered(
        &self,
        request: &Request<'_>,
        operation: &Operation<'_>,
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        let fs = &self.fs;
        match operation {
            Operation::Read(args) => filled(out, args.size, |reply| fs.read(request, args, reply)),
            Operation::Readdir(args) => {
                filled(out, args.size, |reply| fs.readdir(request, args, &mut DirBuffer::new(reply)))
            }
            Operation::Readdirplus(args) => {
                filled(out, args.size, |reply| fs.readdirplus(request, args, &mut DirPlusBuffer::new(reply)))
            }
            Operation::Readlink => filled(out, LINK_LEN_MAX, |reply| fs.readlink(request, reply)),
            Operation::Getxattr { name, size } => filled(out, xattr_room(*size), |reply| {
                let mut value = XattrBuffer::new(reply, *size);
                fs.getxattr(request, name, &mut value)?;
                value.finish()
            }),
            Operation::Listxattr { size } => filled(out, xattr_room(*size), |reply| {
                let mut names = XattrBuffer::new(reply, *size);
                fs.listxattr(request, &mut names)?;
                names.finish()
            }),
            Operation::Ioctl(args) => {
                let (head, data) = out.split_at_mut_checked(size_of::<wire::IoctlOut>()).ok_or(Errno::EIO)?;
                let mut result = 0;
                let len = filled(data, args.output_len, |reply| {
                    result = fs.ioctl(request, args, reply)?;
                    Ok(())
                })?;
                let out = wire::IoctlOut { result, ..Default::default() };
                head.copy_from_slice(out.as_bytes());
                Ok(head.len() + len)
            }
            _ => Err(Errno::EIO),
        }
    }
}

fn ended(verb: &str, ended: Ended, request: &Request<'_>, deferral: &Deferral<'_>) -> Result<(), Errno> {
    match ended {
        Ended::Now => Ok(()),
        Ended::Deferred => taken(verb, request, deferral),
    }
}

/// What `verb`, which said that it deferred its reply, comes to.
fn taken(verb: &str, request: &Request<'_>, deferral: &Deferral<'_>) -> Result<(), Errno> {
    if deferral.is_taken.get() {
        return Ok(());
    }
    tracing::error!(unique = %request.unique, "{verb} said it deferred, but took no replier; answering EIO");
    Err(Errno::EIO)
}

/// The kernel reads links into one page and adds the NUL.
const LINK_LEN_MAX: u32 = 4095;

/// Room for a value, or for the size of it.
fn xattr_room(size: u32) -> u32 {
    if size == 0 { size_of::<wire::GetxattrOut>() as u32 } else { size }
}

/// Lets `fill` write a reply of at most `size` bytes into the start of `out`; returns its length.
fn filled(
    out: &mut [u8],
    size: u32,
    fill: impl FnOnce(&mut ReplyBuffer<'_>) -> Result<(), Errno>,
) -> Result<usize, Errno> {
    let room = out.len().min(size as usize);
    let mut reply = ReplyBuffer::new(out.get_mut(..room).ok_or(Errno::EIO)?);
    fill(&mut reply)?;
    Ok(reply.len())
}

fn put_created(body: &mut FixedReply, created: Created) {
    body.put(&created.entry.to_wire());
    body.put(&created.opened.to_wire());
}

/// Runs a handler; a panic in it is logged and becomes EIO for this request alone.
fn contained(header: &wire::InHeader, handler: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    catch_unwind(AssertUnwindSafe(handler)).unwrap_or_else(|payload| {
        let message = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        tracing::error!(
            opcode = ?Opcode::from_raw(header.opcode), unique = header.unique, node = header.nodeid, message,
            "handler panicked; answering EIO"
        );
        Err(Errno::EIO)
    })
}

/// The answer to a request that could not be parsed.
pub(crate) fn refuse(header: &wire::InHeader, malformed: Malformed, is_one_way: bool) -> Outcome {
    if let Malformed::UnknownOpcode(_) = malformed {
        tracing::debug!(opcode = header.opcode, "unknown operation; answering ENOSYS");
        return Outcome::Reply(Err(Errno::ENOSYS));
    }
    tracing::error!(opcode = header.opcode, unique = header.unique, %malformed, "malformed request; answering EIO");
    if is_one_way { Outcome::OneWay } else { Outcome::Reply(Err(Errno::EIO)) }
}
