//! What is under way between parties, and the agreement store.

use ashlar_replication::membership::{Change, Proposer, plan};
use ashlar_types::membership::Membership;
use ashlar_types::{Epoch, NodeId};

/// A set of messages that were sent. A message is never taken out: it may be delivered at any later time, any number of times, in any
/// order, or never. So loss, delay, duplication and reordering need no steps of their own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Network<M>(Vec<M>);

impl<M> Default for Network<M> {
    fn default() -> Self {
        Network(Vec::new())
    }
}

impl<M: Ord> Network<M> {
    /// Sends a message.
    pub fn send(&mut self, message: M) {
        if let Err(at) = self.0.binary_search(&message) {
            self.0.insert(at, message);
        }
    }

    /// All messages, in a fixed order.
    pub fn messages(&self) -> &[M] {
        &self.0
    }

    /// Takes a message out, where each is delivered once at most.
    pub fn take(&mut self, at: usize) -> M {
        self.0.remove(at)
    }

    /// Forgets messages that nobody would heed any more.
    pub fn retain(&mut self, heed: impl FnMut(&M) -> bool) {
        self.0.retain(heed);
    }
}

/// A request for a change, on its way through some manager to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request {
    /// The epoch it was made for, which is the revision the manager compares with.
    pub expected: Epoch,
    /// Who asked.
    pub by: Proposer<NodeId>,
    /// For what.
    pub change: Change<NodeId>,
}

/// The agreement store, with every membership it ever held: a reader may get an older one. As in etcd, a change is made from a
/// revision, here the epoch, and only if that is still the newest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Store {
    history: Vec<Membership<NodeId>>,
    requests: Network<Request>,
}

impl Store {
    /// A store that holds `first`.
    pub fn new(first: Membership<NodeId>) -> Store {
        Store { history: vec![first], requests: Network::default() }
    }

    /// The newest membership.
    pub fn current(&self) -> &Membership<NodeId> {
        self.history.last().expect("never empty")
    }

    /// Every membership there was, oldest first.
    pub fn history(&self) -> &[Membership<NodeId>] {
        &self.history
    }

    /// Requests that managers have, and may carry out.
    pub fn requests(&self) -> &[Request] {
        self.requests.messages()
    }

    /// A replica or the operator asks.
    pub fn ask(&mut self, request: Request) {
        self.requests.send(request);
    }

    /// A manager carries a request out: it has read the map, plans, and replaces what it read if that is still there.
    pub fn carry_out(&mut self, request: &Request) {
        let next = Epoch(self.current().epoch.0 + 1);
        if let Ok(next) = plan(self.current(), request.expected, request.by, request.change, next) {
            self.history.push(next);
        }
    }

    /// The same without the comparison: what the manager read when the request was made is overwritten whatever is there now.
    pub fn carry_out_without_comparing(&mut self, request: &Request) {
        let read = self.history.iter().find(|membership| membership.epoch == request.expected);
        let next = Epoch(request.expected.0 + 1);
        if let Some(Ok(next)) =
            read.map(|read| plan(read, request.expected, request.by, request.change, next))
        {
            self.history.push(next);
        }
    }

    /// Forgets requests for older epochs: the comparison refuses them from now on.
    pub fn forget_refused(&mut self) {
        let current = self.current().epoch;
        self.requests.retain(|request| request.expected >= current);
    }

    /// What is wrong with the order of memberships, if anything: each has a new epoch, consecutive in-sync sets intersect, the new
    /// primary was in sync before, and who was in sync before keeps the order.
    pub fn violation(&self) -> Option<String> {
        self.history.windows(2).find_map(|pair| {
            let (before, after) = (&pair[0], &pair[1]);
            let broken = |what: &str| Some(format!("{what}: {before:?} then {after:?}"));
            let stayed = |id: &&NodeId| before.is_in_sync(**id) && after.is_in_sync(**id);
            if after.epoch <= before.epoch {
                return broken("two memberships have one epoch");
            }
            if !before.is_in_sync(after.primary()) {
                return broken("the primary was not in sync at the epoch before");
            }
            if !before.in_sync.iter().filter(stayed).eq(after.in_sync.iter().filter(stayed)) {
                return broken("replicas changed their order");
            }
            None
        })
    }
}
