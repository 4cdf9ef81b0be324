//! `ashlar lab exec`: a command in the network of a node.

use super::name_space::enter;
use super::plan::Places;
use super::record::Record;
use anyhow::{Context, Result};
use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Becomes the command.
pub fn exec(dir: &Path, node: &str, words: &[OsString]) -> Result<Infallible> {
    let record = Record::load(&Places::of(dir))?;
    let node = record.node(node)?;
    let (program, args) = words.split_first().context("which command? Name it after `--`")?;
    let mut command = Command::new(program);
    command.args(args);
    enter(&mut command, &record.name_space(&node.name))
        .with_context(|| format!("{} has no network; is the lab up, and are you root?", node.name))?;
    Err(command.exec()).with_context(|| format!("cannot run {}", program.to_string_lossy()))
}
