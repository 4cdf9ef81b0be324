//! Files that are open here in a session of which their servers have not been told yet, because another one has their shard meanwhile, or the network was in the way. They are told on
//! and on, for as long as the session lasts; calls about such a file wait for that, as the server would take it for one that is not open.

use crate::client::Client;
use crate::file::File;
use crate::reclaim::{BATCH, NEWEST};
use ashlar_env::{Clock, Signal};
use ashlar_types::message::{Addressee, LeaseSet, MetaRequest};
use ashlar_types::{Errno, InodeId, NodeId, SessionId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// How often files are told of anew at once because their shards have other servers meanwhile.
const TELLS_MAX: usize = 8;
/// Time between two tries, else.
const TRY_PAUSE: Duration = Duration::from_secs(1);

/// See the module.
pub(crate) struct Untold {
    state: Mutex<State>,
    /// How many there are: asked for every call.
    count: AtomicUsize,
    changed: Signal,
}

#[derive(Default)]
struct State {
    /// In which they are to be told.
    session: SessionId,
    // LIMIT: as open files.
    files: FxHashMap<InodeId, Arc<File>>,
    /// Servers that a thread is telling.
    // LIMIT: as metadata servers.
    being_told: BTreeSet<NodeId>,
    /// No thread could be started for one of them: whoever waits tells them himself.
    lacks_threads: bool,
}

impl State {
    /// See [`Untold::servers`].
    fn servers(&self, session: SessionId, server_of: impl Fn(InodeId) -> NodeId) -> BTreeSet<NodeId> {
        if self.session != session {
            return BTreeSet::new();
        }
        self.files.keys().map(|inode| server_of(*inode)).collect()
    }
}

impl Untold {
    pub(crate) fn new(changed: Signal) -> Untold {
        Untold { state: Mutex::default(), count: AtomicUsize::new(0), changed }
    }

    /// From now on `files` are to be told in `session`, and none in any session before.
    pub(crate) fn begin(&self, session: SessionId, files: Vec<Arc<File>>) {
        let mut state = self.state.lock();
        let files = files.into_iter().map(|file| (file.inode, file)).collect();
        *state = State { session, files, ..State::default() };
        self.count.store(state.files.len(), SeqCst);
        drop(state);
        self.changed.notify_all();
    }

    /// Whether there are any.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(SeqCst) == 0
    }

    /// Whether its server does not know yet that `inode` is open.
    pub(crate) fn has(&self, inode: InodeId) -> bool {
        self.count.load(SeqCst) > 0 && self.state.lock().files.contains_key(&inode)
    }

    /// The servers, as `server_of` says, of files that are left in `session`.
    fn servers(&self, session: SessionId, server_of: impl Fn(InodeId) -> NodeId) -> BTreeSet<NodeId> {
        self.state.lock().servers(session, server_of)
    }

    /// Those of them that nobody is telling, who is to be begun with.
    fn begin_telling(&self, session: SessionId, server_of: impl Fn(InodeId) -> NodeId) -> Vec<NodeId> {
        let mut state = self.state.lock();
        let servers = state.servers(session, server_of);
        servers.into_iter().filter(|server| state.being_told.insert(*server)).collect()
    }

    /// Nobody tells `server` any more, as no thread can be started.
    fn stop_telling(&self, session: SessionId, server: NodeId) {
        let mut state = self.state.lock();
        if state.session == session {
            state.being_told.remove(&server);
            state.lacks_threads = true;
        }
    }

    /// Waits until nothing of `inode` is left, for at most `bound`; or until `is_over`. If nobody tells its server for want of a thread, `tell` does.
    fn wait_for(
        &self,
        inode: InodeId,
        (clock, bound): (&dyn Clock, Duration),
        is_over: impl Fn() -> bool,
        (server_of, tell): (impl Fn(InodeId) -> NodeId, impl Fn(SessionId, NodeId)),
    ) -> Result<(), Errno> {
        let give_up = clock.monotonic().saturating_add(bound);
        let mut state = self.state.lock();
        while state.files.contains_key(&inode) && !is_over() {
            let (session, server) = (state.session, server_of(inode));
            if state.lacks_threads && state.being_told.insert(server) {
                drop(state);
                tell(session, server);
                self.stop_telling(session, server);
                state = self.state.lock();
                if !state.files.contains_key(&inode) {
                    break;
                }
            }
            let left = give_up.saturating_sub(clock.monotonic());
            if left.is_zero() {
                // Its server would say that it is not open, which is not so.
                return Err(Errno::ETIMEDOUT);
            }
            self.changed.wait_for(&mut state, left.min(TRY_PAUSE));
        }
        Ok(())
    }

    /// Whether nothing is left in `session` that is to be told `server`; then nobody is telling it any more.
    fn is_told(&self, session: SessionId, server: NodeId, server_of: impl Fn(InodeId) -> NodeId) -> bool {
        let mut state = self.state.lock();
        if state.session != session {
            return true;
        }
        // ORDER: under the lock. Who has something to be told there afterwards finds that nobody tells it.
        let is_told = state.files.keys().all(|inode| server_of(*inode) != server);
        if is_told {
            state.being_told.remove(&server);
        }
        is_told
    }

    /// Those that are left in `session` of which `is_wanted`.
    fn left(&self, session: SessionId, is_wanted: impl Fn(InodeId) -> bool) -> Vec<Arc<File>> {
        let state = self.state.lock();
        let wanted = state.files.values().filter(|file| is_wanted(file.inode));
        if state.session == session { wanted.cloned().collect() } else { Vec::new() }
    }

    /// Their server knows of `files` in `session`, or nobody is to tell it any more.
    fn end(&self, session: SessionId, files: &[Arc<File>]) {
        let mut state = self.state.lock();
        if state.session != session {
            return;
        }
        files.iter().for_each(|file| drop(state.files.remove(&file.inode)));
        self.count.store(state.files.len(), SeqCst);
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until nothing is left, for at most `bound`.
    pub(crate) fn wait(&self, clock: &dyn Clock, bound: Duration) {
        let give_up = clock.monotonic().saturating_add(bound);
        let mut state = self.state.lock();
        while !state.files.is_empty() {
            let left = give_up.saturating_sub(clock.monotonic());
            if left.is_zero() {
                return;
            }
            self.changed.wait_for(&mut state, left);
        }
    }
}

/// What came of telling a server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Telling {
    Done,
    /// Some of it is to be told another one.
    Moved,
    /// The server is away.
    Failed,
}

