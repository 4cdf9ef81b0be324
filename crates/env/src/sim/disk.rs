//! A disk in memory that can lose power, fail, fill up and stand still.

use super::content::Content;
use super::entropy::split_mix;
use super::faults::{DiskCounts, FaultOp, Plan, Verdict};
use super::tree::{Node, Tree};
use super::{BLOCK_BYTES, SECTOR_BYTES};
use crate::{Continuity, Disk, DiskFile, DiskSpace, OpenMode};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Capacity of a disk on which none was set, bytes.
const CAPACITY_DEFAULT: u64 = 1 << 40;

/// An open handle's number; the file's lock names its holder by it.
type HandleId = u64;

#[derive(Debug, Default)]
struct Inode {
    content: Content,
    handles: u64,
    locked_by: Option<HandleId>,
}

#[derive(Debug, Default)]
struct State {
    tree: Tree,
    inodes: BTreeMap<u64, Inode>,
    plan: Plan,
    capacity: Option<u64>,
    /// From there on each file is told to be a hole.
    hole_told_from: Option<u64>,
    /// Numbers for files and handles.
    next_id: u64,
    /// Grows with every crash; handles of earlier lives are dead.
    life: u64,
    /// Power cuts so far.
    crashes: u64,
    /// [`Disk::note_loss`] was called, and nobody has gone on since.
    is_loss_noted: bool,
    /// Losses that were noted and ended.
    losses: u64,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    thawed: Condvar,
}

/// A simulated disk. Clones are handles to one disk.
#[derive(Clone, Debug, Default)]
pub struct SimDisk {
    shared: Arc<Shared>,
}

