//! Breaks a copy of the repository in one place after the other (`crates/sim/mutants`), and looks whether the simulations notice. First they must pass where nothing is broken.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail};
use clap::Args;

use crate::mutants::{self, Mutant};
use crate::repository::{self, Repository, Work};
use crate::shell;
use crate::tidy::tree::{SourceFile, Tree};

/// Built for speed, but not for long: each breakage is linked anew.
const PROFILE: [&str; 6] = [
    "--config",
    "profile.release.lto=false",
    "--config",
    "profile.release.codegen-units=16",
    "--config",
    "profile.release.incremental=true",
];

/// What to break, and for how long to look.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Only mutants whose name has this in it; may be given several times.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Seeds of each simulation after which a mutant has survived.
    #[arg(long, default_value_t = 400)]
    seeds: u64,
    /// Seeds of each simulation that must pass where nothing is broken.
    #[arg(long, default_value_t = 50)]
    control: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// Only look whether each mutant can still be made.
    #[arg(long)]
    check: bool,
}

/// A copy of the repository that may be broken.
struct Scratch {
    tree: PathBuf,
    target: PathBuf,
}

/// How a mutant ended.
struct Verdict {
    name: String,
    what: String,
    caught: Option<Caught>,
    seconds: u64,
}

struct Caught {
    simulation: String,
    seed: String,
    why: String,
}

/// Tries them.
///
/// # Errors
/// When one survives, or cannot be made, or something fails where nothing is broken.
pub fn run(repository: &Repository, arguments: &Arguments) -> anyhow::Result<()> {
    let tree = Tree::read(repository)?;
    let is_named = |mutant: &Mutant| arguments.only.iter().any(|only| mutant.name.contains(only.as_str()));
    // Those that are known to survive are tried when they are named.
    let is_wanted = |mutant: &Mutant| match arguments.only.is_empty() {
        true => mutant.survives.is_none() || arguments.check,
        false => is_named(mutant),
    };
    let mut wanted = Vec::new();
    for (file, mutant) in mutants::all(&tree) {
        let mutant = mutant.with_context(|| format!("{} cannot be made", file.path))?;
        wanted.extend(is_wanted(&mutant).then_some(mutant));
    }
    if arguments.check {
        println!("{} mutants can be made", wanted.len());
        return Ok(());
    }
    if wanted.is_empty() {
        bail!("no mutant has that in its name");
    }
    let work = Work::create("mutants")?;
    let scratch =
        Scratch { tree: work.path().join("tree"), target: repository::cache()?.join("mutants-target") };
    // A failure is told in full, and the copy has nothing more to tell.
    let tried = scratch.copy(&tree.files).and_then(|()| try_all(&scratch, &tree, &wanted, arguments));
    work.finish(anyhow::Ok(()))?;
    show(&tried?)
}

fn try_all(
    scratch: &Scratch,
    tree: &Tree,
    mutants: &[Mutant],
    arguments: &Arguments,
) -> anyhow::Result<Vec<Verdict>> {
    println!("== nothing is broken");
    scratch.build()?;
    let mut simulations: Vec<&String> = mutants.iter().flat_map(|mutant| &mutant.simulations).collect();
    simulations.sort();
    simulations.dedup();
    for simulation in simulations {
        if let Some(caught) = scratch.simulate(simulation, arguments.start, arguments.control)? {
            bail!("seed {} of {simulation} fails where nothing is broken: {}", caught.seed, caught.why);
        }
    }
    let mut verdicts = Vec::new();
    for mutant in mutants {
        println!("\n== {}: {}", mutant.name, mutant.what);
        let sound = tree.text(&mutant.path);
        let begin = Instant::now();
        scratch.write(&mutant.path, &mutant.apply(sound)?)?;
        scratch.build().with_context(|| format!("{} cannot be built", mutant.name))?;
        let mut caught = None;
        for simulation in &mutant.simulations {
            caught = scratch.simulate(simulation, arguments.start, arguments.seeds)?;
            if caught.is_some() {
                break;
            }
        }
        scratch.write(&mutant.path, sound)?;
        let (name, what) = (mutant.name.clone(), mutant.what.clone());
        let verdict = Verdict { name, what, caught, seconds: begin.elapsed().as_secs() };
        println!("{}", verdict.row());
        verdicts.push(verdict);
    }
    Ok(verdicts)
}

impl Verdict {
    /// Of the table.
    fn row(&self) -> String {
        let Verdict { name, what, caught, seconds } = self;
        let by = match caught {
            Some(Caught { simulation, seed, why }) => format!("`{simulation}`, seed {seed}: {why}"),
            None => "nothing".to_owned(),
        };
        format!("| `{name}` | {what} | {by} | {seconds} |")
    }
}

fn show(verdicts: &[Verdict]) -> anyhow::Result<()> {
    println!("\n| mutant | breaks | noticed by | seconds |\n|---|---|---|---|");
    let mut survivors = Vec::new();
    for verdict in verdicts {
        println!("{}", verdict.row());
        survivors.extend(verdict.caught.is_none().then_some(verdict.name.as_str()));
    }
    println!("{} passed, {} failed", verdicts.len() - survivors.len(), survivors.len());
    if !survivors.is_empty() {
        bail!("nothing notices {}", survivors.join(", "));
    }
    Ok(())
}

impl Scratch {
    fn copy(&self, files: &[SourceFile]) -> anyhow::Result<()> {
        files.iter().try_for_each(|file| self.write(&file.path, &file.text))
    }

    fn write(&self, path: &str, text: &str) -> anyhow::Result<()> {
        let path = self.tree.join(path);
        let parent = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    }

    fn build(&self) -> anyhow::Result<()> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.current_dir(&self.tree).env("CARGO_TARGET_DIR", &self.target);
        // What a breakage leaves unused is not worth a word.
        command.env("RUSTFLAGS", "-Awarnings");
        command.args(["build", "--quiet", "--release", "-p", "ashlar-sim"]).args(PROFILE);
        shell::run(&mut command)
    }

    /// Which seed notices that something is broken, if one does.
    fn simulate(&self, simulation: &str, start: u64, seeds: u64) -> anyhow::Result<Option<Caught>> {
        let mut command = Command::new(self.target.join("release/ashlar-sim"));
        command.args(["--what", simulation, "--start", &start.to_string(), "--seeds", &seeds.to_string()]);
        command.args(["--failures-max", "1"]);
        println!("$ {}", shell::show(&command));
        let output = command.output().context("start the simulator")?;
        let told = String::from_utf8_lossy(&output.stdout);
        println!("{}", told.trim_end().lines().last().unwrap_or_default());
        if output.status.success() {
            return Ok(None);
        }
        let mut lines = told.lines().skip_while(|line| !line.ends_with(" fails:"));
        let seed = lines.next().and_then(|line| line.split(' ').nth(1));
        let (seed, why) = match seed {
            Some(seed) => (seed.to_owned(), lines.next().unwrap_or_default().trim().to_owned()),
            // It may break the simulator, too.
            None => ("?".to_owned(), format!("the simulator ended with {}", output.status)),
        };
        Ok(Some(Caught { simulation: simulation.to_owned(), seed, why: short(&why) }))
    }
}

/// The begin of what may be long.
fn short(text: &str) -> String {
    const CHARS_MAX: usize = 110;
    let cut: String = text.chars().take(CHARS_MAX).collect();
    let cut = cut.replace('|', "/");
    if text.chars().count() > CHARS_MAX { format!("{cut}...") } else { cut }
}