impl Client {
    /// Tells `server` in `session` which of the files that are left there are open.
    fn tell_server(&self, session: SessionId, server: NodeId) -> Telling {
        let files = self.untold.left(session, |inode| self.server_of(inode) == server);
        let mut telling = Telling::Done;
        for some in files.chunks(BATCH) {
            match self.tell_files(session, (server, NEWEST), some, LeaseSet::NONE) {
                Ok(_) => self.untold.end(session, some),
                // Whoever opens the next one tells everything in that.
                Err(Errno::ENOTCONN) => {
                    self.untold.end(session, &self.untold.left(session, |_| true));
                    return Telling::Done;
                }
                Err(Errno::EHOSTDOWN) if telling == Telling::Failed => {}
                Err(Errno::EHOSTDOWN) => telling = Telling::Moved,
                Err(errno) => {
                    tracing::warn!(%errno, %server, files = some.len(), "the metadata server could not be told which files are open; trying again");
                    telling = Telling::Failed;
                    // Others that it does not answer either would keep what it can be told waiting.
                    if errno == Errno::ETIMEDOUT {
                        return telling;
                    }
                }
            }
        }
        telling
    }

    /// Tells in `session` all that is left, each to the server that has it; tells whether none are left.
    pub(crate) fn tell_untold(&self, session: SessionId) -> bool {
        for _ in 0..TELLS_MAX {
            let servers = self.untold.servers(session, |inode| self.server_of(inode));
            if servers.is_empty() {
                return true;
            }
            for server in servers {
                if self.tell_server(session, server) == Telling::Failed {
                    return false;
                }
            }
        }
        false
    }

    /// Tells in `session` all that is left, in a thread for each server, so that one that is away holds up nobody who has nothing to do with it. It is told on and on, until it knows or the session
    /// is over.
    pub(crate) fn begin_telling(self: &Arc<Client>, session: SessionId) {
        for server in self.untold.begin_telling(session, |inode| self.server_of(inode)) {
            let client = self.clone();
            let tell = Box::new(move || client.tell_until_told(session, server));
            if self.env.tasks.spawn("ashlar-untold", tell).is_err() {
                tracing::error!(%server, "no thread can be started; files that are open are told to their server when they are used");
                self.untold.stop_telling(session, server);
            }
        }
    }

    fn tell_until_told(self: &Arc<Client>, session: SessionId, server: NodeId) {
        // LIMIT: a turn per second, or per newer map.
        while !self.untold.is_told(session, server, |inode| self.server_of(inode)) {
            if self.is_ending.load(SeqCst) {
                return self.untold.end(session, &self.untold.left(session, |_| true));
            }
            if self.tell_server(session, server) == Telling::Failed {
                self.env.tasks.pause(TRY_PAUSE);
            }
            // What has gone to another one.
            self.begin_telling(session);
        }
    }

    /// Waits while the server of what `request` is about does not know yet that it is open.
    ///
    /// # Errors
    /// `ETIMEDOUT` when it does not learn of it.
    pub(crate) fn wait_until_told(&self, request: &MetaRequest<'_>) -> Result<(), Errno> {
        if self.untold.count.load(SeqCst) == 0 {
            return Ok(());
        }
        match request {
            // Others wait for the answer to a recall, which is good also of what is not open.
            MetaRequest::RecallDone { .. } => Ok(()),
            MetaRequest::Closes { of } => {
                of.iter().try_for_each(|close| self.wait_until_told_of(close.inode))
            }
            request => match request.addressee() {
                Addressee::Home(inode) => self.wait_until_told_of(inode),
                _ => Ok(()),
            },
        }
    }

