//! What a change of a name has made of its directory, told with the answer to a caller who would ask next.

use ashlar_namespace::lease::LeaseTable;
use ashlar_namespace::{NsError, Txn};
use ashlar_rpc::Caller;
use ashlar_types::message::LeaseSet;
use ashlar_types::{Attr, InodeId};

/// What a transaction has decided, and the attributes of the directory after it.
pub(crate) struct InDirectory<R> {
    /// What it has decided.
    pub(crate) reply: R,
    directory: Option<Attr>,
}

impl<R> InDirectory<R> {
    /// `reply` and the attributes of `directory`, for a caller who wants them. Of one that is split they are not all in one place, and nothing is told.
    ///
    /// # Errors
    /// As of reading the inode.
    pub(crate) fn of(
        txn: &mut Txn<'_>,
        caller: Caller<'_>,
        directory: InodeId,
        reply: R,
    ) -> Result<InDirectory<R>, NsError> {
        if caller.directory.is_none() || txn.is_elsewhere(directory) {
            return Ok(InDirectory { reply, directory: None });
        }
        let found = txn.find_inode(directory)?;
        let is_whole = |record: &&ashlar_namespace::Inode| {
            record.slices().is_empty() && record.shown_as(directory) == directory
        };
        let directory = found.filter(is_whole).map(|record| record.attr(directory));
        Ok(InDirectory { reply, directory })
    }

    /// Tells the caller of the directory, with a lease: nobody else has one any more, as it has been changed. What is left is the reply.
    pub(crate) fn tell(self, caller: Caller<'_>, leases: &mut LeaseTable) -> R {
        if let (Some(attr), Some(told)) = (self.directory, caller.directory) {
            let held = leases.grant(caller.op.session, attr.inode, LeaseSet::ATTR);
            // A call is answered once.
            let _ = told.set((attr, held));
        }
        self.reply
    }
}
