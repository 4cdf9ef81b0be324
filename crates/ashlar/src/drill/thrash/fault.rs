//! Things that fail in a round, and how they are made.

use super::plan::Planned;
use crate::drill::broken::{Broken, Repair};
use crate::drill::emulate::{self, Made};
use crate::drill::failure::Disks;
use anyhow::Result;

/// What happens to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Its processes are killed.
    Kill,
    /// Its process is told to stop, and started again when it has.
    Restart,
    /// Its process stands still.
    Pause,
    /// Its link is down.
    Link,
    /// What it sends to other servers does not arrive.
    OneWay,
    /// Nothing passes between it and managers.
    NoManager,
    /// One of its disks does not answer changes.
    Hang,
    /// All of them do not.
    HangAll,
    /// One of its disks is slow.
    Slow,
    /// Every call of one of its disks fails.
    Fail,
    /// It is killed, and what is not on its disks is lost.
    Power,
}

impl Fault {
    /// Whether its process ends by it.
    pub fn ends_process(self) -> bool {
        matches!(self, Fault::Kill | Fault::Restart | Fault::Fail | Fault::Power)
    }
}

/// Makes it; tells what was done.
pub fn make(broken: &mut Broken<'_>, planned: &Planned) -> Result<String> {
    let (node, lasts) = (planned.node.as_str(), planned.lasts);
    match planned.fault {
        Fault::Kill => {
            let nodes = emulate::processes(broken.lab, node);
            emulate::kill(broken, &nodes)
        }
        Fault::Restart => {
            broken.note(Repair::Start(node.to_owned()));
            broken.lab.stop(node)?;
            Ok(format!("{node} stopped"))
        }
        Fault::Pause => emulate::pause(broken, node),
        Fault::Link => emulate::link_down(broken, node),
        Fault::OneWay => emulate::one_way(broken, node),
        Fault::NoManager => emulate::no_manager(broken, node),
        Fault::Hang => emulate::hang(broken, node, Disks::One, lasts),
        Fault::HangAll => emulate::hang(broken, node, Disks::All, lasts),
        Fault::Slow => Ok(match emulate::slow(broken, node)? {
            Made::Done(what) => what,
            Made::NotHere(why) => format!("nothing ({why})"),
        }),
        Fault::Fail => emulate::fail(broken, node, Disks::One),
        Fault::Power => emulate::lose_power(broken, &[node.to_owned()], node),
    }
}
