//! Making a backup of a file system of many servers while it is used.
//!
//! All metadata servers are closed for a moment, and keep what they have: what programs were answered before is in it, and nothing that was begun after
//! it (`crates/meta/src/across/cut.rs`). Then they go on, and what they have kept is fetched from all at the same time.

use super::format::{Header, Kind, Writer, encode_pair};
use super::part::{EXTENSION, PartHead, PartServer};
use super::write::{PAYLOAD_BYTES, rename_if_free, with_suffix};
use crate::cluster::{Member, NodeDirectory};
use crate::node::state::make_private_directory;
use anyhow::{Context, Result, bail};
use ashlar_rpc::net::NetError;
use ashlar_rpc::remote::RemoteBackup;
use ashlar_rpc::wire::{BackupStep, BackupTold, CLOSED_MAX};
use ashlar_types::{ClusterMap, NodeId, Role, codec};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Tries to find a moment at which all servers are closed. Each that fails is one for those who work, too.
const TRIES: u32 = 30;
/// Pauses between them.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// LIMIT: for how long a server may take to put its log into its engine, to answer a page, and to answer at all.
const PREPARE_MAX: Duration = Duration::from_secs(60);
const PAGE_MAX: Duration = Duration::from_secs(60);
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// After how long without an answer a server is away.
const AWAY_MAX: Duration = Duration::from_secs(15);

/// What a backup was about.
pub struct RunningSummary {
    /// Metadata records.
    pub pairs: u64,
    /// Bytes of all parts.
    pub bytes: u64,
    /// Parts.
    pub parts: usize,
    /// For how long nobody was served.
    pub closed: Duration,
}

/// A metadata server that takes part.
struct Server {
    node: NodeId,
    name: String,
    remote: RemoteBackup,
}

/// A moment that was found.
struct Moment {
    servers: Vec<Server>,
    head: PartHead,
    closed: Duration,
}

/// Writes the metadata of the running file system that the node at `identity` belongs to into directory `out`, which must not be there yet.
///
/// # Errors
/// When this machine may not, a metadata server does not answer, or the directory cannot be written; none is left then.
pub fn back_up_running(identity: &Path, out: &Path) -> Result<RunningSummary> {
    if out.symlink_metadata().is_ok() {
        bail!("{} is there already; name another directory", out.display());
    }
    let member = Member::start(NodeDirectory::new(identity), Role::Admin)?;
    let new = with_suffix(out, &format!(".{}.new", std::process::id()));
    make_private_directory(&new)?;
    let outcome = find_moment(&member).and_then(|moment| {
        let written = write_parts(&member, &moment, &new);
        for server in &moment.servers {
            // It would forget by itself.
            let _ = server.remote.step(BackupStep::End, Instant::now() + ANSWER_MAX);
        }
        let (pairs, bytes) = written?;
        let sync = |path: &Path| File::open(path).and_then(|dir| dir.sync_all());
        sync(&new).with_context(|| format!("cannot sync {}", new.display()))?;
        // ORDER: whole and durable before it gets its name.
        rename_if_free(&new, out)?;
        let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        sync(parent).context("cannot sync the directory")?;
        Ok(RunningSummary { pairs, bytes, parts: moment.servers.len(), closed: moment.closed })
    });
    if outcome.is_err() {
        // The first error is the one to tell.
        let _ = std::fs::remove_dir_all(&new);
    }
    outcome
}

/// Does `step` at all servers at the same time.
fn at_all(servers: &[Server], step: &BackupStep, wait: Duration) -> Vec<Result<BackupTold, NetError>> {
    let deadline = Instant::now() + wait;
    std::thread::scope(|threads| {
        let asked: Vec<_> = servers
            .iter()
            .map(|server| threads.spawn(move || server.remote.step(step.clone(), deadline)))
            .collect();
        asked.into_iter().map(|thread| thread.join().unwrap_or(Err(NetError::Closed))).collect()
    })
}

/// The answers, of which none may be missing.
fn require_answers(servers: &[Server], told: Vec<Result<BackupTold, NetError>>) -> Result<Vec<BackupTold>> {
    let answer = |(server, told): (&Server, Result<BackupTold, NetError>)| {
        told.with_context(|| {
            format!("the metadata server {} does not answer, and a backup needs all of them", server.name)
        })
    };
    servers.iter().zip(told).map(answer).collect()
}

