//! `ashlar lab status`: the nodes of a lab and what runs on them.

use super::plan::{LabRole, Places};
use super::record::Record;
use crate::terminal::{say, shown};
use anyhow::{Context, Result};
use std::path::Path;

/// Prints it. Touches no mount, which might not answer.
pub fn status(dir: &Path, as_json: bool) -> Result<()> {
    let places = Places::of(dir);
    let record = Record::load(&places)?;
    let mut nodes = Vec::new();
    for node in &record.nodes {
        let process =
            record.processes.iter().find(|(name, _)| *name == node.name).map(|(_, process)| process);
        let pid = process.filter(|process| process.runs()).map(|process| process.pid);
        let mountpoint = places.mountpoint(&node.name);
        let is_mounted = match node.role {
            LabRole::Client => {
                let found =
                    ashlar_fuse::file_system_type_at(&mountpoint).context("cannot read the mount table")?;
                Some(found.is_some_and(|found| found == "fuse.ashlar"))
            }
            _ => None,
        };
        if as_json {
            nodes.push(serde_json::json!({
                "name": node.name,
                "role": node.role.name(),
                "address": node.address,
                "name_space": record.name_space(&node.name),
                "pid": pid,
                "mountpoint": is_mounted.map(|_| &mountpoint),
                "mounted": is_mounted,
                "log": places.log(&node.name),
            }));
            continue;
        }
        let state = pid.map_or("has ended".to_owned(), |pid| format!("process {pid}"));
        let mounted = match (is_mounted, record.console_url()) {
            (Some(true), _) => format!("  mounted at {}", shown(&mountpoint)),
            (Some(false), _) => format!("  not mounted at {}", shown(&mountpoint)),
            (None, Some(url)) if node.role == LabRole::Gateway => format!("  to the console from {url}"),
            _ => String::new(),
        };
        say(format_args!("{:<12} {:<12} {state:<16}{mounted}", node.name, node.address.to_string()));
    }
    if as_json {
        let all = serde_json::json!({
            "id": record.id,
            "link_mbit": record.link_mbit,
            "console": record.console_url(),
            "nodes": nodes,
        });
        say(format_args!("{}", serde_json::to_string_pretty(&all)?));
    }
    Ok(())
}
