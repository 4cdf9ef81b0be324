//! What the client knows of a file that is open: its leases, size, where its bytes are, and what it has not reported yet.
//!
//! | state | reads | writes |
//! |---|---|---|
//! | no lease | wait for READ | wait for WRITE (chunks); inline writes go to metadata |
//! | READ | served | wait for WRITE |
//! | WRITE | served | served; size and times are reported at close, fsync, recall |
//! | SHARE | past the page cache: served; else as without | past the page cache: served, and reported as under WRITE; else as without |
//! | draining | wait | wait |
//!
//! Nobody waits for a lease while draining: a read that holds a lock on a page of the kernel may be waiting for the end of the draining,
//! and the lease for that page. So what needs the file for itself has WRITE first, see `data::Exclusive`.

use crate::close_to_open::Version;
use crate::io::{BlockDoubt, Fills, Growth, SetId};
use crate::listed::Listed;
use crate::pages::Pages;
use crate::through::Through;
use ashlar_env::Signal;
use ashlar_types::message::{DataGrant, LeaseSet};
use ashlar_types::{
    DescriptionId, Durability, Errno, FileLayout, InodeId, LockOwner, OpenProof, SessionId, Timespec,
};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;

/// How a file was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// Every write goes to the end.
    pub append: bool,
    /// Emptied on open.
    pub truncate: bool,
    /// Every write is durable before it returns (`O_SYNC`, `O_DSYNC`).
    pub sync: bool,
    /// Opened to be executed.
    pub exec: bool,
    /// `O_NOATIME`: reading does not change the access time.
    pub no_atime: bool,
    /// `O_DIRECT`, of which the kernel knows: it caches no pages for this description, whatever it reads and writes.
    pub past_cache: bool,
}

/// An open file description.
#[derive(Debug)]
pub struct Handle {
    /// Which one it is; no other of this client ever has the same.
    pub(crate) number: u64,
    /// The file.
    pub file: Arc<File>,
    /// How it was opened.
    pub flags: OpenFlags,
    /// Whether the kernel must not cache pages for it.
    pub is_shared: bool,
    /// Lock owners that took a lock through it, so that a close without any need not ask.
    pub(crate) lock_owners: Mutex<Vec<(LockOwner, bool)>>,
    /// Of a directory: how far it is listed.
    pub(crate) listed: Mutex<Listed>,
}

impl Handle {
    /// By which metadata knows it.
    pub fn description(&self) -> DescriptionId {
        DescriptionId(self.number)
    }

    pub(crate) fn new(number: u64, file: Arc<File>, flags: OpenFlags, is_shared: bool) -> Handle {
        Handle { number, file, flags, is_shared, lock_owners: Mutex::default(), listed: Mutex::default() }
    }
}

/// Where the bytes are, as far as known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// With the inode; the whole content if it is small and nobody has changed it since.
    Inline(Option<Bytes>),
    /// In chunks.
    Chunks(Arc<FileLayout>),
}

impl From<DataGrant> for Data {
    fn from(grant: DataGrant) -> Data {
        match grant {
            DataGrant::Inline { body } => Data::Inline(body),
            DataGrant::Chunks { layout } => Data::Chunks(Arc::new(layout)),
        }
    }
}

/// What is only known here until it is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unreported {
    /// Change of allocated units of 512 bytes.
    pub blocks_delta: i64,
    /// Time of the last write.
    pub mtime: Option<Timespec>,
    /// Time of the last read, if it is to be recorded.
    pub atime: Option<Timespec>,
    /// Whether a call of a program changed the content, and not only pages of mappings that were written back: file capabilities go.
    pub is_of_a_call: bool,
}

impl Unreported {
    /// What is to be reported when `newer` has come before this was.
    pub(crate) fn merged(self, newer: Unreported) -> Unreported {
        Unreported {
            blocks_delta: self.blocks_delta.saturating_add(newer.blocks_delta),
            mtime: newer.mtime.or(self.mtime),
            atime: newer.atime.or(self.atime),
            is_of_a_call: self.is_of_a_call || newer.is_of_a_call,
        }
    }
}

