//! `ashlar meta`: serves metadata, from a log of its own, or from copies of it that other machines have, too (ADR 0029).
//!
//! | module | what |
//! |---|---|
//! | `service` | the service of one metadata server, with everything around it |
//! | `unheard` | what it does without at first |
//! | `host`, `copy` | copies on this machine, and the service while it is this machine's |
//! | `copy_store`, `papers` | what is on the disk of a copy; in whose name it is served |
//! | `read_through` | damage of a copy is looked for while another one is sound |

mod copy;
mod copy_store;
mod host;
mod papers;
mod read_through;
mod service;
mod span;
mod unheard;

pub use copy_store::{has_only_copies, kept_in as copies_in, lane_of as lane_of_copy};

use super::claim::HeldStarts;
use super::doors::Doors;
use super::member::{KNOWN_MAX, Member, stop_flag, until_told_to_stop};
use super::meta_directory;
use super::node_directory::NodeDirectory;
use super::older_copy::OlderCopy;
use super::restored::{self, RestoredNote};
use crate::cli::MetaArgs;
use crate::node::state::{make_private_directory, open_lane};
use crate::node::{MetaLock, open_files, require_owner};
use anyhow::{Context, Result, bail};
use ashlar_env::Disk;
use ashlar_env::os::OsDisk;
use ashlar_kv::{Lane, LaneConfig};
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{Holding, Role};
use host::Host;
use service::{Parts, Running};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

pub fn run(args: &MetaArgs) -> Result<()> {
    let is_told = stop_flag()?;
    open_files::allow_as_many_as_permitted();
    let member = Arc::new(Member::start(NodeDirectory::new(&args.node.node), Role::Meta)?);
    // Before anything is made: somebody else may listen there.
    let doors = Doors::open(&args.listen, &args.management)?;
    make_private_directory(&args.meta)?;
    require_owner(&args.meta)?;
    let path = args.meta.canonicalize().with_context(|| format!("cannot use {}", args.meta.display()))?;
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(&path));
    let _lock = MetaLock::take(&disk, &path, &format!("ashlar meta, process {}", std::process::id()))?;
    let restored = RestoredNote::load(&disk)?;
    restored.iter().try_for_each(|note| note.take_effect(&member, &disk, &path))?;
    let own = meta_directory::begin(&member, (&disk, &path), args.copies, &is_told)?;
    let _certificate = member.keep_certificate()?;
    let site = Site { member: &member, disk: &disk, path: &path, args };
    site.serve((own, doors), restored, &is_told)
}

/// The machine, and the directory of `ashlar meta` on it.
struct Site<'a> {
    member: &'a Arc<Member>,
    disk: &'a Arc<dyn Disk>,
    path: &'a Path,
    args: &'a MetaArgs,
}

