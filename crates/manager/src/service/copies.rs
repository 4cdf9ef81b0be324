//! Copies of metadata servers: who keeps them, who serves, who is to keep one more (ADR 0029).
//!
//! What a membership becomes says `ashlar_replication::membership::plan`, and nothing else. Here is who may ask for it, and who is invited to.

use super::{ManagerService, name, refused};
use crate::ManagerError;
use crate::state::ClusterState;
use ashlar_replication::membership::{Proposer, plan};
use ashlar_types::membership::{Change, Membership};
use ashlar_types::message::ManagerReply;
use ashlar_types::{ClusterMap, CopyGroup, CopyHost, CopyNotes, Epoch, NodeId, Places, Role, Roles};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// For how long a machine that kept a copy is waited for before another one is given all of it.
const REBUILD_AFTER: Duration = Duration::from_secs(10 * 60);
/// How long after its copy was removed a machine is given one again: one that fails again and again must not hold everybody up each time.
const REJOIN_AFTER: Duration = Duration::from_secs(10);
/// The longest such time.
const REST_MAX: Duration = Duration::from_secs(60 * 60);
/// A machine whose copies have failed so often in turn is not waited for: another one is asked.
const FAILURES_MAX: u8 = 2;
/// After how long without a question a machine that can keep copies counts as away.
const AWAY_AFTER: Duration = Duration::from_secs(10);

/// Machines that can keep copies, and when each has said so last.
#[derive(Default)]
pub(super) struct CopyHosts(
    // LIMIT: as metadata servers.
    Mutex<BTreeMap<NodeId, (Instant, Vec<SocketAddr>)>>,
);

impl CopyHosts {
    fn are_there(&self) -> Vec<NodeId> {
        let now = Instant::now();
        let all = self.0.lock();
        let there = all.iter().filter(|(_, (at, _))| now.duration_since(*at) <= AWAY_AFTER);
        there.map(|(node, _)| *node).collect()
    }

    fn all(&self, map: &ClusterMap) -> Vec<CopyHost> {
        let mut all = self.0.lock();
        all.retain(|node, _| map.node(*node).is_some());
        all.iter()
            .map(|(node, (_, addresses))| CopyHost { node: *node, addresses: addresses.clone() })
            .collect()
    }
}

impl ManagerService {
    /// What there is, and what the caller is invited to, if it can keep copies.
    pub(super) fn copies(&self, by: NodeId) -> ManagerReply {
        self.manager.with_state(|state| {
            let (hosts, invited) = (self.copy_hosts.all(&state.map), self.invitations(state, by));
            ManagerReply::Copies { epoch: state.map.epoch, notes: state.copies.clone(), hosts, invited }
        })
    }

    fn invitations(&self, state: &ClusterState, host: NodeId) -> Vec<NodeId> {
        if !self.presences.can_tell() {
            return Vec::new();
        }
        let (there, now_s) = (self.copy_hosts.are_there(), self.now_s());
        let is_invited =
            |group: &&CopyGroup| next_host(&state.map, &state.copies, group, &there, now_s) == Some(host);
        state.copies.groups.iter().filter(is_invited).map(|group| group.server).collect()
    }

    /// Notes how many copies of `server` there are to be.
    pub(super) fn set_copies(
        &self,
        by: NodeId,
        server: NodeId,
        wanted: u8,
    ) -> Result<ManagerReply, ManagerError> {
        if !(1..=CopyGroup::COPIES_MAX).contains(&wanted) {
            return Err(refused(format!(
                "{wanted} copies: 1 to {} copies of a metadata server are kept",
                CopyGroup::COPIES_MAX
            )));
        }
        self.manager.change_by(Some(by), |state| {
            let name = name(&state.map, server);
            if !state.metadata.iter().any(|known| known.node == server) {
                return Err(refused(format!("{name} is no metadata server")));
            }
            let known = state.copies.groups.iter_mut().find(|group| group.server == server);
            match known {
                Some(group) => group.wanted = wanted,
                None if wanted == 1 => return Ok(()),
                None => {
                    state.copies.groups.push(CopyGroup::new(server, wanted));
                    state.copies.groups.sort_by_key(|group| group.server);
                }
            }
            touch(state);
            Ok(())
        })?;
        Ok(ManagerReply::Done)
    }

