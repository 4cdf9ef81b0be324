//! What a storage server remembers between two starts of the directories that came and went while it ran: `targets.json` in its identity directory.

use super::super::affinity::DataPlace;
use super::super::node_directory::NodeDirectory;
use anyhow::{Context, Result, bail};
use ashlar_chunkstore::TargetHeader;
use ashlar_types::ClusterMap;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// LIMIT: targets that were removed and whose directories are listed all the same; the oldest are forgotten first.
const REMOVED_MAX: usize = 1024;

/// A directory that an administrator has added while the server ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Added {
    /// The data directory.
    pub dir: PathBuf,
    /// The pool it was to be in; empty: the first one.
    pub pool: String,
    /// As `listen=` of `--data`.
    pub listen: Vec<SocketAddr>,
    /// As `numa=` of `--data`.
    pub numa: Option<u32>,
}

impl Added {
    /// As `--data` says it.
    pub fn place(&self) -> DataPlace {
        DataPlace { dir: self.dir.clone(), listen: self.listen.clone(), numa: self.numa }
    }
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remembered {
    /// Directories that are served besides those of the command line.
    // LIMIT: as targets of the server.
    pub added: Vec<Added>,
    /// What the targets are known by, in hexadecimal digits, that were taken out of the file system while they were served here.
    pub removed: Vec<String>,
    /// Where they were. No start makes a target there by itself: what is empty now may be the place of a disk that was pulled.
    #[serde(default)]
    pub removed_from: Vec<PathBuf>,
    /// What the targets are known by that were served here last, and that the map has had then: one that it has not any more was removed.
    // LIMIT: as targets of the server.
    #[serde(default)]
    pub entered: Vec<String>,
}

/// Whether a target of `map` is known by `uuid`, in hexadecimal digits.
fn has(map: &ClusterMap, uuid: &str) -> bool {
    map.targets.iter().any(|target| hex(target.uuid) == uuid)
}

fn hex(uuid: [u8; 16]) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Remembered {
    /// What `directory` has; nothing is nothing.
    ///
    /// # Errors
    /// When it cannot be read or is damaged, with the way out.
    pub fn load(directory: &NodeDirectory) -> Result<Remembered> {
        let Some(bytes) = directory.load_targets()? else { return Ok(Remembered::default()) };
        serde_json::from_slice(&bytes).with_context(|| {
            format!(
                "targets.json in {} is damaged: correct it, or remove it and list all directories of this server with --data",
                directory.shown()
            )
        })
    }

    /// Keeps it, durably.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn store(&self, directory: &NodeDirectory) -> Result<()> {
        directory.store_targets(&serde_json::to_vec_pretty(self)?)
    }

    /// The directories that are to be served: those of the command line, `listed`, and those that were added but for `without`.
    ///
    /// # Errors
    /// When one of `without` was not added.
    pub fn places(&self, listed: &[DataPlace], without: &[PathBuf]) -> Result<Vec<DataPlace>> {
        if let Some(unknown) =
            without.iter().find(|dir| !self.added.iter().any(|added| same(&added.dir, dir)))
        {
            let known: Vec<String> = self.added.iter().map(|added| added.dir.display().to_string()).collect();
            let known = if known.is_empty() { "none was".to_owned() } else { known.join(", ") };
            bail!(
                "--without {}: that is no directory which `ashlar target add` has added to this server; {known}. One of the command line is left out by leaving its --data out",
                unknown.display()
            );
        }
        let is_wanted = |added: &&Added| {
            let is_listed = listed.iter().any(|place| same(&place.dir, &added.dir));
            !is_listed && !without.iter().any(|dir| same(dir, &added.dir))
        };
        Ok(listed.iter().cloned().chain(self.added.iter().filter(is_wanted).map(Added::place)).collect())
    }

    /// The pool that was wanted for the target directory `path`, if it was added.
    pub fn pool_of(&self, path: &Path) -> Option<&str> {
        let dir = path.parent()?;
        self.added.iter().find(|added| same(&added.dir, dir)).map(|added| added.pool.as_str())
    }

    /// Whether a manager is to be asked which of `found` are targets of the file system yet, by the map that is known here.
    pub fn is_in_doubt(&self, found: &[(PathBuf, Option<TargetHeader>)], map: &ClusterMap) -> bool {
        let is_gone = |uuid| self.entered.contains(&hex(uuid)) && !has(map, &hex(uuid));
        let mut uuids = found.iter().flat_map(|(_, header)| header).map(|header| header.identity.uuid.0);
        uuids.any(|uuid| self.is_removed(uuid) || is_gone(uuid))
    }

