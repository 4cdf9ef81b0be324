//! `repair`: does what one finding of the check calls for, where that is safe to do without a person.

use super::forget_inode::forget_inode;
use super::mkdir::mkdir;
use super::{entry, slice};
use crate::body;
use crate::check::{EntryName, Finding};
use crate::context::OpContext;
use crate::error::NsError;
use crate::key::{self, COLLISIONS_MAX, NameHash};
use crate::record::{Account, BucketEntry, FileData, Inode, Kind};
use crate::txn::Txn;
use ashlar_types::{Errno, FileType, FilesetId, InodeId, Name, ShardId};

/// Where what has lost its name gets one.
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// Repairs one finding. Returns whether anything was changed: nothing is when the finding no longer holds, or when a person has to
/// decide ([`Finding::remedy`]). Findings are repaired in the order the check told them, with root's credentials, while nothing else
/// changes the namespace.
///
/// # Errors
/// `ENOSPC` or `ENOTDIR` when there is no room for a name in `lost+found`; [`NsError::Kv`] when the store cannot answer.
pub fn repair(txn: &mut Txn<'_>, context: &OpContext<'_>, finding: &Finding) -> Result<bool, NsError> {
    use Finding as F;
    match finding {
        F::KeyMalformed { .. }
        | F::ValueMalformed { .. }
        | F::InodeMalformed { .. }
        | F::BucketMalformed { .. }
        | F::Loop { .. } => Ok(false),
        F::RecordStray { key } => delete_record(txn, key),
        F::OrphanNamed { inode, session } => delete_record(txn, &key::orphan(*inode, *session)),
        F::GarbageLive { inode, generation } => delete_record(txn, &key::garbage(*inode, *generation)),
        F::Account { shard, owner, stored, summed } => {
            correct_account(txn, *shard, *owner, (*stored, *summed))
        }
        F::CounterLow { shard, needed, .. } => {
            txn.put_record(key::counter(*shard), needed);
            Ok(true)
        }
        F::DirectorySize { inode, counted, .. } | F::LinkSize { inode, counted, .. } => {
            set(txn, *inode, |inode| inode.size = *counted)
        }
        F::Nlink { inode, counted, .. } => set(txn, *inode, |inode| inode.nlink = *counted),
        F::Blocks { inode, counted, .. } => set(txn, *inode, |inode| inode.blocks = *counted),
        F::XattrFlag { inode, stored } => set(txn, *inode, |inode| inode.has_xattrs = !stored),
        F::BodyBeyondEnd { inode, .. } => cut_body(txn, *inode),
        F::GarbageAhead { inode, generation } => pass_generation(txn, *inode, *generation),
        F::EntryMisplaced { entry } => move_entry(txn, context, entry),
        F::EntryOutside { entry } => move_to_its_part(txn, context, entry),
        F::SplitForgotten { inode } => {
            txn.put(key::halfway(*inode), bytes::Bytes::new());
            Ok(true)
        }
        F::EntryDangling { entry, inode } | F::EntryExtra { entry, inode } => {
            remove_entry(txn, entry, *inode)
        }
        F::EntryType { entry, stored, actual } => set_entry_type(txn, entry, *stored, *actual),
        F::SliceStray { inode, of } => own_stray_slice(txn, context, *inode, *of),
        F::SliceMissing { directory, index, inode } => {
            make_slice_anew(txn, context, (*directory, *index), *inode)
        }
        F::SliceRules { directory, inode } => {
            let directory = txn.inode(*directory)?.clone();
            set(txn, *inode, |inode| {
                slice::copy_rules(&directory, inode);
                slice::set_filled_until(inode, directory.border());
            })
        }
        F::Parent { inode, found, .. } => set(txn, *inode, |inode| {
            inode.set_parent(*found);
        }),
        F::Unreachable { inode } => name_again(txn, context, *inode),
        F::Forgotten { inode } => forget(txn, *inode),
    }
}

fn delete_record(txn: &mut Txn<'_>, record_key: &[u8]) -> Result<bool, NsError> {
    let is_there = txn.get(record_key)?.is_some();
    if is_there {
        txn.delete(ashlar_kv::Key::from_slice(record_key));
    }
    Ok(is_there)
}

fn set(txn: &mut Txn<'_>, id: InodeId, change: impl FnOnce(&mut Inode)) -> Result<bool, NsError> {
    if txn.find_inode(id)?.is_none() {
        return Ok(false);
    }
    change(txn.inode_mut(id)?);
    Ok(true)
}

