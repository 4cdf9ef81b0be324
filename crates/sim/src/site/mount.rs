//! A mount of the site: its session at all servers, and what it tells them when they do not know what it has.
//!
//! It is what `crates/rpc/src/remote/meta` and `crates/client/src/{reclaim,come_back}.rs` are, without a network, a kernel and content: nothing is cached, so a recall is
//! answered at once. What it has open and locked it never forgets by itself.

use super::fill::Fill;
use super::work::Work;
use super::{FIRST_MOUNT, HASH_KEY, Held, Site, server};
use ashlar_rpc::net::Peer;
use ashlar_rpc::wire::{COUNT_BITS, MetaAnswer, MetaCall, Repetition, repetition};
use ashlar_types::map::Shard;
use ashlar_types::message::{
    Addressee, LeaseSet, LockKind, LockRequest, MetaReply, MetaRequest, Reclaim, ReclaimedFile, SessionEvent,
    SplitDirectory,
};
use ashlar_types::{
    ClusterMap, Credentials, DescriptionId, Epoch, Errno, InodeId, NameHash, NodeId, OpId, OpenProof, Role,
    SessionId, ShardId,
};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// For how long one exchange is waited for.
const EXCHANGE_MAX: Duration = Duration::from_secs(5);
/// A call that is not answered for so long is a failure: servers are away for less, and so are mounts that are waited for.
const CALL_MAX: Duration = Duration::from_secs(240);
const RENEW_MS: u64 = 1000;
const LISTEN_MS: u64 = 40;

/// A file that is open.
#[derive(Clone, Debug, Default)]
pub(super) struct Open {
    pub handles: Vec<(DescriptionId, bool)>,
    pub proof: Option<OpenProof>,
}

/// What is known of starts of a server, by their numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// The newest one that somebody is telling, or has told.
    begun: u64,
    /// The newest one that knows everything.
    done: u64,
}

#[derive(Default)]
struct State {
    session: SessionId,
    /// Servers at which the session is, in the start of each that it was opened in or told.
    present: BTreeMap<usize, Told>,
    /// What each of them had, by the map of which epoch, when the session was last wherever that has gone.
    followed: BTreeMap<usize, (Epoch, Vec<ShardId>)>,
    files: BTreeMap<InodeId, Open>,
    locks: Vec<(LockRequest, DescriptionId)>,
    /// Grows when a server begins to be told.
    era: u64,
    /// Another session is being opened.
    is_coming_back: bool,
}

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// The answer is an error.
    Errno(Errno),
    /// The session has ended meanwhile: nobody knows whether it was carried out.
    Unknown,
}

/// See the module.
pub(super) struct Mount {
    pub number: usize,
    pub site: Arc<Site>,
    peer: Peer,
    pub map: Arc<RwLock<Arc<ClusterMap>>>,
    state: Mutex<State>,
    split: Mutex<BTreeMap<InodeId, SplitDirectory>>,
    sequence: AtomicU64,
    pub tells_late_ms: AtomicU64,
    pub is_dead: AtomicBool,
    is_ready: AtomicBool,
    has_worked: AtomicBool,
    /// What it does with content is done, where it does something.
    has_filled: AtomicBool,
    has_read_all: AtomicBool,
    is_to_end: AtomicBool,
    has_ended: AtomicBool,
}

impl Mount {
    pub fn new(number: usize, site: &Arc<Site>) -> Arc<Mount> {
        let map = Arc::new(site.truth.lock().clone());
        Arc::new(Mount {
            number,
            site: site.clone(),
            peer: server::peer_of(NodeId(FIRST_MOUNT + number as u32), Role::Client),
            map: Arc::new(RwLock::new(map)),
            state: Mutex::default(),
            split: Mutex::default(),
            sequence: AtomicU64::new(2),
            tells_late_ms: AtomicU64::new(0),
            is_dead: AtomicBool::new(false),
            is_ready: AtomicBool::new(false),
            has_worked: AtomicBool::new(false),
            has_filled: AtomicBool::new(site.storage.is_empty()),
            has_read_all: AtomicBool::new(site.storage.is_empty()),
            is_to_end: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        })
    }

    pub fn is_ready(&self) -> bool {
        self.is_ready.load(SeqCst)
    }

    pub fn note_ready(&self) {
        self.is_ready.store(true, SeqCst);
    }

    pub fn has_worked(&self) -> bool {
        self.has_worked.load(SeqCst) && self.has_filled.load(SeqCst)
    }

