//! `ashlar etcd`: an etcd of its own for a file system.

use crate::cli::{EtcdAction, EtcdArgs};
use crate::cluster::etcd;
use anyhow::Result;
use std::process::ExitCode;

pub fn run(args: &EtcdArgs) -> Result<ExitCode> {
    match &args.action {
        EtcdAction::Init(args) => etcd::init(args)?,
        EtcdAction::Join(args) => etcd::join(args)?,
        EtcdAction::Run(args) => etcd::run(args)?,
        EtcdAction::List(args) => etcd::list(args)?,
        EtcdAction::Remove(args) => etcd::remove(args)?,
    }
    Ok(ExitCode::SUCCESS)
}
