//! Stands between clients, services and disks: lets others run at the borders, stops all disks at once, and tells the oracle what
//! takes effect when.

use crate::model::Actor;
use crate::oracle::Oracle;
use crate::scheduler::Scheduler;
use ashlar_env::sim::{SimDisk, SimEntropy};
use ashlar_env::{Continuity, Disk, DiskFile, DiskSpace, OpenMode};
use ashlar_kv::format::{LogIdentity, RecordHeader, decode_frames};
use ashlar_meta::MetaService;
use ashlar_rpc::{Caller, MetaCalls, Payload, SessionEvents, SessionGrant, StorageCalls};
use ashlar_storage::StorageService;
use ashlar_types::message::{MetaReply, MetaRequest, SessionEvent, StorageReply, StorageRequest};
use ashlar_types::{ClusterId, Errno, SessionId};
use bytes::Bytes;
use parking_lot::Mutex;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::time::Duration;

/// What the parts of one simulation share.
pub struct Shared {
    pub scheduler: Arc<Scheduler>,
    pub oracle: Mutex<Oracle>,
    pub random: SimEntropy,
    /// Of 100 borders so many let others run.
    pub pause_percent: u64,
    /// Changing disk operations until the machine stops; negative: never.
    pub stop_in: AtomicI64,
    pub is_off: AtomicBool,
    /// Borders that the client of actor 0 crosses until it does nothing any more, for ever; negative: never.
    pub dies_in: AtomicI64,
    pub is_dead: AtomicBool,
    /// A stop of the machine is in the middle of a write.
    pub cluster: Mutex<Option<ClusterId>>,
}

impl Shared {
    /// Lets others run, sometimes.
    pub fn pause(&self) {
        if self.random.below(100) < self.pause_percent {
            self.scheduler.pause();
        }
    }

    /// As [`Shared::pause`], where `actor` crosses a border: it may be its last one.
    fn cross(&self, actor: Actor) {
        let left = self.dies_in.load(Relaxed);
        if actor == 0 && left >= 0 {
            self.dies_in.store(left - 1, Relaxed);
            if left == 0 {
                self.is_dead.store(true, Relaxed);
                self.scheduler.freeze("c0:", Duration::MAX);
                self.scheduler.pause();
            }
        }
        self.pause();
    }

    /// Whether the machine has stopped.
    pub fn is_off(&self) -> bool {
        self.is_off.load(Relaxed)
    }

    /// Counts a changing operation of a disk; tells whether the machine stops in the middle of it.
    fn stops_now(&self) -> bool {
        let left = self.stop_in.load(Relaxed);
        if left < 0 {
            return false;
        }
        self.stop_in.store(left - 1, Relaxed);
        left == 0
    }
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

/// A disk of the machine.
#[derive(Clone)]
pub struct WatchedDisk {
    pub inner: SimDisk,
    pub shared: Arc<Shared>,
    /// Whether others run during a sync: nobody may hold a lock then.
    pub pauses_in_sync: bool,
}

impl WatchedDisk {
    fn change<T>(&self, run: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self.shared.is_off() {
            return Err(eio());
        }
        if self.shared.stops_now() {
            self.inner.cut_power_after(0);
            let outcome = run();
            self.shared.is_off.store(true, Relaxed);
            return outcome.and_then(|_| Err(eio()));
        }
        run()
    }

    fn look<T>(&self, run: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self.shared.is_off() { Err(eio()) } else { run() }
    }
}

struct WatchedFile {
    inner: Arc<dyn DiskFile>,
    disk: WatchedDisk,
    is_log: bool,
}

impl Disk for WatchedDisk {
    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let run = || self.inner.open(path, mode);
        let inner = match mode {
            OpenMode::CreateOrOpen | OpenMode::CreateNew => self.change(run)?,
            OpenMode::Read | OpenMode::ReadWrite => self.look(run)?,
        };
        let is_log = self.pauses_in_sync && path.starts_with("lane/log");
        Ok(Arc::new(WatchedFile { inner, disk: self.clone(), is_log }))
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.look(|| self.inner.list(path))
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        self.change(|| self.inner.create_dir(path))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.change(|| self.inner.remove(path))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.change(|| self.inner.rename(from, to))
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        self.change(|| self.inner.sync_dir(path))
    }

