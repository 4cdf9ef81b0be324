//! What coordinator and agents say to each other. There is no time of day in it, only durations.

use crate::chore::{Answer, Chore};
use crate::crew::Share;
use crate::network::{FlowDone, Transfer};
use crate::task::{Done, Task};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Sixteen bytes that nobody can guess.
pub(crate) type Token = [u8; 16];

/// What an agent says first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Introduction {
    /// The host's name.
    pub name: String,
    /// Memory, bytes; 0 if not known.
    pub memory_bytes: u64,
    /// Tells machines apart: agents of one machine have its memory once.
    pub boot_id: String,
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
    /// As in [`Prepare`], and whether each was made: what was only about to be made may be somebody else's unless it is empty.
    pub runs: Vec<(String, bool)>,
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
    /// Be ready to be connected to, for flows with these tokens, of so many streams each.
    Listen(Vec<(Token, u32)>),
    /// Send to others, and take what they send.
    Transfer(Transfer),
    /// All are ready: go.
    Go,
    /// It ended well: remove what is there to be removed, and go.
    End,
    /// It ended otherwise: stop, remove, go.
    Stop(String),
}

/// What an agent says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// It is there.
    Alive,
    /// Done, and there is nothing to tell.
    Well,
    /// Bytes that are free.
    Room(u64),
    /// Ready to go.
    Ready,
    /// What came of a task.
    Done(Box<Done>),
    /// What came of a chore.
    Answer(Answer),
    /// Where it can be connected to.
    Listening(SocketAddr),
    /// What came of flows that ended here.
    Flows(Vec<FlowDone>),
    /// It cannot be done, because.
    Failed(String),
}
