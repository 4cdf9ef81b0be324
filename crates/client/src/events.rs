//! Answers recalls: takes what is recalled out of the kernel's caches, reports, and gives the lease back.
//!
//! A few threads per session do this, holding no lock while they wait for the kernel, because the kernel may hold a lock that
//! one of its own calls into this client is waiting to release. What waits for no page has a thread of its own: whoever asked may be what those threads wait for. Content is given back like this: invalidate; if no read or
//! write began meanwhile and none is under way, the lease is gone from that instant; else once more. While a recall is in
//! work the lease still holds, so reads and writes that hold kernel page locks finish.

use crate::call::unexpected;
use crate::client::Client;
use crate::file::{Drained, File};
use crate::pages::Stretch;
use ashlar_env::Signal;
use ashlar_rpc::SessionEvents;
use ashlar_types::message::{LeaseSet, MetaReply, MetaRequest, Recall, SessionEvent};
use ashlar_types::{Errno, InodeId};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use std::{fmt, io};

/// For how long a report that finds no space is tried again; less than a recall may take.
const REPORT_MAX: Duration = Duration::from_secs(4);

/// For how long the answer to a recall waits for reads and writes under way; longer than the service waits for it.
const UNDER_WAY_MAX: Duration = Duration::from_secs(90);

/// Time between two tries.
const REPORT_PAUSE: Duration = Duration::from_millis(200);

/// Threads that answer recalls of content, at first and while all are at work. The answer to one may wait for the kernel, and the kernel for a write that waits
/// for another session's answer on another file; one thread would make a ring of that.
// LIMIT: of a session; beyond it recalls wait, and the service ends the session for one that waits too long.
pub(crate) const CONTENT_THREADS: usize = 4;
const CONTENT_THREADS_MAX: usize = 128;

/// The caches of the kernel over this client. Each call may block until the kernel has let go.
pub trait KernelCache: Send + Sync {
    /// Drops the attributes of an inode.
    fn drop_attributes(&self, inode: InodeId);
    /// Writes back and drops the pages of a file, and its attributes.
    fn drop_content(&self, inode: InodeId);
    /// Writes back and drops the pages of `bytes` bytes of a file at `offset`; `bytes` is not 0.
    fn drop_range(&self, inode: InodeId, offset: u64, bytes: u64);
    /// Has another thread drop one page of a file, of `bytes` bytes at `offset`.
    fn begin_to_drop(&self, inode: InodeId, offset: u64, bytes: u64) -> Arc<dyn Dropping>;
    /// Drops the entries of a directory, those that a lookup under way is about to put in included.
    fn drop_entries(&self, directory: InodeId);
}

/// A page that another thread is dropping.
pub trait Dropping: fmt::Debug + Send + Sync {
    /// Waits until that is done, for `at_most`; whether it is.
    fn wait(&self, at_most: Duration) -> bool;
    /// Whether that thread waits in the kernel, for the page and not just for a processor.
    fn is_blocked(&self) -> bool;
}

/// Events on their way to the session's threads, by what answering them waits for.
pub(crate) struct EventQueue {
    // LIMIT: one recall per inode under lease here.
    of_content: Line,
    /// Recalls of content at which another thread is held up.
    // LIMIT: as of those.
    of_held_up: Line,
    // LIMIT: one recall per file written beside others here.
    of_sharing: Line,
    // LIMIT: one recall per inode under lease here, and one event per lock this session waits for.
    others: Line,
    /// Whose events these are, once it is connected.
    client: OnceLock<Weak<Client>>,
}

/// Events that some threads take one after the other.
struct Line {
    state: Mutex<LineState>,
    ready: Signal,
}

#[derive(Default)]
struct LineState {
    work: VecDeque<Work>,
    is_closed: bool,
    threads: usize,
    idle: usize,
}

impl Line {
    /// For so many threads to begin with.
    fn new(ready: Signal, threads: usize) -> Line {
        Line { state: Mutex::new(LineState { threads, ..LineState::default() }), ready }
    }

    fn close(&self) {
        self.state.lock().is_closed = true;
        self.ready.notify_all();
    }

    fn add(&self, work: Work) {
        self.state.lock().work.push_back(work);
        self.ready.notify_one();
    }

    /// Whether there is nothing to do, and nobody is at anything.
    fn is_at_rest(&self) -> bool {
        let state = self.state.lock();
        state.work.is_empty() && state.idle == state.threads
    }

