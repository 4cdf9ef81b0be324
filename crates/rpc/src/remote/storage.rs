//! Targets of other machines.

mod guarded;
mod window;

use super::{Patience, RemoteMeta, Routes, errno_of};
use crate::net::{Call, NetError, Service, Watch};
use crate::wire::{AGAIN, CopyUnder, StorageCallOf, Under};
use crate::{OtherTargets, Payload, StorageCalls};
use ashlar_types::codec::{decode, encode};
use ashlar_types::message::{ChunkWritten, StorageReply, StorageRequest};
use ashlar_types::{ChainId, Errno, NodeId, OfChains, SessionId, TargetId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use window::Windows;

/// Says which calls are answered at once, and how, rather than waited for.
pub type Wish = Box<dyn Fn(&StorageRequest) -> Option<Errno> + Send + Sync>;

/// Who did not answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Silent {
    /// A server as a whole.
    Server(NodeId),
    /// A target, of whose disk nothing came; others of its server may be as ever.
    Target(TargetId),
}

/// See the module.
pub struct RemoteStorage {
    routes: Arc<Routes>,
    patience: Patience,
    /// Who did not answer, and when, for who does not wait for them.
    away: Option<Mutex<FxHashMap<Silent, Instant>>>,
    /// What nobody is waited for: see [`RemoteStorage::do_without`].
    done_without: OnceLock<Wish>,
    windows: Windows,
    /// Where a client has its capabilities from.
    meta: Option<Arc<RemoteMeta>>,
}

/// A call that is made until it is answered.
struct Asking<'p> {
    payload: Payload<'p>,
    /// Whether it went to a server that did not answer, and may have carried it out: what it changed then, no later answer tells.
    may_be_done: bool,
}

/// Time between two attempts while a chain is on its way to another target, at first and later on.
const MOVED_PAUSE_MIN: Duration = Duration::from_millis(1);
const MOVED_PAUSE_MAX: Duration = Duration::from_millis(20);

/// Time between two attempts while as much as may waits for a target, at first and later on.
const CROWDED_PAUSE_MIN: Duration = Duration::from_millis(20);
const CROWDED_PAUSE_MAX: Duration = Duration::from_secs(1);

/// For how long a server that did not answer is not asked, by who does not wait for it.
const AWAY_MAX: Duration = Duration::from_secs(5);

/// For how long somebody who does without targets that do not answer waits for one whose content others have, too: until these have taken over, also on a busy machine.
const TAKE_OVER_MAX: Duration = Duration::from_secs(30);

impl RemoteStorage {
    /// The targets of the map of `routes`; a server that does not answer is waited for with `patience`. What may be asked for says the role of the caller.
    pub fn new(routes: Arc<Routes>, patience: Patience) -> RemoteStorage {
        let (away, done_without, meta) = (None, OnceLock::new(), None);
        RemoteStorage { routes, patience, away, done_without, windows: Windows::default(), meta }
    }

    /// For a client: what it does to chunks it does with the capabilities that `meta` is given.
    #[must_use]
    pub fn under(mut self, meta: Arc<RemoteMeta>) -> RemoteStorage {
        self.meta = Some(meta);
        self
    }

    /// For who can do without: a server or target that does not answer in time counts as one that is missing (`ENODEV`), for a while without being
    /// asked.
    #[must_use]
    pub fn giving_up(mut self) -> RemoteStorage {
        self.away = Some(Mutex::default());
        self
    }

    /// Has calls answered at once with what `answers` says of them. To be called once.
    pub fn do_without(&self, answers: Wish) {
        // A second one would change nothing.
        let _ = self.done_without.set(answers);
    }

    /// Whether `who` did not answer lately.
    fn is_away(&self, who: Silent) -> bool {
        let now = Instant::now();
        let since = self.away.as_ref().and_then(|away| away.lock().get(&who).copied());
        since.is_some_and(|since| now.duration_since(since) < AWAY_MAX)
    }

    /// The server that has the target of `request`.
    fn server_of(&self, request: &StorageRequest) -> Result<NodeId, NetError> {
        let target = request.target();
        let node = self.routes.map().target(target).ok_or(NetError::NoAddress)?.node;
        if let Some(errno) = self.done_without.get().and_then(|answers| answers(request)) {
            return Err(NetError::Errno(errno));
        }
        let is_away = self.is_away(Silent::Server(node)) || self.is_away(Silent::Target(target));
        if is_away { Err(NetError::NoAddress) } else { Ok(node) }
    }

    /// Whoever does not wait for servers does not ask `who` for a while, and counts it as missing.
    fn note_silent(&self, who: Silent, error: NetError) -> NetError {
        let Some(away) = &self.away else { return error };
        away.lock().insert(who, Instant::now());
        NetError::NoAddress
    }

