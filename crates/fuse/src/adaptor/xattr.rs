//! Requests on extended attributes.

use super::{Adaptor, convert, identity};
use crate::errno::Errno;
use crate::id::NodeId;
use crate::protocol::SetXattr;
use crate::reply::XattrBuffer;
use crate::request::Request;
use ashlar_client::LAYOUT_ATTRIBUTE;
use ashlar_types::InodeId;
use bytes::Bytes;

/// What a mount tells of itself, at its root. The kernel asks for what begins with `system.` without a look at permissions first, so no server is asked, and
/// servers that are away keep nobody from learning it.
pub const MOUNT_ATTRIBUTE: &std::ffi::CStr = c"system.ashlar_mount";

/// The access list (acl(5)).
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

/// The list that leaves the owner what `mode` gives him, and others nothing (`linux/posix_acl_xattr.h`: version 2; tag, permissions and id of each entry).
fn owner_only(mode: u32) -> Vec<u8> {
    const USER_OBJ: u16 = 1;
    const GROUP_OBJ: u16 = 4;
    const OTHER: u16 = 32;
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, may) in [(USER_OBJ, (mode >> 6 & 7) as u16), (GROUP_OBJ, 0), (OTHER, 0)] {
        list.extend([tag.to_le_bytes(), may.to_le_bytes()].concat());
        list.extend(u32::MAX.to_le_bytes());
    }
    list
}

impl Adaptor {
    pub(super) fn on_getxattr(
        &self,
        request: &Request<'_>,
        name: &[u8],
        reply: &mut XattrBuffer<'_, '_>,
    ) -> Result<(), Errno> {
        if name == MOUNT_ATTRIBUTE.to_bytes() && request.node == NodeId::ROOT {
            let describe = self.describe.as_ref().ok_or(Errno::ENODATA)?;
            reply.put(describe(&self.client, request.uid)?.as_bytes());
            return Ok(());
        }
        if name == LAYOUT_ATTRIBUTE {
            let text = self.client.layout_text(&identity::who(request), self.inode(request.node));
            reply.put(text.map_err(convert::found_by_name)?.as_bytes());
            return Ok(());
        }
        let inode = self.inode(request.node);
        let value = match self.client.getxattr(&identity::who(request), inode, name) {
            Err(ashlar_types::Errno::ESTALE) => self.of_removed(inode, name),
            value => value.map_err(convert::found_by_name),
        };
        reply.put(&value?);
        Ok(())
    }

    /// What is told of a removed inode, whose attributes went with it. The kernel asks for the access list before it decides who may touch or open a
    /// pipe that somebody still holds. Whom the list has shut out is not known any more, so nobody but the owner is let in.
    fn of_removed(&self, inode: InodeId, name: &[u8]) -> Result<Bytes, Errno> {
        let last = self.removed.find(inode).ok_or(Errno::ESTALE)?;
        if name != ACCESS_LIST {
            return Err(Errno::ENODATA);
        }
        Ok(owner_only(last.mode).into())
    }

    pub(super) fn on_listxattr(
        &self,
        request: &Request<'_>,
        reply: &mut XattrBuffer<'_, '_>,
    ) -> Result<(), Errno> {
        let names = self.client.listxattr(&identity::who(request), self.inode(request.node));
        reply.put(&names.map_err(convert::found_by_name)?);
        Ok(())
    }

    pub(super) fn on_setxattr(&self, request: &Request<'_>, args: &SetXattr<'_>) -> Result<(), Errno> {
        if args.name == LAYOUT_ATTRIBUTE {
            let inode = self.inode(request.node);
            let set = self.client.layout_set_text(&identity::who(request), inode, args.value);
            return set.map_err(convert::found_by_name);
        }
        let has = |flag: i32| args.flags & flag as u32 != 0;
        let flags = (has(libc::XATTR_CREATE), has(libc::XATTR_REPLACE));
        let inode = self.inode(request.node);
        let pair = (args.name, args.value);
        let set = self.client.setxattr(&identity::who(request), inode, pair, flags, args.kill_sgid);
        set.map_err(convert::found_by_name)
    }

    pub(super) fn on_removexattr(&self, request: &Request<'_>, name: &[u8]) -> Result<(), Errno> {
        let removed = self.client.removexattr(&identity::who(request), self.inode(request.node), name);
        removed.map_err(convert::found_by_name)
    }
}
