//! What `cargo xtask test` runs, in the order in which failures are cheapest.

use std::time::Instant;

use anyhow::bail;

use crate::repository::Repository;
use crate::tidy::tree::Tree;
use crate::{setup, shell, suite, test_binaries, tidy};

type Gate = (&'static str, fn(&Repository) -> anyhow::Result<()>);

const GATES: &[Gate] = &[
    ("format", |r| shell::run(&mut r.cargo(&["fmt", "--all", "--check"]))),
    ("tidy", tidy),
    ("clippy", |r| {
        shell::run(&mut r.cargo(&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ]))
    }),
    // The binaries as they are shipped, without what tests want of the crates below them.
    ("features", |r| shell::run(&mut r.cargo(&["check", "--quiet", "-p", "ashlar", "-p", "ashlar-torture"]))),
    ("set-up", |_| setup::run()),
    ("unit and integration tests", test_binaries::run),
    ("documentation", documentation),
    ("licences and sources of dependencies", dependencies),
    // They run what the tests were built with.
    ("black-box suites on a mount", |r| suite::short(&Repository { builds_tests: true, ..r.clone() })),
];

/// What to run of it.
#[derive(clap::Args, Debug, Default)]
pub struct Arguments {
    /// Only gates whose name has this in it.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

/// Runs all gates; the first failure ends the run.
///
/// # Errors
/// That failure.
pub fn test(repository: &Repository, arguments: &Arguments) -> anyhow::Result<()> {
    let mut times = Vec::new();
    let is_wanted = |name: &str| arguments.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    for (name, gate) in GATES.iter().filter(|(name, _)| is_wanted(name)) {
        println!("\n== {name}");
        let start = Instant::now();
        gate(repository)?;
        times.push((name, start.elapsed().as_secs()));
    }
    if times.is_empty() {
        bail!("no gate has that in its name");
    }
    println!("\nall of these gates passed:");
    for (name, seconds) in times {
        println!("  {name}: {seconds} s");
    }
    Ok(())
}

/// Checks the rules of [`crate::tidy`].
///
/// # Errors
/// When one is broken; the findings are printed.
pub fn tidy(repository: &Repository) -> anyhow::Result<()> {
    let tree = Tree::read(repository)?;
    let (mut passed, mut failed) = (0, 0);
    for (name, rule) in tidy::RULES {
        let findings = rule(&tree);
        for finding in &findings {
            println!("{name}: {}: {}", finding.place, finding.what);
        }
        if findings.is_empty() {
            passed += 1;
        }
        failed += findings.len();
    }
    println!("{passed} passed, {failed} failed");
    if failed > 0 {
        bail!("the repository is not tidy");
    }
    Ok(())
}

fn documentation(repository: &Repository) -> anyhow::Result<()> {
    let mut command = repository.cargo(&["doc", "--workspace", "--no-deps", "--quiet"]);
    shell::run(command.env("RUSTDOCFLAGS", "-D warnings"))
}

/// Licences, duplicates and origins only: the check for known vulnerabilities needs the network and is run by people.
fn dependencies(repository: &Repository) -> anyhow::Result<()> {
    let deny = setup::cargo_deny()?;
    // The dependencies of other platforms, which no build here has fetched, are looked at too.
    shell::run(&mut repository.cargo(&["fetch", "--locked", "--quiet"]))?;
    let mut command = std::process::Command::new(deny);
    command.current_dir(&repository.root).args([
        "--offline",
        "check",
        "--hide-inclusion-graph",
        "licenses",
        "bans",
        "sources",
    ]);
    shell::run(&mut command)
}
