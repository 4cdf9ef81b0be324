//! The directory of a run on an agent.

use super::message::{Clean, Prepare};
use crate::BenchError;
use crate::place::{Place, remove_left};
use rustix::process::geteuid;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The file by which agents see that they look at one directory.
const MARK: &str = "mark";
/// LIMIT: some network file systems show a name that another machine has made after some seconds only.
const VISIBLE_WITHIN: Duration = Duration::from_secs(5);
/// LIMIT: others may still be stopping, and make files meanwhile.
const REMOVED_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A directory that this agent has made, or found made by another one of the same run. Nothing outside of it is touched.
#[derive(Debug)]
pub(super) struct Ground {
    root: PathBuf,
}

impl Ground {
    /// Makes or finds it, if its parent is one of `allowed`.
    ///
    /// # Errors
    /// [`BenchError::Refused`] when it is not, or does not show up; what a call answers.
    pub fn prepare(asked: &Prepare, allowed: &[PathBuf]) -> Result<Ground, BenchError> {
        let directory = allowed_directory(&asked.directory, allowed)?;
        let root = root_of(&directory, &asked.run)?;
        let mark = root.join(MARK);
        if asked.makes {
            Place::check_empty(&directory, asked.beside_others)?;
            fs::create_dir(&root).map_err(BenchError::io("make directory", &root))?;
            let ground = Ground { root };
            if let Err(error) = fs::write(&mark, asked.token) {
                ground.remove();
                return Err(BenchError::io("write", &mark)(error));
            }
            return Ok(ground);
        }
        let deadline = Instant::now() + VISIBLE_WITHIN;
        while fs::read(&mark).ok().is_none_or(|found| found != asked.token) {
            if Instant::now() > deadline {
                return Err(BenchError::NotShared { path: directory });
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(Ground { root })
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Removes it with all that is in it; false if something is left. Others may do the same at the same time.
    pub fn remove(&self) -> bool {
        let deadline = Instant::now() + REMOVED_WITHIN;
        loop {
            // Only whether it is gone counts: another agent may have removed what this one was about to.
            let _ = fs::remove_dir_all(&self.root);
            let is_gone = fs::symlink_metadata(&self.root)
                .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
            if is_gone || Instant::now() > deadline {
                return is_gone;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// The directory of a run.
fn root_of(directory: &Path, run: &str) -> Result<PathBuf, BenchError> {
    let is_name = run.len() == 16 && run.bytes().all(|digit| digit.is_ascii_hexdigit());
    if is_name {
        return Ok(directory.join(own_name(run)));
    }
    Err(BenchError::Refused("the coordinator names its run with what is no name".into()))
}

/// What the directory of a run is called.
pub(super) fn own_name(run: &str) -> String {
    format!("ashlar-bench.{run}")
}

/// Removes what earlier parts of a run have left, if its parent is one of `allowed`.
///
/// # Errors
/// [`BenchError::Refused`] when it is not; what a call answers.
pub(super) fn clean(asked: &Clean, allowed: &[PathBuf]) -> Result<(), BenchError> {
    let directory = allowed_directory(&asked.directory, allowed)?;
    for (run, is_made) in &asked.runs {
        let root = root_of(&directory, run)?;
        match fs::symlink_metadata(&root) {
            // Somebody else's, or a way to somewhere else: nothing of it is touched.
            Ok(found) if !found.is_dir() || found.uid() != geteuid().as_raw() => continue,
            _ => {}
        }
        if !is_made {
            // It may have been killed between making the directory and saying so: then nothing but the mark is in it.
            let _ = fs::remove_file(root.join(MARK));
        }
        remove_left(&root, *is_made)?;
    }
    Ok(())
}

/// The one of `allowed` that is meant by `asked`, which is another way to say it at most.
pub(super) fn allowed_directory(asked: &Path, allowed: &[PathBuf]) -> Result<PathBuf, BenchError> {
    let real = |path: &Path| fs::canonicalize(path).ok();
    let found =
        allowed.iter().find(|one| *one == asked || real(one).is_some_and(|one| real(asked) == Some(one)));
    found.cloned().ok_or_else(|| {
        let list: Vec<String> = allowed.iter().map(|one| one.display().to_string()).collect();
        let list = if list.is_empty() { "no directory".to_owned() } else { list.join(", ") };
        BenchError::Refused(format!(
            "this agent may not use {}: it was started for {list}; name the same directory to the coordinator and to every agent",
            asked.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepare(directory: &Path, makes: bool) -> Prepare {
        Prepare {
            directory: directory.to_owned(),
            run: "0123456789abcdef".into(),
            token: [7; 16],
            makes,
            beside_others: false,
        }
    }

    #[test]
    fn one_makes_it_the_others_find_it_and_any_of_them_removes_it() {
        let root = tempfile::tempdir().unwrap();
        let allowed = [root.path().to_owned()];
        let made = Ground::prepare(&prepare(root.path(), true), &allowed).unwrap();
        let found = Ground::prepare(&prepare(&root.path().join("."), false), &allowed).unwrap();
        assert_eq!(made.root().canonicalize().unwrap(), found.root().canonicalize().unwrap());
        fs::write(found.root().join("file"), "x").unwrap();
        std::thread::scope(|scope| {
            let removing = [&made, &found].map(|ground| scope.spawn(|| ground.remove()));
            assert!(removing.into_iter().all(|thread| thread.join().unwrap()));
        });
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn only_directories_that_were_given_are_used_and_names_lead_nowhere_else() {
        let root = tempfile::tempdir().unwrap();
        let allowed = [root.path().join("given")];
        fs::create_dir(&allowed[0]).unwrap();
        let refused = Ground::prepare(&prepare(root.path(), true), &allowed).unwrap_err();
        assert!(refused.to_string().contains("may not use"), "{refused}");
        assert!(
            Ground::prepare(&prepare(root.path(), true), &[])
                .unwrap_err()
                .to_string()
                .contains("no directory")
        );
        for run in ["../../../../../x", "0123456789abcde/", "", "0123456789abcdef0"] {
            let asked = Prepare { run: run.into(), ..prepare(&allowed[0], true) };
            assert!(Ground::prepare(&asked, &allowed).is_err(), "{run}");
        }
        assert_eq!(fs::read_dir(&allowed[0]).unwrap().count(), 0);
        let left = |run: &str| {
            let path = allowed[0].join(format!("ashlar-bench.{run}"));
            fs::create_dir(&path).unwrap();
            fs::write(path.join("file"), "x").unwrap();
        };
        ["0000000000000001", "0000000000000002", "0000000000000003"].iter().for_each(|run| left(run));
        let barely = allowed[0].join("ashlar-bench.0000000000000004");
        fs::create_dir(&barely).unwrap();
        fs::write(barely.join(MARK), "x").unwrap();
        let runs: Vec<(String, bool)> =
            [(1, true), (2, false), (4, false)].map(|(run, is_made)| (format!("{run:016}"), is_made)).into();
        clean(&Clean { directory: allowed[0].clone(), runs: runs.clone() }, &allowed).unwrap();
        assert_eq!(fs::read_dir(&allowed[0]).unwrap().count(), 2, "only what it has made goes");
        assert!(clean(&Clean { directory: root.path().to_owned(), runs }, &allowed).is_err());
        let runs = vec![("../given".into(), true)];
        assert!(clean(&Clean { directory: allowed[0].clone(), runs }, &allowed).is_err());
        fs::write(allowed[0].join("theirs"), "x").unwrap();
        let refused = Ground::prepare(&prepare(&allowed[0], true), &allowed).unwrap_err();
        assert!(matches!(refused, BenchError::NotEmpty { .. }), "{refused}");
    }
}