    /// Has it check everything, close everything and go.
    pub fn end(&self) {
        self.is_to_end.store(true, SeqCst);
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended.load(SeqCst) && self.has_read_all.load(SeqCst)
    }

    pub fn session(&self) -> SessionId {
        self.state.lock().session
    }

    /// What it has open.
    pub fn files(&self) -> BTreeMap<InodeId, Open> {
        self.state.lock().files.clone()
    }

    pub fn next_number(&self) -> u64 {
        self.sequence.fetch_add(1, SeqCst)
    }

    /// Starts its tasks.
    pub fn start(self: &Arc<Mount>) {
        for at in 0..self.site.servers.len() {
            for (what, is_renewal) in [("renew", true), ("events", false)] {
                let mount = self.clone();
                let run = move || if is_renewal { mount.renew(at) } else { mount.listen(at) };
                self.site.scheduler.start(&format!("m{}:{what}{at}", self.number), Box::new(run));
            }
        }
        let mount = self.clone();
        let work = move || {
            mount.open_session();
            let mut work = Work::new(mount.clone());
            work.set_up();
            match mount.site.sweep.as_ref() {
                Some(sweep) => sweep.work(&mount.site, &mut work),
                None => work.carry_out(),
            }
            mount.has_worked.store(true, SeqCst);
            while !mount.is_to_end.load(SeqCst) {
                mount.site.sleep_ms(200);
            }
            work.check_everything();
            work.close_everything();
            mount.close_session();
            mount.has_ended.store(true, SeqCst);
        };
        self.site.scheduler.start(&format!("m{}:work", self.number), Box::new(work));
        if !self.site.storage.is_empty() {
            self.start_filling();
        }
    }

    /// Starts what it does with content.
    fn start_filling(self: &Arc<Mount>) {
        let mount = self.clone();
        let fill = move || {
            let mut fill = Fill::new(mount.clone());
            fill.work();
            mount.has_filled.store(true, SeqCst);
            while !mount.is_to_end.load(SeqCst) {
                mount.site.sleep_ms(200);
            }
            fill.check_everything();
            mount.has_read_all.store(true, SeqCst);
        };
        self.site.scheduler.start(&format!("m{}:fill", self.number), Box::new(fill));
    }

    fn exchange(&self, at: usize, call: &MetaCall<'_>) -> Option<MetaAnswer> {
        // A connection that breaks is made anew, and its call carried out once: in one life of a server a call is waited for until it is answered.
        let wait = if matches!(call, MetaCall::Call { .. }) { CALL_MAX } else { EXCHANGE_MAX };
        let (answer, epoch) = self.site.servers[at].call(&self.site, &self.peer, call, wait)?;
        self.await_map(epoch);
        Some(answer)
    }

    /// Whoever hears of a newer map asks a manager for it.
    pub fn await_map(&self, epoch: Epoch) {
        if self.map.read().epoch >= epoch {
            return;
        }
        self.site.sleep_ms(self.site.dice.below(15));
        let newest = Arc::new(self.site.truth.lock().clone());
        let mut map = self.map.write();
        if newest.epoch > map.epoch {
            *map = newest;
        }
    }

    fn server_of(&self, inode: InodeId) -> usize {
        self.map.read().primary(inode.home()).map_or(0, |node| (node.0 as usize).saturating_sub(1))
    }

    fn open_session(self: &Arc<Mount>) {
        let at = self.server_of(InodeId::ROOT);
        loop {
            let had = self.had_by(at);
            if let Some(MetaAnswer::Session(session, start)) = self.exchange(at, &MetaCall::Open(None)) {
                let told = Told { begun: start, done: start };
                let mut state = self.state.lock();
                (state.session, state.present) = (session, BTreeMap::from([(at, told)]));
                state.followed = BTreeMap::from([(at, had)]);
                return;
            }
            self.site.sleep_ms(50);
        }
    }

    fn close_session(&self) {
        // One that is being opened instead would go on after this.
        self.current_session();
        let (session, present) = {
            let mut state = self.state.lock();
            (std::mem::take(&mut state.session), std::mem::take(&mut state.present))
        };
        let is_there = |at: &usize| !self.site.plan.is_at_few || present.contains_key(at);
        for at in (0..self.site.servers.len()).filter(is_there) {
            self.exchange(at, &MetaCall::Close(session));
        }
    }

