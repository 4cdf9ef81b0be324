//! `ashlar up`: a complete file system in this process, until it is told to stop.

use crate::admin::{AdminReply, AdminRequest, AdminSocket, ScrubJobs, Status, TargetCondition, TargetStatus};
use crate::cli::UpArgs;
use crate::guard::Guard;
use crate::metrics::Metrics;
use crate::node::{
    Directories, MountConfig, Mounted, Services, ServicesConfig, Site, mount, open_files, place,
};
use crate::terminal::{say, shown};
use anyhow::{Context, Result, bail};
use ashlar_fuse::{MountOptions, check_mountpoint};
use ashlar_metrics::{Counted, ServiceKinds, Side};
use ashlar_types::ClusterMap;
use ashlar_types::map::{Target, TargetState};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// How often the end is looked for.
const TURN: Duration = Duration::from_millis(50);

pub fn run(args: &UpArgs) -> Result<ExitCode> {
    let is_told_to_stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, is_told_to_stop.clone()).context("cannot take signals")?;
    }
    open_files::allow_as_many_as_permitted();
    let directories = Directories::find(&args.place)?;
    require_sense(&directories, args)?;
    let changes_nothing = args.read_only && directories.exists && directories.is_on_read_only_disk();
    if changes_nothing {
        eprintln!(
            "ashlar: the disk is mounted read-only, so nothing is changed; what has to be written somewhere is in memory and in {}",
            std::env::temp_dir().display()
        );
    }
    let config = ServicesConfig { force_codec: args.force_codec, changes_nothing };
    let services = Arc::new(Services::start(directories, config)?);
    let outcome = serve(args, &services, &is_told_to_stop);
    let stopped = match Arc::try_unwrap(services) {
        Ok(services) => services.stop(),
        Err(_) => Err(anyhow::anyhow!("the services are still in use; the next start recovers them")),
    };
    outcome.and(stopped)?;
    Ok(ExitCode::SUCCESS)
}

/// A start that would make something is refused before it has made anything.
fn require_sense(directories: &Directories, args: &UpArgs) -> Result<()> {
    if args.existing && !directories.exists {
        bail!(
            "there is no file system at {}: is its disk mounted? To make a new one there, start it once with `ashlar up`",
            directories.meta.display()
        );
    }
    let mut seen = BTreeSet::new();
    for mountpoint in &args.mountpoints {
        if !seen.insert(std::path::absolute(mountpoint).unwrap_or_else(|_| mountpoint.clone())) {
            bail!("mount point {} is listed twice", mountpoint.display());
        }
    }
    if directories.exists && directories.targets.iter().all(|(_, header)| header.is_some()) {
        // The mount point is looked at when it is mounted on: by then a server that is ending has taken its mounts away.
        return Ok(());
    }
    let mut seen = BTreeSet::new();
    for mountpoint in &args.mountpoints {
        // Only now: a mount point of a server that has died cannot be looked at.
        check_mountpoint(mountpoint, &MountOptions::default())
            .with_context(|| format!("cannot mount on {}", mountpoint.display()))?;
        if !seen.insert(mountpoint.canonicalize().unwrap_or_else(|_| mountpoint.clone())) {
            bail!("mount point {} is listed twice", mountpoint.display());
        }
    }
    place::require_fit(directories, &args.place, &args.mountpoints)
}