/// An open file of a [`SimDisk`]. After a crash every call fails with EIO.
#[derive(Debug)]
pub struct SimFile {
    shared: Arc<Shared>,
    file: u64,
    handle: HandleId,
    life: u64,
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

/// How many of `len` bytes at `offset` are written by a process that is killed meanwhile: whole pages, `chance` decides how many.
fn pages_before_the_end(offset: u64, len: usize, chance: u64) -> usize {
    let first = BLOCK_BYTES - (offset % BLOCK_BYTES as u64) as usize;
    let pages = 1 + len.saturating_sub(first).div_ceil(BLOCK_BYTES);
    match (chance % (pages as u64 + 1)) as usize {
        0 => 0,
        pages => len.min(first + (pages - 1) * BLOCK_BYTES),
    }
}

/// How many of `len` bytes at `offset` a write that fails has written: whole sectors up to the middle; inside one sector all or nothing, by
/// `chance`.
fn sectors_before_the_middle(offset: u64, len: usize, chance: u64) -> usize {
    let sector = SECTOR_BYTES as u64;
    let middle = (offset + len as u64 / 2) / sector * sector;
    match middle.checked_sub(offset) {
        Some(kept) if kept > 0 => kept as usize,
        _ if (offset + len as u64).div_ceil(sector) - offset / sector > 1 => 0,
        _ => len * (chance % 2) as usize,
    }
}

impl Shared {
    /// The state, once the disk is not frozen.
    fn enter(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        while state.plan.is_frozen {
            self.thawed.wait(&mut state);
        }
        state
    }
}

impl State {
    /// Counts an operation that happens whole or not at all, and says whether it fails.
    fn admit(&mut self, op: FaultOp) -> io::Result<()> {
        match self.plan.judge(op) {
            Verdict::Proceed => Ok(()),
            Verdict::Fail(errno) => Err(io::Error::from_raw_os_error(errno)),
            Verdict::PowerCut | Verdict::PowerIsOff => Err(eio()),
        }
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn bytes_used(&self) -> u64 {
        let live = self.tree.files_live();
        let holding = self.inodes.iter().filter(|(file, inode)| inode.handles > 0 || live.contains(file));
        holding.map(|(_, inode)| inode.content.blocks_held() * BLOCK_BYTES as u64).sum()
    }

    /// Refuses what does not fit.
    fn require_space(&self, file: u64, offset: u64, len: u64) -> io::Result<()> {
        let Some(capacity) = self.capacity else { return Ok(()) };
        let Some(inode) = self.inodes.get(&file) else { return Ok(()) };
        let missing = inode.content.blocks_missing(offset, len);
        if missing > 0 && self.bytes_used() + missing * BLOCK_BYTES as u64 > capacity {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        Ok(())
    }

    /// Forgets files that no name, no handle and no crash can bring back.
    fn forget_unreachable(&mut self) {
        let reachable = self.tree.files_reachable();
        self.inodes.retain(|file, inode| inode.handles > 0 || reachable.contains(file));
    }
}

impl SimDisk {
    /// An empty disk.
    pub fn new() -> SimDisk {
        SimDisk::default()
    }

    /// Cuts the power and switches it on again: what was not synced is decided by `seed`, open handles are dead, and planned
    /// faults are gone.
    pub fn crash(&self, seed: u64) {
        let mut state = self.shared.state.lock();
        let mut random = seed;
        state.tree.crash(&mut random);
        state.life += 1;
        state.crashes += 1;
        for inode in state.inodes.values_mut() {
            inode.content.crash(&mut random);
            inode.handles = 0;
            inode.locked_by = None;
        }
        state.forget_unreachable();
        state.plan.reset();
        drop(state);
        self.shared.thawed.notify_all();
    }

    /// The process that used the disk is gone, but not the machine: handles are dead, locks free. Nothing is lost but what a failed sync has lost: of that some may not be in memory any
    /// more.
    pub fn kill_process(&self) {
        let mut state = self.shared.state.lock();
        state.life += 1;
        let mut random = state.plan.counts.writes;
        for inode in state.inodes.values_mut() {
            inode.content.reread(|| split_mix(&mut random).is_multiple_of(2));
            inode.handles = 0;
            inode.locked_by = None;
        }
        state.plan.reset();
        drop(state);
        self.shared.thawed.notify_all();
    }

    /// The `nth` operation of kind `op` from now (1 is the next) fails with `errno`. A failing write has written its first
    /// half, in whole sectors; a failing sync has lost what it should have made durable.
    pub fn fail_nth(&self, op: FaultOp, nth: u64, errno: i32) {
        self.shared.state.lock().plan.fail_nth(op, nth, errno);
    }

    /// How many failures that were asked for have not come yet.
    pub fn failures_left(&self) -> usize {
        self.shared.state.lock().plan.failures_left()
    }

    /// Failures that have not come yet do not come.
    pub fn forget_failures(&self) {
        self.shared.state.lock().plan.forget_failures();
    }

    /// Power goes off in the middle of the changing operation after the next `operations` ones; everything fails from
    /// then on until [`SimDisk::crash`].
    pub fn cut_power_after(&self, operations: u64) {
        self.shared.state.lock().plan.cut_power_after(operations);
    }

    /// Whether the planned power cut has come.
    pub fn is_power_off(&self) -> bool {
        self.shared.state.lock().plan.is_power_off
    }

    /// From `offset` on each file is told to be a hole, whatever is in it: a local file system that is wrong about that.
    pub fn tell_hole_from(&self, offset: u64) {
        self.shared.state.lock().hole_told_from = Some(offset);
    }

    /// Limits the space for file content, bytes; what is held already stays.
    pub fn set_capacity(&self, bytes: u64) {
        self.shared.state.lock().capacity = Some(bytes);
    }

    /// Every call from now on waits until [`SimDisk::thaw`], like a hung device.
    pub fn freeze(&self) {
        self.shared.state.lock().plan.is_frozen = true;
    }

    /// Ends [`SimDisk::freeze`].
    pub fn thaw(&self) {
        self.shared.state.lock().plan.is_frozen = false;
        self.shared.thawed.notify_all();
    }

    /// Changes bit `bit` (bit 0 is the lowest of byte 0) of a file, as bit rot does.
    ///
    /// # Errors
    /// `NotFound` when no such file exists.
    pub fn flip_bit(&self, path: &str, bit: u64) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        let Some(Node::File(file)) = state.tree.get(path) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        if let Some(inode) = state.inodes.get_mut(&file) {
            inode.content.flip_bit(bit);
        }
        Ok(())
    }

    /// What was carried out so far.
    pub fn counts(&self) -> DiskCounts {
        self.shared.state.lock().plan.counts
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.shared.enter();
        match mode {
            OpenMode::CreateOrOpen | OpenMode::CreateNew => state.admit(FaultOp::Name)?,
            OpenMode::Read | OpenMode::ReadWrite if state.plan.is_power_off => return Err(eio()),
            OpenMode::Read | OpenMode::ReadWrite => {}
        }
        let file = match (state.tree.get(path), mode) {
            (Some(Node::Dir), _) => return Err(io::Error::from_raw_os_error(libc::EISDIR)),
            (Some(Node::File(_)), OpenMode::CreateNew) => return Err(io::ErrorKind::AlreadyExists.into()),
            (Some(Node::File(file)), _) => file,
            (None, OpenMode::Read | OpenMode::ReadWrite) => return Err(io::ErrorKind::NotFound.into()),
            (None, OpenMode::CreateOrOpen | OpenMode::CreateNew) => {
                let file = state.new_id();
                state.tree.create_file(path, file)?;
                state.inodes.insert(file, Inode::default());
                file
            }
        };
        let handle = state.new_id();
        let life = state.life;
        state.inodes.entry(file).or_default().handles += 1;
        drop(state);
        Ok(Arc::new(SimFile { shared: Arc::clone(&self.shared), file, handle, life }))
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let state = self.shared.enter();
        if state.plan.is_power_off { Err(eio()) } else { state.tree.list(path) }
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        let mut state = self.shared.enter();
        state.admit(FaultOp::Name)?;
        state.tree.create_dir(path)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let mut state = self.shared.enter();
        state.admit(FaultOp::Name)?;
        state.tree.remove(path)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.shared.enter();
        state.admit(FaultOp::Name)?;
        state.tree.rename(from, to)
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        let mut state = self.shared.enter();
        state.admit(FaultOp::SyncDir)?;
        state.tree.sync_dir(path)?;
        state.forget_unreachable();
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        let mut state = self.shared.enter();
        match state.plan.judge(FaultOp::Sync) {
            Verdict::Proceed => {
                state.inodes.values_mut().for_each(|inode| inode.content.sync());
                state.tree.sync_all();
                state.forget_unreachable();
                Ok(())
            }
            Verdict::Fail(errno) => {
                state.inodes.values_mut().for_each(|inode| inode.content.fail_sync());
                Err(io::Error::from_raw_os_error(errno))
            }
            Verdict::PowerCut | Verdict::PowerIsOff => Err(eio()),
        }
    }

    fn space(&self) -> io::Result<DiskSpace> {
        let state = self.shared.enter();
        let bytes_total = state.capacity.unwrap_or(CAPACITY_DEFAULT);
        let bytes_free = bytes_total.saturating_sub(state.bytes_used());
        Ok(DiskSpace { bytes_total, bytes_free, file_system: None })
    }

    fn continuity(&self) -> Option<Continuity> {
        let state = self.shared.state.lock();
        let found = Continuity { boot: *b"simulated memory", mount: state.crashes };
        (!state.is_loss_noted).then(|| found.after(state.losses))
    }

    fn note_loss(&self, _what: &str) -> io::Result<()> {
        let mut state = self.shared.enter();
        state.admit(FaultOp::Name)?;
        state.is_loss_noted = true;
        Ok(())
    }

    fn end_loss(&self) -> io::Result<bool> {
        let mut state = self.shared.enter();
        if !state.is_loss_noted {
            return Ok(false);
        }
        state.admit(FaultOp::Name)?;
        state.inodes.values_mut().for_each(|inode| inode.content.reread(|| false));
        state.is_loss_noted = false;
        state.losses += 1;
        Ok(true)
    }

    fn describe(&self, path: &str) -> String {
        format!("sim:/{path}")
    }
}

impl SimFile {
    /// The state and this file's verdict for `op`; dead handles fail.
    fn enter(&self, op: FaultOp) -> io::Result<(MutexGuard<'_, State>, Verdict)> {
        let mut state = self.shared.enter();
        if state.life != self.life {
            return Err(eio());
        }
        let verdict = state.plan.judge(op);
        if verdict == Verdict::PowerIsOff { Err(eio()) } else { Ok((state, verdict)) }
    }

