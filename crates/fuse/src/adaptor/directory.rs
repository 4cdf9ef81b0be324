//! Requests on open directories.

use super::{Adaptor, convert, file, identity};
use crate::errno::Errno;
use crate::id::FileHandle;
use crate::protocol::{Open, OpenReplyFlags, ReadDir};
use crate::reply::{DirBuffer, DirEntry, DirPlusBuffer, Opened};
use crate::request::Request;
use ashlar_client::{Handle, Listing};

impl Adaptor {
    pub(super) fn on_opendir(&self, request: &Request<'_>, args: &Open) -> Result<Opened, Errno> {
        let flags = file::open_flags(args.flags);
        let opened = self.client.open(&identity::who(request), convert::inode(request.node), flags)?;
        let fh: FileHandle = self.handles.insert(opened.handle);
        Ok(Opened { fh, flags: OpenReplyFlags::EMPTY, backing: None })
    }

    fn list(&self, request: &Request<'_>, args: &ReadDir, with_attributes: bool) -> Result<Listing, Errno> {
        let handle: &Handle = &*self.handles.find(args.fh)?;
        self.client.note_read(handle);
        let directory = handle.file.inode;
        Ok(self.client.readdir(
            &identity::who(request),
            directory,
            args.offset,
            args.size,
            with_attributes,
        )?)
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