    /// Has the session be at a server; tells whether it is.
    fn attend(self: &Arc<Mount>, session: SessionId, at: usize) -> bool {
        if self.state.lock().present.contains_key(&at) {
            return true;
        }
        let had = self.had_by(at);
        let answer = self.exchange(at, &MetaCall::Open(Some(session)));
        let told = match answer {
            Some(MetaAnswer::Session(_, start)) => Told { begun: start, done: start },
            Some(MetaAnswer::MustReclaim(start)) => Told { begun: start - 1, done: start - 1 },
            Some(MetaAnswer::Failed(Errno::ENOTCONN)) => {
                self.come_back(session);
                return false;
            }
            _ => return false,
        };
        let mut state = self.state.lock();
        if state.session == session {
            state.present.entry(at).or_insert(told);
            state.followed.entry(at).or_insert(had);
        }
        state.session == session
    }

    /// What a server has, and by which map.
    fn had_by(&self, at: usize) -> (Epoch, Vec<ShardId>) {
        let map = self.map.read();
        let is_there = |shard: &&Shard| shard.primary == NodeId(at as u32 + 1);
        (map.epoch, map.shards.iter().filter(is_there).map(|shard| shard.id).collect())
    }

    /// Has the session be wherever shards of a server have gone; tells whether it is.
    fn follow(self: &Arc<Mount>, session: SessionId, at: usize) -> bool {
        let Some((epoch, had)) = self.state.lock().followed.get(&at).cloned() else { return false };
        let now = self.had_by(at);
        if now.0 <= epoch {
            return true;
        }
        let map = self.map.read().clone();
        let servers = had.iter().filter_map(|shard| map.primary(*shard)).map(|node| node.0 as usize - 1);
        if !servers.filter(|other| *other != at).all(|other| self.attend(session, other)) {
            return false;
        }
        let mut state = self.state.lock();
        if state.session == session {
            state.followed.insert(at, now);
        }
        true
    }

    /// Whether it has something to say to a server, and is there.
    fn is_to_be_at(self: &Arc<Mount>, session: SessionId, at: usize) -> bool {
        let is_there = !self.site.plan.is_at_few || self.state.lock().present.contains_key(&at);
        session != SessionId(0) && is_there && self.attend(session, at)
    }

    fn renew(self: &Arc<Mount>, at: usize) {
        loop {
            self.site.sleep_ms(RENEW_MS);
            let session = self.session();
            if !self.is_to_be_at(session, at) || self.site.plan.is_at_few && !self.follow(session, at) {
                continue;
            }
            match self.exchange(at, &MetaCall::Renew { session, busy: Vec::new() }) {
                Some(MetaAnswer::MustReclaim(start)) => self.reclaim(session, at, start),
                Some(MetaAnswer::Failed(Errno::ENOTCONN)) => self.come_back(session),
                _ => {}
            }
        }
    }

    fn listen(self: &Arc<Mount>, at: usize) {
        let mut seen = (SessionId(0), 0);
        loop {
            self.site.sleep_ms(LISTEN_MS);
            let session = self.session();
            if !self.is_to_be_at(session, at) {
                continue;
            }
            if seen.0 != session {
                seen = (session, 0);
            }
            match self.exchange(at, &MetaCall::Events { session, seen: seen.1 }) {
                Some(MetaAnswer::Events(events)) => {
                    for (number, event) in events {
                        if number > seen.1 {
                            seen.1 = number;
                            self.hear(session, at, number, event);
                        }
                    }
                }
                Some(MetaAnswer::MustReclaim(start)) => self.reclaim(session, at, start),
                Some(MetaAnswer::Failed(Errno::ENOTCONN)) => self.come_back(session),
                _ => {}
            }
        }
    }

    fn hear(self: &Arc<Mount>, session: SessionId, at: usize, number: u64, event: SessionEvent) {
        let told = self.state.lock().present.get(&at).copied().unwrap_or_default();
        match event {
            // Of a service that has ended.
            _ if number >> COUNT_BITS < told.begun => {}
            SessionEvent::Recall(recall) => {
                let request = MetaRequest::RecallDone { inode: recall.inode, id: recall.id };
                let _ = self.call_in(session, request);
            }
            SessionEvent::Evicted { session } => self.come_back(session),
            _ => {}
        }
    }

