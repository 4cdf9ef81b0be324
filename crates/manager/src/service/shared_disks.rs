//! Disks that several storage servers reach: which of them is to have one (ADR 0031).
//!
//! What a disk becomes says `ashlar_replication::shared_disk`, and nothing else. Here is what was heard of servers, and what is wanted.

use super::{ManagerService, name, refused};
use crate::ManagerError;
use crate::state::ClusterState;
use ashlar_replication::shared_disk::{self, Refused};
use ashlar_types::map::TargetState;
use ashlar_types::message::ManagerReply;
use ashlar_types::{
    ClusterMap, DiskId, DiskOrder, DiskState, DiskWord, EventKind, NodeId, PeerId, SharedDisk,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// After how long without a word a server that has a disk is to be fenced; there is one every second.
const SILENT_AFTER: Duration = Duration::from_secs(6);
/// For how long a server that was told to let go of a disk is waited for, before it is fenced.
const LEAVE_MAX: Duration = Duration::from_secs(60);
/// For how long a server is there again before it gets a disk back that is to be its own.
const FAIL_BACK_AFTER: Duration = Duration::from_secs(60);
/// For how long the server that is to have a disk is waited for by one that is there.
const PREFERRED_WITHIN: Duration = Duration::from_secs(15);

/// What was heard of shared disks; in memory.
#[derive(Default)]
pub(super) struct HeardOfDisks {
    // LIMIT: as disks and the servers that reach them.
    words: Mutex<BTreeMap<(DiskId, NodeId), Heard>>,
    /// Since when each disk is at its turn, as far as this manager knows.
    turns: Mutex<BTreeMap<DiskId, (u64, Instant)>>,
}

#[derive(Clone, Copy)]
struct Heard {
    /// Since when it has not been silent for long.
    first: Instant,
    last: Instant,
    word: DiskWord,
}

/// What is known of one disk at the moment.
struct View {
    now: Instant,
    heard: BTreeMap<NodeId, Heard>,
    /// For how long it is at its turn.
    turn_for: Duration,
    /// This manager would have heard of everybody who is there.
    can_tell: bool,
}

impl View {
    fn there(&self, node: NodeId) -> Option<&Heard> {
        self.heard.get(&node).filter(|heard| self.now.duration_since(heard.last) < SILENT_AFTER)
    }

    /// Whether it can have the disk, as far as is known.
    fn is_fit(&self, disk: &SharedDisk, node: NodeId) -> bool {
        let is_fit = self.there(node).is_some_and(|heard| !heard.word.is_failing);
        is_fit && disk.failed != Some(node) && disk.servers.contains(&node)
    }

    /// Whether it can see to it that another one does not write any more, as far as is known.
    fn can_fence(&self, node: NodeId) -> bool {
        self.there(node).is_some_and(|heard| heard.word.can_fence && !heard.word.is_failing)
    }

    fn is_there_for(&self, node: NodeId, least: Duration) -> bool {
        self.there(node).is_some_and(|heard| self.now.duration_since(heard.first) >= least)
    }
}

impl HeardOfDisks {
    fn hear(&self, from: NodeId, words: &[DiskWord], disks: &[SharedDisk]) {
        let (mut known, now) = (self.words.lock(), Instant::now());
        known.retain(|(id, _), _| disks.binary_search_by_key(id, |disk| disk.id).is_ok());
        for word in words {
            let heard = known.entry((word.id, from)).or_insert(Heard { first: now, last: now, word: *word });
            if now.duration_since(heard.last) >= SILENT_AFTER {
                heard.first = now;
            }
            (heard.last, heard.word) = (now, *word);
        }
    }

    fn view(&self, disk: &SharedDisk, can_tell: bool) -> View {
        let now = Instant::now();
        let words = self.words.lock();
        let of_disk = words.iter().filter(|((id, _), _)| *id == disk.id);
        let heard = of_disk.map(|((_, node), heard)| (*node, *heard)).collect();
        let mut turns = self.turns.lock();
        let since = turns.entry(disk.id).or_insert((disk.turn, now));
        if since.0 != disk.turn {
            *since = (disk.turn, now);
        }
        View { now, heard, turn_for: now.duration_since(since.1), can_tell }
    }
}

impl ManagerService {
    /// What the storage server `peer` says of the disks that it shares, and what it is told.
    pub(super) fn share_disks(&self, peer: PeerId, words: &[DiskWord]) -> Result<ManagerReply, ManagerError> {
        if words.len() > SharedDisk::AT_SERVER_MAX {
            return Err(refused(format!("more than {} disks of one server", SharedDisk::AT_SERVER_MAX)));
        }
        self.manager.with_state(|state| self.disks.hear(peer.node, words, &state.shared_disks));
        let can_tell = self.presences.can_tell();
        let next_of = |state: &ClusterState| {
            let mut disks = state.shared_disks.clone();
            for word in words {
                let disk = known(&mut disks, word.id, self.now_s())?;
                *disk = next(disk, peer.node, word, &self.disks.view(disk, can_tell));
            }
            Ok::<_, ManagerError>(disks)
        };
        let is_more =
            self.manager.with_state(|state| next_of(state).map(|next| next != state.shared_disks))?;
        if is_more {
            let (before, after, map) = self.manager.change_by(Some(peer.node), |state| {
                let (next, map) = (next_of(state)?, state.map.clone());
                let before = std::mem::replace(&mut state.shared_disks, next.clone());
                Ok((before, next, map))
            })?;
            self.tell_of_disks(&map, &before, &after);
        }
        let mut disks = self.manager.with_state(|state| state.shared_disks.clone());
        let is_to_fence =
            |disk: &SharedDisk| matches!(disk.state, DiskState::Fencing { by, .. } if by == peer.node);
        // Nobody is switched off by a manager that is behind.
        if self.manager.is_shared() && disks.iter().any(is_to_fence) {
            self.manager.refresh()?;
            disks = self.manager.with_state(|state| state.shared_disks.clone());
        }
        let order = |word: &DiskWord| {
            let disk = disks.iter().find(|disk| disk.id == word.id)?.clone();
            let is_to_take = is_to_take(&disk, peer.node, &self.disks.view(&disk, can_tell));
            Some(DiskOrder { disk, is_to_take })
        };
        Ok(ManagerReply::DiskOrders(words.iter().filter_map(order).collect()))
    }

    /// `peer` is about to mount a disk.
    pub(super) fn use_disk(&self, peer: PeerId, id: DiskId) -> Result<ManagerReply, ManagerError> {
        let (granted, is_new, map) = self.change_or_look(|state| {
            let words = |why: Refused| match why {
                Refused::Taken(other) => {
                    refused(format!("{} has the disk, or is about to", name(&state.map, other)))
                }
                Refused::Unknown => refused(why.to_string()),
            };
            let disk = state.shared_disks.iter_mut().find(|disk| disk.id == id);
            let disk = disk.ok_or_else(|| refused("no storage server has spoken of that disk"))?;
            let is_new = disk.user() != Some(peer.node);
            *disk = shared_disk::use_by(disk, peer.node).map_err(words)?;
            Ok((disk.clone(), is_new, state.map.clone()))
        })?;
        if is_new {
            let text = format!("{} has it", name(&map, peer.node));
            self.note(peer.node, EventKind::DiskMoved, &subject(&granted), &text);
        }
        Ok(ManagerReply::DiskGranted(granted))
    }

    /// All of them.
    pub(super) fn shared_disks(&self) -> ManagerReply {
        ManagerReply::SharedDisks(self.manager.with_state(|state| state.shared_disks.clone()))
    }

    /// An administrator wants `to` to have a disk.
    pub(super) fn move_disk(&self, by: NodeId, id: DiskId, to: NodeId) -> Result<ManagerReply, ManagerError> {
        let map = self.map().read().clone();
        self.change_or_look(|state| {
            let disk = state.shared_disks.iter_mut().find(|disk| disk.id == id);
            let disk = disk.ok_or_else(|| refused(format!("there is no disk {}", SharedDisk::shown(id))))?;
            if !disk.servers.contains(&to) {
                return Err(refused(format!(
                    "{} has not said that it reaches the disk: name it there with --shared or --standby",
                    name(&map, to)
                )));
            }
            // ORDER: looked at before, so that nobody is without the disk for one that is not there.
            if self.disks.view(disk, true).there(to).is_none() {
                return Err(refused(format!("nothing is heard of {}: is it started?", name(&map, to))));
            }
            if disk.failed == Some(to) {
                disk.failed = None;
            }
            if let Some(next) = shared_disk::leave(disk, to) {
                *disk = next;
            }
            Ok(())
        })?;
        tracing::info!(%by, disk = SharedDisk::shown(id), %to, "a shared disk is to go to another server");
        Ok(ManagerReply::Done)
    }

    /// An administrator vouches for it that `node` is off.
    pub(super) fn confirm_fenced(&self, by: NodeId, node: NodeId) -> Result<ManagerReply, ManagerError> {
        if !self.presences.can_tell() {
            return Err(refused(
                "this manager has just begun, and cannot tell who is there: say it again in some seconds",
            ));
        }
        let map = self.map().read().clone();
        let (before, after) = self.change_or_look(|state| {
            let before = state.shared_disks.clone();
            for disk in &mut state.shared_disks {
                if disk.user() == Some(node) && self.disks.view(disk, true).there(node).is_some() {
                    return Err(refused(format!(
                        "{} is there: it has spoken of the disk {} within {} s. Stop it, or switch it off, first",
                        name(&map, node),
                        SharedDisk::shown(disk.id),
                        SILENT_AFTER.as_secs()
                    )));
                }
                if let Some(next) = shared_disk::confirmed(disk, node) {
                    *disk = next;
                }
            }
            Ok((before, state.shared_disks.clone()))
        })?;
        if before == after {
            return Err(refused(format!("{} has no shared disk that others wait for", name(&map, node))));
        }
        let text = "an administrator vouches for it";
        self.note(by, EventKind::ServerFenced, &name(&map, node), text);
        Ok(ManagerReply::Done)
    }

    fn tell_of_disks(&self, map: &ClusterMap, before: &[SharedDisk], after: &[SharedDisk]) {
        for disk in after {
            let known = before.iter().find(|known| known.id == disk.id);
            if disk.failed.is_some() && known.and_then(|known| known.failed) != disk.failed {
                let node = disk.failed.unwrap_or_default();
                let text = format!("{} cannot use it", name(map, node));
                self.note(node, EventKind::DiskFailed, &subject(disk), &text);
            }
            let state = known.map(|known| known.state);
            if state == Some(disk.state) {
                continue;
            }
            match disk.state {
                DiskState::Fencing { from, by } => {
                    let text = format!(
                        "{} is to see to it that it does not write to {} any more",
                        name(map, by),
                        subject(disk)
                    );
                    self.note(by, EventKind::FenceBegun, &name(map, from), &text);
                }
                DiskState::Free { next: Some(by) } => {
                    if let Some(DiskState::Fencing { from, .. }) = state {
                        let text = format!("{} goes on with {}", name(map, by), subject(disk));
                        self.note(by, EventKind::ServerFenced, &name(map, from), &text);
                    }
                }
                _ => {}
            }
        }
    }
}

/// What a disk becomes by what `by` says of it.
fn next(disk: &SharedDisk, by: NodeId, word: &DiskWord, view: &View) -> SharedDisk {
    let mut disk = disk.clone();
    if !disk.servers.contains(&by) && disk.servers.len() < SharedDisk::SERVERS_MAX {
        disk.servers.push(by);
    }
    match word.is_preferred {
        true => disk.preferred = Some(by),
        false => disk.preferred = disk.preferred.filter(|known| *known != by),
    }
    if word.target.is_some() && disk.user() == Some(by) {
        disk.target = word.target;
    }
    if word.is_failing && (disk.user() == Some(by) || disk.state == (DiskState::Free { next: Some(by) })) {
        disk = shared_disk::failed(&disk, by).unwrap_or(disk);
    } else if word.seen == 0 && !word.is_failing && disk.failed == Some(by) {
        // A server that was started anew may have been mended.
        disk.failed = None;
    }
    if let Some(next) = shared_disk::heard(&disk, by, word) {
        return next;
    }
    let next = match disk.state {
        DiskState::Used { by: user } if user == by => wanted_elsewhere(&disk, user, view),
        DiskState::Used { by: user } => is_silent(user, view).then_some(by),
        DiskState::Leaving { from, to } => {
            let is_late = is_silent(from, view) || view.turn_for > LEAVE_MAX;
            (from != by && is_late && (to == by || !view.can_fence(to))).then_some(by)
        }
        DiskState::Fencing { from, by: other } => {
            (from != by && other != by && view.can_tell && !view.can_fence(other)).then_some(by)
        }
        DiskState::Free { .. } => None,
    };
    let changed = match (disk.state, next) {
        (DiskState::Used { by: user }, Some(to)) if user == by => shared_disk::leave(&disk, to),
        (_, Some(by)) if word.can_fence && !word.is_failing && disk.servers.contains(&by) => {
            shared_disk::silent(&disk, by)
        }
        _ => None,
    };
    changed.unwrap_or(disk)
}

fn is_silent(node: NodeId, view: &View) -> bool {
    view.can_tell && view.there(node).is_none()
}

/// Who is to have the disk that `user` has, if somebody else is.
fn wanted_elsewhere(disk: &SharedDisk, user: NodeId, view: &View) -> Option<NodeId> {
    let others = || disk.servers.iter().copied().filter(|other| *other != user && view.is_fit(disk, *other));
    if disk.failed == Some(user) {
        return others().next();
    }
    let own = disk.preferred.filter(|own| *own != user)?;
    others().find(|other| *other == own && view.is_there_for(own, FAIL_BACK_AFTER))
}

/// Whether `node` is to ask for the disk, which nobody has.
fn is_to_take(disk: &SharedDisk, node: NodeId, view: &View) -> bool {
    let DiskState::Free { next } = disk.state else { return false };
    let fit = |other: &NodeId| view.is_fit(disk, *other);
    if let Some(next) = next.filter(fit) {
        return next == node;
    }
    if let Some(own) = disk.preferred.filter(fit) {
        return own == node;
    }
    let is_fit = fit(&node);
    let is_awaited = disk.preferred.is_some_and(|own| own != node && disk.failed != Some(own));
    if is_fit {
        return !is_awaited || view.is_there_for(node, PREFERRED_WITHIN);
    }
    // One that could not use it tries again if nobody else is there.
    view.there(node).is_some() && !disk.servers.iter().any(fit)
}

fn known(disks: &mut Vec<SharedDisk>, id: DiskId, now_s: u64) -> Result<&mut SharedDisk, ManagerError> {
    let at = match disks.binary_search_by_key(&id, |disk| disk.id) {
        Ok(at) => at,
        Err(_) if disks.len() >= SharedDisk::COUNT_MAX => {
            return Err(refused(format!("there are {} shared disks already", SharedDisk::COUNT_MAX)));
        }
        Err(at) => {
            // Later than any turn that a server can have seen before the disk was forgotten: none has one every second.
            disks.insert(at, SharedDisk { turn: now_s.max(1), ..SharedDisk::new(id) });
            at
        }
    };
    Ok(&mut disks[at])
}

/// Targets on shared disks are not missing where a server begins without them: it is about to have them, or another one is.
pub(super) fn keep_online(next: &mut ClusterMap, before: &ClusterMap, disks: &[SharedDisk]) {
    for id in disks.iter().filter_map(|disk| disk.target) {
        let was_online = before.target(id).is_some_and(|target| target.state == TargetState::Online);
        if let Some(target) = next.targets.iter_mut().find(|target| target.id == id && was_online) {
            target.state = TargetState::Online;
        }
    }
}

/// Refuses a node that may have a disk mounted; forgets it otherwise.
pub(super) fn leave_disks(state: &mut ClusterState, node: NodeId) -> Result<(), ManagerError> {
    if let Some(disk) = state.shared_disks.iter().find(|disk| disk.user() == Some(node)) {
        return Err(refused(format!(
            "{} has the shared disk {}: `ashlar disk move` gives it to another server first",
            name(&state.map, node),
            SharedDisk::shown(disk.id)
        )));
    }
    for disk in &mut state.shared_disks {
        disk.servers.retain(|known| *known != node);
        disk.preferred = disk.preferred.filter(|known| *known != node);
        disk.failed = disk.failed.filter(|known| *known != node);
    }
    state.shared_disks.retain(|disk| !disk.servers.is_empty());
    Ok(())
}

/// Whether the disks are such as they can be.
///
/// # Errors
/// What is wrong, in words.
pub(crate) fn check(disks: &[SharedDisk]) -> Result<(), &'static str> {
    let is_sound = |disk: &SharedDisk| {
        disk.servers.len() <= SharedDisk::SERVERS_MAX && (1..=u64::MAX / 2).contains(&disk.turn)
    };
    let are_ordered = disks.windows(2).all(|pair| pair[0].id < pair[1].id);
    match are_ordered && disks.len() <= SharedDisk::COUNT_MAX && disks.iter().all(is_sound) {
        true => Ok(()),
        false => Err("its shared disks are not in order, or too many servers reach one"),
    }
}

fn subject(disk: &SharedDisk) -> String {
    disk.target.map_or_else(|| SharedDisk::shown(disk.id), |target| target.to_string())
}

#[cfg(test)]
impl ManagerService {
    /// As if `node` had been there for so long, and silent since then for so long, as far as disks are concerned.
    pub(super) fn suppose_disk_words(&self, node: NodeId, there_for: Duration, silent_for: Duration) {
        let now = Instant::now();
        let ago = |time: Duration| now.checked_sub(time).unwrap_or(now);
        let mut words = self.disks.words.lock();
        for (_, heard) in words.iter_mut().filter(|((_, known), _)| *known == node) {
            (heard.first, heard.last) = (ago(there_for + silent_for), ago(silent_for));
        }
    }

    /// As if disks had been at their turn for so long.
    pub(super) fn suppose_turns(&self, since: Duration) {
        let now = Instant::now();
        self.disks.turns.lock().values_mut().for_each(|turn| turn.1 = now.checked_sub(since).unwrap_or(now));
    }
}
