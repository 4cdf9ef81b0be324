//! `ashlar bench agent`.

use super::workload::cancelled_by_signals;
use crate::cli::BenchAgentArgs;
use anyhow::{Context, Result, bail};
use ashlar_bench::agent::{Agent, Invitation};
use std::io::{BufRead, IsTerminal, Read};
use std::process::ExitCode;

/// Where the secret may be.
const SECRET_VARIABLE: &str = "ASHLAR_BENCH_SECRET";
/// LIMIT: bytes of a line with a secret.
const LINE_BYTES_MAX: u64 = 4096;

pub fn run(args: &BenchAgentArgs) -> Result<ExitCode> {
    let invitation = secret(args)?;
    let cancel = cancelled_by_signals()?;
    let agent = Agent {
        coordinator: &args.coordinator,
        invitation: &invitation,
        directories: &args.directories,
        address: args.address,
        version: env!("CARGO_PKG_VERSION"),
        cancel: &cancel,
        tell: &|text| eprintln!("{text}"),
    };
    agent.serve()?;
    Ok(ExitCode::SUCCESS)
}

fn secret(args: &BenchAgentArgs) -> Result<Invitation> {
    if let Some(path) = &args.secret_file {
        return Ok(Invitation::from_file(path)?);
    }
    if let Some(text) = std::env::var_os(SECRET_VARIABLE) {
        return Ok(Invitation::parse(&text.to_string_lossy())?);
    }
    if std::io::stdin().is_terminal() {
        eprint!("the secret that the coordinator has printed: ");
    }
    let mut line = String::new();
    let read = std::io::stdin().lock().take(LINE_BYTES_MAX).read_line(&mut line);
    if read.context("cannot read the secret from standard input")? == 0 {
        bail!(
            "no secret: give it on standard input, in a file (--secret-file) or in the environment ({SECRET_VARIABLE})"
        );
    }
    Ok(Invitation::parse(&line)?)
}