impl Site<'_> {
    /// Serves until it is told to stop: first from the log of the directory, if that is no copy yet.
    fn serve(
        &self,
        (own, doors): (Holding, Doors),
        restored: Option<RestoredNote>,
        is_told: &AtomicBool,
    ) -> Result<()> {
        let (member, path) = (self.member, PathBuf::from(self.path));
        let is_copy =
            copy_store::kept_in(self.path)?.contains(&member.name.node) || self.has_copies_elsewhere();
        if is_copy && OlderCopy::load(self.disk)?.is_some() {
            bail!(
                "{} is an older copy of a directory that keeps copies of metadata: what has been done since is known to the others. Put the newer one back, or have this machine join under another name (`ashlar join`), and it is given what there is",
                self.path.display()
            );
        }
        let uuid = own.uuid;
        let mut plain = None;
        let starts = if is_copy {
            // Opened anew when it is this machine that serves.
            drop(doors);
            meta_directory::confirm(member, &own)?;
            HeldStarts::keep(member, Role::Meta, vec![own])?
        } else {
            let opened = self.open(own)?;
            plain = Some(self.begin(&opened, restored, doors)?);
            opened.starts
        };
        let host = Host::start(member.clone(), path, self.args, plain.is_some())?;
        if is_copy {
            super::announce::keeping_copies(host.addresses());
        }
        let mut outcome = Ok(());
        until_told_to_stop(is_told, || {
            outcome = self.turn(&host, &mut plain, uuid);
            outcome.is_ok() && starts.are_held()
        });
        starts.stop_if_lost();
        super::announce::notify("STOPPING=1");
        host.stop();
        if let Some(running) = plain.take() {
            running.stop(member)?;
            span::end(&**self.disk);
        }
        starts.end(member);
        outcome
    }

    /// Whether managers say that others keep copies of the metadata of this machine, and it has none: it was taken away.
    fn has_copies_elsewhere(&self) -> bool {
        let asked = self.member.managers.call(&ManagerRequest::Copies, Instant::now() + KNOWN_MAX);
        match asked {
            Ok(ManagerReply::Copies { notes, .. }) => notes.membership(self.member.name.node).is_some(),
            // Earlier managers know of none; without an answer nothing is served that they would have to allow.
            _ => false,
        }
    }

    /// Looks after everything.
    fn turn(&self, host: &Host, plain: &mut Option<Running>, uuid: [u8; 16]) -> Result<()> {
        match plain {
            Some(running) => running.tend(self.member),
            None if host.is_own_served_by_copies() => return Ok(()),
            // It was cut short.
            None => return host.found_own(uuid),
        }
        if host.is_own_to_be_founded()
            && let Some(running) = plain.take()
        {
            tracing::info!("the metadata of this server is kept in copies from now on");
            running.stop(self.member)?;
            span::end(&**self.disk);
            host.found_own(uuid)?;
        }
        Ok(())
    }

    /// Opens the log of the directory, in the start `own`.
    fn open(&self, own: Holding) -> Result<Opened> {
        let (member, disk) = (self.member, self.disk);
        let older = OlderCopy::load(disk)?;
        // What has come after an older copy was made is not in it.
        let has_lost = span::may_lack_something(&**disk)? || older.is_some();
        let lane = open_lane(disk, self.path, &member.env, member.name.cluster, LaneConfig::default())?;
        // ORDER: who is refused has not taken it over from the newest one.
        older.iter().try_for_each(|older| require_shards(older, &lane, member))?;
        meta_directory::confirm(member, &own)?;
        let (uuid, starts) = (own.uuid, HeldStarts::keep(member, Role::Meta, vec![own])?);
        Ok(Opened { lane: Arc::new(lane), has_lost, uuid, older, starts })
    }

    /// Serves from the log of the directory.
    fn begin(&self, opened: &Opened, restored: Option<RestoredNote>, doors: Doors) -> Result<Running> {
        let Opened { lane, has_lost, uuid, older, starts } = opened;
        let (member, disk, uuid) = (self.member, self.disk, *uuid);
        let path = self.path.display().to_string();
        let reply = member.ask(&ManagerRequest::MetaIdentity { uuid, path })?;
        let ManagerReply::MetaIdentity { name_hash_key, epoch } = reply else {
            bail!("the manager gave an answer of the wrong kind");
        };
        // ORDER: which shards are here, and whether the root is, says the map.
        member.wait_for_epoch(epoch)?;
        restored.iter().try_for_each(|note| note.require_shards(&member.map().read()))?;
        older.iter().try_for_each(|older| require_shards(older, lane, member))?;
        older.iter().try_for_each(|older| older.skip_starts(disk, lane))?;
        let (lane, args) = (lane.clone(), self.args);
        let start = epoch;
        let has_lost = *has_lost;
        let parts =
            Parts { member, lane, has_lost, name_hash_key, start, copy: None, args, shows_metrics: true };
        let mut running = Running::start(&parts)?;
        // ORDER: the log has it by now that something may be lost.
        span::begin(&**disk);
        // Whoever has taken it over meanwhile is not to be settled with.
        starts.stop_if_lost();
        let is_behind = restored.is_some() || older.is_some();
        let settle = |running: &Running| {
            restored::settle(member, &running.meta, running.storage(), args.accept_missing_targets)
        };
        if is_behind && settle(&running)? {
            forget_notes(disk, restored.is_some(), older.is_some())?;
        }
        let announcement = doors.announcement(Role::Meta);
        running.open((member, args), doors, || member.ask(&announcement).map(drop))?;
        Ok(running)
    }
}

/// Metadata that may be served.
struct Opened {
    lane: Arc<Lane>,
    /// Something that was acknowledged may not be in it.
    has_lost: bool,
    uuid: [u8; 16],
    older: Option<OlderCopy>,
    starts: HeldStarts,
}

/// Refuses shards that came to this server after the copy was made.
fn require_shards(older: &OlderCopy, lane: &Lane, member: &Member) -> Result<()> {
    let map = member.map().read().clone();
    older.require_shards(lane, (&map, member.name.node))
}

/// Takes away the notes that targets are to be compared.
fn forget_notes(disk: &Arc<dyn Disk>, is_restored: bool, is_older: bool) -> Result<()> {
    if is_restored {
        RestoredNote::remove(disk)?;
    }
    if is_older {
        OlderCopy::remove(disk)?;
    }
    Ok(())
}