    /// Asks, with a call of its own each time, until the server takes the call: it may have as many for that target as it keeps.
    fn exchange(
        &self,
        place @ (server, under): (NodeId, &Under),
        request: &StorageRequest,
        asking: &mut Asking<'_>,
        deadline: Instant,
    ) -> Result<StorageReply, NetError> {
        if !waits_for_disk(request) || is_of_peer(under) {
            return self.ask(place, request, asking, deadline);
        }
        let target = request.target();
        let look = || match may_leave(request) && !self.is_there(server, request) {
            true => Err(NetError::Errno(Errno::EREMCHG)),
            false => Ok(()),
        };
        let told = |error| match error {
            NetError::Stuck => self.note_silent(Silent::Target(target), error),
            other => other,
        };
        let bytes = if let Payload::Write(data) = &asking.payload { data.len() } else { 0 };
        let under_way = self.windows.enter(target, bytes, deadline, &look).map_err(told)?;
        let (mut trying, mut pause) = (None, CROWDED_PAUSE_MIN);
        loop {
            match self.ask(place, request, asking, deadline) {
                Err(NetError::Errno(AGAIN)) => {}
                // It has not heard yet that this is the process that serves the metadata server now.
                Err(NetError::Errno(Errno::EACCES)) if self.meta.is_none() => {}
                other => return other,
            }
            if trying.is_none() {
                trying = Some(under_way.wait_to_try(deadline, &look).map_err(told)?);
            }
            look()?;
            if Instant::now() + pause >= deadline {
                return Err(told(NetError::Stuck));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(CROWDED_PAUSE_MAX);
        }
    }

    fn ask(
        &self,
        (server, under): (NodeId, &Under),
        request: &StorageRequest,
        asking: &mut Asking<'_>,
        deadline: Instant,
    ) -> Result<StorageReply, NetError> {
        let link = self.routes.link_to_target(server, request.target());
        let is_read = matches!(asking.payload, Payload::Read(_));
        let head = encode(&StorageCallOf::Call { under, request });
        let call = Call {
            service: Service::Storage,
            head: &head,
            payload: if let Payload::Write(data) = &asking.payload { data } else { &[] },
            is_once: changes(request),
            may_repeat: false,
            // Calls of clients wait for it; it must not wait behind calls of clients.
            is_urgent: is_of_peer(under),
        };
        // A server that does not answer is waited for while what is asked about is there by the newest map. Whether it has carried the call out before that went is all the same to the content:
        // the same bytes in the same place, once more.
        let is_there = || match under {
            Under::Copy(_) => self.is_member(request),
            _ => self.is_there(server, request),
        };
        // A chain that is on its way to a target is not there by the map. Its mover waits for the server for as long as it said, and no longer. A sync behind may wait for long, for a disk that
        // hangs and is not behind any more.
        let is_synced_behind = matches!((under, request), (Under::Copy(_), StorageRequest::Sync { .. }));
        let is_watched = (may_leave(request) && !is_of_peer(under)) || is_synced_behind;
        let watch = if is_watched { Watch::while_there(&is_there) } else { Watch::default() };
        let answer = loop {
            match link.call_watched(&call, deadline, &watch) {
                // The same bytes in the same place, once more, as often as the server is started anew: nobody was told that anything came after them.
                Err(NetError::Restarted) => asking.may_be_done = true,
                other => break other,
            }
        };
        let answer = match answer {
            Err(NetError::Elsewhere) => {
                asking.may_be_done |= watch.was_sent();
                return Err(NetError::Errno(Errno::EREMCHG));
            }
            Err(error @ (NetError::Io(_) | NetError::Closed | NetError::Stuck)) => {
                // A server that does not even say how much space there is hangs as a whole.
                let is_of_target =
                    matches!(error, NetError::Stuck) && watch.was_sent() && waits_for_disk(request);
                let who =
                    if is_of_target { Silent::Target(request.target()) } else { Silent::Server(server) };
                return Err(self.note_silent(who, error));
            }
            other => other?,
        };
        let reply: Result<StorageReply, Errno> = decode(answer.head(), "storage reply")
            .map_err(|_| NetError::Malformed("a reply that is none"))?;
        if let (Payload::Read(out), Ok(_), true) = (&mut asking.payload, &reply, is_read) {
            if answer.payload().len() != out.len() {
                return Err(NetError::Malformed("content of another length than was asked for"));
            }
            out.copy_from_slice(answer.payload());
        }
        reply.map(StorageReply::received).map_err(NetError::Errno)
    }

    /// Whether the target of `request` has, or is given, copies of all chains that it names, by the map.
    fn is_member(&self, request: &StorageRequest) -> bool {
        let (map, target) = (self.routes.map(), request.target());
        let is_member = |chain: &ChainId| map.chain(*chain).is_some_and(|chain| chain.is_member(target));
        chains_of(request).is_none_or(|chains| chains.iter().all(is_member))
    }

    /// Whether the map says that what `request` is about is at its target, and that on `server`.
    fn is_there(&self, server: NodeId, request: &StorageRequest) -> bool {
        let (map, target) = (self.routes.map(), request.target());
        let is_at_target = |chain: &ChainId| match is_read(request) {
            true => map.chain(*chain).is_some_and(|chain| chain.targets.contains(&target)),
            false => map.head(*chain) == Some(target),
        };
        let is_on_server = map.target(target).is_some_and(|target| target.node == server);
        is_on_server
            && match chains_of(request) {
                Some(chains) => chains.iter().all(is_at_target),
                None => request.chain().is_none_or(|chain| is_at_target(&chain)),
            }
    }

    fn carry_out(
        &self,
        session: Option<SessionId>,
        request: &StorageRequest,
        payload: Payload<'_>,
    ) -> Result<StorageReply, Errno> {
        let is_of_several = {
            let map = self.routes.map();
            let mut chains = chains_of(request).unwrap_or_default().iter().copied().chain(request.chain());
            chains.any(|chain| map.is_copied(chain))
        };
        let deadline = match self.away.is_some() && is_of_several {
            // Another target has the same, and takes over from one that is silent in less than that.
            true => self.patience.deadline().max(Instant::now() + TAKE_OVER_MAX),
            false => self.patience.deadline(),
        };
        // A deletion in a chain with copies may have been asked for before, and have been made by those in front: whoever asked was told to ask again.
        let is_of_copies = || {
            let map = self.routes.map();
            chains_of(request).is_some_and(|chains| chains.iter().any(|chain| map.is_copied(*chain)))
        };
        let may_be_done = matches!(request, StorageRequest::DeleteGeneration { .. }) && is_of_copies();
        let mut asking = Asking { payload, may_be_done };
        let done = match request.chain() {
            Some(chain) => self.follow(session, request, &mut asking, (chain, deadline)),
            None => self.exchange_once(session, request, &mut asking, deadline),
        };
        let done = done.map_err(|error| match is_silence(&error) && is_of_copies() {
            // Whoever asks for several chains asks where they are by now.
            true => NetError::Errno(Errno::EREMCHG),
            false => error,
        });
        let mut reply = done.map_err(|error| {
            tracing::debug!(%error, target = %request.target(), chain = ?request.chain(), "a target does not do what is asked");
            told(error)
        })?;
        if let StorageReply::Written(ChunkWritten { may_be_second, .. })
        | StorageReply::Deleted { may_be_second, .. } = &mut reply
        {
            *may_be_second = asking.may_be_done;
        }
        Ok(reply)
    }

    fn exchange_once(
        &self,
        session: Option<SessionId>,
        request: &StorageRequest,
        asking: &mut Asking<'_>,
        deadline: Instant,
    ) -> Result<StorageReply, NetError> {
        match &self.meta {
            Some(meta) => self.exchange_guarded(meta, session, request, asking, deadline),
            None => self.exchange((self.server_of(request)?, &Under::Role), request, asking, deadline),
        }
    }

    /// Asks where the chain of the request is, and once more where it has gone meanwhile.
    fn follow(
        &self,
        session: Option<SessionId>,
        request: &StorageRequest,
        asking: &mut Asking<'_>,
        (chain, deadline): (ChainId, Instant),
    ) -> Result<StorageReply, NetError> {
        let mut pause = MOVED_PAUSE_MIN;
        // Any target in sync answers reads; if the one that was chosen does not, the head is asked.
        let mut may_be_anywhere = is_read(request);
        loop {
            let map = self.routes.map();
            let is_in_sync = map.chain(chain).is_some_and(|chain| chain.targets.contains(&request.target()));
            let to = match std::mem::take(&mut may_be_anywhere) && is_in_sync {
                true => request.target(),
                false => map.head(chain).unwrap_or(request.target()),
            };
            let placed = (to != request.target()).then(|| request.clone().at(to));
            match self.exchange_once(session, placed.as_ref().unwrap_or(request), asking, deadline) {
                // A change of a chain with copies may have been made by those in front, and not be acknowledged.
                Err(NetError::Errno(Errno::EREMCHG)) => asking.may_be_done |= map.is_copied(chain),
                // Others have the same, and one of them is the head in a moment.
                Err(error) if is_silence(&error) && map.is_copied(chain) => asking.may_be_done = true,
                other => return other,
            }
            if Instant::now() + pause >= deadline {
                return Err(NetError::Stuck);
            }
            // It is being handed over, or this map or that of its server is not the newest: that takes milliseconds.
            std::thread::sleep(pause);
            pause = (pause * 2).min(MOVED_PAUSE_MAX);
        }
    }
}

/// Whether a storage server asks another one. Who passes changes on, or moves a chain, waits as long as he said.
fn is_of_peer(under: &Under) -> bool {
    matches!(under, Under::Move(_) | Under::Copy(_))
}

/// The chains that a call about a file is for.
fn chains_of(request: &StorageRequest) -> Option<&[ChainId]> {
    match request {
        StorageRequest::DeleteGeneration { chains: OfChains::Only(chains), .. }
        | StorageRequest::Extent { chains: OfChains::Only(chains), .. }
        | StorageRequest::NextChunk { chains: OfChains::Only(chains), .. }
        | StorageRequest::Sync { chains: OfChains::Only(chains), .. } => Some(chains),
        _ => None,
    }
}

/// Whether it may wait for the disk of its target.
fn waits_for_disk(request: &StorageRequest) -> bool {
    !matches!(
        request,
        StorageRequest::Moves { .. }
            | StorageRequest::MoveRate { .. }
            | StorageRequest::CopyBeacon { .. }
            | StorageRequest::GoOnWithout { .. }
            | StorageRequest::Space { .. }
    )
}

/// Whether a server was not reached, or did not answer.
fn is_silence(error: &NetError) -> bool {
    matches!(error, NetError::NoAddress | NetError::Io(_) | NetError::Closed | NetError::Stuck)
}

/// Whether it is a look at one chunk.
fn is_read(request: &StorageRequest) -> bool {
    matches!(request, StorageRequest::Read { .. } | StorageRequest::Seek { .. })
}

/// Whether it is about chains, which may go to another target while their server does not answer; their callers ask where they are then.
fn may_leave(request: &StorageRequest) -> bool {
    request.chain().is_some() || chains_of(request).is_some()
}

/// Whether a call must not be carried out twice unnoticed: what it did could be told wrong, or come after what was done since.
fn changes(request: &StorageRequest) -> bool {
    matches!(
        request,
        StorageRequest::Write { .. }
            | StorageRequest::Truncate { .. }
            | StorageRequest::Punch { .. }
            | StorageRequest::Allocate { .. }
            | StorageRequest::DeleteGeneration { .. }
            | StorageRequest::MoveBegin { .. }
            | StorageRequest::CopyEmpty { .. }
            | StorageRequest::CopySettled { .. }
            | StorageRequest::CopyLost { .. }
            | StorageRequest::TakeLossMark { .. }
    )
}

impl RemoteStorage {
    fn call_of_server(
        &self,
        under: &Under,
        request: &StorageRequest,
        payload: Payload<'_>,
        wait: Duration,
    ) -> Result<StorageReply, Errno> {
        let deadline = Instant::now() + wait;
        let mut asking = Asking { payload, may_be_done: false };
        let server = self.server_of(request).map_err(told)?;
        self.exchange((server, under), request, &mut asking, deadline).map_err(told)
    }
}

impl OtherTargets for RemoteStorage {
    fn call_in_attempt(
        &self,
        number: u64,
        request: &StorageRequest,
        payload: Payload<'_>,
        wait: Duration,
    ) -> Result<StorageReply, Errno> {
        self.call_of_server(&Under::Move(number), request, payload, wait)
    }

    fn call_of_copy(
        &self,
        under: CopyUnder,
        request: &StorageRequest,
        payload: Payload<'_>,
        wait: Duration,
    ) -> Result<StorageReply, Errno> {
        self.call_of_server(&Under::Copy(under), request, payload, wait)
    }
}

/// What became of a call, as an errno.
fn told(error: NetError) -> Errno {
    match error {
        NetError::Errno(errno) => errno,
        // It was removed, or its server is not waited for.
        NetError::NoAddress => Errno::ENODEV,
        other => errno_of(&other, "a target"),
    }
}

impl StorageCalls for RemoteStorage {
    fn call(&self, request: &StorageRequest, payload: Payload<'_>) -> Result<StorageReply, Errno> {
        self.carry_out(None, request, payload)
    }

    fn call_in(
        &self,
        session: SessionId,
        request: &StorageRequest,
        payload: Payload<'_>,
    ) -> Result<StorageReply, Errno> {
        self.carry_out(Some(session), request, payload)
    }
}