    fn next(&self) -> Option<Work> {
        let mut state = self.state.lock();
        loop {
            if let Some(work) = state.work.pop_front() {
                return Some(work);
            }
            if state.is_closed {
                return None;
            }
            state.idle += 1;
            self.ready.wait(&mut state);
            state.idle -= 1;
        }
    }

    /// Counts one thread more, unless one has nothing to do or there are `max`.
    fn add_thread(&self, max: usize) -> bool {
        let mut state = self.state.lock();
        let lacks = state.idle == 0 && state.threads < max && !state.is_closed;
        state.threads += usize::from(lacks);
        lacks
    }
}

/// What a thread is to do.
enum Work {
    Recall(Arc<Answer>),
    /// What another thread may be held up with: it waits for the kernel to let go of a page.
    Help(Arc<Answer>),
    Other(SessionEvent),
}

/// The answer to a recall.
pub(crate) struct Answer {
    recall: Recall,
    /// A thread is at it.
    has_begun: AtomicBool,
    /// Another one is about to be.
    is_helped: AtomicBool,
    /// It was given, or never will be.
    is_over: AtomicBool,
}

impl Answer {
    fn new(recall: Recall) -> Answer {
        let no = || AtomicBool::new(false);
        Answer { recall, has_begun: no(), is_helped: no(), is_over: no() }
    }
}

/// Which events a thread answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// Recalls of content, which wait for pages.
    Content,
    /// Those of them at which a thread of that share is held up, and must not wait behind others that are.
    HeldUp,
    /// Recalls of SHARE, which wait for storage, and must not wait behind those for pages: these may wait for them.
    Beside,
    /// The rest.
    Others,
}

impl Share {
    fn of(recall: &Recall) -> Share {
        match recall.leases {
            leases if leases.meets(LeaseSet::PAGES) => Share::Content,
            leases if leases.has(LeaseSet::SHARE) => Share::Beside,
            _ => Share::Others,
        }
    }
}

impl EventQueue {
    pub(crate) fn new(ready: Signal) -> EventQueue {
        EventQueue {
            of_content: Line::new(ready.another(), CONTENT_THREADS),
            of_held_up: Line::new(ready.another(), 1),
            of_sharing: Line::new(ready.another(), 1),
            others: Line::new(ready, 1),
            client: OnceLock::new(),
        }
    }

    pub(crate) fn set_client(&self, client: Weak<Client>) {
        // Called once, by whoever made both.
        let _ = self.client.set(client);
    }

    pub(crate) fn close(&self) {
        self.of_content.close();
        self.of_held_up.close();
        self.of_sharing.close();
        self.others.close();
    }

    /// Whether everything that was delivered is answered.
    pub(crate) fn is_at_rest(&self) -> bool {
        [&self.of_content, &self.of_held_up, &self.of_sharing, &self.others]
            .iter()
            .all(|line| line.is_at_rest())
    }

    fn line(&self, share: Share) -> &Line {
        match share {
            Share::Content => &self.of_content,
            Share::HeldUp => &self.of_held_up,
            Share::Beside => &self.of_sharing,
            Share::Others => &self.others,
        }
    }
}

impl SessionEvents for EventQueue {
    fn deliver(&self, event: SessionEvent) {
        let SessionEvent::Recall(recall) = event else { return self.others.add(Work::Other(event)) };
        let (share, is_of_content) = (Share::of(&recall), recall.leases.meets(LeaseSet::CONTENT));
        let answer = Arc::new(Answer::new(recall));
        if is_of_content && let Some(client) = self.client.get().and_then(Weak::upgrade) {
            client.note_recalled(answer.clone());
        }
        self.line(share).add(Work::Recall(answer));
    }

    fn is_busy(&self, inode: InodeId) -> bool {
        let client = self.client.get().and_then(Weak::upgrade);
        client.and_then(|client| client.open_file(inode)).is_some_and(|file| {
            let state = file.state.lock();
            // What is under way has its lease already, so it waits for no recall: only for a target, or for metadata to take a report.
            state.in_flight > 0 || state.reporting.is_some()
        })
    }
}

/// Files whose content is being given back: the lease has ended here, and the service does not know it yet. It would answer whoever asks now
/// to keep what there was.
pub(crate) struct Answering {
    // LIMIT: one entry per thread that answers recalls.
    files: Mutex<Vec<InodeId>>,
    ended: Signal,
}

/// A file's content is being given back for as long as it lives.
struct AnsweringOne<'a>(&'a Answering, InodeId);