/// Corrects by the difference, because earlier repairs have changed counter and inodes together.
fn correct_account(
    txn: &mut Txn<'_>,
    shard: ShardId,
    (fileset, uid, gid, month): (FilesetId, u32, u32, u16),
    (stored, summed): (Option<Account>, Account),
) -> Result<bool, NsError> {
    let account_key = key::account(shard, fileset, uid, gid, month);
    let corrected = match stored {
        None => summed,
        Some(stored) => {
            let now: Account = txn.get_record(&account_key, "account")?.unwrap_or_default();
            let correct =
                |now: u64, stored: u64, summed: u64| now.saturating_add(summed).saturating_sub(stored);
            Account {
                inodes: correct(now.inodes, stored.inodes, summed.inodes),
                // As in `Txn::account`.
                bytes: now.bytes.wrapping_add(summed.bytes).wrapping_sub(stored.bytes),
                blocks: correct(now.blocks, stored.blocks, summed.blocks),
            }
        }
    };
    if corrected == Account::default() {
        txn.delete(account_key);
    } else {
        txn.put_record(account_key, &corrected);
    }
    Ok(true)
}

fn cut_body(txn: &mut Txn<'_>, id: InodeId) -> Result<bool, NsError> {
    let Some(inode) = txn.find_inode(id)? else { return Ok(false) };
    let size = inode.size;
    let delta = body::cut(txn, id, size)?;
    body::add_blocks(txn.inode_mut(id)?, delta);
    txn.touch(id);
    Ok(true)
}

fn pass_generation(txn: &mut Txn<'_>, id: InodeId, beyond: u32) -> Result<bool, NsError> {
    let Some(inode) = txn.find_inode(id)? else { return Ok(false) };
    match inode.kind {
        // One more, so that the record is not taken for a pending proposal.
        Kind::Regular(FileData::Inline { policy, generation }) if generation < beyond => {
            let generation = beyond.checked_add(1).ok_or(Errno::ENOSPC)?;
            set(txn, id, |inode| inode.kind = Kind::Regular(FileData::Inline { policy, generation }))
        }
        Kind::Regular(FileData::Chunks { .. }) => delete_record(txn, &key::garbage(id, beyond)),
        _ => Ok(false),
    }
}

/// Takes an entry out of its bucket and gives it back; `None` when it is not there.
fn take_entry(txn: &mut Txn<'_>, place: &EntryName) -> Result<Option<BucketEntry>, NsError> {
    let mut bucket = txn.bucket(place.directory, place.hash)?;
    let Some(at) = bucket.entries.iter().position(|entry| entry.name == place.name) else { return Ok(None) };
    let entry = bucket.entries.remove(at);
    txn.put_bucket(place.directory, place.hash, &bucket, Name::new(&place.name)?);
    Ok(Some(entry))
}

/// Puts an entry into the bucket of `hash`, with a free collision number.
fn put_entry(
    txn: &mut Txn<'_>,
    directory: InodeId,
    hash: NameHash,
    mut entry: BucketEntry,
) -> Result<(), NsError> {
    let mut bucket = txn.bucket(directory, hash)?;
    let is_free = |number: &u8| bucket.entries.iter().all(|other| other.collision != *number);
    entry.collision = (0..=COLLISIONS_MAX).find(is_free).ok_or(Errno::ENOSPC)?;
    let name = entry.name.clone();
    let at = bucket.entries.partition_point(|other| other.collision < entry.collision);
    bucket.entries.insert(at, entry);
    txn.put_bucket(directory, hash, &bucket, Name::new(&name)?);
    Ok(())
}

fn move_entry(txn: &mut Txn<'_>, context: &OpContext<'_>, place: &EntryName) -> Result<bool, NsError> {
    let name = Name::new(&place.name)?;
    let hash = NameHash::of(name, context.hash_key);
    let right = txn.bucket(place.directory, hash)?;
    // Somebody has made the name anew meanwhile: the misplaced one could not be seen. It stays for a person to look at.
    if hash == place.hash || right.entries.iter().any(|entry| entry.name == place.name) {
        return Ok(false);
    }
    let Some(entry) = take_entry(txn, place)? else { return Ok(false) };
    put_entry(txn, place.directory, hash, entry)?;
    Ok(true)
}

/// Moves an entry to the part of its directory that has names of its hash.
fn move_to_its_part(txn: &mut Txn<'_>, context: &OpContext<'_>, place: &EntryName) -> Result<bool, NsError> {
    let name = Name::new(&place.name)?;
    let hash = NameHash::of(name, context.hash_key);
    let Some(record) = txn.find_inode(place.directory)? else { return Ok(false) };
    let shown = record.shown_as(place.directory);
    if txn.find_inode(shown)?.is_none() {
        return Ok(false);
    }
    let holder = slice::holder(txn, context, shown, name)?;
    if hash != place.hash || holder == place.directory {
        return Ok(false);
    }
    // As above: one that was made meanwhile stays.
    if txn.bucket(holder, hash)?.entries.iter().any(|entry| entry.name == place.name) {
        return Ok(false);
    }
    let Some(entry) = take_entry(txn, place)? else { return Ok(false) };
    let subdirectories = u32::from(entry.file_type == FileType::Directory);
    put_entry(txn, holder, hash, entry)?;
    set(txn, place.directory, |directory| {
        directory.size = directory.size.saturating_sub(1);
        directory.nlink = directory.nlink.saturating_sub(subdirectories);
    })?;
    set(txn, holder, |directory| {
        directory.size = directory.size.saturating_add(1);
        directory.nlink = directory.nlink.saturating_add(subdirectories);
    })
}

