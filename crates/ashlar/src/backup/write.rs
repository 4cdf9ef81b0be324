//! Making a backup of a stopped file system.

use super::format::{Header, Kind, Writer, encode_pair};
use crate::cli::DataArgs;
use crate::node::{Directories, State, place};
use anyhow::{Context, Result, bail};
use ashlar_coord::local_file::STATE_FILE;
use ashlar_kv::{KEY_BYTES_MAX, Snapshot};
use ashlar_manager::SECRETS_FILE;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Payload at which a frame of pairs is written, bytes.
pub const PAYLOAD_BYTES: usize = 1 << 20;

/// What a backup or restore was about.
pub struct Summary {
    /// Metadata records.
    pub pairs: u64,
    /// Bytes of the backup.
    pub bytes: u64,
}

/// Writes the metadata of the file system at `data` into `file`, which must not be there yet.
///
/// # Errors
/// When the file system runs or cannot be read, or the file cannot be written; no file is left then.
pub fn back_up(data: &DataArgs, file: &Path) -> Result<Summary> {
    if file.exists() {
        bail!("{} is there already; name another file", file.display());
    }
    let (directories, _) = Directories::find_stopped(data)?;
    place::require_outside(&directories, file)?;
    // A backup is wanted most when the disk has failed: it takes what is there, and changes nothing.
    let state = State::look_at(directories, &format!("ashlar backup, process {}", std::process::id()))?;
    // Of this process: another backup may be on its way to the same name.
    let new = with_suffix(file, &format!(".{}.new", std::process::id()));
    let outcome = write_file(&state, &new).and_then(|summary| {
        // ORDER: whole and durable before it gets its name.
        rename_if_free(&new, file)?;
        let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(parent).and_then(|parent| parent.sync_all()).context("cannot sync the directory")?;
        Ok(summary)
    });
    if outcome.is_err() {
        // The first error is the one to tell.
        let _ = std::fs::remove_file(&new);
    }
    outcome
}

/// Names `new` `file`, unless somebody else has made a file of that name meanwhile.
///
/// # Errors
/// As rename(2).
pub fn rename_if_free(new: &Path, file: &Path) -> Result<()> {
    match renameat_with(CWD, new, CWD, file, RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) => {
            bail!("{} has been made by somebody else meanwhile; name another file", file.display())
        }
        // Some file systems, as NFS, cannot refuse to replace.
        Err(Errno::INVAL | Errno::NOSYS) if !file.exists() => std::fs::rename(new, file),
        outcome => outcome.map_err(std::io::Error::from),
    }
    .with_context(|| format!("cannot name {}", file.display()))
}

/// `file` with more at the end of its name.
pub fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn write_file(state: &State, path: &Path) -> Result<Summary> {
    let lane = state.open_lane(None)?;
    let file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        // It holds secrets.
        .mode(0o600)
        .open(path)
        .with_context(|| format!("cannot make {}", path.display()))?;
    let header = Header { cluster: state.cluster(), made_at: state.env.clock.now().secs, is_part: false };
    let failed = || format!("cannot write {}", path.display());
    let mut writer = Writer::new(BufWriter::new(file), &header).with_context(failed)?;
    for (kind, name) in [(Kind::ClusterState, STATE_FILE), (Kind::Secrets, SECRETS_FILE)] {
        let source = state.directories.meta.join(name);
        let bytes = std::fs::read(&source).with_context(|| format!("cannot read {}", source.display()))?;
        writer.frame(kind, &bytes).with_context(failed)?;
    }
    let pairs = write_pairs(&lane.read(), &mut writer, path)?;
    writer.frame(Kind::End, &pairs.to_le_bytes()).with_context(failed)?;
    let file = writer.into_inner().into_inner().map_err(|error| error.into_error()).with_context(failed)?;
    file.sync_all().with_context(failed)?;
    lane.close().context("cannot close the metadata")?;
    Ok(Summary { pairs, bytes: file.metadata().with_context(failed)?.len() })
}

fn write_pairs<W: Write>(snapshot: &dyn Snapshot, writer: &mut Writer<W>, path: &Path) -> Result<u64> {
    let (mut pairs, mut payload, mut failed) = (0, Vec::with_capacity(2 * PAYLOAD_BYTES), None);
    snapshot
        .scan(&[0, 0], &[u8::MAX; KEY_BYTES_MAX + 1], &mut |key, value| {
            encode_pair(key, value, &mut payload);
            pairs += 1;
            if payload.len() >= PAYLOAD_BYTES {
                if let Err(error) = writer.frame(Kind::Pairs, &payload) {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
                payload.clear();
            }
            ControlFlow::Continue(())
        })
        .context("cannot read the metadata")?;
    let last = match failed {
        Some(error) => Err(error),
        None if payload.is_empty() => Ok(()),
        None => writer.frame(Kind::Pairs, &payload),
    };
    last.with_context(|| format!("cannot write {}", path.display()))?;
    Ok(pairs)
}
