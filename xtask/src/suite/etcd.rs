//! The tests that run a real etcd, with a version in which what reliability asks for is mended; `cargo xtask test` runs them with that of the Debian package, which is older.
//!
//! It is built from its Go module, whose source comes through the proxy that Go is configured with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::Args;

use crate::repository::{Repository, cache};
use crate::shell;

/// Programs of tests that start an etcd, by crate.
const TESTS: &[(&str, &[&str])] = &[
    ("ashlar-coord", &["etcd"]),
    (
        "ashlar",
        &[
            "a_lab_is_a_cluster_on_one_machine",
            "a_single_machine_becomes_the_first_of_many",
            "an_etcd_is_set_up_from_an_installed_one",
            "every_call_with_a_wrong_credential_is_refused",
            "several_managers_share_their_state_in_etcd",
            "units_of_servers_start_them_and_are_sound",
            "what_happens_is_in_the_event_log",
        ],
    ),
];

/// Which etcd.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Version of the module `go.etcd.io/etcd/server/v3`.
    #[arg(long, default_value = "3.5.35")]
    version: String,
}

/// Builds that etcd, unless it is in the cache, and runs the tests with it.
///
/// # Errors
/// When there is no Go, it cannot be built, or a test fails.
pub fn run(repository: &Repository, arguments: &Arguments) -> anyhow::Result<()> {
    let etcd = build(&arguments.version)?;
    // A lab takes the one that is installed: the first in the path.
    let folder = etcd.parent().map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(folder.into_iter().chain(std::env::split_paths(&path)))?;
    for (package, tests) in TESTS {
        let mut words = vec!["test", "--package", package];
        words.extend(tests.iter().flat_map(|test| ["--test", test]));
        shell::run(repository.cargo(&words).env("ASHLAR_ETCD", &etcd).env("PATH", &path))?;
    }
    Ok(())
}

fn build(version: &str) -> anyhow::Result<PathBuf> {
    if !shell::is_installed("go") {
        bail!("there is no `go`, with which etcd {version} is built: install Go 1.24 or later");
    }
    let place = cache()?.join("tools").join(format!("etcd-{version}"));
    let program = place.join("etcd");
    if !program.is_file() {
        fs::create_dir_all(&place).with_context(|| format!("create {}", place.display()))?;
        // `go install` refuses a module that replaces others, as this one does for its own build.
        let module = format!("module etcd\n\ngo 1.24\n\nrequire go.etcd.io/etcd/server/v3 v{version}\n");
        fs::write(place.join("go.mod"), module).with_context(|| format!("write in {}", place.display()))?;
        let go = |words: &[&str]| {
            let mut command = Command::new("go");
            command.current_dir(&place).args(words).env("CGO_ENABLED", "0").env("GOFLAGS", "-mod=mod");
            shell::run(&mut command)
        };
        go(&["build", "-o", "etcd.new", "go.etcd.io/etcd/server/v3"])?;
        fs::rename(place.join("etcd.new"), &program)
            .with_context(|| format!("make {}", program.display()))?;
    }
    require_version(&program, version)?;
    Ok(program)
}

fn require_version(program: &Path, version: &str) -> anyhow::Result<()> {
    let told = shell::output(Command::new(program).arg("--version"))?;
    if !told.contains(version) {
        bail!("{} is not etcd {version}: {told}", program.display());
    }
    Ok(())
}