    fn sync_all(&self) -> io::Result<()> {
        self.change(|| self.inner.sync_all())
    }

    fn space(&self) -> io::Result<DiskSpace> {
        self.look(|| self.inner.space())
    }

    fn continuity(&self) -> Option<Continuity> {
        self.inner.continuity()
    }

    fn note_loss(&self, what: &str) -> io::Result<()> {
        self.change(|| self.inner.note_loss(what))
    }

    fn end_loss(&self) -> io::Result<bool> {
        self.change(|| self.inner.end_loss())
    }

    fn describe(&self, path: &str) -> String {
        self.inner.describe(path)
    }
}

impl WatchedFile {
    /// The frames of a record that is being written to the log.
    fn frames(&self, data: &[u8]) -> Option<Vec<ashlar_kv::Frame>> {
        let cluster = (*self.disk.shared.cluster.lock())?;
        let (header, body) = RecordHeader::check(data, LogIdentity { cluster, lane: 0 }.seed())?;
        let frames = decode_frames(&Bytes::copy_from_slice(body), header.frames)?;
        (!frames.is_empty()).then(|| frames.into_iter().map(|logged| logged.frame).collect())
    }

    fn write(&self, data: &[u8], run: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let was_off = self.disk.shared.is_off();
        let outcome = self.disk.change(run);
        if self.is_log
            && let Some(frames) = self.frames(data)
        {
            let mut oracle = self.disk.shared.oracle.lock();
            match outcome {
                Ok(()) => oracle.commit(&frames),
                Err(_) if !was_off => oracle.attempted(&frames),
                Err(_) => {}
            }
        }
        outcome
    }
}

impl DiskFile for WatchedFile {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        self.disk.look(|| self.inner.read_at(offset, out))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write(data, || self.inner.write_at(offset, data))
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        let data = parts.concat();
        self.write(&data, || self.inner.write_at(offset, &data))
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        self.disk.look(|| self.inner.next_data(offset))
    }

    fn sync_data(&self) -> io::Result<()> {
        // Others may write while the sync is under way; what they write is not part of it, or is.
        if self.disk.pauses_in_sync {
            self.disk.shared.pause();
        }
        let outcome = self.disk.change(|| self.inner.sync_data());
        if self.disk.pauses_in_sync {
            self.disk.shared.pause();
        }
        outcome
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.change(|| self.inner.set_len(len))
    }

    fn len(&self) -> io::Result<u64> {
        self.disk.look(|| self.inner.len())
    }

    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        self.disk.change(|| self.inner.punch_hole(offset, len))
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.disk.change(|| self.inner.allocate(offset, len))
    }

    fn try_lock(&self) -> io::Result<()> {
        self.disk.look(|| self.inner.try_lock())
    }
}

/// The metadata service as one client reaches it.
pub struct WatchedMeta {
    pub inner: Arc<MetaService>,
    pub shared: Arc<Shared>,
    pub actor: usize,
    /// Between proposing a layout and binding it, what goes to storage is what the file had before.
    pub is_spilling: Arc<AtomicBool>,
}

struct WatchedEvents {
    inner: Arc<dyn SessionEvents>,
    shared: Arc<Shared>,
    actor: usize,
}

impl SessionEvents for WatchedEvents {
    fn deliver(&self, event: SessionEvent) {
        self.shared.scheduler.note(&|| format!("event for {}: {event:?}", self.actor));
        if matches!(event, SessionEvent::Evicted { .. }) {
            self.shared.oracle.lock().evicted(self.actor);
        }
        self.inner.deliver(event);
    }
}

impl MetaCalls for WatchedMeta {
    fn open_session(&self, events: Arc<dyn SessionEvents>) -> Result<SessionGrant, Errno> {
        let (shared, actor) = (self.shared.clone(), self.actor);
        self.inner.open_session(Arc::new(WatchedEvents { inner: events, shared, actor }))
    }

