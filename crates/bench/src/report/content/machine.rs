//! What was measured with: ceilings, hardware, software.

use super::super::document::{Block, Document, Table};
use super::super::number;
use super::Report;
use crate::figure::Spread;
use crate::inventory::Inventory;
use crate::run::Unit;

/// What the machine could do at best.
pub fn ceilings(report: &Report, out: &mut Document) {
    let ceilings = &report.ceilings;
    out.heading(2, "Ceilings");
    let mut table =
        Table::new("What the machine did without the file system", &["What", "#Rate", "Unit", "#± %"]);
    let mut row = |what: String, rate: f64, unit: Unit, spread: Option<Spread>| {
        let deviation = spread.filter(|spread| spread.mean > 0.0);
        let deviation = deviation
            .map_or_else(|| "-".into(), |spread| format!("{:.1}", spread.deviation / spread.mean * 100.0));
        table.rows.push(vec![what, number::rate(rate, unit), number::unit_name(unit).into(), deviation]);
    };
    if let Some(memory) = &ceilings.memory {
        row(
            "Memory, STREAM copy, all NUMA nodes (read and written each counted)".into(),
            memory.copy,
            Unit::Bytes,
            None,
        );
        row("Memory, STREAM triad, all NUMA nodes".into(), memory.triad, Unit::Bytes, None);
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
        out.say("No device was named (--device), so content is told as a part of half of STREAM's copy, which no content can pass: each byte goes through memory once at least.");
    }
}

/// Hardware and software.
pub fn inventory(inventory: &Inventory, out: &mut Document) {
    let (hardware, software, place) = (&inventory.hardware, &inventory.software, &inventory.place);
    out.heading(2, "Hardware and software");
    let mut table = Table::new("The machine", &["What", "Value"]);
    let mut row = |what: &str, value: String| table.rows.push(vec![what.to_owned(), value]);
    row("Processor", hardware.model.clone());
    row(
        "Processors",
        format!(
            "{} in {} cores of {} package{}{}",
            hardware.processors,
            hardware.cores,
            hardware.sockets,
            if hardware.sockets == 1 { "" } else { "s" },
            if hardware.is_virtual { ", of a virtual machine" } else { "" }
        ),
    );
    let nodes: Vec<String> = hardware
        .nodes
        .iter()
        .map(|node| format!("node {}: {} processors", node.number, node.processors))
        .collect();
    row("NUMA", nodes.join("; "));
    row("Memory", number::bytes(hardware.memory_bytes));
    row("Kernel", software.kernel.clone());
    row("Distribution", software.distribution.clone());
    row("File system", format!("{} on {}", place.file_system, place.source));
    row("Mount options", place.options.clone());
    row(
        "Its size",
        format!(
            "{}, {} free at the start",
            number::bytes(place.total_bytes),
            number::bytes(place.free_bytes)
        ),
    );
    for (name, version) in &software.tools {
        row(&format!("Version of {name}"), version.clone());
    }
    out.push(Block::Table(table));
    let mut disks = Table::new("Block devices", &["Name", "Model", "#Size", "Kind", "Scheduler"]);
    for disk in &hardware.disks {
        disks.rows.push(vec![
            disk.name.clone(),
            if disk.model.is_empty() { "not told".into() } else { disk.model.clone() },
            number::bytes(disk.bytes),
            if disk.is_rotational { "turns, or says so".into() } else { "does not turn".into() },
            disk.scheduler.clone(),
        ]);
    }
    out.push(Block::Table(disks));
    let mut interfaces = Table::new("Network interfaces", &["Name", "#Link", "#MTU", "Driver"]);
    for interface in &hardware.interfaces {
        interfaces.rows.push(vec![
            interface.name.clone(),
            interface.megabits.map_or_else(|| "not told".into(), |speed| format!("{speed} Mbit/s")),
            interface.mtu.to_string(),
            if interface.driver.is_empty() { "none".into() } else { interface.driver.clone() },
        ]);
    }
    out.push(Block::Table(interfaces));
    let mut settings = Table::new("Settings of the kernel", &["Name", "Value"]);
    settings.rows = software.settings.iter().map(|(name, value)| vec![name.clone(), value.clone()]).collect();
    out.push(Block::Table(settings));
}
