//! Programs of others on two mounts of a cluster.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::repository::Repository;
use crate::shell;

/// Ranks of the MPI program.
const RANKS: usize = 4;
/// Length of a record of the checkpoint in bytes: not a multiple of anything that matters to a file system.
const RECORD_BYTES: usize = 47_009;

/// What is built, with tests and all that it needs: a package, its folder, and what the names of its unit tests begin with.
const BUILT: [(&str, &str, &str); 2] =
    [("ashlar-meta", "crates/meta", "ashlar_meta-"), ("ashlar-client", "crates/client", "ashlar_client-")];

/// Objects that a build has at the least, so that it is a large one (300 in November 2026).
const OBJECTS_MIN: usize = 200;

/// Clones the repository onto the first mount, builds crates of it and what they need into the second, runs their unit tests as the first shows them, and compares
/// all objects.
///
/// # Errors
/// When anything fails.
pub fn build(repository: &Repository, mounts: &[PathBuf]) -> anyhow::Result<()> {
    let [first, second] = two(mounts)?;
    let (source, objects) = (first.join("source"), second.join("objects"));
    shell::run(
        Command::new("git").args(["clone", "--quiet", "--no-hardlinks"]).arg(&repository.root).arg(&source),
    )?;
    let mut command = Command::new("cargo");
    command.current_dir(&source).args(["test", "--offline", "--locked", "--quiet", "--no-run"]);
    command.args(BUILT.iter().flat_map(|(package, ..)| ["-p", package])).env("CARGO_TARGET_DIR", &objects);
    // The outer cargo's settings are for this repository.
    command.env_remove("CARGO_MANIFEST_DIR").env_remove("RUSTFLAGS");
    shell::run(&mut command)?;
    let folder = first.join("objects/debug/deps");
    let count = fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))?.count();
    println!("{count} objects were built");
    if count < OBJECTS_MIN {
        bail!("{count} objects are no large build");
    }
    let mut ran = 0;
    for (_, sources, name) in BUILT {
        for test in unit_tests(&folder, name)? {
            shell::run(Command::new(test).arg("--quiet").current_dir(source.join(sources)))?;
            ran += 1;
        }
    }
    shell::run(
        Command::new("git")
            .args(["-c", "safe.directory=*", "-C"])
            .arg(second.join("source"))
            .args(["fsck", "--full", "--strict"]),
    )?;
    for folder in ["source", "objects"] {
        let mut command = Command::new("diff");
        command.args(["-r", "--no-dereference"]).arg(first.join(folder)).arg(second.join(folder));
        shell::run(&mut command)?;
        fs::remove_dir_all(first.join(folder)).with_context(|| format!("remove {folder}"))?;
    }
    println!("{} passed, 0 failed", ran + 3);
    Ok(())
}

/// The programs with unit tests whose names begin with `begin`.
fn unit_tests(folder: &Path, begin: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with(begin) && path.extension().is_none() {
            found.push(path);
        }
    }
    if found.is_empty() {
        bail!("no tests were built in {}", folder.display());
    }
    Ok(found)
}

/// Builds `tests/mpi/checkpoint.c` and has ranks on all mounts write one file of so many records; then each mount must show every byte of it.
///
/// # Errors
/// When OpenMPI is not installed, the program fails, or a byte is wrong.
pub fn checkpoint(
    repository: &Repository,
    work: &Path,
    mounts: &[PathBuf],
    records: usize,
) -> anyhow::Result<()> {
    if !shell::is_installed("mpicc") || !shell::is_installed("mpirun") {
        bail!("OpenMPI is not installed; run `cargo xtask setup`");
    }
    let program = work.join("checkpoint");
    let source = repository.root.join("tests/mpi/checkpoint.c");
    shell::run(
        Command::new("mpicc").args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source),
    )?;
    let files: Vec<PathBuf> = mounts.iter().map(|mount| mount.join("checkpoint")).collect();
    let mut command = Command::new("mpirun");
    // Root and more ranks than processors are what mpirun asks to be told of.
    command.args(["--allow-run-as-root", "--oversubscribe", "-n", &RANKS.to_string()]).arg(&program);
    command.args([records.to_string(), RECORD_BYTES.to_string()]).args(&files);
    shell::run(&mut command)?;
    let wanted: Vec<u8> = (0..records)
        .flat_map(|record| (0..RECORD_BYTES).map(move |at| ((record * 31 + at * 7) % 251) as u8))
        .collect();
    for file in &files {
        let seen = fs::read(file).with_context(|| format!("read {}", file.display()))?;
        if seen != wanted {
            let first = seen.iter().zip(&wanted).position(|(seen, wanted)| seen != wanted);
            bail!(
                "{} has {} bytes instead of {}; the first wrong one is {first:?}",
                file.display(),
                seen.len(),
                wanted.len()
            );
        }
    }
    println!("{} passed, 0 failed", files.len() + 1);
    Ok(())
}

fn two(mounts: &[PathBuf]) -> anyhow::Result<[&PathBuf; 2]> {
    match mounts {
        [first, second, ..] => Ok([first, second]),
        _ => bail!("this takes two mounts"),
    }
}
