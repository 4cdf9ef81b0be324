//! Which servers managers have not heard of for long: beside what the console finds when it asks them itself.

use super::{AWAY_AFTER, Watch};
use crate::object::away::Away;
use ashlar_types::message::{ManagerReply, ManagerRequest, ServerPresence};
use std::time::{Duration, Instant};

/// Time between two questions.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// LIMIT: for how long one may take.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// What a manager has told, and when.
#[derive(Default)]
pub(super) struct Presence(Option<(Instant, Vec<ServerPresence>)>);

impl Presence {
    /// Managers that have themselves been silent for long tell of nobody any more.
    fn away(&self) -> Away {
        match &self.0 {
            Some((heard, servers)) if heard.elapsed() <= AWAY_AFTER => {
                Away::among(servers, heard.elapsed().as_secs())
            }
            _ => Away::default(),
        }
    }
}

impl Watch {
    pub(super) fn follow_presence(&self) {
        loop {
            let deadline = Instant::now() + ANSWER_MAX;
            match self.cluster.managers.call(&ManagerRequest::Presence, deadline) {
                Ok(ManagerReply::Presence(servers)) => {
                    *self.presence.lock() = Presence(Some((Instant::now(), servers)));
                }
                Ok(_) => tracing::debug!("a manager gave an answer of the wrong kind"),
                Err(error) => {
                    tracing::debug!(%error, "no manager tells which servers are away; asking again")
                }
            }
            if !self.rest(Instant::now() + ASK_EVERY) {
                return;
            }
        }
    }

    /// Which servers are away, as managers have it.
    pub fn away(&self) -> Away {
        self.presence.lock().away()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ashlar_types::{NodeId, Role};

    #[test]
    fn what_a_manager_has_told_grows_older_and_is_forgotten() {
        let of = |node, is_away| ServerPresence {
            node: NodeId(node),
            role: Role::Meta,
            silent_ms: 12_400,
            is_away,
        };
        let servers = vec![of(1, true), of(2, false)];
        let told = |ago| Presence(Some((Instant::now().checked_sub(ago).unwrap(), servers.clone()))).away();
        assert_eq!(told(Duration::ZERO).seconds(NodeId(1), Role::Meta), Some(12));
        assert_eq!(told(Duration::from_secs(3)).seconds(NodeId(1), Role::Meta), Some(15));
        assert_eq!(told(Duration::from_secs(3)).seconds(NodeId(2), Role::Meta), None);
        assert_eq!(told(Duration::from_secs(3)).seconds(NodeId(1), Role::Storage), None);
        assert_eq!(told(AWAY_AFTER * 2), Away::default());
    }
}
