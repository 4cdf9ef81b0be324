//! Sessions of mounts.

use super::{node, with};
use ashlar_rpc::wire::SessionInfo;
use ashlar_types::{ClusterMap, NodeId, SessionId};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A session, as all metadata servers together have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// Where it is known, that which has known it longest first.
    pub servers: Vec<NodeId>,
    /// Leases, open files and locks are counted at all of them; it was heard of by the last one that did.
    pub info: SessionInfo,
}

/// One value for each session, by its id, of what each server has told.
pub fn merged(told: &[(NodeId, Vec<SessionInfo>)]) -> Vec<Merged> {
    let mut by_id: BTreeMap<SessionId, Vec<(u64, NodeId, &SessionInfo)>> = BTreeMap::new();
    for (server, infos) in told {
        infos.iter().for_each(|info| {
            by_id.entry(info.session).or_default().push((info.since_s, *server, info));
        });
    }
    let merge = |mut known: Vec<(u64, NodeId, &SessionInfo)>| {
        known.sort_by_key(|(since, server, _)| (*since, *server));
        let servers = known.iter().map(|(_, server, _)| *server).collect();
        let merged = known.iter().map(|(.., info)| (*info).clone()).reduce(|one, other| SessionInfo {
            heard_ms: one.heard_ms.min(other.heard_ms),
            leases: one.leases + other.leases,
            opens: one.opens + other.opens,
            locks: one.locks + other.locks,
            is_ending: one.is_ending || other.is_ending,
            ..one
        });
        merged.map(|info| Merged { servers, info })
    };
    by_id.into_values().filter_map(merge).collect()
}

/// A session: `server` is the one that has known it longest, `servers` are all of them.
pub fn object(map: &ClusterMap, session: &Merged) -> Value {
    let info = &session.info;
    let servers: Vec<Value> = session.servers.iter().map(|server| node::reference(map, *server)).collect();
    let named = json!({
        "id": info.session.0,
        "id_text": info.session.0.to_string(),
        "server": servers.first(),
        "servers": servers,
        "node": node::reference(map, info.owner.node),
    });
    with(named, known(info))
}

/// What a metadata server has of a session.
fn known(info: &SessionInfo) -> Value {
    json!({
        "since": info.since_s,
        "heard_ms": info.heard_ms,
        "leases": info.leases,
        "opens": info.opens,
        "locks": info.locks,
        "is_ending": info.is_ending,
    })
}

/// A session as [`object`] has it, which process of its machine it is of, and what each metadata server that knows it has of it.
pub fn object_by_server(map: &ClusterMap, session: &Merged, told: &[(NodeId, Vec<SessionInfo>)]) -> Value {
    let of_server = |(server, infos): &(NodeId, Vec<SessionInfo>)| {
        let info = infos.iter().find(|info| info.session == session.info.session)?;
        Some(with(json!({ "server": node::reference(map, *server) }), known(info)))
    };
    let by_server: Vec<Value> = told.iter().filter_map(of_server).collect();
    let instance: String = session.info.owner.instance.iter().map(|byte| format!("{byte:02x}")).collect();
    with(object(map, session), json!({ "instance": instance, "by_server": by_server }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_types::node::SessionOwner;

    fn info(session: u64, since_s: u64, heard_ms: u64, leases: u64) -> SessionInfo {
        let owner = SessionOwner { node: NodeId(9), instance: [1; 16] };
        let session = SessionId(session);
        SessionInfo { session, owner, since_s, heard_ms, leases, opens: 1, locks: 0, is_ending: false }
    }

    #[test]
    fn a_session_that_several_servers_know_is_one() {
        let told = [
            (NodeId(2), vec![info(5, 200, 900, 3)]),
            (NodeId(3), vec![info(4, 150, 10, 1), SessionInfo { is_ending: true, ..info(5, 100, 40, 2) }]),
        ];
        let merged = merged(&told);
        assert_eq!(merged.iter().map(|one| one.info.session.0).collect::<Vec<_>>(), [4, 5]);
        let one = &merged[1];
        assert_eq!(one.servers, [NodeId(3), NodeId(2)]);
        let sums = (one.info.since_s, one.info.heard_ms, one.info.leases, one.info.opens, one.info.is_ending);
        assert_eq!(sums, (100, 40, 5, 2, true));
    }
}
