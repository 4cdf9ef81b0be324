//! What the rules look at: the text files git knows or would know, and the crates.

use std::fs;
use std::process::Command;

use anyhow::Context;

use crate::repository::Repository;
use crate::shell;

/// A text file.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// Path from the top of the repository.
    pub path: String,
    /// Content.
    pub text: String,
}

impl SourceFile {
    /// Whether it is Rust.
    #[must_use]
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether it holds nothing but tests.
    #[must_use]
    pub fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("_test.rs") || self.path.ends_with("/tests.rs")
    }

    /// The lines before an inline module of tests.
    pub fn production_lines(&self) -> impl Iterator<Item = &str> {
        self.text.lines().take_while(|line| line.trim_end() != "#[cfg(test)]")
    }
}

/// A crate of the workspace.
#[derive(Clone, Debug)]
pub struct CrateInfo {
    /// Package name.
    pub name: String,
    /// Its directory from the top of the repository.
    pub directory: String,
    /// The layer its manifest states.
    pub layer: Option<u64>,
    /// The crates of the workspace it depends on.
    pub uses: Vec<String>,
}

/// Everything.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// Text files.
    pub files: Vec<SourceFile>,
    /// Crates.
    pub crates: Vec<CrateInfo>,
}

impl Tree {
    /// Reads the repository.
    ///
    /// # Errors
    /// When git or cargo fail or a file cannot be read.
    pub fn read(repository: &Repository) -> anyhow::Result<Self> {
        Ok(Self { files: files(repository)?, crates: crates(repository)? })
    }

    /// What the file at `path` has; nothing if there is none.
    pub fn text(&self, path: &str) -> &str {
        self.files.iter().find(|file| file.path == path).map_or("", |file| file.text.as_str())
    }

    /// The Rust files of the crates of layer `layer`.
    pub fn rust_files_of_layer(&self, layer: u64) -> impl Iterator<Item = &SourceFile> {
        let directories: Vec<String> = self
            .crates
            .iter()
            .filter(|info| info.layer == Some(layer))
            .map(|info| format!("{}/", info.directory))
            .collect();
        self.files
            .iter()
            .filter(move |file| file.is_rust() && directories.iter().any(|dir| file.path.starts_with(dir)))
    }
}

fn files(repository: &Repository) -> anyhow::Result<Vec<SourceFile>> {
    let mut list = Command::new("git");
    list.current_dir(&repository.root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let names = shell::output(&mut list)?;
    let mut files = Vec::new();
    for name in names.split('\0').filter(|name| !name.is_empty()) {
        let bytes = match fs::read(repository.root.join(name)) {
            Ok(bytes) => bytes,
            // Deleted but not committed, or a link to elsewhere.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("read {name}")),
        };
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(SourceFile { path: name.to_owned(), text });
        }
    }
    Ok(files)
}

fn crates(repository: &Repository) -> anyhow::Result<Vec<CrateInfo>> {
    let metadata = repository.metadata()?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let root = repository.root.canonicalize()?;
    let mut crates = Vec::new();
    for package in packages {
        let manifest = text(&package["manifest_path"]);
        let directory = std::path::Path::new(&manifest).parent().context("a manifest is in a directory")?;
        let directory = directory.strip_prefix(&root).unwrap_or(directory);
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        crates.push(CrateInfo {
            name: text(&package["name"]),
            directory: directory.to_string_lossy().into_owned(),
            layer: package["metadata"]["ashlar"]["layer"].as_u64(),
            uses: dependencies.filter(|d| d["path"].is_string()).map(|d| text(&d["name"])).collect(),
        });
    }
    Ok(crates)
}
