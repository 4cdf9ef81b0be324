//! What a server has to send: which shards, in which order, and what is known of those who are to have them.

use ashlar_rpc::wire::Withdrawal;
use ashlar_types::node::SessionOwner;
use ashlar_types::{NodeId, ShardId};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// After how long without an answer of the receiver it is told that there is none, and others go first if nothing was copied yet.
pub(super) const SILENT_AFTER: Duration = Duration::from_secs(5);
/// After how long others go first if a part was copied, which is thrown away then. Longer than a receiver stalls that is only busy.
const COPY_LOST_AFTER: Duration = Duration::from_secs(30);
/// How often it is tried whether a silent receiver has come back, while others are silent too.
const SILENT_TRIED_EVERY: Duration = Duration::from_secs(60);
/// A receiver that has not answered for so long does not get what it was to have.
const SILENT_MAX: Duration = Duration::from_secs(300);
/// Processes that are remembered to have asked for one move.
const ASKERS_MAX: usize = 16;

/// Shards to be sent. Its lock is a leaf.
#[derive(Default)]
pub(in crate::across) struct Sending {
    // LIMIT: as shards.
    pub(super) queue: VecDeque<Queued>,
    pub(super) current: Option<Outgoing>,
    /// Those that could not be sent, and why, until they are to be sent again.
    // LIMIT: as shards.
    pub(super) failed: Vec<(ShardId, NodeId, String)>,
    /// Those that were withdrawn: whoever waits for one learns it.
    // LIMIT: as moves of shards that are under way at once, until the shard is to be sent again.
    pub(super) withdrawn: Vec<Withdrawn>,
    /// Who has asked for what is to be sent or could not be, the latest ones.
    // LIMIT: ASKERS_MAX of each of these.
    askers: BTreeMap<(ShardId, NodeId), Vec<SessionOwner>>,
    /// Receivers of these shards that do not answer.
    // LIMIT: one per receiver of what is to be sent.
    silent: BTreeMap<NodeId, Silence>,
    /// Since when one shard after the other is sent, by the monotonic clock.
    sending_since: Option<Duration>,
}

/// After so long in which one shard after the other was sent, leases are renewed.
const RENEWALS_EVERY: Duration = Duration::from_secs(5);
/// For how long none is sent then: longer than sessions wait between two renewals. While it is being decided whose a shard is, none is renewed (see `map_to_renew_by`); shards that go one after the other
/// would have sessions drop all that they cache once the term is over.
const RENEWALS_PAUSE: Duration = Duration::from_millis(1200);

/// A shard that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Queued {
    pub(super) shard: ShardId,
    pub(super) to: NodeId,
    /// Tries that have ended without it being there.
    pub(super) tries: u32,
}

/// A move that was withdrawn.
pub(super) struct Withdrawn {
    pub(super) shard: ShardId,
    pub(super) to: NodeId,
    /// From when on that is told, by the monotonic clock.
    pub(super) since: Duration,
    /// Who waits for it, perhaps without having heard.
    askers: Vec<SessionOwner>,
}

/// That a receiver does not answer, by the monotonic clock.
#[derive(Clone, Copy)]
struct Silence {
    since: Duration,
    /// When it was last seen that it does not.
    seen: Duration,
}

#[derive(Clone, Copy)]
pub(super) struct Outgoing {
    pub(super) shard: ShardId,
    pub(super) to: NodeId,
    pub(super) attempt: u64,
    /// Tries that have ended before this one, and when this one began.
    pub(super) tries: u32,
    pub(super) begun: Duration,
    pub(super) is_deciding: bool,
    /// An administrator wants it to stay. Never together with `is_deciding`, so such a move does not come to its end.
    pub(super) is_withdrawn: bool,
    pub(super) sent: u64,
    pub(super) total: u64,
}

impl Sending {
    /// For how long nothing is to be sent now.
    pub(super) fn pause_for_renewals(&mut self, now: Duration) -> Option<Duration> {
        if self.queue.is_empty() {
            self.sending_since = None;
            return None;
        }
        let since = *self.sending_since.get_or_insert(now);
        if now.saturating_sub(since) < RENEWALS_EVERY {
            return None;
        }
        self.sending_since = None;
        Some(RENEWALS_PAUSE)
    }

