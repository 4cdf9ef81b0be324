//! Takes what another copy sends.

use super::message::{Heard, Say, number_of};
use super::send::positions;
use super::{Core, Replica, Service};
use ashlar_kv::format::decode_frames;
use ashlar_kv::{Group, Key, KvError};
use ashlar_replication::log::{Command, Message, Sequence};
use ashlar_replication::membership;
use ashlar_types::NodeId;
use ashlar_types::codec::{decode, encode};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// Above all numbers of entries there can be.
const SEQUENCE_MAX: u64 = u64::MAX / 4;
/// For how long somebody waits who comes while another one is heard.
const TURN_MAX: Duration = Duration::from_secs(2);

/// The turn of whoever hears; over when this is dropped.
struct Turn<'a>(&'a Replica);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.core.lock().is_hearing = false;
        self.0.turned.notify_all();
    }
}

impl Replica {
    /// What the copy on `from`, which the caller has made sure it is, says; the answer. It may take as long as a disk does.
    pub fn hear(&self, from: NodeId, head: &[u8], payload: &[u8]) -> Vec<u8> {
        let heard = match decode::<Say>(head, "message of a copy") {
            Ok(Say::Beacon { epoch, sent_at }) => self.hear_beacon(from, epoch, sent_at),
            // Beside entries, which need not wait for a disk to sync what came before them.
            Ok(Say::Flush { epoch, through }) => self.flush_for(from, epoch, through).unwrap_or(Heard::Later),
            Ok(say) => self.hear_in_turn(from, say, payload).unwrap_or(Heard::Later),
            Err(_) => Heard::Later,
        };
        self.deliver_ready();
        encode(&heard)
    }

    /// The operator says that `lost` never comes back: if this copy lacks something since a power cut, and hears nobody who may have it, it has that one removed. Asked for again after a start of the
    /// process, and where another epoch has begun meanwhile. `None`: its disk does not work, or it is ending.
    pub fn go_on_without(&self, lost: NodeId) -> Option<()> {
        let now = self.config.env.clock.monotonic();
        let mut core = self.core.lock();
        if core.broken.is_some() || core.is_stopping {
            return None;
        }
        let member = core.machine.member_mut();
        if member.waits_for(now).any(|waited_for| waited_for == lost) {
            member.give_up(lost);
            tracing::warn!(%lost, "the operator says that a machine never comes back: a copy of metadata goes on with what is here");
        }
        Some(())
    }

    fn hear_beacon(&self, from: NodeId, epoch: ashlar_types::Epoch, sent_at: Duration) -> Heard {
        let now = self.config.env.clock.monotonic();
        let mut core = self.core.lock();
        if core.broken.is_some() || core.is_stopping {
            return Heard::Later;
        }
        let mut out = Vec::new();
        core.machine.member_mut().beacon(from, epoch, sent_at, now, &mut out);
        let is_granted = out.iter().any(|command: &Command<NodeId>| {
            matches!(command, Command::Member(membership::Command::Grant { .. }))
        });
        self.obey(&mut core, &mut out);
        if is_granted { Heard::Grant { epoch, sent_at } } else { Heard::Later }
    }

    /// One at a time, in the order in which they come. `None`: not now.
    fn hear_in_turn(&self, from: NodeId, say: Say, payload: &[u8]) -> Option<Heard> {
        let _turn = self.take_turn(from, &say)?;
        match say {
            Say::Beacon { .. } | Say::Flush { .. } => None,
            Say::Entries { message, groups } => {
                let groups = groups_of(&message, &groups, payload)?;
                self.take(from, &[message], groups)
            }
            // What it is about comes with entries, and with nothing else.
            Say::Messages(messages)
                if messages.iter().any(|message| matches!(message, Message::Prepare { .. })) =>
            {
                None
            }
            Say::Messages(messages) => self.take(from, &messages, Vec::new()),
            Say::Page { epoch, at, number, pairs } => {
                let pairs = pairs_of(&pairs, payload)?;
                self.take_page(from, epoch, (number_of(at), number), &pairs)
            }
            Say::Checkpoint { message, import, pages } => self.take_checkpoint(from, message, &import, pages),
        }
    }

