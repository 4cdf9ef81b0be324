//! Locks that are waited for (`F_SETLKW`).
//!
//! | the service has | the wait is | over when |
//! |---|---|---|
//! | not answered yet | being asked for, by one thread | that has heard the answer |
//! | queued it | queued | the service announces it, or it is cancelled |
//! | been started anew, or ended the session | queued | asked for once more by whoever tells the service what this client has |
//!
//! INVARIANT: while a thread asks, nobody else ends the wait as granted. Once granted, and perhaps given back, the lock would be granted a second time, to nobody.

use super::note_lock;
use super::starts::LockTime;
use crate::call::{Who, unexpected};
use crate::client::Client;
use crate::file::Handle;
use ashlar_types::message::{LockRequest, MetaReply, MetaRequest};
use ashlar_types::{DescriptionId, Errno, InodeId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;

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
    /// It was interrupted before the service knew of it.
    IsCancelled,
    /// Nobody waits any more.
    IsOver,
}

/// What becomes of a wait whose lock was granted.
enum Granted {
    /// It is over.
    Held,
    /// That does not count any more.
    IsVoid,
}

impl LockWaits {
    fn finish(&self, ticket: u64, outcome: Result<(), Errno>) {
        let waiting = self.waiting.lock().remove(&ticket);
        if let Some(waiting) = waiting {
            (waiting.answer)(outcome);
        }
    }

    /// Begins to ask; false if nobody waits, or it is to end.
    fn begin_to_ask(&self, ticket: u64, asked: LockTime) -> bool {
        let mut all = self.waiting.lock();
        let Some(waiting) = all.get_mut(&ticket).filter(|waiting| !waiting.is_cancelled) else {
            return false;
        };
        (waiting.asked, waiting.announced) = (asked, None);
        true
    }

    /// Has whoever calls this ask for a lock that is queued once more; `None` if it has been granted, or somebody else asks.
    fn claim(&self, ticket: u64) -> Option<(LockRequest, DescriptionId)> {
        let mut all = self.waiting.lock();
        let waiting = all.get_mut(&ticket).filter(|waiting| waiting.is_queued)?;
        waiting.is_queued = false;
        Some((waiting.request, waiting.through))
    }

