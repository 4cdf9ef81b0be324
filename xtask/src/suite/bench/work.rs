//! Unpacking a source tree and building a C project, beside the local file system.
//!
//! The tree is that of all packages this repository is built from. The project is jemalloc: configure, with its hundreds of small programs,
//! and make. Its sources come with a package for cargo, so that no other way of downloading is needed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::figures::{Figures, median, show};
use super::place::{ASHLAR, LOCAL, Place, Places, take_turns};
use super::report::{Report, Target, Wanted};
use super::{Bench, Shared};
use crate::repository::Repository;
use crate::shell;

const JEMALLOC: &str = "tikv-jemalloc-sys";
const JEMALLOC_VERSION: &str = "0.6.0";

/// Options of `bench work`.
#[derive(clap::Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub(super) shared: Shared,
    /// A tar file to unpack instead of the sources this repository is built from.
    #[arg(long)]
    tree: Option<PathBuf>,
    /// Leave out the build.
    #[arg(long)]
    no_build: bool,
}

/// A step: name, the shell command for it with `$1` for the tar files and the working directory in the place, and which target it is for.
const STEPS: &[(&str, &str)] = &[
    (UNPACK, "mkdir tree && tar -xf \"$1/tree.tar\" -C tree"),
    (READ, "tar -cf - tree | wc -c"),
    (REMOVE, "rm -r tree"),
    (CONFIGURE, "mkdir build && tar -xf \"$1/project.tar\" -C build && cd build && ./configure --quiet"),
    (MAKE, "make -C build --silent -j\"$(nproc)\" build_lib_static"),
    (CLEAN, "rm -r build"),
];
const UNPACK: &str = "unpack the tree";
const READ: &str = "read the tree";
const REMOVE: &str = "remove the tree";
const CONFIGURE: &str = "unpack and configure jemalloc";
const MAKE: &str = "make jemalloc";
const CLEAN: &str = "remove what was built";
const BUILD: [&str; 3] = [CONFIGURE, MAKE, CLEAN];

impl Arguments {
    pub(super) fn standard(shared: Shared) -> Self {
        Self { shared, tree: None, no_build: false }
    }

    pub(super) fn run(
        &self,
        repository: &Repository,
        bench: &Bench,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let sources = bench.directory.join("sources");
        fs::create_dir(&sources).with_context(|| format!("create {}", sources.display()))?;
        let tree = sources.join("tree.tar");
        match &self.tree {
            Some(given) => {
                fs::copy(given, &tree).with_context(|| format!("copy {}", given.display()))?;
            }
            None => pack_dependencies(repository, &tree)?,
        }
        if !self.no_build {
            pack_jemalloc(&sources)?;
        }
        let listing = shell::output(Command::new("tar").arg("-tf").arg(&tree))?;
        let mib = fs::metadata(&tree)?.len() >> 20;
        report.begin("Real work", &bench.directory)?;
        report.say(&format!(
            "The tree has {} files and directories, {mib} MiB as a tar file.\n",
            listing.lines().count()
        ));
        let places = Places::mount(bench, false)?;
        let mut seconds: Vec<(&str, Figures)> = Vec::new();
        // One case: the steps of a place follow each other.
        take_turns(bench.shared.rounds, &[()], places.all(), |(), place| {
            for (name, script) in STEPS.iter().filter(|(name, _)| !self.no_build || !BUILD.contains(name)) {
                let taken = run_step(script, place, &sources).with_context(|| (*name).to_owned())?;
                let at = seconds.iter().position(|(step, _)| step == name).unwrap_or_else(|| {
                    seconds.push((name, Figures::default()));
                    seconds.len() - 1
                });
                seconds[at].1.push(&place.name, taken);
            }
            Ok(())
        })?;
        places.end()?;
        show_steps(report, &seconds);
        let figures: Vec<Value> = seconds
            .iter()
            .map(|(name, figures)| json!({ "step": name, "seconds": figures.json() }))
            .collect();
        report.keep("work", json!(figures))
    }
}

/// Runs a step in a place and returns how many seconds it took. What earlier steps left to be written is written first, so that each pays
/// for itself.
fn run_step(script: &str, place: &Place, sources: &Path) -> anyhow::Result<f64> {
    shell::output(&mut Command::new("sync"))?;
    let mut command = Command::new("sh");
    command.args(["-e", "-c", script, "sh"]).arg(sources).current_dir(&place.directory);
    // Some of it writes what it does to stdout, whatever it is asked.
    command.stdin(Stdio::null()).stdout(Stdio::null());
    // The outer cargo's settings are for this repository.
    command.env_remove("CFLAGS").env_remove("MAKEFLAGS");
    let begin = Instant::now();
    let status = command.status().context("start sh")?;
    let taken = begin.elapsed().as_secs_f64();
    if !status.success() {
        bail!("`{script}` ended with {status}");
    }
    Ok(taken)
}

