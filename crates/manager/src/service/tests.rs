//! What an administrator is refused, and told to do instead.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod chains;
mod shared_disks;

use super::ManagerService;
use super::removal::KnownMember;
use crate::FoundTarget;
use crate::{ClusterState, Manager, ManagerError, MetadataRecord, Token, map_change};
use ashlar_coord::local_file::LocalFile;
use ashlar_env::sim::{SimClock, SimDisk};
use ashlar_env::{Clock, Disk, Env};
use ashlar_types::membership::{Change, Membership};
use ashlar_types::message::{ManagerReply, ManagerRequest, TargetReport};
use ashlar_types::{
    CopyGroup, Epoch, Node, NodeId, NodePolicy, PeerId, Places, Role, Roles, ShardId, TargetId, Timespec,
};
use std::sync::Arc;
use std::time::Duration;

/// A manager on node 1, which is `first` and has a command or two to carry out.
struct Site(ManagerService);

const FIRST: NodeId = NodeId(1);

impl Site {
    /// With nodes 2, 3 and so on of these names and roles; servers listen.
    fn with(nodes: &[(&str, &[Role])]) -> Site {
        Site::on(&(Arc::new(SimDisk::new()) as Arc<dyn Disk>), Env::os(), nodes)
    }

    /// As [`Site::with`], with its state on this disk.
    fn on(disk: &Arc<dyn Disk>, env: Env, nodes: &[(&str, &[Role])]) -> Site {
        let disk = disk.clone();
        let draft = Manager::draft(&disk, "", &env).unwrap();
        let manager = Manager::create(draft, Box::new(LocalFile::new(disk, ""))).unwrap();
        let service = ManagerService::new(manager, env, String::new()).unwrap();
        service.set_own_node(FIRST);
        service
            .manager
            .change(|state| {
                let map = &mut state.map;
                map.nodes[0].roles = [Role::Manager, Role::Admin].into_iter().collect();
                for (id, (name, roles)) in (2..).map(NodeId).zip(nodes) {
                    map.nodes.push(Node {
                        id,
                        name: (*name).to_owned(),
                        roles: roles.iter().copied().collect::<Roles>(),
                        listening: Vec::new(),
                        policy: NodePolicy::default(),
                        domain: String::new(),
                    });
                }
                for node in &mut map.nodes {
                    for role in node
                        .roles
                        .iter()
                        .filter(|role| matches!(role, Role::Manager | Role::Meta | Role::Storage))
                    {
                        let at = format!("10.0.0.{}:7400", node.id.0).parse().unwrap();
                        node.listening
                            .extend(Places { addresses: vec![at], ..Places::default() }.entries(role));
                    }
                }
                state.last_node = map.nodes.last().unwrap().id;
                // The first node is no metadata server here.
                let primary = map
                    .nodes
                    .iter()
                    .find(|node| node.roles.has(Role::Meta))
                    .map_or(NodeId(99), |node| node.id);
                map.shards.iter_mut().for_each(|shard| shard.primary = primary);
                Ok(())
            })
            .unwrap();
        Site(service)
    }

    fn ask(&self, by: NodeId, request: ManagerRequest) -> Result<(), String> {
        let roles = self.0.map().read().node(by).unwrap().roles;
        let peer = PeerId { cluster: self.0.manager.identity().cluster, node: by, roles, host: None };
        match self.0.call(peer, None, request) {
            ManagerReply::Refused(text) => Err(text),
            _ => Ok(()),
        }
    }

    fn remove(&self, by: NodeId, node: NodeId) -> Result<(), String> {
        self.ask(by, ManagerRequest::RemoveNode { node, is_own_meant: false })
    }

    /// A target on `node`, with its hundred chains.
    fn add_target(&self, node: NodeId) {
        let n = self.0.map().read().targets.len() as u8 + 1;
        let found = FoundTarget { id: TargetId(u32::from(n)), uuid: [n; 16], path: format!("/data{n}") };
        let add = |state: &mut crate::ClusterState| -> Result<(), ManagerError> {
            state.last_target = found.id;
            state.map = map_change::with_targets(&state.map, std::slice::from_ref(&found), node)?;
            Ok(())
        };
        self.0.manager.change(add).unwrap();
    }

    fn drain(&self, targets: &[u32]) -> Result<(), String> {
        let targets = targets.iter().copied().map(TargetId).collect();
        self.ask(FIRST, ManagerRequest::SetDraining { targets, is_draining: true })
    }
}

