//! Copies of the directories of targets and metadata are not served: by the rules of [`crate::holders`], and by what was heard of those who serve.

use super::presence::AWAY_AFTER;
use super::{ManagerService, name, refused};
use crate::ManagerError;
use crate::holders::{self, Standing};
use crate::state::{ClusterState, MetadataRecord, StartRecord};
use ashlar_types::message::ManagerReply;
use ashlar_types::{EventKind, Holding, NodeId, PeerId, Role, Start, Timespec};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// For how long it is remembered what a server has said that has fallen silent, or stopped. Afterwards the state says as much of it.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);

/// Who serves what, as he said last; in memory. Locked for a moment, and never together with the state.
#[derive(Default)]
pub(super) struct Held {
    // LIMIT: as directories that were served within REMEMBERED_FOR.
    by_uuid: Mutex<BTreeMap<[u8; 16], Heard>>,
}

struct Heard {
    at: Instant,
    node: NodeId,
    found: Holding,
    /// He has said that he stops.
    has_ended: bool,
}

impl Heard {
    fn is_there(&self) -> bool {
        !self.has_ended && self.at.elapsed() < AWAY_AFTER
    }
}

/// A claim, see [`ashlar_types::message::ManagerRequest::ClaimStart`].
pub(super) struct Claim {
    pub(super) role: Role,
    pub(super) found: Holding,
    pub(super) tag: u64,
    pub(super) is_older_accepted: bool,
    pub(super) is_taking_over: bool,
}

/// Another one that serves a directory.
struct Other {
    node: NodeId,
    path: String,
    is: Serving,
}

/// What is known of another one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Serving {
    /// He has just said so.
    Said,
    /// He was given a start.
    About,
    /// Nothing was heard of him, but this manager cannot tell yet.
    Guessed,
}

/// A start that was given out.
struct Given {
    start: Start,
    /// The last one, of what is an older copy.
    older_than: Option<Start>,
    /// Whom it was taken from, and where that one has it.
    taken_over: Option<(String, String)>,
}

impl ManagerService {
    /// Gives the next start of a directory out.
    pub(super) fn claim_start(&self, peer: PeerId, claim: &Claim) -> Result<ManagerReply, ManagerError> {
        require(peer, claim.role, std::slice::from_ref(&claim.found))?;
        let Claim { role, found, .. } = claim;
        self.look_again(|| self.require_metadata(peer.node, *role, found), Result::is_err)??;
        let is_refusal = |outcome: &Result<Result<Given, _>, _>| matches!(outcome, Ok(Err(_)));
        let outcome = match self.look_again(|| self.give_start(peer.node, claim), is_refusal)? {
            // The server decides: it may serve as before, what it has served before.
            Err(ManagerError::Coord(error)) => return Ok(ManagerReply::StartUnknown(error.to_string())),
            other => other?,
        };
        let subject = self.manager.with_state(|state| self.subject(state, *role, found.uuid));
        let Given { start, older_than, taken_over } = match outcome {
            Ok(given) => given,
            Err((true, text)) => {
                self.note_once(peer.node, EventKind::CopyRefused, &subject, &text);
                return Err(refused(text));
            }
            Err((false, text)) => {
                let kind = if *role == Role::Storage {
                    EventKind::TargetClaimedTwice
                } else {
                    EventKind::CopyRefused
                };
                self.note_once(peer.node, kind, &subject, &text);
                return Ok(ManagerReply::StartTaken(text));
            }
        };
        if let Some(newest) = older_than {
            let text = format!("that of {} at {}, although there was {newest}", found.start, found.path);
            self.note_once(peer.node, EventKind::CopyAccepted, &subject, &text);
        }
        if let Some((node, path)) = taken_over {
            let text = format!("from {node}, where it was at {path}; it is at {} now", found.path);
            self.note_once(peer.node, EventKind::TakenOver, &subject, &text);
        }
        Ok(ManagerReply::StartClaimed { start, is_older: older_than.is_some() })
    }

