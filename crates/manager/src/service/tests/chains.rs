//! Chains of several copies, as an administrator makes them and storage servers change them.

use super::{FIRST, Site, refused};
use crate::{ClusterState, ManagerError};
use ashlar_types::map::{Chain, TargetState};
use ashlar_types::membership::Change;
use ashlar_types::message::{ChainChange, ManagerRequest, TargetReport};
use ashlar_types::{ChainId, ClusterMap, Epoch, NodeId, PoolId, Role, TargetId};
use std::sync::Arc;
use std::time::Duration;

const STORAGE: &[Role] = &[Role::Storage];
const SERVERS: &[(&str, &[Role])] =
    &[("oss1", STORAGE), ("oss2", STORAGE), ("oss3", STORAGE), ("oss4", STORAGE), ("mds", &[Role::Meta])];

impl Site {
    /// Target `i` on `oss{i}`; all have told of themselves.
    fn of_targets(count: u32) -> Site {
        let mut site = Site::with(SERVERS);
        (1..=count).for_each(|target| site.add_target(NodeId(1 + target)));
        (1..=count).for_each(|target| site.hear(target));
        site.0.suppose_it_can_tell();
        site
    }

    fn hear(&self, target: u32) {
        let node = NodeId(1 + target);
        self.0.suppose_silence((node, Role::Storage), None);
        let target = TargetId(target);
        let (bytes_total, bytes_free) = (1 << 40, 1 << 39);
        let report = TargetReport { target, bytes_total, bytes_free, bytes_by_chain: Vec::new() };
        self.ask(node, ManagerRequest::ReportTargets { targets: vec![report] }).unwrap();
    }

    fn copy_pool(&self, pool: &str, copies: u8) -> Result<(), String> {
        self.ask(FIRST, ManagerRequest::CopyPool { pool: pool.to_owned(), copies })
    }

    fn the_map(&self) -> Arc<ClusterMap> {
        self.0.map().read().clone()
    }

    fn change_chains(&self, by: u32, changes: Vec<ChainChange>) -> Result<(), String> {
        self.ask(NodeId(1 + by), ManagerRequest::ChangeChains { by: TargetId(by), changes })
    }

    /// Chains of several copies with all of these targets.
    fn copied(&self, targets: &[u32]) -> Vec<Chain> {
        let has_all = |chain: &&Chain| targets.iter().all(|target| chain.is_member(TargetId(*target)));
        let map = self.the_map();
        map.chains.iter().filter(|chain| chain.copies.is_some()).filter(has_all).cloned().collect()
    }

    /// As if `target` were silent, and those that share chains with it had it removed.
    fn fail(&self, target: u32) {
        self.0.suppose_silence((NodeId(1 + target), Role::Storage), Some(Duration::from_secs(20)));
        for by in (1..=4).filter(|by| *by != target) {
            let shared = self.copied(&[by, target]);
            let changes = shared.iter().map(|chain| change_of(chain, Change::Remove(TargetId(target))));
            let changes: Vec<_> = changes.collect();
            if !changes.is_empty() {
                self.change_chains(by, changes).unwrap();
            }
        }
    }
}

fn change_of(chain: &Chain, change: Change<TargetId>) -> ChainChange {
    ChainChange { chain: chain.id, expected: chain.group().unwrap().epoch, change }
}

fn former(chain: &Chain) -> Vec<u32> {
    chain.copies.as_ref().unwrap().former.iter().map(|target| target.0).collect()
}

#[test]
fn a_pool_has_chains_of_copies_when_it_has_as_many_servers() {
    let site = Site::of_targets(1);
    refused(site.copy_pool("default", 2), &["targets that take part are on oss1 only", "--pool default"]);
    refused(site.copy_pool("default", 1), &["2 to 3 copies"]);
    refused(site.copy_pool("default", 4), &["2 to 3 copies"]);
    refused(site.copy_pool("fast", 2), &["there is no pool `fast`", "ashlar pool add"]);
    let by_storage = ManagerRequest::CopyPool { pool: "default".to_owned(), copies: 2 };
    refused(site.ask(NodeId(2), by_storage), &["may not do that"]);
    let site = Site::of_targets(3);
    assert!(site.0.manager.state().encode().starts_with(b"ASHLSTA6"), "software of before reads it");
    site.copy_pool("default", 2).unwrap();
    let map = site.the_map();
    assert_eq!(map.check(), Ok(()));
    let made: Vec<&Chain> = map.chains_of(PoolId(0), 2).collect();
    assert_eq!((made.len(), map.chains_of(PoolId(0), 1).count()), (150, 300));
    assert!(made.iter().all(|chain| chain.group().unwrap().epoch == map.epoch));
    // Said once more, it is so already.
    site.copy_pool("default", 2).unwrap();
    assert_eq!(site.the_map().epoch, map.epoch);
    let state = site.0.manager.state();
    let stored = state.encode();
    assert!(stored.starts_with(b"ASHLSTA9"), "software of before says that it is newer");
    assert_eq!(ClusterState::decode(&stored).unwrap(), state);
}