fn remove_entry(txn: &mut Txn<'_>, place: &EntryName, id: InodeId) -> Result<bool, NsError> {
    let bucket = txn.bucket(place.directory, place.hash)?;
    if !bucket.entries.iter().any(|entry| entry.name == place.name && entry.inode == id) {
        return Ok(false);
    }
    let Some(entry) = take_entry(txn, place)? else { return Ok(false) };
    let is_directory = entry.file_type == FileType::Directory;
    set(txn, place.directory, |directory| {
        directory.size = directory.size.saturating_sub(1);
        directory.nlink = directory.nlink.saturating_sub(u32::from(is_directory));
    })
}

fn set_entry_type(
    txn: &mut Txn<'_>,
    place: &EntryName,
    stored: FileType,
    actual: FileType,
) -> Result<bool, NsError> {
    let mut bucket = txn.bucket(place.directory, place.hash)?;
    let Some(entry) = bucket.entries.iter_mut().find(|entry| entry.name == place.name) else {
        return Ok(false);
    };
    entry.file_type = actual;
    txn.put_bucket(place.directory, place.hash, &bucket, Name::new(&place.name)?);
    set(txn, place.directory, |directory| {
        directory.nlink = directory
            .nlink
            .saturating_add(u32::from(actual == FileType::Directory))
            .saturating_sub(u32::from(stored == FileType::Directory));
    })
}

/// Gives an inode without a name one in `lost+found`, which is made if it is not there.
fn name_again(txn: &mut Txn<'_>, context: &OpContext<'_>, id: InodeId) -> Result<bool, NsError> {
    let Some(inode) = txn.find_inode(id)?.filter(|inode| inode.nlink > 0) else { return Ok(false) };
    let file_type = inode.file_type();
    let lost = Name::new(LOST_AND_FOUND)?;
    let root = slice::holder(txn, context, InodeId::ROOT, lost)?;
    let lost_and_found = match entry::locate(txn, context, root, lost)?.entry() {
        Some(entry) => entry.inode,
        None => mkdir(txn, context, root, lost, 0o700, 0)?.attr.inode,
    };
    txn.inode(lost_and_found)?.as_directory()?;
    let text = format!("#{}-{}", id.home().0, id.counter());
    let name = Name::new(text.as_bytes())?;
    let holder = slice::holder(txn, context, lost_and_found, name)?;
    let place = entry::locate(txn, context, holder, name)?;
    if place.entry().is_some() {
        return Ok(false);
    }
    place.set(txn, (id, file_type))?;
    let is_directory = file_type == FileType::Directory;
    entry::count(txn.inode_mut(holder)?, context.now, 1, i32::from(is_directory))?;
    set(txn, id, |inode| {
        inode.ctime = context.now;
        match is_directory {
            true => inode.set_parent(lost_and_found),
            false => inode.nlink = 1,
        }
    })
}

/// Makes a directory of its own of a slice that its directory does not have, or removes it if it has no entries.
fn own_stray_slice(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    id: InodeId,
    of: InodeId,
) -> Result<bool, NsError> {
    let is_named = txn.find_inode(of)?.is_some_and(|directory| directory.slices().contains(&id));
    let Some(record) = txn.find_inode(id)?.filter(|_| !is_named) else { return Ok(false) };
    let (Kind::Slice { policy, .. } | Kind::SliceInSplit { policy, .. }) = record.kind else {
        return Ok(false);
    };
    if record.size == 0 {
        txn.remove_inode(id)?;
        return Ok(true);
    }
    txn.inode_mut(id)?.kind = Kind::Directory { parent: InodeId::ROOT, policy };
    name_again(txn, context, id)
}

fn make_slice_anew(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    (id, index): (InodeId, u16),
    slice: InodeId,
) -> Result<bool, NsError> {
    let Some(directory) = txn.find_inode(id)?.cloned() else { return Ok(false) };
    let is_named = directory.slices().get(usize::from(index)) == Some(&slice);
    if !is_named || txn.find_inode(slice)?.is_some() {
        return Ok(false);
    }
    let count = directory.slices().len() as u16;
    let mut record = slice::new_slice((id, &directory), (index, count), context.now);
    slice::set_filled_until(&mut record, directory.border());
    // Not as a new one: that there is none under this id has been read.
    *txn.inode_slot(slice)? = Some(record);
    Ok(true)
}

fn forget(txn: &mut Txn<'_>, id: InodeId) -> Result<bool, NsError> {
    if txn.find_inode(id)?.is_none_or(|inode| inode.nlink > 0) {
        return Ok(false);
    }
    forget_inode(txn, id)?;
    Ok(true)
}
