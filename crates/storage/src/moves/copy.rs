//! The mover: one thread per chain that goes, from the beginning of its copy to its end.

use super::gate::Stage;
use super::outgoing::Outgoing;
use super::{End, Moves, Place, STAGE_MAX};
use crate::piece::{Copy, Destination, NotSent};
use ashlar_chunkstore::{ChainNote, ChunkError, ChunkStore};
use ashlar_replication::hand_over::chain::{Giving, Seen, Step, Told};
use ashlar_rpc::Payload;
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{ChunkId, Epoch, Errno, TargetId};
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::time::Duration;

/// Time between two looks at whether a pause is over, or a map has come.
const LOOK: Duration = Duration::from_millis(20);
/// Time between two questions how a move has ended.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// For how long the map that says that the chain is gone is waited for before its chunks are left to the next look.
const MAP_MAX: Duration = Duration::from_secs(60);
/// For how long the other target may take to make everything durable while the chain is served here, and while nobody is answered.
const SEAL_MAX: Duration = Duration::from_secs(60);
const HELD_MAX: Duration = Duration::from_secs(1);
/// It is done again while it takes longer than this, a few times.
const SEAL_QUICK: Duration = Duration::from_millis(200);
const SEALS_MAX: u32 = 6;
/// Attempts to begin while the other server has not got the map.
const BEGIN_MAX: u32 = 250;

/// Whether the chain is answered for meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Served {
    Yes,
    No,
}

/// Why a mover ends without having moved its chain.
pub(super) enum Stop {
    /// The map does not say any more that the chain moves, or the server stops.
    NotWanted,
    /// Something is in the way.
    Obstacle(String),
}

impl From<ChunkError> for Stop {
    fn from(error: ChunkError) -> Stop {
        Stop::Obstacle(error.to_string())
    }
}

impl Destination for Outgoing {
    fn target(&self) -> TargetId {
        self.to()
    }
    fn chain(&self) -> ashlar_types::ChainId {
        Outgoing::chain(self)
    }
    fn send(&self, request: StorageRequest, payload: Payload<'_>) -> Result<StorageReply, Errno> {
        Outgoing::send(self, request, payload)
    }
}

impl Moves {
    /// Moves the chain of `outgoing`, or says why not.
    pub(super) fn run(&self, store: &ChunkStore, outgoing: &Arc<Outgoing>) {
        let (place, moving) = (outgoing.place(), outgoing.moving());
        match self.bring_over(store, outgoing) {
            Ok(()) => {
                self.setbacks.lock().remove(&place);
                tracing::info!(chain = %place.1, from = %place.0, to = %moving.to, "a chain has moved");
            }
            Err(stop) => {
                self.reopen(store, outgoing);
                if let Stop::Obstacle(why) = stop {
                    self.set_back(outgoing, why);
                }
            }
        }
        self.running.lock().remove(&place);
        *self.looked_at.lock() = None;
    }

    /// Has the chain served as before the move, unless it may be gone.
    fn reopen(&self, store: &ChunkStore, outgoing: &Outgoing) {
        let place = outgoing.place();
        if self.at(place.0).is_doubtful(place.1) {
            return;
        }
        // A note that stays costs the next start a question.
        if let Err(error) = self.at(place.0).forget_leaving(store, place.1, outgoing.moving().since) {
            tracing::warn!(%error, chain = %place.1, "what was noted of a move stays noted");
        }
        self.set(place, None);
    }

    /// Waits until the next piece of `copy` may be sent at the rate that is set. Before the chunk is locked: nobody who uses it waits for that.
    fn pay_for(&self, outgoing: &Outgoing, copy: &Copy<'_>) -> Result<(), Stop> {
        let rate = self.map().moves.rate_mib_s;
        let bytes = || {
            let map = copy.store.map(copy.chunk)?;
            let next = map.and_then(|map| copy.next_piece(&map));
            Ok::<_, ChunkError>(next.map_or(0, |(_, len)| u64::from(len)))
        };
        let clock = &self.outside.env.clock;
        let due = self.throttle.due(bytes, rate, clock.monotonic())?;
        while !self.throttle.is_over(due, rate, clock.monotonic()) {
            self.outside.env.tasks.pause(LOOK.min(due.saturating_sub(clock.monotonic())));
            self.go_on(outgoing)?;
        }
        Ok(())
    }

