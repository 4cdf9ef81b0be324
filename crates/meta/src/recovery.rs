//! Starting: a new file system gets its root; an old one is cleaned of what dead sessions left, before anybody is served.

use crate::call::verb as number;
use crate::collect::SERVICE;
use crate::execute::itself;
use crate::{MetaConfig, MetaService};
use ashlar_kv::{Lane, Snapshot};
use ashlar_namespace::bootstrap::{RootSettings, bootstrap};
use ashlar_namespace::lease::LeaseTable;
use ashlar_namespace::record::Garbage;
use ashlar_namespace::{Txn, key, verb};
use ashlar_rpc::Caller;
use ashlar_rpc::wire::COUNT_BITS;
use ashlar_types::node::SessionOwner;
use ashlar_types::{Errno, InodeId, OpId, SessionId, ShardId, codec};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

/// What a start found to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Sessions that had not ended.
    pub sessions_reaped: usize,
    /// Truncations that had not been carried out on the targets.
    pub cuts_finished: usize,
    /// Files of which targets had chunks that had to be compared with metadata.
    pub suspects_compared: usize,
}

/// Dead sessions, and truncations not carried out.
type LeftBehind = (BTreeSet<SessionId>, Vec<(InodeId, Garbage)>);

impl MetaService {
    /// A service over `config`, recovered and ready to serve. A lane without a root gets one with `root`.
    ///
    /// # Errors
    /// What storage and lane answer.
    pub fn start(
        config: MetaConfig,
        root: RootSettings,
    ) -> Result<(Arc<MetaService>, RecoveryReport), Errno> {
        let tasks = config.env.tasks.clone();
        let has_root_shard = config
            .peers
            .as_ref()
            .is_none_or(|(_, node)| config.map.read().primary(InodeId::ROOT.home()) == Some(*node));
        let incarnation = incarnation_after(&config.lane, has_root_shard);
        let lost_since = if config.has_lost { incarnation } else { last_loss(&config.lane) };
        let (peers, node) = config.peers.unzip();
        let shards = config.map.read().shards.len();
        let node = node.unwrap_or_default();
        let across = crate::across::Across::new(peers, node, (incarnation, shards), tasks.signal());
        let service = Arc::new(MetaService {
            lane: config.lane,
            env: config.env,
            name_hash_key: config.name_hash_key,
            map: config.map,
            storage: config.storage,
            across,
            placement: Default::default(),
            sessions: Default::default(),
            opens: Default::default(),
            awaited: Default::default(),
            unmet: Default::default(),
            incarnation,
            lost_since,
            leases: Mutex::new(LeaseTable::above(incarnation << COUNT_BITS)),
            leases_changed: tasks.signal(),
            trim_pause: tasks.signal(),
            locks: Mutex::default(),
            garbage: crate::collect::GarbageQueue::new(&*tasks),
            cutting: crate::collect::CutsUnderWay::new(&*tasks),
            proposals: Default::default(),
            unsettled: Default::default(),
            unreleased: Default::default(),
            uncompared: Default::default(),
            unmeasured: Default::default(),
            making_room: crate::room::MakingRoom::new(&*tasks),
            splits: crate::split::Splits::new(&*tasks),
            waiting: Default::default(),
            reports: Default::default(),
            is_stopping: Default::default(),
        });
        let has_root = service
            .lane
            .read()
            .get(&key::inode(InodeId::ROOT))
            .map_err(|error| service.answer(&error.into()))?
            .is_some();
        if has_root || !has_root_shard {
            service.skip_inode_ids(config.has_lost)?;
        } else {
            let creds = itself();
            let caller = Caller::new(OpId::default(), &creds);
            let shards: Vec<_> = service.shards_here().0.iter().collect();
            service.mutate(
                caller,
                number::BOOTSTRAP,
                |txn, context| {
                    bootstrap(txn, root, context.now)?;
                    // As after any other start, each shard that is here has a counter: that it was here is told by it.
                    shards.iter().try_for_each(|&shard| verb::begin_inode_ids(txn, shard))
                },
                |(), _| (),
            )?;
            service.lane.flush_all().map_err(|error| service.answer(&error.into()))?;
        }
        service.employ_couriers();
        service.find_arriving()?;
        service.find_transactions()?;
        let report = service.recover(config.keeps_sessions)?;
        service.across.end_start();
        service.garbage.wake(service.lane.appended());
        Ok((service, report))
    }

