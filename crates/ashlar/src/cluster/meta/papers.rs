//! Who a metadata server is, for a machine that keeps a copy of it: a certificate in its name, as metadata server alone, that says for which machine it is.

use super::super::background::Background;
use super::super::member::Member;
use super::super::node_directory::{NodeDirectory, NodeName, Papers};
use super::super::renewal::Renewal;
use anyhow::{Context, Result, bail};
use ashlar_manager::draw_key;
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{NodeId, Role, Roles};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A certificate that was kept is used if it is good for longer than this.
const LEFT_MIN: Duration = Duration::from_secs(24 * 60 * 60);
/// For how long a manager is asked.
const MANAGER_MAX: Duration = Duration::from_secs(10);

/// The metadata server `server`, as this machine, `host`, may act for it, with what renews its certificate; what it needs is kept at `path`.
///
/// # Errors
/// When no manager certifies it, or it cannot be kept.
pub fn member_of(host: &Arc<Member>, server: NodeId, path: &Path) -> Result<(Member, Background)> {
    let directory = NodeDirectory::new(path);
    let is_good =
        || directory.load().is_ok() && directory.identity(None).is_ok_and(|kept| kept.is_good_in(LEFT_MIN));
    if !is_good() {
        let (key, public_key) = draw_key()?;
        let certificate = certified(host, server, public_key)?;
        store(
            host,
            server,
            &directory,
            &Papers { certificate, key, authority: host.directory().authority()? },
        )?;
    }
    let member = Member::start(directory.clone(), Role::Meta)?;
    let (own, loading) = (host.clone(), directory.clone());
    let renewal = Renewal {
        directory,
        identity: member.identity.clone(),
        load: Box::new(move || loading.identity(None)),
        // By the machine, which has to keep a copy still.
        certify: Box::new(move |public_key| certified(&own, server, public_key)),
    };
    let keeping = renewal.start(&*host.env.tasks)?;
    Ok((member, keeping))
}

fn certified(host: &Member, server: NodeId, public_key: Vec<u8>) -> Result<String> {
    let request = ManagerRequest::CertifyServer { server, public_key };
    match host.managers.call(&request, Instant::now() + MANAGER_MAX).context("the manager")? {
        ManagerReply::Certificate(certificate) => Ok(certificate),
        _ => bail!("the manager gave an answer of the wrong kind"),
    }
}

fn store(host: &Member, server: NodeId, directory: &NodeDirectory, papers: &Papers) -> Result<()> {
    let map = host.map().read().clone();
    let known = map.node(server).with_context(|| format!("{server} is no node"))?;
    let name = NodeName {
        cluster: host.name.cluster,
        node: server,
        name: known.name.clone(),
        roles: Roles::default().with(Role::Meta),
        managers: map.managers_of(Role::Meta).0,
    };
    directory.store(&name, papers)
}