fn find_moment(member: &Member) -> Result<Moment> {
    let (mut why, mut pause) = (String::new(), PAUSE_MIN);
    for turn in 0..TRIES {
        let map = member.map().read().clone();
        let backup = member.env.entropy.next_u64();
        let servers = servers_of(member, &map, backup);
        if servers.is_empty() {
            bail!("no metadata server has been started yet");
        }
        // One that is away is told at once.
        require_answers(&servers, at_all(&servers, &BackupStep::End, AWAY_MAX))?;
        if turn % 10 == 0 {
            require_answers(&servers, at_all(&servers, &BackupStep::Prepare, PREPARE_MAX))?;
        }
        let found = close_all(member, &map, servers);
        match found {
            Ok(moment) => return Ok(moment),
            Err(NotFound::NotNow(now)) => why = now,
            Err(NotFound::Error(error)) => return Err(error),
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
    bail!(
        "no moment was found at which all metadata servers could be closed for a backup: {why}; try again later"
    )
}

/// Why a moment was not found.
enum NotFound {
    NotNow(String),
    Error(anyhow::Error),
}

fn servers_of(member: &Member, map: &ClusterMap, backup: u64) -> Vec<Server> {
    let mut nodes: Vec<NodeId> = map.shards.iter().map(|shard| shard.primary).collect();
    nodes.sort();
    nodes.dedup();
    let name = |node| map.node(node).map_or_else(|| node.to_string(), |known| known.name.clone());
    let known = nodes.into_iter().filter(|node| map.node(*node).is_some());
    known
        .map(|node| Server {
            node,
            name: name(node),
            remote: RemoteBackup::new(member.routes(), node, backup),
        })
        .collect()
}

fn close_all(member: &Member, map: &ClusterMap, servers: Vec<Server>) -> Result<Moment, NotFound> {
    let begin = Instant::now();
    let told = at_all(&servers, &BackupStep::Close, CLOSED_MAX);
    let opened = at_all(&servers, &BackupStep::Open, ANSWER_MAX);
    let closed = begin.elapsed();
    let judged = (|| {
        // One that is only slow is asked once more; one that is away is found so before the next attempt.
        let told = require_answers(&servers, told).map_err(|error| NotFound::NotNow(format!("{error:#}")))?;
        let mut parts = Vec::new();
        let mut name_hash_key = [0; 16];
        for (server, told) in servers.iter().zip(told) {
            match told {
                BackupTold::Closed { incarnation, shards, name_hash_key: key } => {
                    name_hash_key = key;
                    parts.push(PartServer {
                        node: server.node,
                        name: server.name.clone(),
                        shards,
                        incarnation,
                    });
                }
                BackupTold::NotNow(why) => return Err(NotFound::NotNow(format!("{}: {why}", server.name))),
                _ => {
                    return Err(NotFound::Error(anyhow::anyhow!(
                        "{} gave an answer of the wrong kind",
                        server.name
                    )));
                }
            }
        }
        let was_closed = |told: &Result<BackupTold, NetError>| matches!(told, Ok(BackupTold::Opened(true)));
        if let Some(at) = opened.iter().position(|told| !was_closed(told)) {
            return Err(NotFound::NotNow(format!("{} was not closed for long enough", servers[at].name)));
        }
        require_all_shards(map, &parts).map_err(NotFound::NotNow)?;
        let mut set = [0; 16];
        member.env.entropy.fill(&mut set);
        Ok(PartHead { set, node: NodeId(0), servers: parts, name_hash_key, map: map.clone() })
    })();
    match judged {
        Ok(head) => Ok(Moment { servers, head, closed }),
        Err(why) => {
            at_all(&servers, &BackupStep::End, ANSWER_MAX);
            Err(why)
        }
    }
}

/// Every shard must be at one server.
fn require_all_shards(map: &ClusterMap, parts: &[PartServer]) -> Result<(), String> {
    for shard in &map.shards {
        match parts.iter().filter(|part| part.shards.has(shard.id)).count() {
            1 => {}
            0 => return Err(format!("{} is on its way from one server to another", shard.id)),
            _ => return Err(format!("{} has just been moved", shard.id)),
        }
    }
    Ok(())
}

/// Fetches what all servers have kept, at the same time.
fn write_parts(member: &Member, moment: &Moment, dir: &Path) -> Result<(u64, u64)> {
    let header = Header { cluster: member.name.cluster, made_at: member.env.clock.now().secs, is_part: true };
    let written: Vec<Result<(u64, u64)>> = std::thread::scope(|threads| {
        let writing: Vec<_> = moment
            .servers
            .iter()
            .map(|server| {
                let head = PartHead { node: server.node, ..moment.head.clone() };
                let path = dir.join(format!("{}.{EXTENSION}", server.name));
                threads.spawn(move || {
                    let written = write_part(server, &header, &head, &path);
                    written.with_context(|| format!("the part of {}", server.name))
                })
            })
            .collect();
        let ended = || anyhow::anyhow!("the thread that wrote a part has ended by a panic");
        writing.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(ended()))).collect()
    });
    written.into_iter().try_fold((0, 0), |(pairs, bytes), part| {
        let part = part?;
        Ok((pairs + part.0, bytes + part.1))
    })
}

fn write_part(server: &Server, header: &Header, head: &PartHead, path: &Path) -> Result<(u64, u64)> {
    let failed = || format!("cannot write {}", path.display());
    // It holds names, and content of small files.
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut writer = Writer::new(BufWriter::new(file.with_context(failed)?), header).with_context(failed)?;
    writer.frame(Kind::Part, &codec::encode(head)).with_context(failed)?;
    let (mut from, mut pairs, mut payload) = (Vec::new(), 0u64, Vec::with_capacity(2 * PAYLOAD_BYTES));
    loop {
        let told = server.remote.step(BackupStep::Pairs(from.clone()), Instant::now() + PAGE_MAX);
        let (page, is_last) = match told.context("it does not tell what it has kept")? {
            BackupTold::Pairs(page, is_last) => (page, is_last),
            _ => bail!("it gave an answer of the wrong kind"),
        };
        for (key, value) in &page {
            encode_pair(key, value, &mut payload);
        }
        pairs += page.len() as u64;
        if payload.len() >= PAYLOAD_BYTES || is_last && !payload.is_empty() {
            writer.frame(Kind::Pairs, &payload).with_context(failed)?;
            payload.clear();
        }
        match page.into_iter().next_back() {
            Some((last, _)) if !is_last => {
                from = last;
                from.push(0);
            }
            _ => break,
        }
    }
    writer.frame(Kind::End, &pairs.to_le_bytes()).with_context(failed)?;
    let mut out = writer.into_inner();
    out.flush().with_context(failed)?;
    let file = out.into_inner().map_err(|error| error.into_error()).with_context(failed)?;
    file.sync_all().with_context(failed)?;
    Ok((pairs, file.metadata().with_context(failed)?.len()))
}
