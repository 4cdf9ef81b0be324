//! Permission checks (`path_resolution(7)`, `acl(5)`): may this caller read, write, search, or act as the owner.

use crate::context::OpContext;
use crate::error::NsError;
use crate::record::Inode;
use ashlar_types::{Capabilities, Errno};

/// Search a directory or execute a file.
pub(crate) const EXECUTE: u32 = 1;
/// Write.
pub(crate) const WRITE: u32 = 2;

/// Checks that the caller has all of the `wanted` permissions (bits 4 read, 2 write, 1 execute) on `inode`.
pub(crate) fn check(context: &OpContext<'_>, inode: &Inode, wanted: u32) -> Result<(), NsError> {
    let creds = context.creds;
    let granted = if creds.uid == inode.uid {
        inode.mode >> 6 & 7
    } else if creds.in_group(inode.gid) {
        inode.mode >> 3 & 7
    } else {
        inode.mode & 7
    };
    if granted & wanted == wanted {
        return Ok(());
    }
    let is_directory = inode.is_directory();
    let may_override = creds.caps.has(Capabilities::DAC_OVERRIDE)
        && (wanted & EXECUTE == 0 || is_directory || inode.mode & 0o111 != 0);
    let may_search = creds.caps.has(Capabilities::DAC_READ_SEARCH)
        && wanted & WRITE == 0
        && (is_directory || wanted & EXECUTE == 0);
    if may_override || may_search { Ok(()) } else { Err(Errno::EACCES.into()) }
}