    /// Notes where a machine is reached that can keep copies.
    pub(super) fn host_copies(
        &self,
        node: NodeId,
        addresses: Vec<SocketAddr>,
    ) -> Result<ManagerReply, ManagerError> {
        let places = Places { addresses, ..Places::default() };
        places.check().map_err(refused)?;
        self.copy_hosts.0.lock().insert(node, (Instant::now(), places.addresses));
        Ok(ManagerReply::Done)
    }

    /// The metadata server `server`, the caller, keeps the first copy of itself.
    pub(super) fn found_copies(&self, server: NodeId, uuid: [u8; 16]) -> Result<ManagerReply, ManagerError> {
        let membership = self.change_or_look(|state| {
            let next = Epoch(state.map.epoch.0 + 1);
            let name = name(&state.map, server);
            // What a backup has taken the place of is not to come back by a question that was under way.
            if !state.metadata.iter().any(|known| known.node == server && known.uuid == uuid) {
                return Err(refused(format!("that is not the metadata of {name} (any more)")));
            }
            let group = group_of(&mut state.copies, server, &name)?;
            if let Some(known) = &group.membership {
                // Asked for once more: the answer was lost.
                return match known.is_alone(server) {
                    true => Ok(known.clone()),
                    false => Err(refused(format!("there are copies of {name} already"))),
                };
            }
            let founded = Membership::new(next, [server]);
            group.membership = Some(founded.clone());
            touch(state);
            Ok(founded)
        })?;
        Ok(ManagerReply::CopiesChanged(membership))
    }

    /// Changes who keeps copies of `server`.
    pub(super) fn change_copies(
        &self,
        by: NodeId,
        server: NodeId,
        expected: Epoch,
        change: Change<NodeId>,
    ) -> Result<ManagerReply, ManagerError> {
        let membership = self.change_or_look(|state| {
            let name = name(&state.map, server);
            let is_admission = matches!(change, Change::Admit(_));
            let is_invited = change == Change::Admit(by) && self.invitations(state, by).contains(&server);
            if is_admission && !is_invited {
                return Err(refused(format!("{by} is not to keep a copy of {name}")));
            }
            let proposer = if is_admission { Proposer::Operator } else { Proposer::Replica(by) };
            let (next, now_s) = (Epoch(state.map.epoch.0 + 1), self.now_s());
            let group = group_of(&mut state.copies, server, &name)?;
            let current = group.membership.as_ref();
            let current = current.ok_or_else(|| refused(format!("there are no copies of {name}")))?;
            let changed = plan(current, expected, proposer, change, next)
                .map_err(|refusal| refused(format!("the copies of {name} are not changed: {refusal}")))?;
            note_change(group, change, now_s);
            group.membership = Some(changed.clone());
            touch(state);
            Ok(changed)
        })?;
        Ok(ManagerReply::CopiesChanged(membership))
    }

    /// The caller begins the service of `server`.
    ///
    /// ORDER: a new epoch before it serves, as with [`ManagerService::meta_identity`].
    pub(super) fn begin_service(
        &self,
        by: NodeId,
        server: NodeId,
        epoch: Epoch,
    ) -> Result<ManagerReply, ManagerError> {
        self.change_or_look(|state| {
            let name = name(&state.map, server);
            let group = group_of(&mut state.copies, server, &name)?;
            let is_first = group.membership.as_ref().is_some_and(|known| known.primary() == by);
            let is_now = group.membership.as_ref().is_some_and(|known| known.epoch == epoch);
            if !is_first || !is_now || epoch < group.begun {
                return Err(refused(format!("{by} is not who serves {name} at {epoch}")));
            }
            group.begun = epoch;
            touch(state);
            Ok(())
        })?;
        let name_hash_key = self.manager.identity().name_hash_key;
        Ok(ManagerReply::MetaIdentity { name_hash_key, epoch: self.map().read().epoch })
    }

