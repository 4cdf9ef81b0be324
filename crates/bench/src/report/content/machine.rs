//! What was measured with: ceilings, hardware, software.

use super::super::document::{Block, Document, Table};
use super::super::number;
use super::Report;
use crate::figure::Spread;
use crate::inventory::{
    AgentMachine, Disk, Hardware, Interface, Inventory, Kind, PlaceFacts, Software, kinds,
};
use crate::run::Unit;

/// What the machine could do at best.
pub fn ceilings(report: &Report, out: &mut Document) {
    let ceilings = &report.ceilings;
    out.heading(2, "Ceilings");
    let caption = if report.agents.is_empty() {
        "What the machine did without the file system"
    } else {
        "What the machines did without the file system"
    };
    let mut table = Table::new(caption, &["What", "#Rate", "Unit", "#± %"]);
    let mut row = |what: String, rate: f64, unit: Unit, spread: Option<Spread>| {
        let deviation = spread.filter(|spread| spread.mean > 0.0);
        let deviation = deviation
            .map_or_else(|| "-".into(), |spread| format!("{:.1}", spread.deviation / spread.mean * 100.0));
        table.rows.push(vec![what, number::rate(rate, unit), number::unit_name(unit).into(), deviation]);
    };
    if let Some(memory) = &ceilings.memory {
        let whose = match ceilings.memory_each.len() {
            0 => String::new(),
            machines => format!(" of {machines} machines at the same time"),
        };
        row(
            format!("Memory{whose}, STREAM copy, all NUMA nodes (read and written each counted)"),
            memory.copy,
            Unit::Bytes,
            None,
        );
        row(format!("Memory{whose}, STREAM triad, all NUMA nodes"), memory.triad, Unit::Bytes, None);
    }
    for (at, memory) in ceilings.memory_each.iter().enumerate() {
        let agent = report.agents.iter().position(|agent| agent.computer == at + 1).unwrap_or(at) + 1;
        row(format!("of it the machine of agent {agent}, STREAM copy"), memory.copy, Unit::Bytes, None);
    }
    for device in &ceilings.device {
        let who = if ceilings.devices == 1 {
            "Device".into()
        } else {
            format!("{} devices together", ceilings.devices)
        };
        let name = format!("{who}, {}", device.what);
        if device.what.starts_with("stream") {
            row(name, device.bytes.mean, Unit::Bytes, Some(device.bytes));
        } else {
            row(name, device.operations.mean, Unit::Operations, Some(device.operations));
        }
    }
    if let Some(network) = &ceilings.network {
        row(format!("Network {}, to the servers", network.name), network.write, Unit::Bytes, None);
        row(format!("Network {}, from the servers", network.name), network.read, Unit::Bytes, None);
    }
    out.push(Block::Table(table));
    if let Some(note) = &ceilings.memory_note {
        out.push(Block::Caution(format!("memory: {note}")));
    }
    if ceilings.device.is_empty() {
        let why = if report.agents.is_empty() {
            "No device was named (--device)"
        } else {
            "Devices of servers are not seen by agents (`ashlar bench device` on the servers measures them)"
        };
        let instead =
            if ceilings.network.is_none() { "half of STREAM's copy" } else { "what the network carries" };
        let reason = if ceilings.network.is_none() {
            ", which no content can pass: each byte goes through memory once at least"
        } else {
            ""
        };
        out.say(format!("{why}, so content is told as a part of {instead}{reason}."));
    }
}

/// Hardware and software, of all agents where there are some: machines that are the same once.
pub fn inventory(report: &Report, out: &mut Document) {
    out.heading(2, "Hardware and software");
    if report.agents.is_empty() {
        let Inventory { hardware, software, place } = &report.inventory;
        let mut rows = facts(hardware, software);
        let at = rows.iter().position(|(what, _)| what.starts_with("Version of")).unwrap_or(rows.len());
        rows.splice(at..at, place_facts(place));
        out.push(Block::Table(pairs("The machine", rows)));
        details(hardware, software, "", out);
        return;
    }
    out.push(Block::Table(pairs(
        "What was measured, as the first agent sees it",
        place_facts(&report.inventory.place),
    )));
    let all = kinds(&report.agents);
    let head = ["Machines", "Agents", "Processors", "Memory", "Kernel", "Distribution"];
    let mut table = Table::new("The machines of the agents", &head);
    for kind in &all {
        let (hardware, software) = (&kind.machine.hardware, &kind.machine.software);
        table.rows.push(vec![
            kind.name(),
            kind.who(),
            format!("{} ({})", hardware.processors, hardware.model),
            number::bytes(hardware.memory_bytes),
            software.kernel.clone(),
            software.distribution.clone(),
        ]);
    }
    out.push(Block::Table(table));
    if all.len() > 1 {
        out.push(Block::Table(differences(&all)));
    }
    for kind in &all {
        let whose = if all.len() == 1 { String::new() } else { format!(" of {}", kind.who()) };
        let (hardware, software) = (&kind.machine.hardware, &kind.machine.software);
        out.push(Block::Table(pairs(&format!("The machine{whose}"), facts(hardware, software))));
        details(hardware, software, &whose, out);
    }
}

