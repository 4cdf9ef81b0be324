//! The wide explorations of the models of replication (`crates/model`).

use clap::Args;

use crate::repository::Repository;
use crate::shell;

/// What is handed on to the explorer.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Only explorations whose name has this in it.
    #[arg(long)]
    only: Option<String>,
    /// End an exploration after so many states, and count it as failed.
    #[arg(long)]
    states_max: Option<u64>,
}

/// Builds the explorer for speed and runs it.
///
/// # Errors
/// When it cannot be built, or a property does not hold.
pub fn run(repository: &Repository, arguments: &Arguments) -> anyhow::Result<()> {
    let states_max = arguments.states_max.map(|states| states.to_string());
    let mut words = vec!["run", "--quiet", "--release", "-p", "ashlar-model", "--"];
    if let Some(only) = &arguments.only {
        words.extend(["--only", only]);
    }
    if let Some(states_max) = &states_max {
        words.extend(["--states-max", states_max]);
    }
    shell::run(&mut repository.cargo(&words))
}
