//! Calls to the metadata service on behalf of a user.

use crate::ahead::{Touched, changes_something};
use crate::client::Client;
use ashlar_rpc::Caller;
use ashlar_types::message::{Addressee, LeaseSet, MetaReply, MetaRequest};
use ashlar_types::{Credentials, Errno, InodeId, OpId, SessionId};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// For how long a call that finds no room waits for closes, which may make some.
const ROOM_WAIT: Duration = Duration::from_secs(1);

/// On whose behalf a call is made.
#[derive(Clone, Debug)]
pub struct Who {
    /// The caller, with what the request itself told.
    pub creds: Credentials,
    /// The calling thread, to find out the rest if it matters; 0 if unknown.
    pub pid: u32,
    /// Whether it is a write while which recalls are answered ([`crate::WriteFlags::yields`]).
    pub yields: bool,
}

impl Who {
    /// The file system itself, with every right.
    pub fn system() -> Who {
        Who { creds: Credentials::root(), pid: 0, yields: false }
    }

    /// The same, in a write while which recalls are answered, if it `yields`.
    pub(crate) fn yielding(self, yields: bool) -> Who {
        Who { yields, ..self }
    }
}

/// Finds the supplementary groups and capabilities of a running thread.
pub trait ResolveCredentials: Send + Sync {
    /// The whole credentials of `pid`, given what is known; `None` when the process is gone.
    fn resolve(&self, pid: u32, known: &Credentials) -> Option<Credentials>;
    /// Whether thread `pid` is in a call that tells it no more of the directories on its way than that it may pass: it opens, makes, moves or removes
    /// something. False as well where that cannot be known.
    fn is_passing(&self, _pid: u32) -> bool {
        false
    }
}

impl Client {
    /// One call. When it is refused for lack of rights and the caller's groups were not known, they are looked up and the call is
    /// made once more: nearly all calls succeed by owner, primary group or mode, and a look into /proc costs as much as the call.
    pub(crate) fn call(&self, who: &Who, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        let first = self.call_once((&who.creds, who.yields), request.clone(), None);
        match first {
            Err(Errno::EACCES | Errno::EPERM) if !who.creds.complete && who.pid != 0 => {
                match self.credentials.resolve(who.pid, &who.creds) {
                    Some(whole) => self.call_once((&whole, who.yields), request, None),
                    None => first,
                }
            }
            _ => first,
        }
    }

    /// One call by the file system itself about what was done in `session`. Should that have ended, it is made in the next one, without what only counts in that one.
    ///
    /// # Errors
    /// As of the call.
    pub(crate) fn call_of(&self, session: SessionId, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        self.call_once((&Credentials::root(), false), request, Some(session))
    }

    fn call_once(
        &self,
        by: (&Credentials, bool),
        request: MetaRequest<'_>,
        mut first: Option<SessionId>,
    ) -> Result<MetaReply, Errno> {
        if !self.comes_back {
            return self.call_as(self.session(), by, request);
        }
        let (mut request, mut has_made_room) = (request, false);
        // LIMIT: a turn per session that this client has had, and one more.
        loop {
            let session = first.take().unwrap_or_else(|| self.session());
            self.wait_until_told(&request)?;
            match self.call_as(session, by, request.clone()) {
                Err(Errno::ENOTCONN) if self.has_come_back(session) => request = without_session(request)?,
                // A file that was removed takes room until it is closed, and closes are told a moment later.
                Err(Errno::EDQUOT | Errno::ENOSPC)
                    if !has_made_room
                        && !matches!(request, MetaRequest::Closes { .. })
                        && self.closes.wait(&*self.env.clock, ROOM_WAIT) =>
                {
                    has_made_room = true;
                }
                other => return other,
            }
        }
    }

    /// A call by the file system itself in a session that need not be the current one.
    ///
    /// # Errors
    /// As of the call.
    pub(crate) fn call_in(&self, session: SessionId, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        self.call_as(session, (&Credentials::root(), false), request)
    }

