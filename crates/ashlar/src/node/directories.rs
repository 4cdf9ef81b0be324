//! Which directories make up a file system: `DIR/target` in each data directory, and one metadata directory.
//!
//! A data directory may be listed in any place; what it is says its header. Metadata is where `--meta` says, else in the one data
//! directory that has `meta/`, else, for a new file system, in the first.

use super::usable;
use crate::cli::DataArgs;
use anyhow::{Context, Result, bail};
use ashlar_chunkstore::{TargetHeader, TargetIdentity};
use ashlar_env::os::OsDisk;
use ashlar_env::{Disk, OpenMode};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Directory of a target inside a data directory.
const TARGET_DIR: &str = "target";
/// Directory of metadata inside a data directory.
const META_DIR: &str = "meta";
/// File that exists in the metadata directory of every file system.
const STATE_FILE: &str = ashlar_coord::local_file::STATE_FILE;

/// What the state's file is called once the file system is one of many servers (`ashlar promote`).
pub const PROMOTED_FILE: &str = "cluster-state.promoted";

/// See the module.
pub struct Directories {
    /// The metadata directory.
    pub meta: PathBuf,
    /// Whether a file system is there already.
    pub exists: bool,
    /// Each target directory, with its header if it has one.
    pub targets: Vec<(PathBuf, Option<TargetHeader>)>,
}

impl Directories {
    /// Whether the target at `path` is on the file system that the metadata is on. What cannot be asked is not; that shows up when it is opened.
    pub fn are_on_one_disk(&self, path: &Path) -> bool {
        let device = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.dev()).ok();
        device(path).is_some_and(|target| device(&self.meta) == Some(target))
    }

    /// Looks at the directories that the arguments name; makes nothing.
    ///
    /// # Errors
    /// When they contradict each other; the text names the directory and the way out.
    pub fn find(place: &DataArgs) -> Result<Directories> {
        let (directories, damaged) = Directories::look(place)?;
        match damaged.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Ok(directories),
        }
    }

    /// As [`Directories::find`] for a file system that must exist, and goes on where the header of a target is damaged: those targets
    /// come apart, with what is wrong.
    ///
    /// # Errors
    /// As [`Directories::find`], and when there is no file system.
    pub fn find_stopped(place: &DataArgs) -> Result<(Directories, Vec<(PathBuf, anyhow::Error)>)> {
        let found = Directories::look(place)?;
        if !found.0.exists {
            bail!(
                "there is no file system at {}; name its directories with --data and --meta",
                found.0.meta.display()
            );
        }
        Ok(found)
    }

    /// The metadata directory, if it is that of a file system which was made one of many servers.
    ///
    /// # Errors
    /// When there is no directory to look in.
    pub fn find_promoted(place: &DataArgs) -> Result<Option<PathBuf>> {
        let data = if place.data.is_empty() { vec![default_data()?] } else { place.data.clone() };
        let all = place.meta.clone().into_iter().chain(data.iter().map(|dir| dir.join(META_DIR)));
        Ok(all.into_iter().find(|meta| meta.join(PROMOTED_FILE).exists() && !meta.join(STATE_FILE).exists()))
    }

    fn look(place: &DataArgs) -> Result<(Directories, Vec<(PathBuf, anyhow::Error)>)> {
        let data = if place.data.is_empty() { vec![default_data()?] } else { distinct(&place.data)? };
        data.iter().chain(&place.meta).try_for_each(|dir| usable::require(dir))?;
        if let Some(meta) = Directories::find_promoted(place)? {
            bail!(
                "{} is the metadata of a file system of many servers since `ashlar promote`: `ashlar manager`, `ashlar meta --meta {}` and `ashlar storage` serve it",
                meta.display(),
                meta.display()
            );
        }
        let data: Vec<PathBuf> = data.iter().map(|dir| settled(dir)).collect::<Result<_>>()?;
        data.iter().try_for_each(|dir| usable::require(&dir.join(TARGET_DIR)))?;
        let with_meta: Vec<PathBuf> =
            data.iter().map(|dir| dir.join(META_DIR)).filter(|meta| meta.join(STATE_FILE).exists()).collect();
        let (meta, exists) = match (&place.meta, with_meta.as_slice()) {
            (Some(meta), []) => (meta.clone(), meta.join(STATE_FILE).exists()),
            (Some(meta), [found]) if same(meta, found) => (meta.clone(), true),
            (Some(meta), [found, ..]) => bail!(
                "--meta {} contradicts {}, which holds the metadata of a file system; name one of them",
                meta.display(),
                found.display()
            ),
            (None, [found]) => (found.clone(), true),
            (None, []) => (data[0].join(META_DIR), false),
            (None, [first, second, ..]) => {
                bail!(
                    "{} and {} both hold metadata; they are two file systems, or one is a copy of the other",
                    first.display(),
                    second.display()
                )
            }
        };
        let meta = settled(&meta)?;
        usable::require(&meta)?;
        let (mut targets, mut damaged) = (Vec::new(), Vec::new());
        for dir in &data {
            let dir = dir.join(TARGET_DIR);
            let header = match read_header(&dir) {
                Ok(header) => header,
                Err(error) => {
                    damaged.push((dir, error));
                    continue;
                }
            };
            if let (Some(TargetHeader { identity, .. }), false) = (&header, exists) {
                bail!(
                    "{} is {} of file system {}, but its metadata is not at {}: name its directory with --meta, or list the data \
                     directory that holds it, or restore it with `ashlar restore`",
                    dir.display(),
                    identity.target,
                    identity.cluster,
                    meta.display()
                );
            }
            targets.push((dir, header));
        }
        refuse_copies(&targets)?;
        Ok((Directories { meta, exists, targets }, damaged))
    }

    /// Of a file system of many servers: the state of managers in `state`, and the targets in the data directories `data`. Those whose header is damaged come
    /// apart, with what is wrong.
    ///
    /// # Errors
    /// When a directory cannot be used, or is listed twice.
    pub fn of_servers(
        state: &Path,
        data: &[PathBuf],
    ) -> Result<(Directories, Vec<(PathBuf, anyhow::Error)>)> {
        let data = distinct(data)?;
        data.iter().try_for_each(|dir| usable::require(dir))?;
        let (mut targets, mut damaged) = (Vec::new(), Vec::new());
        for dir in &data {
            let dir = settled(dir)?.join(TARGET_DIR);
            usable::require(&dir)?;
            match read_header(&dir) {
                Ok(header) => targets.push((dir, header)),
                Err(error) => damaged.push((dir, error)),
            }
        }
        refuse_copies(&targets)?;
        Ok((Directories { meta: state.to_owned(), exists: true, targets }, damaged))
    }

    /// The targets in the data directories `data`, each with its header if it has one; makes nothing.
    ///
    /// # Errors
    /// When one cannot be used, is damaged, or is listed twice.
    pub fn find_targets(data: &[PathBuf]) -> Result<Vec<(PathBuf, Option<TargetHeader>)>> {
        let data = distinct(data)?;
        data.iter().try_for_each(|dir| usable::require(dir))?;
        let mut targets = Vec::new();
        for dir in &data {
            let dir = settled(dir)?.join(TARGET_DIR);
            usable::require(&dir)?;
            let header = read_header(&dir)?;
            targets.push((dir, header));
        }
        refuse_copies(&targets)?;
        Ok(targets)
    }

    /// Reads the headers of the targets anew: whoever had the file system until now may have changed them. To be called under its lock.
    ///
    /// # Errors
    /// When a header cannot be read or is damaged.
    pub fn look_again(&mut self) -> Result<()> {
        for (path, header) in &mut self.targets {
            *header = read_header(path)?;
        }
        Ok(())
    }

    /// Whether metadata or a target is on a local file system that is mounted read-only. What cannot be asked shows up when it is opened.
    pub fn is_on_read_only_disk(&self) -> bool {
        let targets = self.targets.iter().map(|(path, _)| path.as_path());
        [self.meta.as_path()]
            .into_iter()
            .chain(targets)
            .any(|path| OsDisk::new(path).is_mounted_read_only().unwrap_or(false))
    }

    /// The metadata directory as a disk.
    pub fn meta_disk(&self) -> Arc<dyn Disk> {
        Arc::new(OsDisk::new(&self.meta))
    }
}