    /// Goes by `map`, which a manager has just told. That targets were removed which it names is forgotten: they are targets again, or have never been removed. And those of
    /// `found` that it had, and does not name, were removed while nobody served them.
    pub fn review(&mut self, found: &[(PathBuf, Option<TargetHeader>)], map: &ClusterMap) {
        self.removed.retain(|uuid| !has(map, uuid));
        for (path, header) in found {
            let Some(uuid) = header.as_ref().map(|header| header.identity.uuid.0) else { continue };
            if self.entered.contains(&hex(uuid)) && !has(map, &hex(uuid)) && !self.is_removed(uuid) {
                self.remove(path.parent().unwrap_or(path), uuid);
            }
        }
    }

    /// Notes which targets are served here, now that a manager has taken them into the map.
    pub fn enter(&mut self, uuids: impl Iterator<Item = [u8; 16]>) {
        self.entered = uuids.map(hex).collect();
    }

    /// Takes those out of `found` that were removed from the file system, and forgets the others that were: their directories are not listed any more. `is_confirmed`: a manager has just been asked.
    pub fn without_removed(
        &mut self,
        found: Vec<(PathBuf, Option<TargetHeader>)>,
        is_confirmed: bool,
    ) -> Vec<(PathBuf, Option<TargetHeader>)> {
        let uuid_of = |header: &Option<TargetHeader>| Some(hex(header.as_ref()?.identity.uuid.0));
        let listed: Vec<String> = found.iter().filter_map(|(_, header)| uuid_of(header)).collect();
        let is_left = |path: &Path| {
            let dir = path.parent().unwrap_or(path);
            self.removed_from.iter().any(|known| same(known, dir))
        };
        let (empty, found): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|(path, header)| header.is_none() && is_left(path));
        for (path, _) in &empty {
            eprintln!(
                "ashlar: a target at {} was removed from the file system, and none is made there by itself: leave the directory out, or have it be a target with `ashlar target add`",
                path.display()
            );
        }
        // A disk that is not there now may come back.
        if empty.is_empty() {
            self.removed.retain(|uuid| listed.contains(uuid));
        }
        let is_removed =
            |header: &Option<TargetHeader>| uuid_of(header).is_some_and(|uuid| self.removed.contains(&uuid));
        let (gone, stays): (Vec<_>, Vec<_>) = found.into_iter().partition(|(_, header)| is_removed(header));
        for (path, header) in gone {
            let target = header.map(|header| header.identity.target).unwrap_or_default();
            let what_to_do = match is_confirmed {
                true => "leave the directory out, or empty it to have another target there",
                // Nobody is to empty what may be in use yet.
                false => "no manager has confirmed it now, so leave what is in the directory as it is",
            };
            eprintln!(
                "ashlar: {target} at {} was removed from the file system and is not served: {what_to_do}",
                path.display()
            );
        }
        stays
    }

    /// Whether the target that is known by `uuid` was taken out of the file system while it was served here.
    pub fn is_removed(&self, uuid: [u8; 16]) -> bool {
        self.removed.contains(&hex(uuid))
    }

    /// Notes that a directory was added.
    pub fn add(&mut self, added: Added) {
        self.added.retain(|known| !same(&known.dir, &added.dir));
        self.removed_from.retain(|known| !same(known, &added.dir));
        self.added.push(added);
    }

    /// Notes that the directory `dir` is not added any more.
    pub fn forget(&mut self, dir: &Path) {
        self.added.retain(|known| !same(&known.dir, dir));
    }

    /// Notes that the target in the data directory `dir`, known by `uuid`, was taken out of the file system.
    pub fn remove(&mut self, dir: &Path, uuid: [u8; 16]) {
        self.forget(dir);
        self.removed.push(hex(uuid));
        self.removed_from.retain(|known| !same(known, dir));
        self.removed_from.push(dir.to_owned());
        let surplus = |len: usize| len.saturating_sub(REMOVED_MAX);
        self.removed.drain(..surplus(self.removed.len()));
        self.removed_from.drain(..surplus(self.removed_from.len()));
    }
}

