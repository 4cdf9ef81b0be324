//! What is kept for a backup: the metadata of this server at a moment at which nobody was at work in any shard of any server.
//!
//! ```text
//!  administrator         every metadata server
//!     │ Prepare              │ puts what the log has into the engine, while all go on
//!     │ Close                │ lets nobody in any more; once all have left, keeps a snapshot
//!     │ (all have answered)  │
//!     │ Open                 │ goes on, and says whether it was closed until now
//!     │ Pairs ...            │ tells what it has kept
//!     │ End                  │ forgets it
//! ```
//!
//! If every server was still closed when it was told that all were, there was a moment at which all were: what had been answered before it is in every
//! snapshot, and what was begun after it in none. Operations across servers that were decided, or had a part locked, have their records in the snapshots;
//! who starts with them finishes them, as after a crash of all servers at that moment ([`super::resume`]).
//!
//! A server that is not told goes on by itself, and says so when it is asked: that backup is none.

use crate::MetaService;
use ashlar_kv::{Key, LastingSnapshot};
use ashlar_namespace::key;
use ashlar_rpc::LastingSessions;
use ashlar_rpc::wire::{BackupStep, BackupTold, CLOSED_MAX};
use ashlar_types::{Errno, ShardId, ShardSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// For how long who is inside is waited for, each time. It is a part of what clients see of a backup.
const DRAIN_MAX: Duration = Duration::from_millis(500);
/// After how long without a question a backup is forgotten.
// LIMIT: what was deleted meanwhile takes space for as long.
const ASKED_MAX: Duration = Duration::from_secs(60);
/// Time between two looks whether it is to go on by itself.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Bytes of keys and values that one answer carries.
const PAGE_BYTES: usize = 1 << 20;

/// The backup under way. Its lock is a leaf.
// LIMIT: one at a time.
#[derive(Default)]
pub(super) struct Cut {
    kept: Option<Kept>,
    /// Of whom the next one is while it is being closed.
    closing: Option<u64>,
}

struct Kept {
    backup: u64,
    snapshot: Arc<LastingSnapshot>,
    shards: Arc<ShardSet>,
    /// Since when it is closed, until it goes on.
    closed: Option<Duration>,
    /// It was told in time that all others were closed as well.
    is_good: bool,
    asked: Duration,
}

impl MetaService {
    /// Does a step of a backup.
    ///
    /// # Errors
    /// `ENOENT` when the backup is not known (any more), `EIO` from the store.
    pub(crate) fn back_up(&self, backup: u64, step: BackupStep) -> Result<BackupTold, Errno> {
        match step {
            BackupStep::Prepare => {
                self.lane.checkpoint_now().map_err(|error| self.answer(&error.into()))?;
                Ok(BackupTold::Done)
            }
            BackupStep::Close => self.close_for(backup),
            BackupStep::Open => self.open_again(backup).map(BackupTold::Opened),
            BackupStep::Pairs(from) => self.tell_kept(backup, &from),
            BackupStep::End => {
                // ENOENT: asked for once more.
                let _ = self.open_again(backup);
                self.across.cut.lock().kept.take_if(|kept| kept.backup == backup);
                Ok(BackupTold::Done)
            }
        }
    }

    fn closed(&self, shards: &ShardSet) -> BackupTold {
        BackupTold::Closed {
            incarnation: self.incarnation,
            shards: shards.clone(),
            name_hash_key: self.name_hash_key,
        }
    }

    /// Closes all gates, and keeps what there is.
    fn close_for(&self, backup: u64) -> Result<BackupTold, Errno> {
        let now = self.env.clock.monotonic();
        {
            let mut cut = self.across.cut.lock();
            if let Some(kept) = &cut.kept {
                let is_idle = now.saturating_sub(kept.asked) > ASKED_MAX;
                if kept.backup == backup {
                    return Ok(self.closed(&kept.shards));
                }
                if kept.closed.is_some() || !is_idle {
                    return Ok(BackupTold::NotNow("another backup is under way".into()));
                }
            }
            if cut.closing.is_some() {
                return Ok(BackupTold::NotNow("a backup is about to begin".into()));
            }
            cut.closing = Some(backup);
        }
        let told = self.close_and_keep(backup);
        self.across.cut.lock().closing = None;
        told
    }

    fn close_and_keep(&self, backup: u64) -> Result<BackupTold, Errno> {
        let (here, _) = self.shards_here();
        let shards: Vec<ShardId> = here.iter().collect();
        let open = || shards.iter().for_each(|&shard| self.across.gates.open(shard));
        if self.is_awaiting() {
            return Ok(BackupTold::NotNow(
                "a server has just been started, and waits for its sessions".into(),
            ));
        }
        if !self.close_gates(&shards, DRAIN_MAX) {
            return Ok(BackupTold::NotNow("a call waits for others, or a shard is about to be moved".into()));
        }
        // ORDER: asked once it is closed. What has come since was opened by whoever brought it.
        if *self.shards_here().0 != *here {
            open();
            return Ok(BackupTold::NotNow("a shard has just been moved".into()));
        }
        let snapshot = match self.lane.snapshot() {
            Ok(snapshot) => Arc::new(snapshot),
            Err(error) => {
                open();
                return Err(self.answer(&error.into()));
            }
        };
        let now = self.env.clock.monotonic();
        let kept =
            Kept { backup, snapshot, shards: here.clone(), closed: Some(now), is_good: false, asked: now };
        self.across.cut.lock().kept = Some(kept);
        if let Err(errno) = self.go_on_in_time(backup) {
            let _ = self.open_again(backup);
            return Err(errno);
        }
        Ok(self.closed(&here))
    }

    /// Has somebody look that it goes on, whatever becomes of the administrator.
    fn go_on_in_time(&self, backup: u64) -> Result<(), Errno> {
        let service = self.across.couriers.service().ok_or(Errno::EIO)?;
        let look = move || {
            while let Some(service) = service.upgrade() {
                let closed = {
                    let cut = service.across.cut.lock();
                    cut.kept.as_ref().filter(|kept| kept.backup == backup).and_then(|kept| kept.closed)
                };
                let Some(closed) = closed else { return };
                let is_late =
                    service.env.clock.monotonic().saturating_sub(closed) >= CLOSED_MAX || service.is_ending();
                if is_late {
                    service.go_on(backup, false);
                    return;
                }
                service.env.tasks.pause(LOOK_EVERY);
            }
        };
        self.env.tasks.spawn("ashlar-cut", Box::new(look)).map(drop).map_err(|error| {
            tracing::error!(%error, "no thread can be started for a backup");
            Errno::EAGAIN
        })
    }

    /// Lets everybody in again, if it is closed for `backup`.
    fn go_on(&self, backup: u64, is_good: bool) {
        let mut cut = self.across.cut.lock();
        let Some(kept) = cut.kept.as_mut().filter(|kept| kept.backup == backup) else { return };
        let Some(since) = kept.closed.take() else { return };
        kept.is_good = is_good;
        kept.shards.iter().for_each(|shard| self.across.gates.open(shard));
        let closed = self.env.clock.monotonic().saturating_sub(since);
        tracing::info!(?closed, is_good, "was closed for a backup");
        drop(cut);
        self.across.changed.notify_all();
        self.garbage.wake(self.lane.appended());
    }

    /// Goes on, as all others were closed as well; tells whether this one was until now.
    fn open_again(&self, backup: u64) -> Result<bool, Errno> {
        self.go_on(backup, true);
        let cut = self.across.cut.lock();
        let kept = cut.kept.as_ref().filter(|kept| kept.backup == backup).ok_or(Errno::ENOENT)?;
        Ok(kept.is_good)
    }

    fn tell_kept(&self, backup: u64, from: &[u8]) -> Result<BackupTold, Errno> {
        let (snapshot, shards) = {
            let mut cut = self.across.cut.lock();
            let kept = cut.kept.as_mut().filter(|kept| kept.backup == backup && kept.is_good);
            let kept = kept.ok_or(Errno::ENOENT)?;
            kept.asked = self.env.clock.monotonic();
            (kept.snapshot.clone(), kept.shards.clone())
        };
        let (mut pairs, mut bytes, mut is_last) = (Vec::new(), 0, true);
        let mut visit = |found: &[u8], value: &[u8]| {
            if !key::is_of_server(found) && shards.has(key::shard_of(found)) {
                bytes += found.len() + value.len();
                pairs.push((found.to_vec(), value.to_vec()));
            }
            is_last = bytes < PAGE_BYTES;
            if is_last { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let from = Key::from_slice(from.max(&key::shard_prefix(ShardId(0))));
        let to = key::shard_prefix(ShardId(u16::MAX));
        snapshot.scan(&from, &to, &mut visit).map_err(|error| self.answer(&error.into()))?;
        Ok(BackupTold::Pairs(pairs, is_last))
    }

    /// Forgets a backup that nobody asks for any more.
    pub(super) fn forget_idle_backup(&self) {
        let now = self.env.clock.monotonic();
        let is_idle = |kept: &mut Kept| kept.closed.is_none() && now.saturating_sub(kept.asked) > ASKED_MAX;
        drop(self.across.cut.lock().kept.take_if(is_idle));
    }

    /// Forgets whatever was kept: the store is about to be closed.
    pub(crate) fn end_backup(&self) {
        if let Some(backup) = self.across.cut.lock().kept.as_ref().map(|kept| kept.backup) {
            self.go_on(backup, false);
        }
        self.across.cut.lock().kept = None;
    }
}
