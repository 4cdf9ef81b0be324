//! What people do with a file system: build programs, clone and collect a repository, run databases, copy trees there and back.
//!
//! Every part checks its own result: tests of what was built, `git fsck`, integrity checks of the databases, byte by byte
//! comparison of copies.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use super::Tally;
use crate::repository::{Repository, Work};
use crate::shell;

/// Options of the task.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// Run in this directory instead of mounting Ashlar.
    #[arg(long)]
    on: Option<PathBuf>,
    /// Only parts whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// Seconds of load for each database.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
}

type Part = (&'static str, fn(&Repository, &Arguments, &Path) -> anyhow::Result<()>);

const PARTS: &[Part] = &[
    ("build a C library and run its tests", build_c),
    ("git clone, gc, fsck", git),
    ("SQLite under load", sqlite),
    ("PostgreSQL under load", postgresql),
    ("rsync there and back", rsync),
];

/// Runs the task.
///
/// # Errors
/// When a part fails.
pub fn run(repository: &Repository, arguments: &Arguments) -> anyhow::Result<()> {
    match &arguments.on {
        Some(mount) => {
            let mut tally = Tally::default();
            let wanted = |name: &str| arguments.only.as_ref().is_none_or(|only| name.contains(only));
            for (name, part) in PARTS.iter().filter(|(name, _)| wanted(name)) {
                println!("\n== {name}");
                tally.note(name, part(repository, arguments, mount));
            }
            tally.finish()
        }
        None => {
            let programs = repository.build(true)?;
            let work = Work::create("real-work")?;
            let mut command = Command::new(programs.join("ashlar-torture"));
            command.arg("with-mount").arg("--work").arg(work.path()).arg("--").arg(std::env::current_exe()?);
            command.args(["real-work", "--on", "{MOUNT}", "--seconds", &arguments.seconds.to_string()]);
            if let Some(only) = &arguments.only {
                command.args(["--only", only]);
            }
            let result = shell::run(command.current_dir(&repository.root));
            work.finish(result)
        }
    }
}

fn folder(mount: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let path = mount.join(name);
    fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
    Ok(path)
}

/// A cargo project whose dependency compiles a C library of a hundred files; registry sources are vendored onto the mount, and the
/// target directory is there too. The test compresses and decompresses with what was built.
fn build_c(_: &Repository, _: &Arguments, mount: &Path) -> anyhow::Result<()> {
    let project = folder(mount, "build")?;
    fs::create_dir_all(project.join("src"))?;
    fs::write(
        project.join("Cargo.toml"),
        "[package]\nname = \"roundtrip\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [dependencies]\nzstd = \"0.13\"\n",
    )?;
    fs::write(
        project.join("src/lib.rs"),
        "#[test]\nfn what_was_compressed_comes_back() {\n    let data: Vec<u8> = (0..9_000_000u32).map(|n| (n / 7) as \
         u8).collect();\n    let small = zstd::encode_all(&data[..], 3).unwrap();\n    assert!(small.len() < data.len());\n    \
         assert_eq!(zstd::decode_all(&small[..]).unwrap(), data);\n}\n",
    )?;
    let cargo = |arguments: &[&str]| {
        let mut command = Command::new("cargo");
        command.current_dir(&project).args(arguments).env("CARGO_TARGET_DIR", project.join("target"));
        // The outer cargo's settings are for this repository.
        command.env_remove("CARGO_MANIFEST_DIR").env_remove("RUSTFLAGS");
        shell::run(&mut command)
    };
    fs::create_dir_all(project.join(".cargo"))?;
    let config = {
        let mut vendor = Command::new("cargo");
        vendor.current_dir(&project).args(["vendor", "--quiet"]);
        shell::output(&mut vendor)?
    };
    fs::write(project.join(".cargo/config.toml"), config)?;
    cargo(&["test", "--offline", "--quiet"])?;
    fs::remove_dir_all(&project).with_context(|| format!("remove {}", project.display()))
}

fn git(repository: &Repository, _: &Arguments, mount: &Path) -> anyhow::Result<()> {
    let clone = mount.join("clone");
    let git = |directory: &Path, arguments: &[&str]| {
        shell::run(
            Command::new("git").current_dir(directory).args(["-c", "safe.directory=*"]).args(arguments),
        )
    };
    let source = repository.root.to_string_lossy().into_owned();
    git(mount, &["clone", "--quiet", "--no-hardlinks", &source, "clone"])?;
    git(&clone, &["fsck", "--full", "--strict"])?;
    for number in 0..50 {
        fs::write(clone.join(format!("file-{number}")), vec![number; 100_000])?;
        git(&clone, &["add", "."])?;
        let identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"];
        git(&clone, &[&identity[..], &["commit", "--quiet", "-m", "one more file"]].concat())?;
    }
    git(&clone, &["gc", "--quiet", "--aggressive", "--prune=now"])?;
    git(&clone, &["fsck", "--full", "--strict"])?;
    git(&clone, &["status", "--porcelain"])?;
    fs::remove_dir_all(&clone).with_context(|| format!("remove {}", clone.display()))
}

/// Writers in both journal modes at once with readers, then the integrity check and the sum of what was written.
fn sqlite(_: &Repository, arguments: &Arguments, mount: &Path) -> anyhow::Result<()> {
    let directory = folder(mount, "sqlite")?;
    for mode in ["delete", "wal"] {
        let database = directory.join(format!("{mode}.db"));
        let ask = |sql: &str| {
            shell::output(Command::new("sqlite3").args(["-cmd", ".timeout 60000"]).arg(&database).arg(sql))
        };
        ask(&format!(
            "PRAGMA journal_mode={mode}; CREATE TABLE t(writer INTEGER, n INTEGER, payload BLOB);"
        ))?;
        let end = std::time::Instant::now() + std::time::Duration::from_secs(arguments.seconds / 2);
        let written: anyhow::Result<Vec<u64>> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3)
                .map(|writer| {
                    let ask = &ask;
                    scope.spawn(move || {
                        let mut rows = 0;
                        while std::time::Instant::now() < end {
                            ask(&format!(
                                "BEGIN IMMEDIATE; WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x<200) \
                                 INSERT INTO t SELECT {writer}, x+{rows}, randomblob(300) FROM c; COMMIT;"
                            ))?;
                            rows += 200;
                        }
                        Ok(rows)
                    })
                })
                .collect();
            writers.into_iter().map(|w| w.join().map_err(|_| anyhow::anyhow!("a writer panicked"))?).collect()
        });
        let expected: u64 = written?.iter().sum();
        let check = ask("PRAGMA integrity_check; SELECT count(*) FROM t;")?;
        if check != format!("ok\n{expected}\n") {
            bail!("{mode}: expected ok and {expected} rows, got {check:?}");
        }
        println!("journal mode {mode}: {expected} rows");
    }
    fs::remove_dir_all(&directory).with_context(|| format!("remove {}", directory.display()))
}

