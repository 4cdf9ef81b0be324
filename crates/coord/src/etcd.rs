//! The value in etcd, for a cluster ([ADR 0011](../../../docs/adr/0011-etcd-through-its-json-gateway.md)).
//!
//! One key holds a header and the value (`etcd/stored.rs`). The revision is a number of our own in that header, not etcd's: it stays
//! the same when the key is copied into another etcd, and an older snapshot of etcd shows as a lower number. A change is one
//! transaction of etcd's, which compares how etcd counted the key's changes when it was read, within the same call. No lock, lease or
//! watch is used: a reader may get an old value, from a member that was paused, and only the transaction decides.
//!
//! When the answer to a transaction is lost, it is not known whether it was carried out. The key is read again: if the revision we meant
//! to make was written with our tag, it was; with another one, it was not, and never will be, because what it compares is past.
//! Otherwise it is sent again, for what it compares lets only one of the two through.

mod failure;
mod gateway;
mod membership;
mod messages;
mod stored;
mod tls;

pub use membership::{EtcdMember, EtcdMembership};

use crate::{Coord, CoordError};
use ashlar_env::Entropy;
use failure::Failure;
use gateway::{Deadline, Gateway};
use messages::{KeyValue, RANGE, RangeResponse, STATUS, StatusResponse, TXN, TxnResponse};
use std::fmt;
use std::io;
use std::sync::Arc;
use stored::{Stored, Tag};

/// Largest value, bytes.
// LIMIT: etcd takes requests of 1.5 MiB unless told otherwise, and wants to stay small; our header and the key need 2 KiB.
pub const VALUE_BYTES_MAX: usize = 1 << 20;
/// Longest wait for one answer of one member, seconds.
// LIMIT: longer than an election with etcd's defaults (1 s and a bit), so that a healthy member's answer is waited for.
pub const ATTEMPT_SECONDS_MAX: u64 = 2;
/// Longest duration of a call of [`EtcdCoord`], seconds.
// LIMIT: each of three members may fail to answer once, and one may elect a leader; then somebody waits for us.
pub const CALL_SECONDS_MAX: u64 = 10;
/// Longest key, bytes.
const KEY_BYTES_MAX: usize = 512;

/// A certificate for ourselves, and its private key.
#[derive(Clone)]
pub struct EtcdIdentity {
    /// The certificate, and those between it and the authority, in PEM.
    pub certificate_pem: String,
    /// The private key in PEM, not encrypted.
    pub key_pem: String,
}

impl fmt::Debug for EtcdIdentity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("EtcdIdentity(..)")
    }
}

/// How to speak TLS with etcd.
#[derive(Clone)]
pub struct EtcdTls {
    /// Certificates of the authorities that etcd's certificate may come from, in PEM. No others are trusted.
    pub authority_pem: String,
    /// For an etcd that wants to know its clients (`--client-cert-auth`).
    pub identity: Option<EtcdIdentity>,
}

impl fmt::Debug for EtcdTls {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = out.debug_struct("EtcdTls");
        out.field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// Where the value is.
#[derive(Clone, Debug)]
pub struct EtcdSettings {
    /// The members' client URLs, such as `https://host:2379`.
    pub endpoints: Vec<String>,
    /// The key, such as `/ashlar/<cluster>/state`; nobody else may write it.
    pub key: String,
    /// For endpoints that are https: all are, or none.
    pub tls: Option<EtcdTls>,
}

/// What a member says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its version, such as `3.5.28`.
    pub version: String,
    /// Whether it knows of a leader.
    pub has_leader: bool,
    /// Size of its database, bytes.
    pub database_bytes: u64,
}

impl MemberStatus {
    /// Whether this version may answer with an old value after its process was paused (etcd issue 20418). That cannot
    /// hurt a change; it is a reason to upgrade.
    pub fn may_read_stale(&self) -> bool {
        let mut numbers = self.version.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or_default());
        let mut next = || numbers.next().unwrap_or_default();
        match (next(), next(), next()) {
            (3, 4, patch) => (20..42).contains(&patch),
            (3, 5, patch) => patch < 28,
            (3, 6, patch) => patch < 9,
            _ => false,
        }
    }
}