    fn recover(&self, keeps_sessions: bool) -> Result<RecoveryReport, Errno> {
        let (mut sessions, cuts) = self.find_left_behind()?;
        let mut lasting = self.find_lasting()?;
        if keeps_sessions {
            self.find_unmet(&lasting, |session| sessions.contains(&session))?;
            self.awaited.note_lasting(&lasting);
            for (session, _) in &lasting {
                sessions.remove(session);
            }
            // Nobody would tell.
            lasting.retain(|(session, _)| !self.unmet.has(*session));
            self.note_orphans_of(&lasting)?;
            self.awaited.begin(lasting);
        } else {
            // Nobody waits for them, so they have ended.
            lasting.iter().try_for_each(|(session, _)| self.forget_session(*session))?;
        }
        self.withdraw_layouts()?;
        // ORDER: cuts come before sizes are settled, or the chains would tell lengths that a truncation has taken back.
        for (inode, garbage) in &cuts {
            match self.collect_one(*inode, garbage, (SERVICE, true)) {
                // The record stays; whoever writes the file next cuts first, once its target is back.
                Err(Errno::ENODEV | Errno::ETIMEDOUT | Errno::EREMCHG) => {
                    tracing::warn!(%inode, "a truncation waits for a missing target");
                }
                // One damaged block does not keep everything else from being served: whoever writes the file is told.
                Err(Errno::EIO) => {
                    tracing::error!(%inode, "a truncation could not be carried out; run `ashlar fsck`")
                }
                cut => if_not_held("a truncation", cut.map(drop))?,
            }
        }
        for &session in &sessions {
            if_not_held("what a session has left", self.reap(session, None).map(drop))?;
        }
        // ORDER: sizes are settled before chunks are compared with them: after the death of the process alone, what a dead writer wrote and
        // never reported was acknowledged, and is the file's.
        let suspects_compared = self.reconcile()?;
        Ok(RecoveryReport { sessions_reaped: sessions.len(), cuts_finished: cuts.len(), suspects_compared })
    }

    /// Sessions that were to outlive the service.
    pub(crate) fn find_lasting(&self) -> Result<Vec<(SessionId, SessionOwner)>, Errno> {
        let (from, to) = key::table_range(ShardId(0), b'N');
        let mut found = Vec::new();
        let mut visit = |record_key: &[u8], value: &[u8]| {
            // One that is damaged cannot come back, and is not waited for; the check of the file system tells.
            if let (Some(session), Ok(owner)) =
                (key::session_of(record_key), codec::decode::<SessionOwner>(value, "session"))
                && session.0 != 0
            {
                found.push((session, owner));
            }
            ControlFlow::Continue(())
        };
        self.lane.read().scan(&from, &to, &mut visit).map_err(|error| self.answer(&error.into()))?;
        Ok(found)
    }

    /// Inodes without a name that `lasting` sessions have open.
    fn note_orphans_of(&self, lasting: &[(SessionId, SessionOwner)]) -> Result<(), Errno> {
        if lasting.is_empty() {
            return Ok(());
        }
        let shards: Vec<_> = self.shards_here().0.iter().collect();
        shards.into_iter().try_for_each(|shard| self.note_orphans_in(shard))
    }

