//! One copy of a metadata server's log on this machine: the machines of `ashlar_replication::log` with a lane, a disk, other machines and clocks around them (ADR 0029).
//!
//! | module | what |
//! |---|---|
//! | `hook` | what the lane of the primary tells and asks |
//! | `send`, `peer` | what goes to the other copies, by threads of their own for each |
//! | `hear`, `take_all` | what comes from them |
//! | `held`, `tenure` | answers that wait until what they tell is committed; what a service may do that runs from the copy |
//! | `tend` | time, changes of the membership, what managers are asked |
//! | `store`, `message`, `recent` | what is on the disk, on the wire, and in memory |
//!
//! Lock order: the lane's, then `Core`. So nobody calls the lane while he holds the core.
//!
//! Invariants: the membership changes between two groups of the lane, never beside one ([`Replica::learn`]). Nothing is told, and no group is decided, but under a
//! lease of all others of the epoch.

mod hear;
mod held;
mod hook;
mod message;
mod obey;
mod peer;
mod recent;
mod send;
mod store;
mod take_all;
mod tend;
mod tenure;

pub use ashlar_replication::membership::LeaseTerms;
pub use message::{Heard, Say};
pub use store::CopyStore;
pub use tenure::Tenure;

use ashlar_env::{Env, Signal, Task};
use ashlar_kv::{KvError, Lane};
use ashlar_replication::log::{Command, LogIndex, LogPosition, LogReplica, Recovered, Sequence};
use ashlar_replication::membership::{Change, Content, Stored};
use ashlar_types::membership::Membership;
use ashlar_types::{Epoch, Errno, NodeId};
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The other copies.
pub trait CopyPeers: Send + Sync {
    /// Has the copy on `node` hear `head`, with `payload` beside it, and tells what it answers, within `wait`.
    ///
    /// # Errors
    /// `EHOSTDOWN`: it may have been heard all the same.
    fn ask(&self, node: NodeId, head: &[u8], payload: &[u8], wait: Duration) -> Result<Vec<u8>, Errno>;
}

/// Where memberships are decided.
pub trait Agreement: Send + Sync {
    /// Asks for `change` of the membership at `expected`, within a few seconds. The answer is a newer membership, or none.
    fn propose(&self, expected: Epoch, change: Change<NodeId>);

    /// Somebody is at a newer epoch: have a newer map looked for.
    fn refresh(&self);
}

/// What a copy is made of.
pub struct ReplicaConfig {
    /// This machine.
    pub node: NodeId,
    /// Clocks, randomness, threads.
    pub env: Env,
    /// Of leases; they must be safe.
    pub terms: LeaseTerms,
    /// Where it is kept.
    pub store: Arc<dyn CopyStore>,
    /// The others.
    pub peers: Arc<dyn CopyPeers>,
    /// For how long from now on damage is no reason to give up what it has: that was made anew just now.
    pub keeps_for: Duration,
    /// Managers.
    pub agreement: Arc<dyn Agreement>,
}

/// Has `store`, which is empty, be that of a copy to be: `membership`, in which the machine is not yet, or is alone in its own lane, is noted. Done before a manager puts the machine into the
/// group, so that a disk that was lost is not taken for one that never had anything.
///
/// # Errors
/// [`KvError::Io`].
pub fn prepare(store: &dyn CopyStore, membership: &Membership<NodeId>) -> Result<(), KvError> {
    let stored = Stored { membership: membership.clone(), content: Content::Whole };
    store.keep(&store::Kept::new(stored, store.continuity(), false).encode())
}

/// Where a copy stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The epoch of its membership.
    pub epoch: Epoch,
    /// Everything before the epoch is committed again and this machine decides what comes next: the metadata service may run here.
    pub is_serving: bool,
    /// The metadata service that was begun here must end: what it has decided may not be so.
    pub must_end_service: bool,
    /// It is the primary of its epoch, or will be.
    pub is_primary: bool,
    /// It takes part at its epoch. One that was started anew waits for a newer one.
    pub is_active: bool,
    /// The end of its log, and what it knows to be committed.
    pub last: u64,
    /// See above.
    pub committed: u64,
}

/// Of a [`Standing`], what is not another one with each change: epoch, `is_serving`, `is_primary`, `must_end_service`.
type Essence = (Epoch, bool, bool, bool);

impl Standing {
    fn essence(&self) -> Essence {
        (self.epoch, self.is_serving, self.is_primary, self.must_end_service)
    }
}

/// The membership that `store` has noted last, if it is that of a copy.
///
/// # Errors
/// [`KvError::Io`] and [`KvError::Corrupt`].
pub fn kept_membership(store: &dyn CopyStore) -> Result<Option<Membership<NodeId>>, KvError> {
    let kept = store.kept()?.map(|bytes| store::Kept::decode(&bytes)).transpose()?;
    Ok(kept.map(|kept| kept.stored.membership))
}