#[track_caller]
fn refused(outcome: Result<(), String>, words: &[&str]) {
    let text = outcome.unwrap_err();
    words.iter().for_each(|word| assert!(text.contains(word), "{text}: no `{word}`"));
}

#[test]
fn the_last_manager_stays_and_so_does_the_last_one_that_answers() {
    let admin: &[Role] = &[Role::Admin];
    let site = Site::with(&[("desk", admin)]);
    refused(
        site.remove(NodeId(2), FIRST),
        &["first is the only manager", "etcd", "ashlar token --role manager"],
    );
    let site = Site::with(&[("desk", admin), ("second", &[Role::Manager])]);
    let second = NodeId(3);
    refused(site.remove(NodeId(2), FIRST), &["only manager that answers", "nothing was heard of second yet"]);
    site.0.suppose_silence((second, Role::Manager), Some(Duration::from_secs(34)));
    refused(site.remove(NodeId(2), FIRST), &["nothing was heard of second for 34 s", "start another one"]);
    // The other way round nothing is lost: this one goes on.
    let other = Site::with(&[("desk", admin), ("second", &[Role::Manager])]);
    other.remove(NodeId(2), second).unwrap();
    site.0.suppose_silence((second, Role::Manager), None);
    site.remove(NodeId(2), FIRST).unwrap();
    assert!(site.0.map().read().node(FIRST).is_none());
}

#[test]
fn somebody_may_administer_afterwards() {
    let site = Site::with(&[("second", &[Role::Manager]), ("client", &[Role::Client])]);
    site.0.suppose_silence((NodeId(2), Role::Manager), None);
    let meant = ManagerRequest::RemoveNode { node: FIRST, is_own_meant: true };
    refused(site.ask(FIRST, meant), &["first is the only machine that may administer", "token --role admin"]);
    site.remove(FIRST, NodeId(3)).unwrap();
    refused(site.remove(FIRST, NodeId(3)), &["there is no node-3"]);
}

#[test]
fn who_asks_does_not_remove_himself_by_mistake() {
    let site = Site::with(&[("desk", &[Role::Admin])]);
    let desk = NodeId(2);
    refused(site.remove(desk, desk), &["desk is this machine", "--yes-this-one"]);
    site.ask(desk, ManagerRequest::RemoveNode { node: desk, is_own_meant: true }).unwrap();
}

#[test]
fn a_member_of_etcd_is_taken_out_there_first() {
    let member = |name: &str, host: u8| KnownMember {
        name: name.to_owned(),
        number: "8e9e05c52164694d".to_owned(),
        hosts: vec![[10, 0, 0, host].into()],
    };
    let names = |names: &[&str]| names.iter().map(|name| member(name, 1)).collect::<Vec<_>>();
    let nodes: &[(&str, &[Role])] = &[("desk", &[Role::Admin]), ("second", &[Role::Manager])];
    let (desk, second) = (NodeId(2), NodeId(3));
    let site = Site::with(nodes);
    let members = names(&["first", "second"]);
    site.0.set_etcd_members(Box::new(move || Ok(members.clone())));
    refused(site.remove(desk, second), &["second is a member of etcd", "`ashlar etcd remove second`"]);
    // Who is no manager is not asked about.
    site.remove(FIRST, desk).unwrap();
    let site = Site::with(nodes);
    let members = names(&["first"]);
    site.0.set_etcd_members(Box::new(move || Ok(members.clone())));
    site.0.suppose_silence((second, Role::Manager), None);
    refused(
        site.remove(desk, FIRST),
        &["only member", "`ashlar etcd join` on second", "`ashlar etcd remove first`"],
    );
    site.remove(desk, second).unwrap();
    let site = Site::with(nodes);
    site.0.set_etcd_members(Box::new(|| Err("no answer".into())));
    refused(site.remove(desk, second), &["does not tell", "no answer"]);
    // One that was added and has not been started has no name yet.
    let site = Site::with(nodes);
    let members = vec![member("first", 1), member("", 3)];
    site.0.set_etcd_members(Box::new(move || Ok(members.clone())));
    let told = ["not been started yet", "on second", "`ashlar etcd remove 8e9e05c52164694d`"];
    refused(site.remove(desk, second), &told);
    let site = Site::with(nodes);
    let members = vec![member("first", 1), member("", 4)];
    site.0.set_etcd_members(Box::new(move || Ok(members.clone())));
    site.remove(desk, second).unwrap();
}

