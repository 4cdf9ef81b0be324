//! What coordinator and agents say to each other. There is no time of day in it, only durations.

use crate::chore::{Answer, Chore};
use crate::crew::{Outcome, Share};
use crate::network::{FlowDone, Ports, Transfer};
use crate::place::Room;
use crate::sample::Load;
use crate::task::Task;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Sixteen bytes that nobody can guess.
pub(crate) type Token = [u8; 16];

/// LIMIT: agents of one run.
pub(super) const AGENTS_MAX: usize = 1024;

/// What an agent says first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Introduction {
    /// The host's name.
    pub name: String,
    /// Memory, bytes; 0 if not known.
    pub memory_bytes: u64,
    /// Tells machines apart: agents of one machine have its memory once.
    pub boot_id: String,
    /// Tells networks of one machine apart (network name spaces): between agents of one there is no link. 0 if not known.
    pub network: u64,
    /// A number that stays the same when the machine starts again and tells nothing else about it: agents have their numbers in this order, so
    /// that those of a run that is gone on with are the same.
    pub machine: u64,
}

/// The directory of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Prepare {
    /// Below which of the agent's directories.
    pub directory: PathBuf,
    /// Its name is made from this, 16 hexadecimal digits.
    pub run: String,
    /// What is in the mark: an agent that finds it looks at the same directory as the one that made it.
    pub token: Token,
    /// Make it, or find it.
    pub makes: bool,
    /// Whether there may be other files.
    pub beside_others: bool,
}

/// What earlier parts of an interrupted run have left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Clean {
    /// Below which of the agent's directories.
    pub directory: PathBuf,
    /// As in [`Prepare`]. Only directories with the mark of the run in them are removed.
    pub runs: Vec<String>,
}

/// What the coordinator says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// It is there.
    Alive,
    /// All agents are there; this one is so many, of so many.
    Welcome(Share),
    /// Make or find the directory of the run.
    Prepare(Prepare),
    /// How much room is there?
    TellRoom,
    /// Do this.
    Begin {
        /// What.
        task: Task,
        /// Whether to look at what the machine does meanwhile.
        is_watched: bool,
    },
    /// Do this, for yourself.
    Do(Chore),
    /// Remove what an interrupted run has left.
    Clean(Clean),
    /// Be ready to be connected to.
    Listen {
        /// For flows with these tokens, of so many streams each.
        flows: Vec<(Token, u32)>,
        /// On one of these ports; without them on one that the system chooses.
        ports: Option<Ports>,
    },
    /// Send to others, and take what they send.
    Transfer(Transfer),
    /// All are ready: go.
    Go,
    /// It ended well: remove what is there to be removed, and go.
    End,
    /// It ended otherwise: stop, remove, go.
    Stop(String),
}

/// What came of a task on one machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct TaskDone {
    /// What was measured; all zero for a task that is not.
    pub outcome: Outcome,
    /// The part (0 to 1) of its files that is still cached after they were evicted.
    pub cached_part: f64,
    /// Whether its caches were dropped.
    pub has_dropped: bool,
    /// What it did meanwhile; nothing if nobody watched, or not for long enough.
    pub load: Option<Load>,
}

/// What an agent says. LIMIT: memory that one takes is told at `INBOX_MAX`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// It is there.
    Alive,
    /// Done, and there is nothing to tell.
    Well,
    /// What is free.
    Room(Room),
    /// Ready to go.
    Ready,
    /// What came of a task.
    Done(Box<TaskDone>),
    /// What came of a chore.
    Answer(Answer),
    /// Where it can be connected to.
    Listening(SocketAddr),
    /// What came of flows that ended here.
    Flows(#[serde(deserialize_with = "one_of_each_agent")] Vec<FlowDone>),
    /// It cannot be done, because.
    Failed(String),
}

/// A list with one entry of each agent at most, refused while it is read: an entry takes more memory than it has bytes on the way.
fn one_of_each_agent<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<FlowDone>, D::Error> {
    struct Few;
    impl<'de> Visitor<'de> for Few {
        type Value = Vec<FlowDone>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{AGENTS_MAX} flows at most")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<FlowDone>, A::Error> {
            let mut all = Vec::new();
            while let Some(one) = list.next_element()? {
                if all.len() == AGENTS_MAX {
                    return Err(A::Error::invalid_length(all.len() + 1, &self));
                }
                all.push(one);
            }
            Ok(all)
        }
    }
    from.deserialize_seq(Few)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{Disk, Interface, Node};
    use crate::sample::{DeviceLoad, InterfaceLoad};

    #[test]
    fn more_flows_than_there_can_be_agents_are_no_message() {
        let flows = |count| {
            let one = FlowDone { token: [0; 16], bytes: 1, tally: None };
            let sent = postcard::to_stdvec(&Report::Flows(vec![one; count])).unwrap();
            postcard::from_bytes::<Report>(&sent)
        };
        assert!(matches!(flows(AGENTS_MAX), Ok(Report::Flows(told)) if told.len() == AGENTS_MAX));
        assert!(flows(AGENTS_MAX + 1).is_err());
    }

    #[test]
    fn a_short_message_does_not_become_much_memory() {
        /// Bytes in memory for each on the way, at worst.
        fn part<T: Serialize>(emptiest: &T) -> usize {
            size_of::<T>().div_ceil(postcard::to_stdvec(emptiest).unwrap().len())
        }
        let text = String::new;
        let all = [
            part(&InterfaceLoad { name: text(), received: 0.0, sent: 0.0, link_bits: None }),
            part(&DeviceLoad { name: text(), busy: 0.0, read: 0.0, written: 0.0 }),
            part(&Interface { name: text(), megabits: None, mtu: 0, driver: text() }),
            part(&Disk { name: text(), model: text(), bytes: 0, is_rotational: false, scheduler: text() }),
            part(&Node { number: 0, processors: 0 }),
            part(&(text(), text())),
            part(&(0u64, 0u64)),
        ];
        assert!(all.iter().all(|part| *part <= super::super::members::GROWTH_MAX), "{all:?}");
    }
}
