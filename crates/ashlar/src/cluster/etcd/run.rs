//! `ashlar etcd run`: becomes the member of this machine, with a new certificate.

use super::member::{Member, find_program};
use super::own_store;
use crate::cli::EtcdRunArgs;
use anyhow::{Context, Result, bail};
use ashlar_env::Env;
use std::os::unix::process::CommandExt;
use std::process::Command;

pub fn run(args: &EtcdRunArgs) -> Result<()> {
    let state = &args.state.state;
    let program = find_program(args.program.as_deref())?;
    let (_, authority) = own_store(state)?;
    let member = Member::of(state)?;
    if !member.exists() {
        bail!(
            "{} is not there: `ashlar etcd join` makes this machine a member",
            member.configuration().display()
        );
    }
    let (name, addresses) = member.place()?;
    member.renew(&authority, &name, &addresses, &Env::os())?;
    // From here on this process is etcd, which tells the service manager itself.
    let error = Command::new(&program).arg("--config-file").arg(member.configuration()).exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}
