//! An upgrade while programs work: a cluster of the binary of an earlier commit, of which every process is replaced by one of this commit, one after the other.
//!
//! Mounts of a binary that can do it give way to the next program (`SIGUSR2`) while all goes on; those of others are unmounted when nobody uses them.
//!
//! On two mounts the torture program exercises files against a model, records histories of names and checks them, and holds locks and passes them on, round after round;
//! what was stored before the upgrade is compared after it, through the other mount. No program may see an error, and the check at the end, by the new binary, must find
//! nothing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::Tally;
use super::cluster::lab::Lab;
use crate::repository::{Repository, Work};
use crate::shell;

/// LIMIT: how long a round of a program may take that is waited for.
const ROUND_MAX: Duration = Duration::from_secs(300);
/// Histories of names in a round.
const HISTORIES: u64 = 20;
/// How often each thread takes a lock in a round.
const LOCK_TURNS: u64 = 200;
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
    #[arg(long, default_value_t = 500)]
    ops: u64,
    /// Metadata servers.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    meta: u32,
    /// With three managers that keep their state in an etcd of three members, instead of one with a file. The etcd stays as it is.
    #[arg(long)]
    etcd: bool,
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
        let meta = arguments.meta.to_string();
        let etcd: &[&str] = if arguments.etcd { &["--etcd"] } else { &[] };
        let help = shell::output(Command::new(&before).args(["lab", "up", "--help"]))?;
        let are_kept = help.contains("--keep");
        let keep: &[&str] = if are_kept { &["--keep", "60"] } else { &[] };
        let more = [&["--meta", meta.as_str()], etcd, keep].concat();
        // Where a package has the program: the next one comes to the same place.
        let installed = work.path().join("ashlar");
        fs::copy(&before, &installed).with_context(|| format!("copy {}", before.display()))?;
        let lab = Lab::up(&installed, &work.path().join("lab"), 2, 2, &more)?;
        let result = upgrade(&lab, &programs, arguments, are_kept);
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

fn upgrade(lab: &Lab, programs: &Path, arguments: &Arguments, are_kept: bool) -> anyhow::Result<()> {
    let (ashlar, torture) = (programs.join("ashlar"), programs.join("ashlar-torture"));
    let mounts = lab.mounts();
    for (at, mount) in mounts.iter().enumerate() {
        fs::create_dir(mount.join(format!("kept{at}")))?;
        for number in 0..KEPT_FILES {
            fs::write(mount.join(format!("kept{at}/{number}")), content(number))?;
        }
    }
    let mut tally = Tally::default();
    let of_mount = |mount: &Path| {
        let work = [Kind::Files { ops: arguments.ops }, Kind::Names];
        work.map(|work| Load::new(&torture, &[mount], work))
    };
    let locks = Load::new(&torture, &[&mounts[0], &mounts[1]], Kind::Locks);
    let [first, second] = [of_mount(&mounts[0]), of_mount(&mounts[1])];
    // A mount cannot be taken from programs that use it.
    let (with_first, others): (Vec<&Load>, Vec<&Load>) =
        (first.iter().chain([&locks]).collect(), second.iter().collect());
    std::thread::scope(|scope| {
        let (mut of_first, of_others) = (start(scope, &with_first), start(scope, &others));
        let result = (|| {
            let managers =
                if arguments.etcd { &["manager", "manager2", "manager3"][..] } else { &["manager"] };
            let metas = (1..=arguments.meta).map(|number| format!("meta{number}"));
            let servers = managers.iter().map(ToString::to_string).chain(metas);
            for name in servers.chain(["storage1".to_owned(), "storage2".to_owned()]) {
                lab.replace(&name, &ashlar).with_context(|| format!("replace {name}"))?;
                go_on(&with_first)?;
                go_on(&others)?;
                tally.note(&name, Ok(()));
            }
            if are_kept {
                install(&ashlar, lab.binary())?;
                for name in ["client1", "client2"] {
                    give_way(lab, name).with_context(|| format!("{name} gives way"))?;
                    go_on(&with_first)?;
                    go_on(&others)?;
                    tally.note(name, Ok(()));
                }
                return Ok(());
            }
            with_first.iter().for_each(|load| load.stop());
            join(std::mem::take(&mut of_first))?;
            lab.replace("client1", &ashlar).context("replace client1")?;
            go_on(&others)?;
            tally.note("client1", Ok(()));
            Ok(())
        })();
        with_first.iter().chain(&others).for_each(|load| load.stop());
        let ended = [join(of_first), join(of_others)];
        // What a program says tells more than that it has ended.
        ended.into_iter().chain([result]).collect::<anyhow::Result<()>>()
    })?;
    if !are_kept {
        lab.replace("client2", &ashlar).context("replace client2")?;
        tally.note("client2", Ok(()));
    }
    for again in of_mount(&mounts[1]) {
        again.stop();
        tally.note("a program afterwards", again.run());
    }
    tally.note("what was there before", compare(&mounts));
    tally.note("stop and check", lab.stop_replaced_and_check(&ashlar));
    tally.finish()
}

