//! Which servers are away: a manager is asked.

use crate::cluster::Member;
use ashlar_console::object::away::Away;
use ashlar_types::message::{ManagerReply, ManagerRequest};
use std::time::{Duration, Instant};

/// LIMIT: for how long a manager is waited for: what the last map says is shown all the same.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// Asks a manager. One that does not tell knows of none.
pub fn ask(member: &Member) -> Away {
    match member.managers.call(&ManagerRequest::Presence, Instant::now() + ANSWER_MAX) {
        Ok(ManagerReply::Presence(servers)) => Away::among(&servers, 0),
        Ok(_) => Away::default(),
        Err(error) => {
            tracing::warn!(%error, "no manager tells which servers are away");
            Away::default()
        }
    }
}