    /// The caller serves `server` at these places.
    pub(super) fn serve_copy(
        &self,
        by: NodeId,
        (server, epoch): (NodeId, Epoch),
        places: &Places,
    ) -> Result<ManagerReply, ManagerError> {
        places.check().map_err(refused)?;
        self.change_or_look(|state| {
            let name = name(&state.map, server);
            let group = group_of(&mut state.copies, server, &name)?;
            let is_first = group.membership.as_ref().is_some_and(|known| known.primary() == by);
            if !is_first || group.begun != epoch {
                return Err(refused(format!("{by} is not who serves {name} since {epoch}")));
            }
            let node = state.map.nodes.iter_mut().find(|node| node.id == server);
            let node = node.ok_or_else(|| refused(format!("{server} was removed")))?;
            node.listening.retain(|listening| listening.role != Role::Meta);
            node.listening.extend(places.entries(Role::Meta));
            node.listening.sort_by_key(|listening| listening.role);
            Ok(())
        })?;
        Ok(ManagerReply::Done)
    }

    /// A certificate of `server`, as metadata server alone, for the caller, which keeps a copy of it.
    pub(super) fn certify_server(
        &self,
        by: NodeId,
        server: NodeId,
        public_key: &[u8],
    ) -> Result<ManagerReply, ManagerError> {
        let is_kept =
            |state: &ClusterState| state.copies.group(server).is_some_and(|group| group.is_kept_by(by));
        let is_kept = self.look_again(|| self.manager.with_state(is_kept), |is_kept| !is_kept)?;
        if !is_kept {
            return Err(refused(format!("{by} keeps no copy of the metadata server {server}")));
        }
        let roles = Roles::default().with(Role::Meta);
        self.certify((server, Some(by)), roles, public_key).map(ManagerReply::Certificate)
    }

    /// Refuses what a metadata server does for itself that is served from copies.
    pub(super) fn require_no_copies(state: &ClusterState, server: NodeId) -> Result<(), ManagerError> {
        match state.copies.membership(server) {
            None => Ok(()),
            Some(_) => Err(refused(format!(
                "the metadata of {} is served from copies: start it with the directory that it has always had, and the software of the others; if its disk is lost, have the machine join under another name (`ashlar join`), and it keeps copies again",
                name(&state.map, server)
            ))),
        }
    }
}

/// Refuses a node that keeps a copy, or whose metadata server has some; forgets it otherwise.
pub(super) fn leave_copies(state: &mut ClusterState, node: NodeId) -> Result<(), ManagerError> {
    let own = name(&state.map, node);
    let is_own_alone = |group: &CopyGroup| {
        group.server == node && group.membership.as_ref().is_some_and(|known| known.is_alone(node))
    };
    let kept = |group: &&CopyGroup| group.is_kept_by(node) && !is_own_alone(group);
    if let Some(group) = state.copies.groups.iter().find(kept) {
        let of = name(&state.map, group.server);
        return Err(refused(format!(
            "{own} keeps a copy of the metadata of {of}: stop its `ashlar meta`, and wait until `ashlar copies list` shows that others have it"
        )));
    }
    let groups = &mut state.copies.groups;
    groups.retain(|group| group.server != node);
    groups.iter_mut().for_each(|group| group.former.retain(|(former, _)| *former != node));
    Ok(())
}

/// Whether copies are such as they can be.
///
/// # Errors
/// What is wrong, in words.
pub(crate) fn check(notes: &CopyNotes) -> Result<(), &'static str> {
    let is_sound = |group: &CopyGroup| {
        let members = group.membership.as_ref().map(|known| (known.in_sync.len(), known.members().count()));
        members.is_none_or(|(in_sync, all)| in_sync > 0 && all <= ashlar_types::membership::MEMBERS_MAX)
    };
    match notes.groups.iter().all(is_sound) {
        true => Ok(()),
        false => Err("nobody, or too many, keep copies of a metadata server"),
    }
}

fn group_of<'a>(
    notes: &'a mut CopyNotes,
    server: NodeId,
    name: &str,
) -> Result<&'a mut CopyGroup, ManagerError> {
    let group = notes.groups.iter_mut().find(|group| group.server == server);
    group.ok_or_else(|| refused(format!("no copies of {name} are to be kept")))
}

