//! Requests on open directories.

use super::{Adaptor, convert, file, identity};
use crate::errno::Errno;
use crate::id::FileHandle;
use crate::protocol::{Open, OpenReplyFlags, ReadDir, Release};
use crate::reply::{DirBuffer, DirEntry, DirPlusBuffer, Opened};
use crate::request::Request;
use ashlar_client::{Handle, Listing};
use ashlar_types::{Attr, FileType, InodeId};
use std::convert::Infallible;

/// The handle of every open directory of which nothing is left: there is nothing to read in it (the kernel answers ENOENT by itself).
const REMOVED_DIRECTORY: FileHandle = FileHandle(0);

impl Adaptor {
    pub(super) fn on_opendir(&self, request: &Request<'_>, args: &Open) -> Result<Opened, Errno> {
        let flags = file::open_flags(args.flags);
        let inode = self.inode(request.node);
        let opened = match self.client.open(&identity::who(request), inode, flags) {
            // Through a working directory or an `O_PATH` descriptor the kernel still reaches it, and has checked the permission.
            Err(ashlar_types::Errno::ESTALE) if self.is_removed_directory(inode) => {
                return Ok(Opened { fh: REMOVED_DIRECTORY, flags: OpenReplyFlags::EMPTY, backing: None });
            }
            other => other?,
        };
        let fh: FileHandle = self.handles.insert(opened.handle, true);
        Ok(Opened { fh, flags: OpenReplyFlags::EMPTY, backing: None })
    }

    fn is_removed_directory(&self, inode: InodeId) -> bool {
        let is_directory = |attr: &Attr| FileType::from_mode(attr.mode) == Some(FileType::Directory);
        self.removed.find(inode).is_some_and(|attr| is_directory(&attr))
    }

    pub(super) fn on_releasedir(&self, args: &Release) -> Result<(), Errno> {
        if args.fh == REMOVED_DIRECTORY {
            return Ok(());
        }
        let handle = self.handles.remove(args.fh)?;
        let unlocked = self.end_flock(&handle, args);
        let Ok(()) = self.removed.during(|| Ok::<_, Infallible>(self.client.release_directory(&handle)));
        Ok(unlocked?)
    }

    fn list(&self, request: &Request<'_>, args: &ReadDir, with_attributes: bool) -> Result<Listing, Errno> {
        if args.fh == REMOVED_DIRECTORY {
            return Err(Errno::ENOENT);
        }
        let handle: &Handle = &*self.handles.find(args.fh)?;
        self.client.note_read(handle);
        let who = identity::who(request);
        Ok(self.client.list(&who, handle, args.offset, args.size, with_attributes)?)
    }

    pub(super) fn on_readdir(
        &self,
        request: &Request<'_>,
        args: &ReadDir,
        reply: &mut DirBuffer<'_, '_>,
    ) -> Result<(), Errno> {
        for entry in self.list(request, args, false)?.entries {
            let item = DirEntry {
                ino: entry.inode.0,
                next_offset: entry.cookie,
                kind: convert::file_kind(entry.file_type),
                name: &entry.name,
            };
            if !reply.push(&item) {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn on_readdirplus(
        &self,
        request: &Request<'_>,
        args: &ReadDir,
        reply: &mut DirPlusBuffer<'_, '_>,
    ) -> Result<(), Errno> {
        for entry in self.list(request, args, true)?.entries {
            let item = DirEntry {
                ino: entry.inode.0,
                next_offset: entry.cookie,
                kind: convert::file_kind(entry.file_type),
                name: &entry.name,
            };
            let is_dot = matches!(&entry.name[..], b"." | b"..");
            let node =
                self.client.found_in_listing(&entry).filter(|_| !is_dot).map(|found| self.entry(&found));
            if !reply.push(node.as_ref(), &item) {
                break;
            }
        }
        Ok(())
    }
}