fn serve(args: &UpArgs, services: &Arc<Services>, is_told_to_stop: &AtomicBool) -> Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    let config = MountConfig {
        source: args.source.clone(),
        allow_other: args.allow_other || is_root,
        read_only: args.read_only,
        allow_set_id: is_root && !args.no_set_id,
        allow_devices: is_root && !args.no_devices,
        transport: args.fuse_transport,
        mask: args.mask_features.unwrap_or_default(),
        is_sole_session: args.mountpoints.len() == 1,
        error_after: None,
        subdirectory: None,
        keep: None,
        requests: Arc::default(),
    };
    let metrics = Metrics::new("up");
    metrics.add_map(services.map());
    metrics.add_meta(services.meta());
    metrics.add_targets(services.storage());
    metrics.add_kernel_requests(config.requests.clone());
    let _shown = metrics.serve(&args.metrics)?;
    let meta_calls = metrics.calls(Side::Served, ServiceKinds::META);
    let storage_calls = metrics.calls(Side::Served, ServiceKinds::STORAGE);
    let counted = |site: Site| Site {
        meta: Arc::new(Counted::new(site.meta, meta_calls.clone())),
        storage: Arc::new(Counted::new(site.storage, storage_calls.clone())),
        ..site
    };
    let guard = Arc::new(Guard::start());
    let mut mounted: Vec<Mounted> = Vec::new();
    for mountpoint in &args.mountpoints {
        match mount(counted(services.site()), mountpoint, &config, &guard) {
            Ok(done) => {
                services.keep();
                mounted.push(done);
            }
            Err(error) => {
                end_all(mounted);
                return Err(error);
            }
        }
    }
    let mountpoints: Vec<PathBuf> =
        args.mountpoints.iter().map(|path| path.canonicalize().unwrap_or_else(|_| path.clone())).collect();
    let weak = Arc::downgrade(services);
    let (listed, scrubs) = (mountpoints.clone(), ScrubJobs::default());
    let socket = AdminSocket::open(
        &services.cluster().to_string(),
        Arc::new(move |request| match weak.upgrade() {
            Some(services) => answer(&services, (&listed, &scrubs), &request),
            None => AdminReply::Error("the file system is stopping".into()),
        }),
    );
    let _socket = match socket {
        Ok(socket) => socket,
        Err(error) => {
            end_all(mounted);
            return Err(error);
        }
    };
    for mountpoint in &args.mountpoints {
        say(format_args!("mounted {}", shown(mountpoint)));
    }
    let mut failures = Vec::new();
    while !is_told_to_stop.load(Relaxed) && !mounted.is_empty() {
        std::thread::sleep(TURN);
        // One that was taken away from outside ends at once: others wait for its locks.
        let ended = mounted.extract_if(.., |mount| mount.has_ended(Duration::ZERO)).collect();
        failures.extend(end_all(ended));
    }
    services.note_ending();
    failures.extend(end_all(mounted));
    failures.into_iter().next().map_or(Ok(()), Err)
}

/// Ends every mount; tells what went wrong.
fn end_all(mounted: Vec<Mounted>) -> Vec<anyhow::Error> {
    mounted.into_iter().filter_map(|mount| mount.end().err()).collect()
}

fn answer(
    services: &Services,
    (mounts, scrubs): (&[PathBuf], &ScrubJobs),
    request: &AdminRequest,
) -> AdminReply {
    match request {
        AdminRequest::Scrub { job } => scrubs.next(*job, &services.storage().targets()),
        AdminRequest::Status => AdminReply::Status(Box::new(status(services, mounts))),
    }
}

fn status(services: &Services, mounts: &[PathBuf]) -> Status {
    let map = services.map().read().clone();
    let targets: Vec<TargetStatus> =
        map.targets.iter().map(|target| target_status(services, &map, target)).collect();
    Status {
        cluster: services.cluster().to_string(),
        epoch: map.epoch.0,
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        meta: services.meta_directory().clone(),
        meta_stopped: services.meta_stopped(),
        mounts: mounts.to_vec(),
        bytes_total: targets.iter().map(|target| target.bytes_total).sum(),
        bytes_free: targets.iter().map(|target| target.bytes_free).sum(),
        inodes_used: services.inodes_used().ok(),
        targets,
    }
}

/// What is known of one target; whatever it does not tell keeps nothing else from being told.
fn target_status(services: &Services, map: &ClusterMap, target: &Target) -> TargetStatus {
    let space = services.storage().space(target.id);
    let stopped = services.storage().target(target.id).and_then(|store| store.stopped());
    let (state, reason) = match (&space, stopped) {
        _ if target.state != TargetState::Online => (TargetCondition::Missing, None),
        (_, Some(what)) => (TargetCondition::Stopped, Some(what)),
        (Err(error), None) => (TargetCondition::Unreachable, Some(error.to_string())),
        (Ok(_), None) => (TargetCondition::Online, None),
    };
    let space = space.ok().flatten().unwrap_or_default();
    let pool = map.pools.iter().find(|pool| pool.id == target.pool);
    TargetStatus {
        id: target.id.0,
        pool: pool.map(|pool| pool.name.clone()).unwrap_or_default(),
        online: state == TargetCondition::Online,
        state,
        reason,
        path: target.path.clone(),
        bytes_total: space.bytes_total,
        // Nobody can write to what has stopped.
        bytes_free: if state == TargetCondition::Stopped { 0 } else { space.bytes_free },
    }
}
