//! Who a metadata server is, for a machine that keeps a copy of it: a certificate in its name, as metadata server alone.

use super::super::member::Member;
use super::super::node_directory::{NodeDirectory, NodeName, Papers};
use anyhow::{Context, Result, bail};
use ashlar_manager::draw_key;
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{NodeId, Role, Roles};
use std::path::Path;
use std::time::Duration;

/// A certificate that was kept is used if it is good for longer than this.
const LEFT_MIN: Duration = Duration::from_secs(24 * 60 * 60);

/// The metadata server `server`, as this machine, `host`, may act for it; what it needs is kept at `path`.
///
/// # Errors
/// When no manager certifies it, or it cannot be kept.
pub fn member_of(host: &Member, server: NodeId, path: &Path) -> Result<Member> {
    let directory = NodeDirectory::new(path);
    let is_good =
        || directory.load().is_ok() && directory.identity(None).is_ok_and(|kept| kept.is_good_in(LEFT_MIN));
    if !is_good() {
        certify(host, server, &directory)?;
    }
    Member::start(directory, Role::Meta)
}

fn certify(host: &Member, server: NodeId, directory: &NodeDirectory) -> Result<()> {
    let (key, public_key) = draw_key()?;
    let request = ManagerRequest::CertifyServer { server, public_key };
    let ManagerReply::Certificate(certificate) = host.ask(&request)? else {
        bail!("the manager gave an answer of the wrong kind");
    };
    let map = host.map().read().clone();
    let known = map.node(server).with_context(|| format!("{server} is no node"))?;
    let name = NodeName {
        cluster: host.name.cluster,
        node: server,
        name: known.name.clone(),
        roles: Roles::default().with(Role::Meta),
        managers: map.managers_of(Role::Meta).0,
    };
    let authority = host.directory().authority()?;
    directory.store(&name, &Papers { certificate, key, authority })
}
