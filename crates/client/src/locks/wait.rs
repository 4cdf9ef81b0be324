//! Locks that are waited for (`F_SETLKW`).
//!
//! | the service has | the wait is | over when |
//! |---|---|---|
//! | not answered yet | being asked for, by one thread | that has heard the answer |
//! | queued it | queued | the service announces it, or it is cancelled |
//! | been started anew, or ended the session | queued | asked for once more, after the service was told what this client has |
//! | been asked to forget it | cancelled | who has asked knows whether the lock was granted before |
//!
//! INVARIANT: while a thread asks, nobody else ends the wait. Once granted, and perhaps given back, the lock would be granted a second time, to nobody.

use super::note_lock;
use super::starts::LockTime;
use crate::call::{Who, unexpected};
use crate::client::Client;
use crate::file::Handle;
use ashlar_types::message::{LockRequest, MetaReply, MetaRequest};
use ashlar_types::{DescriptionId, Errno, InodeId, NodeId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Further attempts to take back a request whose service does not answer.
const CANCELS_MAX: u32 = 2;
/// Threads that ask one server once more for locks that are waited for.
const ASKERS_MAX: usize = 4;

type Answer = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// Lock calls that wait, by ticket.
#[derive(Default)]
pub(crate) struct LockWaits {
    // LIMIT: the service bounds waiting locks (ENOLCK).
    waiting: Mutex<FxHashMap<u64, Waiting>>,
}

struct Waiting {
    answer: Answer,
    request: LockRequest,
    through: DescriptionId,
    /// When it was asked for last.
    asked: LockTime,
    /// Whether the service has said that it waits; of the others somebody is asking just now.
    is_queued: bool,
    /// What the service has announced while somebody was asking.
    announced: Option<Result<(), Errno>>,
    /// Whether it is to end without the lock.
    is_cancelled: bool,
}

/// What becomes of a wait that the service has queued.
enum Queued {
    Waits,
    /// It has been announced already.
    Announced(Result<(), Errno>),
    /// It was interrupted meanwhile.
    IsCancelled,
}

impl LockWaits {
    fn finish(&self, ticket: u64, outcome: Result<(), Errno>) {
        let waiting = self.waiting.lock().remove(&ticket);
        if let Some(waiting) = waiting {
            (waiting.answer)(outcome);
        }
    }

    /// Notes that the wait is asked for, or taken back, at `asked`; `None` if nobody waits any more, else whether it is to end.
    fn begin_to_ask(&self, ticket: u64, asked: LockTime) -> Option<bool> {
        let mut all = self.waiting.lock();
        let waiting = all.get_mut(&ticket)?;
        (waiting.asked, waiting.announced) = (asked, None);
        Some(waiting.is_cancelled)
    }

    /// Notes that the service has queued a request; `None` if nobody waits any more.
    fn note_queued(&self, ticket: u64) -> Option<Queued> {
        let mut all = self.waiting.lock();
        let waiting = all.get_mut(&ticket)?;
        Some(match waiting.announced.take() {
            Some(outcome) => Queued::Announced(outcome),
            None if waiting.is_cancelled => Queued::IsCancelled,
            None => {
                waiting.is_queued = true;
                Queued::Waits
            }
        })
    }

    /// What the service has announced of a wait while somebody asked for it.
    fn announced(&self, ticket: u64) -> Option<Result<(), Errno>> {
        self.waiting.lock().get_mut(&ticket)?.announced.take()
    }

    /// What the service announces: whoever calls this is the one who asks from now on, unless somebody does, for whom it is kept.
    fn hear(&self, ticket: u64, outcome: Result<(), Errno>) -> Option<(LockRequest, DescriptionId)> {
        let mut all = self.waiting.lock();
        let waiting = all.get_mut(&ticket)?;
        if std::mem::replace(&mut waiting.is_queued, false) {
            return Some((waiting.request, waiting.through));
        }
        waiting.announced = Some(outcome);
        None
    }

    /// Ends a wait of which the service does not say whether the lock is granted, unless that was announced.
    fn fail_unless_announced(&self, ticket: u64, errno: Errno) -> Option<Result<(), Errno>> {
        let failed = {
            let mut all = self.waiting.lock();
            if let Some(outcome) = all.get_mut(&ticket)?.announced.take() {
                return Some(outcome);
            }
            all.remove(&ticket)?
        };
        (failed.answer)(Err(errno));
        None
    }

    /// Has whoever calls this ask for a lock that is queued once more; `None` if it has been granted, or somebody else asks.
    fn claim(&self, ticket: u64) -> Option<(LockRequest, DescriptionId)> {
        let mut all = self.waiting.lock();
        let waiting = all.get_mut(&ticket).filter(|waiting| waiting.is_queued)?;
        waiting.is_queued = false;
        Some((waiting.request, waiting.through))
    }

    /// All of them: ticket, request, and through which description.
    pub(crate) fn all(&self) -> Vec<(u64, LockRequest, DescriptionId)> {
        let all = self.waiting.lock();
        all.iter().map(|(ticket, waiting)| (*ticket, waiting.request, waiting.through)).collect()
    }

    pub(crate) fn fail_all(&self) {
        let all: Vec<Answer> = self.waiting.lock().drain().map(|(_, waiting)| waiting.answer).collect();
        all.into_iter().for_each(|answer| answer(Err(Errno::EIO)));
    }
}

impl Client {
    /// Takes a lock, waiting for it (`F_SETLKW`). `answer` is called exactly once when the wait is over, perhaps before this returns.
    pub fn lock_wait_deferred(
        &self,
        handle: &Arc<Handle>,
        request: LockRequest,
        ticket: u64,
        answer: Box<dyn FnOnce(Result<(), Errno>) + Send>,
    ) {
        let request = self.owned(handle, request);
        note_lock(handle, &request);
        let (through, anew) = (Arc::clone(handle), self.asks_anew());
        let answer: Answer = Box::new(move |outcome| {
            // Once more: a close of another descriptor of the process meanwhile had nothing to drop, and made its owner forgotten.
            if outcome.is_ok() {
                note_lock(&through, &request);
                if let Some(anew) = &anew {
                    anew.about(&through.file);
                }
            }
            answer(outcome);
        });
        // ORDER: the waiter is known before the service can announce the lock.
        let (through, asked) = (DescriptionId(handle.number), self.lock_time(request.inode));
        let (is_queued, announced, is_cancelled) = (false, None, false);
        let waiting = Waiting { answer, request, through, asked, is_queued, announced, is_cancelled };
        self.lock_waits.waiting.lock().insert(ticket, waiting);
        self.ask_to_wait(ticket, request, through);
    }

    /// Asks the service for a lock that may be waited for.
    fn ask_to_wait(&self, ticket: u64, request: LockRequest, through: DescriptionId) {
        // LIMIT: a turn per start of the service, and per session.
        loop {
            let asked = self.lock_time(request.inode);
            match self.lock_waits.begin_to_ask(ticket, asked.clone()) {
                None => return,
                Some(true) => return self.end_cancelled(ticket, request, through),
                Some(false) => {}
            }
            self.held_locks.note_before(&request, through);
            let reply = self.call(&Who::system(), MetaRequest::LockWait { request, through, ticket });
            let outcome = match reply {
                Ok(MetaReply::LockQueued) => match self.lock_waits.note_queued(ticket) {
                    None => return,
                    Some(Queued::IsCancelled) => return self.end_cancelled(ticket, request, through),
                    Some(Queued::Waits) if self.is_left((ticket, request.inode), &asked) => return,
                    Some(Queued::Waits) => continue,
                    Some(Queued::Announced(outcome)) => outcome,
                },
                Ok(MetaReply::Done) => Ok(()),
                failed => {
                    let errno = failed.map_or_else(|errno| errno, |other| unexpected(&other));
                    match self.lock_waits.fail_unless_announced(ticket, errno) {
                        None => return,
                        Some(outcome) => outcome,
                    }
                }
            };
            match outcome {
                Ok(()) if self.grant_lock(ticket) => return,
                Ok(()) => {}
                // What was announced by a service that has ended.
                Err(_) if !self.is_still(&asked, request.inode) => {}
                Err(errno) => return self.lock_waits.finish(ticket, Err(errno)),
            }
        }
    }

    /// Ends a wait that was interrupted, for whoever asks for it: with `EINTR`, unless the lock was granted before.
    fn end_cancelled(&self, ticket: u64, request: LockRequest, through: DescriptionId) {
        let (inode, mut tries) = (request.inode, 0..CANCELS_MAX);
        // LIMIT: a turn per start of the service, and per session.
        loop {
            // ORDER: by when it was asked for before this.
            if matches!(self.lock_waits.announced(ticket), Some(Ok(()))) && self.grant_lock(ticket) {
                return;
            }
            if self.lock_waits.begin_to_ask(ticket, self.lock_time(inode)).is_none() {
                return;
            }
            let cancelled = self.call_done(&Who::system(), MetaRequest::LockCancel { inode, ticket });
            // Not queued: it was granted just before, or is not known to a service that has begun since. This tells; it waits for nobody, and who has the lock already has it then.
            let outcome = match cancelled {
                Ok(()) => Err(Errno::EINTR),
                Err(Errno::ENOENT) => {
                    self.held_locks.note_before(&request, through);
                    self.call_done(&Who::system(), MetaRequest::Lock { request, through })
                }
                Err(errno) => Err(errno),
            };
            match outcome {
                Ok(()) if self.grant_lock(ticket) => return,
                Ok(()) => {}
                // It may be queued, or held.
                Err(Errno::ETIMEDOUT) if tries.next().is_some() => {}
                Err(_) => return self.lock_waits.finish(ticket, Err(Errno::EINTR)),
            }
        }
    }

    /// Whether whoever asked, at `asked`, may leave a wait that is queued to others; else it is to be asked for once more.
    fn is_left(&self, (ticket, inode): (u64, InodeId), asked: &LockTime) -> bool {
        // What a service said that has ended does not count, nor what was said in a session that has; when the next one begins that asks for all that are queued.
        self.is_still(asked, inode)
            || self.is_without_session(asked)
            || self.lock_waits.claim(ticket).is_none()
    }

    /// Ends a wait, as the lock is held; unless that does not count any more, as the service or the session has ended in which it was asked for. Whether it has.
    fn grant_lock(&self, ticket: u64) -> bool {
        let granted = {
            let mut all = self.lock_waits.waiting.lock();
            let Some(waiting) = all.get(&ticket) else { return true };
            let (request, asked) = (&waiting.request, &waiting.asked);
            let counts = || self.is_still(asked, request.inode);
            if !self.held_locks.note_while(request, waiting.through, counts) {
                return false;
            }
            all.remove(&ticket)
        };
        if let Some(granted) = granted {
            (granted.answer)(Ok(()));
        }
        true
    }

    /// The service says that a wait is over.
    pub(crate) fn end_lock_wait(self: &Arc<Client>, ticket: u64, outcome: Result<(), Errno>) {
        let Some((request, through)) = self.lock_waits.hear(ticket, outcome) else { return };
        match outcome {
            Err(errno) => self.lock_waits.finish(ticket, Err(errno)),
            Ok(()) if self.grant_lock(ticket) => {}
            Ok(()) => self.ask_beside(move |client| client.ask_to_wait(ticket, request, through)),
        }
    }

    /// Asks once more for all locks that are queued at servers which do not know it any more, one server's apart from another's: one that is away holds up its own.
    pub(crate) fn ask_again_for_locks(self: &Arc<Client>) {
        let mut by_server: BTreeMap<NodeId, Vec<u64>> = BTreeMap::new();
        for (ticket, waiting) in
            self.lock_waits.waiting.lock().iter().filter(|(_, waiting)| waiting.is_queued)
        {
            let inode = waiting.request.inode;
            if !self.is_still(&waiting.asked, inode) {
                by_server.entry(self.server_of(inode)).or_default().push(*ticket);
            }
        }
        by_server.into_values().for_each(|tickets| self.ask_again_later(&Arc::from(tickets)));
    }

    /// Asks once more for those of `tickets` that are queued, in threads: an answer may wait for what this one is to hear of, and for a shard that moves.
    fn ask_again_later(self: &Arc<Client>, tickets: &Arc<[u64]>) {
        for _ in 0..tickets.len().min(ASKERS_MAX) {
            let tickets = tickets.clone();
            self.ask_beside(move |client| client.ask_again(&tickets));
        }
    }

    fn ask_beside(self: &Arc<Client>, ask: impl Fn(&Client) + Clone + Send + 'static) {
        let (client, beside) = (self.clone(), ask.clone());
        if self.env.tasks.spawn("ashlar-locks", Box::new(move || beside(&client))).is_err() {
            tracing::error!(
                "no thread can be started; whatever else metadata servers say waits until locks are asked for"
            );
            ask(self);
        }
    }

    fn ask_again(&self, tickets: &[u64]) {
        for &ticket in tickets {
            // ORDER: just before. Of one that has been granted meanwhile, or that another thread is at, there is nothing to ask.
            if let Some((request, through)) = self.lock_waits.claim(ticket) {
                self.ask_to_wait(ticket, request, through);
            }
        }
    }

    /// Ends a wait early, as a signal does: the answer is `EINTR` unless the lock was granted before.
    pub fn lock_cancel(&self, ticket: u64) {
        {
            let mut all = self.lock_waits.waiting.lock();
            let Some(waiting) = all.get_mut(&ticket) else { return };
            waiting.is_cancelled = true;
        }
        // Else somebody asks, and sees it when he is answered.
        if let Some((request, through)) = self.lock_waits.claim(ticket) {
            self.end_cancelled(ticket, request, through);
        }
    }
}
