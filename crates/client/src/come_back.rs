//! A client that was cut off: nothing is cached any more when leases have run out, and when the service has ended the session, another one goes on
//! where it left off.
//!
//! What is lost with a session is lost: its locks, and unlinked files that nobody else has open. Who held a lock may have been overtaken,
//! so reads and writes through that description fail with `EIO` until it is closed, as with NFS (`nfs(5)`, lost locks).

use crate::client::Client;
use crate::file::{FileState, Handle};
use ashlar_types::{Errno, SessionId};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Time between two tries to open a session.
const TRY_PAUSE: Duration = Duration::from_secs(1);
/// For how long all calls wait until all servers know what is open; later those about the rest alone do.
const TELL_MAX: Duration = Duration::from_secs(2);

impl Client {
    /// Leases have run out.
    pub(crate) fn expire(self: &Arc<Client>) {
        self.lose_leases();
        self.drop_attributes();
        self.drop_pages_later();
    }

    /// The service has ended `ended`; another session takes its place.
    pub(crate) fn come_back(self: &Arc<Client>, ended: SessionId) {
        if ended != self.session() || self.is_ending.load(SeqCst) {
            return;
        }
        tracing::warn!(session = %ended, "the metadata server has ended this session; opening another one");
        // ORDER: before locks are taken for lost. What is granted in this session from now on is asked for again, and not noted.
        self.era.fetch_add(1, SeqCst);
        self.lock_starts.note_session_ended();
        for file in self.files.all() {
            let mut state = file.state.lock();
            state.end_session(ended);
            state.pages.grown = None;
        }
        self.lose_locks();
        let grant = loop {
            match self.meta.open_session(self.queue.clone()) {
                Ok(grant) => break grant,
                Err(_) if self.is_ending.load(SeqCst) => return,
                Err(errno) => {
                    tracing::warn!(%errno, "no session could be opened; trying again");
                    self.session_changed.wait_for(&mut self.session_turn.lock(), TRY_PAUSE);
                }
            }
        };
        // ORDER: before calls go on in the new session. Nobody tells it of the starts that the one before was not told of; whoever syncs asks, as a server may be away.
        self.unsynced_meta.begin_session();
        // ORDER: before calls go on in the new session, which would find files closed. Those about files of a server that is away wait for it.
        self.untold.begin(grant.session, self.files.all());
        self.begin_telling(grant.session);
        self.untold.wait(&*self.env.clock, TELL_MAX);
        self.era.fetch_add(1, SeqCst);
        {
            let _turn = self.session_turn.lock();
            self.session.store(grant.session.0, SeqCst);
        }
        self.session_changed.notify_all();
        self.drop_attributes();
        self.drop_pages_later();
        self.ask_again_for_locks();
        tracing::info!(session = %grant.session, "going on in another session");
    }

    /// Waits, after a call in `ended` was refused, until there is another session; tells whether there is.
    pub(crate) fn has_come_back(&self, ended: SessionId) -> bool {
        let give_up = self.env.clock.monotonic().saturating_add(self.wait_max);
        let mut turn = self.session_turn.lock();
        while self.session() == ended {
            let left = give_up.saturating_sub(self.env.clock.monotonic());
            if self.is_ending.load(SeqCst) || left.is_zero() {
                return false;
            }
            self.session_changed.wait_for(&mut turn, left.min(TRY_PAUSE));
        }
        true
    }

    /// Whether `session`, in which something was done to a file, has ended since.
    pub(crate) fn is_of_ended(&self, state: &FileState, session: SessionId) -> bool {
        // ORDER: files are told before there is another session.
        state.ended == Some(session) || self.session() != session
    }

    /// Nothing is held of any file. What was written and not reported is still to be told.
    fn lose_leases(&self) {
        self.era.fetch_add(1, SeqCst);
        for file in self.files.all() {
            let mut state = file.state.lock();
            state.lose_leases();
            state.pages.grown = None;
        }
    }

    /// Others may have had the locks since.
    fn lose_locks(&self) {
        for (request, through) in self.held_locks.take() {
            tracing::error!(inode = %request.inode, "a lock is lost with its session; reads and writes through its description fail from now on");
            let Some(file) = self.open_file(request.inode) else { continue };
            let mut state = file.state.lock();
            if !state.lost_locks.contains(&through) {
                state.lost_locks.push(through);
            }
        }
    }

    /// Has the kernel drop pages of all open files. Not in this thread: for a page of a read under way the kernel waits until that has
    /// ended, which waits for the service.
    fn drop_pages_later(self: &Arc<Client>) {
        let client = self.clone();
        let drop_pages = move || {
            let Some(kernel) = client.kernel.get() else { return };
            let mut files = client.files.all();
            // Those first that wait for nothing.
            files.sort_by_key(|file| {
                let state = file.state.lock();
                (state.is_asking(), state.in_flight)
            });
            for file in &files {
                // What is read in again meanwhile goes with the write.
                file.state.lock().through.begin_drop();
                kernel.drop_content(file.inode);
            }
        };
        if self.env.tasks.spawn("ashlar-expire", Box::new(drop_pages)).is_err() {
            tracing::error!("no thread can be started; the kernel keeps pages that may be old");
        }
    }

    /// Refuses to go on through a description whose locks are lost.
    ///
    /// # Errors
    /// `EIO`.
    pub(crate) fn check_locks(&self, handle: &Handle) -> Result<(), Errno> {
        if !self.comes_back {
            return Ok(());
        }
        let state = handle.file.state.lock();
        match state.lost_locks.iter().any(|lost| lost.0 == handle.number) {
            true => Err(Errno::EIO),
            false => Ok(()),
        }
    }
}