#[test]
fn a_node_with_targets_or_shards_stays_and_the_commands_are_named() {
    let site = Site::with(&[("oss", &[Role::Storage, Role::Meta])]);
    let oss = NodeId(2);
    site.add_target(oss);
    let told = [
        "oss has 1 target, 1:",
        "ashlar node drain oss",
        "ashlar target remove",
        "64 shards",
        "shard drain oss",
    ];
    refused(site.remove(FIRST, oss), &told);
    site.add_target(oss);
    refused(site.remove(FIRST, oss), &["oss has 2 targets, 1, 2:"]);
}

#[test]
fn what_is_drained_goes_where_somebody_answers_and_saying_it_twice_is_no_error() {
    let site = Site::with(&[("oss1", &[Role::Storage]), ("oss2", &[Role::Storage])]);
    let (first, second) = (NodeId(2), NodeId(3));
    site.add_target(first);
    refused(site.drain(&[1]), &["no other target of the pool default", "add one first"]);
    site.add_target(second);
    refused(site.drain(&[1, 9]), &["there is no target-9", "ashlar target list"]);
    refused(site.drain(&[1, 2]), &["no other target"]);
    assert!(site.0.map().read().targets.iter().all(|target| !target.is_draining), "nothing was half done");
    site.0.suppose_silence((second, Role::Storage), Some(Duration::from_secs(34)));
    refused(site.drain(&[1]), &["nothing was heard of oss2 for 34 s"]);
    site.0.suppose_silence((second, Role::Storage), None);
    site.drain(&[1]).unwrap();
    let remove = |id| site.ask(FIRST, ManagerRequest::RemoveTarget { target: TargetId(id) });
    refused(remove(1), &["target-1 is being drained", "100 chains lead to it", "ashlar target moves"]);
    refused(remove(2), &["100 chains lead to target-2", "ashlar target drain 2"]);
    refused(remove(9), &["there is no target-9", "ashlar target list"]);
    let pause = ManagerRequest::SetMoves { is_paused: Some(true), rate_mib_s: None, rebalancing: None };
    site.ask(FIRST, pause).unwrap();
    refused(remove(1), &["moves are paused", "--resume"]);
    // Said once more while the other one is away: it is so already.
    site.0.suppose_silence((second, Role::Storage), Some(Duration::from_secs(34)));
    let epoch = site.0.map().read().epoch;
    site.drain(&[1]).unwrap();
    assert_eq!(site.0.map().read().epoch, epoch);
}

#[test]
fn no_chain_is_sent_to_a_target_whose_server_is_away() {
    use ashlar_types::message::TargetReport;
    let site = Site::with(&[("oss1", &[Role::Storage]), ("oss2", &[Role::Storage])]);
    let (first, second) = (NodeId(2), NodeId(3));
    site.add_target(first);
    site.add_target(second);
    let report = |node, id| {
        let target = TargetReport {
            target: TargetId(id),
            bytes_total: 1 << 30,
            bytes_free: 1 << 30,
            bytes_by_chain: Vec::new(),
        };
        site.ask(node, ManagerRequest::ReportTargets { targets: vec![target] }).unwrap();
    };
    report(first, 1);
    report(second, 2);
    site.drain(&[1]).unwrap();
    let moving = || site.0.map().read().chains.iter().filter(|chain| chain.moving.is_some()).count();
    site.0.suppose_silence((second, Role::Storage), Some(Duration::from_secs(34)));
    site.0.plan_moves().unwrap();
    assert_eq!(moving(), 0);
    site.0.suppose_silence((second, Role::Storage), None);
    site.0.plan_moves().unwrap();
    assert!(moving() > 0);
}

