//! `ashlar etcd`: an etcd of its own for a file system, of an installed etcd, with one to three members on machines of managers.
//!
//! What a member needs is in `etcd/` of the manager's directory: its configuration file, its certificate, and its data. Members speak TLS with each other and
//! with managers, by certificates of an authority that is in `store.json` of every manager and nowhere else; clients of the file system have nothing
//! that etcd would accept.

mod first;
mod further;
mod member;
mod members;
mod run;

pub use first::init;
pub use further::join;
pub use member::find_program;
pub use members::{list, remove};
pub use run::run;

use super::store::EtcdStore;
use anyhow::{Result, bail};
use ashlar_env::os::OsDisk;
use ashlar_env::{Disk, Env};
use ashlar_manager::EtcdAuthority;
use std::path::Path;
use std::sync::Arc;

/// What the manager's directory `state` says of an etcd of its own.
///
/// # Errors
/// When there is none.
fn own_store(state: &Path) -> Result<(EtcdStore, EtcdAuthority)> {
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(state));
    match EtcdStore::load(&disk)? {
        Some(store) => match store.own_authority().cloned() {
            Some(authority) => Ok((store, authority)),
            None => bail!(
                "the etcd of this file system is not one that `ashlar etcd init` made: its members are added and removed as whoever runs it does"
            ),
        },
        None => bail!(
            "{} says nothing of an etcd: on the first server `ashlar etcd init` makes one, and a machine of another manager joins the file system first (`ashlar join` with a token for the role manager)",
            state.display()
        ),
    }
}

/// The environment, and the members of the etcd of `state`.
fn membership(state: &Path) -> Result<(Env, EtcdStore, ashlar_coord::etcd::EtcdMembership)> {
    let env = Env::os();
    let (store, _) = own_store(state)?;
    let membership = store.open(&env)?.membership();
    Ok((env, store, membership))
}
