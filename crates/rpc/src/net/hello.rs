//! How a connection begins: who calls, on which channel, and what both speak.

use super::frame::PROTOCOL;
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

impl Hello {
    /// The protocol that both speak.
    ///
    /// # Errors
    /// A text for the caller's log.
    pub fn agree(&self) -> Result<u16, String> {
        if (self.protocol_min..=self.protocol_max).contains(&PROTOCOL) {
            return Ok(PROTOCOL);
        }
        Err(format!(
            "this server speaks protocol {PROTOCOL}, the caller {} to {}: bring the older of the two up to date",
            self.protocol_min, self.protocol_max
        ))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_newer_or_older_caller_is_told_which_protocol_is_spoken_here() {
        let hello = Hello {
            protocol_min: 1,
            protocol_max: 9,
            cluster: ClusterId::default(),
            role: Role::Client,
            instance: [0; 16],
            channel: 0,
            attempt: 1,
        };
        assert_eq!(hello.agree(), Ok(PROTOCOL));
        let newer = Hello { protocol_min: PROTOCOL + 1, ..hello };
        assert!(newer.agree().unwrap_err().contains("speaks protocol 1, the caller 2 to 9"));
    }
}