#[test]
fn a_shard_that_went_on_before_its_transfer_was_asked_for_again_was_given_away() {
    let meta: &[Role] = &[Role::Meta];
    let site = Site::with(&[("first-meta", meta), ("second-meta", meta), ("third-meta", meta)]);
    let (first, second, third) = (NodeId(2), NodeId(3), NodeId(4));
    let seen = site.0.map().read().epoch;
    // The answer is lost, and the shard goes on.
    let given = |state: &mut crate::ClusterState| {
        state.map.shards[3].primary = third;
        Ok(())
    };
    site.0.manager.change(given).unwrap();
    let roles = site.0.map().read().node(first).unwrap().roles;
    let peer = PeerId { cluster: site.0.manager.identity().cluster, node: first, roles, host: None };
    let ask = |seen| {
        let shards = vec![ShardId(3)];
        site.0.call(peer, None, ManagerRequest::TransferShards { shards, from: first, to: second, seen })
    };
    // Refused, its first server would take it for its own again, and serve it until it hears of the map.
    assert!(matches!(ask(seen), ManagerReply::Transferred(Ok(()))));
    assert!(matches!(ask(Epoch(seen.0 + 1)), ManagerReply::Transferred(Ok(()))));
    assert_eq!(site.0.map().read().primary(ShardId(3)), Some(third), "and stays where it is");
}

#[test]
fn what_chains_lack_is_told_as_bytes_of_all_copies_that_are_missing() {
    let storage: &[Role] = &[Role::Storage];
    let site = Site::with(&[("oss0", storage), ("oss1", storage), ("oss2", storage)]);
    let nodes = [NodeId(2), NodeId(3), NodeId(4)];
    nodes.into_iter().for_each(|node| site.add_target(node));
    nodes.into_iter().for_each(|node| site.0.suppose_silence((node, Role::Storage), None));
    assert_eq!(site.0.copy_works(), []);
    let copies = ManagerRequest::CopyPool { pool: "default".to_owned(), copies: 3 };
    site.ask(FIRST, copies).unwrap();
    assert_eq!(site.0.copy_works(), [], "none lacks any");
    let map = || site.0.map().read().clone();
    let copied: Vec<_> = map().chains_of_copies().map(|(chain, _)| chain.clone()).collect();
    let [one, two] = [&copied[0], &copied[1]];
    let remove = |chain: &ashlar_types::map::Chain, gone: usize| {
        let chain = map().chain(chain.id).unwrap().clone();
        let (by, expected) = (chain.targets[0], chain.group().unwrap().epoch);
        let change = ashlar_types::message::ChainChange {
            chain: chain.id,
            expected,
            change: Change::Remove(chain.targets[gone]),
        };
        let node = map().target(by).unwrap().node;
        site.ask(node, ManagerRequest::ChangeChains { by, changes: vec![change] }).unwrap();
    };
    remove(one, 1);
    remove(two, 1);
    remove(two, 1);
    let [work] = site.0.copy_works()[..] else { panic!("{:?}", site.0.copy_works()) };
    assert_eq!((work.chains_short, work.chains_under_way), (2, 0));
    assert_eq!((work.bytes_lacking, work.chains_untold), (0, 2), "nobody has told");
    let report = |chain: &ashlar_types::map::Chain, bytes_by_chain| {
        let target = chain.targets[0];
        let report = TargetReport { target, bytes_total: 1 << 40, bytes_free: 1 << 40, bytes_by_chain };
        let node = map().target(target).unwrap().node;
        site.ask(node, ManagerRequest::ReportTargets { targets: vec![report] }).unwrap();
    };
    report(two, vec![(one.id, 10), (two.id, 1000)]);
    report(one, vec![(one.id, 10), (two.id, 1000)]);
    let [work] = site.0.copy_works()[..] else { panic!("{:?}", site.0.copy_works()) };
    assert_eq!(
        (work.bytes_lacking, work.chains_untold),
        (2010, 0),
        "two copies of one, and one of the other"
    );
}

