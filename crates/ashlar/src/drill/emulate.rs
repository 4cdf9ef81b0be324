//! Failures of a lab, made with what a lab has: processes, links of name spaces, and disks of its own.
//!
//! What cannot be made is told with the reason ([`why_not`]); nothing is made half. Every change is noted in [`Broken`] before it is made.

use super::broken::{Broken, Repair};
use super::disk;
use super::failure::{Disks, Means, Server};
use crate::lab::{Disk, FIRST_MANAGER, Lab, LabRole, ip, limit, manager_beside};
use anyhow::{Context, Result};
use std::net::Ipv4Addr;
use std::time::Duration;

/// An address that nobody has: what is sent to it arrives nowhere.
const NOBODY: &str = "02:00:00:00:00:fe";

/// Why a failure cannot be made in this lab, if it cannot.
pub fn why_not(lab: &Lab, means: Means) -> Option<String> {
    let has_disks = lab.record.made_with.disks > 0;
    match means {
        Means::None(why) => Some(why.to_owned()),
        Means::Fail(_) | Means::Hang(_) | Means::Slow | Means::Fill if !has_disks => {
            Some("not in this lab: its targets have no disks of their own. Make it with `ashlar lab up --disks 2`, or have the drill make it (--make-lab)".into())
        }
        Means::Slow => disk::why_not_slow(),
        Means::Kill(Server::Manager) | Means::NoManager if count(lab, LabRole::Manager) == 0 => {
            Some("not in this lab: it has no manager".into())
        }
        Means::Kill(Server::Manager) if count(lab, LabRole::Manager) == 1 => {
            Some("not in this lab: its only manager would be gone. Make it with `ashlar lab up --etcd`, for which etcd has to be installed".into())
        }
        _ => None,
    }
}

fn count(lab: &Lab, role: LabRole) -> usize {
    lab.record.nodes.iter().filter(|node| node.role == role).count()
}

/// What has become of it.
pub enum Made {
    /// What was done, for the report.
    Done(String),
    /// Why it turned out that it cannot be made here.
    NotHere(String),
}

/// Makes a failure. `serving` is who serves most metadata.
pub fn make(broken: &mut Broken<'_>, means: Means, serving: Option<&str>, lasts: Duration) -> Result<Made> {
    let done = match means {
        Means::Fail(which) => fail(broken, &storage(broken.lab)?, which),
        Means::Hang(which) => hang(broken, &storage(broken.lab)?, which, lasts),
        Means::Fill => fill(broken),
        Means::Kill(server) => {
            let nodes = processes(broken.lab, &node_of(broken.lab, server, serving)?);
            kill(broken, &nodes)
        }
        Means::PowerCut => power_cut(broken, serving),
        Means::Pause(server) => pause(broken, &node_of(broken.lab, server, serving)?),
        Means::LinkDown => link_down(broken, &storage(broken.lab)?),
        Means::SwitchDown => {
            let is_server = |role| !matches!(role, LabRole::Client | LabRole::Console | LabRole::Gateway);
            let nodes = broken.lab.record.nodes.iter().filter(|node| is_server(node.role));
            let names: Vec<String> = nodes.map(|node| node.name.clone()).collect();
            names.iter().try_for_each(|node| link_down(broken, node).map(drop))?;
            Ok(format!("the links of {} were down", names.join(", ")))
        }
        Means::NoManager => no_manager(broken, &storage(broken.lab)?),
        Means::OneWay => one_way(broken, &storage(broken.lab)?),
        Means::Slow => return slow(broken, &storage(broken.lab)?),
        Means::None(why) => return Ok(Made::NotHere(why.to_owned())),
    };
    done.map(Made::Done)
}

/// The node to which it happens.
fn node_of(lab: &Lab, server: Server, serving: Option<&str>) -> Result<String> {
    let role = match server {
        Server::Storage => LabRole::Storage,
        Server::Meta => LabRole::Meta,
        Server::Manager => return Ok(FIRST_MANAGER.to_owned()),
    };
    let mut nodes = lab.record.nodes.iter().filter(|node| node.role == role);
    let serves = |name: &str| server == Server::Meta && serving == Some(name);
    let found = nodes.clone().find(|node| serves(&node.name)).or_else(|| nodes.next());
    let found = found.with_context(|| format!("the lab has no {} server", role.name()))?;
    Ok(found.name.clone())
}

