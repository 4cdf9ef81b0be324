//! Which events a change of the state is: by comparing what was with what is, so that no change can forget to tell.

use crate::{ClusterState, TokenRecord};
use ashlar_types::map::{Target, TargetState};
use ashlar_types::{ClusterMap, EventKind, Membership, Node, NodeId, Role, TargetId, Timespec};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// LIMIT: shards that are named in one event; of more the number is told.
const SHARDS_NAMED_MAX: usize = 16;

/// An event that a change is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// Where it happened.
    pub(crate) node: NodeId,
    pub(crate) kind: EventKind,
    pub(crate) subject: String,
    pub(crate) text: String,
}

/// What has happened from `before` to `after`.
pub(crate) fn events_of(before: &ClusterState, after: &ClusterState) -> Vec<Change> {
    let mut told = Vec::new();
    tokens(before, after, &mut told);
    if before.map != after.map {
        nodes(&before.map, &after.map, &mut told);
        targets(&before.map, &after.map, &mut told);
        shards(&before.map, &after.map, &mut told);
        chains(&before.map, &after.map, &mut told);
    }
    copies(before, after, &mut told);
    told
}

fn copies(before: &ClusterState, after: &ClusterState, told: &mut Vec<Change>) {
    for group in &after.copies.groups {
        let known = before.copies.membership(group.server);
        let Some(membership) = &group.membership else { continue };
        let members = |known: &Membership<NodeId>| (known.in_sync.clone(), known.catching_up.clone());
        if known.is_some_and(|known| members(known) == members(membership)) {
            continue;
        }
        let named = |nodes: &[NodeId]| {
            let names: Vec<String> = nodes.iter().map(|node| name(&after.map, &before.map, *node)).collect();
            names.join(", ")
        };
        let mut text = format!("kept by {}", named(&membership.in_sync));
        if !membership.catching_up.is_empty() {
            text.push_str(&format!("; {} is being given one", named(&membership.catching_up)));
        }
        let (node, subject) = (membership.primary(), name(&after.map, &before.map, group.server));
        told.push(Change { node, kind: EventKind::CopiesChanged, subject, text });
    }
}

/// A dead target is in many chains: its going, and its coming back, is one event for all that change at the same time.
fn chains(before: &ClusterMap, after: &ClusterMap, told: &mut Vec<Change>) {
    let (mut fallen, mut whole): (BTreeMap<TargetId, usize>, BTreeMap<TargetId, usize>) = Default::default();
    for (known, chain) in before.chains.iter().zip(&after.chains) {
        if chain.copies.is_none() || known.targets == chain.targets {
            continue;
        }
        if chain.is_short() {
            let gone = known.targets.iter().filter(|target| !chain.targets.contains(target));
            gone.for_each(|target| *fallen.entry(*target).or_default() += 1);
        } else if known.is_short() {
            let come = chain.targets.iter().filter(|target| !known.targets.contains(target));
            come.for_each(|target| *whole.entry(*target).or_default() += 1);
        }
    }
    let short = after.chains.iter().filter(|chain| chain.is_short()).count();
    let counted = |count: usize| match count {
        1 => "1 chain".to_owned(),
        count => format!("{count} chains"),
    };
    let mut tell = |target: TargetId, kind, text| {
        let node = after.target(target).map_or(NodeId(0), |known| known.node);
        told.push(Change { node, kind, subject: target.to_string(), text });
    };
    for (target, count) in fallen {
        let text = format!(
            "{} without the copy on it from now on; of all, {short} have fewer copies than they are to have",
            counted(count)
        );
        tell(target, EventKind::ChainsShort, text);
    }
    for (target, count) in whole {
        let text =
            format!("{} with all copies again, by the one on it; of all, {short} have fewer", counted(count));
        tell(target, EventKind::ChainsWhole, text);
    }
}

fn name(map: &ClusterMap, other: &ClusterMap, node: NodeId) -> String {
    let known = map.node(node).or_else(|| other.node(node));
    known.map_or_else(|| node.to_string(), |node| node.name.clone())
}