/// See the module.
pub struct Replica {
    this: Weak<Replica>,
    config: ReplicaConfig,
    first_epoch: Epoch,
    /// See [`ReplicaConfig::keeps_for`].
    keeps_until: Duration,
    /// Another one once all of it was replaced.
    lane: RwLock<Arc<Lane>>,
    core: Mutex<Core>,
    /// Signalled when a copy has made something durable, or something is committed.
    flushed: Signal,
    /// Wakes whoever looks at the time.
    ticker: Signal,
    /// Wakes whoever asks managers.
    proposer: Signal,
    /// Signalled when the turn of hearing is over, or the standing has changed.
    turned: Signal,
    // LIMIT: three for each other copy there ever was since the start, and two.
    threads: Mutex<Vec<Task>>,
}

/// What the threads of a copy share.
struct Core {
    machine: LogReplica<NodeId>,
    recent: recent::Recent,
    peers: SmallVec<[peer::Peer; 3]>,
    held: held::Held,
    /// What managers are to be asked; a newer wish takes the place of an older one.
    proposal: Option<(Epoch, Change<NodeId>)>,
    wants_refresh: bool,
    /// Somebody takes what another copy has sent.
    is_hearing: bool,
    /// Somebody stores a membership.
    is_learning: bool,
    service: Service,
    /// How many services were begun.
    services_begun: u64,
    /// What is being received of all that a lane holds.
    incoming: Option<take_all::Incoming>,
    /// Why it takes no part any more.
    broken: Option<String>,
    /// What was found to be damaged on the disk, while others had it.
    damage: Option<String>,
    /// The power was cut before something was stored that this machine had acknowledged, and it was in sync ever since, or has become so without having heard of it; the lane does not say so yet.
    is_left_short: bool,
    is_stopping: bool,
    /// The standing that those who wait for another one were told last when something was committed.
    announced: Option<Essence>,
    /// Kept, so that a step allocates nothing.
    out: Vec<Command<NodeId>>,
}

/// The metadata service on the lane of this copy.
#[derive(Debug, PartialEq, Eq)]
enum Service {
    /// None.
    Absent,
    /// The one of this number was begun, and this machine has been primary ever since.
    Here(u64),
    /// It was begun, and must end: another machine may have decided something since, or nobody knows whether what it made durable is so elsewhere. Nothing of it is
    /// committed or told any more.
    Over,
}

impl Replica {
    /// The copy in the store of `config`; `membership` is what managers say. What has become one is in the store ([`prepare`]): a store that says nothing is that of a machine that has
    /// lost what it had.
    ///
    /// # Errors
    /// What store and lane answer.
    pub fn start(config: ReplicaConfig, membership: &Membership<NodeId>) -> Result<Arc<Replica>, KvError> {
        assert!(config.terms.is_safe() && config.terms.is_live(), "terms of leases that are not safe");
        let now = config.env.clock.monotonic();
        let kept = config.store.kept()?.map(|bytes| store::Kept::decode(&bytes)).transpose()?;
        let stored = kept.map(|kept| kept.content(config.store.continuity()));
        // Who is alone has nobody who could know better what the end of the log is.
        let keeps_log = stored.as_ref().is_some_and(|stored| !stored.membership.is_alone(config.node));
        let lane = Arc::new(config.store.open(keeps_log)?);
        let mut out = Vec::new();
        let is_left_short = stored.as_ref().is_some_and(|stored| {
            stored.content == Content::Short && stored.membership.is_in_sync(config.node)
        });
        let machine = match stored {
            Some(stored) => {
                // ORDER: that something is missing is noted before anything is done by it.
                let noted = store::Kept::new(stored.clone(), config.store.continuity(), false);
                config.store.keep(&noted.encode())?;
                let recovered = Recovered {
                    member: stored,
                    index: index_of(&lane),
                    committed: Sequence(lane.checkpointed()?.sequence),
                };
                LogReplica::recover(config.node, config.terms, recovered, now, &mut out)
            }
            None => {
                let stored = Stored { membership: membership.clone(), content: Content::Missing };
                let recovered = Recovered { member: stored, index: index_of(&lane), committed: Sequence(0) };
                LogReplica::recover(config.node, config.terms, recovered, now, &mut out)
            }
        };
        let tasks = config.env.tasks.clone();
        let core = Core {
            machine,
            recent: recent::Recent::default(),
            peers: SmallVec::new(),
            held: held::Held::default(),
            proposal: None,
            wants_refresh: false,
            is_hearing: false,
            is_learning: false,
            service: Service::Absent,
            services_begun: 0,
            incoming: None,
            broken: None,
            damage: None,
            is_left_short,
            is_stopping: false,
            announced: None,
            out: Vec::new(),
        };
        let first_epoch = core.machine.member().epoch();
        let keeps_until = now + config.keeps_for;
        let replica = Arc::new_cyclic(|this| Replica {
            this: this.clone(),
            config,
            first_epoch,
            keeps_until,
            lane: RwLock::new(lane),
            core: Mutex::new(core),
            flushed: tasks.signal(),
            ticker: tasks.signal(),
            proposer: tasks.signal(),
            turned: tasks.signal(),
            threads: Mutex::default(),
        });
        replica.lane().replicate_with(Arc::new(hook::Hook(Arc::downgrade(&replica))))?;
        let begun = replica.begin_threads().and_then(|()| {
            {
                let mut core = replica.core.lock();
                replica.follow_members(&mut core);
                replica.obey(&mut core, &mut out);
            }
            replica.learn(membership)
        });
        if let Err(error) = begun {
            // Nobody else does: its threads would go on for ever.
            if let Err(other) = replica.stop() {
                tracing::debug!(%other, "a copy that could not be started was not closed in good order");
            }
            return Err(error);
        }
        Ok(replica)
    }

