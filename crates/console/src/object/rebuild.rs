//! Copies that a pool lacks: how far it is that others are given them, how fast, and how long it takes yet.

use super::work::time_text;
use ashlar_types::message::CopyWork;
use serde_json::{Value, json};

/// What managers tell of it, and what the servers that send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rebuild {
    /// As a manager has it.
    pub work: CopyWork,
    /// What was sent of chains that are under way, bytes: it is among what is lacking.
    pub bytes_copied: u64,
    /// What is sent in a second; `None` while a server does not tell.
    pub bytes_per_s: Option<u64>,
}

impl Rebuild {
    /// What is to be sent yet, at the most, bytes: who has had a copy before is given what was changed since.
    fn bytes_left(&self) -> Option<u64> {
        self.work.bytes_lacking.map(|lacking| lacking.saturating_sub(self.bytes_copied))
    }

    /// How long it takes yet at this rate, at the most, seconds; `None` while nobody can tell, or nothing is sent.
    pub fn seconds_left(&self) -> Option<u64> {
        let rate = self.bytes_per_s.filter(|rate| *rate > 0)?;
        Some(self.bytes_left()?.div_ceil(rate))
    }

    /// For people, in a line.
    pub fn text(&self) -> String {
        const MIB: f64 = (1u64 << 20) as f64;
        let CopyWork { chains_short, chains_under_way, bytes_lacking, waits_s, .. } = self.work;
        let mut text = format!("{chains_short} chains lack a copy; {chains_under_way} are being given one");
        if let Some(lacking) = bytes_lacking {
            let (copied, all) = (self.bytes_copied.min(lacking) as f64 / MIB, lacking as f64 / MIB);
            text.push_str(&format!(", {copied:.1} of at most {all:.1} MiB"));
        }
        if let Some(rate) = self.bytes_per_s.filter(|_| chains_under_way > 0) {
            text.push_str(&format!(", {:.1} MiB/s", rate as f64 / MIB));
        }
        if let Some(seconds) = self.seconds_left() {
            text.push_str(&format!(", at most {} left", time_text(seconds)));
        }
        if let Some(seconds) = waits_s.filter(|_| chains_short > chains_under_way) {
            let waiting = chains_short - chains_under_way;
            match seconds {
                0 => text.push_str(&format!("; {waiting} wait for a target with room that is free for it")),
                _ => text.push_str(&format!(
                    "; {waiting} wait for those that had one, at most {} yet",
                    time_text(seconds)
                )),
            }
        }
        text
    }
}

/// How far it is: `chains_short`, `chains_under_way`, `bytes_lacking` (null until a target has told), `bytes_copied`, `bytes_per_s`, `seconds_left` and `waits_s` (all three null while
/// nobody knows).
pub fn object(rebuild: &Rebuild) -> Value {
    json!({
        "chains_short": rebuild.work.chains_short,
        "chains_under_way": rebuild.work.chains_under_way,
        "bytes_lacking": rebuild.work.bytes_lacking,
        "bytes_copied": rebuild.bytes_copied,
        "bytes_per_s": rebuild.bytes_per_s,
        "seconds_left": rebuild.seconds_left(),
        "waits_s": rebuild.work.waits_s,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_types::PoolId;

    #[test]
    fn what_is_lacking_takes_as_long_as_the_rate_says_and_what_nobody_knows_is_not_made_up() {
        let work = CopyWork {
            pool: PoolId(0),
            chains_short: 30,
            chains_under_way: 4,
            bytes_lacking: Some(100 << 20),
            waits_s: Some(500),
        };
        let known = Rebuild { work, bytes_copied: 10 << 20, bytes_per_s: Some(1 << 20) };
        let first = "30 chains lack a copy; 4 are being given one, 10.0 of at most 100.0 MiB";
        let last = "26 wait for those that had one, at most 9 min yet";
        assert_eq!(known.text(), format!("{first}, 1.0 MiB/s, at most 90 s left; {last}"));
        assert_eq!(object(&known)["seconds_left"], 90);
        let untold = Rebuild { work: CopyWork { bytes_lacking: None, ..work }, ..known };
        assert_eq!((untold.seconds_left(), object(&untold)["bytes_lacking"].clone()), (None, Value::Null));
        let still = Rebuild { bytes_per_s: Some(0), ..known };
        assert_eq!(still.seconds_left(), None, "nothing is sent");
        let twice = Rebuild { bytes_copied: 200 << 20, ..known };
        assert_eq!(twice.seconds_left(), Some(0), "what changed was sent twice");
        let all = CopyWork { chains_under_way: 30, waits_s: None, ..work };
        assert!(Rebuild { work: all, ..known }.text().ends_with("at most 90 s left"));
        let no_room = CopyWork { waits_s: Some(0), ..work };
        assert!(
            Rebuild { work: no_room, ..known }
                .text()
                .ends_with("26 wait for a target with room that is free for it")
        );
    }
}
