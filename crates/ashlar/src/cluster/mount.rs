//! `ashlar mount`: mounts the file system of a cluster.

use super::announce;
use super::member::{Member, stop_flag, until_told_to_stop};
use super::node_directory::NodeDirectory;
use super::successor::{Left, give_way, give_way_flag, hold_back};
use crate::cli::MountArgs;
use crate::guard::Guard;
use crate::metrics::Metrics;
use crate::node::{Inherited, MountConfig, MountRoot, Site, mount, open_files};
use crate::terminal::{say, shown};
use anyhow::{Context, Result};
use ashlar_metrics::{Counted, ServiceKinds, Side};
use ashlar_rpc::remote::{Patience, RemoteMeta, RemoteStorage};
use ashlar_types::Role;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// For how long servers are waited for at the end, all calls together.
const END_MAX: Duration = Duration::from_secs(30);

pub fn run(args: &MountArgs, mountpoint: &Path) -> Result<()> {
    let left = Left::taken().unwrap_or_else(|error| {
        tracing::error!("{error:#}; another session takes the place of the one before");
        None
    });
    // By its name: it may be another program by then.
    let program = std::env::current_exe().context("cannot find this program")?;
    let (is_told, is_to_give_way) = (stop_flag()?, give_way_flag()?);
    // The program before may have held them back.
    hold_back(false);
    open_files::allow_as_many_as_permitted();
    let instance = left.as_ref().map(|left| (left.instance, left.first_channel));
    let member = Member::start_as(NodeDirectory::new(&args.node.node), Role::Client, instance)?;
    let is_root = rustix::process::geteuid().is_root();
    let config = MountConfig {
        source: args.source.clone(),
        allow_other: args.allow_other || is_root,
        read_only: args.read_only,
        allow_set_id: is_root && !args.no_set_id,
        allow_devices: is_root && !args.no_devices,
        transport: args.fuse_transport,
        mask: Default::default(),
        is_sole_session: false,
        error_after: Some(Duration::from_secs(args.error_after.into())),
        subdirectory: args.subdirectory.clone(),
        keep: (args.keep > 0).then(|| Duration::from_secs(args.keep.into())),
        requests: Arc::default(),
    };
    let patience = Patience::new(Duration::from_secs(args.error_after.into()));
    let routes = member.routes();
    let metrics = Metrics::new("mount");
    metrics.add_map(member.map());
    let meta = RemoteMeta::new(routes.clone(), member.env.clone(), patience.clone());
    let meta = meta.with_coherence(args.coherence).with_durability(args.durability);
    let meta = meta.after(left.as_ref().map(|left| left.session.clone()));
    let meta = Arc::new(meta);
    let storage = Arc::new(RemoteStorage::new(routes, patience.clone()).under(meta.clone()));
    metrics.add_capabilities(&meta);
    metrics.add_certificate(member.identity.clone());
    metrics.add_kernel_requests(config.requests.clone());
    let _shown = metrics.serve(&args.metrics)?;
    let root = MountRoot::new(member.map(), member.name.node, args.subdirectory.clone());
    let root = Arc::new(root.with_found(left.as_ref().and_then(|left| left.root)));
    let site = Site {
        meta: Arc::new(Counted::new(meta.clone(), metrics.calls(Side::Sent, ServiceKinds::META))),
        storage: Arc::new(Counted::new(storage, metrics.calls(Side::Sent, ServiceKinds::STORAGE))),
        map: member.map(),
        env: member.env.clone(),
        checks_payload: true,
        node: member.name.node,
        root: Some(root.clone()),
        inherited: left.map(|left| Inherited {
            remains: left.remains,
            descriptions: left.descriptions.into_iter().collect(),
        }),
    };
    let _looks = member.keep_certificate()?;
    let guard = Arc::new(Guard::start());
    let mut mounted = mount(site, mountpoint, &config, &guard)?;
    say(format_args!("mounted {}", shown(mountpoint)));
    announce::notify("READY=1");
    // One that was taken away from outside has ended.
    until_told_to_stop(&is_told, || {
        if is_to_give_way.swap(false, Relaxed) {
            let Err(error) = give_way(&program, (&mut mounted, &root), &meta, &member.caller, &is_told);
            tracing::error!("this process goes on with the mount: {error:#}");
        }
        !mounted.has_ended(Duration::ZERO)
    });
    announce::notify("STOPPING=1");
    // Servers that are away are not waited for as long as programs would: the machine may be shutting down.
    patience.end_within(END_MAX);
    mounted.end()
}