    fn take_turn(&self, from: NodeId, say: &Say) -> Option<Turn<'_>> {
        let clock = &self.config.env.clock;
        let end = clock.monotonic() + TURN_MAX;
        let mut core = self.core.lock();
        loop {
            // Reports to the primary change nothing of its lane.
            let is_report = matches!(say, Say::Messages(_)) && core.machine.member().is_primary();
            let is_ours = core.service != Service::Absent && !is_report;
            if core.broken.is_some()
                || core.is_stopping
                || is_ours
                || !core.machine.member().membership().is_member(from)
            {
                return None;
            }
            if !core.is_hearing {
                core.is_hearing = true;
                return Some(Turn(self));
            }
            let left = end.saturating_sub(clock.monotonic());
            if left.is_zero() {
                return None;
            }
            self.turned.wait_for(&mut core, left);
        }
    }

    /// Gives `messages` to the machine, does what it wants done, and tells what it says to `from`.
    pub(super) fn take(&self, from: NodeId, messages: &[Message], groups: Vec<Group>) -> Option<Heard> {
        let mut said = Vec::new();
        for message in messages {
            let mut out = Vec::new();
            {
                let mut core = self.core.lock();
                // ORDER: the machine hears of what it would install when that has come, for it takes nothing else meanwhile.
                if matches!(message, Message::Checkpoint { .. }) && core.would_install(from, message) {
                    return Some(Heard::NeedsAll);
                }
                core.machine.receive(from, message, &mut out);
            }
            let mut at = 0;
            while let Some(command) = out.get(at).cloned() {
                at += 1;
                match command {
                    Command::Send { to, message } if to == from => said.push(message),
                    Command::Append { skip } => self.append(&groups, skip, &mut out)?,
                    Command::Truncate { after } => {
                        let cut = self.lane().truncate_after(after.0);
                        self.or_give_up("entries could not be taken back", cut)?;
                    }
                    Command::Discard => self.discard()?,
                    // Not here: see above, and `take_all`.
                    Command::Install { .. } => return None,
                    other => {
                        let mut core = self.core.lock();
                        self.obey(&mut core, &mut vec![other]);
                    }
                }
            }
        }
        Some(Heard::Messages(said))
    }

    fn append(&self, groups: &[Group], skip: u64, out: &mut Vec<Command<NodeId>>) -> Option<()> {
        let new = groups.get(skip as usize..).unwrap_or_default();
        let appended = self.lane().append_groups(new);
        self.or_give_up("entries could not be written", appended)?;
        let last = self.lane().last_group();
        let mut core = self.core.lock();
        core.machine.stored(super::message::position_of(last), out);
        Some(())
    }

    fn flush_for(&self, from: NodeId, epoch: ashlar_types::Epoch, through: Sequence) -> Option<Heard> {
        let reported = {
            let core = self.core.lock();
            if !core.follows(from, epoch) || core.broken.is_some() || core.is_stopping {
                return None;
            }
            core.machine.reported()?.min(through)
        };
        let lane = self.lane();
        let flushed = lane.flush_here();
        // One that was replaced meanwhile was closed for that.
        if flushed.is_err() && !Arc::ptr_eq(&lane, &self.lane()) {
            return None;
        }
        self.or_give_up("entries could not be synced", flushed)?;
        // What was taken back meanwhile was not flushed, and what came in its place neither.
        if !self.core.lock().follows(from, epoch) {
            return None;
        }
        Some(Heard::Flushed { epoch, through: reported })
    }

    /// What `done` is; after an error nobody knows what of the log the machine may count on.
    pub(super) fn or_give_up<T>(&self, what: &str, done: Result<T, KvError>) -> Option<T> {
        done.inspect_err(|error| self.core.lock().give_up(format!("{what}: {error}"))).ok()
    }
}

impl Core {
    fn would_install(&self, from: NodeId, message: &Message) -> bool {
        let mut out = Vec::new();
        self.machine.clone().receive(from, message, &mut out);
        out.iter().any(|command| matches!(command, Command::Install { .. }))
    }
}

/// The pairs of a page; nothing when they do not fit together.
fn pairs_of(lens: &[(u32, u32)], payload: &[u8]) -> Option<Vec<(Key, Bytes)>> {
    let payload = Bytes::copy_from_slice(payload);
    let mut pairs = Vec::with_capacity(lens.len().min(payload.len()));
    let mut at = 0usize;
    let mut take = |len: u32| {
        let end = at.checked_add(len as usize).filter(|end| *end <= payload.len())?;
        Some(payload.slice(std::mem::replace(&mut at, end)..end))
    };
    for &(key, value) in lens {
        pairs.push((Key::from_slice(&take(key)?), take(value)?));
    }
    (at == payload.len()).then_some(pairs)
}

/// The groups that come with a `Prepare`; nothing when they do not fit together.
fn groups_of(message: &Message, heads: &[(u32, u32)], payload: &[u8]) -> Option<Vec<Group>> {
    let Message::Prepare { epoch, base, previous, entries, committed } = message else { return None };
    let count = entries.iter().try_fold(0u64, |sum, run| sum.checked_add(run.count))?;
    let is_in_range =
        [*base, previous.sequence, *committed].iter().all(|sequence| sequence.0 <= SEQUENCE_MAX);
    let epochs = || entries.iter().map(|run| run.epoch);
    let ascends =
        std::iter::once(previous.epoch).chain(epochs()).is_sorted() && epochs().all(|of| of <= *epoch);
    if count != heads.len() as u64 || !is_in_range || !ascends {
        return None;
    }
    let payload = Bytes::copy_from_slice(payload);
    let mut groups = Vec::with_capacity(heads.len().min(payload.len()));
    let mut at = 0usize;
    for (&(frames, len), position) in heads.iter().zip(positions(*previous, entries)) {
        let end = at.checked_add(len as usize)?;
        let body = (end <= payload.len()).then(|| payload.slice(at..end))?;
        // What cannot be written must not be counted by the machine.
        decode_frames(&body, frames).filter(|frames| !frames.is_empty())?;
        groups.push(Group { number: number_of(position), frames, body });
        at = end;
    }
    (at == payload.len()).then_some(groups)
}
