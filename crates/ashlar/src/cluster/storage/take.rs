//! `ashlar target add`, at the server: a directory is taken into service as a target while the others serve.

use super::super::affinity::DataPlace;
use super::find::find_or_make;
use super::in_service::InService;
use super::remembered::Added;
use crate::cli::CopyArgs;
use crate::node::Directories;
use anyhow::{Context, Result, bail};
use ashlar_chunkstore::{TargetHeader, TargetIdentity};
use ashlar_rpc::Reports;
use ashlar_rpc::TakesTargets;
use ashlar_rpc::net::NetError;
use ashlar_rpc::wire::{TakenTarget, TargetPlace};
use ashlar_types::map::TargetState;
use ashlar_types::message::ManagerRequest;
use ashlar_types::{ClusterMap, EventKind, NodeId, TargetId};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Most targets that a server has when one more is asked for.
// LIMIT: each has two threads, an index in memory and open files.
const TARGETS_MAX: usize = 256;
/// What an administrator has said of directories at the start of the server is not of those that come later.
const NO_COPIES: CopyArgs = CopyArgs { accept_older_copies: false, take_over: false };
/// For how long managers are asked at a time.
const ASK_MAX: Duration = Duration::from_secs(10);

/// Answers administrators.
pub struct Taker(pub Arc<InService>);

impl TakesTargets for Taker {
    fn take(&self, who: NodeId, place: TargetPlace, done: Box<dyn FnOnce(TakenTarget) + Send>) {
        let own = self.0.clone();
        let run = Box::new(move || done(own.take(who, place).map_err(|error| format!("{error:#}"))));
        // Without a thread nobody is answered, and the caller hears that the call was dropped.
        if let Err(error) = self.0.parts.member.env.tasks.spawn("ashlar-take", run) {
            tracing::error!(%error, "no thread can be started to take a target into service");
        }
    }
}

impl InService {
    fn take(&self, who: NodeId, wanted: TargetPlace) -> Result<TargetId> {
        let TargetPlace { dir, pool, listen, numa } = wanted;
        let wanted = Added { dir: PathBuf::from(dir), pool, listen, numa };
        let Some(_alone) = self.changing.try_lock() else {
            bail!("another target comes or goes at this server at the moment: try again when that is over");
        };
        if self.is_told.load(Relaxed) {
            bail!("this server is stopping");
        }
        let map = self.parts.member.map().read().clone();
        require_directory(&wanted.dir)?;
        require_pool(&map, &wanted.pool)?;
        let affinity = self.machine.affinity(&wanted.place())?;
        let listed = Directories::find_targets(std::slice::from_ref(&wanted.dir))?;
        let [(path, header)] = listed.as_slice() else { bail!("one directory at a time") };
        self.require_free(path)?;
        if let Some(header) = header {
            self.require_other(path, header)?;
            self.require_usable(&map, path, header, &wanted)?;
        }
        let pool = (!wanted.pool.is_empty()).then(|| wanted.pool.clone());
        let found = find_or_make(&self.parts.member, &listed, |_| pool.clone())?;
        let [(path, identity)] = found.as_slice() else { bail!("one directory at a time") };
        let id = identity.target;
        // ORDER: what this call has not put in service it does not let go of, whatever its number.
        self.open_with(&found, |_| Ok(affinity.clone()), (NO_COPIES, false))?;
        let entered = match self.is_told.load(Relaxed) {
            true => Err(anyhow::anyhow!("this server is stopping")),
            false => self.enter(&Added { dir: data_directory(path), ..wanted.clone() }, id),
        };
        if let Err(error) = entered {
            if let Err(error) = self.let_go(id) {
                tracing::warn!(target_id = %id, "a target that does not come after all: {error:#}");
            }
            return Err(error);
        }
        let of_map =
            |map: &ClusterMap| map.target(id).is_some_and(|target| target.state == TargetState::Online);
        let member = &self.parts.member;
        member.map_after(of_map);
        let asked = map.node(who).map_or_else(|| who.to_string(), |node| node.name.clone());
        let text = format!("at {}, asked for on {asked}", path.display());
        member.reporter.report(EventKind::TargetTaken, &id.to_string(), &text);
        eprintln!("ashlar: {id} is in service {text}");
        Ok(id)
    }

