//! Who asks for what: the part of a request that is the same for every operation.

use crate::id::{NodeId, Unique};
use crate::protocol::Extensions;

/// The caller of an operation and the node it applies to (the parent directory where a name is involved).
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The kernel's name for this request.
    pub unique: Unique,
    /// The node, or the parent directory of the name.
    pub node: NodeId,
    /// The caller's file-system user id.
    pub uid: u32,
    /// The caller's file-system group id.
    pub gid: u32,
    /// The caller's process id (thread group), 0 where the kernel acts on its own.
    pub pid: u32,
    /// Supplementary groups and security labels of creating requests.
    pub extensions: Extensions<'a>,
}