    /// Tells a server, in this start of it, what it does not know.
    fn reclaim(self: &Arc<Mount>, session: SessionId, at: usize, start: u64) {
        {
            let mut state = self.state.lock();
            let is_current = state.session == session;
            let Some(told) = state.present.get_mut(&at).filter(|told| is_current && told.begun < start)
            else {
                return;
            };
            told.begun = start;
            // ORDER: before anything is looked at. Whoever notes something later sees that it may not have been told.
            state.era += 1;
        }
        self.site.sleep_ms(self.tells_late_ms.load(SeqCst));
        let is_told = self.tell_everything(session, at, start);
        self.site.scheduler.note(&|| format!("server {at} is told: {is_told}"));
        let mut state = self.state.lock();
        let is_current = state.session == session;
        if let Some(told) = state.present.get_mut(&at).filter(|told| is_current && told.begun == start) {
            if is_told {
                told.done = start;
            } else {
                told.begun = told.done;
            }
        }
    }

    fn tell_everything(self: &Arc<Mount>, session: SessionId, at: usize, start: u64) -> bool {
        let here: Vec<InodeId> =
            self.state.lock().files.keys().copied().filter(|inode| self.server_of(*inode) == at).collect();
        // One at a time: a start or a move is then in the middle more often.
        for inode in here {
            match self.tell_file(session, at, start, inode) {
                Some(Ok(())) => {}
                Some(Err(errno)) => self.lost(inode, errno),
                None => return false,
            }
        }
        let locks: Vec<_> = {
            let state = self.state.lock();
            state.locks.iter().filter(|(lock, _)| self.server_of(lock.inode) == at).copied().collect()
        };
        let parts = [(!locks.is_empty()).then_some(Reclaim::Locks(locks)), Some(Reclaim::Done)];
        parts.into_iter().flatten().all(|part| self.tell(session, at, start, part).is_some())
    }

    /// A part of what it has, told to a server; nothing if it is to be told otherwise.
    fn tell(&self, session: SessionId, at: usize, start: u64, part: Reclaim) -> Option<MetaReply> {
        let epoch = self.map.read().epoch;
        let op = OpId { session, sequence: self.next_number() };
        let node = NodeId(at as u32 + 1);
        let request = MetaRequest::Reclaim { server: node, incarnation: start, part };
        let call = MetaCall::Call { op, creds: Credentials::root(), slot: None, request };
        loop {
            match self.exchange(at, &call) {
                Some(MetaAnswer::Reply(reply)) => return Some(reply),
                // A shard of it is on its way.
                Some(MetaAnswer::Later) if self.map.read().epoch == epoch && self.session() == session => {
                    self.site.sleep_ms(20);
                }
                _ => return None,
            }
        }
    }

    /// What the server says to one file; nothing if it is to be told anew.
    fn tell_file(
        &self,
        session: SessionId,
        at: usize,
        start: u64,
        inode: InodeId,
    ) -> Option<Result<(), Errno>> {
        let open = self.state.lock().files.get(&inode).cloned();
        let Some(open) = open else { return Some(Ok(())) };
        let file = ReclaimedFile { inode, handles: open.handles, leases: LeaseSet::NONE, proof: open.proof };
        match self.tell(session, at, start, Reclaim::Files(vec![file]))? {
            MetaReply::Reclaimed { files } => {
                Some(files.first().copied().unwrap_or(Err(Errno::EPROTO)).map(drop))
            }
            other => {
                self.site.fail(format!("the answer to what is open is {other:?}"));
                None
            }
        }
    }

    /// A server does not have a file that was told.
    fn lost(&self, inode: InodeId, errno: Errno) {
        let is_coming_back = self.state.lock().is_coming_back;
        if is_coming_back {
            // With the session before: the server was started anew before it was told of that under this one.
            self.site.scheduler.note(&|| format!("{inode} is lost with a session that has ended"));
            self.state.lock().files.remove(&inode);
            return;
        }
        // Closed meanwhile, and gone with that.
        if self.state.lock().files.contains_key(&inode) {
            self.site.fail(format!("mount {} has {inode} open and is told {errno:?}", self.number));
        }
    }

    /// The session has ended; another one takes its place.
    fn come_back(self: &Arc<Mount>, ended: SessionId) {
        {
            let mut state = self.state.lock();
            if state.session != ended || state.is_coming_back {
                return;
            }
            state.is_coming_back = true;
            state.locks.clear();
        }
        self.site.scheduler.note(&|| format!("{ended} was ended"));
        if !self.site.is_forgiven(self.number) {
            self.site.fail(format!("the session of mount {} was ended, which was never silent", self.number));
        }
        self.site.held.lock().retain(|held| held.mount != self.number);
        // In a task of its own, as a client does: meanwhile others renew the new session where it is.
        let mount = self.clone();
        let open_and_tell = move || mount.open_and_tell();
        self.site.scheduler.start(&format!("m{}:back", self.number), Box::new(open_and_tell));
    }

