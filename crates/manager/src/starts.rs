//! Which parts of a file system belong together: rules over what metadata and targets say of the starts they took part in, as pure
//! functions.
//!
//! A start is noted in the metadata first ([`begun`]), then in each target, then the metadata confirms it ([`confirmed`]). Whoever has
//! seen a later start than another part is newer than it.

use ashlar_types::{Start, Starts, TargetStarts};

/// What a target that was found is, given what metadata knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// What it was when metadata saw it last.
    Current,
    /// Metadata has never seen it.
    New,
    /// It has been in a later start than metadata knows of: the metadata is an older copy.
    MetadataOlder {
        /// The last start that metadata knows of.
        known: Start,
    },
    /// Metadata has seen it in a later start than it knows of itself: it is an older copy.
    TargetOlder {
        /// The start that metadata has seen it in last.
        known: Start,
    },
    /// Each has been started without the other since they were last together: one of them with a copy of the other.
    Parted {
        /// The start that metadata has seen it in last.
        known: Start,
    },
}

/// What the target `uuid` is, whose last start is `seen`. Metadata that came from a backup (`is_restored`) may be older than it.
pub fn standing(starts: &Starts, uuid: [u8; 16], seen: Start, is_restored: bool) -> Standing {
    let is_later = !is_restored && seen.number > starts.last.number;
    let Some(known) = starts.targets.iter().find(|known| known.uuid == uuid) else {
        return if is_later { Standing::MetadataOlder { known: starts.last } } else { Standing::New };
    };
    if seen == known.last || Some(seen) == known.joining {
        Standing::Current
    } else if seen.number < known.last.number {
        Standing::TargetOlder { known: known.last }
    } else if is_later {
        Standing::MetadataOlder { known: starts.last }
    } else if is_restored {
        Standing::Current
    } else {
        Standing::Parted { known: known.last }
    }
}

/// `starts` with a new one, which the targets `found` are about to take part in; each with its last start so far.
pub fn begun(starts: &Starts, found: &[([u8; 16], Start)], tag: u64) -> Starts {
    // After a restore targets may be ahead.
    let newest = found.iter().map(|(_, seen)| seen.number).chain([starts.last.number]).max().unwrap_or(0);
    let mut next = Starts { last: Start { number: newest + 1, tag }, targets: starts.targets.clone() };
    for (uuid, seen) in found {
        let record = TargetStarts { uuid: *uuid, last: *seen, joining: Some(next.last) };
        match next.targets.iter_mut().find(|known| known.uuid == *uuid) {
            Some(known) => *known = record,
            None => next.targets.push(record),
        }
    }
    next
}

/// `starts` with the last one noted by the targets `joined`.
pub fn confirmed(starts: &Starts, joined: &[[u8; 16]]) -> Starts {
    let mut next = starts.clone();
    for known in next.targets.iter_mut().filter(|known| joined.contains(&known.uuid)) {
        (known.last, known.joining) = (next.last, None);
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: [u8; 16] = [1; 16];
    const B: [u8; 16] = [2; 16];
    const NEVER: Start = Start { number: 0, tag: 0 };

    /// A start of metadata and the targets, to its end.
    fn start(starts: &mut Starts, targets: &mut [([u8; 16], Start)], tag: u64) {
        for (uuid, seen) in targets.iter() {
            assert!(matches!(standing(starts, *uuid, *seen, false), Standing::Current | Standing::New));
        }
        let next = begun(starts, targets, tag);
        targets.iter_mut().for_each(|(_, seen)| *seen = next.last);
        *starts = confirmed(&next, &targets.iter().map(|(uuid, _)| *uuid).collect::<Vec<_>>());
    }

    #[test]
    fn older_copies_are_told_from_what_belongs_together() {
        let (mut starts, mut targets) = (Starts::default(), [(A, NEVER), (B, NEVER)]);
        start(&mut starts, &mut targets, 10);
        let (old_starts, old_b) = (starts.clone(), targets[1].1);
        // B is missing once, and is as good as before.
        start(&mut starts, &mut targets[..1], 11);
        assert_eq!(standing(&starts, B, old_b, false), Standing::Current);
        let known = old_starts.last;
        assert_eq!(standing(&old_starts, A, targets[0].1, false), Standing::MetadataOlder { known });
        assert_eq!(standing(&old_starts, A, targets[0].1, true), Standing::Current, "after a restore");
        start(&mut starts, &mut targets, 12);
        let known = starts.last;
        assert_eq!(standing(&starts, B, old_b, false), Standing::TargetOlder { known });
        assert_eq!(standing(&starts, B, old_b, true), Standing::TargetOlder { known });
        // A target that came after the copy of the metadata was made.
        assert!(matches!(standing(&old_starts, [3; 16], known, false), Standing::MetadataOlder { .. }));
        assert_eq!(standing(&starts, [3; 16], NEVER, false), Standing::New);
    }

    #[test]
    fn copies_that_were_started_apart_are_told_by_their_tags() {
        let (mut starts, mut targets) = (Starts::default(), [(A, NEVER), (B, NEVER)]);
        start(&mut starts, &mut targets, 10);
        let (mut other_starts, mut other_targets) = (starts.clone(), targets);
        start(&mut starts, &mut targets, 11);
        start(&mut other_starts, &mut other_targets, 12);
        assert_eq!(standing(&starts, B, other_targets[1].1, false), Standing::Parted { known: starts.last });
    }

    #[test]
    fn starts_that_were_cut_short_anywhere_leave_every_target_acceptable() {
        let (mut starts, mut targets) = (Starts::default(), [(A, NEVER), (B, NEVER)]);
        start(&mut starts, &mut targets, 10);
        for (tag, reached) in [(11, 0), (12, 1), (13, 1), (14, 0)] {
            let next = begun(&starts, &targets, tag);
            targets[..reached].iter_mut().for_each(|(_, seen)| *seen = next.last);
            starts = next;
            for (uuid, seen) in targets {
                assert_eq!(standing(&starts, uuid, seen, false), Standing::Current, "after {tag}");
            }
        }
        // Without B, which was not reached by the one before.
        start(&mut starts, &mut targets[..1], 15);
        start(&mut starts, &mut targets, 16);
    }

    #[test]
    fn a_start_after_a_restore_is_later_than_any_that_a_target_has_seen() {
        let seen = Start { number: 9, tag: 1 };
        let restored = Starts { last: Start { number: 3, tag: 2 }, targets: Vec::new() };
        let next = begun(&restored, &[(A, seen)], 7);
        assert_eq!(next.last.number, 10);
        assert_eq!(standing(&next, A, seen, false), Standing::Current);
    }
}