/// The data directory of a user who names none.
fn default_data() -> Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/ashlar"));
    }
    let base = std::env::var_os("XDG_DATA_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let home = || {
        std::env::var_os("HOME")
            .filter(|dir| !dir.is_empty())
            .map(|home| PathBuf::from(home).join(".local/share"))
    };
    match base.or_else(home) {
        Some(base) => Ok(base.join("ashlar")),
        None => bail!("neither XDG_DATA_HOME nor HOME is set; say where to keep data with --data DIR"),
    }
}

/// `dir` as it is called from anywhere: absolute, and without symbolic links if it is there.
fn settled(dir: &Path) -> Result<PathBuf> {
    match dir.canonicalize() {
        Ok(path) => Ok(path),
        Err(_) => std::path::absolute(dir).with_context(|| format!("cannot use {}", dir.display())),
    }
}

fn same(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    }
}

fn distinct(data: &[PathBuf]) -> Result<Vec<PathBuf>> {
    for (at, dir) in data.iter().enumerate() {
        if data[..at].iter().any(|earlier| same(earlier, dir)) {
            bail!("--data {} is listed twice", dir.display());
        }
    }
    Ok(data.to_vec())
}

/// Two directories that say they are one target: whichever served, content that only the other has would be missing.
fn refuse_copies(targets: &[(PathBuf, Option<TargetHeader>)]) -> Result<()> {
    let known: Vec<(&PathBuf, &TargetIdentity)> =
        targets.iter().filter_map(|(dir, header)| Some((dir, &header.as_ref()?.identity))).collect();
    for (at, (dir, identity)) in known.iter().enumerate() {
        let is_same = |other: &TargetIdentity| {
            other.uuid == identity.uuid
                || (other.cluster, other.target) == (identity.cluster, identity.target)
        };
        if let Some((earlier, _)) = known[..at].iter().find(|(_, other)| is_same(other)) {
            bail!(
                "{} and {} are both {} of file system {}: one is a copy of the other; list only the one that was used last",
                earlier.display(),
                dir.display(),
                identity.target,
                identity.cluster
            );
        }
    }
    Ok(())
}

fn read_header(dir: &Path) -> Result<Option<TargetHeader>> {
    let file = match OsDisk::new(dir).open("target", OpenMode::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot open {}", dir.join("target").display()));
        }
    };
    // LIMIT: a target's header is 68 bytes; more than that is damage, which decoding tells.
    let mut bytes = [0; 4096];
    let got = file
        .read_at(0, &mut bytes)
        .with_context(|| format!("cannot read {}", dir.join("target").display()))?;
    let name = dir.join("target").display().to_string();
    TargetHeader::decode(&bytes[..got], &name).map(Some).with_context(|| {
        format!("{} is not usable; leave this data directory out to start without it", dir.display())
    })
}
