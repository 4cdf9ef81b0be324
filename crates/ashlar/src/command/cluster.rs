//! The commands of a file system of many servers.

use super::{mounts, node};
use crate::cli::{
    ConsoleAction, ConsoleArgs, InitArgs, JoinArgs, ManagerArgs, MetaArgs, MountArgs, PromoteArgs,
    StorageArgs, TokenArgs,
};
use crate::cluster::{self, Member, NodeDirectory};
use crate::terminal::{say, say_json};
use anyhow::{Result, bail};
use ashlar_console::object::node::policy_object;
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{NodePolicy, Role};
use serde_json::json;
use std::process::ExitCode;

pub fn init(args: &InitArgs) -> Result<ExitCode> {
    cluster::init::init(args).map(|()| ExitCode::SUCCESS)
}

pub fn promote(args: &PromoteArgs) -> Result<ExitCode> {
    cluster::promote::promote(args).map(|()| ExitCode::SUCCESS)
}

pub fn join(args: &JoinArgs) -> Result<ExitCode> {
    cluster::join::join(args).map(|()| ExitCode::SUCCESS)
}

pub fn manager(args: &ManagerArgs) -> Result<ExitCode> {
    cluster::run_manager(args).map(|()| ExitCode::SUCCESS)
}

pub fn meta(args: &MetaArgs) -> Result<ExitCode> {
    cluster::run_meta(args).map(|()| ExitCode::SUCCESS)
}

pub fn storage(args: &StorageArgs) -> Result<ExitCode> {
    cluster::run_storage(args).map(|()| ExitCode::SUCCESS)
}

pub fn mount(args: &MountArgs) -> Result<ExitCode> {
    match (&args.action, &args.mountpoint) {
        (Some(action), _) => mounts::run(action),
        (None, Some(mountpoint)) => cluster::run_mount(args, mountpoint).map(|()| ExitCode::SUCCESS),
        (None, None) => bail!("say where to mount: `ashlar mount MOUNTPOINT`"),
    }
}

pub fn console(args: &ConsoleArgs) -> Result<ExitCode> {
    match args.action {
        Some(ConsoleAction::Login) => cluster::log_in_to_console(args),
        None => cluster::run_console(args),
    }
    .map(|()| ExitCode::SUCCESS)
}

pub fn token(args: &TokenArgs) -> Result<ExitCode> {
    let member = Member::start(NodeDirectory::new(&args.node.node), Role::Admin)?;
    let mut policy = args.policy.applied_to(NodePolicy::of_new_node(args.role));
    node::choose_subtree(&member, &args.policy, &mut policy)?;
    let (valid_s, now) = (args.valid_minutes * 60, member.env.clock.now().secs);
    let request = ManagerRequest::NewToken { roles: args.role, valid_s, policy: policy.clone() };
    let ManagerReply::Token(text) = member.ask(&request)? else {
        bail!("the manager gave an answer of the wrong kind");
    };
    if args.json {
        let roles: Vec<&str> = args.role.iter().map(Role::name).collect();
        let (expires, policy) = (now + i64::from(valid_s), policy_object(&policy));
        let object = json!({ "token": text, "roles": roles, "expires": expires, "policy": policy });
        say_json(&object)?;
    } else {
        say(format_args!("{text}"));
    }
    Ok(ExitCode::SUCCESS)
}