/// State behind a file's lock.
#[derive(Debug)]
pub(crate) struct FileState {
    /// READ, WRITE and SHARE, as granted and not given back.
    pub leases: LeaseSet,
    /// When what is known of the content was asked for, on the monotonic clock, and which state of it that was. For sessions that are close-to-open.
    pub learnt: Duration,
    pub version: Version,
    /// WRITE was asked for to write back pages of a mapping, so file capabilities are still there: a write of a program asks anew.
    pub is_for_writeback: bool,
    /// WRITE was asked for by a call for which recalls wait, a truncation, say, so it may have come before others have given READ back: a write for which recalls do
    /// not wait asks anew. Kept when WRITE is lost: the service hears of that later, and what it takes meanwhile it takes as under WRITE.
    pub may_be_early: bool,
    /// Valid while a lease is held.
    pub data: Data,
    /// Bytes up to which it lives with its inode, as last known.
    pub inline_bytes: u64,
    /// Places behind the end that appends under way have taken.
    pub appends: Appends,
    /// Length in bytes; valid while a lease is held.
    pub size: u64,
    pub unreported: Unreported,
    /// The time of change that metadata had when SHARE was granted. A later one is that of a write of somebody else, and may be newer than what is known here.
    pub mtime_shared: Option<Timespec>,
    /// Whether size, blocks or mtime differ from what metadata knows; an access time in `unreported` may wait besides.
    pub is_dirty: bool,
    /// Whether the chunks may have grown or shrunk by more than anybody was told. The blocks are counted anew then
    /// ([`crate::Client::count_if_unsure`]).
    pub block_doubt: BlockDoubt,
    /// Size (0: as metadata knows it) and the rest of a report that is on its way to metadata.
    pub reporting: Option<(u64, Unreported)>,
    /// Whether nobody can have been promised that the inline content is durable: the file was empty when this client opened it, it has
    /// held a lease ever since, so that nobody else has written, and it has not synced the file since.
    pub is_unpromised: bool,
    /// Access time and time of the last change as last known, for `relatime`.
    pub times: (Timespec, Timespec),
    /// Reads and writes under way.
    pub in_flight: u32,
    /// Inline writes under way. They go to metadata without a lease, and may wait there for leases of others; so a recall must not
    /// wait for them, or two sessions that write one file would wait for each other.
    pub inline_writes: u32,
    /// The size of the file after the last inline writes, and how often a lease had been asked for by then: the answers to that ask and those before may be from before them.
    pub inline_written: Option<(u64, u64)>,
    /// Leases asked for ever.
    pub asks: u64,
    /// Of the changes that `lease_epoch` counts those by which something was gained.
    pub gains: u64,
    /// The last session of this client that has ended since the file was opened.
    pub ended: Option<SessionId>,
    /// Grows whenever leases are lost or gained: what was learnt under an older one is void.
    pub lease_epoch: u64,
    /// Reads and writes begun ever.
    pub begun: u64,
    /// What is known of its set-id bits.
    pub set_id: SetId,
    /// What the kernel may have in its page cache.
    pub pages: Pages,
    /// Writes that have come through it and are not answered.
    pub through: Through,
    /// Requests for pages.
    pub fills: Fills,
    /// Whether somebody needs the file for itself; new reads and writes wait.
    pub is_draining: bool,
    /// Which leases are being asked for; what needs one waits for that answer, what has one goes on.
    pub asking: [bool; ASKED],
    /// Whether one of them is SHARE, and nothing else has been asked for since.
    pub is_asking_to_share: bool,
    /// Open handles, and whether each is for writing.
    pub handles: SmallVec<[(DescriptionId, bool); 2]>,
    /// That a server has let this machine open it, for the most that any handle could; of files of other machines only.
    pub proof: Option<OpenProof>,
    /// Those of them that can read.
    pub readers: u32,
    /// Those that can read and write: only through them a program may store into a mapping, which keeps them open.
    pub storers: u32,
    /// Those through which the kernel may cache pages without being asked to map the file.
    pub cachers: SmallVec<[DescriptionId; 2]>,
    /// Last closes under way: the file is known until they have told metadata what there was to be told.
    pub closing: u32,
    /// Descriptions through which it was not told yet that what was written may be lost.
    // LIMIT: as handles.
    pub untold_losses: SmallVec<[DescriptionId; 1]>,
    /// How durable an acknowledged write is to be.
    pub durability: Durability,
    /// Owners of fcntl locks taken through any handle of the file, and through which.
    // LIMIT: an owner goes with its first close of the file, which drops its locks; the kernel bounds processes that have it open.
    pub lock_owners: FxHashMap<LockOwner, SmallVec<[u64; 1]>>,
    /// Descriptions through which locks were held that are lost: whoever relied on one must not go on.
    // LIMIT: as handles.
    pub lost_locks: SmallVec<[DescriptionId; 1]>,
    /// Handles that may have a `flock`, by the address at which the kernel has their descriptions.
    // LIMIT: one for each handle.
    pub flocks: FxHashMap<LockOwner, u64>,
}