    /// Gives a start out, or tells why not, and whether that is so for good.
    fn give_start(&self, node: NodeId, claim: &Claim) -> Result<Result<Given, (bool, String)>, ManagerError> {
        let Claim { role, found, tag, is_older_accepted, is_taking_over } = claim;
        self.manager.change(|state| {
            let known = state.starts.iter().find(|known| known.uuid == found.uuid);
            let standing = holders::standing(known, found.start);
            let what = self.subject(state, *role, found.uuid);
            if let Some(text) = unproven(state, &what, (node, *role), found) {
                return Ok(Err((true, text)));
            }
            if standing != Standing::Current && !is_older_accepted {
                let text =
                    known.map(|known| older(state, &what, (found, standing), known)).unwrap_or_default();
                return Ok(Err((true, text)));
            }
            let other = self.other(known, found);
            if let Some(other) = other.as_ref().filter(|_| !is_taking_over) {
                return Ok(Err((false, taken(state, *role, &what, found, other))));
            }
            let taken_over = other.map(|other| (name(&state.map, other.node), other.path));
            let before = known.map(|known| known.last);
            let start = holders::claim(state, found, (node, *tag, self.now_s())).map_err(refused)?;
            let older_than = (standing != Standing::Current).then_some(before).flatten();
            Ok(Ok(Given { start, older_than, taken_over }))
        })
    }

    /// Notes who serves what in which start, and tells whose start is none any more.
    pub(super) fn hold_starts(
        &self,
        peer: PeerId,
        role: Role,
        held: &[Holding],
        is_ending: bool,
    ) -> Result<ManagerReply, ManagerError> {
        require(peer, role, held)?;
        if is_ending {
            let mut by_uuid = self.held.by_uuid.lock();
            for found in held {
                let is_his = |heard: &&mut Heard| heard.node == peer.node && heard.found.place == found.place;
                let heard = by_uuid.get_mut(&found.uuid).filter(is_his);
                heard.into_iter().for_each(|heard| heard.has_ended = true);
            }
            return Ok(ManagerReply::StartsHeld { lost: Vec::new() });
        }
        let by = (peer.node, self.now_s());
        if self
            .manager
            .with_state(|state| held.iter().any(|found| holders::is_joining(state, found, peer.node)))
        {
            self.manager.change(|state| {
                held.iter().for_each(|found| {
                    holders::hold(state, found, by);
                });
                Ok(())
            })?;
        }
        let judge = || held.iter().map(|found| self.why_lost((peer.node, role), found)).collect::<Vec<_>>();
        let judged = self.look_again(judge, |judged| judged.iter().any(Option::is_some))?;
        let mut lost = Vec::new();
        for (found, why) in held.iter().zip(judged) {
            let Some(why) = why else {
                self.hear(peer.node, found);
                continue;
            };
            let subject = self.manager.with_state(|state| self.subject(state, role, found.uuid));
            self.note_once(peer.node, EventKind::CopyRefused, &subject, &why);
            lost.push((found.uuid, why));
        }
        Ok(ManagerReply::StartsHeld { lost })
    }

