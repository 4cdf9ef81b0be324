//! Calls on extended attributes.

use super::verb as number;
use crate::MetaService;
use ashlar_namespace::verb;
use ashlar_rpc::Caller;
use ashlar_types::Errno;
use ashlar_types::message::{MetaReply, MetaRequest};

impl MetaService {
    pub(super) fn call_on_xattrs(
        &self,
        caller: Caller<'_>,
        request: MetaRequest<'_>,
    ) -> Result<MetaReply, Errno> {
        match request {
            MetaRequest::Getxattr { inode, name } => self.inspect(
                caller,
                |txn, context| verb::getxattr(txn, context, inode, name),
                |value, _| MetaReply::Bytes(value),
            ),
            MetaRequest::Listxattr { inode } => self.inspect(
                caller,
                |txn, context| verb::listxattr(txn, context, inode),
                |list, _| MetaReply::Bytes(list),
            ),
            MetaRequest::Setxattr { inode, name, value, create, replace, kill_setgid } => {
                let mode = match (create, replace) {
                    (true, false) => verb::SetxattrMode::Create,
                    (false, true) => verb::SetxattrMode::Replace,
                    (false, false) => verb::SetxattrMode::Any,
                    (true, true) => return Err(Errno::EINVAL),
                };
                self.mutate(
                    caller,
                    number::SETXATTR,
                    |txn, context| {
                        verb::setxattr(
                            txn,
                            context,
                            inode,
                            &verb::SetxattrArgs { name, value, mode, kill_setgid },
                        )
                    },
                    |(), _| MetaReply::Done,
                )
            }
            MetaRequest::Removexattr { inode, name } => self.mutate(
                caller,
                number::REMOVEXATTR,
                |txn, context| verb::removexattr(txn, context, inode, name),
                |(), _| MetaReply::Done,
            ),
            _ => Err(Errno::EPROTO),
        }
    }
}
