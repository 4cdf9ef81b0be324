//! What an administrator asks a metadata server.

use super::Routes;
use crate::net::{Call, NetError, Service};
use crate::wire::{MetaAnswer, MetaCall};
use ashlar_types::codec::{decode, encode};
use ashlar_types::{NodeId, Role};
use std::time::Instant;

impl Routes {
    /// The answer of the metadata server on `node`.
    ///
    /// Only for calls that may be carried out twice: to end a session twice is to end it once, and so it is with saying where a shard is to go.
    ///
    /// # Errors
    /// [`NetError`]; [`NetError::Refused`] for who is no administrator.
    pub(super) fn administer(
        &self,
        node: NodeId,
        call: &MetaCall<'_>,
        deadline: Instant,
    ) -> Result<MetaAnswer, NetError> {
        let call = Call {
            service: Service::Meta,
            head: &encode(call),
            payload: &[],
            is_once: false,
            may_repeat: true,
            is_urgent: false,
        };
        let answer = self.link(node, Role::Meta).call(&call, deadline)?;
        decode(answer.head(), "answer of metadata").map_err(|_| NetError::Malformed("an answer that is none"))
    }
}
