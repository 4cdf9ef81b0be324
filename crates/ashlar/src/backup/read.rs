//! Making metadata of a backup.

use super::format::{Kind, Reader, decode_pair};
use super::write::Summary;
use crate::node::state::{
    ENGINE_DIR, LANE_DIR, RESTORED_FILE, make_private_directory, note_restored, open_lane,
};
use crate::node::{LOCK_FILE, MetaLock, require_owner};
use anyhow::{Context, Result, bail};
use ashlar_coord::local_file::{LocalFile, STATE_FILE};
use ashlar_env::os::OsDisk;
use ashlar_env::{Disk, Env, replace_file};
use ashlar_kv::{Frame, KEY_BYTES_MAX, Key, Lane, LaneConfig, Urgency, WriteSet};
use ashlar_manager::{Manager, SECRETS_FILE};
use ashlar_types::{Epoch, OpId, ShardId};
use bytes::Bytes;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;
use std::sync::Arc;

/// Verb number of what a restore commits, for people who read logs.
const VERB_RESTORE: u8 = 101;

/// The two state files of a backup.
struct StateFiles {
    cluster_state: Vec<u8>,
    secrets: Vec<u8>,
}

/// Makes the metadata directory `meta`, which must be empty or not there, of the backup `file`.
///
/// # Errors
/// When the backup is damaged, before anything is made; when the directory cannot be written: what was made of it is no file system then.
pub fn restore(file: &Path, meta: &Path) -> Result<Summary> {
    // The whole backup is read once before anything is made of it.
    let (files, summary) = read(file, None)?;
    make_private_directory(meta)?;
    require_empty(meta)?;
    require_owner(meta)?;
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(meta));
    let _lock = MetaLock::take(&disk, meta, &format!("ashlar restore, process {}", std::process::id()))?;
    let env = Env::os();
    let cluster = Reader::new(BufReader::new(open(file)?))?.header.cluster;
    // ORDER: `cluster-state` last, because it is what makes the directory a file system.
    let lane = open_lane(&disk, meta, &env, cluster, LaneConfig::default())?;
    let stored = read(file, Some(&lane));
    let closed = lane.close().context("cannot store the metadata");
    stored.and(closed)?;
    note_restored(&disk, meta)?;
    store(&disk, meta, SECRETS_FILE, &files.secrets)?;
    store(&disk, meta, STATE_FILE, &files.cluster_state)?;
    verify_state(&disk, meta)?;
    Ok(summary)
}

/// Refuses a directory in which something is.
///
/// # Errors
/// With the directory, and the way out.
pub fn require_empty(meta: &Path) -> Result<()> {
    let names =
        || std::fs::read_dir(meta)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>();
    let names = names().with_context(|| format!("cannot look into {}", meta.display()))?;
    if names.is_empty() {
        return Ok(());
    }
    // `cluster-state`, which comes last, is none of them.
    let of_metadata = |name: &OsString| {
        let name = name.to_string_lossy();
        let whole = name.strip_suffix(".new").unwrap_or(&name);
        whole == STATE_FILE && whole != name
            || [ENGINE_DIR, LANE_DIR, LOCK_FILE, RESTORED_FILE, SECRETS_FILE].contains(&whole)
    };
    if names.iter().any(|name| name == ENGINE_DIR) && names.iter().all(of_metadata) {
        bail!(
            "{} has metadata without {STATE_FILE}. A restore that did not end leaves that: then remove it, and restore again. If {STATE_FILE} \
             was lost otherwise, restore with --state-only",
            meta.display()
        );
    }
    bail!("{} is not empty; name an empty directory, or one that is not there", meta.display())
}

/// Puts only the state files of the backup `file` into metadata directory `meta`, which has the rest.
///
/// # Errors
/// When the backup is damaged, the directory holds no metadata, or it cannot be written.
pub fn restore_state(file: &Path, meta: &Path) -> Result<()> {
    let (files, _) = read(file, None)?;
    for name in [ENGINE_DIR, LANE_DIR] {
        if !meta.join(name).is_dir() {
            bail!(
                "{} has no {name}: restore everything, without --state-only, into an empty directory",
                meta.display()
            );
        }
    }
    require_owner(meta)?;
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(meta));
    let _lock = MetaLock::take(&disk, meta, &format!("ashlar restore, process {}", std::process::id()))?;
    // Opening tells whether the metadata is of the same file system, before anything is changed.
    let cluster = Reader::new(BufReader::new(open(file)?))?.header.cluster;
    open_lane(&disk, meta, &Env::os(), cluster, LaneConfig::default())?
        .close()
        .context("cannot close the metadata")?;
    store(&disk, meta, SECRETS_FILE, &files.secrets)?;
    store(&disk, meta, STATE_FILE, &files.cluster_state)?;
    verify_state(&disk, meta)
}

fn verify_state(disk: &Arc<dyn Disk>, meta: &Path) -> Result<()> {
    Manager::open(disk, "", Box::new(LocalFile::new(disk.clone(), "")))
        .with_context(|| format!("the state restored to {} cannot be opened", meta.display()))?;
    Ok(())
}

fn store(disk: &Arc<dyn Disk>, meta: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    replace_file(&**disk, name, bytes).with_context(|| format!("cannot store {}", meta.join(name).display()))
}

fn open(file: &Path) -> Result<File> {
    File::open(file).with_context(|| format!("cannot open {}", file.display()))
}