    /// Applies a change that takes space, whole or (when it fails) not at all.
    fn change(
        &self,
        op: FaultOp,
        space: Option<(u64, u64)>,
        apply: impl FnOnce(&mut Content),
    ) -> io::Result<()> {
        let (mut state, verdict) = self.enter(op)?;
        if let Verdict::Fail(errno) = verdict {
            return Err(io::Error::from_raw_os_error(errno));
        }
        if let Some((offset, len)) = space {
            state.require_space(self.file, offset, len)?;
        }
        apply(&mut state.inodes.get_mut(&self.file).ok_or_else(eio)?.content);
        if verdict == Verdict::PowerCut { Err(eio()) } else { Ok(()) }
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let (state, verdict) = self.enter(FaultOp::Read)?;
        if let Verdict::Fail(errno) = verdict {
            return Err(io::Error::from_raw_os_error(errno));
        }
        Ok(state.inodes.get(&self.file).ok_or_else(eio)?.content.read(offset, out))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let (mut state, verdict) = self.enter(FaultOp::Write)?;
        state.require_space(self.file, offset, data.len() as u64)?;
        let cut = pages_before_the_end(offset, data.len(), state.plan.counts.writes);
        let half = sectors_before_the_middle(offset, data.len(), state.plan.counts.writes);
        let content = &mut state.inodes.get_mut(&self.file).ok_or_else(eio)?.content;
        match verdict {
            Verdict::Fail(errno) => {
                content.write(offset, &data[..half]);
                Err(io::Error::from_raw_os_error(errno))
            }
            Verdict::PowerCut | Verdict::PowerIsOff => {
                // The kernel copies page by page and stops between two of them when the process is killed.
                content.write(offset, &data[..cut]);
                Err(eio())
            }
            Verdict::Proceed => {
                content.write(offset, data);
                Ok(())
            }
        }
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        self.write_at(offset, &parts.concat())
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        let state = self.shared.enter();
        if state.life != self.life || state.plan.is_power_off {
            return Err(eio());
        }
        let found = state.inodes.get(&self.file).ok_or_else(eio)?.content.next_data(offset);
        let end_told = state.hole_told_from.unwrap_or(u64::MAX);
        Ok(found.map(|found| found.start..found.end.min(end_told)).filter(|found| !found.is_empty()))
    }

