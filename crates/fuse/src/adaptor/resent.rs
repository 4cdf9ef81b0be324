//! Requests that the kernel sends once more because the process that had read them has ended. That one may have carried them out: then what they make is there,
//! and what they take away is gone.

use super::{Adaptor, identity};
use crate::errno::Errno;
use crate::reply::Entry;
use crate::request::Request;
use ashlar_client::Found;
use ashlar_types::{Errno as Refusal, InodeId, Name};

impl Adaptor {
    /// What came of making `name` in `parent`: if it was sent once more and is there, it was made before.
    pub(super) fn made(
        &self,
        request: &Request<'_>,
        (parent, name): (InodeId, Name<'_>),
        outcome: Result<Found, Refusal>,
    ) -> Result<Entry, Errno> {
        match outcome {
            Err(Refusal::EEXIST) if request.unique.is_resent() => {
                let found = self.client.lookup(&identity::who(request), parent, name)?;
                Ok(self.entry(&found.map_err(|_| Errno::EEXIST)?))
            }
            other => Ok(self.entry(&other?)),
        }
    }
}

/// What came of taking a name away: if it was sent once more and there is none, it was taken away before.
pub(super) fn taken_away<T: Default>(
    request: &Request<'_>,
    outcome: Result<T, Refusal>,
) -> Result<T, Refusal> {
    match outcome {
        Err(Refusal::ENOENT) if request.unique.is_resent() => Ok(T::default()),
        other => other,
    }
}
