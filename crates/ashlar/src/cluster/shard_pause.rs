//! Whether shards may be moved for now: metadata servers ask a manager.

use super::member::Member;
use ashlar_meta::MetaService;
use ashlar_rpc::net::NetError;
use ashlar_rpc::remote::ManagerCalls;
use ashlar_types::message::{ManagerReply, ManagerRequest};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How old an answer may be while there are shards to send.
pub const ASK_EVERY: Duration = Duration::from_millis(500);
/// The same while there are none: a server that joins asks for some.
const ASK_SELDOM: Duration = Duration::from_secs(2);
/// For how long a manager is asked.
const ASK_MAX: Duration = Duration::from_secs(2);

/// See the module.
pub struct ShardPause {
    managers: Arc<ManagerCalls>,
    meta: Arc<MetaService>,
    /// Held by who asks, so that others go by what he hears.
    asked: Mutex<Option<Instant>>,
}

impl ShardPause {
    /// For `meta`, which sends shards.
    pub fn new(member: &Member, meta: &Arc<MetaService>) -> ShardPause {
        ShardPause { managers: member.managers.clone(), meta: meta.clone(), asked: Mutex::default() }
    }

    /// Asks, if the last answer is not a new one. Without an answer it stays as it was.
    pub fn look(&self) {
        let mut asked = self.asked.lock();
        let age_max = if self.meta.has_moves() { ASK_EVERY } else { ASK_SELDOM };
        if asked.is_some_and(|at| at.elapsed() < age_max) {
            return;
        }
        match self.managers.call(&ManagerRequest::ShardMoves, Instant::now() + ASK_MAX) {
            Ok(ManagerReply::ShardMoves { is_paused }) => self.meta.pause_moves(is_paused),
            // One of an older version knows no pause.
            Ok(_) | Err(NetError::Refused(_)) => self.meta.pause_moves(false),
            Err(error) => tracing::debug!(%error, "no manager tells whether shards are to be moved"),
        }
        *asked = Some(Instant::now());
    }
}
