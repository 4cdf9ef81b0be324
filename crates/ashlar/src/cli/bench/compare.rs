//! `ashlar bench compare`: the options.

use clap::Args;
use std::path::PathBuf;

/// `ashlar bench compare`
#[derive(Debug, Args)]
pub struct BenchCompareArgs {
    /// The earlier report (JSON).
    #[arg(value_name = "BEFORE.json")]
    pub before: PathBuf,

    /// The later one.
    #[arg(value_name = "AFTER.json")]
    pub after: PathBuf,

    /// Compare figures of workloads that were run in different ways, too.
    #[arg(long)]
    pub although_different: bool,

    /// End with status 2 when something is slower, by more than chance and this many per cent.
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub fail_below: Option<f64>,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

fn parse_percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err(format!("`{text}` is no number from 0 to 100")),
    }
}
