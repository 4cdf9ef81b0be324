//! Installing what the suites need: Debian packages through apt, two Rust programs through cargo into the cache.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail};

use crate::repository::cache;
use crate::shell;

/// Package, and a program by which its presence is seen.
const PACKAGES: &[(&str, &str)] = &[
    ("e2fsprogs", "mkfs.ext4"),
    ("xfsprogs", "mkfs.xfs"),
    ("fuse3", "fusermount3"),
    ("fio", "fio"),
    ("iperf3", "iperf3"),
    ("stress-ng", "stress-ng"),
    ("rsync", "rsync"),
    ("sqlite3", "sqlite3"),
    ("postgresql", "pg_lsclusters"),
    ("etcd-server", "etcd"),
    ("faketime", "faketime"),
    ("systemd", "systemd-analyze"),
    ("attr", "getfattr"),
    ("acl", "setfacl"),
    ("git", "git"),
    ("iproute2", "ip"),
    ("openmpi-bin", "mpirun"),
    ("libopenmpi-dev", "mpicc"),
    ("make", "make"),
    ("gcc", "gcc"),
];

const PJDFSTEST_VERSION: &str = "0.2.2";
const CARGO_DENY_VERSION: &str = "0.20.2";

/// Installs the packages that are missing.
///
/// # Errors
/// When not run as root, or apt fails.
pub fn run() -> anyhow::Result<()> {
    let missing: Vec<&str> =
        PACKAGES.iter().filter(|(_, program)| !shell::is_installed(program)).map(|(name, _)| *name).collect();
    if !missing.is_empty() {
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            bail!("these packages are missing and only root can install them: {}", missing.join(" "));
        }
        shell::run(Command::new("apt-get").args(["update", "-qq"]))?;
        // PostgreSQL must not start a server of its own.
        shell::run(
            Command::new("apt-get")
                .args(["install", "-y", "-qq", "--no-install-recommends"])
                .args(&missing)
                .env("DEBIAN_FRONTEND", "noninteractive"),
        )?;
    }
    pjdfstest()?;
    cargo_deny()?;
    Ok(())
}

/// The path of `pjdfstest`, built when it is not in the cache yet.
///
/// # Errors
/// When it cannot be built.
pub fn pjdfstest() -> anyhow::Result<PathBuf> {
    cargo_tool("pjdfstest", PJDFSTEST_VERSION)
}

/// The path of `cargo-deny`, built when it is not in the cache yet.
///
/// # Errors
/// When it cannot be built.
pub fn cargo_deny() -> anyhow::Result<PathBuf> {
    cargo_tool("cargo-deny", CARGO_DENY_VERSION)
}

fn cargo_tool(name: &str, version: &str) -> anyhow::Result<PathBuf> {
    let root = cache()?.join("tools").join(format!("{name}-{version}"));
    let program = root.join("bin").join(name);
    if !program.is_file() {
        let mut install = Command::new("cargo");
        install.args(["install", name, "--version", version, "--locked", "--quiet", "--root"]).arg(&root);
        // They run for seconds: what makes them faster would take minutes to build.
        install.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0");
        install.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
        shell::run(&mut install).with_context(|| format!("build {name} {version}"))?;
    }
    Ok(program)
}