    fn wait_until_told_of(&self, inode: InodeId) -> Result<(), Errno> {
        let tell = |session, server| {
            // Whether it came to know shows in what is left.
            let _ = self.tell_server(session, server);
        };
        let is_ending = || self.is_ending.load(SeqCst);
        self.untold.wait_for(
            inode,
            (&*self.env.clock, self.wait_max),
            is_ending,
            (|inode| self.server_of(inode), tell),
        )
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::file::{FileState, FileTable, OpenFlags};
    use ashlar_types::DescriptionId;

    fn files(numbers: std::ops::Range<u64>) -> Vec<Arc<File>> {
        let table = FileTable::new(Signal::default(), Duration::from_secs(1));
        let open = |number: u64| {
            let handle = (DescriptionId(number), OpenFlags::default(), false);
            table.open(InodeId(number), handle, None, FileState::unknown, |_| {}).0
        };
        numbers.map(open).collect()
    }

    #[test]
    fn what_was_told_in_a_session_that_is_over_is_still_to_be_told_in_the_next_one() {
        let (untold, all) = (Untold::new(Signal::default()), files(1..4));
        let (first, next) = (SessionId(1), SessionId(2));
        let all_of = |_: InodeId| true;
        untold.begin(first, all.clone());
        untold.end(first, &all[..1]);
        assert_eq!(untold.left(first, all_of).len(), 2);
        untold.begin(next, all.clone());
        // The answer of the session before comes late.
        untold.end(first, &all);
        assert_eq!((untold.left(first, all_of).len(), untold.left(next, all_of).len()), (0, 3));
        assert_eq!(untold.count.load(SeqCst), 3);
        untold.end(next, &all);
        assert_eq!((untold.left(next, all_of).len(), untold.count.load(SeqCst)), (0, 0));
    }

    #[test]
    fn each_server_is_told_by_one_thread_that_ends_when_nothing_is_left_there() {
        let (untold, all) = (Untold::new(Signal::default()), files(1..4));
        let session = SessionId(1);
        untold.begin(session, all.clone());
        let before = |inode: InodeId| NodeId(if inode.0 == 1 { 1 } else { 2 });
        assert_eq!(untold.begin_telling(session, before), [NodeId(1), NodeId(2)]);
        assert_eq!(untold.begin_telling(session, before), []);
        assert!(!untold.is_told(session, NodeId(1), before));
        untold.end(session, &all[..1]);
        assert!(untold.is_told(session, NodeId(1), before));
        // A shard goes to the server that nobody tells any more, and one to a third.
        let after = |inode: InodeId| NodeId(if inode.0 == 2 { 1 } else { 3 });
        assert_eq!(untold.begin_telling(session, after), [NodeId(1), NodeId(3)]);
        assert!(untold.is_told(session, NodeId(2), after));
        // The session is over: whoever told in it ends, and is in nobody's way.
        untold.begin(SessionId(2), all);
        assert!(untold.is_told(session, NodeId(1), after));
        assert_eq!(untold.begin_telling(session, after), []);
        assert_eq!(untold.begin_telling(SessionId(2), after), [NodeId(1), NodeId(3)]);
    }

    #[test]
    fn who_waits_for_a_server_that_does_not_learn_what_is_open_is_told_that_and_tells_it_without_a_thread() {
        let (untold, all) = (Untold::new(Signal::default()), files(1..4));
        let (session, clock, server) = (SessionId(1), ashlar_env::Env::os().clock, |_| NodeId(1));
        untold.begin(session, all.clone());
        assert_eq!(untold.begin_telling(session, server), [NodeId(1)]);
        let told = std::cell::RefCell::new(Vec::new());
        let wait = |inode, tells: &dyn Fn(SessionId)| {
            let tell = |session, server| {
                told.borrow_mut().push(server);
                tells(session);
            };
            untold.wait_for(inode, (&*clock, Duration::from_millis(5)), || false, (server, tell))
        };
        let nothing = |_: SessionId| {};
        assert_eq!(wait(InodeId(1), &nothing), Err(Errno::ETIMEDOUT));
        assert_eq!(wait(InodeId(9), &nothing), Ok(()), "nothing of it is to be told");
        assert!(told.borrow().is_empty(), "a thread does");
        // It could not be started.
        untold.stop_telling(session, NodeId(1));
        assert_eq!(wait(InodeId(1), &|session| untold.end(session, &all[..1])), Ok(()));
        assert_eq!(*told.borrow(), [NodeId(1)]);
        assert_eq!(wait(InodeId(2), &nothing), Err(Errno::ETIMEDOUT));
        assert!(told.borrow().len() > 1, "each call tries it");
        // And whoever has a thread tells what is left.
        assert_eq!(untold.begin_telling(session, server), [NodeId(1)]);
    }
}
