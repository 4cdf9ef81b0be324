//! Goal: no call, however malformed, makes a manager panic or hang, or leaves a state that it does not take up again after a start. Method: every call that there is, encoded
//! with some of its fields changed, decoded, and given to a manager of a file system with servers, targets and a client.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ashlar_coord::Coord;
use ashlar_coord::local_file::LocalFile;
use ashlar_env::sim::{SimDisk, SimEntropy};
use ashlar_env::{Disk, Env};
use ashlar_manager::{ClusterState, FoundTarget, Manager, ManagerService};
use ashlar_types::codec::decode;
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::testing::{mutated, schema};
use ashlar_types::{Node, NodeId, NodePolicy, PeerId, PoolId, Role, TargetId};
use std::sync::Arc;

const ROUNDS: usize = 10_000;
/// Calls after which there is a new file system: what they name may have gone.
const ROUNDS_PER_SITE: usize = 250;

/// A file system in which every node has every role, so that no call is refused for that.
struct Site {
    disk: Arc<dyn Disk>,
    service: ManagerService,
}

impl Site {
    fn new() -> Site {
        let (env, disk): (Env, Arc<dyn Disk>) = (Env::os(), Arc::new(SimDisk::new()));
        let draft = Manager::draft(&disk, "", &env).unwrap();
        let manager = Manager::create(draft, Box::new(LocalFile::new(disk.clone(), ""))).unwrap();
        manager
            .change(|state| {
                state.map.nodes[0].roles = Role::ALL.into_iter().collect();
                state.map.nodes.extend((2..5).map(|id| Node {
                    id: NodeId(id),
                    name: format!("n{id}"),
                    roles: Role::ALL.into_iter().collect(),
                    listening: Vec::new(),
                    policy: NodePolicy::default(),
                    domain: String::new(),
                }));
                state.last_node = NodeId(4);
                Ok(())
            })
            .unwrap();
        let found = |number: u8| FoundTarget {
            id: TargetId(u32::from(number)),
            uuid: [number; 16],
            path: format!("/{number}"),
        };
        manager.take_targets(NodeId(1), &[found(1), found(2)]).unwrap();
        let service = ManagerService::new(manager, env, String::new()).unwrap();
        service.set_own_node(NodeId(1));
        Site { disk, service }
    }

    /// Whether the call was more than refused.
    fn call(&self, node: u32, request: ManagerRequest) -> bool {
        let (cluster, roles) = (self.service.manager().identity().cluster, Role::ALL.into_iter().collect());
        let reply =
            self.service.call(PeerId { cluster, node: NodeId(node), roles, host: None }, None, request);
        if let ManagerReply::Refused(text) = &reply {
            assert!(!text.is_empty(), "whoever is refused is told something");
        }
        !matches!(reply, ManagerReply::Refused(_))
    }

    /// What is stored is a state, and the map says of every chain where it is.
    fn require_sound(&self) {
        let (_, bytes) = LocalFile::new(self.disk.clone(), "").load().unwrap();
        ClusterState::decode(&bytes).unwrap();
        let again = Manager::open(&self.disk, "", Box::new(LocalFile::new(self.disk.clone(), ""))).unwrap();
        let map = again.map().read().clone();
        assert!(map.chains_of(PoolId(0), 1).all(|chain| map.head(chain.id).is_some()));
    }
}

#[test]
fn ten_thousand_malformed_calls_leave_a_manager_whole() {
    let (entropy, samples) = (SimEntropy::new(20_261_125), schema::samples::<ManagerRequest>());
    let (mut decoded, mut done) = (0, 0);
    let mut site = Site::new();
    for round in 0..ROUNDS {
        if round % ROUNDS_PER_SITE == 0 {
            site.require_sound();
            site = Site::new();
        }
        let bytes = mutated(&samples[round % samples.len()], |bound| entropy.below(bound));
        let Ok(request) = decode::<ManagerRequest>(&bytes, "call") else { continue };
        decoded += 1;
        done += usize::from(site.call(1 + entropy.below(4) as u32, request));
    }
    site.require_sound();
    assert!(decoded > ROUNDS / 3 && done > ROUNDS / 50, "{decoded} could be decoded, {done} were done");
}