fn pairs(caption: &str, rows: Vec<(String, String)>) -> Table {
    let mut table = Table::new(caption, &["What", "Value"]);
    table.rows = rows.into_iter().map(|(what, value)| vec![what, value]).collect();
    table
}

/// Each thing that is not the same on all machines, with what it is on which.
fn differences(all: &[Kind<'_>]) -> Table {
    let mut table = Table::new("What differs between the machines", &["What", "Agents", "Value"]);
    let told: Vec<Vec<(String, String)>> = all.iter().map(|kind| every_fact(kind.machine)).collect();
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in told.iter().flatten() {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    for name in names {
        let value = |facts: &Vec<(String, String)>| {
            facts
                .iter()
                .find(|(known, _)| known == name)
                .map_or_else(|| "not told".into(), |(_, value)| value.clone())
        };
        let values: Vec<String> = told.iter().map(value).collect();
        if values.windows(2).any(|pair| pair[0] != pair[1]) {
            let rows = all.iter().zip(values).map(|(kind, value)| vec![name.to_owned(), kind.who(), value]);
            table.rows.extend(rows);
        }
    }
    table
}

/// All of a machine by name, also what stands in tables of its own.
fn every_fact(machine: &AgentMachine) -> Vec<(String, String)> {
    let (hardware, software) = (&machine.hardware, &machine.software);
    let mut all = facts(hardware, software);
    let disks: Vec<String> = hardware.disks.iter().map(|disk| disk_row(disk).join(", ")).collect();
    let interfaces: Vec<String> =
        hardware.interfaces.iter().map(|one| interface_row(one).join(", ")).collect();
    all.push(("Block devices".into(), disks.join("; ")));
    all.push(("Network interfaces".into(), interfaces.join("; ")));
    all.extend(software.settings.iter().cloned());
    all
}

fn facts(hardware: &Hardware, software: &Software) -> Vec<(String, String)> {
    let nodes: Vec<String> = hardware
        .nodes
        .iter()
        .map(|node| format!("node {}: {} processors", node.number, node.processors))
        .collect();
    let processors = format!(
        "{} in {} cores of {} package{}{}",
        hardware.processors,
        hardware.cores,
        hardware.sockets,
        if hardware.sockets == 1 { "" } else { "s" },
        if hardware.is_virtual { ", of a virtual machine" } else { "" }
    );
    let mut rows: Vec<(String, String)> = [
        ("Processor", hardware.model.clone()),
        ("Processors", processors),
        ("NUMA", nodes.join("; ")),
        ("Memory", number::bytes(hardware.memory_bytes)),
        ("Kernel", software.kernel.clone()),
        ("Distribution", software.distribution.clone()),
    ]
    .map(|(what, value)| (what.to_owned(), value))
    .into();
    rows.extend(software.tools.iter().map(|(name, version)| (format!("Version of {name}"), version.clone())));
    rows
}

fn place_facts(place: &PlaceFacts) -> Vec<(String, String)> {
    let (size, free) = (number::bytes(place.total_bytes), number::bytes(place.free_bytes));
    [
        ("File system", format!("{} on {}", place.file_system, place.source)),
        ("Mount options", place.options.clone()),
        ("Its size", format!("{size}, {free} free at the start")),
    ]
    .map(|(what, value)| (what.to_owned(), value))
    .into()
}

fn disk_row(disk: &Disk) -> Vec<String> {
    vec![
        disk.name.clone(),
        if disk.model.is_empty() { "not told".into() } else { disk.model.clone() },
        number::bytes(disk.bytes),
        if disk.is_rotational { "turns, or says so".into() } else { "does not turn".into() },
        disk.scheduler.clone(),
    ]
}

fn interface_row(interface: &Interface) -> Vec<String> {
    vec![
        interface.name.clone(),
        interface.megabits.map_or_else(|| "not told".into(), |speed| format!("{speed} Mbit/s")),
        interface.mtu.to_string(),
        if interface.driver.is_empty() { "none".into() } else { interface.driver.clone() },
    ]
}

/// Disks, interfaces and settings of the machines that `whose` tells.
fn details(hardware: &Hardware, software: &Software, whose: &str, out: &mut Document) {
    let head = ["Name", "Model", "#Size", "Kind", "Scheduler"];
    let mut disks = Table::new(&format!("Block devices{whose}"), &head);
    disks.rows = hardware.disks.iter().map(disk_row).collect();
    out.push(Block::Table(disks));
    let head = ["Name", "#Link", "#MTU", "Driver"];
    let mut interfaces = Table::new(&format!("Network interfaces{whose}"), &head);
    interfaces.rows = hardware.interfaces.iter().map(interface_row).collect();
    out.push(Block::Table(interfaces));
    let mut settings = Table::new(&format!("Settings of the kernel{whose}"), &["Name", "Value"]);
    settings.rows = software.settings.iter().map(|(name, value)| vec![name.clone(), value.clone()]).collect();
    out.push(Block::Table(settings));
}
