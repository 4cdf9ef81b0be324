//! Who may serve the directory of a target or of metadata of many servers: rules over what managers know of the starts of a directory, as pure functions.
//!
//! A server says which start is noted in its directory, and managers tell the next one ([`claim`]); it notes that in the directory, durably, and then says that it holds it
//! ([`hold`]), before it serves. Managers remember the last start that was held, and those that were told since: whatever is cut short between two steps, the directory
//! says one of these. A copy says an earlier start as soon as the directory itself was started once more.

use crate::state::{ClusterState, StartRecord};
use ashlar_types::{Holding, NodeId, Start};

/// Starts that are remembered of those that were told and not held yet. More are of servers that ended right after they had asked: their directories say an earlier one.
// LIMIT: of one directory.
const JOINING_MAX: usize = 8;
/// Highest number of a start.
// LIMIT: nobody starts that often; numbers go on from there for as long as the software lives.
const NUMBER_MAX: u64 = u64::MAX / 2;

/// What a directory is, given what managers know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// What was served last, or what managers know nothing of.
    Current,
    /// It was served in a later start than it says: it is an older copy.
    Older,
    /// Another copy was served in the start of this number.
    Parted,
}

/// What the directory is that says `seen`.
pub(crate) fn standing(record: Option<&StartRecord>, seen: Start) -> Standing {
    let Some(record) = record else { return Standing::Current };
    let is_known = seen == record.last || record.joining.contains(&seen);
    // A later one than managers know: their state is an older copy, or the start was one of too many that were told. There is nothing newer.
    if is_known || seen.number > record.last.number {
        Standing::Current
    } else if seen.number < record.last.number {
        Standing::Older
    } else {
        Standing::Parted
    }
}

/// Tells the next start, with the tag `tag`, of the directory `found` that `node` is about to serve, and notes it in `state`. Asked for once more it tells the same. Whether the directory may be served is the caller's to decide.
///
/// # Errors
/// With words, when the number is none.
pub(crate) fn claim(
    state: &mut ClusterState,
    found: &Holding,
    (node, tag, now_s): (NodeId, u64, u64),
) -> Result<Start, &'static str> {
    if found.start.number >= NUMBER_MAX {
        return Err("the number of its last start is out of range");
    }
    forget_gone(state, found.uuid);
    let at = state.starts.iter().position(|known| known.uuid == found.uuid).unwrap_or_else(|| {
        // LIMIT: one per target of the map, promised target, and metadata server, and the one that asks.
        state.starts.push(StartRecord {
            uuid: found.uuid,
            last: found.start,
            joining: Vec::new(),
            node,
            path: found.path.clone(),
            place: found.place,
            since_s: now_s,
        });
        state.starts.len() - 1
    });
    let record = &mut state.starts[at];
    if let Some(again) = record.joining.iter().find(|told| told.tag == tag) {
        return Ok(*again);
    }
    if found.start != record.last && standing(Some(record), found.start) == Standing::Current {
        // It says so, so it was noted.
        record.last = found.start;
    }
    let known = record.joining.iter().chain([&record.last, &found.start]).map(|start| start.number);
    let next = Start { number: known.max().unwrap_or_default() + 1, tag };
    if record.joining.len() >= JOINING_MAX {
        record.joining.remove(0);
    }
    record.joining.push(next);
    Ok(next)
}

/// Notes that `node` serves the directory `held` in the start that it says. Tells whether it may.
pub(crate) fn hold(state: &mut ClusterState, held: &Holding, (node, now_s): (NodeId, u64)) -> bool {
    let Some(record) = state.starts.iter_mut().find(|known| known.uuid == held.uuid) else { return true };
    if record.joining.contains(&held.start) {
        record.last = held.start;
        record.joining.clear();
        (record.node, record.place, record.since_s) = (node, held.place, now_s);
        record.path.clone_from(&held.path);
        return true;
    }
    // A number that is higher says that this manager is behind.
    held.start == record.last || held.start.number > record.last.number
}

/// Whether [`hold`] would change anything.
pub(crate) fn is_joining(state: &ClusterState, held: &Holding) -> bool {
    let record = state.starts.iter().find(|known| known.uuid == held.uuid);
    record.is_some_and(|record| record.joining.contains(&held.start))
}