impl Drop for AnsweringOne<'_> {
    fn drop(&mut self) {
        let mut files = self.0.files.lock();
        if let Some(at) = files.iter().position(|&inode| inode == self.1) {
            files.swap_remove(at);
        }
        drop(files);
        self.0.ended.notify_all();
    }
}

impl Answering {
    pub(crate) fn new(ended: Signal) -> Answering {
        Answering { files: Mutex::default(), ended }
    }

    fn begin(&self, inode: InodeId) -> AnsweringOne<'_> {
        self.files.lock().push(inode);
        AnsweringOne(self, inode)
    }

    /// Waits until no content of `inode` is being given back. That waits for no kernel, so that whoever holds a page may wait here.
    ///
    /// # Errors
    /// `ETIMEDOUT` after `bound`.
    pub(crate) fn wait(&self, inode: InodeId, bound: Duration) -> Result<(), Errno> {
        let mut files = self.files.lock();
        while files.contains(&inode) {
            if self.ended.wait_for(&mut files, bound) {
                return Err(Errno::ETIMEDOUT);
            }
        }
        Ok(())
    }
}

/// Recalls of content: from the moment at which the session is told of one, which may be long before a thread takes it up.
#[derive(Default)]
pub(crate) struct Recalled {
    // LIMIT: as the recalls of content.
    answers: Mutex<Vec<Arc<Answer>>>,
}

impl Recalled {
    /// Whether somebody waits for READ or WRITE on `inode` that this session holds.
    pub(crate) fn has(&self, inode: InodeId) -> bool {
        let answers = self.answers.lock();
        answers.iter().any(|answer| answer.recall.inode == inode && !answer.is_over.load(SeqCst))
    }

    /// Those that threads are at who may wait for pages of `inode`.
    fn of_pages(&self, inode: InodeId) -> Vec<Arc<Answer>> {
        let is_meant = |answer: &&Arc<Answer>| {
            let Recall { inode: of, leases, flush_only, .. } = answer.recall;
            let is_under_way = answer.has_begun.load(SeqCst) && !answer.is_over.load(SeqCst);
            of == inode && leases.meets(LeaseSet::PAGES) && !flush_only && is_under_way
        };
        self.answers.lock().iter().filter(is_meant).cloned().collect()
    }
}

/// Ends what [`Client::note_recalled`] began as it goes.
struct RecalledOne<'a>(&'a Recalled, &'a Arc<Answer>);

impl Drop for RecalledOne<'_> {
    fn drop(&mut self) {
        self.0.answers.lock().retain(|answer| !Arc::ptr_eq(answer, self.1));
    }
}

/// Starts a thread that answers events of `share` until the queue is closed or the client is gone.
///
/// # Errors
/// When no thread can be started.
pub(crate) fn start_answering(client: &Arc<Client>, share: Share) -> io::Result<()> {
    let (weak, queue) = (Arc::downgrade(client), client.queue.clone());
    let run = Box::new(move || run_events(&queue, &weak, share));
    let thread = client.env.tasks.spawn("ashlar-recall", run)?;
    client.event_threads.lock().push(thread);
    Ok(())
}

fn run_events(queue: &Arc<EventQueue>, client: &Weak<Client>, share: Share) {
    while let Some(work) = queue.line(share).next() {
        let Some(client) = client.upgrade() else { return };
        // ORDER: before this thread begins to wait: what this answer waits for, a disk that hangs, say, must not keep those about other files waiting.
        if matches!(share, Share::Content | Share::HeldUp)
            && queue.line(share).add_thread(CONTENT_THREADS_MAX)
            && let Err(error) = start_answering(&client, share)
        {
            queue.line(share).state.lock().threads -= 1;
            tracing::warn!(%error, "no further thread for the recalls of metadata servers");
        }
        let mut work = Some(work);
        // A panic ends this answer only: with the thread gone, every later recall would have one less to be answered by, and nobody would
        // notice. What was not answered ends the session, loudly.
        let went_well = client.env.tasks.contain(&mut || match work.take() {
            Some(Work::Recall(answer)) => {
                let _recalled = RecalledOne(&client.recalled, &answer);
                client.answer_recall(&answer);
            }
            Some(Work::Help(answer)) => {
                answer.is_helped.store(false, SeqCst);
                client.give_back_content(&answer);
            }
            Some(Work::Other(event)) => client.hear(event),
            None => {}
        });
        if !went_well {
            tracing::error!(session = %client.session(), "the answer to the metadata service ended by a panic");
        }
    }
}