impl FileState {
    /// A server has lost something of the file: each description of it is to hear of that with its next sync.
    pub(crate) fn note_loss(&mut self) {
        self.untold_losses = self.handles.iter().map(|(description, _)| *description).collect();
    }

    /// Tells whoever has synced the file through `description` what was lost, once.
    ///
    /// # Errors
    /// `EIO` for that.
    pub(crate) fn tell_loss(&mut self, description: DescriptionId) -> Result<(), Errno> {
        let before = self.untold_losses.len();
        self.untold_losses.retain(|untold| *untold != description);
        if self.untold_losses.len() == before { Ok(()) } else { Err(Errno::EIO) }
    }

    /// Of a file of which nothing is known yet: no lease is held, so it is asked about before it is used.
    pub(crate) fn unknown() -> FileState {
        let never = Timespec { secs: 0, nanos: 0 };
        FileState {
            leases: LeaseSet::NONE,
            learnt: Duration::ZERO,
            version: Version::default(),
            is_for_writeback: false,
            may_be_early: false,
            data: Data::Inline(None),
            inline_bytes: 0,
            appends: Appends::default(),
            size: 0,
            unreported: Unreported::default(),
            mtime_shared: None,
            is_dirty: false,
            block_doubt: BlockDoubt::None,
            reporting: None,
            is_unpromised: false,
            times: (never, never),
            in_flight: 0,
            inline_writes: 0,
            inline_written: None,
            asks: 0,
            gains: 0,
            ended: None,
            lease_epoch: 0,
            begun: 0,
            set_id: SetId::default(),
            // The kernel may have any page.
            pages: Pages::unknown(),
            through: Through::default(),
            fills: Fills::default(),
            is_draining: false,
            asking: [false; ASKED],
            is_asking_to_share: false,
            handles: SmallVec::new(),
            proof: None,
            readers: 0,
            storers: 0,
            cachers: SmallVec::new(),
            closing: 0,
            untold_losses: SmallVec::new(),
            durability: Durability::default(),
            lock_owners: FxHashMap::default(),
            lost_locks: SmallVec::new(),
            flocks: FxHashMap::default(),
        }
    }

    /// Notes what calls to the storage service have changed of the space that it takes.
    pub(crate) fn note_grown(&mut self, grown: Growth) {
        self.unreported.blocks_delta += grown.blocks_delta;
        self.doubt_blocks(grown.doubt);
    }

    /// Notes why the chunks may have other blocks than anybody was told; nothing that is less than what is known already.
    pub(crate) fn doubt_blocks(&mut self, doubt: BlockDoubt) {
        self.block_doubt = self.block_doubt.max(doubt);
    }

    /// Where the next write goes: to `offset`, or behind all appends.
    pub(crate) fn place(&self, append: bool, offset: u64) -> u64 {
        if append { self.size.max(self.appends.end) } else { offset }
    }