/// Reads all of a backup; its pairs go into `lane` if there is one.
fn read(file: &Path, lane: Option<&Lane>) -> Result<(StateFiles, Summary)> {
    let input = open(file)?;
    let bytes = input.metadata().with_context(|| format!("cannot read {}", file.display()))?.len();
    let (files, pairs) =
        read_frames(input, lane).with_context(|| format!("the backup {} cannot be used", file.display()))?;
    Ok((files, Summary { pairs, bytes }))
}

fn read_frames(input: File, lane: Option<&Lane>) -> Result<(StateFiles, u64)> {
    let mut reader = Reader::new(BufReader::new(input))?;
    if reader.header.is_part {
        bail!("it is one part of a backup of many servers: name the directory with all parts of it");
    }
    let mut files = StateFiles { cluster_state: Vec::new(), secrets: Vec::new() };
    let mut pairs = 0;
    loop {
        let (kind, payload) = reader.frame()?;
        match kind {
            Kind::ClusterState => files.cluster_state = payload,
            Kind::Secrets => files.secrets = payload,
            Kind::Pairs => {
                let frames = frames_of(&payload, &mut pairs)?;
                if let Some(lane) = lane {
                    lane.write().commit(frames, Urgency::Normal).context("cannot write the metadata log")?;
                }
            }
            Kind::End => {
                if payload != pairs.to_le_bytes() || !reader.is_at_end()? {
                    bail!("its end does not match its content");
                }
                break;
            }
            Kind::Part => bail!("a frame is not where it belongs"),
        }
    }
    if files.cluster_state.is_empty() || files.secrets.is_empty() {
        bail!("it lacks a state file");
    }
    Ok((files, pairs))
}

/// The pairs of a payload as changes, one frame per shard.
fn frames_of(payload: &[u8], pairs: &mut u64) -> Result<Vec<Frame>> {
    let mut frames: Vec<Frame> = Vec::new();
    let mut rest = payload;
    while !rest.is_empty() {
        let (key, value, behind) = decode_pair(rest).context("a pair is malformed")?;
        let shard = match key {
            [high, low, ..] if key.len() <= KEY_BYTES_MAX => ShardId(u16::from_be_bytes([*high, *low])),
            _ => bail!("a key is malformed"),
        };
        let change = (Key::from_slice(key), Some(Bytes::copy_from_slice(value)));
        match frames.last_mut() {
            Some(frame) if frame.shard == shard => frame.writes.0.push(change),
            _ => frames.push(Frame {
                shard,
                epoch: Epoch(0),
                op: OpId::default(),
                verb: VERB_RESTORE,
                writes: WriteSet(vec![change]),
                reply: Bytes::new(),
            }),
        }
        *pairs += 1;
        rest = behind;
    }
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use super::super::format::{Header, Writer, encode_pair};
    use super::*;
    use ashlar_env::sim::{SimDisk, SimEntropy};
    use ashlar_kv::{LaneConfig, MemoryEngine};
    use ashlar_types::ClusterId;
    use std::io::{Seek, Write};

    const ROUNDS: u64 = 10_000;
    const KINDS: [Kind; 4] = [Kind::ClusterState, Kind::Secrets, Kind::Pairs, Kind::End];

    /// A pair, some of whose lengths are not those of what follows.
    fn pair(random: &SimEntropy, out: &mut Vec<u8>) {
        let key =
            vec![random.below(3) as u8; random.below(if random.below(9) == 0 { 600 } else { 20 }) as usize];
        let at = out.len();
        encode_pair(&key, &vec![7; random.below(40) as usize], out);
        if random.below(20) == 0 {
            let field = at + [0, 2 + key.len()][random.below(2) as usize];
            out[field] = out[field].wrapping_add(random.below(256) as u8);
        }
    }

    /// A backup whose checksums are good and whose content is anything.
    fn malformed(random: &SimEntropy, cluster: ClusterId) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), &Header { cluster, made_at: 5, is_part: false }).unwrap();
        let mut pairs = 0u64;
        for _ in 0..random.below(6) {
            let kind = KINDS[random.below(3) as usize];
            let mut payload = Vec::new();
            for _ in 0..random.below(5) {
                pair(random, &mut payload);
                pairs += u64::from(kind == Kind::Pairs);
            }
            writer.frame(kind, &payload).unwrap();
        }
        if random.below(4) > 0 {
            writer.frame(Kind::ClusterState, b"state").unwrap();
            writer.frame(Kind::Secrets, b"secrets").unwrap();
        }
        let end = if random.below(8) == 0 { random.below(u64::MAX) } else { pairs };
        writer.frame(Kind::End, &end.to_le_bytes()[..if random.below(9) == 0 { 3 } else { 8 }]).unwrap();
        writer.into_inner()
    }

    #[test]
    fn ten_thousand_backups_of_anything_are_refused_or_read() {
        let random = SimEntropy::new(8);
        let cluster = ClusterId([3; 16]);
        let config = LaneConfig { reserve_bytes: 0, ..LaneConfig::default() };
        let (env, _) = Env::simulated(1, ashlar_types::Timespec::new(1, 0));
        let engine = Box::new(MemoryEngine::new());
        let lane = Lane::open(Arc::new(SimDisk::new()), "lane", engine, &env, cluster, config).unwrap();
        let (mut file, mut read) = (tempfile::tempfile().unwrap(), 0);
        for _ in 0..ROUNDS {
            file.set_len(0).unwrap();
            file.rewind().unwrap();
            file.write_all(&malformed(&random, cluster)).unwrap();
            file.rewind().unwrap();
            read += u64::from(read_frames(file.try_clone().unwrap(), Some(&lane)).is_ok());
        }
        assert!(read > ROUNDS / 20 && read < ROUNDS, "{read} read");
        lane.close().unwrap();
    }
}