    /// The lane.
    pub fn lane(&self) -> Arc<Lane> {
        self.lane.read().clone()
    }

    /// The epoch at which it took part last before it was started.
    pub fn first_epoch(&self) -> Epoch {
        self.first_epoch
    }

    /// Who keeps copies, as far as it knows.
    pub fn membership(&self) -> Membership<NodeId> {
        self.core.lock().machine.member().membership().clone()
    }

    /// Where it stands.
    pub fn standing(&self) -> Standing {
        self.core.lock().standing()
    }

    /// Waits until the copy stands otherwise than `before`, at most for `wait`.
    pub fn wait_for_change(&self, before: Standing, wait: Duration) -> Standing {
        let end = self.config.env.clock.monotonic() + wait;
        let mut core = self.core.lock();
        loop {
            let standing = core.standing();
            let is_other = standing.essence() != before.essence();
            let left = end.saturating_sub(self.config.env.clock.monotonic());
            if is_other || left.is_zero() || core.is_stopping {
                return standing;
            }
            self.turned.wait_for(&mut core, left);
        }
    }

    /// A metadata service is about to run from this copy; none where it must not. Until [`Tenure::end`] nothing of other copies is taken.
    pub fn begin_service(&self) -> Option<Arc<Tenure>> {
        let replica = self.this.upgrade()?;
        let mut core = self.core.lock();
        let may_begin = core.machine.is_serving()
            && core.broken.is_none()
            && core.service == Service::Absent
            && !core.is_hearing;
        if !may_begin {
            return None;
        }
        core.services_begun += 1;
        let number = core.services_begun;
        core.service = Service::Here(number);
        Some(Arc::new(Tenure { replica, number, lane: Arc::new(self.lane.read().hand_out()) }))
    }

    /// Why it takes no part any more: it is to be started anew, or its disk to be looked at.
    pub fn broken(&self) -> Option<String> {
        self.core.lock().broken.clone()
    }

    /// What was found to be damaged here, while others had it: that is why it takes no part any more, and what is on the disk is not to be used again.
    pub fn damage(&self) -> Option<String> {
        self.core.lock().damage.clone()
    }

    /// What is on the disk is damaged, as `what` says: it takes no part any more if others have all of it, and are there. Whether that is so.
    fn give_up_damaged(&self, what: &str) -> bool {
        let now = self.config.env.clock.monotonic();
        let mut core = self.core.lock();
        if core.damage.is_some() {
            return true;
        }
        let member = core.machine.member();
        let (me, membership) = (member.id(), member.membership());
        let mut others = membership.in_sync.iter().filter(|node| **node != me);
        let is_elsewhere = match membership.is_in_sync(me) {
            // Whoever is not heard may be dead: then this one is the last that has anything.
            true => others.any(|node| member.is_granted_by(*node, now)),
            false => others.next().is_some(),
        };
        if !is_elsewhere || now < self.keeps_until || core.broken.is_some() {
            return false;
        }
        core.damage = Some(what.to_owned());
        // Nobody is to be removed in favour of this one any more.
        core.proposal = None;
        core.give_up(format!("what it has is damaged: {what}"));
        self.turned.notify_all();
        true
    }

