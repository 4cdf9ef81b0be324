//! Files that are open here in a session of which their servers have not been told yet, because another one has their shard meanwhile, or the network was in the way. They are told on
//! and on, for as long as the session lasts; calls about such a file wait for that, as the server would take it for one that is not open.

use crate::client::{Client, WAIT_MAX};
use crate::file::File;
use crate::reclaim::{BATCH, NEWEST};
use ashlar_env::Signal;
use ashlar_types::message::{Addressee, LeaseSet, MetaRequest};
use ashlar_types::{Errno, InodeId, SessionId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
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
}

impl Untold {
    pub(crate) fn new(changed: Signal) -> Untold {
        Untold { state: Mutex::default(), count: AtomicUsize::new(0), changed }
    }

    /// From now on `files` are to be told in `session`, and none in any session before.
    pub(crate) fn begin(&self, session: SessionId, files: Vec<Arc<File>>) {
        let mut state = self.state.lock();
        state.session = session;
        state.files = files.into_iter().map(|file| (file.inode, file)).collect();
        self.count.store(state.files.len(), SeqCst);
        drop(state);
        self.changed.notify_all();
    }

    /// Those that are left in `session`.
    fn left(&self, session: SessionId) -> Vec<Arc<File>> {
        let state = self.state.lock();
        if state.session == session { state.files.values().cloned().collect() } else { Vec::new() }
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
}

impl Client {
    /// Tells in `session` which of the files that are left are open, each to the server that has it; tells whether none are left.
    pub(crate) fn tell_untold(&self, session: SessionId) -> bool {
        for _ in 0..TELLS_MAX {
            let mut left = self.untold.left(session);
            if left.is_empty() {
                return true;
            }
            left.sort_by_key(|file| self.server_of(file.inode));
            let is_at_one =
                |one: &Arc<File>, other: &Arc<File>| self.server_of(one.inode) == self.server_of(other.inode);
            let (mut has_moved, mut away) = (false, Vec::new());
            for files in left.chunk_by(is_at_one).flat_map(|some| some.chunks(BATCH)) {
                let Some(first) = files.first() else { continue };
                let server = self.server_of(first.inode);
                if away.contains(&server) {
                    // One wait for it is enough.
                    continue;
                }
                match self.tell_files(session, (server, NEWEST), files, LeaseSet::NONE) {
                    Ok(_) => self.untold.end(session, files),
                    // Whoever opens the next one tells everything in that.
                    Err(Errno::ENOTCONN) => {
                        self.untold.end(session, &left);
                        return true;
                    }
                    Err(Errno::EHOSTDOWN) => has_moved = true,
                    Err(errno) => {
                        tracing::warn!(%errno, %server, files = files.len(), "the metadata server could not be told which files are open; trying again");
                        away.push(server);
                    }
                }
            }
            if !has_moved || !away.is_empty() {
                return self.untold.left(session).is_empty();
            }
        }
        false
    }

    /// Goes on telling what is left in `session`, in a thread of its own, until it ends.
    pub(crate) fn tell_untold_later(self: &Arc<Client>, session: SessionId) {
        let client = self.clone();
        let tell = move || {
            loop {
                client.env.tasks.pause(TRY_PAUSE);
                let is_over = client.is_ending.load(SeqCst) || client.session() != session;
                if is_over || client.tell_untold(session) {
                    return client.untold.end(session, &client.untold.left(session));
                }
            }
        };
        if self.env.tasks.spawn("ashlar-untold", Box::new(tell)).is_err() {
            tracing::error!("no thread can be started; files that are open are not known to their servers");
            self.untold.end(session, &self.untold.left(session));
        }
    }

    /// Waits while the server of what `request` is about does not know yet that it is open.
    pub(crate) fn wait_until_told(&self, request: &MetaRequest<'_>) {
        if self.untold.count.load(SeqCst) == 0 {
            return;
        }
        // Others wait for the answer to a recall, which is good also of what is not open.
        let (Addressee::Home(inode), false) =
            (request.addressee(), matches!(request, MetaRequest::RecallDone { .. }))
        else {
            return;
        };
        let give_up = self.env.clock.monotonic().saturating_add(WAIT_MAX);
        let mut state = self.untold.state.lock();
        while state.files.contains_key(&inode) && !self.is_ending.load(SeqCst) {
            let left = give_up.saturating_sub(self.env.clock.monotonic());
            if left.is_zero() {
                return;
            }
            self.untold.changed.wait_for(&mut state, left.min(TRY_PAUSE));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::file::{FileState, FileTable, OpenFlags};
    use ashlar_types::DescriptionId;

    fn files(numbers: std::ops::Range<u64>) -> Vec<Arc<File>> {
        let table = FileTable::new(Signal::default());
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
        untold.begin(first, all.clone());
        untold.end(first, &all[..1]);
        assert_eq!(untold.left(first).len(), 2);
        untold.begin(next, all.clone());
        // The answer of the session before comes late.
        untold.end(first, &all);
        assert_eq!((untold.left(first).len(), untold.left(next).len()), (0, 3));
        assert_eq!(untold.count.load(SeqCst), 3);
        untold.end(next, &all);
        assert_eq!((untold.left(next).len(), untold.count.load(SeqCst)), (0, 0));
    }
}