    /// Opens a session, and tells in it what is open.
    fn open_and_tell(self: &Arc<Mount>) {
        self.open_session();
        let session = self.session();
        self.state.lock().era += 1;
        for inode in self.files().into_keys() {
            self.tell_anew(session, inode);
        }
        self.state.lock().is_coming_back = false;
    }

    /// Tells whoever has a file that it is open, until that is known.
    fn tell_anew(self: &Arc<Mount>, session: SessionId, inode: InodeId) {
        while self.session() == session {
            let at = self.server_of(inode);
            if self.attend(session, at) {
                let start = self.state.lock().present.get(&at).map_or(0, |told| told.begun);
                match self.tell_file(session, at, start, inode) {
                    Some(Ok(())) => return,
                    // What has no name may be gone with the session that ended.
                    Some(Err(_)) => {
                        self.site.scheduler.note(&|| format!("{inode} is lost with its session"));
                        self.state.lock().files.remove(&inode);
                        return;
                    }
                    None => {}
                }
            }
            self.site.sleep_ms(100);
        }
    }

    fn current_session(&self) -> SessionId {
        loop {
            let state = self.state.lock();
            if state.session != SessionId(0) && !state.is_coming_back {
                return state.session;
            }
            drop(state);
            self.site.sleep_ms(50);
        }
    }

    /// A call to where its names are.
    pub fn call(self: &Arc<Mount>, request: MetaRequest<'_>) -> Result<MetaReply, Failed> {
        let session = self.current_session();
        for _ in 0..8 {
            let (mut routed, mut parents) = (request.clone(), Vec::new());
            for (parent, name) in routed.places().into_iter().flatten() {
                let known = self.split.lock().get(parent).cloned();
                if let Some(slice) = known.and_then(|known| known.slice_of(NameHash::of(name, &HASH_KEY))) {
                    parents.push(*parent);
                    *parent = slice;
                }
            }
            match self.call_in(session, routed) {
                Err(Failed::Errno(Errno::EREMOTE)) => {
                    for (directory, _) in request.clone().places().into_iter().flatten() {
                        let directory = *directory;
                        if let Ok(MetaReply::Slices(known)) =
                            self.call_in(session, MetaRequest::Slices { directory })
                            && !known.slices.is_empty()
                        {
                            self.split.lock().insert(directory, known);
                        }
                    }
                }
                other => return other,
            }
        }
        Err(Failed::Errno(Errno::EREMOTE))
    }

    fn call_in(self: &Arc<Mount>, session: SessionId, request: MetaRequest<'_>) -> Result<MetaReply, Failed> {
        let Addressee::Home(inode) = request.addressee() else { return Err(Failed::Errno(Errno::EPROTO)) };
        let is_recall = matches!(request, MetaRequest::RecallDone { .. });
        let slot = (repetition(&request) == Repetition::Other).then_some(0);
        let op = OpId { session, sequence: self.next_number() };
        let call = MetaCall::Call { op, creds: Credentials::root(), slot, request: request.clone() };
        let give_up = self.site.now() + CALL_MAX;
        self.site.scheduler.note(&|| format!("-> {request:?}"));
        loop {
            let at = self.server_of(inode);
            let answer = match self.attend(session, at) {
                true => self.exchange(at, &call),
                false if self.session() != session => Some(MetaAnswer::Failed(Errno::ENOTCONN)),
                false => None,
            };
            match answer {
                Some(MetaAnswer::Reply(reply)) => return Ok(self.note(session, &request, reply, None)),
                Some(MetaAnswer::Opened(reply, proof, _)) => {
                    return Ok(self.note(session, &request, reply, Some(proof)));
                }
                // A recall of a service that has ended is answered to nobody.
                Some(MetaAnswer::MustReclaim(_)) if is_recall => return Ok(MetaReply::Done),
                Some(MetaAnswer::MustReclaim(start)) => self.reclaim(session, at, start),
                Some(MetaAnswer::Failed(Errno::ENOTCONN)) => {
                    self.come_back(session);
                    return Err(Failed::Unknown);
                }
                // Another server, which has a part in it, is away for too long, or waits for a mount that is.
                Some(MetaAnswer::Failed(Errno::ETIMEDOUT)) => return Err(Failed::Unknown),
                Some(MetaAnswer::Failed(errno)) => {
                    self.site.scheduler.note(&|| format!("<- {errno:?}"));
                    return Err(Failed::Errno(errno));
                }
                Some(MetaAnswer::Later | MetaAnswer::NotHere) | None => {}
                Some(other) => self.site.fail(format!("an answer of the wrong kind: {other:?}")),
            }
            if self.site.now() > give_up {
                self.site.fail(format!("mount {} is not answered: {request:?}", self.number));
            }
            self.site.sleep_ms(10 + self.site.dice.below(60));
        }
    }