    /// Takes the target on a shared disk into service, which this server alone has mounted; a new one is made if there is none.
    ///
    /// # Errors
    /// When it cannot be served; it is not in service then.
    pub(super) fn take_shared(
        &self,
        listed: &[(PathBuf, Option<TargetHeader>)],
        pool: Option<&str>,
    ) -> Result<TargetId> {
        let _alone = self.changing.lock();
        if self.is_told.load(Relaxed) {
            bail!("this server is stopping");
        }
        let [(path, header)] = listed else { bail!("one directory at a time") };
        require_room(self.served().len())?;
        if let Some(header) = header {
            self.require_other(path, header)?;
            if self.is_removed(&header.identity)? {
                bail!(
                    "{} was removed from the file system: `rm -r {}`, nothing in it is of use any more",
                    header.identity.target,
                    path.display()
                );
            }
        }
        let found = find_or_make(&self.parts.member, listed, |_| pool.map(str::to_owned))?;
        let [(_, identity)] = found.as_slice() else { bail!("one directory at a time") };
        let id = identity.target;
        // Whoever had it has unmounted it, or was fenced: managers need not have heard that he has ended.
        self.parts.service.answer_when_durable(id);
        let taking_over = CopyArgs { accept_older_copies: false, take_over: true };
        let place = DataPlace { dir: data_directory(path), listen: Vec::new(), numa: None };
        let affinity = self.machine.affinity(&place)?;
        self.open_with(&found, |_| Ok(affinity.clone()), (taking_over, false))?;
        let told = self.tell(|| self.announcement()).and_then(|()| self.tell_served());
        if let Err(error) = told {
            if let Err(error) = self.let_go(id) {
                tracing::warn!(target_id = %id, "a target that does not come after all: {error:#}");
            }
            return Err(error);
        }
        self.note_entered();
        if let Err(error) = self.count() {
            tracing::error!(target_id = %id, "managers do not hear what a target has: {error:#}");
        }
        eprintln!("ashlar: {id} is in service at {}", path.display());
        Ok(id)
    }

    /// Has managers put a target into the map that is in service here, and the next start serve it as well.
    fn enter(&self, added: &Added, id: TargetId) -> Result<()> {
        {
            // ORDER: before anything is stored on it.
            let mut remembered = self.remembered.lock();
            remembered.add(added.clone());
            remembered.store(self.parts.member.directory())?;
        }
        let told = self.tell(|| self.announcement()).and_then(|()| self.tell_served());
        if let Err(error) = told {
            if self.is_told.load(Relaxed) {
                // A manager may have taken it: the next start tells.
                return Err(error);
            }
            let mut remembered = self.remembered.lock();
            remembered.forget(&added.dir);
            remembered.store(self.parts.member.directory()).context(format!("{error:#}"))?;
            return Err(error);
        }
        self.note_entered();
        if let Err(error) = self.count() {
            // It serves, and stays: the map says so.
            tracing::error!(target_id = %id, "managers do not hear what a target has: {error:#}");
        }
        Ok(())
    }

    /// Tells managers until one has taken it: whether one has whose answer was lost, nobody knows.
    ///
    /// # Errors
    /// When they refuse it, and when this server is told to stop.
    fn tell(&self, request: impl Fn() -> ManagerRequest) -> Result<()> {
        loop {
            // What is served may be less by the next attempt.
            match self.parts.member.managers.call(&request(), Instant::now() + ASK_MAX) {
                Ok(_) => return Ok(()),
                Err(NetError::Refused(text)) => bail!("{text}"),
                Err(error) if self.is_told.load(Relaxed) => {
                    return Err(error).context("told to stop while no manager answers");
                }
                Err(error) => {
                    tracing::warn!(%error, "no manager takes a new target into the map; trying again")
                }
            }
        }
    }

    fn tell_served(&self) -> Result<()> {
        self.tell(|| ManagerRequest::Serve { targets: self.served() })
    }

