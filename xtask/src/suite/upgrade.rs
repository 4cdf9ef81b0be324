//! An upgrade while programs work: a cluster of the binary of an earlier commit, of which every process is replaced by one of this commit, one after the other.
//!
//! On two mounts the torture program exercises files against a model, round after round; what was stored before the upgrade is compared after it, through the other
//! mount. No program may see an error, and the check at the end, by the new binary, must find nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::Tally;
use super::cluster::lab::Lab;
use crate::repository::{Repository, Work};
use crate::shell;

/// LIMIT: how long a round of a program may take that is waited for.
const ROUND_MAX: Duration = Duration::from_secs(300);
/// Files that are stored before the upgrade, by each mount.
const KEPT_FILES: u64 = 40;

/// Options of `upgrade`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The commit to upgrade from.
    #[arg(long, default_value = "HEAD~1")]
    from: String,
    /// A binary to upgrade from, instead of that of a commit.
    #[arg(long, conflicts_with = "from")]
    from_binary: Option<PathBuf>,
    /// Operations of each program between two looks whether it is to stop.
    #[arg(long, default_value_t = 2000)]
    ops: u64,
}

/// Runs the task.
///
/// # Errors
/// When a program saw an error, content is wrong, or a process does not come back.
pub fn run(repository: &Repository, arguments: &Arguments) -> anyhow::Result<()> {
    let work = Work::create("upgrade")?;
    let result = (|| {
        let before = match &arguments.from_binary {
            Some(binary) => binary.clone(),
            None => build_before(repository, &arguments.from)?,
        };
        let programs = repository.build(false)?;
        let lab = Lab::up(&before, &work.path().join("lab"), 2, 2, &[])?;
        let result = upgrade(&lab, &programs, arguments.ops);
        if result.is_err() {
            lab.keep_logs(&work.path().join("logs"))?;
        }
        result
    })();
    work.finish(result)
}

/// The binary of another commit, built in a work tree of its own below the target directory.
fn build_before(repository: &Repository, commit: &str) -> anyhow::Result<PathBuf> {
    let metadata = repository.metadata()?;
    let target = metadata["target_directory"].as_str().context("cargo metadata names no target directory")?;
    let place = Path::new(target).join("upgrade");
    let tree = place.join("tree");
    fs::create_dir_all(&place).with_context(|| format!("create {}", place.display()))?;
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(&repository.root).args(arguments);
        command
    };
    let tree_name = tree.to_string_lossy().into_owned();
    if tree.exists() {
        // What an attempt before has left.
        shell::run(&mut git(&["worktree", "remove", "--force", &tree_name]))?;
    }
    shell::run(&mut git(&["worktree", "add", "--quiet", "--force", "--detach", &tree_name, commit]))?;
    let built = (|| {
        // In the same target directory: what does not come from the work tree is built once for both.
        let mut cargo = repository.cargo(&["build", "--quiet", "-p", "ashlar"]);
        shell::run(cargo.current_dir(&tree).env("CARGO_TARGET_DIR", target))?;
        let (from, to) = (Path::new(target).join("debug/ashlar"), place.join("ashlar"));
        // A copy that runs cannot be written to.
        let _ = fs::remove_file(&to);
        fs::copy(&from, &to).with_context(|| format!("copy {}", from.display()))?;
        Ok(to)
    })();
    shell::run(&mut git(&["worktree", "remove", "--force", &tree_name]))?;
    built
}