    /// Whether the chain is to be moved still; waits while moves are paused.
    fn go_on(&self, outgoing: &Outgoing) -> Result<(), Stop> {
        while self.is_held_up(outgoing)? {
            self.outside.env.tasks.pause(LOOK);
        }
        Ok(())
    }

    /// Whether moves are paused; the end of one that is not wanted any more, or of no use.
    fn is_held_up(&self, outgoing: &Outgoing) -> Result<bool, Stop> {
        let map = self.map();
        let chain = map.chain(outgoing.chain());
        let is_wanted = chain.is_some_and(|chain| chain.moving == Some(outgoing.moving()));
        if !is_wanted || self.is_stopping() {
            return Err(Stop::NotWanted);
        }
        match outgoing.broken() {
            Some(why) => Err(Stop::Obstacle(why)),
            None => Ok(map.moves.is_paused),
        }
    }

    fn bring_over(&self, store: &ChunkStore, outgoing: &Arc<Outgoing>) -> Result<(), Stop> {
        let place = outgoing.place();
        self.require_chains_noted(place.0, store)?;
        self.begin(store, outgoing)?;
        // ORDER: the other target takes changes by now; from here on it gets those of chunks that were listed.
        let copying = Some(Stage::Copying(outgoing.clone()));
        if !self.set_within(place, copying.clone(), STAGE_MAX) {
            return Err(Stop::Obstacle("calls that are under way take too long".to_owned()));
        }
        loop {
            self.go_on(outgoing)?;
            let (chunks, has_more) = outgoing.list(|from| {
                let page = store.list_chain(outgoing.chain(), from)?;
                Ok::<_, ChunkError>((page.chunks, page.next))
            })?;
            for chunk in chunks {
                self.copy(store, outgoing, chunk, Served::Yes)?;
            }
            if !has_more {
                break;
            }
        }
        let mut giving = Giving::new(outgoing.moving().since);
        self.note_leaving(store, place, &mut giving)?;
        loop {
            self.copy_again(store, outgoing)?;
            debug_assert!(giving.may_seal(), "it is noted, and served");
            self.seal_while_served(outgoing)?;
            self.await_manager(outgoing)?;
            if self.hand_over(store, outgoing, &mut giving)? {
                return Ok(());
            }
            self.set(place, copying.clone());
        }
    }

    /// Refuses to move anything from a target with chunks whose chain is not known: they might be of this one, and would be left behind. New chunks have it
    /// noted, so a target without such chunks stays without.
    fn require_chains_noted(&self, target: TargetId, store: &ChunkStore) -> Result<(), Stop> {
        if self.noted.lock().contains(&target) {
            return Ok(());
        }
        let bytes = store.bytes_by_chain()?;
        if bytes.contains_key(&None) {
            return Err(Stop::Obstacle(format!(
                "{target} has chunks that an earlier version wrote, which does not say of which chain they are: copy the files on it, and remove the old ones"
            )));
        }
        self.noted.lock().insert(target);
        Ok(())
    }

    /// Has the other target get ready.
    fn begin(&self, store: &ChunkStore, outgoing: &Outgoing) -> Result<(), Stop> {
        let (mut from, mut attempts) = (None, 0);
        loop {
            self.go_on(outgoing)?;
            let (target, chain, epoch) = (outgoing.to(), outgoing.chain(), outgoing.moving().since);
            match outgoing.send(StorageRequest::MoveBegin { target, chain, epoch, from }, Payload::None) {
                Ok(StorageReply::MoveBegun(None)) => {
                    let mark = store.loss_mark(chain);
                    let request = StorageRequest::TakeLossMark { target, chain, mark };
                    return match outgoing.send(request, Payload::None) {
                        // An earlier version does not take it: who syncs there later may hear that something is lost that is not.
                        Ok(_) | Err(Errno::EIO) => Ok(()),
                        Err(errno) => Err(Stop::Obstacle(format!("{target} does not get ready: {errno}"))),
                    };
                }
                Ok(StorageReply::MoveBegun(next)) => from = next,
                // It has not got the map yet.
                Err(Errno::EREMCHG) if attempts < BEGIN_MAX => {
                    attempts += 1;
                    self.outside.env.tasks.pause(LOOK);
                }
                Err(errno) => return Err(Stop::Obstacle(format!("{target} does not get ready: {errno}"))),
                Ok(_) => return Err(Stop::Obstacle(format!("{target} gives an answer of the wrong kind"))),
            }
        }
    }

