//! What kinds of calls there are, by service: a number to count at, and a name to show.

use ashlar_types::message::{ManagerRequest, MetaRequest, StorageRequest};

/// The kinds of calls of a service.
#[derive(Clone, Copy, Debug)]
pub struct ServiceKinds {
    /// The service, as labels show it.
    pub service: &'static str,
    /// The kinds by number, as labels show them.
    pub names: &'static [&'static str],
}

macro_rules! kinds {
    ($function:ident, $type:ty, $enum:ident, $kinds:ident, $service:literal, $($variant:ident => $name:literal,)*) => {
        impl ServiceKinds {
            #[doc = concat!("Calls to ", $service, ".")]
            pub const $kinds: ServiceKinds = ServiceKinds { service: $service, names: &[$($name,)*] };
        }

        #[doc = concat!("The number of the kind of a call to ", $service, ".")]
        pub fn $function(request: &$type) -> usize {
            // Numbers in the order of the names.
            enum Number { $($variant,)* }
            match request { $($enum::$variant { .. } => Number::$variant as usize,)* }
        }
    };
}

kinds! {
    kind_of_meta_call, MetaRequest<'_>, MetaRequest, META, "meta",
    Lookup => "lookup",
    Getattr => "getattr",
    Setattr => "setattr",
    Create => "create",
    Mkdir => "mkdir",
    Mknod => "mknod",
    Symlink => "symlink",
    Link => "link",
    Unlink => "unlink",
    Rmdir => "rmdir",
    Rename => "rename",
    Tmpfile => "tmpfile",
    Open => "open",
    Release => "release",
    Readlink => "readlink",
    Readdir => "readdir",
    Access => "access",
    Getxattr => "getxattr",
    Listxattr => "listxattr",
    Setxattr => "setxattr",
    Removexattr => "removexattr",
    Statfs => "statfs",
    ReadInline => "read_inline",
    WriteInline => "write_inline",
    AllocateInline => "allocate_inline",
    ProposeLayout => "propose_layout",
    SetLayout => "set_layout",
    AcquireData => "acquire_data",
    CommitWrite => "commit_write",
    Sync => "sync",
    Lock => "lock",
    LockWait => "lock_wait",
    LockCancel => "lock_cancel",
    LockTest => "lock_test",
    LockRelease => "lock_release",
    LayoutShow => "layout_show",
    LayoutSet => "layout_set",
    RecallDone => "recall_done",
    WithdrawLayout => "withdraw_layout",
    MakeRoom => "make_room",
    SetattrRemoved => "setattr_removed",
    Reclaim => "reclaim",
    AcquireShared => "acquire_shared",
    SetFileset => "set_fileset",
    Slices => "slices",
    Split => "split",
    Closes => "closes",
}

kinds! {
    kind_of_storage_call, StorageRequest, StorageRequest, STORAGE, "storage",
    Write => "write",
    Read => "read",
    Truncate => "truncate",
    Punch => "punch",
    Allocate => "allocate",
    DeleteGeneration => "delete_generation",
    Seek => "seek",
    Extent => "extent",
    Sync => "sync",
    Space => "space",
    GiveBack => "give_back",
    Suspects => "suspects",
    Confirm => "confirm",
    NextChunk => "next_chunk",
    MoveBegin => "move_begin",
    MoveSeal => "move_seal",
    Moves => "moves",
    Files => "files",
    Scrub => "scrub",
    MoveRate => "move_rate",
    CopyBeacon => "copy_beacon",
    GoOnWithout => "go_on_without",
    CopyCompare => "copy_compare",
    CopyEmpty => "copy_empty",
    CopySettled => "copy_settled",
    CopyBlocks => "copy_blocks",
    CopyAgain => "copy_again",
    CopyLost => "copy_lost",
    CopyDigests => "copy_digests",
    TakeLossMark => "take_loss_mark",
}

kinds! {
    kind_of_manager_call, ManagerRequest, ManagerRequest, MANAGER, "manager",
    Join => "join",
    Renew => "renew",
    Map => "map",
    Listen => "listen",
    NewTarget => "new_target",
    Serve => "serve",
    MetaIdentity => "meta_identity",
    TransferShards => "transfer_shards",
    NewToken => "new_token",
    RemoveNode => "remove_node",
    SetPolicy => "set_policy",
    SetDraining => "set_draining",
    RemoveTarget => "remove_target",
    NewPool => "new_pool",
    RemovePool => "remove_pool",
    SetMoves => "set_moves",
    EndMove => "end_move",
    ReportTargets => "report_targets",
    SealingKeys => "sealing_keys",
    OpenKey => "open_key",
    CheckingKeys => "checking_keys",
    RotateKeys => "rotate_keys",
    Report => "report",
    Events => "events",
    ListenApart => "listen_apart",
    NewFileset => "new_fileset",
    EncloseFileset => "enclose_fileset",
    SetDomain => "set_domain",
    Present => "present",
    Presence => "presence",
    RestoreMetadata => "restore_metadata",
    ClaimStart => "claim_start",
    HoldStarts => "hold_starts",
    SetShardMoves => "set_shard_moves",
    ShardMoves => "shard_moves",
    MoveWorks => "move_works",
    Copies => "copies",
    SetCopies => "set_copies",
    HostCopies => "host_copies",
    FoundCopies => "found_copies",
    ChangeCopies => "change_copies",
    BeginService => "begin_service",
    ServeCopy => "serve_copy",
    CertifyServer => "certify_server",
    ChangeChains => "change_chains",
    CopyPool => "copy_pool",
    ShareDisks => "share_disks",
    UseDisk => "use_disk",
    SharedDisks => "shared_disks",
    CopyWorks => "copy_works",
    MoveDisk => "move_disk",
    ConfirmFenced => "confirm_fenced",
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_types::TargetId;

    #[test]
    fn numbers_and_names_are_in_the_same_order() {
        let name = |request: &StorageRequest| ServiceKinds::STORAGE.names[kind_of_storage_call(request)];
        assert_eq!(name(&StorageRequest::Space { target: TargetId(1) }), "space");
        assert_eq!(
            name(&StorageRequest::Confirm { target: TargetId(1), mark: 1, shards: Default::default() }),
            "confirm"
        );
        assert_eq!(ServiceKinds::META.names[kind_of_meta_call(&MetaRequest::Statfs)], "statfs");
        assert_eq!(ServiceKinds::META.names[kind_of_meta_call(&MetaRequest::MakeRoom)], "make_room");
    }
}
