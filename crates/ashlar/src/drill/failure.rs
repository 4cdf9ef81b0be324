//! The failures of a drill: the ten of the list that storage systems of this kind are accepted by, and some that the list does not have.

use anyhow::{Result, bail};
use serde_json::{Value, json};
use std::time::Duration;

/// Longer than any lease: that of a session ends after 20 s.
const ALL_LEASES: Duration = Duration::from_secs(22);
/// For how long it lasts what nobody can work in.
const MOMENT: Duration = Duration::from_secs(4);

/// Servers of a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    Storage,
    Meta,
    Manager,
}

/// Disks of a storage server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disks {
    One,
    All,
}

/// How a failure is made in a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// Every call of a disk fails.
    Fail(Disks),
    /// A disk does not answer.
    Hang(Disks),
    /// A disk is slow.
    Slow,
    /// A disk is full.
    Fill,
    Kill(Server),
    /// A machine with one server of each kind loses power.
    PowerCut,
    Pause(Server),
    /// The link of a storage server is down.
    LinkDown,
    /// All links of servers are.
    SwitchDown,
    /// Nothing passes between a storage server and managers.
    NoManager,
    /// What a storage server sends to other servers does not arrive.
    OneWay,
    /// It cannot be made, and why.
    None(&'static str),
}

/// For how long it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    AsAsked,
    AllLeases,
    Moment,
}

/// One of them.
#[derive(Debug)]
pub struct Failure {
    pub name: &'static str,
    /// In the list of ten.
    pub number: Option<u8>,
    pub title: &'static str,
    pub means: Means,
    pub in_lab: &'static str,
    /// What of the real failure that is not.
    pub not_in_lab: Option<&'static str>,
    pub operator: &'static str,
    pub operator_after: &'static str,
    hold: Hold,
}

impl Failure {
    /// For how long it lasts.
    pub fn lasts(&self, asked: Duration) -> Duration {
        match self.hold {
            Hold::AsAsked => asked,
            Hold::AllLeases => asked.max(ALL_LEASES),
            Hold::Moment => asked.min(MOMENT),
        }
    }

    /// Whether nobody can work while it lasts, whatever a file system does.
    pub fn stops_everything(&self) -> bool {
        self.means == Means::SwitchDown
    }

    /// See the description of `ashlar drill list --json`.
    pub fn object(&self) -> Value {
        json!({
            "name": self.name,
            "number": self.number,
            "title": self.title,
            "in_lab": self.in_lab,
            "not_in_lab": self.not_in_lab,
            "operator": self.operator,
            "operator_after": self.operator_after,
        })
    }
}

/// Those that are meant, in the order of the list; all if none is named.
pub fn chosen(names: &[String]) -> Result<Vec<&'static Failure>> {
    if let Some(unknown) = names.iter().find(|name| !ALL.iter().any(|failure| failure.name == **name)) {
        let known: Vec<&str> = ALL.iter().map(|failure| failure.name).collect();
        bail!("there is no failure `{}`; there are {}", unknown.escape_debug(), known.join(", "));
    }
    let is_meant = |failure: &&Failure| names.is_empty() || names.iter().any(|name| name == failure.name);
    Ok(ALL.iter().filter(is_meant).collect())
}