    /// Takes the next shard to be sent, which is what is being sent from here on.
    pub(super) fn begin_next(&mut self, now: Duration) -> Option<Queued> {
        let next = self.queue.pop_front();
        self.current = next.map(|Queued { shard, to, tries }| Outgoing {
            shard,
            to,
            attempt: 0,
            tries,
            begun: now,
            is_deciding: false,
            is_withdrawn: false,
            sent: 0,
            total: 0,
        });
        // Whoever is to have nothing is not asked, so nothing is known of it.
        let (queue, current) = (&self.queue, &self.current);
        let is_receiver = |node: &NodeId| {
            current.is_some_and(|current| current.to == *node) || queue.iter().any(|next| next.to == *node)
        };
        self.silent.retain(|node, _| is_receiver(node));
        let failed = &self.failed;
        let is_told = |&(shard, to): &(ShardId, NodeId)| {
            current.is_some_and(|current| (current.shard, current.to) == (shard, to))
                || queue.iter().any(|next| (next.shard, next.to) == (shard, to))
                || failed.iter().any(|known| (known.0, known.1) == (shard, to))
        };
        self.askers.retain(|place, _| is_told(place));
        next
    }

    /// Has a shard sent after the others, as `asker` wants. One that waits for a move asks for it again when it finds it nowhere, as after a start of the server; what was withdrawn
    /// before it looked stays so, and it is told.
    pub(super) fn enqueue(&mut self, shard: ShardId, to: NodeId, asker: Option<SessionOwner>, now: Duration) {
        let waits_for = |known: &&mut Withdrawn| {
            (known.shard, known.to) == (shard, to) && asker.is_some_and(|asker| known.askers.contains(&asker))
        };
        if let Some(withdrawn) = self.withdrawn.iter_mut().find(waits_for) {
            withdrawn.since = now;
            return;
        }
        self.failed.retain(|(failed, ..)| *failed != shard);
        self.withdrawn.retain(|withdrawn| (withdrawn.shard, withdrawn.to) != (shard, to));
        if let Some(asker) = asker {
            self.note_asker((shard, to), asker);
        }
        let is_on_its_way = |now: Outgoing| (now.shard, now.to, now.is_withdrawn) == (shard, to, false);
        if self.current.is_some_and(is_on_its_way) {
            return;
        }
        match self.queue.iter_mut().find(|queued| queued.shard == shard) {
            Some(queued) if queued.to == to => {}
            Some(queued) => *queued = Queued { shard, to, tries: 0 },
            None => self.queue.push_back(Queued { shard, to, tries: 0 }),
        }
    }

    fn note_asker(&mut self, place: (ShardId, NodeId), asker: SessionOwner) {
        let askers = self.askers.entry(place).or_default();
        askers.retain(|known| *known != asker);
        if askers.len() == ASKERS_MAX {
            askers.remove(0);
        }
        askers.push(asker);
    }

    /// Notes whether `to` has answered what it was asked from `begun` on.
    pub(super) fn note_answer(&mut self, to: NodeId, is_silent: bool, begun: Duration, now: Duration) {
        if is_silent {
            self.silent.entry(to).or_insert(Silence { since: begun, seen: now }).seen = now;
        } else {
            self.silent.remove(&to);
        }
    }

    /// For how long the receiver of what is being sent has not answered; nothing when it has.
    pub(super) fn silence(&self, now: Duration) -> Option<Duration> {
        let silence = self.silent.get(&self.current?.to)?;
        Some(now.saturating_sub(silence.since))
    }

    /// Whether the receiver of what is being sent has been silent for too long to get it.
    pub(super) fn is_given_up(&self, now: Duration) -> bool {
        self.silence(now).is_some_and(|silent| silent >= SILENT_MAX)
    }

    /// Whether what is being sent only keeps others waiting: its receiver has not answered for a while, and they go elsewhere, where somebody is likely to answer.
    pub(super) fn is_in_the_way(&self, now: Duration) -> bool {
        let Some(current) = self.current.filter(|current| !current.is_deciding) else { return false };
        let patience = if current.sent == 0 { SILENT_AFTER } else { COPY_LOST_AFTER };
        // One that is silent itself would only push this one aside in turn.
        let may_answer = |to: NodeId| {
            self.silent.get(&to).is_none_or(|other| now.saturating_sub(other.seen) >= SILENT_TRIED_EVERY)
        };
        self.silence(now).is_some_and(|silent| silent >= patience)
            && self.queue.iter().any(|next| next.to != current.to && may_answer(next.to))
    }

