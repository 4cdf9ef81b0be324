//! Targets behind the network.

mod access;
mod attached;
mod gate;
mod primary;
mod queues;
mod standing;

pub use access::Access;

use super::ClientCounts;
use crate::net::frame::{Frame, PAYLOAD_BYTES_MAX};
use crate::net::{Endpoint, Peer, Replier};
use crate::wire::{
    AGAIN, AGAIN_SINCE, Attend, Attended, MARKS_SINCE, StorageCall, TakenTarget, TargetPlace, Under,
};
use crate::{MoveAttempt, Payload, StorageCalls, StoragePeers, TakesTargets};
use ashlar_types::codec::{decode, encode};
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::node::SessionOwner;
use ashlar_types::{ClusterMap, Errno, Role};
use parking_lot::RwLock;
use queues::{Kind, PLACES_MAX, Queues, Waits};
use std::sync::Arc;

/// See the module.
pub struct StorageEndpoint {
    storage: Arc<dyn StorageCalls>,
    peers: Option<Arc<dyn StoragePeers>>,
    taker: Option<Arc<dyn TakesTargets>>,
    map: Arc<RwLock<Arc<ClusterMap>>>,
    access: Arc<Access>,
    clients: Arc<ClientCounts>,
    queues: Queues<Job>,
}

/// A call that is to be carried out.
struct Job {
    peer: Peer,
    under: Under,
    request: StorageRequest,
    frame: Frame,
    replier: Replier,
}

impl Job {
    /// Has its caller come again with it.
    fn come_again(self) {
        let answer: Result<StorageReply, Errno> = Err(AGAIN);
        self.replier.reply(&encode(&answer), &[]);
    }
}

impl Waits for Job {
    fn is_awaited(&self) -> bool {
        self.replier.is_awaited()
    }

    fn bytes(&self) -> usize {
        self.frame.bytes()
    }

    fn can_come_again(&self) -> bool {
        // Storage servers give a move up instead.
        self.peer.role != Role::Storage && self.replier.protocol() >= AGAIN_SINCE
    }
}

impl StorageEndpoint {
    /// Serves `storage`, to nodes as the policies in `map` say, which somebody keeps current, and to clients what `access` lets them have.
    pub fn new(
        storage: Arc<dyn StorageCalls>,
        map: Arc<RwLock<Arc<ClusterMap>>>,
        access: Arc<Access>,
    ) -> StorageEndpoint {
        StorageEndpoint {
            storage,
            peers: None,
            taker: None,
            map,
            access,
            clients: Arc::default(),
            queues: Queues::default(),
        }
    }

    /// What clients have read and written.
    pub fn clients(&self) -> Arc<ClientCounts> {
        self.clients.clone()
    }

    /// Has `peers` answer what other storage servers ask.
    #[must_use]
    pub fn with_peers(self, peers: Arc<dyn StoragePeers>) -> StorageEndpoint {
        StorageEndpoint { peers: Some(peers), ..self }
    }

    /// Has `taker` take further directories into service when an administrator asks for it.
    #[must_use]
    pub fn with_taker(self, taker: Arc<dyn TakesTargets>) -> StorageEndpoint {
        StorageEndpoint { taker: Some(taker), ..self }
    }

    /// Takes a directory into service for an administrator.
    fn take_target(&self, peer: &Peer, place: TargetPlace, replier: Replier) {
        match &self.taker {
            _ if peer.role != Role::Admin => replier.refuse("only administrators may say that"),
            None => replier.refuse("this server takes no further targets"),
            Some(taker) => {
                let who = peer.id.node;
                taker.take(
                    who,
                    place,
                    Box::new(move |taken| replier.reply(&encode::<TakenTarget>(&taken), &[])),
                );
            }
        }
    }

    /// A metadata server says that it is there.
    fn attend(&self, peer: &Peer, start: Option<u64>, attend: &Attend, replier: Replier) {
        if peer.role != Role::Meta {
            return replier.refuse("only metadata servers may say that");
        }
        let answer: Result<Attended, Errno> = self.access.attend_by(peer, start, attend);
        replier.reply(&encode(&answer), &[]);
    }

    /// Refuses changes of content by a node that may only read.
    ///
    /// # Errors
    /// `EROFS`.
    fn require_writable(&self, peer: &Peer, request: &StorageRequest) -> Result<(), Errno> {
        if peer.role != Role::Client || !is_change(request) {
            return Ok(());
        }
        match self.map.read().node(peer.id.node) {
            Some(node) if !node.policy.read_only => Ok(()),
            _ => Err(Errno::EROFS),
        }
    }
}

