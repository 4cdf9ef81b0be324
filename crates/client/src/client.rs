//! The client: one session with the metadata service and the files open in it.

use crate::ahead::Ahead;
use crate::call::{ResolveCredentials, Who};
use crate::close_to_open::Seen;
use crate::closes::{Closes, start_telling};
use crate::events::{Answering, CONTENT_THREADS, EventQueue, KernelCache, Recalled, Share, start_answering};
use crate::fan::Fan;
use crate::file::{File, FileTable};
use crate::io::BlockDoubt;
use crate::locks::{HeldLocks, LockStarts, LockWaits};
use crate::remains::Remains;
use crate::reports::Reports;
use crate::split::SplitDirectories;
use crate::told::AttributesTold;
use crate::unsynced::Unsynced;
use crate::unsynced_meta::{DurableAt, UnsyncedMeta};
use crate::untold::Untold;
use ashlar_env::{Env, Signal, Task};
use ashlar_rpc::{MetaCalls, SessionGrant, StorageCalls};
use ashlar_types::message::{MetaRequest, SyncScope};
use ashlar_types::{ClusterMap, Errno, InodeId, OfChains, SessionId};
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long a call waits at the least for a lease or for other calls on the same file before it ends with `ETIMEDOUT` ([`ClientConfig::wait_max`]).
pub const WAIT_MIN: Duration = Duration::from_secs(30);

/// What a client is made of.
pub struct ClientConfig {
    /// The metadata service.
    pub meta: Arc<dyn MetaCalls>,
    /// The storage services.
    pub storage: Arc<dyn StorageCalls>,
    /// The cluster map, kept current by its owner.
    pub map: Arc<RwLock<Arc<ClusterMap>>>,
    /// Clocks.
    pub env: Env,
    /// Finds out who a calling thread is.
    pub credentials: Arc<dyn ResolveCredentials>,
    /// Whether chunk payloads cross a network, so that checksums must travel with them.
    pub checks_payload: bool,
    /// Whether a client whose session has ended by its silence goes on with another one. Its writes under way must not reach targets after that.
    pub comes_back: bool,
    /// Longest wait of one call for a lease or for other calls on the same file; then it ends with `ETIMEDOUT`. Those may be waiting for a server that is away, so it is not less than
    /// what `meta` and `storage` wait for one.
    pub wait_max: Duration,
}

/// See the module.
pub struct Client {
    pub(crate) meta: Arc<dyn MetaCalls>,
    pub(crate) storage: Arc<dyn StorageCalls>,
    pub(crate) map: Arc<RwLock<Arc<ClusterMap>>>,
    pub(crate) env: Env,
    pub(crate) credentials: Arc<dyn ResolveCredentials>,
    pub(crate) checks_payload: bool,
    /// 0 before the first.
    pub(crate) session: AtomicU64,
    pub(crate) comes_back: bool,
    pub(crate) wait_max: Duration,
    /// Signalled when there is another session.
    pub(crate) session_changed: Signal,
    pub(crate) session_turn: Mutex<()>,
    /// Grows when what is held has to be told to a service, or is not held any more.
    pub(crate) era: AtomicU64,
    pub(crate) lease_term: Duration,
    pub(crate) sequence: AtomicU64,
    pub(crate) attributes_told: AttributesTold,
    /// Held while the kernel drops all of them.
    pub(crate) dropping_attributes: Mutex<()>,
    pub(crate) ahead: Ahead,
    pub(crate) split_directories: SplitDirectories,
    pub(crate) held_locks: HeldLocks,
    pub(crate) files: FileTable,
    pub(crate) fan: Fan,
    pub(crate) untold: Untold,
    pub(crate) closes: Arc<Closes>,
    /// What was changed and not synced.
    pub(crate) unsynced: Unsynced,
    pub(crate) unsynced_meta: UnsyncedMeta,
    /// Directories of whose listing something waits.
    pub(crate) listed: Arc<AtomicUsize>,
    pub(crate) kernel: OnceLock<Arc<dyn KernelCache>>,
    pub(crate) lock_waits: LockWaits,
    pub(crate) lock_starts: LockStarts,
    /// By shard, as their servers number them: the newest recall of content that was answered, or is being answered, at an instant at which
    /// leases end.
    // LIMIT: one per shard of the file system, as at the start of the client; it never has more.
    pub(crate) recall_floors: Vec<AtomicU64>,
    /// Files whose content is being given back at this moment.
    pub(crate) answering: Answering,
    /// Files of whose content somebody waits for a lease.
    pub(crate) recalled: Recalled,
    /// Reports of size and times that have ended.
    pub(crate) reports: Reports,
    /// Whether a write over pages of the kernel has made a file longer, ever.
    pub(crate) has_grown: AtomicBool,
    /// Whether pages that a write(2) has filled whole can be dropped before it is answered: [`Client::write_beside`].
    pub(crate) frees_filled: AtomicBool,
    /// How files were when they were last opened; only where that decides about pages.
    pub(crate) seen: Seen,
    /// Handles made ever.
    pub(crate) handles_made: AtomicU64,
    /// Whether the kernel may have pages from before this process, under leases that are not known here.
    pub(crate) are_pages_unknown: AtomicBool,
    /// Whether the session ends: nothing more is read or written under a lease.
    pub(crate) is_ending: AtomicBool,
    pub(crate) queue: Arc<EventQueue>,
    // LIMIT: as threads that answer recalls; they end with the session.
    pub(crate) event_threads: Mutex<Vec<Task>>,
}

