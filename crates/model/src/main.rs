//! The wide explorations: `cargo xtask model`. Prints a line for each, and `N passed, N failed`.

use ashlar_model::chain::{Begins, ChainModel};
use ashlar_model::chain_move::ChainMoveModel;
use ashlar_model::explorer::{Model, explore};
use ashlar_model::log::LogModel;
use ashlar_model::membership::MembershipModel;
use ashlar_model::shard_move::ShardMoveModel;
use ashlar_model::shared_disk::SharedDiskModel;
use ashlar_model::transaction::{Scene, TransactionModel};
use clap::Parser;
use std::fmt::Debug;
use std::process::ExitCode;

/// Explores the models of replication within wide bounds.
#[derive(Parser, Debug)]
struct Arguments {
    /// Only explorations whose name has this in it.
    #[arg(long, default_value = "")]
    only: String,
    /// End an exploration after so many states, and count it as failed.
    #[arg(long, default_value_t = 20_000_000)]
    states_max: u64,
}

/// Tells whether every state was explored and every property held.
fn holds<M: Model + Debug>(name: &str, model: &M, states_max: u64) -> bool {
    println!("{name}: {model:?}");
    let outcome = explore(model, states_max);
    println!("  {}", outcome.summary());
    if outcome.violation.is_some() {
        println!("  violation: {}", outcome.describe());
    }
    outcome.violation.is_none() && outcome.is_complete
}

fn membership() -> Vec<(&'static str, MembershipModel)> {
    let small = MembershipModel::small();
    let joining = MembershipModel { in_sync: 1, spare: 1, departures: true, ..small.clone() };
    let three = MembershipModel { in_sync: 3, time_max: 1, changes_max: 2, crashes_max: 0, ..small.clone() };
    vec![
        ("membership of two, two crashes", MembershipModel { crashes_max: 2, ..small.clone() }),
        (
            "membership of two, rates vary",
            MembershipModel { rates_vary: true, crashes_max: 0, ..small.clone() },
        ),
        ("membership of two, long lease", MembershipModel { lease: 2, crashes_max: 0, ..small }),
        ("membership of one and one that joins", MembershipModel { time_max: 2, changes_max: 4, ..joining }),
        ("membership of three", three),
    ]
}

fn log() -> Vec<(&'static str, LogModel)> {
    let small = LogModel::small();
    vec![
        (
            "log of one",
            LogModel { in_sync: 1, entries_max: 4, changes_max: 3, crashes_max: 3, ..small.clone() },
        ),
        ("log of two", LogModel { entries_max: 2, changes_max: 3, crashes_max: 2, ..small.clone() }),
        (
            "log of three",
            LogModel { in_sync: 3, entries_max: 1, changes_max: 2, crashes_max: 1, ..small.clone() },
        ),
        (
            "log of three, two failures",
            LogModel { in_sync: 3, entries_max: 1, changes_max: 2, crashes_max: 2, ..small.clone() },
        ),
        (
            "log of one and one that joins",
            LogModel {
                in_sync: 1,
                spare: 1,
                entries_max: 2,
                changes_max: 3,
                crashes_max: 1,
                ..small.clone()
            },
        ),
        (
            "log of two and one that joins",
            LogModel { spare: 1, entries_max: 1, changes_max: 2, crashes_max: 1, ..small.clone() },
        ),
        (
            "log of one and one that joins, checkpoints",
            LogModel {
                in_sync: 1,
                spare: 1,
                entries_max: 2,
                changes_max: 3,
                crashes_max: 1,
                checkpoints: true,
                ..small
            },
        ),
    ]
}