    /// Whether a report of what was written is on its way to metadata.
    pub(crate) fn is_report_on_its_way(&self) -> bool {
        self.reporting
            .is_some_and(|(size, taken)| size > 0 || taken.mtime.is_some() || taken.blocks_delta != 0)
    }

    /// Whether something was written that no report has taken yet.
    pub(crate) fn is_written(&self) -> bool {
        self.is_dirty || self.unreported.mtime.is_some() || self.unreported.blocks_delta != 0
    }

    /// Whether something was written that metadata may not know of yet.
    pub(crate) fn is_unreported(&self) -> bool {
        self.is_written() || self.is_report_on_its_way()
    }

    /// When the content was changed the last time, as metadata tells `told`, and this client knows of an own write at `own`, which it has not reported. Alone it knows
    /// better, whatever the clock says: times are reported before they are set.
    pub(crate) fn newest_change(&self, told: Timespec, own: Timespec) -> Timespec {
        match self.mtime_shared {
            Some(before) if told != before => told.max(own),
            // Of a session that has ended.
            _ if self.ended.is_some()
                && !self.is_dirty
                && self.reporting.is_none()
                && !self.leases.meets(LeaseSet::WRITING) =>
            {
                told.max(own)
            }
            _ => own,
        }
    }

    /// What was granted is not held any more, and what was learnt under it is void; others may write the file, and have that made durable.
    pub(crate) fn lose_leases(&mut self) {
        self.leases = LeaseSet::NONE;
        self.lease_epoch += 1;
        self.is_unpromised = false;
    }

    /// The session has ended: leases are lost, and how long the file is and what its chunks take metadata asks the targets itself. Others may change that from then on, so what was known
    /// here is told nobody any more; but when it was written is.
    pub(crate) fn end_session(&mut self, ended: SessionId) {
        // What is under way may be counted there, or come too late.
        if self.is_unreported() || self.leases.meets(LeaseSet::WRITING) || self.in_flight > 0 {
            self.doubt_blocks(BlockDoubt::MadeAgain);
        }
        self.ended = Some(ended);
        self.is_dirty = false;
        // File capabilities went when WRITE was asked for; others may have set some since.
        (self.unreported.blocks_delta, self.unreported.is_of_a_call) = (0, false);
        self.lose_leases();
    }

    fn end_asking(&mut self, asked: Asked) {
        self.asking[asked as usize] = false;
        // It is asked for alone.
        self.is_asking_to_share = false;
    }

    /// Notes that the file was `size` bytes long after an inline write.
    pub(crate) fn note_inline_written(&mut self, size: u64) {
        let before = self.inline_written.filter(|(_, asks)| *asks == self.asks);
        self.inline_written = Some((before.map_or(size, |(known, _)| known.max(size)), self.asks));
    }

    /// Whether any lease is being asked for.
    pub(crate) fn is_asking(&self) -> bool {
        self.asking.contains(&true)
    }

    /// What is known of content with the inode is void; it is asked for anew, and somebody may have been promised that it is durable.
    pub(crate) fn forget_inline(&mut self) {
        self.leases = LeaseSet::NONE;
        self.is_unpromised = false;
    }

    /// By a panic of a call that changes the content nobody knows whether it did: what is known here is void, and asked for anew.
    pub(crate) fn doubt_if_panicking(&mut self) {
        if std::thread::panicking() {
            self.leases = LeaseSet::NONE;
        }
    }
}

/// Where the next append goes while others are under way. The length grows only with bytes that are there: an append that fails must not
/// leave zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Appends {
    under_way: u32,
    /// End of the last place taken, bytes; meaningful while an append is under way, else 0.
    pub end: u64,
}

impl Appends {
    /// Takes the place that ends at `end`.
    pub(crate) fn begin(&mut self, end: u64) {
        self.under_way += 1;
        self.end = end;
    }

    /// An append to the place that ends at `end` got as far as `written_end`; what it left is free again if nobody is behind it.
    pub(crate) fn finish(&mut self, end: u64, written_end: u64) {
        self.under_way -= 1;
        if self.end == end {
            self.end = written_end;
        }
        if self.under_way == 0 {
            self.end = 0;
        }
    }
}