    fn call_as(
        &self,
        session: SessionId,
        (creds, yields): (&Credentials, bool),
        mut request: MetaRequest<'_>,
    ) -> Result<MetaReply, Errno> {
        if request.places()[0].is_some() {
            return self.call_with_names(session, creds, request);
        }
        let changed = changed_by(&request);
        changed.into_iter().for_each(|inode| self.split_directories.note_change(inode));
        let reply = self.call_directly_by(session, (creds, yields), request);
        changed.into_iter().for_each(|inode| self.split_directories.note_change(inode));
        reply
    }

    /// A call to exactly what it names.
    pub(crate) fn call_directly(
        &self,
        session: SessionId,
        creds: &Credentials,
        request: MetaRequest<'_>,
    ) -> Result<MetaReply, Errno> {
        self.call_directly_by(session, (creds, false), request)
    }

    /// As [`Client::call_directly`]; whether recalls are answered meanwhile as well.
    fn call_directly_by(
        &self,
        session: SessionId,
        (creds, yields): (&Credentials, bool),
        request: MetaRequest<'_>,
    ) -> Result<MetaReply, Errno> {
        let sequence = self.sequence.fetch_add(1, Relaxed);
        let before = self.era();
        let (touched, turn) = (Touched::by(&request), self.ahead.begin(&request, before));
        let is_question = matches!(request, MetaRequest::Getattr { .. });
        let directory = OnceLock::new();
        let asks_for_directory = self.ahead.is_used() && Touched::asks_for_directory(&request);
        let directory_to = asks_for_directory.then_some(&directory);
        let caller =
            Caller { yields, directory: directory_to, ..Caller::new(OpId { session, sequence }, creds) };
        let changing = self.changing(session, &request);
        let reply = self.meta.call(caller, request);
        if let (Some(changing), Ok(reply)) = (&changing, &reply) {
            self.note_changed(changing, reply);
        }
        let kept = reply.as_ref().ok().filter(|_| !is_question && self.era() == before);
        self.ahead.end(turn, touched, (kept, directory.into_inner()), || self.env.clock.monotonic());
        reply.map(|mut reply| {
            // ORDER: noted, then looked. Either whoever drops what the kernel has finds it there, or the answer is seen to be from before.
            self.attributes_told.note(&reply, &*self.env.clock);
            if self.era() != before {
                take_leases(&mut reply);
            }
            reply
        })
    }

    /// A call whose only good answer is `Done`.
    pub(crate) fn call_done(&self, who: &Who, request: MetaRequest<'_>) -> Result<(), Errno> {
        match self.call(who, request)? {
            MetaReply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

/// The inode that a call may change, not by a name in it: nobody takes what this session was told of it back then.
fn changed_by(request: &MetaRequest<'_>) -> Option<InodeId> {
    match request.addressee() {
        Addressee::Home(inode) if changes_something(request) => Some(inode),
        _ => None,
    }
}

/// A call of a session that has ended, as one of the session after it. It was not carried out.
fn without_session(mut request: MetaRequest<'_>) -> Result<MetaRequest<'_>, Errno> {
    match &mut request {
        // What the targets have was asked of them when the session ended; others may have cut the file since.
        MetaRequest::CommitWrite { size_at_least, blocks_delta, .. } => {
            (*size_at_least, *blocks_delta) = (0, 0)
        }
        // Of that session.
        MetaRequest::Reclaim { .. } => return Err(Errno::ENOTCONN),
        _ => {}
    }
    Ok(request)
}

/// What a service that has ended meanwhile granted is not held.
fn take_leases(reply: &mut MetaReply) {
    match reply {
        MetaReply::Attr { leases, .. }
        | MetaReply::NoEntry { leases }
        | MetaReply::Granted { leases, .. } => {
            *leases = LeaseSet::NONE;
        }
        MetaReply::Opened { open, .. } => (open.leases, open.kept_read) = (LeaseSet::NONE, false),
        MetaReply::Entries { entries, .. } => {
            entries.iter_mut().for_each(|entry| entry.leases = LeaseSet::NONE);
        }
        _ => {}
    }
}

/// An answer of the wrong kind: the services and the client disagree about the protocol.
pub(crate) fn unexpected(reply: &MetaReply) -> Errno {
    tracing::error!(?reply, "metadata service gave an answer of the wrong kind");
    Errno::EPROTO
}
