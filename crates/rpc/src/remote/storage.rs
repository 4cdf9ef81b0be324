//! Targets of other machines.

use super::{Patience, Routes, errno_of};
use crate::net::{Call, NetError, Service};
use crate::{Payload, StorageCalls};
use ashlar_types::codec::{decode, encode};
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{Errno, NodeId, Role};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// See the module.
pub struct RemoteStorage {
    routes: Arc<Routes>,
    patience: Patience,
    /// Servers that did not answer, and when, for who does not wait for them.
    away: Option<Mutex<FxHashMap<NodeId, Instant>>>,
}

/// For how long a server that did not answer is not asked, by who does not wait for it.
const AWAY_MAX: Duration = Duration::from_secs(5);

impl RemoteStorage {
    /// The targets of the map of `routes`; a server that does not answer is waited for with `patience`.
    pub fn new(routes: Arc<Routes>, patience: Patience) -> RemoteStorage {
        RemoteStorage { routes, patience, away: None }
    }

    /// For who can do without: a server that does not answer in time counts as one that is missing (`ENODEV`), for a while without being
    /// asked.
    #[must_use]
    pub fn giving_up(mut self) -> RemoteStorage {
        self.away = Some(Mutex::default());
        self
    }

    /// Whether `node` did not answer lately.
    fn is_away(&self, node: NodeId) -> bool {
        let now = Instant::now();
        let since = self.away.as_ref().and_then(|away| away.lock().get(&node).copied());
        since.is_some_and(|since| now.duration_since(since) < AWAY_MAX)
    }

    fn exchange(
        &self,
        request: &StorageRequest,
        payload: &mut Payload<'_>,
    ) -> Result<StorageReply, NetError> {
        let map = self.routes.map();
        let target = map.target(request.target()).ok_or(NetError::NoAddress)?;
        if self.is_away(target.node) {
            return Err(NetError::NoAddress);
        }
        let link = self.routes.link(target.node, Role::Storage);
        let is_read = matches!(payload, Payload::Read(_));
        let call = Call {
            service: Service::Storage,
            head: &encode(request),
            payload: if let Payload::Write(data) = payload { data } else { &[] },
            is_once: changes(request),
            may_repeat: false,
            is_urgent: false,
        };
        let deadline = self.patience.deadline();
        let answer = match link.call(&call, deadline) {
            // The same bytes in the same place, once more: nobody was told that anything came after them.
            Err(NetError::Restarted) => link.call(&call, deadline)?,
            Err(NetError::Io(_) | NetError::Closed | NetError::Stuck) if self.away.is_some() => {
                self.away.as_ref().map(|away| away.lock().insert(target.node, Instant::now()));
                return Err(NetError::NoAddress);
            }
            other => other?,
        };
        let reply: Result<StorageReply, Errno> = decode(answer.head(), "storage reply")
            .map_err(|_| NetError::Malformed("a reply that is none"))?;
        if let (Payload::Read(out), Ok(_), true) = (payload, &reply, is_read) {
            if answer.payload().len() != out.len() {
                return Err(NetError::Malformed("content of another length than was asked for"));
            }
            out.copy_from_slice(answer.payload());
        }
        match reply {
            Ok(reply) => Ok(reply),
            Err(errno) => Err(NetError::Errno(errno)),
        }
    }
}

/// Whether a call must not be carried out twice: what it did could be told wrong, or come after what was done since.
fn changes(request: &StorageRequest) -> bool {
    matches!(
        request,
        StorageRequest::Write { .. }
            | StorageRequest::Truncate { .. }
            | StorageRequest::Punch { .. }
            | StorageRequest::Allocate { .. }
            | StorageRequest::DeleteGeneration { .. }
    )
}

impl StorageCalls for RemoteStorage {
    fn call(&self, request: &StorageRequest, mut payload: Payload<'_>) -> Result<StorageReply, Errno> {
        self.exchange(request, &mut payload).map_err(|error| match error {
            NetError::Errno(errno) => errno,
            // It was removed, or its server is not waited for.
            NetError::NoAddress => Errno::ENODEV,
            other => errno_of(&other, "a target"),
        })
    }
}