impl Client {
    /// Opens a session and starts the threads that answer recalls.
    ///
    /// # Errors
    /// What `open_session` answers; `EAGAIN` when no thread can be started.
    pub fn connect(config: ClientConfig) -> Result<Arc<Client>, Errno> {
        let client = Client::connect_after(config, None)?;
        client.begin_answering()?;
        Ok(client)
    }

    /// As [`Client::connect`], for a process that may go on with the session of another one, which has left `remains`. Recalls are not answered before
    /// [`Client::begin_answering`]: the kernel has pages and names under leases of that session.
    ///
    /// # Errors
    /// As of [`Client::connect`].
    pub fn connect_after(config: ClientConfig, remains: Option<&Remains>) -> Result<Arc<Client>, Errno> {
        let queue = Arc::new(EventQueue::new(config.env.tasks.signal()));
        let SessionGrant { session, lease_term, .. } = config.meta.open_session(queue.clone())?;
        let recall_floors = config.map.read().shards.iter().map(|_| AtomicU64::new(0)).collect();
        let tasks = config.env.tasks.clone();
        let client = Arc::new(Client {
            meta: config.meta,
            storage: config.storage,
            map: config.map,
            env: config.env,
            credentials: config.credentials,
            checks_payload: config.checks_payload,
            session: AtomicU64::new(session.0),
            comes_back: config.comes_back,
            wait_max: config.wait_max,
            session_changed: tasks.signal(),
            session_turn: Mutex::new(()),
            era: AtomicU64::new(0),
            lease_term,
            // ORDER: above what the process before has used. Servers keep the answers of its last calls.
            sequence: AtomicU64::new(remains.map_or(1, |remains| remains.sequence)),
            attributes_told: AttributesTold::for_term(lease_term),
            dropping_attributes: Mutex::default(),
            ahead: Ahead::new(config.comes_back && !session.is_close_to_open()),
            split_directories: SplitDirectories::default(),
            held_locks: HeldLocks::default(),
            files: FileTable::new(tasks.signal(), config.wait_max),
            fan: Fan::new(tasks.clone()),
            untold: Untold::new(tasks.signal()),
            listed: Arc::default(),
            closes: Arc::new(Closes::new(config.comes_back, tasks.signal())),
            unsynced: Unsynced::default(),
            unsynced_meta: UnsyncedMeta::default(),
            kernel: OnceLock::new(),
            lock_waits: LockWaits::default(),
            lock_starts: LockStarts::default(),
            recall_floors,
            answering: Answering::new(tasks.signal()),
            recalled: Recalled::default(),
            reports: Reports::default(),
            has_grown: AtomicBool::new(false),
            frees_filled: AtomicBool::new(false),
            seen: Seen::default(),
            handles_made: AtomicU64::new(remains.map_or(0, |remains| remains.handles_made)),
            are_pages_unknown: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            queue: queue.clone(),
            event_threads: Mutex::default(),
        });
        queue.set_client(Arc::downgrade(&client));
        Ok(client)
    }

    /// Starts the threads that answer recalls and tell of closes. Once, and when [`Client::set_kernel_cache`] was called if the kernel may have something.
    ///
    /// # Errors
    /// `EAGAIN` when no thread can be started.
    pub fn begin_answering(self: &Arc<Client>) -> Result<(), Errno> {
        let shares = [Share::Others, Share::Beside, Share::HeldUp]
            .into_iter()
            .chain([Share::Content; CONTENT_THREADS]);
        for share in shares {
            start_answering(self, share).map_err(|_| Errno::EAGAIN)?;
        }
        start_telling(self).map_err(|_| Errno::EAGAIN)
    }

    /// Tells the client how to reach the kernel's caches. Until then recalls find nothing cached.
    pub fn set_kernel_cache(&self, kernel: Arc<dyn KernelCache>) {
        // A second mount of one client would need a second session; the first one set stays.
        let _ = self.kernel.set(kernel);
    }

    /// Tells the client that the kernel has not locked the pages that a write(2) fills whole while it waits for the answer (Linux 5.14), so that they can be
    /// dropped before: then files that somebody has open here through the page cache are written beside other clients, too.
    pub fn set_frees_filled_pages(&self) {
        self.frees_filled.store(true, SeqCst);
    }

