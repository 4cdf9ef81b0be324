//! What is drained or rebalanced: how far that is, how fast, and how long it takes yet.

use ashlar_types::message::MoveWork;
use ashlar_types::{ClusterMap, TargetId};
use serde_json::{Value, json};

/// What managers tell of it, and what the servers that send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// As a manager has it.
    pub work: MoveWork,
    /// What was copied of chains that are on their way, bytes: it is among what is left.
    pub bytes_copied: u64,
    /// What is sent in a second; `None` while a server does not tell.
    pub bytes_per_s: Option<u64>,
    /// Moves are paused.
    pub is_paused: bool,
}

impl Work {
    /// What has been copied, with chains that are on their way, bytes.
    pub fn bytes_done(&self) -> u64 {
        self.work.bytes_done.saturating_add(self.copied())
    }

    /// What was copied of chains on their way, no more than there is of them: what changes is copied more than once.
    fn copied(&self) -> u64 {
        self.work.bytes_left.map_or(0, |left| self.bytes_copied.min(left))
    }

    /// What has been and is to be copied, bytes, if that is known.
    pub fn bytes_all(&self) -> Option<u64> {
        Some(self.work.bytes_done.saturating_add(self.work.bytes_left?))
    }

    /// Chains that have gone and are to go.
    pub fn chains_all(&self) -> u64 {
        self.work.chains_done.saturating_add(self.work.chains_left)
    }

    /// How long it takes yet at this rate, seconds; `None` while nobody can tell, or nothing moves.
    pub fn seconds_left(&self) -> Option<u64> {
        if self.work.chains_left == 0 {
            return Some(0);
        }
        let left = self.work.bytes_left?.saturating_sub(self.copied());
        let rate = self.bytes_per_s.filter(|rate| *rate > 0 && !self.is_paused)?;
        Some(left.div_ceil(rate))
    }

    /// For people, in a line.
    pub fn text(&self) -> String {
        const MIB: f64 = (1u64 << 20) as f64;
        let about = if self.work.is_estimated { "some " } else { "" };
        let mut text = format!("{} of {about}{} chains", self.work.chains_done, self.chains_all());
        if let Some(all) = self.bytes_all() {
            text.push_str(&format!(
                ", {:.1} of {about}{:.1} MiB",
                self.bytes_done() as f64 / MIB,
                all as f64 / MIB
            ));
        }
        if self.work.chains_left == 0 {
            return text;
        }
        match (self.is_paused, self.bytes_per_s) {
            (true, _) => text.push_str(", paused"),
            (false, Some(rate)) => text.push_str(&format!(", {:.1} MiB/s", rate as f64 / MIB)),
            (false, None) => {}
        }
        if let Some(seconds) = self.seconds_left() {
            text.push_str(&format!(", some {} left", time_text(seconds)));
        }
        text
    }
}

pub(super) fn time_text(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h", seconds.div_ceil(3600)),
    }
}

/// The work at a target that is drained, if there is one.
pub fn of_target(works: &[Work], target: TargetId) -> Option<&Work> {
    works.iter().find(|work| work.work.target == Some(target))
}

/// How far it is: `since` (seconds since 1970), `chains_done`, `chains_total`, `bytes_done`, `bytes_total` (null until all was counted), `bytes_per_s`, `seconds_left` (both
/// null while nobody knows) and `is_estimated`.
pub fn object(work: &Work) -> Value {
    json!({
        "since": work.work.since_s,
        "chains_done": work.work.chains_done,
        "chains_total": work.chains_all(),
        "bytes_done": work.bytes_done(),
        "bytes_total": work.bytes_all(),
        "bytes_per_s": work.bytes_per_s,
        "seconds_left": work.seconds_left(),
        "is_estimated": work.work.is_estimated,
    })
}

/// As [`object`], of all there is, each with its `target`, null of a pool that is rebalanced, and `pool`.
pub fn objects(map: &ClusterMap, works: &[Work]) -> Vec<Value> {
    let one = |work: &Work| {
        let pool = map.pools.iter().find(|pool| pool.id == work.work.pool).map(|pool| pool.name.as_str());
        super::with(json!({ "target": work.work.target.map(|target| target.0), "pool": pool }), object(work))
    };
    works.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_types::PoolId;

    fn work() -> Work {
        let work = MoveWork {
            target: Some(TargetId(1)),
            pool: PoolId(0),
            since_s: 7,
            chains_done: 40,
            bytes_done: 40 << 20,
            chains_left: 60,
            bytes_left: Some(60 << 20),
            is_estimated: false,
        };
        Work { work, bytes_copied: 10 << 20, bytes_per_s: Some(1 << 20), is_paused: false }
    }

    #[test]
    fn what_is_left_takes_as_long_as_the_rate_says_and_what_nobody_knows_is_not_made_up() {
        let known = work();
        assert_eq!((known.bytes_done(), known.bytes_all()), (50 << 20, Some(100 << 20)));
        assert_eq!(known.seconds_left(), Some(50));
        assert_eq!(known.text(), "40 of 100 chains, 50.0 of 100.0 MiB, 1.0 MiB/s, some 50 s left");
        let paused = Work { is_paused: true, ..known };
        assert_eq!((paused.seconds_left(), object(&paused)["seconds_left"].clone()), (None, Value::Null));
        assert!(paused.text().ends_with("MiB, paused"), "{}", paused.text());
        let still = Work { bytes_per_s: Some(0), ..known };
        assert_eq!(still.seconds_left(), None);
        let unknown = Work { work: MoveWork { bytes_left: None, ..known.work }, ..known };
        assert_eq!(
            (unknown.seconds_left(), unknown.bytes_all(), unknown.bytes_done()),
            (None, None, 40 << 20)
        );
        let over = Work { bytes_copied: 90 << 20, ..known };
        assert_eq!(over.bytes_done(), 100 << 20, "what changed was copied twice");
        let done = Work { work: MoveWork { chains_left: 0, bytes_left: Some(0), ..known.work }, ..known };
        assert_eq!(
            (done.seconds_left(), done.text().as_str()),
            (Some(0), "40 of 40 chains, 40.0 of 40.0 MiB")
        );
        let estimated = Work { work: MoveWork { is_estimated: true, ..known.work }, ..known };
        assert!(estimated.text().starts_with("40 of some 100 chains, 50.0 of some 100.0 MiB"));
    }
}
