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
            let text = self.client.layout_text(&identity::who(request), convert::inode(request.node))?;
            reply.put(text.as_bytes());
            return Ok(());
        }
        reply.put(&self.client.getxattr(&identity::who(request), convert::inode(request.node), name)?);
        Ok(())
    }

    pub(super) fn on_listxattr(
        &self,
        request: &Request<'_>,
        reply: &mut XattrBuffer<'_, '_>,
    ) -> Result<(), Errno> {
        reply.put(&self.client.listxattr(&identity::who(request), convert::inode(request.node))?);
        Ok(())
    }

    pub(super) fn on_setxattr(&self, request: &Request<'_>, args: &SetXattr<'_>) -> Result<(), Errno> {
        if args.name == LAYOUT_ATTRIBUTE {
            let inode = convert::inode(request.node);
            return Ok(self.client.layout_set_text(&identity::who(request), inode, args.value)?);
        }
        let has = |flag: i32| args.flags & flag as u32 != 0;
        let flags = (has(libc::XATTR_CREATE), has(libc::XATTR_REPLACE));
        let inode = convert::inode(request.node);
        let pair = (args.name, args.value);
        Ok(self.client.setxattr(&identity::who(request), inode, pair, flags, args.kill_sgid)?)
    }

    pub(super) fn on_removexattr(&self, request: &Request<'_>, name: &[u8]) -> Result<(), Errno> {
        Ok(self.client.removexattr(&identity::who(request), convert::inode(request.node), name)?)
    }
}
