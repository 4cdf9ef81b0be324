//! What is wrong with a file system, in words, and what to do about it. Pure: of what is known to findings.

use crate::watch::Sample;
use ashlar_rpc::wire::{MoveInfo, MoveState};
use ashlar_types::map::TargetState;
use ashlar_types::message::MoveProgress;
use ashlar_types::{ClusterMap, Event, EventKind, NodeId, Role, TargetId};
use std::sync::Arc;
use std::time::Duration;

/// A pool or target with less free space than this is told of: shares of its size.
const NEARLY_FULL: f64 = 0.10;
const FULL: f64 = 0.03;
/// A certificate that ends sooner than this should have been renewed long ago, seconds.
const CERTIFICATE_LEFT_S: f64 = 21.0 * 24.0 * 3600.0;
/// For how long events are told of that somebody has to look after, seconds.
const EVENT_AGE_S: i64 = 24 * 3600;
/// Most findings of one kind.
// LIMIT: the rest is counted.
const ALIKE_MAX: usize = 20;

/// How bad something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// To know.
    Notice,
    /// It should be looked after.
    Warning,
    /// Something does not work.
    Error,
}

impl Severity {
    /// For programs.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Notice => "notice",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// Something that is as it should not be, or that an administrator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is about: a node, a target, a pool.
    pub subject: String,
    /// What is the matter.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

/// What is known of a server.
pub(crate) struct ServerState {
    pub node: NodeId,
    pub role: Role,
    /// For how long it has been silent, if that is too long.
    pub away: Option<Duration>,
    /// It has not answered since the console was started.
    pub was_never_heard: bool,
    pub trouble: String,
    pub sample: Option<Arc<Sample>>,
    pub moves: Vec<MoveInfo>,
    pub progress: Vec<MoveProgress>,
}

/// What is known of a file system.
pub(crate) struct Situation<'a> {
    pub map: &'a ClusterMap,
    pub servers: &'a [ServerState],
    pub events: &'a [Event],
    pub events_trouble: &'a str,
    /// Of the software of the console.
    pub version: &'a str,
    /// Seconds since 1970.
    pub now_s: i64,
}

/// Looks at everything; the worst first.
pub(crate) fn findings(situation: &Situation<'_>) -> Vec<Finding> {
    let mut all = Vec::new();
    managers(situation, &mut all);
    silent_servers(situation, &mut all);
    stopped(situation, &mut all);
    space(situation, &mut all);
    certificates(situation, &mut all);
    versions(situation, &mut all);
    moves(situation, &mut all);
    copies(situation, &mut all);
    incomplete(situation, &mut all);
    happened(situation, &mut all);
    all.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    all
}

fn add(
    all: &mut Vec<Finding>,
    severity: Severity,
    subject: &str,
    what: impl Into<String>,
    remedy: impl Into<String>,
) {
    all.push(Finding { severity, subject: subject.to_owned(), what: what.into(), remedy: remedy.into() });
}

impl Situation<'_> {
    fn name(&self, node: NodeId) -> String {
        crate::object::node::name(self.map, node)
    }

    fn of_role(&self, role: Role) -> impl Iterator<Item = &ServerState> {
        self.servers.iter().filter(move |server| server.role == role)
    }

    fn sample_of_target(&self, target: TargetId) -> Option<crate::watch::TargetState> {
        let node = self.map.target(target)?.node;
        let server = self.of_role(Role::Storage).find(|server| server.node == node)?;
        server.sample.as_ref()?.targets.get(&target.0).copied()
    }
}