fn storage(lab: &Lab) -> Result<String> {
    node_of(lab, Server::Storage, None)
}

/// The disks of a storage server to which it happens.
fn disks(lab: &Lab, node: &str, which: Disks) -> Result<Vec<Disk>> {
    disk::first(Disk::of(&lab.places, &lab.record, node), which == Disks::All)
}

/// The process of a node stands still.
pub fn pause(broken: &mut Broken<'_>, node: &str) -> Result<String> {
    let process = broken.lab.process(node).cloned().with_context(|| format!("{node} does not run"))?;
    broken.note(Repair::Continue(node.to_owned()));
    process.signal(libc::SIGSTOP);
    Ok(format!("{node} stood still"))
}

fn named(disks: &[Disk]) -> String {
    disks.iter().map(|disk| disk.name.as_str()).collect::<Vec<_>>().join(" and ")
}

/// Every call of a server's disks fails.
pub fn fail(broken: &mut Broken<'_>, node: &str, which: Disks) -> Result<String> {
    let disks = disks(broken.lab, node, which)?;
    broken.note(Repair::Start(node.to_owned()));
    broken.note(Repair::Mount(node.to_owned(), disks.clone()));
    disks.iter().try_for_each(disk::fail)?;
    Ok(format!("every call of {} failed", named(&disks)))
}

/// A server's disks do not answer changes.
pub fn hang(broken: &mut Broken<'_>, node: &str, which: Disks, lasts: Duration) -> Result<String> {
    let disks = disks(broken.lab, node, which)?;
    for disk in &disks {
        broken.note(Repair::Thaw(disk.clone(), disk::watch(disk, lasts)?));
        disk::hang(disk)?;
    }
    Ok(format!("{} did not answer", named(&disks)))
}

/// One of a server's disks is slow.
pub fn slow(broken: &mut Broken<'_>, node: &str) -> Result<Made> {
    let disks = disks(broken.lab, node, Disks::One)?;
    let process = broken.lab.process(node).map(|process| process.pid);
    let groups = disk::slow_groups(process.with_context(|| format!("{node} does not run"))?)?;
    for disk in &disks {
        let device = disk.device()?;
        broken.note(Repair::Fast(groups.clone(), device));
        limit(&groups, device, disk::SLOW_BYTES_PER_S)?;
        if !disk::is_slow(disk)? {
            return Ok(Made::NotHere(format!(
                "not on this machine: {} was as fast as ever, with its limit",
                disk.name
            )));
        }
    }
    Ok(Made::Done(format!("{} was slow, {} KiB/s", named(&disks), disk::SLOW_BYTES_PER_S >> 10)))
}

fn fill(broken: &mut Broken<'_>) -> Result<String> {
    let disks = disks(broken.lab, &storage(broken.lab)?, Disks::One)?;
    let mut taken = 0;
    for disk in &disks {
        broken.note(Repair::Remove(disk::filler(disk)));
        taken += disk::fill(disk)?;
    }
    Ok(format!("{} was full: the last {} MiB were taken", named(&disks), taken >> 20))
}

/// Processes of the machine of a server; the last of them starts first.
pub fn processes(lab: &Lab, node: &str) -> Vec<String> {
    // A manager and the etcd beside it are one machine.
    let is_beside = |name: &str| manager_beside(name) == node;
    let members = lab.record.nodes.iter().filter(|node| node.role == LabRole::Etcd && is_beside(&node.name));
    let members: Vec<String> = members.map(|node| node.name.clone()).collect();
    [vec![node.to_owned()], members].concat()
}

/// These processes are killed.
pub fn kill(broken: &mut Broken<'_>, nodes: &[String]) -> Result<String> {
    for node in nodes {
        broken.note(Repair::Start(node.clone()));
    }
    nodes.iter().try_for_each(|node| broken.lab.kill(node))?;
    Ok(format!("{} killed", nodes.join(" and ")))
}