#[test]
fn a_target_that_comes_later_takes_its_part() {
    let site = Site::of_targets(2);
    site.copy_pool("default", 2).unwrap();
    let before = site.copied(&[]).len();
    site.add_target(NodeId(4));
    assert_eq!(site.copied(&[3]).len(), 100);
    assert_eq!(site.copied(&[]).len(), before + 100);
    assert_eq!(site.the_map().chains_of(PoolId(0), 3).count(), 0, "of as many copies there were none");
    assert_eq!(site.the_map().check(), Ok(()));
    // While nobody else serves there is nobody to keep the other copy.
    let away = |state: &mut ClusterState| -> Result<(), ManagerError> {
        state.map.targets.iter_mut().for_each(|target| target.state = TargetState::Offline);
        Ok(())
    };
    site.0.manager.change(away).unwrap();
    site.add_target(NodeId(5));
    assert!(site.copied(&[4]).is_empty());
}

#[test]
fn chains_change_for_who_is_in_them_all_at_one_epoch() {
    let site = Site::of_targets(3);
    site.copy_pool("default", 2).unwrap();
    let (epoch, shared) = (site.the_map().epoch, site.copied(&[1, 2]));
    let remove_2 = |chain: &Chain| change_of(chain, Change::Remove(TargetId(2)));
    let mut asked: Vec<ChainChange> = shared.iter().map(remove_2).collect();
    // Who is in neither, who serves nothing of the sort, and who is another one.
    let of_others: Vec<ChainChange> = site.copied(&[2, 3]).iter().map(remove_2).collect();
    site.change_chains(1, of_others.clone()).unwrap();
    let in_the_name_of_3 = ManagerRequest::ChangeChains { by: TargetId(3), changes: of_others };
    refused(site.ask(NodeId(2), in_the_name_of_3.clone()), &["target-3 is not served by node-2"]);
    refused(site.ask(FIRST, in_the_name_of_3), &["may not do that"]);
    site.change_chains(1, Vec::new()).unwrap();
    // And what may not be: a chain of one copy, one that there is not, what only managers may.
    let odd = |chain, change| ChainChange { chain: ChainId(chain), expected: epoch, change };
    let first = shared[0].id.0;
    site.change_chains(
        1,
        vec![
            odd(0, Change::Renew),
            odd(99_999, Change::Renew),
            odd(first, Change::Admit(TargetId(3))),
            ChainChange { expected: Epoch(epoch.0 - 1), ..odd(first, Change::Renew) },
            ChainChange { expected: Epoch(epoch.0 + 1), ..odd(first, Change::Renew) },
        ],
    )
    .unwrap();
    assert_eq!(site.the_map().epoch, epoch, "nothing has changed");
    // Twice the same chain, for the group that there is and for the one that comes of it: it is changed once.
    asked.push(asked[0]);
    asked.push(ChainChange { expected: Epoch(epoch.0 + 1), ..asked[0] });
    site.change_chains(1, asked.clone()).unwrap();
    let map = site.the_map();
    assert_eq!(map.epoch, Epoch(epoch.0 + 1));
    assert!(!shared.is_empty());
    for chain in &shared {
        let chain = map.chain(chain.id).unwrap();
        assert_eq!((chain.targets.as_slice(), former(chain)), (&[TargetId(1)][..], vec![2]));
        assert_eq!(chain.group().unwrap().epoch, map.epoch);
    }
    assert_eq!(map.check(), Ok(()));
    // The answer was lost: the same again changes nothing. And the last one stays.
    site.change_chains(1, asked).unwrap();
    let last = map.chain(shared[0].id).unwrap();
    site.change_chains(1, vec![change_of(last, Change::Remove(TargetId(1)))]).unwrap();
    assert_eq!(site.the_map().epoch, map.epoch);
    let many = vec![odd(0, Change::Renew); ChainChange::AT_ONCE_MAX + 1];
    refused(site.change_chains(1, many), &["more than 1024 changes"]);
}

