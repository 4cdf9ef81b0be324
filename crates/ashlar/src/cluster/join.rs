//! `ashlar join`: this machine becomes a node.

use super::member::caller;
use super::node_directory::{NodeDirectory, NodeName, Papers};
use super::store::EtcdStore;
use crate::cli::JoinArgs;
use crate::node::state::make_private_directory;
use crate::terminal::{say, say_json};
use anyhow::{Context, Result, anyhow, bail};
use ashlar_coord::local_file::LocalFile;
use ashlar_env::os::OsDisk;
use ashlar_env::{Disk, Env};
use ashlar_manager::{Manager, Token, draw_key};
use ashlar_rpc::net::{NetError, TlsIdentity};
use ashlar_rpc::remote::ManagerCalls;
use ashlar_types::message::{ManagerPapers, ManagerReply, ManagerRequest};
use ashlar_types::{ClusterId, Node, Role};
use parking_lot::RwLock;
use serde_json::json;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For how long a manager is waited for.
const JOIN_MAX: Duration = Duration::from_secs(30);
/// LIMIT: bytes of a token that are read.
const TOKEN_BYTES_MAX: u64 = 4096;

pub fn join(args: &JoinArgs) -> Result<()> {
    let directory = NodeDirectory::new(&args.node.node);
    directory.require_unused()?;
    let name = name_of(args.name.as_deref())?;
    require_no_state(&args.state.state)?;
    let token = Token::parse(&read_token(&args.token)?)?;
    let (certificate, key) = token.certificate()?;
    let identity = TlsIdentity::from_token(certificate, key, token.fingerprint)?;
    let env = Env::os();
    let (caller, _) = caller(&env, Arc::new(RwLock::new(Arc::new(identity))), Role::Joiner, None);
    let calls = ManagerCalls::new(caller, token.managers.clone());
    let (key, public_key) = draw_key()?;
    let request = ManagerRequest::Join { name: name.clone(), public_key };
    let reply = calls
        .call(&request, Instant::now() + JOIN_MAX)
        .map_err(|error| anyhow!(why_not_joined(&error)))
        .context("cannot join")?;
    let ManagerReply::Joined { cluster, node, roles, certificate, authority, managers, manager } = reply
    else {
        bail!("the manager gave an answer of the wrong kind");
    };
    let managers = if managers.is_empty() { token.managers } else { managers };
    if let Some(papers) = manager {
        // ORDER: before the machine is a node; what is left if this is interrupted is overwritten by the next attempt.
        become_manager(&args.state.state, cluster, &papers)?;
    }
    let known = NodeName { cluster, node, name, roles, managers };
    directory.store(&known, &Papers { certificate, key, authority })?;
    if args.json {
        let roles: Vec<&str> = roles.iter().map(Role::name).collect();
        let (cluster, id, name) = (cluster.to_string(), node.0, &known.name);
        return say_json(&json!({ "cluster": cluster, "id": id, "name": name, "roles": roles }));
    }
    say(format_args!("joined file system {cluster} as {}, {node}, for {roles}", known.name));
    Ok(())
}

/// Why a manager did not let this machine join, and what helps.
fn why_not_joined(error: &NetError) -> String {
    // A token is refused as a node of another file system is: by its key.
    match error.is_of_a_stranger() {
        true => "no manager knows this token: it is too old, or was used long ago, or another file system is at its addresses by now; `ashlar token` on a manager makes a new one".into(),
        false => error.to_string(),
    }
}

/// What a manager needs, in the directory where it is to have it.
fn become_manager(state: &Path, cluster: ClusterId, papers: &ManagerPapers) -> Result<()> {
    make_private_directory(state)?;
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(state));
    let store = EtcdStore::parse(&papers.store)?;
    ashlar_manager::take_secrets(&disk, "", cluster, &papers.secrets)
        .with_context(|| format!("cannot store what a manager needs at {}", state.display()))?;
    store.save(&disk)
}

/// Refuses a directory in which another file system's state is, before a token is used.
fn require_no_state(state: &Path) -> Result<()> {
    if !state.exists() {
        return Ok(());
    }
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(state));
    if Manager::exists(&LocalFile::new(disk, ""))? {
        bail!(
            "{} has the state of a file system already: name another directory with --state",
            state.display()
        );
    }
    Ok(())
}

/// The name that was given, or that of the machine.
pub fn name_of(given: Option<&str>) -> Result<String> {
    let name = match given {
        Some(name) => name.to_owned(),
        None => rustix::system::uname().nodename().to_string_lossy().into_owned(),
    };
    if !Node::is_name(&name) {
        bail!(
            "`{}` cannot be the name of a node: letters, digits, `-`, `_` and `.`, {} at the most; give another one with --name",
            name.escape_debug(),
            Node::NAME_BYTES_MAX
        );
    }
    Ok(name)
}

/// `-` reads it from standard input: what is on a command line everybody on the machine can see.
fn read_token(given: &str) -> Result<String> {
    if given != "-" {
        return Ok(given.to_owned());
    }
    let mut text = String::new();
    std::io::stdin().take(TOKEN_BYTES_MAX).read_to_string(&mut text).context("cannot read the token")?;
    Ok(text)
}