    fn sync_data(&self) -> io::Result<()> {
        let (mut state, verdict) = self.enter(FaultOp::Sync)?;
        let content = &mut state.inodes.get_mut(&self.file).ok_or_else(eio)?.content;
        match verdict {
            Verdict::Proceed => {
                content.sync();
                Ok(())
            }
            Verdict::Fail(errno) => {
                content.fail_sync();
                Err(io::Error::from_raw_os_error(errno))
            }
            Verdict::PowerCut | Verdict::PowerIsOff => Err(eio()),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(FaultOp::Write, None, |content| content.set_len(len))
    }

    fn len(&self) -> io::Result<u64> {
        let state = self.shared.enter();
        if state.life != self.life || state.plan.is_power_off {
            return Err(eio());
        }
        Ok(state.inodes.get(&self.file).ok_or_else(eio)?.content.len())
    }

    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        self.change(FaultOp::Write, None, |content| content.punch_hole(offset, len))
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.change(FaultOp::Allocate, Some((offset, len)), |content| content.allocate(offset, len))
    }

    fn try_lock(&self) -> io::Result<()> {
        let mut state = self.shared.enter();
        if state.life != self.life || state.plan.is_power_off {
            return Err(eio());
        }
        let inode = state.inodes.get_mut(&self.file).ok_or_else(eio)?;
        match inode.locked_by {
            Some(holder) if holder != self.handle => Err(io::ErrorKind::WouldBlock.into()),
            _ => {
                inode.locked_by = Some(self.handle);
                Ok(())
            }
        }
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        if state.life != self.life {
            return;
        }
        if let Some(inode) = state.inodes.get_mut(&self.file) {
            inode.handles = inode.handles.saturating_sub(1);
            if inode.locked_by == Some(self.handle) {
                inode.locked_by = None;
            }
        }
    }
}
