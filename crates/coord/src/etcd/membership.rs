//! Which members an etcd consists of, and changing that: for an etcd that was set up for a file system alone.

use super::failure::Failure;
use super::gateway::{Deadline, Gateway};
use super::gave_up;
use crate::CoordError;
use serde::{Deserialize, Deserializer};
use std::sync::Arc;

const LIST: &str = "/v3/cluster/member/list";
const ADD: &str = "/v3/cluster/member/add";
const REMOVE: &str = "/v3/cluster/member/remove";
const PROMOTE: &str = "/v3/cluster/member/promote";

/// A member, as the others know it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct EtcdMember {
    /// Its number.
    #[serde(rename = "ID", deserialize_with = "number")]
    pub id: u64,
    /// Its name; empty until it was started for the first time.
    #[serde(default)]
    pub name: String,
    /// Where other members reach it.
    #[serde(default, rename = "peerURLs")]
    pub peer_urls: Vec<String>,
    /// Where clients reach it; none until it was started for the first time.
    #[serde(default, rename = "clientURLs")]
    pub client_urls: Vec<String>,
    /// It follows, and does not count for decisions yet.
    #[serde(default, rename = "isLearner")]
    pub is_learner: bool,
}

#[derive(Deserialize)]
struct Members {
    members: Vec<EtcdMember>,
}

#[derive(Deserialize)]
struct Added {
    member: EtcdMember,
    members: Vec<EtcdMember>,
}

#[derive(Deserialize)]
struct Done {}

fn number<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}

/// See the module.
#[derive(Clone)]
pub struct EtcdMembership {
    gateway: Arc<Gateway>,
}

impl EtcdMembership {
    pub(super) fn new(gateway: Arc<Gateway>) -> EtcdMembership {
        EtcdMembership { gateway }
    }

    /// All members.
    ///
    /// # Errors
    /// [`CoordError::Io`] when none answers.
    pub fn list(&self) -> Result<Vec<EtcdMember>, CoordError> {
        let answer: Result<Members, Vec<Failure>> = self.gateway.ask_any(LIST, "{}", &Deadline::of_call());
        answer
            .map(|members| members.members)
            .map_err(|failures| gave_up("asking which members etcd has", &failures))
    }

    /// Adds a member that others will reach at `peer_url`, as one that follows until it is promoted; tells it, and all. One that was
    /// added before and never started is told again.
    ///
    /// # Errors
    /// [`CoordError::Io`] with etcd's words.
    pub fn add(&self, peer_url: &str) -> Result<(EtcdMember, Vec<EtcdMember>), CoordError> {
        let there = self.list()?;
        let is_it = |member: &&EtcdMember| {
            member.name.is_empty() && member.peer_urls.iter().any(|known| known == peer_url)
        };
        if let Some(known) = there.iter().find(is_it).cloned() {
            return Ok((known, there));
        }
        let body = serde_json::json!({ "peerURLs": [peer_url], "isLearner": true }).to_string();
        let added: Added = self.change("adding a member of etcd", ADD, &body)?;
        Ok((added.member, added.members))
    }

    /// Has a member that follows count, once it has what the others have.
    ///
    /// # Errors
    /// [`CoordError::Io`] with etcd's words, also when it has not yet.
    pub fn promote(&self, id: u64) -> Result<(), CoordError> {
        let body = serde_json::json!({ "ID": id.to_string() }).to_string();
        self.change::<Done>("promoting a member of etcd", PROMOTE, &body).map(drop)
    }

    /// Takes a member out.
    ///
    /// # Errors
    /// [`CoordError::Io`] with etcd's words, also when too few others would be left.
    pub fn remove(&self, id: u64) -> Result<(), CoordError> {
        let body = serde_json::json!({ "ID": id.to_string() }).to_string();
        self.change::<Done>("removing a member of etcd", REMOVE, &body).map(drop)
    }

    /// Has these members be asked from now on, by this and by every value that was made from the same.
    ///
    /// # Errors
    /// [`CoordError::Settings`] when they cannot be used.
    pub fn set_endpoints(&self, endpoints: &[String]) -> Result<(), CoordError> {
        self.gateway.set_endpoints(endpoints)
    }

    fn change<T: serde::de::DeserializeOwned>(
        &self,
        what: &str,
        path: &str,
        body: &str,
    ) -> Result<T, CoordError> {
        // Once: a change whose answer was lost shows in the list, and whoever asked for it looks there.
        self.gateway.ask_once(path, body).map_err(|failure| gave_up(what, &[failure]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_was_never_started_has_neither_a_name_nor_clients() {
        let text = r#"{"header":{},"members":[{"ID":"9372538179322589801","peerURLs":["https://10.0.0.2:2380"],"isLearner":true}]}"#;
        let members: Members = serde_json::from_str(text).unwrap();
        let member = &members.members[0];
        assert_eq!((member.id, member.is_learner), (9_372_538_179_322_589_801, true));
        assert!(member.name.is_empty() && member.client_urls.is_empty());
    }
}