/// See the module.
pub struct EtcdCoord {
    gateway: Arc<Gateway>,
    key: String,
    entropy: Arc<dyn Entropy>,
}

impl fmt::Debug for EtcdCoord {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = out.debug_struct("EtcdCoord");
        out.field("endpoints", &&*self.gateway.endpoints()).field("key", &self.key).finish_non_exhaustive()
    }
}

/// The key as it was read.
struct Seen {
    /// As etcd counts; `None` if the key is absent.
    mod_revision: Option<u64>,
    stored: Option<Stored>,
}

impl Seen {
    fn revision(&self) -> u64 {
        self.stored.as_ref().map_or(0, |stored| stored.revision)
    }
}

/// What the key as it was read means for a change.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// It has not been made; it may be.
    Open,
    /// It has been made, by us.
    Made,
    /// Another one was made instead.
    Conflict,
    /// It may have been made, and what was read does not tell.
    Unknown(&'static str),
}

/// What `seen` means for a change from `expected` under `tag`, of which `was_sent` tells whether it may have been made already.
fn judge(seen: &Seen, expected: u64, tag: &Tag, was_sent: bool) -> Verdict {
    let found = seen.revision();
    if found == expected {
        return Verdict::Open;
    }
    if !was_sent {
        return Verdict::Conflict;
    }
    if found < expected {
        return Verdict::Unknown(
            "etcd shows an older state: from a member that was paused, or from a snapshot",
        );
    }
    match seen.stored.as_ref().and_then(|stored| stored.writer_of(expected + 1)) {
        Some(writer) if writer == tag => Verdict::Made,
        Some(_) => Verdict::Conflict,
        None => Verdict::Unknown("others have changed it too often since"),
    }
}

impl EtcdCoord {
    /// The value in the etcd of `settings`. Nothing is sent yet.
    ///
    /// The random numbers of `entropy` tell the writers apart: two that draw the same may each take the other's change for its own.
    ///
    /// # Errors
    /// [`CoordError::Settings`] when endpoints, key or certificates cannot be used.
    pub fn new(settings: &EtcdSettings, entropy: Arc<dyn Entropy>) -> Result<EtcdCoord, CoordError> {
        check_key(&settings.key)?;
        Ok(EtcdCoord { gateway: Arc::new(Gateway::new(settings)?), key: settings.key.clone(), entropy })
    }

    /// Another value in the same etcd, under `key`. Both ask the same members ([`EtcdMembership::set_endpoints`]).
    ///
    /// # Errors
    /// [`CoordError::Settings`] when the key cannot be used.
    pub fn at(&self, key: &str) -> Result<EtcdCoord, CoordError> {
        check_key(key)?;
        let (gateway, entropy) = (self.gateway.clone(), self.entropy.clone());
        Ok(EtcdCoord { gateway, key: key.to_owned(), entropy })
    }

    /// The members that this etcd consists of.
    pub fn membership(&self) -> EtcdMembership {
        EtcdMembership::new(self.gateway.clone())
    }

    /// What each member says of itself, with its endpoint, or why it says nothing. Takes two seconds for each that does not answer.
    pub fn members(&self) -> Vec<(String, Result<MemberStatus, CoordError>)> {
        let status = |endpoint: &str| {
            let answer: Result<StatusResponse, Failure> = self.gateway.ask(endpoint, STATUS, "{}");
            let answer = answer.map_err(|failure| gave_up("asking for the status", &[failure]))?;
            let StatusResponse { version, db_size, leader } = answer;
            Ok(MemberStatus { version, has_leader: leader != 0, database_bytes: db_size })
        };
        let endpoints = self.gateway.endpoints();
        endpoints.iter().map(|endpoint| (endpoint.clone(), status(endpoint))).collect()
    }

    fn seen(&self, found: Vec<KeyValue>) -> Result<Seen, CoordError> {
        let Some(found) = found.into_iter().next() else {
            return Ok(Seen { mod_revision: None, stored: None });
        };
        let place = format!("etcd key {} at {}", self.key, self.gateway.endpoints().join(", "));
        let stored = Stored::decode(&place, &found.value).map_err(|what| CoordError::Corrupt { what })?;
        Ok(Seen { mod_revision: Some(found.mod_revision), stored: Some(stored) })
    }