/// `initdb` with checksums, pgbench, immediate stop (a crash of the database), recovery, pgbench, clean stop, check of all checksums.
fn postgresql(_: &Repository, arguments: &Arguments, mount: &Path) -> anyhow::Result<()> {
    let programs = postgresql_programs()?;
    let directory = folder(mount, "postgresql")?;
    shell::run(Command::new("chown").arg("postgres").arg(&directory))?;
    // Its socket lives elsewhere: the name of a socket must be short.
    let sockets = Work::create("pg")?;
    shell::run(Command::new("chown").arg("postgres").arg(sockets.path()))?;
    let data = directory.join("data");
    let run = |program: &str, words: &[&str]| {
        let mut command = Command::new("runuser");
        command.args(["-u", "postgres", "--"]).arg(programs.join(program)).args(words);
        shell::run(command.current_dir(sockets.path()))
    };
    let (data_text, socket) =
        (data.to_string_lossy().into_owned(), sockets.path().to_string_lossy().into_owned());
    let options =
        format!("-c listen_addresses='' -c unix_socket_directories='{socket}' -c shared_buffers=32MB");
    let log = sockets.path().join("log").to_string_lossy().into_owned();
    let start = || run("pg_ctl", &["-D", &data_text, "-w", "-t", "120", "-l", &log, "-o", &options, "start"]);
    let stop = |mode: &str| run("pg_ctl", &["-D", &data_text, "-w", "-t", "120", "-m", mode, "stop"]);
    let load = |seconds: u64| {
        run("pgbench", &["-h", &socket, "-n", "-c", "4", "-j", "2", "-T", &seconds.to_string(), "postgres"])
    };
    run("initdb", &["-D", &data_text, "--data-checksums", "-A", "trust"])?;
    start()?;
    let worked = run("pgbench", &["-h", &socket, "-i", "-s", "5", "--quiet", "postgres"])
        .and_then(|()| load(arguments.seconds))
        .and_then(|()| stop("immediate"))
        .and_then(|()| start())
        .and_then(|()| load(arguments.seconds / 2))
        .and_then(|()| stop("fast"));
    if worked.is_err() && data.join("postmaster.pid").exists() {
        // Nothing may go on running in a directory that is about to be unmounted.
        stop("immediate")?;
    }
    worked?;
    run("pg_checksums", &["--check", "-D", &data_text])?;
    fs::remove_dir_all(&directory).with_context(|| format!("remove {}", directory.display()))?;
    sockets.finish(Ok(()))
}

fn postgresql_programs() -> anyhow::Result<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql")
        .context("PostgreSQL is not installed; run `cargo xtask setup`")?;
    let mut paths: Vec<PathBuf> =
        versions.filter_map(Result::ok).map(|entry| entry.path().join("bin")).collect();
    paths.sort();
    paths.pop().context("PostgreSQL has no version installed")
}

/// Copies the toolchain's sources and libraries (small and large files, links, modes) onto the mount and back, and compares.
fn rsync(_: &Repository, _: &Arguments, mount: &Path) -> anyhow::Result<()> {
    let sysroot = shell::output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let source = PathBuf::from(sysroot.trim()).join("lib");
    let there = folder(mount, "rsync")?;
    let back = Work::create("rsync")?;
    let slash = |path: &Path| format!("{}/", path.display());
    let copy = |from: &Path, to: &Path, more: &[&str]| {
        shell::run(
            Command::new("rsync").args(["-aHAX", "--quiet"]).args(more).arg(slash(from)).arg(slash(to)),
        )
    };
    let result = (|| {
        copy(&source, &there, &[])?;
        copy(&there, back.path(), &[])?;
        shell::run(Command::new("diff").args(["-r", "--no-dereference"]).arg(&source).arg(&there))?;
        shell::run(Command::new("diff").args(["-r", "--no-dereference"]).arg(&source).arg(back.path()))?;
        // Nothing but the content and the metadata may differ either: a second pass by checksum must find nothing to do.
        let mut again = Command::new("rsync");
        again
            .args(["-aHAX", "--checksum", "--dry-run", "--itemize-changes"])
            .arg(slash(&source))
            .arg(slash(&there));
        let changes = shell::output(&mut again)?;
        if !changes.is_empty() {
            bail!("rsync would still change:\n{changes}");
        }
        fs::remove_dir_all(&there).with_context(|| format!("remove {}", there.display()))
    })();
    back.finish(result)
}
