//! `ashlar bench report`: the options.

use clap::Args;
use std::path::PathBuf;

/// `ashlar bench report`
#[derive(Debug, Args)]
pub struct BenchReportArgs {
    /// The report (JSON) of a run.
    #[arg(value_name = "REPORT.json")]
    pub report: PathBuf,

    /// Where it goes: NAME.html, NAME.md and NAME.json.
    #[arg(long, value_name = "NAME")]
    pub output: PathBuf,

    /// Write over a report that is there.
    #[arg(long)]
    pub replace: bool,

    /// Another title.
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,

    /// Rows of the published tables that stand beside it; `none` for none.
    #[arg(long, value_name = "ROWS", value_delimiter = ',')]
    pub beside: Vec<String>,
}
