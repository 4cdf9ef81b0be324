//! Who may serve the directory of a target or of metadata of many servers: rules over what managers know of the starts of a directory, as pure functions.
//!
//! A server says which start is noted in its directory, and managers tell the next one ([`claim`]); it notes that in the directory, durably, and then says that it holds it
//! ([`hold`]), before it serves. Managers remember the last start that was held, and those that were told since: whatever is cut short between two steps, the directory
//! says one of these. A copy says an earlier start as soon as the directory itself was started once more.
//!
//! A start has a tag that is drawn at random, and known to its directory and managers alone. So it proves that who says it has the directory, or a copy ([`is_proven`]): a server that does not cannot
//! make one up, and nothing that it says of a directory of others is believed.

use crate::state::{ClusterState, Joining, StartRecord};
use ashlar_types::{Holding, NodeId, Role, Start};

/// Starts that are remembered of those that were told and not held yet. More are of servers that ended right after they had asked: their directories say an earlier one.
// LIMIT: of one directory.
const JOINING_MAX: usize = 8;
/// Starts that are remembered of those that were held before the last one. An older copy can only be accepted from another machine than that which served last.
// LIMIT: of one directory.
const EARLIER_MAX: usize = 32;
/// Highest number of a start.
// LIMIT: nobody starts that often; numbers go on from there for as long as the software lives.
const NUMBER_MAX: u64 = u64::MAX / 2;
/// By how many starts managers may be behind the directory itself: their state may be an older copy.
const AHEAD_MAX: u64 = 1 << 20;
/// For how long a start that was given out keeps the directory from others, seconds; and one that was just held, which not every manager has heard of yet.
pub(crate) const FRESH_S: u64 = 10;

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
    // A later one than managers know: their state is an older copy, or the start was one of too many that were told. There is nothing newer.
    if is_newest(record, seen) || seen.number > record.last.number {
        Standing::Current
    } else if seen.number < record.last.number {
        Standing::Older
    } else {
        Standing::Parted
    }
}

fn is_newest(record: &StartRecord, seen: Start) -> bool {
    seen == record.last || record.joining.iter().any(|told| told.start == seen)
}

/// Whether `node`, which says that `seen` is noted in the directory, has the directory or a copy, as far as managers can know. The server that served it last has it in any case; its word is good for a later
/// start than managers know as well, within reason.
pub(crate) fn is_proven(record: &StartRecord, seen: Start, node: NodeId) -> bool {
    let is_known = seen.tag != 0 && (is_newest(record, seen) || record.earlier.contains(&seen));
    is_known || node == record.node && seen.number <= record.last.number.saturating_add(AHEAD_MAX)
}

/// Whether `node` may be the first one, as `role`, of whose directory `uuid` managers count starts: that of a target is where the map says, or where it is being made; that of metadata is known by its uuid alone.
pub(crate) fn may_be_first(state: &ClusterState, uuid: [u8; 16], (node, role): (NodeId, Role)) -> bool {
    let target = state.map.targets.iter().find(|known| known.uuid == uuid).map(|known| known.node);
    let promised = || state.promised.iter().find(|known| known.uuid == uuid).map(|known| known.node);
    match target.or_else(promised) {
        Some(owner) => role == Role::Storage && owner == node,
        None => is_of_role(state, uuid, role),
    }
}

/// Whether the directory `uuid` is one of `role`, or unknown.
pub(crate) fn is_of_role(state: &ClusterState, uuid: [u8; 16], role: Role) -> bool {
    let is_target = state.map.targets.iter().any(|known| known.uuid == uuid);
    let is_target = is_target || state.promised.iter().any(|known| known.uuid == uuid);
    let is_metadata = state.metadata.iter().any(|known| known.uuid == uuid);
    match role {
        Role::Meta => !is_target,
        _ => !is_metadata,
    }
}

/// Who was given a start of a directory a moment ago, at another place than that of `found`: he is about to serve it.
pub(crate) fn about_to_serve<'a>(
    record: &'a StartRecord,
    found: &Holding,
    now_s: u64,
) -> Option<&'a Joining> {
    let is_other = |told: &&Joining| told.place != found.place && is_fresh(told.since_s, now_s);
    record.joining.iter().rev().find(is_other)
}