#[test]
fn how_far_a_drain_is_is_kept_with_the_state_and_goes_with_it() {
    let storage: &[Role] = &[Role::Storage];
    let site = Site::with(&[("oss0", storage), ("oss1", storage), ("mds", &[Role::Meta])]);
    let (oss0, oss1) = (NodeId(2), NodeId(3));
    [oss0, oss1].into_iter().for_each(|node| site.add_target(node));
    [oss0, oss1].into_iter().for_each(|node| site.0.suppose_silence((node, Role::Storage), None));
    let map = || site.0.map().read().clone();
    let report = |target: u32, bytes: u64| TargetReport {
        target: TargetId(target),
        bytes_total: 1 << 40,
        bytes_free: 1 << 40,
        bytes_by_chain: map().chains_at(TargetId(target)).map(|chain| (chain.id, bytes)).collect(),
    };
    for (node, report) in [(oss0, report(1, 1000)), (oss1, report(2, 10))] {
        site.ask(node, ManagerRequest::ReportTargets { targets: vec![report] }).unwrap();
    }
    let state = || site.0.manager.state();
    assert!(state().encode().starts_with(b"ASHLSTA6"), "software that knows nothing of it reads it");
    site.drain(&[1]).unwrap();
    let [work] = site.0.works()[..] else { panic!("{:?}", site.0.works()) };
    assert_eq!((work.target, work.chains_done, work.chains_left), (Some(TargetId(1)), 0, 100));
    assert_eq!((work.bytes_done, work.bytes_left, work.is_estimated), (0, Some(100_000), false));
    site.0.plan_moves().unwrap();
    for _ in 0..3 {
        let moving = map().chains.iter().find_map(|chain| Some((chain.id, chain.moving?))).unwrap();
        let (chain, since) = (moving.0, moving.1.since);
        let end = ManagerRequest::EndMove { chain, from: TargetId(1), since, is_given_up: false };
        site.ask(oss0, end.clone()).unwrap();
        // Asked once more, for the answer was lost: it has gone once.
        site.ask(oss0, end).unwrap();
    }
    let [work] = site.0.works()[..] else { panic!("{:?}", site.0.works()) };
    assert_eq!((work.chains_done, work.chains_left), (3, 97));
    assert_eq!((work.bytes_done, work.bytes_left), (3000, Some(97_000)));
    let stored = state().encode();
    assert!(stored.starts_with(b"ASHLSTA7"));
    assert_eq!(crate::ClusterState::decode(&stored).unwrap(), state(), "as it was stored");
    // Taken back, and begun anew, it is another one; nothing is left of the first.
    let undrain = ManagerRequest::SetDraining { targets: vec![TargetId(1)], is_draining: false };
    site.ask(FIRST, undrain).unwrap();
    assert!(site.0.works().is_empty() && state().encode().starts_with(b"ASHLSTA6"));
    site.drain(&[1]).unwrap();
    assert_eq!(site.0.works()[0].chains_done, 0);
}

#[test]
fn moves_of_shards_are_paused_for_everybody_until_they_are_resumed() {
    let site = Site::with(&[("mds", &[Role::Meta]), ("client", &[Role::Client])]);
    let pause = |is_paused| ManagerRequest::SetShardMoves { is_paused };
    let is_paused = |by: NodeId| {
        let roles = site.0.map().read().node(by).unwrap().roles;
        let peer = PeerId { cluster: site.0.manager.identity().cluster, node: by, roles, host: None };
        site.0.call(peer, None, ManagerRequest::ShardMoves)
    };
    assert_eq!(is_paused(NodeId(2)), ManagerReply::ShardMoves { is_paused: false });
    refused(site.ask(NodeId(2), pause(true)), &["may not do that"]);
    site.ask(FIRST, pause(true)).unwrap();
    assert_eq!(is_paused(NodeId(2)), ManagerReply::ShardMoves { is_paused: true });
    refused(site.ask(NodeId(3), ManagerRequest::ShardMoves), &["may not do that"]);
    let stored = site.0.manager.state();
    assert_eq!(crate::ClusterState::decode(&stored.encode()).unwrap(), stored);
    site.ask(FIRST, pause(false)).unwrap();
    assert_eq!(is_paused(NodeId(2)), ManagerReply::ShardMoves { is_paused: false });
}

/// Of machines with clocks of their own, in seconds.
fn env_at(secs: i64) -> Env {
    let clock: Arc<dyn Clock> = Arc::new(SimClock::new(Timespec::new(secs, 0)));
    Env { clock, ..Env::os() }
}

impl Site {
    /// Another manager with the same state, and a clock of its own.
    fn beside(&self, disk: &Arc<dyn Disk>, env: Env) -> Site {
        let manager = Manager::open(disk, "", Box::new(LocalFile::new(disk.clone(), ""))).unwrap();
        let service = ManagerService::new(manager, env, String::new()).unwrap();
        assert_eq!(service.manager.identity(), self.0.manager.identity());
        Site(service)
    }