/// Forgets starts of what is no part of the file system any more, but of `uuid`.
fn forget_gone(state: &mut ClusterState, uuid: [u8; 16]) {
    let ClusterState { map, metadata, promised, starts, .. } = state;
    starts.retain(|known| {
        known.uuid == uuid
            || metadata.iter().any(|other| other.uuid == known.uuid)
            || map.targets.iter().any(|other| other.uuid == known.uuid)
            || promised.iter().any(|other| other.uuid == known.uuid)
    });
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::map_change::first_map;
    use ashlar_types::ClusterId;

    const DISK: [u8; 16] = [7; 16];

    fn state() -> ClusterState {
        ClusterState::new(first_map(ClusterId([9; 16]), NodeId(1)))
    }

    fn holding(start: Start) -> Holding {
        Holding { uuid: DISK, start, path: "/disk".to_owned(), place: Default::default() }
    }

    fn standing_of(state: &ClusterState, start: Start) -> Standing {
        standing(state.starts.first(), start)
    }

    /// A start of the directory that says `*said`, cut short after so many steps: nothing, the claim, the note in the directory, the word that it is held.
    fn start(state: &mut ClusterState, said: &mut Start, tag: u64, steps: usize) {
        assert_eq!(standing_of(state, *said), Standing::Current, "before the start with tag {tag}");
        if steps > 0 {
            let next = claim(state, &holding(*said), (NodeId(2), tag, 5)).unwrap();
            if steps > 1 {
                *said = next;
            }
        }
        if steps > 2 {
            assert!(hold(state, &holding(*said), (NodeId(2), 5)));
        }
    }

    #[test]
    fn what_was_served_without_numbers_is_taken_as_it_is_and_counted_from_then_on() {
        let (mut state, mut said) = (state(), Start::default());
        start(&mut state, &mut said, 10, 3);
        assert_eq!(said, Start { number: 1, tag: 10 });
        // One of a single machine goes on counting.
        let (mut state, mut said) = (self::state(), Start { number: 41, tag: 3 });
        start(&mut state, &mut said, 11, 3);
        assert_eq!(said, Start { number: 42, tag: 11 });
        assert_eq!(state.starts[0].last, said);
    }

    #[test]
    fn a_copy_is_older_as_soon_as_the_directory_was_started_once_more() {
        let (mut state, mut said) = (state(), Start::default());
        start(&mut state, &mut said, 10, 3);
        let copy = said;
        assert_eq!(standing_of(&state, copy), Standing::Current, "the same as the directory");
        start(&mut state, &mut said, 11, 2);
        assert_eq!(standing_of(&state, copy), Standing::Current, "nobody has served the newer one yet");
        start(&mut state, &mut said, 12, 3);
        assert_eq!(standing_of(&state, copy), Standing::Older);
        assert!(!hold(&mut state, &holding(copy), (NodeId(3), 5)), "who served it has to stop");
        // With another tag it is one that was started apart.
        let apart = Start { number: said.number, tag: 99 };
        assert_eq!(standing_of(&state, apart), Standing::Parted);
        assert!(!hold(&mut state, &holding(apart), (NodeId(3), 5)));
    }

    #[test]
    fn starts_that_are_cut_short_after_any_step_lock_nobody_out() {
        // Every sequence of six starts that are cut short after 0 to 3 steps.
        for sequence in 0..4usize.pow(6) {
            let (mut state, mut said) = (state(), Start::default());
            for at in 0..6 {
                start(&mut state, &mut said, 10 + at, sequence / 4usize.pow(at as u32) % 4);
            }
            start(&mut state, &mut said, 100, 3);
            assert_eq!(state.starts[0].last, said);
        }
        // As many as one likes that end before the directory says anything.
        let (mut state, mut said) = (state(), Start::default());
        (0..100).for_each(|tag| start(&mut state, &mut said, tag, 1));
        assert!(state.starts[0].joining.len() <= JOINING_MAX);
        start(&mut state, &mut said, 1000, 3);
    }

    #[test]
    fn a_question_that_comes_twice_or_late_is_answered_and_does_no_harm() {
        let (mut state, mut said) = (state(), Start::default());
        start(&mut state, &mut said, 10, 3);
        let late = holding(said);
        let ask = |state: &mut ClusterState, tag| claim(state, &late, (NodeId(2), tag, 5)).unwrap();
        assert_eq!(ask(&mut state, 11), ask(&mut state, 11), "twice");
        // One that was asked by a process that is dead arrives after the next one has noted its start.
        let next = ask(&mut state, 12);
        ask(&mut state, 11);
        ask(&mut state, 13);
        assert!(hold(&mut state, &holding(next), (NodeId(2), 5)));
        assert!(hold(&mut state, &holding(next), (NodeId(2), 6)), "twice");
        assert_eq!(standing_of(&state, late.start), Standing::Older, "later still it is refused");
    }

    #[test]
    fn an_older_copy_that_was_accepted_is_the_newest_from_then_on() {
        let (mut state, mut said) = (state(), Start::default());
        start(&mut state, &mut said, 10, 3);
        let copy = said;
        (11..20).for_each(|tag| start(&mut state, &mut said, tag, 3));
        let next = claim(&mut state, &holding(copy), (NodeId(3), 30, 5)).unwrap();
        assert_eq!(standing_of(&state, said), Standing::Current, "until it is held");
        assert!(hold(&mut state, &holding(next), (NodeId(3), 5)));
        assert_eq!(standing_of(&state, said), Standing::Older);
        assert_eq!((next.number, state.starts[0].node), (said.number + 1, NodeId(3)));
    }

    #[test]
    fn managers_that_are_behind_refuse_nothing_newer() {
        let (mut state, mut said) = (state(), Start::default());
        start(&mut state, &mut said, 10, 3);
        let before = state.clone();
        (11..14).for_each(|tag| start(&mut state, &mut said, tag, 3));
        let mut behind = before;
        assert!(hold(&mut behind, &holding(said), (NodeId(2), 5)));
        start(&mut behind, &mut said, 20, 3);
        let far = Start { number: u64::MAX, tag: 1 };
        assert!(claim(&mut behind, &holding(far), (NodeId(2), 1, 5)).is_err());
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let (mut state, mut said) = (state(), Start::default());
        start(&mut state, &mut said, 10, 3);
        let other = Holding { uuid: [8; 16], ..holding(Start::default()) };
        claim(&mut state, &other, (NodeId(2), 1, 5)).unwrap();
        assert!(state.starts.iter().all(|known| known.uuid == other.uuid));
    }
}
