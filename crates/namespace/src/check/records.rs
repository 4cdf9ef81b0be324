//! Stage 2: inodes of one shard, a batch at a time, with their records in the other tables; and records that belong to none.

use super::side::{Side, TABLES, check_record};
use super::{Checker, Finding, Stop, slices, table_from};
use crate::acl::Acl;
use crate::key::{self, NameHash};
use crate::record::{Arriving, FileData, Inode, KeptReply, Kind};
use ashlar_kv::Key;
use ashlar_types::attr::{MODE_PERMISSION_MASK, MODE_TYPE_MASK};
use ashlar_types::node::SessionOwner;
use ashlar_types::{FileType, InodeId, LayoutPolicy, SLICES_MAX, SessionId, ShardId, Starts, codec};
use std::ops::ControlFlow;

/// Inodes looked at together.
// LIMIT: an inode record has at most two ACLs of 4 KiB, so a batch has at most 8 MiB.
const BATCH: usize = 1024;

/// The tables that exist.
const LETTERS: &[u8] = b"ABCDGHIJKLMNOPRSTUWX";

/// An inode of a batch, `None` when it does not decode.
struct Member {
    id: InodeId,
    inode: Option<Inode>,
    side: Side,
}

/// Checks one shard.
pub(super) fn check_shard(checker: &mut Checker<'_>, shard: ShardId) -> Result<(), Stop> {
    check_letters(checker, shard)?;
    let mut from = 0;
    let mut last_counter = 0;
    loop {
        let mut batch = read_batch(checker, shard, from)?;
        let is_last = batch.len() < BATCH;
        let to = batch.last().filter(|_| !is_last).map_or(u64::MAX, |member| member.id.0 + 1);
        for (table, key_bytes) in TABLES {
            check_table(checker, (shard, table, key_bytes), (from, to), &mut batch)?;
        }
        for Member { id, inode, side } in &batch {
            last_counter = last_counter.max(id.counter());
            if let Some(inode) = inode {
                check_inode(checker, *id, inode, side)?;
            }
        }
        checker.report.inodes += batch.len() as u64;
        if is_last {
            break;
        }
        from = to;
    }
    check_starts(checker, shard)?;
    check_sessions(checker, shard)?;
    check_servers(checker, shard)?;
    check_counter(checker, shard, last_counter)
}

/// Keys outside of the known tables.
fn check_letters(checker: &mut Checker<'_>, shard: ShardId) -> Result<(), Stop> {
    let mut from = Key::from_slice(&shard.0.to_be_bytes());
    for letter in LETTERS.iter().map(|letter| Some(*letter)).chain([None]) {
        let (to, next) = match letter {
            Some(letter) => key::table_range(shard, letter),
            None => (key::after_prefix(&shard.0.to_be_bytes()), Key::new()),
        };
        checker.scan(&from, &to, &mut |checker, record_key, _| {
            checker.found(Finding::KeyMalformed { key: record_key.into() })?;
            Ok(ControlFlow::Continue(()))
        })?;
        from = next;
    }
    Ok(())
}