    /// The public key of a new token.
    fn token(&self) -> [u8; 32] {
        let role = [Role::Client].into_iter().collect();
        let policy = NodePolicy::default();
        match self.0.new_token(FIRST, role, 60 * 60, &policy).unwrap() {
            ManagerReply::Token(text) => Token::parse(&text).unwrap().public_key().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn knows(&self, key: &[u8; 32]) -> bool {
        self.0.manager.refresh().unwrap();
        self.0.knows_token(key)
    }
}

const DAY_S: i64 = 24 * 60 * 60;
const TODAY_S: i64 = 1_800_000_000;

#[test]
fn a_manager_whose_clock_is_ahead_takes_no_token_from_another_one() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let on_time = Site::on(&disk, env_at(TODAY_S), &[("mds", &[Role::Meta])]);
    let ahead = on_time.beside(&disk, env_at(TODAY_S + DAY_S));
    let key = on_time.token();
    let later = ahead.token();
    assert!(on_time.knows(&key) && on_time.knows(&later), "a token that can be used was forgotten");
    assert!(!ahead.knows(&key) && ahead.knows(&later), "a token is too old by the clock of who is asked");
    // What is too old for everybody goes when the next one is made.
    let much_later = on_time.beside(&disk, env_at(TODAY_S + 3 * DAY_S + 2 * 60 * 60));
    much_later.token();
    assert_eq!(much_later.0.manager.state().tokens.len(), 1);
}

#[test]
fn tokens_that_were_used_make_room_for_others_and_those_that_were_not_stay() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let site = Site::on(&disk, env_at(TODAY_S), &[("mds", &[Role::Meta])]);
    let waiting = site.token();
    let fill = |used_by: Option<(NodeId, Vec<u8>)>| {
        let change = |state: &mut ClusterState| {
            let one = state.tokens[0].clone();
            let number = state.tokens.len();
            state.tokens.extend((number..ClusterState::TOKENS_MAX).map(|number| {
                let mut public_key = [0; 32];
                public_key[..8].copy_from_slice(&(number as u64).to_le_bytes());
                crate::TokenRecord { public_key, used_by: used_by.clone(), ..one.clone() }
            }));
            Ok(())
        };
        site.0.manager.change(change).unwrap();
    };
    fill(Some((NodeId(2), vec![1])));
    // Those that were used just now may be asked for again.
    let refusal = site.0.new_token(FIRST, [Role::Client].into_iter().collect(), 60, &NodePolicy::default());
    assert!(refusal.unwrap_err().to_string().contains("too many tokens"));
    let two_hours = 2 * 60 * 60;
    let later = site.beside(&disk, env_at(TODAY_S + two_hours));
    later.token();
    let tokens = later.0.manager.state().tokens;
    assert_eq!(tokens.len(), 2);
    assert_eq!(tokens[0].public_key, waiting, "a token that waits to be used was forgotten");
}