/// An open file.
#[derive(Debug)]
pub struct File {
    /// Which.
    pub inode: InodeId,
    pub(crate) state: Mutex<FileState>,
    pub(crate) changed: Signal,
    wait_max: Duration,
}

/// Counts a read or write as under way for as long as it lives.
pub(crate) struct InFlight<'a>(&'a File);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.in_flight -= 1;
        // One that is left may be whoever waits for the others (`Client::exclusive`).
        if state.in_flight <= 1 {
            drop(state);
            self.0.changed.notify_all();
        }
    }
}

/// A report on its way to metadata, for as long as it lives.
pub(crate) struct Reporting<'a>(&'a File);

impl Drop for Reporting<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        if let Some((size, taken)) = state.reporting.take().filter(|_| std::thread::panicking()) {
            // Whether metadata has it nobody knows; a length and times can be told twice.
            state.unreported = taken.merged(state.unreported);
            state.is_dirty |= size > 0;
        }
        drop(state);
        self.0.changed.notify_all();
    }
}

/// Counts an inline write as under way for as long as it lives.
pub(crate) struct InlineWrite<'a>(&'a File);

impl Drop for InlineWrite<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.inline_writes -= 1;
        state.doubt_if_panicking();
        drop(state);
        self.0.changed.notify_all();
    }
}

/// A lease is being asked for until [`Acquiring::end`], or until the call for it has come to nothing.
pub(crate) struct Acquiring<'a> {
    file: &'a File,
    asked: Asked,
    is_over: bool,
}

/// What a lease is asked for. Each by itself: the answer to a recall may wait for a read, or for pages that are written back, and these must not wait for what a
/// program writes, which may wait for somebody else's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Read,
    Write,
    WriteBack,
}

/// How many there are.
pub(crate) const ASKED: usize = 3;

impl Acquiring<'_> {
    /// Ends it under the lock under which its outcome is noted.
    pub(crate) fn end(mut self, state: &mut FileState) {
        state.end_asking(self.asked);
        self.is_over = true;
        self.file.changed.notify_all();
    }
}

impl Drop for Acquiring<'_> {
    fn drop(&mut self) {
        // By a panic only: nobody may wait for ever for a call that has ended.
        if !self.is_over {
            self.file.state.lock().end_asking(self.asked);
            self.file.changed.notify_all();
        }
    }
}

/// Bytes on their way to chunks, until [`Writing::end`].
pub(crate) struct Writing<'a> {
    file: &'a File,
    /// Behind the last of them.
    end: u64,
    is_append: bool,
    is_over: bool,
}

impl Writing<'_> {
    /// Ends it, with what is written up to `written_end`, under the lock under which the new length is noted.
    pub(crate) fn end(mut self, state: &mut FileState, written_end: u64) {
        if self.is_append {
            state.appends.finish(self.end, written_end);
        }
        self.is_over = true;
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        // By a panic only. The bytes may be there, and must not come up when the file gets longer some day: so it is as long as that now.
        let mut state = self.file.state.lock();
        if self.is_append {
            state.appends.finish(self.end, self.end);
        }
        state.size = state.size.max(self.end);
        state.is_dirty = true;
    }
}

/// Keeps reads and writes out for as long as it lives.
pub(crate) struct Drained<'a>(&'a File);

impl Drop for Drained<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_draining = false;
        self.0.changed.notify_all();
    }
}

impl File {
    /// How many owners of fcntl locks are known to have, perhaps, locked a part.
    pub fn lock_owners_known(&self) -> usize {
        self.state.lock().lock_owners.len()
    }

    /// Counts one read or write as begun; the caller has checked the lease under the same lock.
    pub(crate) fn begin<'a>(&'a self, state: &mut MutexGuard<'_, FileState>) -> InFlight<'a> {
        state.in_flight += 1;
        state.begun += 1;
        InFlight(self)
    }