/// A time for people.
pub(crate) fn shown(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

fn managers(situation: &Situation<'_>, all: &mut Vec<Finding>) {
    let managers: Vec<&ServerState> = situation.of_role(Role::Manager).collect();
    if !managers.is_empty() && managers.iter().all(|server| server.away.is_some()) {
        let age = managers.iter().filter_map(|server| server.away).min().unwrap_or_default();
        add(
            all,
            Severity::Error,
            "managers",
            format!(
                "no manager has answered for {}: files are served as before, but machines cannot join and nothing can be changed; the map shown is as old as that",
                shown(age)
            ),
            "start a manager: systemctl start ashlar-manager",
        );
    }
    for server in managers {
        if let Some((store, false)) =
            server.sample.as_ref().and_then(|sample| sample.store.as_ref()).filter(|_| server.away.is_none())
        {
            add(
                all,
                Severity::Error,
                &situation.name(server.node),
                format!(
                    "its manager does not reach the state of the file system in {store}: nothing can be changed"
                ),
                "see which members of etcd answer: ashlar etcd list, or etcdctl endpoint health",
            );
        }
    }
    if !situation.events_trouble.is_empty() {
        add(
            all,
            Severity::Warning,
            "events",
            format!("events may be missing: {}", situation.events_trouble),
            "once the managers reach their state again, the rest is written",
        );
    }
}

fn silent_servers(situation: &Situation<'_>, all: &mut Vec<Finding>) {
    for server in situation.servers {
        let Some(away) = server.away else { continue };
        let (name, role) = (situation.name(server.node), server.role);
        let since = match server.was_never_heard {
            true => format!("has not answered since the console was started, {} ago", shown(away)),
            false => format!("has not answered for {}", shown(away)),
        };
        let why = if server.trouble.is_empty() { String::new() } else { format!(" ({})", server.trouble) };
        let (severity, effect) = match role {
            Role::Storage => (Severity::Error, "programs that use files on its targets wait"),
            Role::Meta => (Severity::Error, "programs that use what is in its shards wait"),
            _ => (Severity::Warning, "the other managers do its work, if there are any"),
        };
        add(
            all,
            severity,
            &name,
            format!("{role} {since}{why}: {effect}"),
            format!(
                "on {name}: systemctl status ashlar-{role}, journalctl -u ashlar-{role}; is the machine on, and the network?"
            ),
        );
    }
}

fn stopped(situation: &Situation<'_>, all: &mut Vec<Finding>) {
    for server in situation.servers {
        let Some(sample) = &server.sample else { continue };
        if sample.is_metadata_stopped {
            let name = situation.name(server.node);
            let what = "its metadata takes no more changes after an error of its disk";
            add(
                all,
                Severity::Error,
                &name,
                what,
                format!(
                    "journalctl -u ashlar-meta on {name} tells which; mend the disk, then start it again"
                ),
            );
        }
        for (id, _) in sample.targets.iter().filter(|(_, target)| target.is_stopped) {
            let what = "takes no more changes after an error of its disk";
            add(
                all,
                Severity::Error,
                &format!("target {id}"),
                what,
                format!(
                    "ashlar target drain {id} moves what can be read to others; or mend the disk and start its server again"
                ),
            );
        }
    }
    for target in situation.map.targets.iter().filter(|target| target.state == TargetState::Offline) {
        add(
            all,
            Severity::Error,
            &format!("target {}", target.id.0),
            format!("is offline: {} does not serve {}", situation.name(target.node), target.path),
            "is its disk mounted, and named with --data of ashlar storage?",
        );
    }
}

fn space(situation: &Situation<'_>, all: &mut Vec<Finding>) {
    let tell = |subject: &str, free: f64, size: f64, remedy: &str, all: &mut Vec<Finding>| {
        let share = free / size;
        if size > 0.0 && share < NEARLY_FULL {
            let severity = if share < FULL { Severity::Error } else { Severity::Warning };
            add(all, severity, subject, format!("{:.1} % of its space are free", share * 100.0), remedy);
        }
    };
    for pool in &situation.map.pools {
        let of_pool = situation.map.targets.iter().filter(|target| target.pool == pool.id);
        let known: Vec<_> = of_pool.filter_map(|target| situation.sample_of_target(target.id)).collect();
        let sum = |of: fn(&crate::watch::TargetState) -> f64| known.iter().map(of).sum::<f64>();
        let (free, size) = (sum(|target| target.free), sum(|target| target.size));
        tell(
            &format!("pool {}", pool.name),
            free,
            size,
            "remove files, or add targets: ashlar storage --data",
            all,
        );
        if size > 0.0 && free / size >= NEARLY_FULL {
            for target in situation.map.targets.iter().filter(|target| target.pool == pool.id) {
                let Some(state) = situation.sample_of_target(target.id) else { continue };
                let remedy = format!("ashlar target rebalance {} spreads what is there", pool.name);
                tell(&format!("target {}", target.id.0), state.free, state.size, &remedy, all);
            }
        }
    }
}

fn certificates(situation: &Situation<'_>, all: &mut Vec<Finding>) {
    for server in situation.servers {
        let end = server.sample.as_ref().and_then(|sample| sample.certificate_end_s);
        let Some(left) = end.map(|end| end - situation.now_s as f64) else { continue };
        if left < CERTIFICATE_LEFT_S {
            let name = situation.name(server.node);
            let (severity, what) = match left <= 0.0 {
                true => (Severity::Error, "its certificate has ended: nobody believes it".to_owned()),
                false => (
                    Severity::Warning,
                    format!("its certificate ends in {:.0} days and was not renewed", left / 86_400.0),
                ),
            };
            let remedy = format!(
                "is the clock of {name} right, and does ashlar-{} there reach a manager? Its log tells why renewing fails",
                server.role
            );
            add(all, severity, &name, what, remedy);
        }
    }
}

fn versions(situation: &Situation<'_>, all: &mut Vec<Finding>) {
    let mut others: Vec<(String, String)> = situation
        .servers
        .iter()
        .filter_map(|server| Some((server.sample.as_ref()?.version.clone(), situation.name(server.node))))
        .filter(|(version, _)| version != situation.version)
        .collect();
    others.sort();
    others.dedup();
    if !others.is_empty() {
        let named: Vec<String> =
            others.iter().take(ALIKE_MAX).map(|(version, name)| format!("{name} {version}")).collect();
        add(
            all,
            Severity::Notice,
            "versions",
            format!(
                "not all servers have the version of the console, {}: {}",
                situation.version,
                named.join(", ")
            ),
            "go on with the upgrade: docs/guides/cluster.md",
        );
    }
    let newest = situation.map.epoch.0;
    for server in situation.servers.iter().filter(|server| server.away.is_none()) {
        // The one or the other is newer for a moment after every change.
        if let Some(sample) = server.sample.as_ref().filter(|sample| sample.epoch + 20 < newest) {
            let name = situation.name(server.node);
            add(
                all,
                Severity::Warning,
                &name,
                format!(
                    "{} goes by the map of epoch {}, and there is one of {newest}",
                    server.role, sample.epoch
                ),
                format!("does {name} reach a manager?"),
            );
        }
    }
}

fn moves(situation: &Situation<'_>, all: &mut Vec<Finding>) {
    let moving = situation.map.chains.iter().filter(|chain| chain.moving.is_some()).count();
    let waits = |target: &&ashlar_types::map::Target| {
        target.is_draining && situation.map.chains_with(target.id).next().is_some()
    };
    if situation.map.moves.is_paused
        && (moving > 0 || situation.map.targets.iter().any(|target| waits(&target)))
    {
        let what = format!("moves of chains are paused, {moving} of them on their way");
        add(all, Severity::Notice, "moves", what, "ashlar target moves --resume has them go on");
    }
    for server in situation.servers {
        for progress in
            server.progress.iter().filter(|progress| !progress.obstacle.is_empty()).take(ALIKE_MAX)
        {
            add(
                all,
                Severity::Warning,
                &progress.chain.to_string(),
                format!("does not get to target {}: {}", progress.to.0, progress.obstacle),
                "it goes on by itself once that is over; ashlar target undrain gives it up",
            );
        }
        for info in server.moves.iter().take(ALIKE_MAX) {
            let to = situation.name(info.to);
            let (text, way_out) = match &info.state {
                MoveState::Failed(why) => (
                    format!("could not be moved to {to}: {why}"),
                    "it is served as before; ashlar shard move tries again",
                ),
                MoveState::Stalled(why) => (
                    format!("does not get to {to}: {why}"),
                    "it goes on by itself once that answers; ashlar shard move --cancel withdraws it",
                ),
                _ => continue,
            };
            add(all, Severity::Warning, &info.shard.to_string(), text, way_out);
        }
    }
}

fn copies(situation: &Situation<'_>, all: &mut Vec<Finding>) {
    let (mut count, mut short, mut last) = (0, 0, 0);
    for (chain, _) in situation.map.chains_of_copies() {
        count += 1;
        if chain.is_short() {
            short += 1;
            last += usize::from(chain.targets.len() == 1);
        }
    }
    if short > 0 {
        let what = format!(
            "{short} of {count} chains of several copies have fewer than they are to have, {last} one alone"
        );
        let way_out = "it is made good by itself, after ten minutes on other targets if there are some: ashlar chain list --short";
        add(all, Severity::Warning, "copies", what, way_out);
    }
}

fn incomplete(situation: &Situation<'_>, all: &mut Vec<Finding>) {
    if situation.map.listening(Role::Meta).next().is_none() {
        add(
            all,
            Severity::Error,
            "metadata",
            "no metadata server has been started yet",
            "ashlar token --role meta, and docs/guides/cluster.md",
        );
    }
    if situation.map.targets.is_empty() {
        add(
            all,
            Severity::Error,
            "targets",
            "there is no target yet",
            "ashlar token --role storage, and docs/guides/cluster.md",
        );
    }
    let listening: usize = [Role::Manager, Role::Meta, Role::Storage]
        .iter()
        .map(|role| situation.map.listening(*role).count())
        .sum();
    if listening > crate::watch::SERVERS_MAX {
        add(
            all,
            Severity::Notice,
            "console",
            format!("{listening} servers, of which the console watches {}", crate::watch::SERVERS_MAX),
            "the others are not shown",
        );
    }
}

/// Events of the last day that somebody has to look after.
fn happened(situation: &Situation<'_>, all: &mut Vec<Finding>) {
    let remedies = [
        (
            EventKind::DamageFound,
            Severity::Error,
            "damage was found",
            "ashlar event list --kind damage-found names what; docs/guides/fsck.md says how to go on",
        ),
        (
            EventKind::TargetClaimedTwice,
            Severity::Error,
            "a target was claimed by a second machine",
            "take the copy away, or the disk from one of the two machines: ashlar event list --kind target-claimed-twice",
        ),
        (
            EventKind::FenceFailed,
            Severity::Error,
            "a server could not be fenced, and its shared disks wait",
            "is it off for certain? docs/guides/shared-disks.md says how to go on",
        ),
        (
            EventKind::DiskFailed,
            Severity::Error,
            "a storage server could not use a shared disk",
            "see to its path to the disk: ashlar event list --kind disk-failed; ashlar disk move gives the disk back",
        ),
        (
            EventKind::SessionEvicted,
            Severity::Warning,
            "a session was ended because its mount did not give back what others needed",
            "is that machine overloaded, or its network slow?",
        ),
        (
            EventKind::EventsLost,
            Severity::Notice,
            "more happened than could be kept",
            "the logs of the servers have it",
        ),
    ];
    for (kind, severity, what, remedy) in remedies {
        let of_kind = situation.events.iter().filter(|event| {
            event.what.kind == kind && situation.now_s.saturating_sub(event.what.at.secs) < EVENT_AGE_S
        });
        let subjects: Vec<&str> = of_kind.map(|event| event.what.subject.as_str()).collect();
        if let Some(newest) = subjects.last() {
            add(all, severity, newest, format!("{what} in the last 24 h, {} times", subjects.len()), remedy);
        }
    }
}

#[cfg(test)]
mod tests;