/// See the module.
pub const ALL: &[Failure] = &[
    Failure {
        name: "disk",
        number: Some(1),
        title: "a single local disk",
        means: Means::Fail(Disks::One),
        in_lab: "every call of the local file system of one target fails from one moment on; afterwards the disk is as it was then, and its server is started again",
        not_in_lab: Some("the disk that comes back is the same one, not a new empty one"),
        operator: "pull one disk of a storage server, one that has a target and no RAID above it",
        operator_after: "put the disk back in, mount it, and restart ashlar-storage on that server",
        hold: Hold::AsAsked,
    },
    Failure {
        name: "server-storage",
        number: Some(2),
        title: "a single server: storage",
        means: Means::Kill(Server::Storage),
        in_lab: "the process of one storage server is killed, and started again",
        not_in_lab: Some(
            "the machine goes on, so nothing is lost that it has in memory; `power` is the failure where that is lost",
        ),
        operator: "have one storage server crash, without warning: echo c > /proc/sysrq-trigger as root",
        operator_after: "start that server again",
        hold: Hold::AsAsked,
    },
    Failure {
        name: "server-meta",
        number: Some(2),
        title: "a single server: metadata",
        means: Means::Kill(Server::Meta),
        in_lab: "the process of the metadata server that serves most metadata is killed, and started again",
        not_in_lab: Some("the machine goes on, so nothing is lost that it has in memory"),
        operator: "have one metadata server crash, without warning: echo c > /proc/sysrq-trigger as root",
        operator_after: "start that server again",
        hold: Hold::AsAsked,
    },
    Failure {
        name: "server-manager",
        number: Some(2),
        title: "a single server: manager",
        means: Means::Kill(Server::Manager),
        in_lab: "the process of the first manager and the etcd beside it are killed, and started again",
        not_in_lab: None,
        operator: "have the machine of one manager crash, without warning: echo c > /proc/sysrq-trigger as root",
        operator_after: "start that machine again",
        hold: Hold::AsAsked,
    },
    Failure {
        name: "power",
        number: Some(3),
        title: "power supply, power bus",
        means: Means::PowerCut,
        in_lab: "a machine that is storage server, metadata server and, where there are several, manager loses power: all of these are killed at once, and what was not on the disks of the storage server is lost",
        not_in_lab: Some(
            "what the metadata server and the manager had in memory is not lost; that one of two power supplies fails cannot be made",
        ),
        operator: "pull one power cord of a server with two power supplies: nothing at all may be seen. Put it back in, then switch off the bus that one server is at, or pull both its cords",
        operator_after: "switch power on again, and wait until the server has started",
        hold: Hold::AsAsked,
    },
    Failure {
        name: "fence-device",
        number: Some(4),
        title: "fence device",
        means: Means::None(
            "a lab has no shared disks, and so no fence device. A server that is cut off and has its own disks is held off by numbers in every call, which needs no device",
        ),
        in_lab: "nothing",
        not_in_lab: None,
        operator: "where targets are on shared disks (elsewhere leave this one out): pull the network cable of the management controller (BMC, switched PDU) of a server that has a shared target: nothing may be seen. Then have that server crash, without warning, and stay down: echo c > /proc/sysrq-trigger as root. Its shared targets must not move: ashlar disk list shows them at it, and who fences it, and ashlar event list --kind fence-failed tells that this has failed",
        operator_after: "once fence-failed was told (an attempt may take a minute), put the cable back in: the next attempt begins 5 s after one has failed, and when it succeeds the targets are at the other server within seconds. Then start the server that crashed, if its fence has not",
        hold: Hold::AsAsked,
    },
    Failure {
        name: "sas-cable",
        number: Some(5),
        title: "SAS cable or port",
        means: Means::Hang(Disks::One),
        in_lab: "the disk of one target does not answer changes any more, with no error; then it goes on",
        not_in_lab: Some(
            "what is in the memory of the server can still be read; a second path that takes over cannot be made",
        ),
        operator: "pull one SAS cable between a storage server and its enclosure",
        operator_after: "put the cable back in; where there is no second path, restart ashlar-storage on that server",
        hold: Hold::AsAsked,
    },
    Failure {
        name: "sas-card",
        number: Some(6),
        title: "dual SAS cable or card",
        means: Means::Hang(Disks::All),
        in_lab: "no disk of one storage server answers changes any more, with no error; then they go on",
        not_in_lab: Some("what is in the memory of the server can still be read"),
        operator: "pull both SAS cables between a storage server and its enclosure",
        operator_after: "put the cables back in, and restart ashlar-storage on that server",
        hold: Hold::AsAsked,
    },
    Failure {
        name: "link",
        number: Some(7),
        title: "InfiniBand or 10 GbE link",
        means: Means::LinkDown,
        in_lab: "the link of one storage server is down, and up again",
        not_in_lab: None,
        operator: "pull the network cable of one storage server; with two links: first one, then both",
        operator_after: "put the cables back in",
        hold: Hold::AsAsked,
    },
    Failure {
        name: "switch",
        number: Some(8),
        title: "private switch",
        means: Means::SwitchDown,
        in_lab: "the links of all servers are down for a moment, and up again",
        not_in_lab: Some(
            "a second switch that takes over cannot be made: nobody can work until the links are up",
        ),
        operator: "restart one switch of the network that the servers use among themselves",
        operator_after: "wait until the switch has started",
        hold: Hold::Moment,
    },
    Failure {
        name: "heartbeat",
        number: Some(9),
        title: "heartbeat interface",
        means: Means::NoManager,
        in_lab: "nothing passes between one storage server and the managers, in both directions; everything else does",
        not_in_lab: None,
        operator: "pull the cable of the network for management (--management) of one storage server, or have its firewall drop everything to and from the managers",
        operator_after: "put the cable back in, or take the rules of the firewall away",
        hold: Hold::AllLeases,
    },
    Failure {
        name: "raid-controller",
        number: Some(10),
        title: "RAID controller of the array",
        means: Means::Fail(Disks::All),
        in_lab: "every call of the local file systems of all targets of one storage server fails from one moment on; afterwards the disks are as they were then, and the server is started again",
        not_in_lab: None,
        operator: "pull or switch off one RAID controller of an array, or of an array with one controller the array",
        operator_after: "put the controller back in, mount the disks, and restart ashlar-storage on the server",
        hold: Hold::AsAsked,
    },
    Failure {
        name: "partition",
        number: None,
        title: "a network that is cut one way",
        means: Means::OneWay,
        in_lab: "what one storage server sends to other servers does not arrive there; what they send to it does",
        not_in_lab: None,
        operator: "on one storage server, have the firewall drop everything that goes out to other servers of the file system, not to clients",
        operator_after: "take the rules of the firewall away",
        hold: Hold::AsAsked,
    },
    Failure {
        name: "slow-disk",
        number: None,
        title: "a slow disk",
        means: Means::Slow,
        in_lab: "the disk of one target reads and writes 256 KiB/s (cgroup blkio)",
        not_in_lab: None,
        operator: "have one disk of a storage server be slow, as by a check of its RAID, or by fio on the same disk",
        operator_after: "end that",
        hold: Hold::AsAsked,
    },
    Failure {
        name: "full-target",
        number: None,
        title: "a full target",
        means: Means::Fill,
        in_lab: "a file takes all space that is left on the disk of one target",
        not_in_lab: None,
        operator: "fill the local file system of one target with a file: fallocate -l SIZE FILE",
        operator_after: "remove the file",
        hold: Hold::AsAsked,
    },
    Failure {
        name: "pause-storage",
        number: None,
        title: "a pause longer than every lease: storage",
        means: Means::Pause(Server::Storage),
        in_lab: "the process of one storage server stands still (SIGSTOP), and goes on",
        not_in_lab: None,
        operator: "on one storage server: systemctl kill --signal STOP ashlar-storage, for at least 22 s",
        operator_after: "systemctl kill --signal CONT ashlar-storage",
        hold: Hold::AllLeases,
    },
    Failure {
        name: "pause-meta",
        number: None,
        title: "a pause longer than every lease: metadata",
        means: Means::Pause(Server::Meta),
        in_lab: "the process of the metadata server that serves most metadata stands still (SIGSTOP), and goes on",
        not_in_lab: None,
        operator: "on one metadata server: systemctl kill --signal STOP ashlar-meta, for at least 22 s",
        operator_after: "systemctl kill --signal CONT ashlar-meta",
        hold: Hold::AllLeases,
    },
];

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_list_has_all_ten_and_each_has_a_name_of_its_own() {
        let numbers: BTreeSet<u8> = ALL.iter().filter_map(|failure| failure.number).collect();
        assert_eq!(numbers, (1..=10).collect());
        let names: BTreeSet<&str> = ALL.iter().map(|failure| failure.name).collect();
        assert_eq!(names.len(), ALL.len());
    }

    #[test]
    fn failures_are_chosen_by_name_and_come_in_the_order_of_the_list() {
        let names: Vec<&str> = chosen(&["pause-meta".into(), "disk".into()])
            .unwrap()
            .iter()
            .map(|failure| failure.name)
            .collect();
        assert_eq!(names, ["disk", "pause-meta"]);
        assert_eq!(chosen(&[]).unwrap().len(), ALL.len());
        let refused = chosen(&["dsk".into()]).unwrap_err().to_string();
        assert!(refused.contains("`dsk`") && refused.contains("server-meta"), "{refused}");
    }

    #[test]
    fn what_is_about_leases_lasts_longer_than_they_do() {
        let asked = Duration::from_secs(5);
        let of = |name: &str| chosen(&[name.into()]).unwrap()[0].lasts(asked);
        assert_eq!((of("disk"), of("switch")), (asked, MOMENT));
        assert!(of("pause-meta") > Duration::from_secs(20));
    }
}