impl Client {
    fn hear(self: &Arc<Client>, event: SessionEvent) {
        match event {
            // They have lines of their own.
            SessionEvent::Recall(_) => {}
            SessionEvent::LockDone { ticket, outcome } => self.end_lock_wait(ticket, outcome),
            SessionEvent::Reclaim { server, incarnation } => self.begin_reclaiming(server, incarnation),
            SessionEvent::Expired => self.expire(),
            SessionEvent::Evicted { session } if self.comes_back => self.come_back(session),
            SessionEvent::Evicted { session } => {
                tracing::error!(%session, "the metadata service ended this session: a recall was not answered in time");
                self.lock_waits.fail_all();
            }
        }
    }

    /// Notes a recall that has come, and tells whoever holds a page of the file.
    fn note_recalled(&self, answer: Arc<Answer>) {
        let inode = answer.recall.inode;
        self.recalled.answers.lock().push(answer);
        if let Some(file) = self.open_file(inode) {
            // Who looked before this is waiting now.
            drop(file.state.lock());
            file.changed.notify_all();
        }
    }

    /// Has threads of their own go on with recalls of `inode`, as those that are at them may be waiting for a page that a write has locked of which is known only now.
    pub(crate) fn help_recalls(&self, inode: InodeId) {
        let answers = self.recalled.of_pages(inode);
        let is_alone = |answer: &Arc<Answer>| !answer.is_helped.swap(true, SeqCst);
        answers.into_iter().filter(is_alone).for_each(|answer| self.queue.of_held_up.add(Work::Help(answer)));
    }

    fn answer_recall(&self, answer: &Answer) {
        let recall = &answer.recall;
        // ORDER: before the kernel is told, which may ask at once.
        self.ahead.forget(recall.inode);
        if recall.leases.meets(LeaseSet::ATTR) {
            // ORDER: before it is answered, as above.
            self.split_directories.note_change(recall.inode);
        }
        // Of a slice the kernel knows nothing.
        let shown = self.split_directories.shown(recall.inode);
        if let Some(kernel) = self.kernel.get() {
            if recall.leases.meets(LeaseSet::ENTRIES) {
                kernel.drop_entries(shown);
            }
            if recall.leases.meets(LeaseSet::ATTR) && !recall.leases.meets(LeaseSet::PAGES) {
                kernel.drop_attributes(shown);
            }
        }
        answer.has_begun.store(true, SeqCst);
        if recall.leases.meets(LeaseSet::CONTENT) {
            self.give_back_content(answer);
        } else {
            self.acknowledge(recall);
        }
    }

    fn give_back_content(&self, answer: &Answer) {
        let recall = &answer.recall;
        if recall.flush_only {
            if self.open_file(recall.inode).is_none_or(|file| self.report_recalled(&file)) {
                self.acknowledge(recall);
            }
            return;
        }
        // Each turn more is a close and an open of this client meanwhile. LIMIT: past its bound the service evicts the session.
        loop {
            if answer.is_over.load(SeqCst) || self.is_given_back(answer) {
                return;
            }
        }
    }

    /// Gives content back, or another thread has; false when the file was opened anew meanwhile.
    fn is_given_back(&self, answer: &Answer) -> bool {
        let recall = &answer.recall;
        let file = self.open_file(recall.inode);
        let surrendered = match file.as_deref().map(|file| self.surrender(file, answer)) {
            Some(None) => return true,
            other => other.flatten(),
        };
        let caches_nothing = !recall.leases.meets(LeaseSet::PAGES);
        if let Some(kernel) = self.kernel.get().filter(|_| file.is_none() && !caches_nothing) {
            kernel.drop_content(recall.inode);
        }
        let mut answering = None;
        // ORDER: while nobody opens the file. A grant that this recall overtook is void: whoever carries it sees the floor, or was seen here;
        // and whoever asks for one from now on waits until the service knows.
        let note = || {
            self.note_recall_floor(recall);
            answering = Some(self.answering.begin(recall.inode));
        };
        if !self.files.if_still(recall.inode, file.as_ref(), note) {
            return false;
        }
        if file.as_deref().is_none_or(|file| self.report_recalled(file)) {
            self.acknowledge(recall);
        }
        // ORDER: before any other thread that is at this recall comes to the file again, and takes a lease that was granted since.
        answer.is_over.store(true, SeqCst);
        // ORDER: only now may the file be asked for anew, or the answer could be without what was just reported.
        drop((surrendered, answering));
        true
    }