    /// The session.
    pub fn session(&self) -> SessionId {
        SessionId(self.session.load(SeqCst))
    }

    /// Has the kernel write back what programs have stored into mappings of open files, for whoever cuts a mount off that is in use:
    /// without it the kernel would throw that away.
    pub fn take_back_pages(&self) {
        let Some(kernel) = self.kernel.get() else { return };
        for file in self.files.all() {
            file.state.lock().through.begin_drop();
            kernel.drop_content(file.inode);
        }
    }

    /// Reports everything that is only known here, makes it durable, and ends the session. Whoever still reads or writes meanwhile, through
    /// a mount that was detached because it is in use, is told `ENOTCONN`.
    ///
    /// # Errors
    /// The first error of reporting or syncing; the session is ended all the same.
    pub fn disconnect(&self) -> Result<(), Errno> {
        // ORDER: before the reports, of which each waits for the writes of its file that began before. What would be written after the last
        // report is a length that nobody knows, and would be lost although it was acknowledged.
        self.is_ending.store(true, SeqCst);
        let mut drained = Ok(());
        let mut report = |file: Arc<crate::file::File>| {
            // LIMIT: one file that does not come to rest is waited for, not each.
            if drained.is_ok() {
                drained = file.drain().map(drop);
            }
            // What may still grow, or has by more than is known, keeps its writer's record, so that its length and blocks are asked of the targets.
            let is_known = drained.is_ok() && file.state.lock().block_doubt == BlockDoubt::None;
            self.report(&file, is_known)
        };
        let reported = self.files.all().into_iter().map(&mut report).fold(Ok(()), Result::and);
        self.end_closes();
        let synced = self.sync();
        self.queue.close();
        let closed = self.session();
        self.meta.close_session(closed);
        // One by one: a thread that is at its last event may start another one.
        while let Some(thread) = self.take_event_thread() {
            if !thread.is_current() {
                // The queue is closed, so the thread ends after the event it is at; a panic there was logged where it happened.
                thread.join();
            }
        }
        // One of them may have been about to go on in another session.
        let last = self.session();
        if last != closed {
            self.meta.close_session(last);
        }
        self.lock_waits.fail_all();
        drained.and(reported).and(synced)
    }

    fn take_event_thread(&self) -> Option<Task> {
        self.event_threads.lock().pop()
    }

    /// `syncfs(2)`: reports what is only known here and makes everything durable, data before the metadata that refers to it.
    ///
    /// # Errors
    /// The first error; final, as of `fsync(2)`. `EIO` when something was written to open files that are gone.
    pub fn sync(&self) -> Result<(), Errno> {
        if self.sync_what_is_there()? { Err(Errno::EIO) } else { Ok(()) }
    }

    /// As [`Client::sync`], of everything but what was written to open files that are gone: whether there was such.
    ///
    /// # Errors
    /// The first error.
    pub fn sync_what_is_there(&self) -> Result<bool, Errno> {
        let mut is_gone = false;
        let report = |file: Arc<crate::file::File>| {
            file.state.lock().is_unpromised = false;
            match self.report(&file, false) {
                Err(Errno::ESTALE) => is_gone |= file.state.lock().is_written(),
                other => return other,
            }
            Ok(())
        };
        let reported = self.files.all().into_iter().map(report).fold(Ok(()), Result::and);
        // ORDER: from here on nobody moves the content of an inode to chunks without making it durable there; what was moved before is on
        // the targets when these are synced.
        self.sync_meta(SyncScope::All)?;
        let map = self.map.read().clone();
        let before = self.unsynced_meta.begin();
        // ORDER: data first, then the metadata that refers to it.
        let targets =
            map.targets.iter().filter(|target| target.state == ashlar_types::map::TargetState::Online);
        for target in targets {
            self.sync_target(target.id, OfChains::All)?;
        }
        self.ask_where_unknown(DurableAt::All)?;
        self.sync_meta(SyncScope::All)?;
        self.unsynced_meta.durable(before, DurableAt::All);
        reported.map(|()| is_gone)
    }

    /// Makes metadata durable, and promises that the content of `scope` is.
    ///
    /// # Errors
    /// As of `MetaRequest::Sync`.
    pub(crate) fn sync_meta(&self, scope: SyncScope) -> Result<(), Errno> {
        self.call_done(&Who::system(), MetaRequest::Sync(scope))
    }

    /// What was asked for in an earlier era, and noted after this one began, is not held, or has to be told anew.
    pub(crate) fn era(&self) -> u64 {
        self.era.load(SeqCst)
    }

    /// The state of an open file, if this client has one.
    pub(crate) fn open_file(&self, inode: InodeId) -> Option<Arc<File>> {
        self.files.find(inode)
    }
}
