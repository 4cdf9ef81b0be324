//! One server: what it has told, and when.

use super::history::History;
use super::rates::Rates;
use super::sample::Sample;
use super::{AWAY_AFTER, Cluster};
use ashlar_rpc::net::NetError;
use ashlar_rpc::remote::{Patience, RemoteProcess, RemoteSessions, RemoteShards, RemoteStorage};
use ashlar_rpc::wire::{MoveInfo, SessionInfo};
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::map::TargetState;
use ashlar_types::message::{MoveProgress, StorageReply, StorageRequest};
use ashlar_types::{NodeId, Role};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// LIMIT: for how long one question may take.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// LIMIT: sessions of a server that are kept.
const SESSIONS_MAX: usize = 20_000;
/// LIMIT: of what is said of an error, letters.
const TROUBLE_MAX: usize = 300;

/// What a server has told.
#[derive(Clone, Default)]
pub struct Seen {
    /// When it last answered.
    pub heard: Option<Instant>,
    /// Why it does not answer now; empty while it does.
    pub trouble: String,
    /// What it counts.
    pub sample: Option<Arc<Sample>>,
    /// What it does at this moment.
    pub rates: Option<Rates>,
    /// Of a metadata server: its sessions.
    pub sessions: Vec<SessionInfo>,
    /// Of a metadata server: shards that it gives away.
    pub moves: Vec<MoveInfo>,
    /// Of a storage server: chains that leave its targets.
    pub progress: Vec<MoveProgress>,
}

/// See the module.
pub struct Server {
    /// The machine.
    pub node: NodeId,
    /// What it is.
    pub role: Role,
    /// Since when it is watched.
    pub since: Instant,
    seen: Mutex<Seen>,
    history: Mutex<History>,
    has_left: AtomicBool,
}

impl Server {
    pub(super) fn new(node: NodeId, role: Role) -> Server {
        Server {
            node,
            role,
            since: Instant::now(),
            seen: Mutex::default(),
            history: Mutex::default(),
            has_left: AtomicBool::new(false),
        }
    }

    /// It is not watched any more.
    pub(super) fn leave(&self) {
        self.has_left.store(true, Relaxed);
    }

    /// What it has told.
    pub fn seen(&self) -> Seen {
        self.seen.lock().clone()
    }

    /// Its figures over time.
    pub fn history(&self) -> History {
        self.history.lock().clone()
    }

    /// For how long it has said nothing: since it last answered, or since it is watched.
    pub fn silence(&self) -> Duration {
        self.seen.lock().heard.unwrap_or(self.since).elapsed()
    }

    /// Whether it has been silent for too long.
    pub fn is_away(&self) -> bool {
        self.silence() > AWAY_AFTER
    }

    /// Asks it everything once; tells whether it is still to be watched.
    pub(super) fn ask(&self, cluster: &Cluster) -> bool {
        if self.has_left.load(Relaxed) {
            return false;
        }
        let process = RemoteProcess::new(cluster.routes.clone(), self.node, self.role);
        match process.metrics(Instant::now() + ANSWER_MAX) {
            Ok(text) => {
                self.note(Sample::read(&text));
                self.ask_more(cluster);
            }
            Err(error) => self.note_trouble(&error),
        }
        !self.has_left.load(Relaxed)
    }

    /// Takes what it counts now.
    fn note(&self, sample: Sample) {
        let now = Instant::now();
        let mut seen = self.seen.lock();
        let before = seen.heard.zip(seen.sample.take());
        seen.rates = before.and_then(|(then, before)| {
            Rates::between(&before, &sample, now.duration_since(then).as_secs_f64())
        });
        (seen.heard, seen.sample) = (Some(now), Some(Arc::new(sample)));
        seen.trouble.clear();
    }

    fn note_trouble(&self, error: &NetError) {
        let text = error.to_string();
        let mut seen = self.seen.lock();
        seen.rates = None;
        seen.trouble = text.chars().filter(|letter| !letter.is_control()).take(TROUBLE_MAX).collect();
    }

    /// What only a server of its role can tell.
    fn ask_more(&self, cluster: &Cluster) {
        let routes = cluster.routes.clone();
        match self.role {
            Role::Meta => {
                let deadline = Instant::now() + ANSWER_MAX;
                match RemoteSessions::new(routes.clone(), self.node).list(deadline) {
                    Ok(mut sessions) => {
                        sessions.truncate(SESSIONS_MAX);
                        self.seen.lock().sessions = sessions;
                    }
                    Err(error) => self.note_trouble(&error),
                }
                match RemoteShards::new(routes, self.node).moves(Instant::now() + ANSWER_MAX) {
                    Ok(moves) => self.seen.lock().moves = moves,
                    Err(error) => self.note_trouble(&error),
                }
            }
            Role::Storage => self.seen.lock().progress = self.ask_progress(cluster),
            _ => {}
        }
    }

    /// How far the chains are that leave its targets.
    fn ask_progress(&self, cluster: &Cluster) -> Vec<MoveProgress> {
        let map = cluster.routes.map();
        let leaving = map.targets.iter().filter(|target| {
            let is_here = target.node == self.node && target.state == TargetState::Online;
            is_here && map.chains_at(target.id).any(|chain| chain.moving.is_some())
        });
        let storage = RemoteStorage::new(cluster.routes.clone(), Patience::new(ANSWER_MAX)).giving_up();
        let mut progress = Vec::new();
        for target in leaving {
            match storage.call(&StorageRequest::Moves { target: target.id }, Payload::None) {
                Ok(StorageReply::Moves(moves)) => progress.extend(moves),
                // The next turn tells why it does not answer, if it does not.
                _ => break,
            }
        }
        progress
    }

    /// Writes the figures of this moment into its history; gives them back.
    pub(super) fn note_figures(&self) -> Option<Rates> {
        let rates = if self.is_away() { None } else { self.seen.lock().rates.clone() };
        let mut history = self.history.lock();
        let of = |figure: fn(&Rates) -> f64| rates.as_ref().map(figure);
        history.calls.push(of(|rates| rates.calls));
        history.read.push(of(|rates| rates.read));
        history.written.push(of(|rates| rates.written));
        history.mean_s.push(rates.as_ref().and_then(|rates| rates.mean_s));
        drop(history);
        rates
    }
}
