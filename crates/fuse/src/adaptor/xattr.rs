//! Requests on extended attributes.

use super::{Adaptor, convert, identity};
use crate::errno::Errno;
use crate::protocol::SetXattr;
use crate::reply::XattrBuffer;
use crate::request::Request;
use ashlar_client::LAYOUT_ATTRIBUTE;

impl Adaptor {
    pub(super) fn on_getxattr(
        &self,
        request: &Request<'_>,
        name: &[u8],
        reply: &mut XattrBuffer<'_, '_>,
    ) -> Result<(), Errno> {
        if name == LAYOUT_ATTRIBUTE {
            let text = self.client.layout_text(&identity::who(request), convert::inode(request.node));
            reply.put(text.map_err(convert::found_by_name)?.as_bytes());
            return Ok(());
        }
        let inode = convert::inode(request.node);
        let value = match self.client.getxattr(&identity::who(request), inode, name) {
            // They went with it. The kernel asks for the access list before it decides who may touch a pipe that somebody still holds.
            Err(ashlar_types::Errno::ESTALE) if self.removed.find(inode).is_some() => Err(Errno::ENODATA),
            value => value.map_err(convert::found_by_name),
        };
        reply.put(&value?);
        Ok(())
    }

    pub(super) fn on_listxattr(
        &self,
        request: &Request<'_>,
        reply: &mut XattrBuffer<'_, '_>,
    ) -> Result<(), Errno> {
        let names = self.client.listxattr(&identity::who(request), convert::inode(request.node));
        reply.put(&names.map_err(convert::found_by_name)?);
        Ok(())
    }

    pub(super) fn on_setxattr(&self, request: &Request<'_>, args: &SetXattr<'_>) -> Result<(), Errno> {
        if args.name == LAYOUT_ATTRIBUTE {
            let inode = convert::inode(request.node);
            let set = self.client.layout_set_text(&identity::who(request), inode, args.value);
            return set.map_err(convert::found_by_name);
        }
        let has = |flag: i32| args.flags & flag as u32 != 0;
        let flags = (has(libc::XATTR_CREATE), has(libc::XATTR_REPLACE));
        let inode = convert::inode(request.node);
        let pair = (args.name, args.value);
        let set = self.client.setxattr(&identity::who(request), inode, pair, flags, args.kill_sgid);
        set.map_err(convert::found_by_name)
    }

    pub(super) fn on_removexattr(&self, request: &Request<'_>, name: &[u8]) -> Result<(), Errno> {
        let removed = self.client.removexattr(&identity::who(request), convert::inode(request.node), name);
        removed.map_err(convert::found_by_name)
    }
}