    /// Puts what is being sent back to where it was taken from: it is the next one.
    pub(super) fn put_back(&mut self) {
        let Some(current) = self.current.take().filter(|current| !current.is_withdrawn) else { return };
        // It may be wanted elsewhere by now.
        if !self.queue.iter().any(|next| next.shard == current.shard) {
            let Outgoing { shard, to, tries, .. } = current;
            self.queue.push_front(Queued { shard, to, tries });
        }
    }

    /// Puts what is being sent at the end, behind all that goes to the same server, which is behind all others. A silence that began in this try ends the try; one
    /// that began earlier has ended one already.
    pub(super) fn put_aside(&mut self) {
        let Some(current) = self.current.take().filter(|current| !current.is_withdrawn) else { return };
        let (after, first): (VecDeque<_>, VecDeque<_>) =
            self.queue.drain(..).partition(|next| next.to == current.to);
        self.queue = first;
        self.queue.extend(after);
        // It may be wanted elsewhere by now.
        if !self.queue.iter().any(|next| next.shard == current.shard) {
            let is_new = self.silent.get(&current.to).is_none_or(|silence| silence.since >= current.begun);
            let tries = current.tries + u32::from(is_new);
            self.queue.push_back(Queued { shard: current.shard, to: current.to, tries });
        }
    }

    /// See [`MetaService::withdraw`].
    pub(super) fn withdraw(
        &mut self,
        shards: &[ShardId],
        now: Duration,
    ) -> Vec<(ShardId, Option<NodeId>, Withdrawal)> {
        let is_meant = |shard: ShardId| shards.is_empty() || shards.contains(&shard);
        let mut told = Vec::new();
        self.queue.retain(|&Queued { shard, to, .. }| {
            if is_meant(shard) {
                told.push((shard, Some(to), Withdrawal::Withdrawn));
            }
            !is_meant(shard)
        });
        // What could not be moved is not told of any more.
        for (shard, to, _) in self.failed.extract_if(.., |(shard, ..)| is_meant(*shard)) {
            told.push((shard, Some(to), Withdrawal::Withdrawn));
        }
        let mut stays: Vec<(ShardId, NodeId)> =
            told.iter().filter_map(|&(shard, to, _)| Some((shard, to?))).collect();
        if let Some(current) = self.current.as_mut().filter(|current| is_meant(current.shard)) {
            current.is_withdrawn = !current.is_deciding;
            let outcome = if current.is_deciding { Withdrawal::TooLate } else { Withdrawal::Withdrawn };
            stays.extend(current.is_withdrawn.then_some((current.shard, current.to)));
            // This one tells: it may be in the queue as well, to another server.
            told.retain(|(shard, ..)| *shard != current.shard);
            told.push((current.shard, Some(current.to), outcome));
        }
        stays.into_iter().for_each(|place| self.note_withdrawn(place, now));
        for shard in shards {
            if !told.iter().any(|(known, ..)| known == shard) {
                told.push((*shard, None, Withdrawal::NotMoving));
            }
        }
        told.sort_by_key(|(shard, ..)| *shard);
        told
    }