impl StorageEndpoint {
    fn answer_peer(
        &self,
        peer: &Peer,
        under: &Under,
        request: &StorageRequest,
        data: &[u8],
    ) -> Result<StorageReply, Errno> {
        let peers = self.peers.as_ref().ok_or(Errno::EOPNOTSUPP)?;
        let payload = if matches!(request, StorageRequest::Write { .. }) {
            Payload::Write(data)
        } else {
            Payload::None
        };
        match *under {
            Under::Copy(under) => peers.call_of_copy(peer.id.node, under, request, payload),
            Under::Move(number) => {
                let owner = SessionOwner { node: peer.id.node, instance: peer.instance };
                peers.call_of_peer(MoveAttempt { owner, number }, request, payload)
            }
            _ => Err(Errno::EACCES),
        }
    }
}

/// Whether `role` may ask for that: storage servers for changes of chains that they give away, clients for content, metadata servers for what keeps targets and metadata together, administrators for
/// what there is.
fn may_ask(role: Role, request: &StorageRequest) -> bool {
    match request {
        StorageRequest::Write { .. } | StorageRequest::Punch { .. } | StorageRequest::Allocate { .. } => {
            matches!(role, Role::Client | Role::Storage)
        }
        StorageRequest::Read { .. } | StorageRequest::Seek { .. } | StorageRequest::NextChunk { .. } => {
            role == Role::Client
        }
        StorageRequest::Extent { .. } => matches!(role, Role::Client | Role::Meta),
        StorageRequest::Truncate { .. } | StorageRequest::DeleteGeneration { .. } => {
            matches!(role, Role::Meta | Role::Storage)
        }
        StorageRequest::MoveBegin { .. }
        | StorageRequest::MoveSeal { .. }
        | StorageRequest::CopyBeacon { .. }
        | StorageRequest::CopyCompare { .. }
        | StorageRequest::CopyEmpty { .. }
        | StorageRequest::CopySettled { .. }
        | StorageRequest::CopyBlocks { .. }
        | StorageRequest::CopyAgain { .. }
        | StorageRequest::CopyLost { .. }
        | StorageRequest::TakeLossMark { .. }
        | StorageRequest::CopyDigests { .. } => role == Role::Storage,
        StorageRequest::Moves { .. } | StorageRequest::MoveRate { .. } => role.is_of_management(),
        StorageRequest::Scrub { .. } | StorageRequest::GoOnWithout { .. } => role == Role::Admin,
        StorageRequest::GiveBack { .. }
        | StorageRequest::Suspects { .. }
        | StorageRequest::Files { .. }
        | StorageRequest::Confirm { .. } => role == Role::Meta,
        StorageRequest::Space { .. } => matches!(role, Role::Meta | Role::Admin),
        StorageRequest::Sync { .. } => matches!(role, Role::Client | Role::Meta | Role::Storage),
    }
}

/// Whether the content of a target is another one afterwards. Every request is named, so that a new one is thought about.
fn is_change(request: &StorageRequest) -> bool {
    match request {
        StorageRequest::Write { .. }
        | StorageRequest::Truncate { .. }
        | StorageRequest::Punch { .. }
        | StorageRequest::Allocate { .. }
        | StorageRequest::MoveBegin { .. }
        | StorageRequest::MoveSeal { .. }
        | StorageRequest::CopyEmpty { .. }
        | StorageRequest::CopySettled { .. }
        | StorageRequest::CopyLost { .. }
        | StorageRequest::TakeLossMark { .. }
        | StorageRequest::DeleteGeneration { .. } => true,
        StorageRequest::Read { .. }
        | StorageRequest::Seek { .. }
        | StorageRequest::Moves { .. }
        | StorageRequest::MoveRate { .. }
        | StorageRequest::CopyBeacon { .. }
        | StorageRequest::GoOnWithout { .. }
        | StorageRequest::CopyCompare { .. }
        | StorageRequest::CopyBlocks { .. }
        | StorageRequest::CopyAgain { .. }
        | StorageRequest::CopyDigests { .. }
        | StorageRequest::Scrub { .. }
        | StorageRequest::Extent { .. }
        | StorageRequest::Sync { .. }
        | StorageRequest::Space { .. }
        | StorageRequest::GiveBack { .. }
        | StorageRequest::Suspects { .. }
        | StorageRequest::Files { .. }
        | StorageRequest::Confirm { .. }
        | StorageRequest::NextChunk { .. } => false,
    }
}

/// Who may call targets at all.
const CALLERS: [Role; 5] = [Role::Client, Role::Meta, Role::Storage, Role::Admin, Role::Console];

