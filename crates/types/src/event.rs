//! What happened to a file system, for its administrators.

use crate::{NodeId, Timespec};
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $name:literal;)*) => {
        /// What kind of thing happened: a closed list. The number is the stored and sent form, the name what programs and people see; neither changes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(from = "u16", into = "u16")]
        pub enum EventKind {
            $($(#[$doc])* $variant,)*
            /// One of a newer software.
            Newer(u16),
        }

        impl EventKind {
            /// All that this software knows.
            pub const ALL: &[EventKind] = &[$(EventKind::$variant,)*];

            /// Its name, for programs and people.
            pub fn name(self) -> &'static str {
                match self {
                    $(EventKind::$variant => $name,)*
                    EventKind::Newer(_) => "newer",
                }
            }
        }

        impl From<u16> for EventKind {
            fn from(code: u16) -> EventKind {
                match code {
                    $($code => EventKind::$variant,)*
                    other => EventKind::Newer(other),
                }
            }
        }

        impl From<EventKind> for u16 {
            fn from(kind: EventKind) -> u16 {
                match kind {
                    $(EventKind::$variant => $code,)*
                    EventKind::Newer(code) => code,
                }
            }
        }
    };
}

kinds! {
    /// A machine has become a node.
    NodeJoined = 1, "node-joined";
    /// A node was taken out.
    NodeRemoved = 2, "node-removed";
    /// A server listens at other addresses than before.
    NodeListens = 3, "node-listens";
    /// What a node may do as a client was changed.
    PolicyChanged = 4, "policy-changed";
    /// A token was made.
    TokenMade = 5, "token-made";
    /// A token was used.
    TokenUsed = 6, "token-used";
    /// A node got its next certificate.
    CertificateRenewed = 7, "certificate-renewed";
    /// A target is part of the file system.
    TargetAdded = 8, "target-added";
    /// A target is served again, or by another node.
    TargetOnline = 9, "target-online";
    /// A target is not served any more.
    TargetOffline = 10, "target-offline";
    /// A node has found a target that another one serves.
    TargetClaimedTwice = 11, "target-claimed-twice";
    /// A target takes no more changes after an error of its disk.
    TargetStopped = 12, "target-stopped";
    /// Shards of metadata have come to another server.
    ShardsMoved = 13, "shards-moved";
    /// A metadata server takes no more changes after an error of its disk.
    MetadataStopped = 14, "metadata-stopped";
    /// A session was ended because nothing was heard of its mount.
    SessionSilent = 15, "session-silent";
    /// A session was ended because its mount did not give back what others needed.
    SessionEvicted = 16, "session-evicted";
    /// An administrator has ended a session.
    SessionRemoved = 17, "session-removed";
    /// Stored data or metadata is not what was written.
    DamageFound = 18, "damage-found";
    /// A server was started.
    ServerStarted = 19, "server-started";
    /// A server was stopped in good order.
    ServerStopped = 20, "server-stopped";
    /// The state of the file system could not be reached.
    StateUnreachable = 21, "state-unreachable";
    /// The state of the file system can be reached again.
    StateReachable = 22, "state-reachable";
    /// More happened than could be kept.
    EventsLost = 23, "events-lost";
    /// A target is no part of the file system any more.
    TargetRemoved = 24, "target-removed";
    /// Nothing is heard of a server any more.
    ServerAway = 25, "server-away";
    /// Something is heard of it again.
    ServerBack = 26, "server-back";
    /// What a node can fail together with was changed.
    DomainChanged = 27, "domain-changed";
    /// A server cannot keep the map for its next start.
    MapNotKept = 28, "map-not-kept";
    /// The metadata is that of a backup again.
    MetadataRestored = 29, "metadata-restored";
    /// A copy of a target or of metadata was not let serve, or has to stop.
    CopyRefused = 30, "copy-refused";
    /// An administrator has had an older copy of a target or of metadata be served.
    CopyAccepted = 31, "copy-accepted";
    /// An administrator has had a target or metadata be taken over from a server that seemed to be there.
    TakenOver = 32, "taken-over";
    /// A directory has grown large, and is being split.
    DirectorySplit = 33, "directory-split";
    /// An administrator has had a storage server that runs take a directory into service.
    TargetTaken = 34, "target-taken";
    /// Other machines than before keep copies of a metadata server.
    CopiesChanged = 35, "copies-changed";
    /// Chains have a copy less than before, or fewer than they are to have.
    ChainsShort = 36, "chains-short";
    /// Chains have all copies again.
    ChainsWhole = 37, "chains-whole";
    /// What was damaged of stored data was brought back from another copy.
    DamageMended = 38, "damage-mended";
    /// A disk that several storage servers reach goes to another one, or is free.
    DiskMoved = 39, "disk-moved";
    /// A server is to be fenced: it is silent, or does not let go of a disk.
    FenceBegun = 40, "fence-begun";
    /// A server could not be fenced.
    FenceFailed = 41, "fence-failed";
    /// A server was fenced.
    ServerFenced = 42, "server-fenced";
    /// A storage server cannot use a disk that others reach as well.
    DiskFailed = 43, "disk-failed";
}

