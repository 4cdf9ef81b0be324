//! Requests on names.

use super::{Adaptor, convert, identity};
use crate::errno::Errno;
use crate::protocol::{Link, Mkdir, Mknod, Rename};
use crate::reply::Entry;
use crate::request::Request;
use ashlar_types::Name;
use ashlar_types::message::RenameFlags;

/// The name in a request, checked.
pub(super) fn checked(name: &[u8]) -> Result<Name<'_>, Errno> {
    Ok(Name::new(name)?)
}

impl Adaptor {
    pub(super) fn on_lookup(&self, request: &Request<'_>, name: &[u8]) -> Result<Entry, Errno> {
        let parent = convert::inode(request.node);
        match self.client.lookup(&identity::who(request), parent, checked(name)?)? {
            Ok(found) => Ok(self.entry(&found)),
            Err(valid) if valid.is_zero() => Err(Errno::ENOENT),
            Err(valid) => Ok(Entry::negative(self.entry_lifetime(valid))),
        }
    }

    pub(super) fn on_symlink(
        &self,
        request: &Request<'_>,
        name: &[u8],
        target: &[u8],
    ) -> Result<Entry, Errno> {
        let parent = convert::inode(request.node);
        Ok(self.entry(&self.client.symlink(&identity::who(request), parent, checked(name)?, target)?))
    }

    pub(super) fn on_mknod(&self, request: &Request<'_>, args: &Mknod<'_>) -> Result<Entry, Errno> {
        let place = (convert::inode(request.node), checked(args.name)?);
        let found = self.client.mknod(&identity::who(request), place, args.mode, args.umask, args.rdev)?;
        Ok(self.entry(&found))
    }

    pub(super) fn on_mkdir(&self, request: &Request<'_>, args: &Mkdir<'_>) -> Result<Entry, Errno> {
        let parent = convert::inode(request.node);
        let name = checked(args.name)?;
        Ok(self.entry(&self.client.mkdir(&identity::who(request), parent, name, args.mode, args.umask)?))
    }

    pub(super) fn on_unlink(&self, request: &Request<'_>, name: &[u8]) -> Result<(), Errno> {
        let parent = convert::inode(request.node);
        let name = checked(name)?;
        Ok(self.removed.during(|| self.client.unlink(&identity::who(request), parent, name))?)
    }

    pub(super) fn on_rmdir(&self, request: &Request<'_>, name: &[u8]) -> Result<(), Errno> {
        let parent = convert::inode(request.node);
        let name = checked(name)?;
        Ok(self.removed.during(|| self.client.rmdir(&identity::who(request), parent, name))?)
    }

    pub(super) fn on_rename(&self, request: &Request<'_>, args: &Rename<'_>) -> Result<(), Errno> {
        const WHITEOUT_NOREPLACE: u32 = libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE;
        let flags = match args.flags {
            0 => RenameFlags::Replace,
            libc::RENAME_WHITEOUT => RenameFlags::Whiteout,
            WHITEOUT_NOREPLACE => RenameFlags::WhiteoutNoReplace,
            libc::RENAME_NOREPLACE => RenameFlags::NoReplace,
            libc::RENAME_EXCHANGE => RenameFlags::Exchange,
            _ => return Err(Errno::EINVAL),
        };
        let from = (convert::inode(request.node), checked(args.name)?);
        let to = (convert::inode(args.new_parent), checked(args.new_name)?);
        Ok(self.removed.during(|| self.client.rename(&identity::who(request), from, to, flags))?)
    }

    pub(super) fn on_link(&self, request: &Request<'_>, args: &Link<'_>) -> Result<Entry, Errno> {
        let parent = convert::inode(request.node);
        let name = checked(args.new_name)?;
        Ok(self.entry(&self.client.link(&identity::who(request), convert::inode(args.node), parent, name)?))
    }
}
