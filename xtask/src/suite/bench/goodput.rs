//! What plain TCP carries over the links of a lab: iperf3 between its clients and its storage servers.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;

use super::children::Children;
use crate::shell;
use crate::suite::cluster::lab::Lab;

/// The port of the first client's flow; each has one of its own.
const FIRST_PORT: usize = 5201;
const SECONDS: u64 = 5;
/// Until senders are up to speed.
const OMITTED_SECONDS: u64 = 1;

/// The direction of the flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// To the storage servers, as when files are written.
    Write,
    /// From them.
    Read,
}

/// MiB/s of payload that arrive when all clients send or receive at the same time. The first client's flow is with the first server, and so on round
/// the servers, so that links of servers are full when there are as many clients.
///
/// # Errors
/// When iperf3 is not installed or fails.
pub(super) fn measure(lab: &Lab, servers: usize, direction: Direction) -> anyhow::Result<f64> {
    if !shell::is_installed("iperf3") {
        bail!("iperf3 is not installed; `cargo xtask setup` installs what suites need (as root)");
    }
    let (mut listeners, mut flows) = (Children::default(), Children::default());
    let clients = lab.mounts().len();
    for client in 0..clients {
        let mut command = lab.at(&format!("storage{}", client % servers + 1));
        command.args(["iperf3", "--server", "--one-off", "--port", &(FIRST_PORT + client).to_string()]);
        listeners.start(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
    }
    // They do not say when they listen in a way that is worth parsing.
    std::thread::sleep(Duration::from_millis(500));
    for client in 0..clients {
        let server = lab.address(&format!("storage{}", client % servers + 1))?;
        let mut command = lab.at(&format!("client{}", client + 1));
        command.args(["iperf3", "--json", "--client", &server, "--port", &(FIRST_PORT + client).to_string()]);
        command.args(["--time", &SECONDS.to_string(), "--omit", &OMITTED_SECONDS.to_string()]);
        command.args((direction == Direction::Read).then_some("--reverse"));
        flows.start(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
    }
    let mut bits_per_second = 0.0;
    for child in std::mem::take(&mut flows.0) {
        let output = child.wait_with_output().context("wait for iperf3")?;
        let told: Value = serde_json::from_slice(&output.stdout).context("parse what iperf3 prints")?;
        if let Some(error) = told["error"].as_str() {
            bail!("iperf3: {error}");
        }
        let received = &told["end"]["sum_received"]["bits_per_second"];
        bits_per_second += received.as_f64().context("iperf3 does not say what has arrived")?;
    }
    const BITS_PER_MIB: f64 = 8.0 * 1_048_576.0;
    Ok(bits_per_second / BITS_PER_MIB)
}