    /// Has everything made durable there, while the chain is served here: most of what there is, so that the rest takes moments.
    fn seal_while_served(&self, outgoing: &Outgoing) -> Result<(), Stop> {
        let clock = &self.outside.env.clock;
        for _ in 0..SEALS_MAX {
            self.go_on(outgoing)?;
            let begun = clock.monotonic();
            self.seal(outgoing, SEAL_MAX).map_err(|errno| {
                Stop::Obstacle(format!("{} cannot make it durable: {errno}", outgoing.to()))
            })?;
            if clock.monotonic() - begun < SEAL_QUICK {
                break;
            }
        }
        Ok(())
    }

    fn seal(&self, outgoing: &Outgoing, wait: Duration) -> Result<(), Errno> {
        let (target, chain) = (outgoing.to(), outgoing.chain());
        outgoing.send_within(StorageRequest::MoveSeal { target, chain }, Payload::None, wait).map(drop)
    }

    /// Copies what has to be copied once more.
    fn copy_again(&self, store: &ChunkStore, outgoing: &Outgoing) -> Result<(), Stop> {
        loop {
            self.go_on(outgoing)?;
            let again = outgoing.take_again();
            if again.is_empty() {
                return Ok(());
            }
            for chunk in again {
                self.copy(store, outgoing, chunk, Served::Yes)?;
            }
        }
    }

    /// Waits until a manager answers, and what is behind it: from the moment at which the chain is closed it must do so once more. The question is about a move that there is
    /// not, so its answer is a compare-and-set that changes nothing.
    fn await_manager(&self, outgoing: &Outgoing) -> Result<(), Stop> {
        let (from, chain) = outgoing.place();
        let nothing = End { chain, from, since: Epoch(0), is_given_up: true };
        loop {
            self.go_on(outgoing)?;
            if matches!((self.outside.end_move)(nothing), Told::Ended { .. }) {
                return Ok(());
            }
            self.outside.env.tasks.pause(ASK_AGAIN);
        }
    }

    fn note_leaving(
        &self,
        store: &ChunkStore,
        (target, chain): Place,
        giving: &mut Giving,
    ) -> Result<(), Stop> {
        let at = self.at(target);
        let _alone = at.noting.lock();
        store.note_chain(chain, Some(ChainNote::Leaving { since: giving.since() }))?;
        giving.noted();
        Ok(())
    }

    /// Gives the chain away. False when something came in between, and it is to be answered for meanwhile.
    fn hand_over(&self, store: &ChunkStore, outgoing: &Outgoing, giving: &mut Giving) -> Result<bool, Stop> {
        let place @ (target, chain) = outgoing.place();
        loop {
            match giving.step() {
                Step::Note => self.note_leaving(store, place, giving)?,
                Step::Close => {
                    if !self.set_within(place, Some(Stage::Held), STAGE_MAX) {
                        return Err(Stop::Obstacle("calls that are under way take too long".to_owned()));
                    }
                    giving.closed();
                }
                Step::Seal => {
                    if !self.finish_copy(store, outgoing)? {
                        giving.not_yet();
                        return Ok(false);
                    }
                    giving.sealed();
                }
                Step::Ask { is_given_up } => {
                    let end = End { chain, from: target, since: giving.since(), is_given_up };
                    giving.told((self.outside.end_move)(end));
                    if !giving.is_closed() {
                        tracing::info!(%chain, "no manager could be asked to finish a move; the chain is served meanwhile");
                        return Ok(false);
                    }
                    if !matches!(giving.step(), Step::Ask { .. }) {
                        continue;
                    }
                    if self.is_stopping() {
                        // The next start finds out.
                        self.leave_in_doubt(place, giving.clone());
                        return Err(Stop::NotWanted);
                    }
                    // ORDER: whether it took place is not known. The chain stays closed until a manager tells.
                    self.outside.env.tasks.pause(ASK_AGAIN);
                }
                Step::AwaitMap => {
                    if self.has_map_come(outgoing, giving) {
                        self.set(place, None);
                    }
                    self.note_leftovers(target);
                    return Ok(true);
                }
                Step::Reopen => {
                    return Err(Stop::Obstacle("the managers were not there to finish it".to_owned()));
                }
            }
        }
    }