/// The next inodes of the shard from id `from` on.
fn read_batch(checker: &mut Checker<'_>, shard: ShardId, from: u64) -> Result<Vec<Member>, Stop> {
    let mut batch: Vec<Member> = Vec::new();
    let start = if from == 0 { key::table_range(shard, b'I').0 } else { table_from(shard, b'I', from) };
    let (_, end) = key::table_range(shard, b'I');
    checker.scan(&start, &end, &mut |checker, record_key, value| {
        let id = key::inode_of(record_key).filter(|id| record_key.len() == 11 && id.home() == shard);
        let Some(id) = id else {
            checker.found(Finding::KeyMalformed { key: record_key.into() })?;
            return Ok(ControlFlow::Continue(()));
        };
        let inode = codec::decode(value, "inode record").ok();
        if inode.is_none() {
            checker.found(Finding::ValueMalformed { key: record_key.into() })?;
        }
        batch.push(Member { id, inode, side: Side::default() });
        Ok(if batch.len() < BATCH { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    Ok(batch)
}

/// The records of one table whose inode ids are in `[from, to)`: those of the batch's inodes, and strays.
fn check_table(
    checker: &mut Checker<'_>,
    (shard, table, key_bytes): (ShardId, u8, usize),
    (from, to): (u64, u64),
    batch: &mut [Member],
) -> Result<(), Stop> {
    let (mut start, mut end) = key::table_range(shard, table);
    if from > 0 {
        start = table_from(shard, table, from);
    }
    if to < u64::MAX {
        end = table_from(shard, table, to);
    }
    let mut at = 0;
    checker.scan(&start, &end, &mut |checker, record_key, value| {
        let id = key::inode_of(record_key).filter(|_| match table {
            b'X' => record_key.len() >= key_bytes,
            _ => record_key.len() == key_bytes,
        });
        let Some(id) = id else {
            checker.found(Finding::KeyMalformed { key: record_key.into() })?;
            return Ok(ControlFlow::Continue(()));
        };
        while batch.get(at).is_some_and(|member| member.id < id) {
            at += 1;
        }
        match batch.get_mut(at).filter(|member| member.id == id) {
            Some(Member { inode: Some(inode), side, .. }) => {
                check_record(checker, table, (record_key, value), (id, inode), side)?;
            }
            // Nobody knows what a damaged inode would have.
            Some(_) => {}
            // The chunks of a file that is gone.
            None if table == b'G' => {}
            None => checker.found(Finding::RecordStray { key: record_key.into() })?,
        }
        Ok(ControlFlow::Continue(()))
    })
}

fn check_inode(checker: &mut Checker<'_>, id: InodeId, inode: &Inode, side: &Side) -> Result<(), Stop> {
    if let Some(what) = damage(inode, &checker.args.shards) {
        checker.found(Finding::InodeMalformed { inode: id, what })?;
    }
    slices::check(checker, id, inode)?;
    let mut blocks = 0;
    match &inode.kind {
        Kind::Directory { .. }
        | Kind::WideDirectory { .. }
        | Kind::Slice { .. }
        | Kind::DirectoryInSplit { .. }
        | Kind::SliceInSplit { .. } => {
            if inode.size != side.entries {
                let (stored, counted) = (inode.size, side.entries);
                checker.found(Finding::DirectorySize { inode: id, stored, counted })?;
            }
            if side.entries > 0
                && matches!(inode.kind, Kind::WideDirectory { .. })
                && !inode.slices().is_empty()
            {
                let what = "it is split, and has entries besides those of its slices";
                checker.found(Finding::InodeMalformed { inode: id, what })?;
            }
            if matches!(inode.kind, Kind::DirectoryInSplit { .. }) && inode.nlink > 0 && !side.is_halfway {
                checker.found(Finding::SplitForgotten { inode: id })?;
            }
            let counted = side.subdirectories.saturating_add(2);
            let is_removed = inode.nlink == 0 && side.entries == 0;
            if inode.nlink != counted && !is_removed {
                checker.found(Finding::Nlink { inode: id, stored: inode.nlink, counted })?;
            }
        }
        Kind::Regular(FileData::Inline { .. }) => {
            blocks = side.body_units;
            if side.body_end > inode.size {
                checker.found(Finding::BodyBeyondEnd { inode: id, size: inode.size })?;
            }
        }
        // Only the targets know.
        Kind::Regular(FileData::Chunks { .. }) => blocks = inode.blocks,
        Kind::Symlink | Kind::SyncSymlink => match side.link_bytes {
            Some(counted) if counted != inode.size => {
                checker.found(Finding::LinkSize { inode: id, stored: inode.size, counted })?;
            }
            Some(_) => {}
            None => {
                checker.found(Finding::InodeMalformed { inode: id, what: "its link target is not there" })?
            }
        },
        Kind::Special | Kind::SyncSpecial => {}
    }
    if inode.blocks != blocks {
        checker.found(Finding::Blocks { inode: id, stored: inode.blocks, counted: blocks })?;
    }
    if inode.has_xattrs != side.has_xattrs {
        checker.found(Finding::XattrFlag { inode: id, stored: inode.has_xattrs })?;
    }
    Ok(())
}

/// What is wrong with an inode by itself, in a file system with `shards`.
fn damage(inode: &Inode, shards: &[ShardId]) -> Option<&'static str> {
    let is_type_right = matches!(
        (FileType::from_mode(inode.mode), &inode.kind),
        (
            Some(FileType::Directory),
            Kind::Directory { .. }
                | Kind::WideDirectory { .. }
                | Kind::Slice { .. }
                | Kind::DirectoryInSplit { .. }
                | Kind::SliceInSplit { .. }
        ) | (Some(FileType::Regular), Kind::Regular(_))
            | (Some(FileType::Symlink), Kind::Symlink | Kind::SyncSymlink)
            | (
                Some(FileType::Fifo | FileType::Socket | FileType::CharDevice | FileType::BlockDevice),
                Kind::Special | Kind::SyncSpecial
            )
    );
    let is_policy_right = match &inode.kind {
        Kind::Directory { policy, .. }
        | Kind::WideDirectory { policy, .. }
        | Kind::Slice { policy, .. }
        | Kind::DirectoryInSplit { policy, .. }
        | Kind::SliceInSplit { policy, .. }
        | Kind::Regular(FileData::Inline { policy, .. } | FileData::Chunks { policy, .. }) => {
            policy.check().is_ok()
                && policy.or(LayoutPolicy::root_default()) == *policy
                && policy.pin().is_none_or(|shard| shards.contains(&shard))
                && (inode.is_directory() || policy.of_file() == *policy)
        }
        _ => true,
    };
    let is_layout_right = match &inode.kind {
        Kind::Regular(FileData::Chunks { layout, .. }) => layout.check().is_ok(),
        _ => true,
    };
    let is_split_right = match &inode.kind {
        Kind::WideDirectory { wide, .. } => wide.slices.len() <= usize::from(SLICES_MAX),
        Kind::DirectoryInSplit { wide, border, .. } => {
            (2..=usize::from(SLICES_MAX)).contains(&wide.slices.len()) && *border <= NameHash::END
        }
        Kind::Slice { index, count, .. } | Kind::SliceInSplit { index, count, .. } => {
            index < count && *count <= SLICES_MAX && inode.nlink >= 2
        }
        _ => true,
    };
    let times = [inode.atime, inode.mtime, inode.ctime, inode.btime];
    let is_acl_right =
        |acl: &Option<bytes::Bytes>| acl.as_ref().is_none_or(|acl| matches!(Acl::parse(acl), Ok(Some(_))));
    if !is_type_right || inode.mode & !(MODE_TYPE_MASK | MODE_PERMISSION_MASK) != 0 {
        Some("its mode is not that of its kind")
    } else if times.iter().any(|time| time.nanos >= 1_000_000_000) {
        Some("a time has too many nanoseconds")
    } else if inode.size > i64::MAX as u64 {
        Some("its length is out of range")
    } else if !is_policy_right {
        Some("its layout settings are not whole or out of range")
    } else if !is_split_right {
        Some("a number of slices is out of range")
    } else if !is_layout_right {
        Some("its layout is out of range")
    } else if !is_acl_right(&inode.acl_access) || !is_acl_right(&inode.acl_default) {
        Some("an access control list is not valid")
    } else {
        None
    }
}

fn check_starts(checker: &mut Checker<'_>, shard: ShardId) -> Result<(), Stop> {
    let (from, to) = key::table_range(shard, b'S');
    checker.scan(&from, &to, &mut |checker, record_key, value| {
        if *record_key != key::starts()[..] {
            checker.found(Finding::KeyMalformed { key: record_key.into() })?;
        } else if codec::decode::<Starts>(value, "starts").is_err() {
            checker.found(Finding::ValueMalformed { key: record_key.into() })?;
        }
        Ok(ControlFlow::Continue(()))
    })
}

/// Sessions that outlive the service, and the answers kept for them.
fn check_sessions(checker: &mut Checker<'_>, shard: ShardId) -> Result<(), Stop> {
    for (table, key_bytes) in [(b'K', 11), (b'N', 11), (b'R', 13)] {
        let (from, to) = key::table_range(shard, table);
        checker.scan(&from, &to, &mut |checker, record_key, value| {
            let is_whole = match table {
                _ if *record_key == key::incarnation()[..] => {
                    codec::decode::<u64>(value, "number of starts").is_ok()
                }
                _ if *record_key == key::unmet(SessionId(0))[..] => {
                    codec::decode::<u64>(value, "number of starts").is_ok()
                }
                b'K' => value.len().is_multiple_of(2),
                b'N' => codec::decode::<SessionOwner>(value, "session").is_ok(),
                _ => codec::decode::<KeptReply>(value, "kept answer").is_ok(),
            };
            if shard != ShardId(0) || record_key.len() != key_bytes {
                checker.found(Finding::KeyMalformed { key: record_key.into() })?;
            } else if !is_whole {
                checker.found(Finding::ValueMalformed { key: record_key.into() })?;
            }
            Ok(ControlFlow::Continue(()))
        })?;
    }
    Ok(())
}

/// What there is only with several metadata servers: the number of moves, shards to come, operations under way; and when something was lost.
fn check_servers(checker: &mut Checker<'_>, shard: ShardId) -> Result<(), Stop> {
    for table in [b'J', b'M', b'P', b'T', b'U'] {
        let (from, to) = key::table_range(shard, table);
        checker.scan(&from, &to, &mut |checker, record_key, value| {
            let (is_key, is_value) = match table {
                b'J' => (*record_key == key::joined()[..], value.is_empty()),
                b'M' => (*record_key == key::moves()[..], codec::decode::<u64>(value, "moves").is_ok()),
                b'U' => (*record_key == key::last_loss()[..], codec::decode::<u64>(value, "start").is_ok()),
                b'P' => {
                    let is_note = codec::decode::<Arriving>(value, "place").is_ok();
                    (*record_key == key::arriving(shard)[..], is_note)
                }
                // The service that wrote it knows the rest.
                _ => (key::transaction_of(record_key).is_some() && record_key.len() == 22, true),
            };
            if !is_key {
                checker.found(Finding::KeyMalformed { key: record_key.into() })?;
            } else if !is_value {
                checker.found(Finding::ValueMalformed { key: record_key.into() })?;
            }
            Ok(ControlFlow::Continue(()))
        })?;
    }
    Ok(())
}

fn check_counter(checker: &mut Checker<'_>, shard: ShardId, needed: u64) -> Result<(), Stop> {
    let counter_key = key::counter(shard);
    let (from, to) = key::table_range(shard, b'C');
    checker.scan(&from, &to, &mut |checker, record_key, _| {
        if *record_key != counter_key[..] {
            checker.found(Finding::KeyMalformed { key: record_key.into() })?;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    // A shard without a record has given out nothing; counter 1 is the root's.
    let stored = match checker.snapshot.get(&counter_key)? {
        None => 1,
        // One that does not decode counts as 0: any id in use is beyond it.
        Some(bytes) => codec::decode(&bytes, "inode counter").unwrap_or_default(),
    };
    if stored < needed { checker.found(Finding::CounterLow { shard, stored, needed }) } else { Ok(()) }
}