fn tokens(before: &ClusterState, after: &ClusterState, told: &mut Vec<Change>) {
    let is_used = |known: &TokenRecord| known.used_by.is_some();
    for token in &after.tokens {
        let known = before.tokens.iter().find(|known| known.public_key == token.public_key);
        if known.is_none() {
            let until = Timespec { secs: token.expires_s.min(i64::MAX as u64) as i64, nanos: 0 };
            let text = format!("a token for {}, good until {}", token.roles, until.utc());
            told.push(Change {
                node: NodeId(0),
                kind: EventKind::TokenMade,
                subject: token.roles.to_string(),
                text,
            });
        }
        if let Some((node, _)) = token.used_by.as_ref().filter(|_| known.is_none_or(|known| !is_used(known)))
        {
            told.push(Change {
                node: *node,
                kind: EventKind::TokenUsed,
                subject: name(&after.map, &before.map, *node),
                text: format!("a token for {}", token.roles),
            });
        }
    }
}

fn nodes(before: &ClusterMap, after: &ClusterMap, told: &mut Vec<Change>) {
    for node in &after.nodes {
        let mut tell = |kind, text| {
            told.push(Change { node: node.id, kind, subject: node.name.clone(), text });
        };
        let Some(known) = before.node(node.id) else {
            tell(EventKind::NodeJoined, format!("{}, for {}", node.id, node.roles));
            continue;
        };
        for role in [Role::Manager, Role::Meta, Role::Storage] {
            if known.addresses(role) != node.addresses(role) {
                tell(EventKind::NodeListens, listening(node, role));
            }
        }
        if known.domain != node.domain {
            let shown = |domain: &str| if domain.is_empty() { "none".to_owned() } else { domain.to_owned() };
            tell(
                EventKind::DomainChanged,
                format!("{}; it was: {}", shown(&node.domain), shown(&known.domain)),
            );
        }
        if known.policy != node.policy {
            tell(EventKind::PolicyChanged, format!("{}; it was: {}", node.policy, known.policy));
        }
    }
    for gone in before.nodes.iter().filter(|node| after.node(node.id).is_none()) {
        told.push(Change {
            node: gone.id,
            kind: EventKind::NodeRemoved,
            subject: gone.name.clone(),
            text: format!("{}, which was for {}", gone.id, gone.roles),
        });
    }
}

fn listening(node: &Node, role: Role) -> String {
    let addresses: Vec<String> = node.addresses(role).iter().map(SocketAddr::to_string).collect();
    match addresses.is_empty() {
        true => format!("not as {role} any more"),
        false => format!("as {role} at {}", addresses.join(", ")),
    }
}

fn targets(before: &ClusterMap, after: &ClusterMap, told: &mut Vec<Change>) {
    let is_offline = |target: &Target| target.state == TargetState::Offline;
    for target in &after.targets {
        let place = format!("on {} at {}", name(after, before, target.node), target.path);
        let mut tell = |kind, text| {
            told.push(Change { node: target.node, kind, subject: target.id.to_string(), text });
        };
        match before.targets.iter().find(|known| known.uuid == target.uuid) {
            None => tell(EventKind::TargetAdded, place),
            Some(known) if is_offline(target) && !is_offline(known) => tell(EventKind::TargetOffline, place),
            Some(known) if known.node != target.node => {
                let text = format!("{place}; it was on {}", name(after, before, known.node));
                tell(EventKind::TargetOnline, text);
            }
            Some(known) if is_offline(known) && !is_offline(target) => tell(EventKind::TargetOnline, place),
            Some(_) => {}
        }
    }
    let is_there = |gone: &&Target| !after.targets.iter().any(|target| target.uuid == gone.uuid);
    for gone in before.targets.iter().filter(is_there) {
        let text = format!("it was on {} at {}", name(after, before, gone.node), gone.path);
        let (node, subject) = (gone.node, gone.id.to_string());
        told.push(Change { node, kind: EventKind::TargetRemoved, subject, text });
    }
}

fn shards(before: &ClusterMap, after: &ClusterMap, told: &mut Vec<Change>) {
    let mut moved: BTreeMap<(NodeId, NodeId), Vec<u16>> = BTreeMap::new();
    for (known, shard) in before.shards.iter().zip(&after.shards) {
        if known.primary != shard.primary {
            moved.entry((known.primary, shard.primary)).or_default().push(shard.id.0);
        }
    }
    for ((from, to), shards) in moved {
        let from = name(before, after, from);
        let text = if shards.len() <= SHARDS_NAMED_MAX {
            let named: Vec<String> = shards.iter().map(u16::to_string).collect();
            format!("shards {} from {from}", named.join(", "))
        } else {
            format!("{} shards from {from}", shards.len())
        };
        let subject = name(after, before, to);
        told.push(Change { node: to, kind: EventKind::ShardsMoved, subject, text });
    }
}