    fn note_withdrawn(&mut self, (shard, to): (ShardId, NodeId), now: Duration) {
        let askers = self.askers.remove(&(shard, to)).unwrap_or_default();
        match self.withdrawn.iter_mut().find(|known| (known.shard, known.to) == (shard, to)) {
            // Once more, while it comes to its end: who has asked is known.
            Some(known) => known.since = now,
            None => self.withdrawn.push(Withdrawn { shard, to, since: now, askers }),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn queued(all: &[(u16, u32)]) -> VecDeque<Queued> {
        let one = |(shard, to): &(u16, u32)| Queued { shard: ShardId(*shard), to: NodeId(*to), tries: 0 };
        all.iter().map(one).collect()
    }

    fn outgoing(shard: u16, to: u32) -> Outgoing {
        Outgoing {
            shard: ShardId(shard),
            to: NodeId(to),
            attempt: 7,
            tries: 0,
            begun: Duration::ZERO,
            is_deciding: false,
            is_withdrawn: false,
            sent: 0,
            total: 0,
        }
    }

    fn order(sending: &Sending) -> Vec<(u16, u32)> {
        sending.queue.iter().map(|next| (next.shard.0, next.to.0)).collect()
    }

    #[test]
    fn a_move_can_be_withdrawn_until_it_is_being_handed_over() {
        let current = outgoing(1, 2);
        let mut sending = Sending {
            queue: queued(&[(3, 2), (1, 4), (5, 2)]),
            current: Some(current),
            failed: vec![(ShardId(6), NodeId(2), "no room".into())],
            ..Sending::default()
        };
        let told = sending.withdraw(&[ShardId(3), ShardId(9)], Duration::ZERO);
        let stays = |shard, to| (ShardId(shard), Some(NodeId(to)), Withdrawal::Withdrawn);
        assert_eq!(told, [stays(3, 2), (ShardId(9), None, Withdrawal::NotMoving)]);
        assert_eq!(sending.queue.len(), 2);
        // No more than a moment later it is being handed over.
        sending.current = Some(Outgoing { is_deciding: true, ..current });
        let told = sending.withdraw(&[ShardId(1)], Duration::ZERO);
        assert_eq!(told, [(ShardId(1), Some(NodeId(2)), Withdrawal::TooLate)]);
        assert!(!sending.current.unwrap().is_withdrawn && sending.queue.len() == 1);
        sending.current = Some(current);
        let told = sending.withdraw(&[], Duration::ZERO);
        assert_eq!(told, [stays(1, 2), stays(5, 2), stays(6, 2)]);
        assert!(sending.current.unwrap().is_withdrawn);
        assert!(sending.queue.is_empty() && sending.failed.is_empty());
        assert!(sending.withdraw(&[], Duration::ZERO).iter().all(|(shard, ..)| shard.0 == 1));
    }

    #[test]
    fn what_is_put_back_is_the_next_one_unless_it_is_wanted_elsewhere_or_not_at_all() {
        let sending = |queue: &[(u16, u32)], current| Sending {
            queue: queued(queue),
            current: Some(current),
            ..Sending::default()
        };
        let mut waits = sending(&[(3, 2), (5, 4)], Outgoing { tries: 2, ..outgoing(1, 2) });
        waits.put_back();
        assert_eq!(order(&waits), [(1, 2), (3, 2), (5, 4)]);
        assert_eq!((waits.queue[0].tries, waits.current.is_none()), (2, true));
        let mut elsewhere = sending(&[(3, 2), (1, 4)], outgoing(1, 2));
        elsewhere.put_back();
        assert_eq!(order(&elsewhere), [(3, 2), (1, 4)]);
        let mut stays = sending(&[(3, 2)], Outgoing { is_withdrawn: true, ..outgoing(1, 2) });
        stays.put_back();
        assert_eq!(order(&stays), [(3, 2)]);
    }

    fn process(number: u8) -> Option<SessionOwner> {
        Some(SessionOwner { node: NodeId(1), instance: [number; 16] })
    }

    /// A command that looks seldom, as some servers do not answer, found it nowhere when that was not told any more, and asked for it again.
    #[test]
    fn a_move_that_was_withdrawn_is_not_begun_again_by_a_command_that_looks_long_after() {
        let (waits, other) = (process(1), process(2));
        let later = 100 * SECOND;
        for is_current in [false, true] {
            let mut sending = Sending::default();
            sending.enqueue(ShardId(1), NodeId(2), waits, SECOND);
            if is_current {
                sending.begin_next(SECOND).unwrap();
            }
            sending.withdraw(&[ShardId(1)], 2 * SECOND);
            // Somebody makes sure.
            sending.withdraw(&[], 3 * SECOND);
            sending.current = None;
            assert_eq!(sending.begin_next(3 * SECOND), None);
            sending.enqueue(ShardId(1), NodeId(2), waits, later);
            assert_eq!(order(&sending), [], "it stays");
            assert_eq!(
                sending.withdrawn.iter().map(|known| known.since).collect::<Vec<_>>(),
                [later],
                "and that is told"
            );
            // Who asks for the first time wants it to go.
            sending.enqueue(ShardId(1), NodeId(2), other, later);
            assert!(order(&sending) == [(1, 2)] && sending.withdrawn.is_empty());
            sending.enqueue(ShardId(1), NodeId(3), waits, later);
            assert_eq!(order(&sending), [(1, 3)], "elsewhere it was not withdrawn");
        }
    }

    #[test]
    fn who_has_asked_for_moves_is_forgotten_with_them() {
        let mut sending = Sending::default();
        (0..20).for_each(|number| sending.enqueue(ShardId(1), NodeId(2), process(number), SECOND));
        assert_eq!(sending.askers.values().map(Vec::len).collect::<Vec<_>>(), [ASKERS_MAX]);
        sending.begin_next(SECOND).unwrap();
        assert_eq!(sending.askers.len(), 1);
        sending.current = None;
        assert_eq!(sending.begin_next(SECOND), None);
        assert!(sending.askers.is_empty());
    }

    #[test]
    fn a_receiver_that_is_silent_keeps_nobody_else_waiting() {
        let current = outgoing(1, 3);
        let queue = queued(&[(2, 3), (4, 2)]);
        let mut sending = Sending { queue: queue.clone(), current: Some(current), ..Sending::default() };
        let later = 10 * SECOND + SILENT_AFTER;
        assert!(!sending.is_in_the_way(later), "it has answered all");
        sending.note_answer(NodeId(3), true, 10 * SECOND, later);
        assert!(!sending.is_in_the_way(11 * SECOND) && sending.is_in_the_way(later));
        sending.current = Some(Outgoing { is_deciding: true, ..current });
        assert!(!sending.is_in_the_way(later), "it may be there already");
        sending.current = Some(current);
        sending.note_answer(NodeId(3), false, later, later);
        assert!(!sending.is_in_the_way(later));
        sending.note_answer(NodeId(3), true, 10 * SECOND, later);
        sending.put_aside();
        assert_eq!(order(&sending), [(4, 2), (2, 3), (1, 3)]);
        assert!(sending.current.is_none());
        // To the silent one alone: there is nobody to be let past.
        sending.queue = queued(&[(2, 3)]);
        sending.current = Some(current);
        assert!(!sending.is_in_the_way(later));
        // Withdrawn meanwhile, or wanted elsewhere.
        sending.queue = queue.clone();
        sending.current = Some(Outgoing { is_withdrawn: true, ..current });
        sending.put_aside();
        assert_eq!(sending.queue, queue);
        sending.queue = queued(&[(1, 2)]);
        sending.current = Some(current);
        sending.put_aside();
        assert_eq!(order(&sending), [(1, 2)]);
    }

    /// They pushed each other aside, and each began anew with all its tries.
    #[test]
    fn moves_to_several_receivers_that_are_silent_come_to_an_end() {
        let mut sending = Sending { queue: queued(&[(1, 2), (2, 3), (3, 4)]), ..Sending::default() };
        let mut now = SECOND;
        let (mut given_up, mut turns) = (Vec::new(), 0);
        while let Some(next) = sending.begin_next(now) {
            loop {
                let begun = now;
                now += SILENT_AFTER;
                sending.note_answer(next.to, true, begun, now);
                if sending.is_given_up(now) {
                    given_up.push(next.shard.0);
                    sending.current = None;
                    break;
                }
                if sending.is_in_the_way(now) {
                    sending.put_aside();
                    break;
                }
            }
            turns += 1;
            assert!(now < 10 * SILENT_MAX, "they go on for ever");
        }
        given_up.sort_unstable();
        assert_eq!(given_up, [1, 2, 3]);
        assert!(now <= 2 * SILENT_MAX, "{now:?}");
        assert!(turns < 40, "{turns} times one was begun");
        assert!(sending.silent.len() <= 1, "what is known of those who get nothing is forgotten");
    }

    #[test]
    fn a_silence_costs_one_try_however_often_a_move_is_put_aside_for_it() {
        let mut sending = Sending { queue: queued(&[(1, 2)]), ..Sending::default() };
        for (begun, tries) in [(1, 0), (10, 1), (20, 1), (30, 1)] {
            assert_eq!(sending.begin_next(begun * SECOND).unwrap().tries, tries);
            sending.note_answer(NodeId(2), true, begun * SECOND, (begun + 5) * SECOND);
            sending.put_aside();
        }
        // It has answered something, and is silent again.
        assert_eq!(sending.begin_next(40 * SECOND).unwrap().tries, 1);
        sending.note_answer(NodeId(2), false, 40 * SECOND, 40 * SECOND);
        sending.note_answer(NodeId(2), true, 41 * SECOND, 46 * SECOND);
        sending.put_aside();
        assert_eq!(sending.begin_next(50 * SECOND).unwrap().tries, 2);
        assert_eq!(sending.silence(51 * SECOND), Some(10 * SECOND));
    }

    /// One try that took too long threw away all that was copied.
    #[test]
    fn a_moment_of_silence_throws_no_copy_away() {
        let mut sending = Sending { queue: queued(&[(1, 2), (2, 3)]), ..Sending::default() };
        sending.begin_next(SECOND).unwrap();
        sending.current.as_mut().unwrap().sent = 2048;
        sending.note_answer(NodeId(2), true, SECOND, 6 * SECOND);
        assert!(!sending.is_in_the_way(6 * SECOND) && !sending.is_in_the_way(30 * SECOND));
        assert!(sending.is_in_the_way(31 * SECOND));
    }
}