    /// What a server has to be shown that does not know that it is open; `None` inside one process.
    pub fn open_proof(&self) -> Option<OpenProof> {
        self.state.lock().proof
    }

    /// Notes that a lease is being asked for; the caller has seen under the same lock that none of this kind is.
    pub(crate) fn begin_acquiring<'a>(
        &'a self,
        state: &mut MutexGuard<'_, FileState>,
        asked: Asked,
    ) -> Acquiring<'a> {
        state.asking[asked as usize] = true;
        Acquiring { file: self, asked, is_over: false }
    }

    /// Notes that bytes up to `end` are on their way; an append takes that place.
    pub(crate) fn begin_write<'a>(&'a self, state: &mut FileState, end: u64, is_append: bool) -> Writing<'a> {
        if is_append {
            state.appends.begin(end);
        }
        Writing { file: self, end, is_append, is_over: false }
    }

    /// Notes that a report is under way; the caller has seen under the same lock that none is.
    pub(crate) fn begin_report<'a>(
        &'a self,
        state: &mut MutexGuard<'_, FileState>,
        report: (u64, Unreported),
    ) -> Reporting<'a> {
        state.reporting = Some(report);
        Reporting(self)
    }

    /// Counts one inline write as begun, once nobody needs the file for itself.
    ///
    /// # Errors
    /// `ETIMEDOUT` after [`crate::ClientConfig::wait_max`].
    pub(crate) fn begin_inline(&self) -> Result<InlineWrite<'_>, Errno> {
        let mut state = self.state.lock();
        while state.is_draining {
            self.wait(&mut state)?;
        }
        state.inline_writes += 1;
        Ok(InlineWrite(self))
    }

    /// Keeps new reads and writes out; the caller has seen, under the same lock, that nobody else does.
    pub(crate) fn drained<'a>(&'a self, state: &mut MutexGuard<'_, FileState>) -> Drained<'a> {
        state.is_draining = true;
        Drained(self)
    }

    /// As [`File::drain`], and waits for inline writes too: for whoever changes where the content is, or its length.
    ///
    /// # Errors
    /// `ETIMEDOUT` after [`crate::ClientConfig::wait_max`].
    pub(crate) fn drain_all(&self) -> Result<Drained<'_>, Errno> {
        let drained = self.drain()?;
        let mut state = self.state.lock();
        while state.inline_writes > 0 {
            if let Err(errno) = self.wait(&mut state) {
                drop(state);
                drop(drained);
                return Err(errno);
            }
        }
        drop(state);
        Ok(drained)
    }

    /// Waits until no read or write is under way and keeps new ones out.
    ///
    /// # Errors
    /// `ETIMEDOUT` after [`crate::ClientConfig::wait_max`].
    pub(crate) fn drain(&self) -> Result<Drained<'_>, Errno> {
        let mut state = self.state.lock();
        while state.is_draining {
            self.wait(&mut state)?;
        }
        state.is_draining = true;
        let drained = Drained(self);
        while state.in_flight > 0 {
            if let Err(errno) = self.wait(&mut state) {
                drop(state);
                drop(drained);
                return Err(errno);
            }
        }
        Ok(drained)
    }

    /// Waits for a change of the state.
    ///
    /// # Errors
    /// `ETIMEDOUT` after [`crate::ClientConfig::wait_max`].
    pub(crate) fn wait(&self, state: &mut MutexGuard<'_, FileState>) -> Result<(), Errno> {
        if self.changed.wait_for(state, self.wait_max) { Err(Errno::ETIMEDOUT) } else { Ok(()) }
    }
}

/// The open files of a client, in a few independently locked parts.
#[derive(Debug)]
pub(crate) struct FileTable {
    // LIMIT: one entry per file open in this session; the kernel bounds open files.
    parts: [Mutex<FxHashMap<InodeId, Arc<File>>>; 16],
    /// What files are waited for on is like this one.
    changed: Signal,
    wait_max: Duration,
}