/// Whoever follows the map is told.
fn touch(state: &mut ClusterState) {
    state.map.epoch = Epoch(state.map.epoch.0 + 1);
}

/// Remembers who has most of a copy.
fn note_change(group: &mut CopyGroup, change: Change<NodeId>, now_s: u64) {
    match change {
        Change::Remove(node) => {
            let had_all = group.membership.as_ref().is_some_and(|known| known.is_in_sync(node));
            let known = group.former.iter().position(|(known, _)| *known == node);
            let before = known.map_or(0, |at| group.former.remove(at).1);
            if group.former.len() >= CopyGroup::FORMER_MAX {
                group.former.remove(0);
            }
            group.former.push((node, if had_all { 0 } else { before.saturating_add(1) }));
            group.removed_s = now_s;
        }
        Change::Promote(node) => group.former.retain(|(known, _)| *known != node),
        // How often it has failed is remembered until it has all of it.
        Change::Admit(_) | Change::Renew => {}
    }
}

/// Who is to keep one more copy of the metadata of `group`: one that kept one before, if it comes back in time; else one that does not fail together with those
/// that keep one, and of these the one with the fewest.
fn next_host(
    map: &ClusterMap,
    notes: &CopyNotes,
    group: &CopyGroup,
    there: &[NodeId],
    now_s: u64,
) -> Option<NodeId> {
    let membership = group.membership.as_ref()?;
    let is_short = membership.in_sync.len() < usize::from(group.wanted) && membership.catching_up.is_empty();
    if !is_short {
        return None;
    }
    let is_possible = |node: &NodeId| {
        !membership.is_member(*node) && map.node(*node).is_some_and(|known| known.roles.has(Role::Meta))
    };
    // By a manager whose clock was ahead it may be in the future: then it is long ago, too.
    let since_s = now_s.checked_sub(group.removed_s).unwrap_or(REST_MAX.as_secs());
    let rest_s = |failures: u8| (REJOIN_AFTER.as_secs() << failures.min(12)).min(REST_MAX.as_secs());
    let former =
        group.former.iter().rev().filter(|(node, failures)| is_possible(node) && *failures < FAILURES_MAX);
    for &(former, failures) in former.filter(|_| since_s < REBUILD_AFTER.as_secs()) {
        if since_s < rest_s(failures) {
            return None;
        }
        // It is waited for; the one before it is not, unless it is there.
        if there.contains(&former) {
            return Some(former);
        }
    }
    let is_waited_for = |(node, failures): &(NodeId, u8)| is_possible(node) && *failures < FAILURES_MAX;
    if since_s < REBUILD_AFTER.as_secs() && group.former.iter().any(is_waited_for) {
        return None;
    }
    // After that it is one like any other; one that has failed again and again rests before it is one.
    let failed = |node: NodeId| {
        let is_it = |(known, failures): &(NodeId, u8)| {
            *known == node && *failures >= FAILURES_MAX && since_s < rest_s(*failures)
        };
        group.former.iter().any(is_it)
    };
    let failures = |node: NodeId| {
        group.former.iter().find(|(known, _)| *known == node).map_or(0, |(_, failures)| *failures)
    };
    let domain = |node: NodeId| map.node(node).map_or("", |known| known.domain.as_str());
    let fails_with = |node: NodeId| {
        membership.members().any(|member| !domain(node).is_empty() && domain(member) == domain(node))
    };
    let kept = |node: NodeId| notes.groups.iter().filter(|group| group.is_kept_by(node)).count();
    let possible = there.iter().copied().filter(|node| is_possible(node) && !failed(*node));
    let rank = |node: NodeId| (failures(node) >= FAILURES_MAX, fails_with(node), kept(node), node);
    possible.min_by_key(|&node| rank(node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_types::testing::map_in_domains;

    const NOW_S: u64 = 1_000_000;

    fn site(domains: &[&str]) -> (ClusterMap, CopyNotes) {
        let mut map = map_in_domains(&[], domains);
        map.nodes.iter_mut().for_each(|node| node.roles = Roles::default().with(Role::Meta));
        let mut group = CopyGroup::new(NodeId(0), 2);
        group.membership = Some(Membership::new(Epoch(1), [NodeId(0)]));
        (map, CopyNotes { groups: vec![group] })
    }

    fn next(site: &(ClusterMap, CopyNotes), there: &[u32]) -> Option<u32> {
        let there: Vec<NodeId> = there.iter().map(|node| NodeId(*node)).collect();
        next_host(&site.0, &site.1, &site.1.groups[0], &there, NOW_S).map(|node| node.0)
    }

    #[test]
    fn another_failure_domain_comes_first_and_then_who_keeps_least() {
        let mut site = site(&["row1", "row1", "row2", "row2", ""]);
        assert_eq!(next(&site, &[0, 1]), Some(1), "better than none");
        assert_eq!(next(&site, &[0, 1, 2, 3]), Some(2));
        assert_eq!(next(&site, &[]), None);
        let mut other = CopyGroup::new(NodeId(2), 2);
        other.membership = Some(Membership::new(Epoch(1), [NodeId(2)]));
        site.1.groups.push(other);
        assert_eq!(next(&site, &[0, 1, 2, 3]), Some(3), "the other one keeps one already");
        site.1.groups[0].membership.as_mut().unwrap().catching_up.push(NodeId(3));
        assert_eq!(next(&site, &[0, 1, 2, 3, 4]), None, "one at a time");
        site.1.groups[0].membership = Some(Membership::new(Epoch(2), [NodeId(0), NodeId(3)]));
        assert_eq!(next(&site, &[0, 1, 2, 3, 4]), None, "enough");
        site.0.nodes[4].roles = Roles::default();
        site.1.groups[0].wanted = 3;
        assert_eq!(next(&site, &[4]), None, "it is no metadata server");
    }

    #[test]
    fn who_kept_a_copy_before_is_waited_for() {
        let mut site = site(&["", "", ""]);
        note_change(&mut site.1.groups[0], Change::Remove(NodeId(1)), NOW_S - 5);
        assert_eq!(next(&site, &[0, 1, 2]), None, "it was removed a moment ago");
        site.1.groups[0].removed_s = NOW_S - 2 * REJOIN_AFTER.as_secs();
        assert_eq!(next(&site, &[0, 2]), None, "not there, and nobody else is asked yet");
        assert_eq!(next(&site, &[0, 1, 2]), Some(1));
        site.1.groups[0].removed_s = NOW_S - REBUILD_AFTER.as_secs();
        assert_eq!(next(&site, &[0, 2]), Some(2));
        assert_eq!(next(&site, &[0, 1, 2]), Some(1), "as any other");
        note_change(&mut site.1.groups[0], Change::Promote(NodeId(1)), NOW_S);
        assert!(site.1.groups[0].former.is_empty());
    }

    #[test]
    fn a_machine_whose_copies_fail_again_and_again_is_asked_less_and_others_in_its_place() {
        let mut site = site(&["", "", ""]);
        for failed in 1..=2 {
            note_change(&mut site.1.groups[0], Change::Admit(NodeId(1)), NOW_S);
            note_change(&mut site.1.groups[0], Change::Remove(NodeId(1)), NOW_S - 15);
            assert_eq!(site.1.groups[0].former, [(NodeId(1), failed)]);
        }
        assert_eq!(next(&site, &[0, 1, 2]), Some(2), "it rests, and is not waited for");
        assert_eq!(next(&site, &[0, 1]), None, "nor asked before its time");
        site.1.groups[0].removed_s = NOW_S - 40;
        assert_eq!(next(&site, &[0, 1]), Some(1));
        assert_eq!(next(&site, &[0, 1, 2]), Some(2), "others come first");
        site.1.groups[0].removed_s = NOW_S + 40;
        assert_eq!(next(&site, &[0, 1]), Some(1), "a clock was ahead");
        note_change(&mut site.1.groups[0], Change::Promote(NodeId(1)), NOW_S);
        assert!(site.1.groups[0].former.is_empty(), "forgotten once it has all of it");
    }
}
