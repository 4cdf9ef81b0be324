//! `ashlar bench` on the mounts of a lab: an agent in the network of each client, the coordinator in that of the manager.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use super::children::Children;
use crate::shell;
use crate::suite::cluster::lab::Lab;

/// LIMIT: until the coordinator has written the secret for its agents.
const SECRET_MAX: Duration = Duration::from_secs(30);
/// Where the coordinator waits in the network of the manager.
const PORT: u16 = 5000;

/// What one repetition of one phase has come to.
#[derive(Clone, Debug)]
pub(super) struct Figure {
    /// The phase, as `sequential write` or `create`.
    pub(super) what: String,
    pub(super) operations_per_second: f64,
    pub(super) mib_per_second: f64,
}

impl Figure {
    fn parse(figure: &Value) -> Option<Self> {
        const MIB_BYTES: f64 = 1_048_576.0;
        let per_second = |what: &str| Some(figure[what].as_f64()? / figure["seconds"].as_f64()?);
        Some(Self {
            what: figure["what"].as_str()?.to_owned(),
            operations_per_second: per_second("operations")?,
            mib_per_second: per_second("bytes")? / MIB_BYTES,
        })
    }
}

/// Runs `ashlar bench WORDS DIR` with an agent on every mount of `lab`, in a new directory of that name, which is removed again.
///
/// # Errors
/// When a process does not start or fails, or the measurement was not finished.
pub(super) fn run(
    lab: &Lab,
    scratch: &Path,
    directory: &str,
    words: &[String],
) -> anyhow::Result<Vec<Figure>> {
    let mounts = lab.mounts();
    let first = mounts.first().context("a lab without clients")?;
    // Each agent sees its own mount here.
    let view = scratch.join("view");
    fs::create_dir_all(&view)?;
    let measured = first.join(directory);
    fs::create_dir_all(&measured).with_context(|| format!("create {}", measured.display()))?;
    let secret = scratch.join("secret");
    let place = view.join(directory);
    let mut command = lab.at("manager");
    command.arg(lab.binary()).args(["bench"]).args(words);
    command.args(["--agents", &mounts.len().to_string(), "--json", "--listen"]);
    command.arg(format!("{}:{PORT}", lab.address("manager")?)).arg("--secret-to").arg(&secret).arg(&place);
    println!("$ {}", shell::show(&command));
    let mut processes = Children::default();
    processes.start(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
    let begin = Instant::now();
    while fs::metadata(&secret).map_or(0, |metadata| metadata.len()) == 0 {
        if let Some(status) = processes.0[0].try_wait()? {
            bail!("the coordinator has ended with {status}");
        }
        if begin.elapsed() > SECRET_MAX {
            bail!("the coordinator does not write {}", secret.display());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    for (at, mount) in mounts.iter().enumerate() {
        processes.start(&mut agent(lab, &format!("client{}", at + 1), mount, &view, &place, &secret)?)?;
    }
    let output = processes.0.remove(0).wait_with_output().context("wait for the coordinator")?;
    if !output.status.success() {
        bail!("the coordinator has ended with {}", output.status);
    }
    let outcome: Value = serde_json::from_slice(&output.stdout).context("parse what was measured")?;
    if outcome["complete"] != true {
        bail!("not all was measured: {}", outcome["error"].as_str().unwrap_or_default());
    }
    let figures = outcome["figures"].as_array().context("no figures")?;
    let figures: Option<Vec<Figure>> = figures.iter().map(Figure::parse).collect();
    fs::remove_dir(&measured).with_context(|| format!("remove {}", measured.display()))?;
    figures.context("a figure without its numbers")
}

fn agent(
    lab: &Lab,
    client: &str,
    mount: &Path,
    view: &Path,
    place: &Path,
    secret: &Path,
) -> anyhow::Result<Command> {
    let mut command = lab.at(client);
    command.args(["unshare", "--mount", "sh", "-c", "mount --bind \"$0\" \"$1\" && shift && exec \"$@\""]);
    command.arg(mount).arg(view).arg(lab.binary()).args(["bench", "agent"]);
    command.arg(format!("{}:{PORT}", lab.address("manager")?)).arg(place).arg("--secret-file").arg(secret);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Ok(command)
}