/// Puts `binary` in the place of another one, which may run, as a package does.
fn install(binary: &Path, place: &Path) -> anyhow::Result<()> {
    let beside = place.with_extension("new");
    fs::copy(binary, &beside).with_context(|| format!("copy {}", binary.display()))?;
    fs::rename(&beside, place).with_context(|| format!("replace {}", place.display()))
}

/// Has a mount go over to the program that is installed, and insists that the same session goes on.
fn give_way(lab: &Lab, name: &str) -> anyhow::Result<()> {
    lab.give_way(name)?;
    let running = format!("/proc/{}/exe", lab.process(name)?.context("it has ended")?);
    if fs::metadata(running)?.ino() != fs::metadata(lab.binary())?.ino() {
        bail!("it runs the program from before");
    }
    let log = fs::read_to_string(lab.log(name))?;
    if log.contains("another one takes its place") || log.contains("another session takes") {
        bail!("the session did not go on: {log}");
    }
    Ok(())
}

type Threads<'scope> = Vec<ScopedJoinHandle<'scope, anyhow::Result<()>>>;

fn start<'scope>(scope: &'scope Scope<'scope, '_>, loads: &[&'scope Load]) -> Threads<'scope> {
    loads.iter().copied().map(|load| scope.spawn(move || load.run())).collect()
}

/// Waits until each of them has done a whole round more, which began after this was called.
fn go_on(loads: &[&Load]) -> anyhow::Result<()> {
    let wanted: Vec<u64> = loads.iter().map(|load| load.rounds.load(SeqCst) + 2).collect();
    loads.iter().zip(wanted).try_for_each(|(load, rounds)| load.wait_for(rounds))
}

fn join(threads: Threads<'_>) -> anyhow::Result<()> {
    // All of them, also after one that has failed.
    let ended: Vec<_> = threads.into_iter().map(ScopedJoinHandle::join).collect();
    ended.into_iter().try_for_each(|ended| match ended {
        Ok(result) => result,
        Err(_) => bail!("a thread panicked"),
    })
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

/// What a program does.
#[derive(Clone, Copy)]
enum Kind {
    /// Files against a model.
    Files { ops: u64 },
    /// Names and attributes, in histories that are checked.
    Names,
    /// Locks that are held and passed on.
    Locks,
}

/// A program at work on mounts, round after round.
struct Load {
    torture: PathBuf,
    dirs: Vec<PathBuf>,
    kind: Kind,
    is_stopping: AtomicBool,
    rounds: AtomicU64,
    has_ended: AtomicBool,
}

impl Load {
    fn new(torture: &Path, mounts: &[&Path], kind: Kind) -> Load {
        Load {
            torture: torture.to_owned(),
            dirs: mounts.iter().map(|mount| mount.to_path_buf()).collect(),
            kind,
            is_stopping: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
        }
    }

    fn command(&self, seed: u64) -> Command {
        let mut command = Command::new(&self.torture);
        match self.kind {
            Kind::Files { ops } => command.args(["fsx", "--files", "2", "--ops", &ops.to_string()]),
            Kind::Names => command.args(["linear", "--histories", &HISTORIES.to_string()]),
            Kind::Locks => command.args(["pass-locks", "--turns", &LOCK_TURNS.to_string()]),
        };
        for (at, dir) in self.dirs.iter().enumerate() {
            command.arg(if at == 0 { "--dir" } else { "--also-dir" }).arg(dir);
        }
        command.args(["--seed", &seed.to_string()]);
        command
    }

    /// One round at least, then until it is to stop.
    fn run(&self) -> anyhow::Result<()> {
        let result = (|| {
            loop {
                let mut command = self.command(self.rounds.load(SeqCst) + 1);
                let output = command.output().with_context(|| format!("start {}", shell::show(&command)))?;
                if !output.status.success() {
                    let said = [output.stdout, output.stderr].concat();
                    bail!(
                        "{} ended with {}: {}",
                        shell::show(&command),
                        output.status,
                        String::from_utf8_lossy(&said)
                    );
                }
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

    /// Waits until it has done so many rounds.
    fn wait_for(&self, rounds: u64) -> anyhow::Result<()> {
        let deadline = Instant::now() + ROUND_MAX;
        while self.rounds.load(SeqCst) < rounds {
            let what = || shell::show(&self.command(0));
            if self.has_ended.load(SeqCst) {
                bail!("{} has ended", what());
            }
            if Instant::now() >= deadline {
                bail!("{} does nothing", what());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}