impl EventKind {
    /// The kind of this name.
    pub fn parse(name: &str) -> Option<EventKind> {
        EventKind::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// Whether servers tell managers of it. The rest managers know themselves, and nobody else may say it.
    pub fn is_told_by_servers(self) -> bool {
        matches!(
            self,
            EventKind::TargetStopped
                | EventKind::MetadataStopped
                | EventKind::SessionSilent
                | EventKind::SessionEvicted
                | EventKind::SessionRemoved
                | EventKind::DamageFound
                | EventKind::DamageMended
                | EventKind::FenceFailed
                | EventKind::DirectorySplit
                | EventKind::ServerStarted
                | EventKind::ServerStopped
                | EventKind::EventsLost
                | EventKind::MapNotKept
                | EventKind::TargetTaken
        )
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Something that happened, as whoever saw it tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Happening {
    /// When, by the clock of who tells it.
    pub at: Timespec,
    /// What.
    pub kind: EventKind,
    /// To what: a node, a target, a session.
    pub subject: String,
    /// More, for people.
    pub text: String,
}

impl Happening {
    /// Longest subject, bytes.
    // LIMIT: of what is kept of one.
    pub const SUBJECT_BYTES_MAX: usize = 64;
    /// Longest text, bytes.
    // LIMIT: as above.
    pub const TEXT_BYTES_MAX: usize = 256;

    /// One; what is longer than it may be is cut, and control characters are left out.
    pub fn new(at: Timespec, kind: EventKind, subject: &str, text: &str) -> Happening {
        let subject = tame(subject, Happening::SUBJECT_BYTES_MAX);
        Happening { at, kind, subject, text: tame(text, Happening::TEXT_BYTES_MAX) }
    }

    /// The same as [`Happening::new`] would have made it: for what others have made.
    #[must_use]
    pub fn tamed(self) -> Happening {
        Happening::new(self.at, self.kind, &self.subject, &self.text)
    }
}

/// `text` without control characters, `bytes_max` at the most.
fn tame(text: &str, bytes_max: usize) -> String {
    let mut out = String::new();
    for letter in text.chars().filter(|letter| !letter.is_control()) {
        if out.len() + letter.len_utf8() > bytes_max {
            break;
        }
        out.push(letter);
    }
    out
}

/// Something that happened, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its number: higher than that of every one that was kept before.
    pub number: u64,
    /// Which node told it, or was the cause.
    pub node: NodeId,
    /// What happened.
    pub what: Happening,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{decode, encode};

    #[test]
    fn kinds_have_names_and_numbers_of_their_own_and_one_of_a_newer_software_stays_what_it_is() {
        for (at, kind) in EventKind::ALL.iter().enumerate() {
            assert_eq!(u16::from(*kind) as usize, at + 1, "numbers are without a gap");
            assert_eq!(EventKind::parse(kind.name()), Some(*kind));
            assert_eq!(EventKind::from(u16::from(*kind)), *kind);
        }
        let newer = EventKind::from(999);
        assert_eq!((newer, newer.name()), (EventKind::Newer(999), "newer"));
        assert_eq!(decode::<EventKind>(&encode(&newer), "kind"), Ok(newer));
    }

    #[test]
    fn what_is_long_or_disturbs_a_terminal_is_cut() {
        let long = "ä".repeat(500);
        let told = Happening::new(Timespec::default(), EventKind::DamageFound, "a\x1b[31mb\n", &long);
        assert_eq!(told.subject, "a[31mb");
        assert_eq!(told.text.len(), 256);
    }
}
