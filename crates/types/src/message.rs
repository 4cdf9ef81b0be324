//! Messages between roles. Requests borrow names and data, so that an in-process call copies nothing; replies own theirs.
//!
//! Bulk data of chunk reads and writes travels beside the message, not in it: a transport sends header and payload in one
//! system call, and the in-process transport passes the caller's buffer.

pub mod manager;
pub mod meta;
pub mod storage;

pub use manager::{
    ChainChange, CopyWork, ManagerPapers, ManagerReply, ManagerRequest, MoveWork, ServerPresence,
    TargetReport,
};
pub use meta::{
    Addressee, DataGrant, DirEntry, Lease, LeaseSet, LockKind, LockRange, LockRequest, MetaReply,
    MetaRequest, OpenReply, Recall, Reclaim, Reclaimed, ReclaimedFile, RenameFlags, SessionEvent, SetAttr,
    SplitDirectory, SyncScope, TimeSet, ToldClose,
};
pub use storage::{ChunkWritten, LossMark, MoveProgress, StorageReply, StorageRequest};
