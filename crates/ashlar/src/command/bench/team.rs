//! Waiting for agents, and telling people how to start them.

use crate::cli::BenchTeamArgs;
use crate::terminal::shown;
use anyhow::{Context, Result};
use ashlar_bench::agent::{Coordinator, Team};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Waits for as many agents as `args` say, which have to be started with `directory` if there is one.
pub fn gather<'a>(
    args: &BenchTeamArgs,
    count: u32,
    directory: Option<&Path>,
    cancel: &'a AtomicBool,
) -> Result<Team<'a>> {
    let coordinator = Coordinator::listen(&args.listen, env!("CARGO_PKG_VERSION"))?;
    let address = coordinator.address()?;
    let host = if address.ip().is_unspecified() {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        format!("{}:{}", name.trim(), address.port())
    } else {
        address.to_string()
    };
    let text = coordinator.invitation().text();
    let file = args.secret_to.as_deref().map(|path| SecretFile::write(path, &text)).transpose()?;
    let directory = directory.map_or_else(String::new, |directory| format!(" {}", shown(directory)));
    eprintln!("waiting for {count} agents; start one on each machine:");
    eprintln!("    ashlar bench agent {host}{directory}");
    match &file {
        Some(file) => eprintln!("The secret it asks for is in {} (see --secret-file).", shown(&file.path)),
        None => eprintln!("The secret it asks for, good for this run only:\n    {text}"),
    }
    let patience = Duration::from_secs(args.wait);
    Ok(coordinator.gather(count as usize, patience, cancel, &|text| eprintln!("{text}"))?)
}

/// A file with a secret, which goes when that is used up.
struct SecretFile {
    path: PathBuf,
}

impl SecretFile {
    fn write(path: &Path, text: &str) -> Result<SecretFile> {
        // Written whole before it has its name: whoever waits for it finds all of it.
        let mut hidden = path.as_os_str().to_owned();
        hidden.push(".new");
        let hidden = PathBuf::from(hidden);
        let cannot = || format!("cannot write the secret to the new file {}", shown(path));
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&hidden);
        let mut made = made.with_context(cannot)?;
        let written = writeln!(made, "{text}").and_then(|()| std::fs::hard_link(&hidden, path));
        let removed = std::fs::remove_file(&hidden);
        written.and(removed).with_context(cannot)?;
        Ok(SecretFile { path: path.to_owned() })
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        // Used up: what is left of it opens nothing.
        let _ = std::fs::remove_file(&self.path);
    }
}
