//! Requests on names.

use super::resent::taken_away;
use super::{Adaptor, identity};
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
        let parent = self.inode(request.node);
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
        let parent = self.inode(request.node);
        let name = checked(name)?;
        let made = self.client.symlink(&identity::who(request), parent, name, target);
        self.made(request, (parent, name), made)
    }

    pub(super) fn on_mknod(&self, request: &Request<'_>, args: &Mknod<'_>) -> Result<Entry, Errno> {
        let place = (self.inode(request.node), checked(args.name)?);
        let made = self.client.mknod(&identity::who(request), place, args.mode, args.umask, args.rdev);
        self.made(request, place, made)
    }

    pub(super) fn on_mkdir(&self, request: &Request<'_>, args: &Mkdir<'_>) -> Result<Entry, Errno> {
        let parent = self.inode(request.node);
        let name = checked(args.name)?;
        let made = self.client.mkdir(&identity::who(request), parent, name, args.mode, args.umask);
        self.made(request, (parent, name), made)
    }

    pub(super) fn on_unlink(&self, request: &Request<'_>, name: &[u8]) -> Result<(), Errno> {
        let parent = self.inode(request.node);
        let name = checked(name)?;
        Ok(self
            .removed
            .during(|| taken_away(request, self.client.unlink(&identity::who(request), parent, name)))?)
    }

    pub(super) fn on_rmdir(&self, request: &Request<'_>, name: &[u8]) -> Result<(), Errno> {
        let parent = self.inode(request.node);
        let name = checked(name)?;
        Ok(self
            .removed
            .during(|| taken_away(request, self.client.rmdir(&identity::who(request), parent, name)))?)
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
        let from = (self.inode(request.node), checked(args.name)?);
        let to = (self.inode(args.new_parent), checked(args.new_name)?);
        let who = identity::who(request);
        let rename = || taken_away(request, self.client.rename(&who, from, to, flags));
        Ok(self.removed.during(rename)?)
    }

    pub(super) fn on_link(&self, request: &Request<'_>, args: &Link<'_>) -> Result<Entry, Errno> {
        let parent = self.inode(request.node);
        let name = checked(args.new_name)?;
        let made = self.client.link(&identity::who(request), self.inode(args.node), parent, name);
        self.made(request, (parent, name), made)
    }
}