impl FileTable {
    pub(crate) fn new(changed: Signal, wait_max: Duration) -> FileTable {
        FileTable { parts: Default::default(), changed, wait_max }
    }

    fn part(&self, inode: InodeId) -> &Mutex<FxHashMap<InodeId, Arc<File>>> {
        &self.parts[(inode.0 % 16) as usize]
    }

    pub(crate) fn find(&self, inode: InodeId) -> Option<Arc<File>> {
        self.part(inode).lock().get(&inode).cloned()
    }

    /// Runs `note` if the open file `inode` is still `known` (`None`: it is not open); nobody opens or closes it meanwhile. Tells whether
    /// it was.
    pub(crate) fn if_still(&self, inode: InodeId, known: Option<&Arc<File>>, note: impl FnOnce()) -> bool {
        let part = self.part(inode).lock();
        let is_same = match (part.get(&inode), known) {
            (Some(now), Some(known)) => Arc::ptr_eq(now, known),
            // A file that was closed has nothing left to give back.
            (None, _) => true,
            (Some(_), None) => false,
        };
        if is_same {
            note();
        }
        is_same
    }

    pub(crate) fn all(&self) -> Vec<Arc<File>> {
        self.parts.iter().flat_map(|part| part.lock().values().cloned().collect::<Vec<_>>()).collect()
    }

    /// The file's entry with one more handle, `handle`, opened as `flags` say; and whether there was one that can read before. `fresh` makes the state
    /// of a file that was not open; for one that was, what it knows under its own leases is at least as new, so only gains are taken over
    /// by `update`. `proof` is that of the open. One that `is_shared` is never used through the kernel's page cache.
    pub(crate) fn open(
        &self,
        inode: InodeId,
        (handle, flags, is_shared): (DescriptionId, OpenFlags, bool),
        proof: Option<OpenProof>,
        fresh: impl FnOnce() -> FileState,
        update: impl FnOnce(&mut FileState),
    ) -> (Arc<File>, bool) {
        let mut part = self.part(inode).lock();
        let file = part.entry(inode).or_insert_with(|| {
            let (state, changed) = (Mutex::new(fresh()), self.changed.another());
            Arc::new(File { inode, state, changed, wait_max: self.wait_max })
        });
        let mut state = file.state.lock();
        // A file that is just being closed for the last time is known as well.
        if !state.handles.is_empty() || state.closing > 0 {
            update(&mut state);
        }
        let has_readers = state.readers > 0;
        state.handles.push((handle, flags.write));
        state.proof = OpenProof::stronger(state.proof, proof);
        if !is_shared && (flags.read || has_readers) {
            state.cachers.push(handle);
        }
        state.readers += u32::from(flags.read);
        state.storers += u32::from(flags.read && flags.write);
        drop(state);
        (file.clone(), has_readers)
    }

    /// One handle less, opened as `flags` say; tells whether it was the last. Then the file stays known until [`FileTable::end_close`], so
    /// that whoever opens it meanwhile, and a recall, meet what has not been reported yet.
    pub(crate) fn begin_close(&self, file: &File, handle: DescriptionId, flags: OpenFlags) -> bool {
        let _part = self.part(file.inode).lock();
        let mut state = file.state.lock();
        state.handles.retain(|(known, _)| *known != handle);
        state.cachers.retain(|known| *known != handle);
        state.readers -= u32::from(flags.read);
        state.lost_locks.retain(|known| *known != handle);
        state.storers -= u32::from(flags.read && flags.write);
        let is_last = state.handles.is_empty();
        if is_last {
            state.closing += 1;
            state.lock_owners = FxHashMap::default();
        }
        is_last
    }

    /// Ends what [`FileTable::begin_close`] began; the entry goes unless the file was opened meanwhile, or somebody else is closing it.
    pub(crate) fn end_close(&self, file: &File) {
        let mut part = self.part(file.inode).lock();
        let mut state = file.state.lock();
        state.closing -= 1;
        let is_over = state.handles.is_empty() && state.closing == 0;
        drop(state);
        if is_over {
            part.remove(&file.inode);
        }
    }
}
