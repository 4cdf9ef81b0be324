//! Whether something new may be made in a place: most often nobody wants a new file system, but the disk with the old one is missing.

use super::Directories;
use super::state::{ENGINE_DIR, LANE_DIR};
use crate::cli::DataArgs;
use anyhow::{Context, Result, bail};
use ashlar_fuse::table_path;
use std::path::{Path, PathBuf};

/// Checks the places where a start would make a file system or a target; nothing if it would make none. Makes nothing.
///
/// # Errors
/// With the directory, and the way out.
pub fn require_fit(directories: &Directories, place: &DataArgs, mountpoints: &[PathBuf]) -> Result<()> {
    let is_default = place.data.is_empty();
    let mut new: Vec<&Path> = directories
        .targets
        .iter()
        .filter(|(_, header)| header.is_none())
        .map(|(target, _)| target.parent().unwrap_or(target))
        .collect();
    if !directories.exists {
        new.push(&directories.meta);
    }
    if !new.is_empty() {
        refuse_overlaps(directories)?;
    }
    let table = if new.is_empty() { Vec::new() } else { unmounted()? };
    for dir in &new {
        if let Some(disk) = table.iter().find(|disk| dir.starts_with(disk)) {
            bail!(
                "nothing is to be found at {}, and {}, which /etc/fstab names, is not mounted: mount it first (`mount {}`)",
                dir.display(),
                disk.display(),
                disk.display()
            );
        }
        for mountpoint in mountpoints.iter().filter_map(|path| path.canonicalize().ok()) {
            if dir.starts_with(&mountpoint) {
                bail!(
                    "{} would be hidden by the mount at {}; name a data directory outside of it",
                    dir.display(),
                    mountpoint.display()
                );
            }
        }
        let parent = dir.parent().unwrap_or(dir);
        // Of a new data directory the metadata directory is one more level.
        let is_inside = new.contains(&parent);
        if !is_default && !is_inside && !dir.exists() && !parent.is_dir() {
            bail!(
                "there is no directory {} to make {} in: if its disk is mounted there, make it first (`mkdir -p {}`)",
                parent.display(),
                dir.display(),
                dir.display()
            );
        }
    }
    Ok(())
}

/// A part of a file system must not be in a part that keeps its own files there: names would meet, and what looks like one disk less would
/// be two.
fn refuse_overlaps(directories: &Directories) -> Result<()> {
    let meta = real(&directories.meta);
    // Beside `target` in one directory there is room for metadata, but not in what is the metadata's own.
    let of_meta = [ENGINE_DIR, LANE_DIR].map(|name| meta.join(name));
    let targets: Vec<PathBuf> = directories.targets.iter().map(|(path, _)| real(path)).collect();
    for (at, target) in targets.iter().enumerate() {
        let others = targets.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, path)| path);
        let parts = others.chain(&of_meta).chain([&meta].into_iter().filter(|meta| *meta == target));
        let mut inside = parts.filter(|part| target.starts_with(part)).map(|part| (target, part));
        let meta_inside = meta.starts_with(target).then_some((&meta, target));
        if let Some((inner, outer)) = inside.next().or(meta_inside) {
            bail!(
                "{} would be inside {}, which holds another part of this file system; name directories that are not inside each other",
                inner.display(),
                outer.display()
            );
        }
    }
    Ok(())
}

/// `path` without symbolic links, also if its last steps are not there yet.
/// Refuses `file`, which is meant to outlive this file system, in a directory that holds a part of it.
///
/// # Errors
/// With the directory, and the way out.
pub fn require_outside(directories: &Directories, file: &Path) -> Result<()> {
    let absolute =
        std::path::absolute(file).with_context(|| format!("cannot tell where {} is", file.display()))?;
    let file = real(&absolute);
    let mut parts = directories.targets.iter().map(|(path, _)| path).chain([&directories.meta]);
    if let Some(part) = parts.find(|part| file.starts_with(real(part))) {
        bail!(
            "{} would be inside {}, a part of the file system that it is to replace; name a file elsewhere, best on another disk",
            file.display(),
            part.display()
        );
    }
    Ok(())
}

fn real(path: &Path) -> PathBuf {
    for ancestor in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (ancestor.canonicalize(), path.strip_prefix(ancestor)) {
            // `join` with nothing would add a slash.
            return if rest.as_os_str().is_empty() { real } else { real.join(rest) };
        }
    }
    path.to_owned()
}

/// Mount points of /etc/fstab where nothing is mounted; none if there is no such file.
fn unmounted() -> Result<Vec<PathBuf>> {
    let table = match std::fs::read("/etc/fstab") {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.context("cannot read /etc/fstab")?,
    };
    let mounted = ashlar_fuse::mount_points().context("cannot read the mount table")?;
    Ok(lines(&table)
        .filter(|line| !line[0].starts_with(b"#"))
        .filter_map(|line| line.get(1).map(|field| table_path(field)))
        // As the kernel calls it, where it can be reached.
        .map(|path| path.canonicalize().unwrap_or(path))
        // `none` and `swap` are no paths; the root is always there.
        .filter(|path| path.is_absolute() && path.parent().is_some() && !mounted.contains(path))
        .collect())
}

/// The fields of every line that has any.
fn lines(table: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    table.split(|byte| *byte == b'\n').map(fields).filter(|line| !line.is_empty())
}

fn fields(line: &[u8]) -> Vec<&[u8]> {
    line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|field| !field.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_tables_are_read_as_they_are_meant() {
        let table =
            b"# a comment\n\n/dev/a /disk\\040one ext4 defaults 0 0\nUUID=1\t/disk2\txfs\n/dev/b none swap\n";
        let found: Vec<PathBuf> = lines(table)
            .filter(|line| line[0][0] != b'#')
            .filter_map(|line| line.get(1).map(|field| table_path(field)))
            .collect();
        assert_eq!(found, [Path::new("/disk one"), Path::new("/disk2"), Path::new("none")]);
        assert_eq!(table_path(b"a\\9zz\\04"), Path::new("a\\9zz\\04"));
    }
}