#[test]
fn copies_of_a_metadata_server_change_by_the_rules_and_by_those_who_keep_them() {
    let meta: &[Role] = &[Role::Meta];
    let site = Site::with(&[("meta1", meta), ("meta2", meta), ("meta3", meta)]);
    let [one, two, three] = [2, 3, 4].map(NodeId);
    let record = |node: NodeId| MetadataRecord { uuid: [node.0 as u8; 16], node, path: "/meta".to_owned() };
    let note = |state: &mut ClusterState| -> Result<(), ManagerError> {
        state.metadata = vec![record(one), record(two)];
        Ok(())
    };
    site.0.manager.change(note).unwrap();
    let set = |server, wanted| site.ask(FIRST, ManagerRequest::SetCopies { server, wanted });
    refused(set(three, 2), &["meta3 is no metadata server"]);
    refused(set(one, 4), &["1 to 3 copies"]);
    refused(site.ask(one, ManagerRequest::SetCopies { server: one, wanted: 2 }), &["may not do that"]);
    refused(
        site.ask(one, ManagerRequest::FoundCopies { uuid: [2; 16] }),
        &["no copies of meta1 are to be kept"],
    );
    refused(site.ask(one, ManagerRequest::FoundCopies { uuid: [9; 16] }), &["not the metadata of meta1"]);
    let state = || site.0.manager.state();
    assert!(state().encode().starts_with(b"ASHLSTA6"), "software that knows nothing of them reads it");
    set(one, 2).unwrap();
    let membership = || state().copies.membership(one).cloned().unwrap();
    site.ask(one, ManagerRequest::FoundCopies { uuid: [2; 16] }).unwrap();
    let founded = membership();
    assert_eq!((founded.epoch, founded.in_sync.as_slice()), (state().map.epoch, &[one][..]));
    // Asked once more, for the answer was lost.
    site.ask(one, ManagerRequest::FoundCopies { uuid: [2; 16] }).unwrap();
    assert_eq!(membership(), founded);
    assert_eq!(ClusterState::decode(&state().encode()).unwrap(), state(), "as it was stored");
    let change =
        |by, expected, change| site.ask(by, ManagerRequest::ChangeCopies { server: one, expected, change });
    refused(change(two, founded.epoch, Change::Admit(two)), &["not to keep a copy of meta1"]);
    refused(change(one, founded.epoch, Change::Admit(two)), &["not to keep a copy of meta1"]);
    let join = |state: &mut ClusterState| -> Result<(), ManagerError> {
        state.map.epoch.0 += 1;
        let group = state.copies.groups.iter_mut().find(|group| group.server == one).unwrap();
        group.membership = Some(Membership::new(state.map.epoch, [one, two]));
        Ok(())
    };
    site.0.manager.change(join).unwrap();
    let both = membership();
    refused(change(two, founded.epoch, Change::Remove(one)), &["not changed", "the group is at"]);
    refused(change(three, both.epoch, Change::Remove(one)), &["only another may ask"]);
    refused(change(three, both.epoch, Change::Renew), &["only another may ask"]);
    // Who does not serve it cannot begin, and is certified for nothing.
    let begin = |by, epoch| site.ask(by, ManagerRequest::BeginService { server: one, epoch });
    refused(begin(two, both.epoch), &["is not who serves meta1"]);
    refused(begin(one, founded.epoch), &["is not who serves meta1"]);
    begin(one, both.epoch).unwrap();
    change(two, both.epoch, Change::Remove(one)).unwrap();
    let moved = membership();
    assert_eq!((moved.in_sync.as_slice(), moved.epoch > both.epoch), (&[two][..], true));
    refused(begin(one, both.epoch), &["is not who serves meta1"]);
    begin(two, moved.epoch).unwrap();
    let serve = |by, epoch| {
        let addresses = vec!["10.0.0.9:7401".parse().unwrap()];
        site.ask(by, ManagerRequest::ServeCopy { server: one, epoch, addresses, management: Vec::new() })
    };
    refused(serve(one, both.epoch), &["is not who serves meta1"]);
    refused(serve(two, both.epoch), &["is not who serves meta1"]);
    serve(two, moved.epoch).unwrap();
    let map = site.0.map().read().clone();
    assert_eq!(map.node(one).unwrap().addresses(Role::Meta), ["10.0.0.9:7401".parse().unwrap()]);
    let certify = |by| {
        let public_key = crate::draw_key().unwrap().1;
        site.ask(by, ManagerRequest::CertifyServer { server: one, public_key })
    };
    certify(two).unwrap();
    refused(certify(one), &["keeps no copy"]);
    refused(certify(three), &["keeps no copy"]);
    // What a metadata server does for itself it does not when it is served from copies.
    let alone = ManagerRequest::MetaIdentity { uuid: [2; 16], path: "/meta".to_owned() };
    refused(site.ask(one, alone), &["is served from copies"]);
    let listen = ManagerRequest::Listen { role: Role::Meta, addresses: vec!["10.0.0.1:1".parse().unwrap()] };
    refused(site.ask(one, listen), &["is served from copies"]);
    refused(site.remove(FIRST, two), &["meta2 keeps a copy of the metadata of meta1"]);
}

#[test]
fn a_certificate_is_renewed_for_no_more_than_it_was_for() {
    let site = Site::with(&[("all", &[Role::Meta, Role::Storage, Role::Admin])]);
    let peer = |roles: &[Role]| PeerId {
        cluster: site.0.manager.identity().cluster,
        node: NodeId(2),
        roles: roles.iter().copied().collect(),
        host: None,
    };
    let (key, public_key) = crate::draw_key().unwrap();
    let roles_of = |roles: &[Role]| {
        let certificate = site.0.renewed(peer(roles), &public_key).unwrap();
        let authority = site.0.authority.certificate();
        ashlar_rpc::net::TlsIdentity::from_pem(&certificate, &key, authority)
            .unwrap()
            .peer()
            .roles
            .to_string()
    };
    assert_eq!(roles_of(&[Role::Meta, Role::Storage, Role::Admin]), "meta+storage+admin");
    assert_eq!(roles_of(&[Role::Meta]), "meta", "one who keeps copies has the name, and one role");
    assert_eq!(roles_of(&[Role::Meta, Role::Client]), "meta");
}