    /// Why the directory `held` is not to be served any more, if it is not.
    fn why_lost(&self, (node, role): (NodeId, Role), held: &Holding) -> Option<String> {
        // ORDER: looked up first: who holds the state waits for nobody.
        let other = {
            let by_uuid = self.held.by_uuid.lock();
            let heard = by_uuid.get(&held.uuid).filter(|heard| heard.is_there());
            heard.map(|heard| (heard.node, heard.found.clone()))
        };
        self.manager.with_state(|state| {
            let what = || self.subject(state, role, held.uuid);
            let is_other = |known: &MetadataRecord| known.node == node && known.uuid != held.uuid;
            if role == Role::Meta && state.metadata.iter().any(is_other) {
                return Some(format!("the metadata at {} was replaced by that of a backup", held.path));
            }
            if !holders::is_of_role(state, held.uuid, role) {
                return Some(format!("what is at {} is nothing that a {role} server serves", held.path));
            }
            let known = state.starts.iter().find(|known| known.uuid == held.uuid)?;
            if let Some(later) = holders::overtaken(known, held) {
                return Some(format!(
                    "{} at {} is about to be served by {}, at {}, which was given {}, and this server {}",
                    what(),
                    held.path,
                    name(&state.map, later.node),
                    later.path,
                    later.start,
                    held.start
                ));
            }
            if !holders::may_serve(known, held, node) {
                return Some(format!(
                    "{} at {} was taken over by {}, at {}, which serves it in {}, and this server in {}",
                    what(),
                    held.path,
                    name(&state.map, known.node),
                    known.path,
                    known.last,
                    held.start
                ));
            }
            let (other, found) = other.as_ref()?;
            let is_other = found.place != held.place && found.start.number >= held.start.number;
            is_other.then(|| {
                format!(
                    "{} at {} is served by {}, at {}, as well: one of the two is a copy",
                    what(),
                    held.path,
                    name(&state.map, *other),
                    found.path
                )
            })
        })
    }

    /// Who serves the directory `found`, other than who is at its place.
    fn other(&self, known: Option<&StartRecord>, found: &Holding) -> Option<Other> {
        let of = |node, path: &String, is| Some(Other { node, path: path.clone(), is });
        if let Some(told) = known.and_then(|known| holders::about_to_serve(known, found, self.now_s())) {
            return of(told.node, &told.path, Serving::About);
        }
        if let Some(heard) = self.held.by_uuid.lock().get(&found.uuid) {
            let is_other = !heard.has_ended && !heard.found.place.is_same(&found.place);
            return match heard.is_there() {
                true if is_other => of(heard.node, &heard.found.path, Serving::Said),
                false if is_other && !self.presences.can_tell() => {
                    of(heard.node, &heard.found.path, Serving::Guessed)
                }
                _ => None,
            };
        }
        let is_other =
            |known: &&StartRecord| known.last != Start::default() && !known.place.is_same(&found.place);
        let known = known.filter(is_other)?;
        // What another manager was told a moment ago was not said to this one yet.
        let is_fresh = self.manager.is_shared() && holders::is_fresh(known.since_s, self.now_s());
        (is_fresh || !self.presences.can_tell()).then(|| Other {
            node: known.node,
            path: known.path.clone(),
            is: Serving::Guessed,
        })
    }

    /// Remembers who serves a directory. Of what no start is counted, and of what was not given to him, nobody is believed.
    fn hear(&self, node: NodeId, found: &Holding) {
        let is_his = |known: &StartRecord| known.uuid == found.uuid && holders::may_serve(known, found, node);
        if !self.manager.with_state(|state| state.starts.iter().any(is_his)) {
            return;
        }
        let heard = Heard { at: Instant::now(), node, found: found.clone(), has_ended: false };
        let mut by_uuid = self.held.by_uuid.lock();
        by_uuid.insert(found.uuid, heard);
        by_uuid.retain(|_, heard| heard.at.elapsed() < REMEMBERED_FOR);
    }

    /// Refuses the metadata directory of a node that has another one: it has no next start.
    fn require_metadata(&self, node: NodeId, role: Role, found: &Holding) -> Result<(), ManagerError> {
        if role != Role::Meta {
            return Ok(());
        }
        self.manager.with_state(|state| super::require_only_metadata(state, node, found.uuid, &found.path))
    }

    /// What a directory is called, for people and in the event log.
    fn subject(&self, state: &ClusterState, role: Role, uuid: [u8; 16]) -> String {
        if role == Role::Meta {
            let record = state.metadata.iter().find(|known| known.uuid == uuid);
            return match record {
                Some(record) => format!("metadata of {}", name(&state.map, record.node)),
                None => "metadata".to_owned(),
            };
        }
        let known = state.map.targets.iter().find(|target| target.uuid == uuid).map(|target| target.id);
        let promised = || state.promised.iter().find(|target| target.uuid == uuid).map(|target| target.id);
        known.or_else(promised).map_or_else(|| "a target".to_owned(), |id| id.to_string())
    }