    fn close_session(&self, session: SessionId) {
        self.shared.scheduler.set_serving(true);
        self.inner.close_session(session);
        self.shared.scheduler.set_serving(false);
    }

    fn call(&self, caller: Caller<'_>, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        let brief = brief(&request);
        self.shared.cross(self.actor);
        self.shared.scheduler.note(&|| format!("-> {brief}"));
        match request {
            MetaRequest::ProposeLayout { .. } => self.is_spilling.store(true, Relaxed),
            MetaRequest::SetLayout { .. } => self.is_spilling.store(false, Relaxed),
            _ => {}
        }
        self.shared.scheduler.set_serving(true);
        let reply = self.inner.call(caller, request);
        self.shared.scheduler.set_serving(false);
        if matches!(reply, Ok(MetaReply::Layout { is_bound: true, .. })) {
            self.is_spilling.store(false, Relaxed);
        }
        self.shared.scheduler.note(&|| format!("<- {brief}: {}", brief_reply(&reply)));
        self.shared.cross(self.actor);
        reply
    }
}

fn brief(request: &MetaRequest<'_>) -> String {
    let mut text = match request {
        MetaRequest::WriteInline { inode, offset, data, append, .. } => {
            format!("WriteInline {inode} at {offset} {} bytes, append {append}", data.len())
        }
        other => format!("{other:?}"),
    };
    text.truncate(200);
    text
}

fn brief_reply(reply: &Result<MetaReply, Errno>) -> String {
    let mut text = match reply {
        Ok(MetaReply::Granted { attr, data, leases, recall_mark }) => {
            format!("granted {leases:?}, mark {recall_mark}, size {}, {data:?}", attr.size)
        }
        Ok(MetaReply::Attr { attr, leases }) => {
            format!(
                "{} size {} blocks {} nlink {} mode {:o} {leases:?}",
                attr.inode, attr.size, attr.blocks, attr.nlink, attr.mode
            )
        }
        Ok(MetaReply::Opened { open, created }) => format!(
            "opened {} size {} {:?} shared {} created {created} {:?}",
            open.attr.inode, open.attr.size, open.leases, open.is_shared, open.data
        ),
        other => format!("{other:?}"),
    };
    let end = text.char_indices().nth(300).map_or(text.len(), |(at, _)| at);
    text.truncate(end);
    text
}

/// The storage service as one client, or the metadata service (no actor), reaches it.
pub struct WatchedStorage {
    pub inner: Arc<StorageService>,
    pub shared: Arc<Shared>,
    pub actor: Option<usize>,
    pub is_spilling: Arc<AtomicBool>,
}

impl WatchedStorage {
    fn cross(&self) {
        match self.actor {
            Some(actor) => self.shared.cross(actor),
            None => self.shared.pause(),
        }
    }
}

impl StorageCalls for WatchedStorage {
    fn call(&self, request: &StorageRequest, payload: Payload<'_>) -> Result<StorageReply, Errno> {
        // Free space is asked for by whoever holds the lane: nobody else may run then.
        let may_pause = !matches!(request, StorageRequest::Space { .. });
        if may_pause {
            self.cross();
        }
        let reply = self.inner.call(request, payload);
        if may_pause {
            self.shared.scheduler.note(&|| {
                let mut text = format!("{request:?}: {reply:?}");
                text.truncate(260);
                text
            });
        }
        let changed = match request {
            StorageRequest::Write { chunk, .. }
            | StorageRequest::Punch { chunk, .. }
            | StorageRequest::Allocate { chunk, .. } => Some(chunk.inode.0),
            _ => None,
        };
        if let (Some(actor), Some(inode)) = (self.actor, changed)
            && !self.is_spilling.load(Relaxed)
        {
            self.shared.oracle.lock().stored(actor, inode);
        }
        if may_pause {
            self.cross();
        }
        reply
    }
}