#[test]
fn who_serves_a_metadata_server_from_a_copy_asks_in_its_name_for_no_more_than_its_service_does() {
    use ashlar_types::testing::schema;
    let all: &[Role] = &Role::ALL;
    let site = Site::with(&[("meta1", all), ("meta2", all)]);
    let (one, two) = (NodeId(2), NodeId(3));
    let cluster = site.0.manager.identity().cluster;
    // Whatever roles it had: its certificate is for one.
    let peer = PeerId { cluster, node: one, roles: all.iter().copied().collect(), host: Some(two) };
    let mut allowed = Vec::new();
    for request in schema::samples::<ManagerRequest>() {
        let before = site.0.manager.state();
        let text = format!("{request:?}");
        let name = text.split([' ', '{']).next().unwrap().to_owned();
        match site.0.call(peer, None, request) {
            ManagerReply::Refused(why) if why.contains("in the place of") => {
                assert_eq!(site.0.manager.state(), before, "{name}");
            }
            _ => allowed.push(name),
        }
    }
    allowed.sort();
    assert_eq!(
        allowed,
        ["Map", "OpenKey", "Present", "Report", "SealingKeys", "ShardMoves", "TransferShards"]
    );
    // And only what a metadata server may.
    let client = PeerId { roles: Roles::default().with(Role::Client), ..peer };
    let reply = site.0.call(client, None, ManagerRequest::SealingKeys);
    assert!(matches!(reply, ManagerReply::Refused(why) if why.contains("its certificate is for client")));
}

#[test]
fn a_machine_comes_in_the_place_of_a_metadata_server_for_as_long_as_it_keeps_a_copy() {
    use ashlar_rpc::net::Peer;
    let meta: &[Role] = &[Role::Meta];
    let site = Site::with(&[("meta1", meta), ("meta2", meta), ("oss1", &[Role::Storage])]);
    let [one, two, three] = [2, 3, 4].map(NodeId);
    let (cluster, roles) = (site.0.manager.identity().cluster, Roles::default().with(Role::Meta));
    let id = |node, host| PeerId { cluster, node, roles, host };
    let change = |change: &dyn Fn(&mut ClusterState)| {
        let changed = |state: &mut ClusterState| -> Result<(), ManagerError> {
            change(state);
            state.map.epoch.0 += 1;
            Ok(())
        };
        site.0.manager.change(changed).unwrap();
    };
    change(&|state| {
        let mut group = CopyGroup::new(one, 2);
        group.membership = Some(Membership::new(state.map.epoch, [one, two]));
        state.copies.groups.push(group);
    });
    let is_in_place = |node, host| site.0.is_in_place(id(node, host));
    assert!(is_in_place(one, Some(two)) && is_in_place(one, Some(one)), "they keep a copy");
    assert!(!is_in_place(one, Some(three)) && !is_in_place(two, Some(one)));
    assert!(is_in_place(one, None) && is_in_place(two, None), "it is itself");
    change(&|state| {
        let epoch = state.map.epoch;
        state.copies.groups[0].membership = Some(Membership::new(epoch, [one]));
    });
    assert!(!is_in_place(one, Some(two)), "it keeps none any more");

    let admit = |node, host| {
        let peer = Peer { id: id(node, host), role: Role::Meta, instance: [1; 16], token: None };
        crate::admit(&site.0.map().read(), &peer)
    };
    assert_eq!((admit(one, Some(two)), admit(one, None)), (Ok(()), Ok(())));
    assert!(admit(one, Some(three)).unwrap_err().contains("no metadata server"), "it stores content alone");
    assert!(admit(one, Some(NodeId(9))).unwrap_err().contains("node-9, which comes in the place of node-2"));
    change(&|state| state.map.nodes.retain(|node| node.id != two));
    assert!(admit(one, Some(two)).unwrap_err().contains("(any more)"), "it was removed");
    assert!(
        admit(two, Some(one)).unwrap_err().contains("not in the file system"),
        "who it comes in the place of"
    );
    assert_eq!(admit(one, None), Ok(()));
}