fn show_steps(report: &mut Report, seconds: &[(&str, Figures)]) {
    let head = ["step", "local, s", "Ashlar, s", "Ashlar over local"].map(str::to_owned);
    let row = |(name, figures): &(&str, Figures)| {
        let ratio = show(&figures.ratios(ASHLAR, LOCAL), 2);
        vec![(*name).to_owned(), show(figures.of(LOCAL), 2), show(figures.of(ASHLAR), 2), ratio]
    };
    report.table(&head, &seconds.iter().map(row).collect::<Vec<_>>());
    let of = |wanted: &[&str], name: &str| -> Vec<f64> {
        let steps: Vec<&[f64]> = seconds
            .iter()
            .filter(|(step, _)| wanted.contains(step))
            .map(|(_, figures)| figures.of(name))
            .collect();
        let rounds = steps.iter().map(|step| step.len()).min().unwrap_or(0);
        (0..rounds).map(|round| steps.iter().map(|step| step[round]).sum()).collect()
    };
    let over = |steps: &[&str]| median(&super::figures::ratios(&of(steps, ASHLAR), &of(steps, LOCAL)));
    let target = |what: &str, steps: &[&str], at_most: f64| Target {
        what: format!("{what}, Ashlar over local"),
        measured: over(steps),
        wanted: Wanted::AtMost(at_most),
        unit: "",
    };
    let mut targets = vec![target("unpack the tree", &[UNPACK], 1.5)];
    if seconds.iter().any(|(step, _)| *step == MAKE) {
        targets.push(target("configure and make", &[CONFIGURE, MAKE], 1.2));
    }
    report.targets(&targets);
}

/// Packs the sources of every package this repository needs on this platform.
fn pack_dependencies(repository: &Repository, to: &Path) -> anyhow::Result<()> {
    let metadata = repository.cargo(&["metadata", "--format-version", "1", "--locked"]);
    let directories = package_directories(metadata, |package| !package["source"].is_null())?;
    // Downloaded packages lie side by side.
    let parents: BTreeSet<_> = directories.iter().filter_map(|directory| directory.parent()).collect();
    let mut tar = Command::new("tar");
    tar.arg("-cf").arg(to);
    for parent in parents {
        tar.arg("-C").arg(parent);
        tar.args(directories.iter().filter(|d| d.parent() == Some(parent)).filter_map(|d| d.file_name()));
    }
    shell::output(&mut tar).map(drop)
}

/// Packs jemalloc so that `./configure` is at the top.
fn pack_jemalloc(sources: &Path) -> anyhow::Result<()> {
    let project = sources.join("fetch");
    fs::create_dir_all(project.join("src"))?;
    fs::write(project.join("src/lib.rs"), "")?;
    fs::write(
        project.join("Cargo.toml"),
        format!(
            "[package]\nname = \"fetch\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n\
             {JEMALLOC} = \"{JEMALLOC_VERSION}\"\n"
        ),
    )?;
    let mut metadata = Command::new("cargo");
    metadata
        .current_dir(&project)
        .args(["metadata", "--format-version", "1"])
        .env_remove("CARGO_MANIFEST_DIR");
    let found = package_directories(metadata, |package| package["name"] == JEMALLOC)?;
    let package = found.into_iter().next().context("cargo did not find jemalloc")?;
    let unpacked = sources.join("project");
    shell::output(Command::new("cp").arg("-a").arg(package.join("jemalloc")).arg(&unpacked))?;
    // The package has the generated script beside the sources, and no version, which is otherwise taken from git.
    fs::copy(package.join("configure/configure"), unpacked.join("configure")).context("copy configure")?;
    fs::write(unpacked.join("VERSION"), "5.3.0-0-g0\n")?;
    shell::output(
        Command::new("tar").arg("-cf").arg(sources.join("project.tar")).arg("-C").arg(&unpacked).arg("."),
    )?;
    Ok(())
}

/// Where the packages are that `cargo metadata` names and `wanted` accepts.
fn package_directories(
    mut metadata: Command,
    wanted: impl Fn(&Value) -> bool,
) -> anyhow::Result<Vec<PathBuf>> {
    let host = shell::output(Command::new("rustc").args(["--print", "host-tuple"]))?;
    let text = shell::output(metadata.args(["--filter-platform", host.trim()]))?;
    let answer: Value = serde_json::from_str(&text).context("parse the answer of cargo metadata")?;
    let packages = answer["packages"].as_array().context("cargo metadata names no packages")?;
    let directory = |package: &Value| {
        let manifest = package["manifest_path"].as_str().context("a package without a manifest")?;
        Ok(Path::new(manifest).parent().context("a manifest is in a directory")?.to_owned())
    };
    packages.iter().filter(|package| wanted(package)).map(directory).collect()
}