    /// Inodes without a name in `shard` that somebody has open.
    pub(crate) fn note_orphans_in(&self, shard: ShardId) -> Result<(), Errno> {
        let (from, to) = key::table_range(shard, b'O');
        let mut visit = |record_key: &[u8], _: &[u8]| {
            if let Some(inode) = key::inode_of(record_key) {
                self.opens.lock().note_orphan(inode);
            }
            ControlFlow::Continue(())
        };
        self.lane.read().scan(&from, &to, &mut visit).map_err(|error| self.answer(&error.into()))
    }

    /// Layouts that were proposed and never bound: whoever was filling them is gone.
    fn withdraw_layouts(&self) -> Result<(), Errno> {
        let mut inodes = BTreeSet::new();
        let shards: Vec<_> = self.shards_here().0.iter().collect();
        for shard in shards {
            let (from, to) = key::table_range(shard, b'G');
            self.lane
                .read()
                .scan(&from, &to, &mut |record_key, _| {
                    inodes.extend(key::inode_of(record_key));
                    ControlFlow::Continue(())
                })
                .map_err(|error| self.answer(&error.into()))?;
        }
        let creds = itself();
        for inode in inodes {
            let caller = Caller::new(OpId::default(), &creds);
            let withdrawn = self.mutate(
                caller,
                number::PROPOSE_LAYOUT,
                |txn, context| verb::withdraw_layout(txn, context, inode, None),
                |_, _| (),
            );
            if_not_held("a layout that was proposed", withdrawn)?;
        }
        Ok(())
    }

    /// Sessions with orphan or writer records, and truncations to be carried out.
    fn find_left_behind(&self) -> Result<LeftBehind, Errno> {
        let (mut sessions, mut cuts) = (BTreeSet::new(), Vec::new());
        let shards: Vec<_> = self.shards_here().0.iter().collect();
        let reader = self.lane.read();
        for shard in shards {
            for table in [b'O', b'W'] {
                let (from, to) = key::table_range(shard, table);
                reader
                    .scan(&from, &to, &mut |record_key, _| {
                        sessions.extend(key::session_of_record(record_key));
                        ControlFlow::Continue(())
                    })
                    .map_err(|error| self.answer(&error.into()))?;
            }
            let (from, to) = key::table_range(shard, b'G');
            reader
                .scan(&from, &to, &mut |record_key, value| {
                    if let (Some(inode), Ok(garbage)) =
                        (key::inode_of(record_key), codec::decode::<Garbage>(value, "garbage record"))
                        && garbage.keep_bytes > 0
                    {
                        cuts.push((inode, garbage));
                    }
                    ControlFlow::Continue(())
                })
                .map_err(|error| self.answer(&error.into()))?;
        }
        Ok((sessions, cuts))
    }
}

/// Passes over what an operation across servers holds that is not decided yet: it stays, for the next start.
fn if_not_held(what: &str, outcome: Result<(), Errno>) -> Result<(), Errno> {
    if outcome == Err(Errno::EHOSTDOWN) {
        tracing::warn!(
            "{what} cannot be cleaned up: another metadata server has to say first what was decided"
        );
        return Ok(());
    }
    outcome
}

/// The number of the last start after which something may have been lost. What cannot be read counts as none, as below.
fn last_loss(lane: &Lane) -> u64 {
    let reader = lane.read();
    let snapshot: &dyn Snapshot = &reader;
    Txn::new(snapshot).get_record(&key::last_loss(), "number of a start").ok().flatten().unwrap_or(0)
}

/// The number of this start. What cannot be read counts as none: the service finds that out by itself in a moment.
fn incarnation_after(lane: &Lane, has_root_shard: bool) -> u64 {
    let reader = lane.read();
    let snapshot: &dyn Snapshot = &reader;
    let last: Option<u64> =
        Txn::new(snapshot).get_record(&key::incarnation(), "number of starts").ok().flatten();
    let has_root = matches!(reader.get(&key::inode(InodeId::ROOT)), Ok(Some(_)));
    if has_root || !has_root_shard { verb::incarnation_after(last) } else { 0 }
}