fn power_cut(broken: &mut Broken<'_>, serving: Option<&str>) -> Result<String> {
    let storage = storage(broken.lab)?;
    let mut nodes = vec![node_of(broken.lab, Server::Meta, serving)?, storage.clone()];
    if count(broken.lab, LabRole::Manager) > 1 {
        nodes.extend(processes(broken.lab, FIRST_MANAGER));
    }
    lose_power(broken, &nodes, &storage)
}

/// These processes are killed at once, and what is not on the disks of the server `storage` is lost.
pub fn lose_power(broken: &mut Broken<'_>, nodes: &[String], storage: &str) -> Result<String> {
    let disks = Disk::of(&broken.lab.places, &broken.lab.record, storage);
    nodes.iter().for_each(|node| broken.note(Repair::Start(node.clone())));
    broken.note(Repair::Mount(storage.to_owned(), disks.clone()));
    // ORDER: the disks first: what a process that is killed has written goes to none of them any more.
    disks.iter().try_for_each(disk::fail)?;
    nodes.iter().try_for_each(|node| broken.lab.kill(node))?;
    let lost = match disks.as_slice() {
        [] => "what was in memory was kept: the targets of this lab have no disks of their own".to_owned(),
        disks => format!("what was not on {} was lost", named(disks)),
    };
    Ok(format!("{} killed at once; {lost}", nodes.join(", ")))
}

/// The link of a node is down.
pub fn link_down(broken: &mut Broken<'_>, node: &str) -> Result<String> {
    let at = broken.lab.record.nodes.iter().position(|known| known.name == node);
    let port = format!("port{}", at.with_context(|| format!("the lab has no node {node}"))?);
    let words = |state: &str| -> Vec<String> {
        let hub = broken.lab.record.hub();
        ["-n", &hub, "link", "set", &port, state].map(str::to_owned).to_vec()
    };
    let down = words("down");
    let up = words("up");
    broken.note(Repair::Ip(up));
    ip(&down)?;
    Ok(format!("the link of {node} was down"))
}

/// What a node sends to an address does not arrive from now on, without an error.
fn cut(broken: &mut Broken<'_>, node: &str, to: Ipv4Addr) -> Result<()> {
    let (space, to) = (broken.lab.record.name_space(node), to.to_string());
    let words = |words: &[&str]| -> Vec<String> {
        ["-n", &space, "neighbour"].iter().chain(words).map(|word| (*word).to_owned()).collect()
    };
    broken.note(Repair::Ip(words(&["delete", &to, "dev", "eth0"])));
    ip(&words(&["replace", &to, "lladdr", NOBODY, "dev", "eth0", "nud", "permanent"]))
}

/// Names and addresses of servers of these roles.
fn servers(lab: &Lab, roles: &[LabRole]) -> Vec<(String, Ipv4Addr)> {
    let nodes = lab.record.nodes.iter().filter(|node| roles.contains(&node.role));
    nodes.map(|node| (node.name.clone(), node.address)).collect()
}

/// Nothing passes between a node and managers.
pub fn no_manager(broken: &mut Broken<'_>, node: &str) -> Result<String> {
    let address = broken.lab.record.node(node)?.address;
    let managers = servers(broken.lab, &[LabRole::Manager]);
    for (manager, at) in &managers {
        cut(broken, node, *at)?;
        cut(broken, manager, address)?;
    }
    Ok(format!("nothing passed between {node} and {}", names(&managers)))
}

/// What a node sends to other servers does not arrive.
pub fn one_way(broken: &mut Broken<'_>, node: &str) -> Result<String> {
    let mut others = servers(broken.lab, &[LabRole::Manager, LabRole::Meta, LabRole::Storage]);
    others.retain(|(name, _)| name != node);
    for (_, at) in &others {
        cut(broken, node, *at)?;
    }
    Ok(format!("what {node} sent to {} did not arrive", names(&others)))
}

fn names(nodes: &[(String, Ipv4Addr)]) -> String {
    nodes.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
}