/// Whether something is of a moment ago; clocks of managers may differ.
pub(crate) fn is_fresh(since_s: u64, now_s: u64) -> bool {
    since_s.abs_diff(now_s) < FRESH_S
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
            earlier: Vec::new(),
            node,
            path: found.path.clone(),
            place: found.place,
            since_s: now_s,
        });
        state.starts.len() - 1
    });
    let record = &mut state.starts[at];
    if let Some(again) = record.joining.iter_mut().find(|told| told.start.tag == tag && told.node == node) {
        again.since_s = now_s;
        return Ok(again.start);
    }
    if found.start != record.last && standing(Some(record), found.start) == Standing::Current {
        // It says so, so it was noted.
        set_last(record, found.start);
        record.joining.retain(|told| told.start.number > found.start.number);
        (record.node, record.place, record.since_s) = (node, found.place, now_s);
        record.path.clone_from(&found.path);
    }
    let known = record.joining.iter().map(|told| told.start.number);
    let known = known.chain([record.last.number, found.start.number]);
    let next = Start { number: known.max().unwrap_or_default() + 1, tag };
    if record.joining.len() >= JOINING_MAX {
        record.joining.remove(0);
    }
    let (path, place) = (found.path.clone(), found.place);
    record.joining.push(Joining { start: next, node, path, place, since_s: now_s });
    Ok(next)
}

fn set_last(record: &mut StartRecord, last: Start) {
    if record.last != Start::default() {
        record.earlier.push(record.last);
    }
    let surplus = record.earlier.len().saturating_sub(EARLIER_MAX);
    record.earlier.drain(..surplus);
    record.last = last;
}

/// Notes that `node` serves the directory `held` in the start that it says. Tells whether it may.
pub(crate) fn hold(state: &mut ClusterState, held: &Holding, (node, now_s): (NodeId, u64)) -> bool {
    let Some(record) = state.starts.iter_mut().find(|known| known.uuid == held.uuid) else { return true };
    if is_given(record, held, node) && overtaken(record, held).is_none() {
        set_last(record, held.start);
        record.joining.clear();
        (record.node, record.place, record.since_s) = (node, held.place, now_s);
        record.path.clone_from(&held.path);
        return true;
    }
    may_serve(record, held, node)
}

/// Whether [`hold`] would change anything.
pub(crate) fn is_joining(state: &ClusterState, held: &Holding, node: NodeId) -> bool {
    let record = state.starts.iter().find(|known| known.uuid == held.uuid);
    record.is_some_and(|record| is_given(record, held, node) && overtaken(record, held).is_none())
}

/// Whether `node` serves the directory in a start that is the last one. A number that is higher says that this manager is behind, if it is the server that had it.
pub(crate) fn may_serve(record: &StartRecord, held: &Holding, node: NodeId) -> bool {
    let is_ahead = held.start.number > record.last.number && is_proven(record, held.start, node);
    node == record.node && (held.start == record.last || is_ahead && !is_newest(record, held.start))
}

/// Whether this start was given to `node`, and not held yet.
fn is_given(record: &StartRecord, held: &Holding, node: NodeId) -> bool {
    record.joining.iter().any(|told| told.start == held.start && told.node == node)
}