    /// Has what is left copied and made durable on the other target, while nobody is answered about the chain. False when there is more to copy, or to be waited for.
    fn finish_copy(&self, store: &ChunkStore, outgoing: &Outgoing) -> Result<bool, Stop> {
        let again = outgoing.take_again();
        if !again.is_empty() {
            for chunk in again {
                self.copy(store, outgoing, chunk, Served::No)?;
            }
            return Ok(false);
        }
        // Nothing is waited for here that does not end by itself: nobody is answered.
        if self.is_held_up(outgoing)? {
            return Ok(false);
        }
        match self.seal(outgoing, HELD_MAX) {
            Ok(()) => Ok(true),
            // Its disk is busy. The chain is served meanwhile.
            Err(Errno::ETIMEDOUT) => Ok(false),
            Err(errno) => Err(Stop::Obstacle(format!("{} cannot make it durable: {errno}", outgoing.to()))),
        }
    }

    /// Waits for the map that says that the chain is gone. Without it the chain stays closed here, and is looked at again later.
    fn has_map_come(&self, outgoing: &Outgoing, giving: &Giving) -> bool {
        let place @ (target, chain) = outgoing.place();
        let clock = &self.outside.env.clock;
        let deadline = clock.monotonic() + MAP_MAX;
        while !Seen::of(&self.map(), chain).is_some_and(|seen| giving.is_ended_by(seen, target)) {
            if self.is_stopping() || clock.monotonic() > deadline {
                // It stays closed: the doubt is settled when the map has come.
                self.leave_in_doubt(place, giving.clone());
                return false;
            }
            self.outside.env.tasks.pause(Duration::from_millis(1));
        }
        true
    }

    /// Makes a chunk on the other target what it is here. While the chain is `served` it waits for its turn, and for what the rate allows, before each piece.
    fn copy(
        &self,
        store: &ChunkStore,
        outgoing: &Outgoing,
        chunk: ChunkId,
        served: Served,
    ) -> Result<(), Stop> {
        let mut copy = Copy::anew(store, outgoing, chunk, self.outside.piece_bytes);
        let not_taken = |error| match error {
            NotSent::Disk(error) => Stop::from(error),
            NotSent::Refused(errno) => {
                Stop::Obstacle(format!("{} does not take chunk {chunk}: {errno}", outgoing.to()))
            }
        };
        let mut is_paid = served == Served::No;
        loop {
            if served == Served::Yes {
                self.go_on(outgoing)?;
            }
            if !is_paid {
                self.pay_for(outgoing, &copy)?;
                is_paid = true;
            }
            let alone = outgoing.lock(chunk);
            if outgoing.is_being_deleted(chunk) {
                drop(alone);
                // What was sent of it is deleted there, whatever becomes of it here.
                copy.begin_anew();
                self.outside.env.tasks.pause(LOOK);
                continue;
            }
            let Some(map) = store.map(chunk)? else { return copy.is_gone().map_err(not_taken) };
            let begun = self.outside.env.clock.monotonic();
            let bytes = copy.send_piece(&map).map_err(not_taken)?;
            self.throttle.sent(begun, self.map().moves.rate_mib_s, self.outside.env.clock.monotonic());
            outgoing.note_sent(0, bytes.into());
            self.note_copied(outgoing.place().0, bytes.into());
            // Changes since the chunk was begun are there already, each since its piece was.
            if copy.next_piece(&map).is_none() {
                copy.end(&map).map_err(not_taken)?;
                outgoing.note_sent(1, 0);
                return Ok(());
            }
            is_paid = served == Served::No;
            // Whoever waits for the chunk has it before the next piece.
            MutexGuard::unlock_fair(alone);
        }
    }
}
