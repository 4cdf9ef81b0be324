//! Nodes that are taken out of the file system, and what must not go with them.

use super::copies::leave_copies;
use super::shared_disks::leave_disks;
use super::{ManagerService, refused};
use crate::ManagerError;
use crate::state::ClusterState;
use ashlar_types::map::{Target, TargetState};
use ashlar_types::message::ManagerReply;
use ashlar_types::{ClusterMap, Node, NodeId, Role};
use std::net::IpAddr;

/// LIMIT: things that a refusal names one by one.
const NAMED_MAX: usize = 8;

/// A member of an etcd that was set up for the file system.
#[derive(Clone, Debug)]
pub struct KnownMember {
    /// Its name, which is that of its node; empty until it was started for the first time.
    pub name: String,
    /// Its number, as it is shown.
    pub number: String,
    /// Where other members reach it.
    pub hosts: Vec<IpAddr>,
}

/// Tells all members; or why they are not known.
pub type EtcdMembers = dyn Fn() -> Result<Vec<KnownMember>, String> + Send + Sync;

impl ManagerService {
    /// Has nodes not be removed that `members` tells of. Only the first one that is given counts.
    pub fn set_etcd_members(&self, members: Box<EtcdMembers>) {
        let _ = self.etcd_members.set(members);
    }

    /// Takes a node out for `by`, unless something would be lost with it, or nobody could undo it.
    pub(super) fn remove_node(
        &self,
        by: NodeId,
        node: NodeId,
        is_own_meant: bool,
    ) -> Result<ManagerReply, ManagerError> {
        let map = self.map().read().clone();
        if let Some(known) = map.node(node).filter(|known| known.roles.has(Role::Manager)) {
            self.require_no_member(&map, known)?;
        }
        self.manager.change_by(Some(by), |state| {
            let known = state.map.node(node).ok_or_else(|| refused(format!("there is no {node}")))?;
            require_empty(&state.map, known)?;
            self.require_other_manager(&state.map, known)?;
            require_other_administrator(&state.map, known)?;
            if by == node && !is_own_meant {
                return Err(refused(format!(
                    "{} is this machine, which could do nothing more here: if that is what you want, say so with --yes-this-one",
                    known.name
                )));
            }
            leave_copies(state, node)?;
            leave_disks(state, node)?;
            state.metadata.retain(|known| known.node != node);
            let ClusterState { map, promised, .. } = state;
            promised.retain(|known| known.node != node);
            map.nodes.retain(|known| known.id != node);
            Ok(())
        })?;
        Ok(ManagerReply::Done)
    }

    /// Refuses a node whose member of etcd would go on without it: the member's machine is one that nobody administers any more, and counts all the same.
    fn require_no_member(&self, map: &ClusterMap, node: &Node) -> Result<(), ManagerError> {
        let Some(members) = self.etcd_members.get() else { return Ok(()) };
        let members = members().map_err(|why| {
            refused(format!(
                "etcd does not tell whether {} is one of its members: {why}; try again",
                node.name
            ))
        })?;
        let name = &node.name;
        if !members.iter().any(|member| member.name == *name) {
            return require_none_to_come(&members, node);
        }
        let others = members.iter().any(|member| !member.name.is_empty() && member.name != *name);
        Err(refused(match others {
            true => format!(
                "{name} is a member of etcd, where the state of the file system is: `ashlar etcd remove {name}` on another manager takes it out there first"
            ),
            false => {
                let there = map.listening(Role::Manager).find(|other| other.id != node.id);
                let other = there.map_or("another manager", |other| &other.name);
                format!(
                    "{name} is the only member of etcd, where the state of the file system is: first make another one (`ashlar etcd join` on {other}), then take this one out there (`ashlar etcd remove {name}`)"
                )
            }
        }))
    }

    /// Refuses a manager without which none would answer.
    fn require_other_manager(&self, map: &ClusterMap, node: &Node) -> Result<(), ManagerError> {
        if !node.roles.has(Role::Manager) {
            return Ok(());
        }
        let others: Vec<&Node> = map.listening(Role::Manager).filter(|other| other.id != node.id).collect();
        if others.is_empty() {
            let before = match self.manager.is_shared() {
                true => "",
                false => {
                    "its state must be in etcd for that (`ashlar etcd init`, or `ashlar manager --move-to-etcd`), and "
                }
            };
            return Err(refused(format!(
                "{} is the only manager: add another one first; {before}`ashlar token --role manager` makes a token for it",
                node.name
            )));
        }
        if others.iter().any(|other| self.is_heard_of(other.id, Role::Manager)) {
            return Ok(());
        }
        let others: Vec<String> =
            others.iter().map(|other| self.silence_text(map, other.id, Role::Manager)).collect();
        Err(refused(format!(
            "{} is the only manager that answers ({}): start another one first",
            node.name,
            others.join("; ")
        )))
    }
}

/// Refuses a node with whose address a member was added that has not been started yet: it counts as soon as it has, and has no name until then.
fn require_none_to_come(members: &[KnownMember], node: &Node) -> Result<(), ManagerError> {
    let is_own =
        |host: &IpAddr| node.listening.iter().flat_map(|known| &known.addresses).any(|own| own.ip() == *host);
    let to_come = members.iter().find(|member| member.name.is_empty() && member.hosts.iter().any(is_own));
    let Some(member) = to_come else { return Ok(()) };
    let (name, number) = (&node.name, &member.number);
    Err(refused(format!(
        "a member of etcd that has not been started yet, {number}, is to be on {name}: `ashlar etcd remove {number}` on another manager takes it out there first"
    )))
}

/// Refuses a node that has targets or shards.
fn require_empty(map: &ClusterMap, node: &Node) -> Result<(), ManagerError> {
    let targets: Vec<&Target> = map.targets.iter().filter(|target| target.node == node.id).collect();
    let shards = map.shards.iter().filter(|shard| shard.primary == node.id).count();
    let mut what = Vec::new();
    if !targets.is_empty() {
        let numbers: Vec<String> =
            targets.iter().take(NAMED_MAX).map(|target| target.id.0.to_string()).collect();
        let more = if targets.len() > NAMED_MAX { " ..." } else { "" };
        let is_served = targets.iter().any(|target| target.state == TargetState::Online);
        let chains: usize = targets.iter().map(|target| map.chains_with(target.id).count()).sum();
        let drain = match (chains, is_served) {
            (0, _) => String::new(),
            (_, true) => {
                format!("`ashlar node drain {}` moves what is on them to others, and then ", node.name)
            }
            (_, false) => {
                "what is on them can only be moved once they are served again; after that ".to_owned()
            }
        };
        what.push(format!(
            "{} has {}, {}{more}: {drain}`ashlar target remove NUMBER` takes each of them out",
            node.name,
            counted(targets.len(), "target"),
            numbers.join(", "),
        ));
    }
    if shards > 0 {
        what.push(format!(
            "{} serves metadata, {}: `ashlar shard drain {}` gives them to others",
            node.name,
            counted(shards, "shard"),
            node.name
        ));
    }
    if what.is_empty() { Ok(()) } else { Err(refused(what.join("; "))) }
}

/// Refuses the last node whose commands can change anything.
fn require_other_administrator(map: &ClusterMap, node: &Node) -> Result<(), ManagerError> {
    let may = |node: &Node| node.roles.has(Role::Admin);
    if !may(node) || map.nodes.iter().any(|other| other.id != node.id && may(other)) {
        return Ok(());
    }
    Err(refused(format!(
        "{} is the only machine that may administer: nobody could do so any more; `ashlar token --role admin` makes a token for another one",
        node.name
    )))
}

/// A number of things, for people.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