fn chain() -> Vec<(&'static str, ChainModel)> {
    let small = ChainModel::small();
    let joining = ChainModel { in_sync: 1, spare: 1, writes_max: 1, changes_max: 3, ..small.clone() };
    let three = ChainModel { in_sync: 3, writes_max: 1, ..small.clone() };
    let back = ChainModel { begins: Begins::LastAway, changes_max: 3, ..small.clone() };
    let three_back =
        ChainModel { writes_max: 2, changes_max: 4, crashes_max: 0, failures_max: 0, ..three.clone() };
    let cut = ChainModel { power_cuts_max: 1, changes_max: 2, crashes_max: 0, ..small.clone() };
    vec![
        ("chain of two, two epochs", ChainModel { changes_max: 2, ..small.clone() }),
        ("chain of two, two crashes", ChainModel { crashes_max: 2, ..small.clone() }),
        ("chain of two, two calls given up", ChainModel { failures_max: 2, crashes_max: 0, ..small.clone() }),
        ("chain of two, two chunks", ChainModel { chunks: 2, crashes_max: 0, ..small.clone() }),
        ("chain of two, the last comes back", back.clone()),
        (
            "chain of two, the first comes back",
            ChainModel { begins: Begins::FirstAway, changes_max: 4, ..back },
        ),
        ("chain of two, a power cut", ChainModel { failures_max: 0, ..cut.clone() }),
        ("chain of two, two power cuts", ChainModel { power_cuts_max: 2, failures_max: 0, ..cut }),
        ("chain of three", three.clone()),
        ("chain of three, two epochs", ChainModel { changes_max: 2, failures_max: 0, ..three }),
        (
            "chain of three, the last comes back",
            ChainModel { begins: Begins::LastAway, ..three_back.clone() },
        ),
        ("chain of three, the first comes back", ChainModel { begins: Begins::FirstAway, ..three_back }),
        ("chain of one and one that joins", joining.clone()),
        ("chain of two and one that joins", ChainModel { in_sync: 2, crashes_max: 0, ..joining }),
    ]
}

fn transaction() -> Vec<(&'static str, TransactionModel)> {
    let file = TransactionModel::small(Scene::File);
    let back = TransactionModel { attempts_max: 2, take_overs_max: 0, ..file.clone() };
    vec![
        ("transaction, file, two take-overs", TransactionModel { take_overs_max: 2, ..file }),
        ("transaction, file back and forth", back.clone()),
        ("transaction, loop", TransactionModel { scene: Scene::Loop, ..back.clone() }),
        (
            "transaction, loop, one take-over",
            TransactionModel { scene: Scene::Loop, take_overs_max: 1, ..back },
        ),
    ]
}

fn chain_moves() -> Vec<(&'static str, ChainMoveModel)> {
    let small = ChainMoveModel::small();
    let back = ChainMoveModel { moves_max: 2, writes_max: 0, ..small.clone() };
    vec![
        ("move of a chain, two starts", ChainMoveModel { starts_max: 2, ..small.clone() }),
        ("move of a chain, maps that are not kept", ChainMoveModel { unkept_max: 1, ..small }),
        ("move of a chain, there and back", back.clone()),
        (
            "move of a chain, there and back, written to",
            ChainMoveModel { writes_max: 1, starts_max: 0, ..back.clone() },
        ),
        ("move of a chain, there and back, maps that are not kept", ChainMoveModel { unkept_max: 1, ..back }),
    ]
}

fn shard_moves() -> Vec<(&'static str, ShardMoveModel)> {
    let small = ShardMoveModel::small();
    vec![
        ("move of a shard, two starts", ShardMoveModel { starts_max: 2, ..small.clone() }),
        ("move of a shard, there and back", ShardMoveModel { attempts_max: 2, ..small }),
    ]
}

fn shared_disks() -> Vec<(&'static str, SharedDiskModel)> {
    let small = SharedDiskModel::small();
    vec![
        ("shared disk, two deaths", SharedDiskModel { deaths_max: 2, ..small.clone() }),
        ("shared disk, eight turns", SharedDiskModel { turns_max: 8, ..small }),
    ]
}

fn main() -> ExitCode {
    let Arguments { only, states_max } = Arguments::parse();
    let (mut passed, mut failed) = (0, 0);
    let mut count = |holds: bool| *(if holds { &mut passed } else { &mut failed }) += 1;
    for (name, model) in membership().iter().filter(|(name, _)| name.contains(&only)) {
        count(holds(name, model, states_max));
    }
    for (name, model) in log().iter().filter(|(name, _)| name.contains(&only)) {
        count(holds(name, model, states_max));
    }
    for (name, model) in chain().iter().filter(|(name, _)| name.contains(&only)) {
        count(holds(name, model, states_max));
    }
    for (name, model) in transaction().iter().filter(|(name, _)| name.contains(&only)) {
        count(holds(name, model, states_max));
    }
    for (name, model) in chain_moves().iter().filter(|(name, _)| name.contains(&only)) {
        count(holds(name, model, states_max));
    }
    for (name, model) in shard_moves().iter().filter(|(name, _)| name.contains(&only)) {
        count(holds(name, model, states_max));
    }
    for (name, model) in shared_disks().iter().filter(|(name, _)| name.contains(&only)) {
        count(holds(name, model, states_max));
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