    /// Ends it. The metadata service has ended before.
    ///
    /// # Errors
    /// What the lane or the store answer to being closed.
    pub fn stop(&self) -> Result<(), KvError> {
        {
            let mut core = self.core.lock();
            core.is_stopping = true;
            core.held.refuse_all();
            for peer in &core.peers {
                peer.wake();
            }
        }
        for signal in [&self.flushed, &self.ticker, &self.proposer, &self.turned] {
            signal.notify_all();
        }
        self.deliver_ready();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            thread.join();
        }
        // ORDER: nobody takes entries any more before what was reported is made durable, and noted to be.
        {
            let mut core = self.core.lock();
            while core.is_hearing {
                self.turned.wait_for(&mut core, Duration::from_millis(20));
            }
        }
        let lane = self.lane();
        // One that was only found to be damaged takes what it has to the next start, if that is needed: nobody else may be left.
        let is_only_damaged = self.damage().is_some() && lane.stopped().is_none();
        if self.broken().is_some() && !is_only_damaged {
            // What of its log is on the disk is not known: the next start asks others.
            let stored = self.core.lock().machine.member().to_store();
            self.config.store.keep(&store::Kept::new(stored, None, false).encode())?;
            if let Err(error) = lane.close() {
                tracing::debug!(%error, "a lane that takes nothing any more was not closed in good order");
            }
            return Ok(());
        }
        lane.flush_here()?;
        {
            let core = self.core.lock();
            let (stored, is_left_short) = (core.machine.member().to_store(), core.is_left_short);
            drop(core);
            let span = if is_left_short { None } else { self.config.store.continuity() };
            self.config.store.keep(&store::Kept::new(stored, span, !is_left_short).encode())?;
        }
        match lane.close() {
            Err(error) if is_only_damaged => {
                tracing::debug!(%error, "a lane that is damaged was not closed in good order");
                Ok(())
            }
            closed => closed,
        }
    }
}

impl Core {
    fn standing(&self) -> Standing {
        let member = self.machine.member();
        Standing {
            epoch: member.epoch(),
            is_serving: self.may_decide(),
            must_end_service: self.service == Service::Over,
            is_primary: self.is_named_primary(),
            is_active: member.is_active() && self.broken.is_none(),
            last: self.machine.index().last().sequence.0,
            committed: self.machine.committed().0,
        }
    }

    /// Whether this machine decides what comes next.
    fn may_decide(&self) -> bool {
        self.machine.is_serving() && self.broken.is_none() && self.service != Service::Over
    }

    /// Whether the service here has to wait until this machine decides, after a change of the epoch.
    fn is_undecided(&self) -> bool {
        matches!(self.service, Service::Here(_))
            && !self.machine.is_serving()
            && self.is_named_primary()
            && self.broken.is_none()
            && !self.is_stopping
    }

    /// Whether the membership has this machine first.
    fn is_named_primary(&self) -> bool {
        let member = self.machine.member();
        member.membership().primary() == member.id()
    }

    /// The number of the service here; 0: none, or it is over.
    fn service_here(&self) -> u64 {
        if let Service::Here(number) = self.service { number } else { 0 }
    }

    /// Nothing of the service here is committed or told any more.
    fn end_service(&mut self, why: &str) {
        if matches!(self.service, Service::Here(_)) {
            tracing::warn!(why, "the metadata service on this copy ends");
            self.service = Service::Over;
            self.held.refuse_all();
        }
    }

    /// What is known of the copy on `node`.
    fn peer(&mut self, node: NodeId) -> Option<&mut peer::Peer> {
        self.peers.iter_mut().find(|peer| peer.node == node)
    }

    /// Whether `from` is the primary of `epoch`, at which this copy takes part.
    fn follows(&self, from: NodeId, epoch: Epoch) -> bool {
        let member = self.machine.member();
        member.epoch() == epoch && member.membership().primary() == from && member.is_active()
    }

    /// Has all other copies make durable what they have, up to `sequence`.
    fn want_flush(&mut self, sequence: u64) {
        for peer in self.peers.iter_mut().filter(|peer| peer.flush_wanted < sequence) {
            peer.flush_wanted = sequence;
            peer.flusher.notify_all();
        }
    }

    /// It takes no part any more.
    fn give_up(&mut self, why: String) {
        tracing::error!(why, "a copy of metadata takes no part any more");
        self.end_service("it takes no part any more");
        self.broken.get_or_insert(why);
        self.held.refuse_all();
    }
}

/// What the log of a lane that was just opened has.
fn index_of(lane: &Lane) -> LogIndex {
    let runs = lane.runs_at_open();
    let floor = LogPosition { sequence: Sequence(runs.floor.sequence), epoch: runs.floor.epoch };
    let entries = runs.runs.iter().map(|&(epoch, count)| ashlar_replication::log::EntryRun { epoch, count });
    LogIndex::new(floor, entries)
}