/// Whether two names lead to one directory. One that is not there is called as it was.
fn same(a: &Path, b: &Path) -> bool {
    a == b || a.canonicalize().is_ok_and(|a| b.canonicalize().is_ok_and(|b| a == b))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ashlar_chunkstore::{TargetIdentity, TargetUuid};
    use ashlar_types::testing::map_in_domains;
    use ashlar_types::{ClusterId, Start, TargetId};

    fn added(dir: &Path) -> Added {
        Added { dir: dir.to_owned(), pool: "fast".into(), listen: Vec::new(), numa: Some(1) }
    }

    #[test]
    fn what_was_added_is_served_after_a_start_unless_it_is_left_out_or_listed_anyway() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
        std::fs::create_dir(&b).unwrap();
        let identity = NodeDirectory::new(dir.path());
        assert_eq!(Remembered::load(&identity).unwrap(), Remembered::default());
        let mut remembered = Remembered::default();
        remembered.add(added(&b));
        remembered.add(added(&b));
        remembered.store(&identity).unwrap();
        let remembered = Remembered::load(&identity).unwrap();
        let listed = [DataPlace { dir: a.clone(), ..DataPlace::default() }];
        let dirs = |listed: &[DataPlace], without: &[PathBuf]| -> Vec<PathBuf> {
            remembered.places(listed, without).unwrap().into_iter().map(|place| place.dir).collect()
        };
        assert_eq!(dirs(&listed, &[]), [a.clone(), b.clone()]);
        assert_eq!(dirs(&listed, std::slice::from_ref(&b)), std::slice::from_ref(&a));
        let otherwise = [DataPlace { dir: dir.path().join("./b"), ..DataPlace::default() }];
        assert_eq!(dirs(&otherwise, &[]), [dir.path().join("./b")], "listed under another name");
        let error = remembered.places(&listed, std::slice::from_ref(&a)).unwrap_err().to_string();
        assert!(error.contains("--without") && error.ends_with("leaving its --data out"), "{error}");
        assert_eq!(remembered.pool_of(&b.join("target")), Some("fast"));
        std::fs::write(dir.path().join("targets.json"), "{").unwrap();
        let error = format!("{:#}", Remembered::load(&identity).unwrap_err());
        assert!(error.contains("damaged"), "{error}");
    }

    #[test]
    fn a_target_that_was_removed_is_left_out_for_as_long_as_its_directory_is_listed() {
        let header = |n: u8| {
            let identity = TargetIdentity {
                cluster: ClusterId([9; 16]),
                target: TargetId(u32::from(n)),
                uuid: TargetUuid([n; 16]),
            };
            Some(TargetHeader { identity, start: Start::default() })
        };
        let found = |numbers: &[u8]| -> Vec<(PathBuf, Option<TargetHeader>)> {
            numbers.iter().map(|n| (PathBuf::from(format!("/{n}/target")), header(*n))).collect()
        };
        let mut remembered = Remembered::default();
        remembered.add(added(Path::new("/1")));
        remembered.remove(Path::new("/1"), [1; 16]);
        assert!(remembered.added.is_empty() && remembered.is_removed([1; 16]));
        assert_eq!(remembered.without_removed(found(&[1, 2]), true), found(&[2]));
        assert!(remembered.is_removed([1; 16]), "it is listed yet");
        // Its disk is pulled: nothing is made on what is below.
        let empty = vec![(PathBuf::from("/1/target"), None)];
        assert_eq!(remembered.without_removed(empty.clone(), true), []);
        assert!(remembered.is_removed([1; 16]), "the disk may come back");
        assert_eq!(remembered.without_removed(vec![(PathBuf::from("/4/target"), None)], true).len(), 1);
        remembered.remove(Path::new("/1"), [1; 16]);
        remembered.add(added(Path::new("/1")));
        assert_eq!(remembered.without_removed(empty.clone(), true), empty, "wanted again");
        remembered.remove(Path::new("/1"), [1; 16]);
        assert_eq!(remembered.without_removed(found(&[2]), true), found(&[2]));
        assert!(!remembered.is_removed([1; 16]));
        // Managers name it: it is a target again.
        remembered.remove(Path::new("/2"), [2; 16]);
        let mut map = map_in_domains(&[0], &["rack"]);
        let is_in_doubt =
            |remembered: &Remembered, numbers: &[u8], map: &_| remembered.is_in_doubt(&found(numbers), map);
        assert!(is_in_doubt(&remembered, &[1, 2], &map) && !is_in_doubt(&remembered, &[1], &map));
        remembered.review(&found(&[2]), &map);
        assert!(remembered.is_removed([2; 16]));
        map.targets[0].uuid = [2; 16];
        remembered.review(&found(&[2]), &map);
        assert!(!remembered.is_removed([2; 16]));
        assert_eq!(remembered.without_removed(found(&[2]), true), found(&[2]));
        // Removed while nobody served it; of one that the map has not had yet, nobody says so.
        remembered.add(added(Path::new("/5")));
        assert!(!is_in_doubt(&remembered, &[5], &map));
        remembered.review(&found(&[5]), &map);
        assert!(!remembered.is_removed([5; 16]));
        remembered.enter([[5; 16], [2; 16]].into_iter());
        assert!(is_in_doubt(&remembered, &[5], &map) && !is_in_doubt(&remembered, &[2], &map));
        remembered.review(&found(&[2, 5]), &map);
        assert_eq!(remembered.without_removed(found(&[2, 5]), true), found(&[2]));
        assert!(remembered.added.is_empty(), "the next start does not look for it");
        for _ in 0..2 * REMOVED_MAX {
            remembered.remove(Path::new("/3"), [3; 16]);
        }
        assert_eq!(remembered.removed.len(), REMOVED_MAX);
    }
}
