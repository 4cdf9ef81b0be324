//! `ashlar key`: the keys of capabilities.

use crate::cli::{KeyAction, KeyArgs};
use crate::cluster::{Member, NodeDirectory};
use crate::terminal::{say, say_json};
use anyhow::{Result, bail};
use ashlar_types::Role;
use ashlar_types::message::{ManagerReply, ManagerRequest};
use serde_json::json;
use std::process::ExitCode;

pub fn run(args: &KeyArgs) -> Result<ExitCode> {
    let member = Member::start(NodeDirectory::new(&args.node.node), Role::Admin)?;
    let KeyAction::Rotate { json } = &args.action;
    match member.ask(&ManagerRequest::RotateKeys)? {
        ManagerReply::Done if *json => say_json(&json!({ "is_rotated": true }))?,
        ManagerReply::Done => say(format_args!("new keys are in use")),
        _ => bail!("the manager gave an answer of the wrong kind"),
    }
    Ok(ExitCode::SUCCESS)
}