    /// Refuses what is served here already, and what is in or around it, and more than there may be.
    fn require_free(&self, path: &Path) -> Result<()> {
        let served = self.affinities();
        for (id, known, _) in &served {
            if known == path {
                bail!("{} is {id} of this server already", data_directory(path).display());
            }
            if known.starts_with(path) || path.starts_with(known) {
                bail!(
                    "{} and {}, where {id} is, are inside of each other: name a directory apart",
                    data_directory(path).display(),
                    data_directory(known).display()
                );
            }
        }
        require_room(served.len())
    }

    /// Refuses a copy of a target that is served here, or another name of its directory.
    fn require_other(&self, path: &Path, TargetHeader { identity, .. }: &TargetHeader) -> Result<()> {
        let is_of_this = identity.cluster == self.parts.member.name.cluster;
        let served = self.served();
        let same = served
            .iter()
            .find(|(id, uuid, _)| is_of_this && (*id == identity.target || *uuid == identity.uuid.0));
        if let Some((id, _, known)) = same {
            bail!(
                "{id} is served here from {known}, and {} is a copy of it or another name for it",
                path.display()
            );
        }
        Ok(())
    }

    /// Whether a target was removed from the file system after it was served here, as managers say.
    ///
    /// # Errors
    /// When that is what is known here, and no manager confirms it.
    fn is_removed(&self, identity: &TargetIdentity) -> Result<bool> {
        let uuid = identity.uuid.0;
        if !self.remembered.lock().is_removed(uuid) {
            return Ok(false);
        }
        let map = self.parts.member.map_told_now()?;
        let mut remembered = self.remembered.lock();
        remembered.review(&[], &map);
        remembered.store(self.parts.member.directory())?;
        Ok(remembered.is_removed(uuid))
    }

    /// Refuses what is a target that this file system has no use for, or has in another pool.
    fn require_usable(
        &self,
        map: &ClusterMap,
        path: &Path,
        TargetHeader { identity, .. }: &TargetHeader,
        wanted: &Added,
    ) -> Result<()> {
        if self.is_removed(identity).with_context(|| {
            format!(
                "{} holds {}, which was removed from the file system as far as this server knows, and no manager confirms it: leave what is in it as it is, and try again",
                data_directory(path).display(),
                identity.target
            )
        })? {
            bail!(
                "{} holds {}, which was removed from the file system: empty it first (`rm -r {}`), nothing in it is of use any more",
                data_directory(path).display(),
                identity.target,
                path.display()
            );
        }
        let known = map.target(identity.target).filter(|known| known.uuid == identity.uuid.0);
        let pool = known.and_then(|known| map.pools.iter().find(|pool| pool.id == known.pool));
        if let Some(pool) = pool.filter(|pool| !wanted.pool.is_empty() && pool.name != wanted.pool) {
            bail!(
                "{} holds {}, which is in the pool {} and stays there: leave --pool out, or begin with an empty directory",
                data_directory(path).display(),
                identity.target,
                pool.name
            );
        }
        Ok(())
    }
}

fn data_directory(path: &Path) -> PathBuf {
    path.parent().unwrap_or(path).to_owned()
}

fn require_directory(dir: &Path) -> Result<()> {
    if !dir.is_absolute() {
        bail!("`{}` is no whole path: say where the directory is from `/` on", dir.display());
    }
    if !dir.is_dir() {
        bail!(
            "there is no directory {} on the machine of this server: is its disk mounted? If it is to be made, make it there first (`mkdir {}`)",
            dir.display(),
            dir.display()
        );
    }
    Ok(())
}

fn require_pool(map: &ClusterMap, name: &str) -> Result<()> {
    if name.is_empty() || map.pools.iter().any(|pool| pool.name == name) {
        return Ok(());
    }
    let names: Vec<&str> = map.pools.iter().map(|pool| pool.name.as_str()).collect();
    bail!(
        "there is no pool `{}`, only {}; `ashlar pool add NAME` makes one",
        name.escape_debug(),
        names.join(", ")
    )
}

fn require_room(served: usize) -> Result<()> {
    if served >= TARGETS_MAX {
        bail!(
            "this server has {served} targets, and takes no more than {TARGETS_MAX}: add it to another server"
        );
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_server_takes_so_many_targets_and_no_more() {
        require_room(TARGETS_MAX - 1).unwrap();
        let error = require_room(TARGETS_MAX).unwrap_err().to_string();
        assert!(error.contains("256") && error.contains("another server"), "{error}");
    }
}
