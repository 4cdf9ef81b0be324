//! How a connection begins: who calls, on which channel, and what both speak.

use super::frame::{PROTOCOL, PROTOCOL_MIN};
use ashlar_types::{ClusterId, Role};
use serde::{Deserialize, Serialize};

/// The first message of a caller. Its form never changes: versions that have nothing else in common must be able to say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The oldest protocol it speaks.
    pub protocol_min: u16,
    /// The newest one.
    pub protocol_max: u16,
    /// The file system it means.
    pub cluster: ClusterId,
    /// What it acts as; its certificate must allow that.
    pub role: Role,
    /// Which process it is, drawn at random when it started.
    pub instance: [u8; 16],
    /// Which of its channels to this server.
    pub channel: u32,
    /// How often it has connected the channel, this time included.
    pub attempt: u64,
}

/// The answer of a server. Its form never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The protocol to speak.
    pub protocol: u16,
    /// Whether the server remembers the channel: what it carried out on an earlier connection it will not carry out again.
    pub is_remembered: bool,
}

/// Calls of a channel that have ended for their caller: from each first number on, up to and without the second one. One that is late replaces those before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedCalls(pub Vec<(u64, u64)>);

impl EndedCalls {
    // LIMIT: gaps between the calls that a caller may have under way on a channel.
    const MAX: usize = 256;

    /// Whether they are what a caller may say.
    pub fn is_sound(&self) -> bool {
        self.0.len() <= EndedCalls::MAX && self.0.iter().all(|(from, to)| from < to)
    }
}

impl Hello {
    /// The newest protocol that both speak.
    ///
    /// # Errors
    /// A text for the caller's log.
    pub fn agree(&self) -> Result<u16, String> {
        self.agree_with(PROTOCOL_MIN, PROTOCOL)
    }

    /// As [`Hello::agree`], with a server that speaks `oldest` to `newest`.
    fn agree_with(&self, oldest: u16, newest: u16) -> Result<u16, String> {
        let both = self.protocol_max.min(newest);
        if both >= self.protocol_min && both >= oldest {
            return Ok(both);
        }
        Err(format!(
            "this server speaks protocol {}, the caller {}: bring the older of the two up to date",
            range(oldest, newest),
            range(self.protocol_min, self.protocol_max)
        ))
    }
}

fn range(oldest: u16, newest: u16) -> String {
    if oldest == newest { newest.to_string() } else { format!("{oldest} to {newest}") }
}

impl Welcome {
    /// Whether its protocol is one that was offered.
    pub fn is_offered(&self) -> bool {
        (PROTOCOL_MIN..=PROTOCOL).contains(&self.protocol)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn speaking(protocol_min: u16, protocol_max: u16) -> Hello {
        Hello {
            protocol_min,
            protocol_max,
            cluster: ClusterId::default(),
            role: Role::Client,
            instance: [0; 16],
            channel: 0,
            attempt: 1,
        }
    }

    #[test]
    fn two_that_have_a_protocol_in_common_speak_the_newest_of_these() {
        for (caller, server, both) in [
            ((1, 1), (1, 1), 1),
            // One of the two is one release ahead, or two.
            ((1, 2), (1, 1), 1),
            ((1, 1), (1, 2), 1),
            ((2, 3), (1, 2), 2),
            ((1, 2), (2, 3), 2),
            ((1, 9), (1, 9), 9),
        ] {
            let (oldest, newest) = server;
            assert_eq!(
                speaking(caller.0, caller.1).agree_with(oldest, newest),
                Ok(both),
                "{caller:?} {server:?}"
            );
        }
    }

    #[test]
    fn a_newer_or_older_caller_is_told_which_protocol_is_spoken_here() {
        for (caller, server) in [((3, 4), (1, 2)), ((1, 2), (3, 4)), ((2, 1), (1, 2)), ((0, 0), (1, 1))] {
            let refused = speaking(caller.0, caller.1).agree_with(server.0, server.1).unwrap_err();
            assert!(refused.contains("bring the older of the two up to date"), "{refused}");
        }
        let refused = speaking(PROTOCOL + 1, 9).agree().unwrap_err();
        let told =
            format!("speaks protocol {}, the caller {} to 9", range(PROTOCOL_MIN, PROTOCOL), PROTOCOL + 1);
        assert!(refused.contains(&told), "{refused}");
    }
}
