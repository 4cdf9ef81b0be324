//! Where the repository, its built programs and its cache are, and a working directory for one run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde_json::Value;

use crate::shell;

/// The checkout this program belongs to.
#[derive(Clone, Debug)]
pub struct Repository {
    /// Its top directory.
    pub root: PathBuf,
    /// Test programs are built with the binaries: where they are there already, nothing is built twice with other features.
    pub builds_tests: bool,
}

impl Repository {
    /// Finds the repository from the environment `cargo` sets, else from the working directory.
    ///
    /// # Errors
    /// When neither leads to one.
    pub fn find() -> anyhow::Result<Self> {
        let start = match std::env::var_os("CARGO_MANIFEST_DIR") {
            Some(directory) => PathBuf::from(directory),
            None => std::env::current_dir().context("find the working directory")?,
        };
        let root = start
            .ancestors()
            .find(|directory| directory.join("xtask/Cargo.toml").is_file())
            .context("run this inside the repository")?;
        Ok(Self { root: root.to_owned(), builds_tests: false })
    }

    /// `cargo` with the given arguments, in the repository.
    #[must_use]
    pub fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(&self.root).args(arguments);
        // Cargo has told this program about itself. Build scripts that look at that would run anew, and what depends on them be built
        // anew, whenever cargo is called by hand after this one, or by this one after that.
        for (name, _) in std::env::vars_os() {
            let shown = name.to_string_lossy();
            if shown.starts_with("CARGO_PKG_") || shown.starts_with("CARGO_MANIFEST_") {
                command.env_remove(&name);
            }
        }
        command
    }

    /// The answer of `cargo metadata`, without dependencies from elsewhere.
    ///
    /// # Errors
    /// When cargo fails.
    pub fn metadata(&self) -> anyhow::Result<Value> {
        let text = shell::output(&mut self.cargo(&["metadata", "--format-version", "1", "--no-deps"]))?;
        serde_json::from_str(&text).context("parse the answer of cargo metadata")
    }

    /// Builds the binaries the suites run and returns the directory they are in.
    ///
    /// # Errors
    /// When the build fails.
    pub fn build(&self, release: bool) -> anyhow::Result<PathBuf> {
        let profile = if release { "release" } else { "dev" };
        let packages = ["build", "--quiet", "--profile", profile, "-p", "ashlar", "-p", "ashlar-torture"];
        shell::run(&mut match self.builds_tests && !release {
            // As the gate of the tests does, so that there is nothing to be done: not even this program is built anew, which runs.
            true => self.cargo(&["test", "--workspace", "--no-run", "--quiet"]),
            false => self.cargo(&packages),
        })?;
        let metadata = self.metadata()?;
        let target =
            metadata["target_directory"].as_str().context("cargo metadata names no target directory")?;
        Ok(Path::new(target).join(if release { "release" } else { "debug" }))
    }
}

/// The directory for tools that are built once: `$XDG_CACHE_HOME/ashlar`.
///
/// # Errors
/// When there is neither a cache nor a home directory.
pub fn cache() -> anyhow::Result<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(base.join("ashlar"))
}

/// A directory for one run, below the system's directory for temporary files because other users must be able to reach the
/// mount points in it. Removed at the end, kept after a failure.
#[derive(Debug)]
pub struct Work {
    path: PathBuf,
    keep: bool,
}

impl Work {
    /// Makes one for `task`.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn create(task: &str) -> anyhow::Result<Self> {
        Self::create_in(&std::env::temp_dir(), task)
    }

    /// Makes one for `task` below a given directory.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn create_in(parent: &Path, task: &str) -> anyhow::Result<Self> {
        let path = parent.join(format!("ashlar-{task}-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(Self { path, keep: true })
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends the run: the directory goes away if all was well.
    ///
    /// # Errors
    /// The run's own.
    pub fn finish<T>(mut self, result: anyhow::Result<T>) -> anyhow::Result<T> {
        self.keep = result.is_err();
        result
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if self.keep {
            eprintln!("kept for inspection: {}", self.path.display());
        } else if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("cannot remove {}: {error}", self.path.display());
        }
    }
}