#[test]
fn who_comes_back_is_brought_up_to_date_and_who_does_not_is_taken_out_again() {
    let site = Site::of_targets(4);
    site.copy_pool("default", 2).unwrap();
    let plan = || site.0.plan_chain_copies().unwrap();
    let epoch = site.the_map().epoch;
    plan();
    assert_eq!(site.the_map().epoch, epoch, "they have all copies");
    site.fail(2);
    let fallen: Vec<Chain> = site.copied(&[]).into_iter().filter(|chain| former(chain) == [2]).collect();
    assert!((95..=105).contains(&fallen.len()));
    let epoch = site.the_map().epoch;
    plan();
    assert_eq!(site.the_map().epoch, epoch, "it is waited for");
    site.hear(2);
    plan();
    let admitted = site.copied(&[2]);
    assert!(!admitted.is_empty());
    assert!(admitted.iter().all(|chain| chain.copies.as_ref().unwrap().catching_up.contains(&TargetId(2))));
    assert_eq!(site.the_map().epoch, Epoch(epoch.0 + 1), "all of them at once");
    let changes = admitted.iter().map(|chain| change_of(chain, Change::Promote(TargetId(2))));
    let of = |target: u32| {
        let is_in_front = |(chain, _): &(&Chain, ChainChange)| chain.targets[0] == TargetId(target);
        admitted.iter().zip(changes.clone()).filter(is_in_front).map(|(_, change)| change).collect()
    };
    site.change_chains(1, of(1)).unwrap();
    assert!(site.copied(&[1, 2]).iter().any(|chain| chain.targets.ends_with(&[TargetId(2)])));
    site.0.suppose_silence((NodeId(3), Role::Storage), Some(Duration::from_secs(20)));
    plan();
    let catching_up = site.copied(&[2]).iter().any(|chain| !chain.targets.contains(&TargetId(2)));
    assert!(!catching_up, "it is silent again");
    assert_eq!(site.the_map().check(), Ok(()));
}

#[test]
fn a_target_that_keeps_copies_is_drained_before_it_is_removed() {
    let site = Site::of_targets(3);
    site.copy_pool("default", 2).unwrap();
    let remove = |target| site.ask(FIRST, ManagerRequest::RemoveTarget { target: TargetId(target) });
    let count = 100 + site.copied(&[1]).len();
    refused(remove(1), &[&format!("{count} chains lead to target-1"), "ashlar target drain 1"]);
    refused(site.remove(FIRST, NodeId(2)), &["ashlar node drain oss1"]);
    site.drain(&[1]).unwrap();
    assert_eq!(site.0.works()[0].chains_left, count as u64);
    site.0.plan_chain_copies().unwrap();
    site.0.plan_moves().unwrap();
    let map = site.the_map();
    assert!(map.chains.iter().all(|chain| chain.copies.is_none() || chain.moving.is_none()));
    let chain = site.copied(&[1, 2, 3]).swap_remove(0);
    let newcomer = chain.copies.as_ref().unwrap().catching_up[0];
    let last = chain.targets.last().unwrap().0;
    site.change_chains(last, vec![change_of(&chain, Change::Promote(newcomer))]).unwrap();
    let chain = site.the_map().chain(chain.id).unwrap().clone();
    site.change_chains(1, vec![change_of(&chain, Change::Remove(TargetId(1)))]).unwrap();
    let work = site.0.works()[0];
    assert_eq!((work.chains_done, work.chains_left), (1, count as u64 - 1));
    refused(remove(1), &["target-1 is being drained"]);
    // Nothing waits for one that has left for good.
    let leave = |state: &mut ClusterState| -> Result<(), ManagerError> {
        let keep = |chain: &Chain| !chain.is_member(TargetId(1));
        state.map.chains.retain(keep);
        (0..).zip(&mut state.map.chains).for_each(|(id, chain)| chain.id = ChainId(id));
        Ok(())
    };
    site.0.manager.change(leave).unwrap();
    assert!(site.copied(&[]).iter().all(|chain| former(chain).is_empty()), "there are enough without it");
    remove(1).unwrap();
    assert!(site.copied(&[]).iter().all(|chain| former(chain).is_empty()));
}

#[test]
fn what_keeps_copies_is_drained_only_where_another_server_can_keep_them() {
    let site = Site::of_targets(2);
    site.copy_pool("default", 2).unwrap();
    let told = ["copies of 100 chains that are on target-1", "add a target on another server first"];
    refused(site.drain(&[1]), &told);
    site.add_target(NodeId(2));
    site.drain(&[1]).unwrap();
    refused(site.drain(&[3]), &["nobody in the pool default"]);
    let undrain = ManagerRequest::SetDraining { targets: vec![TargetId(1)], is_draining: false };
    site.ask(FIRST, undrain).unwrap();
    site.add_target(NodeId(4));
    site.0.suppose_silence((NodeId(4), Role::Storage), Some(Duration::from_secs(34)));
    refused(site.drain(&[1, 3]), &["copies of 100 chains", "or nothing was heard of oss3 for 34 s"]);
    site.0.suppose_silence((NodeId(4), Role::Storage), None);
    site.drain(&[1, 3]).unwrap();
}