    /// Those that are queued for inodes of which `is_meant` is so.
    pub(crate) fn queued(&self, is_meant: impl Fn(InodeId) -> bool) -> Vec<(u64, InodeId)> {
        let all = self.waiting.lock();
        let queued = all.iter().filter(|(_, waiting)| waiting.is_queued && is_meant(waiting.request.inode));
        queued.map(|(ticket, waiting)| (*ticket, waiting.request.inode)).collect()
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
            if !self.lock_waits.begin_to_ask(ticket, asked.clone()) {
                return self.lock_waits.finish(ticket, Err(Errno::EINTR));
            }
            let reply = self.call(&Who::system(), MetaRequest::LockWait { request, through, ticket });
            let outcome = match reply {
                Ok(MetaReply::LockQueued) => match self.note_queued(ticket) {
                    Queued::Waits if self.is_left((ticket, request.inode), &asked) => return,
                    Queued::Waits => continue,
                    Queued::Announced(outcome) => outcome,
                    Queued::IsCancelled | Queued::IsOver => {
                        return self.withdraw((ticket, request.inode), &asked);
                    }
                },
                Ok(MetaReply::Done) => Ok(()),
                Ok(other) => Err(unexpected(&other)),
                Err(errno) => self.announced(ticket).unwrap_or(Err(errno)),
            };
            match outcome {
                Ok(()) if matches!(self.grant_lock(ticket), Granted::IsVoid) => {}
                Ok(()) => return,
                Err(errno) => return self.lock_waits.finish(ticket, Err(errno)),
            }
        }
    }

    /// Notes that the service has queued a request.
    fn note_queued(&self, ticket: u64) -> Queued {
        let mut all = self.lock_waits.waiting.lock();
        let Some(waiting) = all.get_mut(&ticket) else { return Queued::IsOver };
        // ORDER: before anybody else may end the wait. A lock that is granted later is noted then.
        self.held_locks.note_refused(&waiting.request);
        match waiting.announced.take() {
            Some(outcome) => Queued::Announced(outcome),
            None => {
                waiting.is_queued = true;
                if waiting.is_cancelled { Queued::IsCancelled } else { Queued::Waits }
            }
        }
    }

    /// What the service has announced of a wait while it was asked for.
    fn announced(&self, ticket: u64) -> Option<Result<(), Errno>> {
        self.lock_waits.waiting.lock().get_mut(&ticket)?.announced.take()
    }

    /// Whether whoever asked, at `asked`, may leave a wait that is queued to others; else it is to be asked for once more.
    fn is_left(&self, (ticket, inode): (u64, InodeId), asked: &LockTime) -> bool {
        // What a service said that has ended does not count, nor what was said in a session that has; when the next one begins that asks for all that are queued.
        self.is_still(asked, inode)
            || self.is_without_session(asked)
            || self.lock_waits.claim(ticket).is_none()
    }

    /// Takes back a request that was interrupted before it was known to be queued.
    fn withdraw(&self, (ticket, inode): (u64, InodeId), asked: &LockTime) {
        let is_cancelled = self.call_done(&Who::system(), MetaRequest::LockCancel { inode, ticket }).is_ok();
        // Else it was granted just before, and that is announced.
        if is_cancelled || !self.is_still(asked, inode) {
            self.lock_waits.finish(ticket, Err(Errno::EINTR));
        }
    }

    /// Ends a wait: the lock is held. Unless that does not count any more, as the service or the session has ended in which it was asked for.
    fn grant_lock(&self, ticket: u64) -> Granted {
        let granted = {
            let mut all = self.lock_waits.waiting.lock();
            let Some(waiting) = all.get(&ticket) else { return Granted::Held };
            let (request, asked) = (&waiting.request, &waiting.asked);
            let counts = || self.is_still(asked, request.inode);
            if !self.held_locks.note_while(request, waiting.through, counts) {
                return Granted::IsVoid;
            }
            all.remove(&ticket)
        };
        if let Some(granted) = granted {
            (granted.answer)(Ok(()));
        }
        Granted::Held
    }

    /// The service says that a wait is over.
    pub(crate) fn end_lock_wait(self: &Arc<Client>, ticket: u64, outcome: Result<(), Errno>) {
        match self.lock_waits.waiting.lock().get_mut(&ticket) {
            None => return,
            Some(waiting) if !waiting.is_queued => {
                // Whoever asks hears it.
                waiting.announced = Some(outcome);
                return;
            }
            Some(_) => {}
        }
        match outcome {
            Err(errno) => self.lock_waits.finish(ticket, Err(errno)),
            Ok(()) => {
                if matches!(self.grant_lock(ticket), Granted::IsVoid) {
                    self.ask_again_later(vec![ticket]);
                }
            }
        }
    }

    /// Asks for locks that are waited for once more, which were queued, in a thread: an answer may wait for what this one is to hear of.
    pub(crate) fn ask_again_later(self: &Arc<Client>, tickets: Vec<u64>) {
        if tickets.is_empty() {
            return;
        }
        let client = self.clone();
        let ask = Box::new(move || {
            for ticket in tickets {
                // ORDER: just before. Of one that has been granted meanwhile there is nothing to ask.
                if let Some((request, through)) = client.lock_waits.claim(ticket) {
                    client.ask_to_wait(ticket, request, through);
                }
            }
        });
        if self.env.tasks.spawn("ashlar-locks", ask).is_err() {
            tracing::error!("no thread can be started; locks that are waited for end");
            self.lock_waits.fail_all();
        }
    }

    /// Ends a wait early, as a signal does: the answer is `EINTR` unless the lock was granted before.
    pub fn lock_cancel(&self, ticket: u64) {
        let inode = match self.lock_waits.waiting.lock().get_mut(&ticket) {
            Some(waiting) => {
                waiting.is_cancelled = true;
                waiting.request.inode
            }
            None => return,
        };
        let before = self.lock_time(inode);
        // The service answers a cancelled wait itself; if the call fails the session is gone and so is the lock.
        let outcome = self.call_done(&Who::system(), MetaRequest::LockCancel { inode, ticket });
        // A service that was started meanwhile knows of no wait, and announces nothing. Whoever asks it just now sees that the wait is to end.
        let is_forgotten = || {
            let all = self.lock_waits.waiting.lock();
            !self.is_still(&before, inode) && all.get(&ticket).is_some_and(|waiting| waiting.is_queued)
        };
        if outcome.is_ok() || is_forgotten() {
            self.lock_waits.finish(ticket, Err(Errno::EINTR));
        }
    }
}