impl Endpoint for StorageEndpoint {
    fn serve(&self, peer: &Peer, frame: Frame, replier: Replier) {
        if !CALLERS.contains(&peer.role) {
            return replier.refuse("targets serve clients and servers");
        }
        let Ok(call) = decode::<StorageCall>(frame.head(), "storage call") else {
            return replier.refuse("that is no call to a storage server");
        };
        let (under, request) = match call {
            StorageCall::Call { under, request } => (under, request),
            StorageCall::Attend(attend) => return self.attend(peer, None, &attend, replier),
            StorageCall::AttendAs { start, attend } => {
                return self.attend(peer, Some(start), &attend, replier);
            }
            StorageCall::TakeTarget(place) => return self.take_target(peer, place, replier),
        };
        // A storage server syncs what others have a copy of by its place in their chains alone.
        let is_of_copies = matches!(under, Under::Copy(_)) || !matches!(request, StorageRequest::Sync { .. });
        if !may_ask(peer.role, &request) || peer.role == Role::Storage && !is_of_copies {
            return replier.refuse("that is not for the role it was asked in");
        }
        if peer.role == Role::Meta
            && let Err(errno) = self.access.require_newest(peer)
        {
            let answer: Result<StorageReply, Errno> = Err(errno);
            return replier.reply(&encode(&answer), &[]);
        }
        let kind = match (&request, &under) {
            // Who passes on waits for one further behind, never for one with the same place: so nobody waits in a circle.
            (_, Under::Copy(under)) if peer.role == Role::Storage => {
                Kind::Copies(under.place.min(PLACES_MAX))
            }
            _ if peer.role == Role::Storage => Kind::Peers,
            (StorageRequest::Space { .. }, _) => Kind::Looks,
            _ => Kind::Work,
        };
        let line = (request.target(), kind);
        // What is asked of the server's memory alone does not wait for disks.
        let is_of_disk = !matches!(
            request,
            StorageRequest::Moves { .. }
                | StorageRequest::MoveRate { .. }
                | StorageRequest::CopyBeacon { .. }
                | StorageRequest::GoOnWithout { .. }
        );
        let job = Job { peer: *peer, under, request, frame, replier };
        if is_of_disk {
            if let Some(refused) = self.queues.run(line, job, |job| self.answer(job)) {
                refused.come_again();
            }
        } else {
            self.answer(job);
        }
    }

    fn forgotten(&self, peer: &Peer) {
        self.access.forget(peer);
    }
}

impl StorageEndpoint {
    fn answer(&self, mut job: Job) {
        if let StorageRequest::Read { len, .. } = job.request {
            let has_room = job.replier.take_room((len as usize).min(PAYLOAD_BYTES_MAX));
            if !has_room && job.can_come_again() {
                return job.come_again();
            }
        }
        let Job { peer, under, request, frame, replier } = job;
        if peer.role == Role::Storage {
            let answer = self.answer_peer(&peer, &under, &request, frame.payload());
            return replier.reply(&encode(&answer), &[]);
        }
        let mut out = Vec::new();
        let outcome = self.carry_out(&peer, &under, &request, frame.payload(), &mut out);
        if outcome.is_err() {
            out.clear();
        }
        let with_marks = replier.protocol() >= MARKS_SINCE;
        let answer = outcome.map(|reply| reply.sent(with_marks));
        replier.reply(&encode(&answer), &out);
    }

    /// Carries a call out, if its caller may have that done; what is read is in `out` then.
    fn carry_out(
        &self,
        peer: &Peer,
        under: &Under,
        request: &StorageRequest,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<StorageReply, Errno> {
        self.require_writable(peer, request)?;
        // ORDER: looked at once more, it may have waited for its target; whoever takes the place of its caller waits for this one from here on.
        let _under_way = if peer.role == Role::Meta { Some(self.access.enter(peer)?) } else { None };
        let mut work = || match request {
            StorageRequest::Write { .. } => self.storage.call(request, Payload::Write(payload)),
            StorageRequest::Read { len, .. } if *len as usize > PAYLOAD_BYTES_MAX => Err(Errno::EINVAL),
            StorageRequest::Read { len, .. } => {
                *out = vec![0; *len as usize];
                self.storage.call(request, Payload::Read(out))
            }
            _ => self.storage.call(request, Payload::None),
        };
        if peer.role == Role::Client {
            let reply = self.access.run(peer, under, request, work)?;
            let written = if matches!(request, StorageRequest::Write { .. }) { payload.len() } else { 0 };
            self.clients.note(peer.id.node, out.len(), written);
            return Ok(reply);
        }
        self.access.note(request);
        work()
    }
}