    /// Reads the key from any member; `Err` inside tells that none answered.
    fn read(&self, deadline: &Deadline) -> Result<Result<Seen, Vec<Failure>>, CoordError> {
        let request = messages::range(&self.key).map_err(unencodable)?;
        match self.gateway.ask_any::<RangeResponse>(RANGE, &request, deadline) {
            Ok(answer) => self.seen(answer.kvs).map(Ok),
            Err(failures) => Ok(Err(failures)),
        }
    }

    /// Sends the transaction to one member, once: `Ok(None)` if it changed the key, and the key if it was not as `seen`.
    fn put(&self, seen: &Seen, stored: &Stored) -> Result<Result<Option<Seen>, Failure>, CoordError> {
        let request = messages::txn(&self.key, seen.mod_revision, &stored.encode()).map_err(unencodable)?;
        match self.gateway.ask_once::<TxnResponse>(TXN, &request) {
            Ok(answer) if answer.succeeded => Ok(Ok(None)),
            Ok(answer) => match answer.found() {
                Some(found) => Ok(Ok(Some(self.seen(found)?))),
                None => {
                    let place = self.gateway.endpoints().join(", ");
                    Ok(Err(Failure::not_etcd(&place, &"a transaction without a result")))
                }
            },
            Err(failure) => Ok(Err(failure)),
        }
    }
}

impl Coord for EtcdCoord {
    fn is_shared(&self) -> bool {
        true
    }

    fn load(&self) -> Result<(u64, Vec<u8>), CoordError> {
        let seen = self
            .read(&Deadline::of_call())?
            .map_err(|failures| gave_up("reading the cluster state", &failures))?;
        Ok(seen.stored.map_or((0, Vec::new()), |stored| (stored.revision, stored.value)))
    }

    fn compare_and_set(&self, expected: u64, value: &[u8]) -> Result<u64, CoordError> {
        if value.len() > VALUE_BYTES_MAX {
            return Err(too_large(value.len()));
        }
        let revision = expected.checked_add(1).ok_or_else(|| CoordError::Settings {
            what: "the cluster state has had as many revisions as there are numbers".to_owned(),
        })?;
        let deadline = Deadline::of_call();
        let mut tag: Tag = Default::default();
        self.entropy.fill(&mut tag);
        // Whether a transaction may have been carried out without our knowing.
        let mut was_sent = false;
        let mut known = None;
        let mut last_failures = Vec::new();
        loop {
            let gave_up = |failures: &[Failure]| gave_up(changing(was_sent), failures);
            let seen = match known.take() {
                Some(seen) => seen,
                None => match self.read(&deadline)? {
                    Ok(seen) => seen,
                    Err(failures) if failures.is_empty() => return Err(gave_up(&last_failures)),
                    Err(failures) => return Err(gave_up(&failures)),
                },
            };
            match judge(&seen, expected, &tag, was_sent) {
                Verdict::Made => return Ok(revision),
                Verdict::Conflict => return Err(CoordError::Conflict { expected, found: seen.revision() }),
                Verdict::Unknown(why) if seen.revision() > expected || !deadline.has_time_for(1) => {
                    return Err(CoordError::Io {
                        what: changing(was_sent).to_owned(),
                        source: io::Error::other(why),
                    });
                }
                Verdict::Unknown(_) => {
                    deadline.pause();
                    continue;
                }
                Verdict::Open => {}
            }
            // Time is kept for reading what became of it.
            if !deadline.has_time_for(2) {
                return Err(gave_up(&last_failures));
            }
            match self.put(&seen, &Stored::after(seen.stored.as_ref(), revision, tag, value))? {
                Ok(None) => return Ok(revision),
                // What it found is as true as a read.
                Ok(found) => known = found,
                Err(failure) => {
                    was_sent |= !failure.had_no_effect;
                    if failure.is_final {
                        return Err(self::gave_up(changing(was_sent), &[failure]));
                    }
                    last_failures = vec![failure];
                    deadline.pause();
                }
            }
        }
    }
}

