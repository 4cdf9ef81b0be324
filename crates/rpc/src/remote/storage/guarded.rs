//! Calls of a client, which storage servers carry out under a capability.
//!
//! In the common case the capability came with the answer that told where the content is, the first call of a file to a server shows it, and later ones
//! name the session. Whatever is refused is asked for anew, within the time there is: the server was started again, has new keys, had too much to
//! remember, or the capability has run out.

use super::{Asking, RemoteMeta, RemoteStorage};
use crate::net::NetError;
use crate::remote::wallet::Wanted;
use crate::wire::{Under, needed};
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{Errno, SessionId};
use std::time::{Duration, Instant};

/// Between two tries of something that was refused.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// For how long a read waits for another session when its own has ended.
const COME_BACK_MAX: Duration = Duration::from_secs(60);

impl RemoteStorage {
    /// Carries out a call of `session`, or of whichever session there is.
    pub(super) fn exchange_guarded(
        &self,
        meta: &RemoteMeta,
        session: Option<SessionId>,
        request: &StorageRequest,
        asking: &mut Asking<'_>,
        deadline: Instant,
    ) -> Result<StorageReply, NetError> {
        let Some((inode, generation, rights)) = needed(request) else {
            return self.exchange((self.server_of(request)?, &Under::Role), request, asking, deadline);
        };
        let (mut refused, mut pause) = (None, PAUSE_MIN);
        let come_back = deadline.min(Instant::now() + COME_BACK_MAX);
        loop {
            // Looked up each time: a target may have moved.
            let server = self.server_of(request)?;
            let current = meta.current_session();
            let Some(owner) = current.filter(|current| session.is_none_or(|session| session == *current))
            else {
                if session.is_some() || Instant::now() >= come_back {
                    return Err(over(request));
                }
                wait(&mut pause);
                continue;
            };
            let wanted = Wanted { session: owner, inode, generation, rights, server };
            let shown = match meta.show(&wanted, refused, deadline) {
                Ok(shown) => shown,
                // Another session takes its place, and is not told of the file yet.
                Err(NetError::Errno(Errno::ENOTCONN | Errno::EBADF))
                    if session.is_none() && Instant::now() < come_back =>
                {
                    wait(&mut pause);
                    continue;
                }
                Err(NetError::Errno(Errno::ENOTCONN | Errno::EBADF)) => return Err(over(request)),
                // A read begins anew, and is told where the content is now.
                Err(NetError::Errno(Errno::ESTALE)) if matches!(request, StorageRequest::Read { .. }) => {
                    return Err(NetError::Errno(Errno::EAGAIN));
                }
                Err(other) => return Err(other),
            };
            match self.exchange((server, &shown.under), request, asking, deadline) {
                Err(NetError::Errno(Errno::EACCES)) if Instant::now() < deadline => {
                    if !meta.note_refused(&wanted, &shown) {
                        refused = Some(shown.sealed);
                        wait(&mut pause);
                    }
                }
                Ok(reply) => {
                    meta.note_seen(&wanted, &shown);
                    return Ok(reply);
                }
                // It got as far as the chunk.
                Err(NetError::Errno(errno)) if errno != Errno::EROFS && errno != Errno::EACCES => {
                    meta.note_seen(&wanted, &shown);
                    return Err(NetError::Errno(errno));
                }
                Err(other) => return Err(other),
            }
        }
    }
}

fn over(request: &StorageRequest) -> NetError {
    tracing::error!(target = %request.target(), "a session ended under something that it was doing with a file; that is not done");
    NetError::Errno(Errno::EIO)
}

fn wait(pause: &mut Duration) {
    std::thread::sleep(*pause);
    *pause = (*pause * 2).min(PAUSE_MAX);
}