fn upgrade(lab: &Lab, programs: &Path, ops: u64) -> anyhow::Result<()> {
    let (ashlar, torture) = (programs.join("ashlar"), programs.join("ashlar-torture"));
    let mounts = lab.mounts();
    for (at, mount) in mounts.iter().enumerate() {
        fs::create_dir(mount.join(format!("kept{at}")))?;
        for number in 0..KEPT_FILES {
            fs::write(mount.join(format!("kept{at}/{number}")), content(number))?;
        }
    }
    let mut tally = Tally::default();
    let loads = [Load::new(&torture, &mounts[0], ops), Load::new(&torture, &mounts[1], ops)];
    let result = std::thread::scope(|scope| {
        let [one, two] = &loads;
        let run = |load: &'_ Load| load.run();
        let mut first = Some(scope.spawn(move || run(one)));
        let second = scope.spawn(move || run(two));
        let result = (|| {
            for name in ["manager", "meta1", "storage1", "storage2"] {
                lab.replace(name, &ashlar).with_context(|| format!("replace {name}"))?;
                one.goes_on()?;
                two.goes_on()?;
                tally.note(name, Ok(()));
            }
            // A mount cannot be taken from a program that uses it; the other one goes on.
            one.stop();
            join(first.take())?;
            lab.replace("client1", &ashlar).context("replace client1")?;
            two.goes_on()?;
            tally.note("client1", Ok(()));
            Ok(())
        })();
        one.stop();
        two.stop();
        let first = join(first);
        result.and(first).and(join(Some(second)))
    });
    result?;
    lab.replace("client2", &ashlar).context("replace client2")?;
    tally.note("client2", Ok(()));
    let again = Load::new(&torture, &mounts[1], ops);
    again.stop();
    tally.note("a program afterwards", again.run());
    tally.note("what was there before", compare(&mounts));
    tally.note("stop and check", lab.stop_replaced_and_check(&ashlar));
    tally.finish()
}

fn join(thread: Option<std::thread::ScopedJoinHandle<'_, anyhow::Result<()>>>) -> anyhow::Result<()> {
    match thread.map(std::thread::ScopedJoinHandle::join) {
        None => Ok(()),
        Some(Ok(result)) => result,
        Some(Err(_)) => bail!("a thread panicked"),
    }
}

fn content(number: u64) -> Vec<u8> {
    // From within the inode to several chunks.
    let bytes = (number * number * 3000) as usize;
    (0..bytes).map(|at| ((at as u64 * 31 + number * 7) % 251) as u8).collect()
}

/// What each mount has stored, through the other one.
fn compare(mounts: &[PathBuf]) -> anyhow::Result<()> {
    for (at, mount) in mounts.iter().rev().enumerate() {
        for number in 0..KEPT_FILES {
            let path = mount.join(format!("kept{at}/{number}"));
            let found = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
            if found != content(number) {
                bail!("{} is not what was stored", path.display());
            }
        }
    }
    Ok(())
}

/// A program at work on a mount, round after round.
struct Load {
    torture: PathBuf,
    dir: PathBuf,
    ops: u64,
    is_stopping: AtomicBool,
    rounds: AtomicU64,
    has_ended: AtomicBool,
}

impl Load {
    fn new(torture: &Path, mount: &Path, ops: u64) -> Load {
        Load {
            torture: torture.to_owned(),
            dir: mount.to_owned(),
            ops,
            is_stopping: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
        }
    }

    /// One round at least, then until it is to stop.
    fn run(&self) -> anyhow::Result<()> {
        let result = (|| {
            loop {
                let seed = self.rounds.load(SeqCst) + 1;
                let mut command = Command::new(&self.torture);
                command.arg("fsx").arg("--dir").arg(&self.dir);
                command.args(["--files", "2", "--ops", &self.ops.to_string(), "--seed", &seed.to_string()]);
                shell::output(&mut command).with_context(|| format!("on {}", self.dir.display()))?;
                self.rounds.fetch_add(1, SeqCst);
                if self.is_stopping.load(SeqCst) {
                    return Ok(());
                }
            }
        })();
        self.has_ended.store(true, SeqCst);
        result
    }

    fn stop(&self) {
        self.is_stopping.store(true, SeqCst);
    }

    /// Waits until it has done a whole round more, which began after this was called.
    fn goes_on(&self) -> anyhow::Result<()> {
        let (until, deadline) = (self.rounds.load(SeqCst) + 2, Instant::now() + ROUND_MAX);
        while self.rounds.load(SeqCst) < until {
            if self.has_ended.load(SeqCst) {
                bail!("the program on {} has ended", self.dir.display());
            }
            if Instant::now() >= deadline {
                bail!("the program on {} does nothing", self.dir.display());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}