    /// Remembers what was opened and locked.
    fn note(
        self: &Arc<Mount>,
        session: SessionId,
        request: &MetaRequest<'_>,
        reply: MetaReply,
        proof: Option<OpenProof>,
    ) -> MetaReply {
        self.site.scheduler.note(&|| format!("<- {reply:?}"));
        let opened = match request {
            MetaRequest::Create { handle, write, .. } | MetaRequest::Open { handle, write, .. } => {
                Some((*handle, *write))
            }
            MetaRequest::Tmpfile { handle, .. } => Some((*handle, true)),
            _ => None,
        };
        if let (MetaReply::Opened { open, .. }, Some(handle)) = (&reply, opened) {
            let inode = open.attr.inode;
            let mut state = self.state.lock();
            let file = state.files.entry(inode).or_default();
            file.handles.push(handle);
            if proof.is_some_and(|proof| proof.write) || file.proof.is_none() {
                file.proof = proof;
            }
            drop(state);
            self.tell_if_started(session, inode);
        }
        reply
    }

    /// A server that was started while it was answering may not have been told of what it had let be opened.
    fn tell_if_started(self: &Arc<Mount>, session: SessionId, inode: InodeId) {
        while self.session() == session {
            let at = self.server_of(inode);
            let (start, era) = {
                let state = self.state.lock();
                (state.present.get(&at).map_or(0, |told| told.begun), state.era)
            };
            let outcome = self.tell_file(session, at, start, inode);
            if self.state.lock().era == era || outcome.is_some() {
                if let Some(Err(errno)) = outcome
                    && self.session() == session
                {
                    self.lost(inode, errno);
                }
                return;
            }
        }
    }

    /// Closes a description.
    pub fn release(self: &Arc<Mount>, inode: InodeId, handle: DescriptionId) {
        {
            let mut state = self.state.lock();
            let Some(file) = state.files.get_mut(&inode) else { return };
            file.handles.retain(|(known, _)| *known != handle);
            if file.handles.is_empty() {
                state.files.remove(&inode);
            }
        }
        let _ = self.call(MetaRequest::Release { inode, handle });
    }

    /// Takes a lock, unless somebody has it; tells whether it was taken.
    pub fn lock(self: &Arc<Mount>, request: LockRequest, through: DescriptionId) -> bool {
        let session = self.current_session();
        loop {
            let era = self.state.lock().era;
            match self.call_in(session, MetaRequest::Lock { request, through }) {
                Ok(_) => {}
                Err(Failed::Errno(Errno::EAGAIN)) => return false,
                Err(Failed::Unknown) => return false,
                Err(Failed::Errno(errno)) => {
                    self.site.fail(format!("a lock of {} is answered {errno:?}", request.inode));
                    return false;
                }
            }
            let mut state = self.state.lock();
            if state.session != session || state.is_coming_back {
                return false;
            }
            // Granted by a service that may have ended since, and not told of it.
            if state.era == era {
                state.locks.push((request, through));
                break;
            }
        }
        let mut held = self.site.held.lock();
        let is_met = |other: &Held| {
            let (a, b) = (other.request.range, request.range);
            other.mount != self.number
                && other.request.inode == request.inode
                && a.start <= b.end
                && b.start <= a.end
                && (other.request.kind == LockKind::Write || request.kind == LockKind::Write)
        };
        let met: Vec<Held> = held.iter().filter(|other| is_met(other)).copied().collect();
        held.push(Held { mount: self.number, request });
        drop(held);
        for other in met {
            self.site.lock_held_twice(other, Held { mount: self.number, request });
        }
        true
    }

    /// Lets go of a lock.
    pub fn unlock(self: &Arc<Mount>, request: LockRequest, through: DescriptionId) {
        self.state.lock().locks.retain(|(known, _)| *known != request);
        self.site.held.lock().retain(|held| held.mount != self.number || held.request != request);
        let request = LockRequest { kind: LockKind::Unlock, ..request };
        let _ = self.call(MetaRequest::Lock { request, through });
    }
}