fn check_key(key: &str) -> Result<(), CoordError> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        let what = format!("the etcd key has {} bytes: give one of 1 to {KEY_BYTES_MAX}", key.len());
        return Err(CoordError::Settings { what });
    }
    Ok(())
}

/// What was being done, for the error of a change that `was_sent` and may have been made, or was not.
fn changing(was_sent: bool) -> &'static str {
    match was_sent {
        true => "changing the cluster state (it is not known whether it was changed: read it again)",
        false => "changing the cluster state",
    }
}

fn too_large(bytes: usize) -> CoordError {
    CoordError::TooLarge {
        what: format!(
            "the cluster state would have {bytes} bytes, and in etcd it may have {VALUE_BYTES_MAX}: etcd takes requests of at most \
             --max-request-bytes, by default 1.5 MiB. Raising that does not help: the limit is ours as well; use fewer targets or chains"
        ),
    }
}

/// The error of a call for which no member did what was asked.
fn gave_up(what: &str, failures: &[Failure]) -> CoordError {
    let kind = failures.last().map_or(io::ErrorKind::TimedOut, |failure| failure.kind);
    let texts: Vec<String> = failures.iter().map(ToString::to_string).collect();
    let text =
        if texts.is_empty() { format!("no success within {CALL_SECONDS_MAX} s") } else { texts.join("; ") };
    CoordError::Io { what: what.to_owned(), source: io::Error::new(kind, text) }
}

fn unencodable(error: serde_json::Error) -> CoordError {
    CoordError::Io { what: "writing a request to etcd".to_owned(), source: error.into() }
}

#[cfg(test)]
mod tests {
    use super::stored::TAGS_MAX;
    use super::*;

    const OURS: Tag = [1; 16];

    fn seen(revision: u64, tags: Vec<Tag>) -> Seen {
        Seen { mod_revision: Some(9), stored: Some(Stored { revision, tags, value: Vec::new() }) }
    }

    #[test]
    fn without_a_lost_answer_only_the_number_counts() {
        assert_eq!(judge(&seen(4, vec![[2; 16]]), 4, &OURS, false), Verdict::Open);
        assert_eq!(judge(&seen(5, vec![[2; 16]]), 4, &OURS, false), Verdict::Conflict);
        assert_eq!(judge(&seen(3, vec![[2; 16]]), 4, &OURS, false), Verdict::Conflict);
        assert_eq!(judge(&Seen { mod_revision: None, stored: None }, 0, &OURS, false), Verdict::Open);
    }

    #[test]
    fn after_a_lost_answer_the_writer_of_that_revision_counts() {
        assert_eq!(judge(&seen(4, vec![[2; 16]]), 4, &OURS, true), Verdict::Open);
        assert_eq!(judge(&seen(5, vec![OURS, [2; 16]]), 4, &OURS, true), Verdict::Made);
        assert_eq!(judge(&seen(5, vec![[3; 16], [2; 16]]), 4, &OURS, true), Verdict::Conflict);
        assert_eq!(judge(&seen(7, vec![[4; 16], [3; 16], OURS]), 4, &OURS, true), Verdict::Made);
        assert_eq!(judge(&seen(7, vec![OURS, OURS, [3; 16]]), 4, &OURS, true), Verdict::Conflict);
        assert!(matches!(judge(&seen(3, vec![OURS]), 4, &OURS, true), Verdict::Unknown(_)));
        assert!(matches!(
            judge(&seen(5 + TAGS_MAX as u64, vec![OURS; TAGS_MAX]), 4, &OURS, true),
            Verdict::Unknown(_)
        ));
    }

    #[test]
    fn versions_that_may_read_stale_are_known() {
        let of = |version: &str| {
            MemberStatus { version: version.to_owned(), has_leader: true, database_bytes: 0 }.may_read_stale()
        };
        for version in ["3.4.20", "3.4.41", "3.5.0", "3.5.27", "3.6.0", "3.6.8"] {
            assert!(of(version), "{version}");
        }
        for version in ["3.4.19", "3.4.42", "3.5.28", "3.6.9", "3.7.0", ""] {
            assert!(!of(version), "{version}");
        }
    }
}
