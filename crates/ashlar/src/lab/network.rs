//! The network of a lab: a bridge, and a link to each node.

use super::name_space::{ip, path_of, tc};
use super::record::Record;
use anyhow::Result;

/// Makes all name spaces and links of `record`.
pub fn make(record: &Record) -> Result<()> {
    let hub = record.hub();
    for name in record.name_spaces() {
        ip(&["netns", "add", &name])?;
        ip(&["-n", &name, "link", "set", "lo", "up"])?;
    }
    ip(&["-n", &hub, "link", "add", "bridge", "type", "bridge"])?;
    ip(&["-n", &hub, "link", "set", "bridge", "up"])?;
    for (at, node) in record.nodes.iter().enumerate() {
        let (space, port) = (record.name_space(&node.name), format!("port{at}"));
        ip(&["-n", &hub, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &space])?;
        ip(&["-n", &hub, "link", "set", &port, "master", "bridge", "up"])?;
        let address = format!("{}/24", node.address);
        ip(&["-n", &space, "address", "add", &address, "dev", "eth0"])?;
        ip(&["-n", &space, "link", "set", "eth0", "up"])?;
        if let Some(mbit) = record.link_mbit {
            shape(&hub, &port, mbit)?;
            shape(&space, "eth0", mbit)?;
        }
    }
    Ok(())
}

/// Lets no more than `mbit` Mbit/s out of a device.
fn shape(space: &str, device: &str, mbit: u32) -> Result<()> {
    // What passes in 4 ms, so that the timer of the kernel does not slow it down further, and a packet of 64 KiB at the least.
    let burst_bytes = (u64::from(mbit) * 1_000_000 / 8 / 250).max(128 << 10);
    let (rate, burst) = (format!("{mbit}mbit"), format!("{burst_bytes}b"));
    tc(&[
        "-n", space, "qdisc", "add", "dev", device, "root", "tbf", "rate", &rate, "burst", &burst, "latency",
        "50ms",
    ])
}

/// Removes all name spaces of `record` that are there; the links go with them. Goes on after a failure.
pub fn remove(record: &Record) -> Result<()> {
    let mut outcome = Ok(());
    for name in record.name_spaces() {
        if path_of(&name).exists() {
            outcome = outcome.and(ip(&["netns", "delete", &name]));
        }
    }
    outcome
}
