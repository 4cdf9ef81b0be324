//! The directory of a run on an agent.

use super::message::{Clean, Prepare};
use crate::place::Place;
use crate::{BenchError, mark};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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
        check_name(&asked.run)?;
        let root = directory.join(mark::directory_name(&asked.run));
        let token: String = asked.token.iter().map(|byte| format!("{byte:02x}")).collect();
        if asked.makes {
            Place::check_empty(&directory, asked.beside_others)?;
            mark::make(&root, &asked.run, &token)?;
            return Ok(Ground { root });
        }
        let deadline = Instant::now() + VISIBLE_WITHIN;
        while !mark::is_shown(&root, &asked.run, &token) {
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

    /// Removes it with all that is in it, which may take long; false if something is left. Others may do the same at the same time. `meanwhile`
    /// is called again and again.
    pub fn remove(&self, meanwhile: &mut dyn FnMut()) -> bool {
        std::thread::scope(|scope| {
            let Ok(removing) = std::thread::Builder::new().spawn_scoped(scope, || self.remove_all()) else {
                // Where no thread can be started, nobody hears meanwhile that it goes on.
                return self.remove_all();
            };
            while !removing.is_finished() {
                meanwhile();
                std::thread::park_timeout(LOOK_EVERY);
            }
            removing.join().unwrap_or(false)
        })
    }

    fn remove_all(&self) -> bool {
        let deadline = Instant::now() + REMOVED_WITHIN;
        loop {
            // Only whether it is gone counts: another agent may have removed what this one was about to.
            let _ = mark::remove(&self.root);
            let is_gone = fs::symlink_metadata(&self.root)
                .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
            if is_gone || Instant::now() > deadline {
                return is_gone;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

fn check_name(run: &str) -> Result<(), BenchError> {
    if mark::is_run(run) {
        return Ok(());
    }
    Err(BenchError::Refused("the coordinator names its run with what is no name".into()))
}

/// Removes what earlier parts of a run have left, if its parent is one of `allowed` and the mark of the run is in it.
///
/// # Errors
/// [`BenchError::Refused`] when it is not one of them; what a call answers.
pub(super) fn clean(asked: &Clean, allowed: &[PathBuf]) -> Result<(), BenchError> {
    let directory = allowed_directory(&asked.directory, allowed)?;
    asked.runs.iter().try_for_each(|run| {
        check_name(run)?;
        mark::remove_left(&directory, run)
    })
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
            let removing = [&made, &found].map(|ground| scope.spawn(|| ground.remove(&mut || ())));
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
        let runs = ["0000000000000001", "0000000000000002", "0000000000000003"].map(str::to_owned);
        for run in &runs {
            let path = allowed[0].join(mark::directory_name(run));
            mark::make(&path, run, "").unwrap();
            fs::write(path.join("file"), "x").unwrap();
        }
        let asked = Clean { directory: allowed[0].clone(), runs: runs[..2].to_vec() };
        clean(&asked, &allowed).unwrap();
        assert_eq!(fs::read_dir(&allowed[0]).unwrap().count(), 1, "only what was named goes");
        assert!(clean(&Clean { directory: root.path().to_owned(), ..asked }, &allowed).is_err());
        let runs = vec!["../given".into()];
        assert!(clean(&Clean { directory: allowed[0].clone(), runs }, &allowed).is_err());
        fs::write(allowed[0].join("theirs"), "x").unwrap();
        let refused = Ground::prepare(&prepare(&allowed[0], true), &allowed).unwrap_err();
        assert!(matches!(refused, BenchError::NotEmpty { .. }), "{refused}");
    }

    #[test]
    fn others_hear_that_it_goes_on_while_much_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let made = Ground::prepare(&prepare(root.path(), true), &[root.path().to_owned()]).unwrap();
        for number in 0..2000 {
            fs::write(made.root().join(number.to_string()), "").unwrap();
        }
        let mut heard = 0;
        assert!(made.remove(&mut || heard += 1));
        assert!(heard > 0 && !made.root().exists());
    }
}
