//! `ashlar bench report`: the pages of a run, written anew.

use crate::cli::BenchReportArgs;
use crate::terminal::{say, shown};
use anyhow::{Result, bail};
use ashlar_bench::published;
use ashlar_bench::report::{self, Report};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub fn run(args: &BenchReportArgs) -> Result<ExitCode> {
    check_output(&args.output, args.replace)?;
    check_rows(&args.beside)?;
    let mut report = Report::read(&args.report)?;
    if let Some(title) = &args.title {
        report.title.clone_from(title);
    }
    if !args.beside.is_empty() {
        report.beside = Some(args.beside.clone());
    }
    report.write(&args.output)?;
    say(format!("The report: {}", names(&args.output)));
    Ok(ExitCode::SUCCESS)
}

/// The three files of a report.
fn files(output: &Path) -> [PathBuf; 3] {
    ["html", "md", "json"].map(|ending| report::file(output, ending))
}

/// Their names for people.
pub fn names(output: &Path) -> String {
    files(output).map(|path| shown(&path)).join(", ")
}

/// Refuses to write over a report, and into no directory.
pub fn check_output(output: &Path, replaces: bool) -> Result<()> {
    if let Some(path) = files(output).iter().find(|path| path.exists()).filter(|_| !replaces) {
        bail!("{} is there already: name another report with --output, or say --replace", shown(path));
    }
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        bail!("--output {}: there is no directory {}", shown(output), shown(folder));
    }
    Ok(())
}

/// Refuses to write into the directory that is measured, which would not be empty then.
pub fn check_apart(output: &Path, directory: &Path) -> Result<()> {
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // What cannot be found is refused for that later.
    let (Ok(folder), Ok(real)) = (folder.canonicalize(), directory.canonicalize()) else { return Ok(()) };
    if folder.starts_with(&real) {
        bail!(
            "--output {} is in {}, which is measured: name another directory for the report, or say --beside-others",
            shown(output),
            shown(directory)
        );
    }
    Ok(())
}

/// Refuses rows that were never published.
pub fn check_rows(beside: &[String]) -> Result<()> {
    let rows = published::rows();
    let is_none = beside == ["none"];
    if let Some(row) = beside.iter().find(|row| !is_none && !rows.iter().any(|known| known.row == **row)) {
        let mut known: Vec<&str> = rows.iter().map(|row| row.row.as_str()).collect();
        known.dedup();
        bail!("there is no published row {}; there are {}", shown(Path::new(row)), known.join(", "));
    }
    Ok(())
}
