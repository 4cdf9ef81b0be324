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
    /// What those who send it send in a second, with all else that they copy; `None` while one does not tell.
    pub bytes_per_s: Option<u64>,
}

impl Rebuild {
    /// What was copied, no more than is lacking: what changes is copied more than once.
    fn copied(&self) -> u64 {
        self.bytes_copied.min(self.work.bytes_lacking)
    }

    /// How long it takes yet at this rate, seconds; less where somebody comes back who lacks only some of it. `None` while nobody can tell: nothing is sent, a target does not tell what it
    /// has, or somebody is waited for.
    pub fn seconds_left(&self) -> Option<u64> {
        let CopyWork { chains_under_way, chains_untold, waits_s, bytes_lacking, .. } = self.work;
        if chains_under_way == 0 || chains_untold > 0 || waits_s.is_some() {
            return None;
        }
        let rate = self.bytes_per_s.filter(|rate| *rate > 0)?;
        Some((bytes_lacking - self.copied()).div_ceil(rate))
    }

    /// For people, in a line.
    pub fn text(&self) -> String {
        let CopyWork { chains_short, chains_under_way, chains_untold, bytes_lacking, waits_s, .. } =
            self.work;
        let (copied, all) = (mib(self.copied()), mib(bytes_lacking));
        let mut text = format!(
            "{chains_short} chains lack a copy; {chains_under_way} are being given one, {copied} of at most {all} MiB"
        );
        if chains_untold > 0 {
            text.push_str(&format!(" and what {chains_untold} chains have, of which no target tells"));
        }
        if let Some(rate) = self.bytes_per_s.filter(|_| chains_under_way > 0) {
            text.push_str(&format!(", {} MiB/s", mib(rate)));
        }
        if let Some(seconds) = self.seconds_left() {
            text.push_str(&format!(", some {} left", time_text(seconds)));
        }
        let waiting = chains_short.saturating_sub(chains_under_way);
        match waits_s {
            Some(seconds) => text.push_str(&format!(
                "; {waiting} wait, some of them for targets that had one, {} at most",
                time_text(seconds)
            )),
            None if waiting > 0 => text.push_str(&format!("; {waiting} wait for their turn, or for room")),
            None => {}
        }
        text
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / (1u64 << 20) as f64)
}

/// How far it is: `chains_short`, `chains_under_way`, `bytes_lacking`, `chains_untold` (whose bytes are not in that, as no target tells), `bytes_copied`, `bytes_per_s`, `seconds_left` and
/// `waits_s` (all three null while nobody knows, or nobody is waited for).
pub fn object(rebuild: &Rebuild) -> Value {
    json!({
        "chains_short": rebuild.work.chains_short,
        "chains_under_way": rebuild.work.chains_under_way,
        "bytes_lacking": rebuild.work.bytes_lacking,
        "chains_untold": rebuild.work.chains_untold,
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
            bytes_lacking: 100 << 20,
            chains_untold: 0,
            waits_s: None,
        };
        let known = Rebuild { work, bytes_copied: 10 << 20, bytes_per_s: Some(1 << 20) };
        let first = "30 chains lack a copy; 4 are being given one, 10.0 of at most 100.0 MiB";
        assert_eq!(
            known.text(),
            format!("{first}, 1.0 MiB/s, some 90 s left; 26 wait for their turn, or for room")
        );
        assert_eq!(object(&known)["seconds_left"], 90);
        let of = |work: CopyWork| Rebuild { work, ..known };
        let waiting = of(CopyWork { waits_s: Some(500), ..work });
        let last = "26 wait, some of them for targets that had one, 9 min at most";
        assert_eq!(waiting.text(), format!("{first}, 1.0 MiB/s; {last}"));
        assert_eq!(waiting.seconds_left(), None, "it may be long until they begin");
        let untold = of(CopyWork { chains_untold: 2, ..work });
        assert!(untold.text().contains("100.0 MiB and what 2 chains have, of which no target tells"));
        assert_eq!((untold.seconds_left(), object(&untold)["seconds_left"].clone()), (None, Value::Null));
        let idle = of(CopyWork { chains_under_way: 0, ..work });
        assert_eq!(idle.seconds_left(), None, "what is sent is something else");
        let still = Rebuild { bytes_per_s: Some(0), ..known };
        assert_eq!(still.seconds_left(), None, "nothing is sent");
        let twice = Rebuild { bytes_copied: 200 << 20, ..known };
        assert_eq!(twice.seconds_left(), Some(0), "what changed was sent twice");
        let all = of(CopyWork { chains_under_way: 30, ..work });
        assert!(all.text().ends_with("some 90 s left"));
    }
}