    /// Reports what was written to a recalled file, for a while also when that fails; false when metadata does not know it in the end.
    /// Then the recall must not be answered, because others would see an old size: this session ends, and the size is asked of the chunks.
    fn report_recalled(&self, file: &File) -> bool {
        let give_up = self.env.clock.monotonic() + REPORT_MAX;
        loop {
            match self.report_written(file) {
                // Of a file that is gone nothing is left to be known.
                Ok(()) | Err(Errno::ESTALE) => return true,
                // Something may be deleted meanwhile.
                Err(Errno::ENOSPC) if self.env.clock.monotonic() < give_up => {
                    file.changed.wait_for(&mut file.state.lock(), REPORT_PAUSE);
                }
                Err(errno) => {
                    tracing::error!(
                        %errno, inode = %file.inode,
                        "could not report size and times of a recalled file; this session will be ended"
                    );
                    return false;
                }
            }
        }
    }

    fn acknowledge(&self, recall: &Recall) {
        if recall.id == 0 {
            // No service waits for it: it is of this client's own making.
            return;
        }
        // ORDER: in this session or in none. Whoever waited here for the next one might be the one who is to hear that this one has ended.
        let done = MetaRequest::RecallDone { inode: recall.inode, id: recall.id };
        match self.call_in(self.session(), done) {
            Ok(MetaReply::Done) => {}
            Err(Errno::ENOTCONN) if self.comes_back => {}
            Ok(other) => drop(unexpected(&other)),
            Err(errno) => tracing::warn!(%errno, inode = %recall.inode, "could not acknowledge a recall"),
        }
    }

    /// Ends the leases at an instant at which nothing is under way and the kernel caches nothing; reads and writes that begin later wait
    /// for the end of what is returned. Nothing when another thread has done it, or what is under way does not end: the lease is not given back then, because a write that
    /// ended later would be over what somebody else has written; the service has ended this session before.
    fn surrender<'a>(&self, file: &'a File, answer: &Answer) -> Option<Drained<'a>> {
        let (recall, is_over) = (&answer.recall, || answer.is_over.load(SeqCst));
        let leases = recall.leases;
        // Under SHARE nothing is cached, and no page is to be waited for.
        let kernel = self.kernel.get().filter(|_| leases.meets(LeaseSet::PAGES));
        let give_up = self.env.clock.monotonic().saturating_add(UNDER_WAY_MAX);
        // Each turn drops what was read during the one before, so turns get shorter. LIMIT: past its bound the service evicts the session.
        loop {
            // ORDER: of a write that comes from now on it is not known which page is left, and it counts as one more.
            let through = file.state.lock().through.numbers;
            if let Some(kernel) = kernel {
                self.settle_last_pages(&**kernel, file, is_over);
            }
            let (begun, pages_begun) = {
                let state = file.state.lock();
                (state.begun, state.pages.begun)
            };
            if is_over() {
                return None;
            }
            if let Some(kernel) = kernel {
                self.drop_content_around(&**kernel, file);
            }
            let mut state = file.state.lock();
            while state.in_flight > 0 || state.is_draining {
                // What is under way ends without waiting for this recall.
                if file.wait(&mut state).is_err() && self.env.clock.monotonic() >= give_up {
                    tracing::error!(inode = %file.inode, "a read or write under way does not end; its lease cannot be given back");
                    return None;
                }
            }
            if is_over() {
                return None;
            }
            if state.begun == begun && state.through.numbers == through || kernel.is_none() {
                // ORDER: the lease ends here, under the lock, before the acknowledgement; later reads and writes ask again, and a grant on its
                // way to this file is void.
                self.note_recall_floor(recall);
                state.leases = state.leases.without(leases);
                state.lease_epoch += 1;
                if kernel.is_some() {
                    state.through.note_dropped(self.env.clock.monotonic());
                }
                // A request for pages may have been let in and not begun to read yet.
                if leases.meets(LeaseSet::PAGES) && state.pages.begun == pages_begun {
                    state.pages.note_dropped(Stretch::ALL);
                }
                state.pages.grown = None;
                // From now on somebody else may write the file, and have that made durable.
                state.is_unpromised = false;
                if leases.has(LeaseSet::WRITE) {
                    state.leases = state.leases.without(LeaseSet::READ);
                }
                return Some(file.drained(&mut state));
            }
        }
    }
}