/// Who was given a later start than `held`, at another place.
pub(crate) fn overtaken<'a>(record: &'a StartRecord, held: &Holding) -> Option<&'a Joining> {
    let is_later = |told: &&Joining| told.start.number > held.start.number && told.place != held.place;
    record.joining.iter().rev().find(is_later)
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

    fn at(start: Start, inode: u64) -> Holding {
        let place = ashlar_types::StartPlace { boot: [1; 16], device: 1, inode };
        Holding { place, ..holding(start) }
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
    fn a_server_that_does_not_have_a_directory_can_neither_claim_nor_hold_it() {
        let (mut state, mut said) = (state(), Start::default());
        (10..13).for_each(|tag| start(&mut state, &mut said, tag, 3));
        let (own, thief) = (NodeId(2), NodeId(3));
        let record = &state.starts[0].clone();
        for number in [0, 1, 2, 3, 4, 1_000_000_000, NUMBER_MAX - 1, u64::MAX] {
            for tag in [0, 1, 99] {
                let made_up = Start { number, tag };
                assert!(!is_proven(record, made_up, thief), "{made_up:?}");
                assert!(!may_serve(record, &holding(made_up), thief), "{made_up:?}");
                assert!(!hold(&mut state, &holding(made_up), (thief, 5)), "{made_up:?}");
            }
        }
        // What it has no directory of it does not serve either, though it were told the start.
        assert!(!hold(&mut state, &holding(said), (thief, 5)));
        assert_eq!(&state.starts[0], record);
        // A copy is one, be it older; and the server that has it may be ahead of managers, within reason.
        for tag in 10..13 {
            assert!(is_proven(record, Start { number: tag - 9, tag }, thief));
        }
        assert!(is_proven(record, Start { number: 40, tag: 7 }, own));
        assert!(!is_proven(record, Start { number: NUMBER_MAX - 1, tag: 7 }, own));
        // As many copies as are remembered.
        (13..100).for_each(|tag| start(&mut state, &mut said, tag, 3));
        assert_eq!(state.starts[0].earlier.len(), EARLIER_MAX);
        assert!(!is_proven(&state.starts[0], Start { number: 1, tag: 10 }, thief));
    }

    #[test]
    fn of_two_that_were_given_a_start_the_later_one_serves() {
        let mut state = state();
        let first = claim(&mut state, &at(Start::default(), 1), (NodeId(2), 10, 5)).unwrap();
        assert!(hold(&mut state, &at(first, 1), (NodeId(2), 5)));
        // The directory and its copy.
        let own = claim(&mut state, &at(first, 1), (NodeId(2), 11, 50)).unwrap();
        let seen = at(first, 2);
        assert!(about_to_serve(&state.starts[0], &seen, 59).is_some(), "it is on its way");
        assert!(about_to_serve(&state.starts[0], &at(first, 1), 59).is_none(), "that is itself");
        assert!(about_to_serve(&state.starts[0], &seen, 60).is_none(), "it does not come");
        let copy = claim(&mut state, &seen, (NodeId(3), 12, 60)).unwrap();
        assert!(!hold(&mut state, &at(own, 1), (NodeId(2), 61)), "the copy was given one after it");
        assert!(hold(&mut state, &at(copy, 2), (NodeId(3), 61)));
        assert!(!hold(&mut state, &at(own, 1), (NodeId(2), 62)));
        assert_eq!((state.starts[0].last, state.starts[0].node), (copy, NodeId(3)));
        // One that was overtaken by somebody who has never come is not locked out.
        let own = claim(&mut state, &at(copy, 2), (NodeId(3), 13, 70)).unwrap();
        claim(&mut state, &at(copy, 1), (NodeId(2), 14, 80)).unwrap();
        assert!(!hold(&mut state, &at(own, 2), (NodeId(3), 81)));
        let own = claim(&mut state, &at(own, 2), (NodeId(3), 15, 91)).unwrap();
        assert!(hold(&mut state, &at(own, 2), (NodeId(3), 92)));
    }

    #[test]
    fn the_first_start_is_that_of_who_has_the_directory_by_the_map() {
        let mut state = state();
        let (path, pool) = ("/disk".to_owned(), ashlar_types::PoolId(0));
        let id = ashlar_types::TargetId(1);
        state.promised.push(crate::state::PromisedTarget { id, uuid: DISK, path, node: NodeId(2), pool });
        assert!(may_be_first(&state, DISK, (NodeId(2), Role::Storage)));
        assert!(!may_be_first(&state, DISK, (NodeId(3), Role::Storage)));
        assert!(
            !may_be_first(&state, DISK, (NodeId(2), Role::Meta)) && !is_of_role(&state, DISK, Role::Meta)
        );
        let (uuid, path) = ([5; 16], "/meta".to_owned());
        state.metadata.push(crate::state::MetadataRecord { uuid, node: NodeId(4), path });
        assert!(may_be_first(&state, uuid, (NodeId(5), Role::Meta)));
        assert!(!may_be_first(&state, uuid, (NodeId(4), Role::Storage)));
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
