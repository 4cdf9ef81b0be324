//! What was mounted before the server of a single machine was stopped, kept beside the state of the managers until it is mounted again: a promotion that is interrupted, or of which
//! something does not start, is gone on with by the same command.

use crate::cli::UpArgs;
use crate::lab::process::ProcessId;
use anyhow::{Context, Result};
use ashlar_env::{Disk, OpenMode, replace_file};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FILE: &str = "mount-again.json";
/// LIMIT: of the file; one mount takes a few hundred bytes.
const BYTES_MAX: u64 = 1 << 20;

/// A mount that is to be made again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MountAgain {
    /// Bytes of its path.
    at: Vec<u8>,
    /// Words of the command line, after path and identity.
    options: Vec<Vec<u8>>,
}

impl MountAgain {
    /// One at `at`, as `ashlar up` was told by `how`.
    pub fn new(at: &Path, how: Option<&UpArgs>) -> MountAgain {
        let options = how.map(options).unwrap_or_default().into_iter().map(OsString::into_vec).collect();
        MountAgain { at: at.as_os_str().as_bytes().to_vec(), options }
    }

    /// Where.
    pub fn path(&self) -> PathBuf {
        OsStr::from_bytes(&self.at).into()
    }

    /// The command line.
    pub fn line(&self, identity: &Path) -> Vec<OsString> {
        let line = ["mount".into(), self.path().into(), "--identity".into(), identity.into()];
        line.into_iter().chain(self.options.iter().cloned().map(OsString::from_vec)).collect()
    }
}

fn options(how: &UpArgs) -> Vec<OsString> {
    let flags = [
        (how.allow_other, "--allow-other"),
        (how.read_only, "--read-only"),
        (how.no_set_id, "--no-set-id"),
        (how.no_devices, "--no-devices"),
    ];
    let said = flags.iter().filter(|(is_said, _)| *is_said).map(|(_, flag)| OsString::from(flag));
    said.chain(["--source".into(), how.source.clone().into()]).collect()
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    /// The server that had them.
    process: ProcessId,
    mounts: Vec<MountAgain>,
}

/// Keeps the `mounts` of the server `process` in the directory `disk`, besides those that it had at an attempt before.
///
/// # Errors
/// When they cannot be written, or what is there is damaged.
pub fn keep(disk: &Arc<dyn Disk>, process: &ProcessId, mounts: Vec<MountAgain>) -> Result<()> {
    let before = load(disk)?.filter(|kept| kept.process == *process);
    let mut all = mounts.clone();
    let before = before.into_iter().flat_map(|kept| kept.mounts);
    all.extend(before.filter(|known| !mounts.iter().any(|mount| mount.at == known.at)));
    let kept = Kept { process: process.clone(), mounts: all };
    replace_file(&**disk, FILE, &serde_json::to_vec(&kept)?)
        .with_context(|| format!("cannot write {}", disk.describe(FILE)))
}

/// What is kept.
///
/// # Errors
/// When it cannot be read.
pub fn kept(disk: &Arc<dyn Disk>) -> Result<Vec<MountAgain>> {
    Ok(load(disk)?.map(|kept| kept.mounts).unwrap_or_default())
}

fn load(disk: &Arc<dyn Disk>) -> Result<Option<Kept>> {
    let shown = disk.describe(FILE);
    let file = match disk.open(FILE, OpenMode::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot open {shown}")),
    };
    let mut bytes = vec![0; file.len()?.min(BYTES_MAX) as usize];
    let got = file.read_at(0, &mut bytes).with_context(|| format!("cannot read {shown}"))?;
    let kept = serde_json::from_slice(&bytes[..got])
        .with_context(|| format!("{shown} is damaged: remove it, and mount by hand (`ashlar mount`)"))?;
    Ok(Some(kept))
}

/// Keeps none any more.
///
/// # Errors
/// When the file cannot be removed.
pub fn forget(disk: &Arc<dyn Disk>) -> Result<()> {
    match disk.remove(FILE) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", disk.describe(FILE)))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ashlar_env::os::OsDisk;

    #[test]
    fn mounts_are_kept_until_they_are_made_and_none_twice() {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(dir.path()));
        forget(&disk).unwrap();
        assert_eq!(kept(&disk).unwrap(), []);
        let [a, b] =
            [b"/a\xff", b"/b\xff"].map(|path| MountAgain::new(OsStr::from_bytes(path).as_ref(), None));
        let [own, other] = [std::process::id() as i32, 1].map(|pid| ProcessId::of(pid).unwrap());
        keep(&disk, &own, vec![a.clone()]).unwrap();
        keep(&disk, &own, vec![b.clone(), a.clone()]).unwrap();
        keep(&disk, &own, Vec::new()).unwrap();
        assert_eq!(kept(&disk).unwrap(), [b, a.clone()]);
        keep(&disk, &other, vec![a.clone()]).unwrap();
        assert_eq!(kept(&disk).unwrap(), std::slice::from_ref(&a), "another server had other mounts");
        assert_eq!(a.line(Path::new("/i"))[1].as_bytes(), b"/a\xff");
        std::fs::write(dir.path().join(FILE), "[").unwrap();
        assert!(format!("{:#}", kept(&disk).unwrap_err()).contains("remove it"));
        forget(&disk).unwrap();
        assert_eq!(kept(&disk).unwrap(), []);
    }
}