    /// Notes what may be tried again and again, once.
    fn note_once(&self, node: NodeId, kind: EventKind, subject: &str, text: &str) {
        let Some(log) = self.manager.events() else { return };
        let told = ashlar_types::Happening::new(Timespec::default(), kind, subject, text);
        let is_same = |what: &ashlar_types::Happening| {
            (what.kind, &what.subject, &what.text) == (kind, &told.subject, &told.text)
        };
        if !log.has_noted(is_same) {
            log.note(node, kind, subject, text);
        }
    }
}

fn require(peer: PeerId, role: Role, found: &[Holding]) -> Result<(), ManagerError> {
    if !matches!(role, Role::Meta | Role::Storage) || !peer.roles.has(role) {
        return Err(refused(format!("{} is no {role} server", peer.node)));
    }
    if found.len() > Holding::COUNT_MAX {
        return Err(refused(format!("more than {} directories of one server", Holding::COUNT_MAX)));
    }
    if found.iter().any(|found| found.path.len() > Holding::PATH_BYTES_MAX) {
        return Err(refused("the path of a directory is too long"));
    }
    Ok(())
}

/// Why it is not believed that a server has a directory, or a copy of it, if it is not. A metadata server is believed.
fn unproven(
    state: &ClusterState,
    what: &str,
    (node, role): (NodeId, Role),
    found: &Holding,
) -> Option<String> {
    let Holding { uuid, start, path, .. } = found;
    if !holders::is_of_role(state, *uuid, role) {
        return Some(format!("what is at {path} is nothing that a {role} server serves"));
    }
    let Some(known) = state.starts.iter().find(|known| known.uuid == *uuid) else {
        return (!holders::may_be_first(state, *uuid, (node, role)))
            .then(|| format!("{what} at {path} is that of another server, which has to serve it first"));
    };
    (role != Role::Meta && !holders::is_proven(known, *start, node)).then(|| {
        format!(
            "{what} at {path} says {start}, and managers do not know that it was ever served in it: serve it where it was last, by {}, at {}; an older copy as well",
            name(&state.map, known.node),
            known.path
        )
    })
}

/// What to say of a directory that was served in a later start than it says.
fn older(
    state: &ClusterState,
    what: &str,
    (found, standing): (&Holding, Standing),
    known: &StartRecord,
) -> String {
    let since = Timespec { secs: known.since_s.min(i64::MAX as u64) as i64, nanos: 0 }.utc();
    let (path, last, node) = (&found.path, known.last, name(&state.map, known.node));
    let is = match standing {
        Standing::Parted => "a copy that was served apart from it".to_owned(),
        _ => "an older copy".to_owned(),
    };
    format!(
        "{what} at {path} is {is}: it says {}, and {node} has served it in {last}, since {since}, at {}. Serve that one, and leave this one out; if that is lost, \
         --accept-older-copies serves this one, and what has changed since is gone",
        found.start, known.path
    )
}

/// What to say of a directory that another one serves.
fn taken(state: &ClusterState, role: Role, what: &str, found: &Holding, other: &Other) -> String {
    let addresses = state.map.node(other.node).map(|node| node.addresses(role)).unwrap_or_default();
    let addresses: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    let serves = match other.is {
        Serving::Said => "is served",
        Serving::About => "is about to be served",
        Serving::Guessed => "was served a moment ago",
    };
    format!(
        "{what} at {} {serves} by {} ({}) at {}: one of the two is a copy, or its disk is attached to both; stop one of them. If that server is known to be dead, \
         --take-over starts this one",
        found.path,
        name(&state.map, other.node),
        addresses.join(", "),
        other.path
    )
}
