//! Goal: a server that joins does not ask again for shards whose move to it was withdrawn, and gets them when an administrator balances shards; and another server that joins takes its share of
//! them. Method: services whose moves are begun and never carried out.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_env::Env;
use ashlar_rpc::LastingSessions;
use ashlar_rpc::wire::{MoveState, Withdrawal};
use ashlar_types::node::SessionOwner;
use ashlar_types::testing::map_of_shards;
use ashlar_types::{NodeId, ShardId, Timespec};
use std::sync::Arc;
use std::time::Duration;
use support::{Hanging, Nowhere, Server};

/// Longer than a server that joins waits for what it was promised.
const LATER: Duration = Duration::from_secs(61);

/// What is to be sent, and to whom.
fn to_be_sent(server: &Server) -> Vec<(u16, u32)> {
    let moves = server.meta.moves().into_iter().filter(|info| info.state == MoveState::Waiting);
    moves.map(|info| (info.shard.0, info.to.0)).collect()
}

#[test]
fn a_move_to_a_server_that_joins_stays_withdrawn_until_shards_are_balanced() {
    let (env, clock) = Env::simulated(1, Timespec::default());
    let map = map_of_shards(&[1; 9], &[1, 2, 3]);
    let way = Arc::new(Hanging::default());
    let first = Server::start_with(env.clone(), NodeId(1), &map, Arc::new(Nowhere));
    *way.other.lock() = Some(first.meta.clone());
    let join = |node| Server::start_with(env.clone(), NodeId(node), &map, way.clone());
    let second = join(2);
    second.meta.tend_shards().unwrap();
    assert_eq!(to_be_sent(&first), [(8, 2), (7, 2), (6, 2)], "its share of what is empty");

    let withdrawn = first.meta.withdraw_moves(&[]);
    let stays = |shard| (ShardId(shard), Some(NodeId(2)), Withdrawal::Withdrawn);
    assert_eq!(withdrawn, [6, 7, 8].map(stays));
    // It asks again, and then not any more.
    for _ in 0..3 {
        clock.advance(LATER);
        second.meta.tend_shards().unwrap();
        assert_eq!(to_be_sent(&first), []);
    }
    // From another one nothing was withdrawn.
    let third = join(3);
    third.meta.tend_shards().unwrap();
    assert_eq!(to_be_sent(&first), [(8, 3), (7, 3), (6, 3)]);
    // As `ashlar shard balance` has it.
    let asker = SessionOwner { node: NodeId(9), instance: [9; 16] };
    first.meta.withdraw_moves(&[]);
    first.meta.move_shards(&[ShardId(8), ShardId(7), ShardId(6)], NodeId(2), asker).unwrap();
    assert_eq!(to_be_sent(&first), [(8, 2), (7, 2), (6, 2)]);
}
