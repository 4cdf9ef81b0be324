//! Sends another copy what the machine wants it to have.

use super::message::{Heard, Say, number_of, position_of};
use super::peer::AGAIN;
use super::{Core, Replica};
use ashlar_env::Signal;
use ashlar_kv::format::GROUP_BYTES_MAX;
use ashlar_kv::{Group, GroupCursor, Import, KvError, Snapshot};
use ashlar_replication::log::{EntryRuns, LogPosition, Message, Sequence};
use ashlar_types::{Epoch, NodeId};
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// For how long a copy is waited for that takes entries: it writes them to its log, and may have to wait for a checkpoint.
const ENTRIES_WAIT: Duration = Duration::from_secs(5);
/// Time until it is tried again to read all that the lane holds when some of it cannot be read.
const UNREADABLE_PAUSE: Duration = Duration::from_secs(60);
/// Time between looks whether there is anybody to send it to.
const LOOK: Duration = Duration::from_millis(500);
/// For how long one is waited for that takes a part of all there is.
const PAGE_WAIT: Duration = Duration::from_secs(30);
/// Bytes of entries in one message, about.
// LIMIT: of a message, besides one entry.
const ENTRIES_BYTES: usize = 2 << 20;
/// Bytes of pairs in one message, about.
const PAGE_BYTES: usize = 1 << 20;
/// Above all keys.
const KEYS_END: [u8; 600] = [0xFF; 600];

/// What is sent next.
enum Job {
    /// A `Prepare`, with the groups that are in memory.
    Entries(Message, Vec<Group>),
    Messages(Vec<Message>),
    /// All there is, at the epoch of the message.
    Everything(Message),
    /// What was not answered, once more.
    Again,
}

impl Replica {
    /// Sends to one copy for as long as it is one.
    pub(super) fn send_on(weak: &Weak<Replica>, node: NodeId, signal: &Arc<Signal>) {
        let mut cursor = GroupCursor::default();
        if let Some(replica) = weak.upgrade() {
            // Under load it is not to go off with the first of many changes that come at the same moment: each message costs both servers more than a change does.
            replica.config.env.tasks.give_way();
        }
        while let Some(replica) = weak.upgrade() {
            let Some(job) = replica.next_for(node, signal, |peer| &peer.sender, Core::next_job) else {
                return;
            };
            let is_done = match job {
                Job::Entries(message, groups) => replica.send_entries(node, message, groups, &mut cursor),
                Job::Messages(messages) => replica.say(node, &Say::Messages(messages), &[], ENTRIES_WAIT),
                Job::Everything(message) => replica.send_everything(node, &message),
                Job::Again => replica.send_again(node),
            };
            replica.deliver_ready();
            if !is_done {
                replica.config.env.tasks.pause(AGAIN);
                let mut core = replica.core.lock();
                if let Some(peer) = core.peer(node) {
                    peer.must_resend = true;
                }
            }
        }
    }

    /// Has a copy sent what it has not answered.
    fn send_again(&self, node: NodeId) -> bool {
        let mut core = self.core.lock();
        let mut out = Vec::new();
        core.machine.resend_to(node, &mut out);
        self.obey(&mut core, &mut out);
        true
    }

    /// Has `node` hear `say`, and the machine what it answers; false when it has to be said again.
    fn say(&self, node: NodeId, say: &Say, payload: &[u8], wait: Duration) -> bool {
        let Some(Heard::Messages(messages)) = self.ask(node, say, payload, wait) else { return false };
        self.take_answers(node, &messages) || matches!(say, Say::Messages(_))
    }

    /// Gives the machine what `node` has answered; false when that is nothing.
    fn take_answers(&self, node: NodeId, messages: &[Message]) -> bool {
        let mut core = self.core.lock();
        let mut out = Vec::new();
        for message in messages {
            let before = out.len();
            core.machine.receive(node, message, &mut out);
            // Something was lost on its way: what is behind it is of no use before it was sent once more.
            if matches!(message, Message::Mismatch { .. }) && out.len() == before {
                core.clear_outbox(node);
                core.machine.resend_to(node, &mut out);
            }
        }
        self.obey(&mut core, &mut out);
        // Whoever has taken something says so. One that is at another epoch says nothing.
        !messages.is_empty()
    }

    fn send_entries(
        &self,
        node: NodeId,
        message: Message,
        mut groups: Vec<Group>,
        cursor: &mut GroupCursor,
    ) -> bool {
        let Message::Prepare { epoch, base, previous, entries, committed } = message else { return true };
        let count = count_of(&entries);
        if count > 0 && groups.is_empty() {
            let behind = self.lane().groups_behind(previous.sequence.0, cursor, ENTRIES_BYTES);
            match behind {
                Ok(Some(found)) => groups = found,
                // A checkpoint has taken it meanwhile: the machine is told, and sends something else.
                Ok(None) => {
                    self.note_floor();
                    return false;
                }
                Err(error) => {
                    tracing::warn!(%error, "the log could not be read for a copy");
                    return false;
                }
            }
            groups.truncate(count as usize);
        }
        if !groups.is_empty() {
            groups.truncate(fitting(&groups));
        }
        let (now, rest) = split(&entries, groups.len() as u64);
        let is_as_said =
            groups.iter().zip(positions(previous, &now)).all(|(group, at)| position_of(group.number) == at);
        if !is_as_said || (count > 0 && groups.is_empty()) {
            return false;
        }
        let last = groups.last().map_or(previous, |group| position_of(group.number));
        if !rest.is_empty() {
            let mut core = self.core.lock();
            if let Some(peer) = core.peer(node) {
                let rest = Message::Prepare { epoch, base, previous: last, entries: rest, committed };
                peer.outbox.push_front(rest);
            }
        }
        let heads = groups.iter().map(|group| (group.frames, group.body.len() as u32)).collect();
        let mut payload = Vec::with_capacity(groups.iter().map(|group| group.body.len()).sum());
        groups.iter().for_each(|group| payload.extend_from_slice(&group.body));
        let message = Message::Prepare { epoch, base, previous, entries: now, committed };
        self.say(node, &Say::Entries { message, groups: heads }, &payload, ENTRIES_WAIT)
    }

    /// Sends all that the lane holds.
    fn send_everything(&self, node: NodeId, message: &Message) -> bool {
        let Message::Checkpoint { epoch, base, .. } = *message else { return true };
        // It may have more than it knows to be committed, and lack nothing.
        match self.ask(node, &Say::Messages(vec![message.clone()]), &[], ENTRIES_WAIT) {
            Some(Heard::NeedsAll) => {}
            Some(Heard::Messages(messages)) => return self.take_answers(node, &messages),
            _ => return false,
        }
        tracing::info!(%node, "a copy of metadata gets all of it");
        let sent = self.send_pages(node, epoch);
        match sent {
            Ok(Some((at, import, pages))) => {
                let message = Message::Checkpoint { epoch, base, at };
                self.say(node, &Say::Checkpoint { message, import, pages }, &[], PAGE_WAIT)
            }
            Ok(None) => false,
            Err(error) => {
                tracing::warn!(%error, "what a copy lacks could not be read");
                if matches!(error, KvError::Corrupt { .. } | KvError::Io { .. })
                    && !(error.is_damage() && self.give_up_damaged(&error.to_string()))
                {
                    self.await_end(epoch, UNREADABLE_PAUSE);
                }
                false
            }
        }
    }

    /// Waits, unless the epoch ends meanwhile.
    fn await_end(&self, epoch: Epoch, pause: Duration) {
        let clock = &self.config.env.clock;
        let end = clock.monotonic() + pause;
        while !self.is_over(epoch) && clock.monotonic() < end {
            let mut core = self.core.lock();
            self.turned.wait_for(&mut core, LOOK);
        }
    }

    fn is_over(&self, epoch: Epoch) -> bool {
        let core = self.core.lock();
        core.is_stopping || core.machine.member().epoch() != epoch
    }

    fn send_pages(&self, node: NodeId, epoch: Epoch) -> Result<Option<(LogPosition, Import, u64)>, KvError> {
        let export = self.lane().export()?;
        let at = position_of(export.last);
        let (mut from, mut number) = (Vec::new(), 0);
        loop {
            let Page { pairs, payload, next } = page(&*export.content, &from)?;
            if !pairs.is_empty() {
                let is_taken = matches!(
                    self.ask(node, &Say::Page { epoch, at, number, pairs }, &payload, PAGE_WAIT),
                    Some(Heard::Messages(_))
                );
                if !is_taken || self.is_over(epoch) {
                    return Ok(None);
                }
                number += 1;
            }
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        Ok(Some((at, Import { last: number_of(at), sequences: export.sequences }, number)))
    }
}

impl Core {
    fn clear_outbox(&mut self, node: NodeId) {
        if let Some(peer) = self.peer(node) {
            peer.outbox.clear();
        }
    }

    /// What is sent to the peer at `at` next.
    fn next_job(&mut self, at: usize) -> Option<Job> {
        let peer = self.peers.get_mut(at)?;
        if std::mem::take(&mut peer.must_resend) {
            peer.outbox.clear();
            return Some(Job::Again);
        }
        match peer.outbox.pop_front()? {
            Message::Prepare { epoch, mut base, previous, mut entries, mut committed } => {
                let mut end = previous.sequence.0 + count_of(&entries);
                // What was asked for one by one goes together.
                while let Some(Message::Prepare {
                    epoch: same,
                    base: newer,
                    previous: next,
                    entries: more,
                    committed: known,
                }) = peer.outbox.front()
                    && *same == epoch
                    && next.sequence.0 == end
                {
                    (base, committed) = (*newer, committed.max(*known));
                    end += count_of(more);
                    join(&mut entries, more);
                    peer.outbox.pop_front();
                }
                let count = count_of(&entries) as usize;
                let groups = self.recent.behind(previous.sequence.0, count, ENTRIES_BYTES);
                Some(Job::Entries(Message::Prepare { epoch, base, previous, entries, committed }, groups))
            }
            message @ Message::Checkpoint { .. } => Some(Job::Everything(message)),
            message => {
                let mut messages = vec![message];
                while peer
                    .outbox
                    .front()
                    .is_some_and(|next| !matches!(next, Message::Prepare { .. } | Message::Checkpoint { .. }))
                {
                    messages.extend(peer.outbox.pop_front());
                }
                Some(Job::Messages(messages))
            }
        }
    }
}

/// How many of `groups` go in one message; one at least.
fn fitting(groups: &[Group]) -> usize {
    let mut bytes = 0;
    let is_within = |group: &&Group| {
        bytes += group.body.len();
        bytes <= GROUP_BYTES_MAX
    };
    groups.iter().take_while(is_within).count().max(1)
}

fn count_of(entries: &EntryRuns) -> u64 {
    entries.iter().map(|run| run.count).sum()
}

fn join(entries: &mut EntryRuns, more: &EntryRuns) {
    for run in more {
        match entries.last_mut() {
            Some(last) if last.epoch == run.epoch => last.count += run.count,
            _ => entries.push(*run),
        }
    }
}

/// The first `count` of `entries`, and the rest.
fn split(entries: &EntryRuns, count: u64) -> (EntryRuns, EntryRuns) {
    let (mut first, mut rest) = (EntryRuns::new(), EntryRuns::new());
    let mut left = count;
    for run in entries {
        let here = run.count.min(left);
        left -= here;
        for (to, count) in [(&mut first, here), (&mut rest, run.count - here)] {
            if count > 0 {
                to.push(ashlar_replication::log::EntryRun { epoch: run.epoch, count });
            }
        }
    }
    (first, rest)
}

/// The positions of `entries`, which are behind `previous`.
pub(super) fn positions(
    previous: LogPosition,
    entries: &EntryRuns,
) -> impl Iterator<Item = LogPosition> + '_ {
    let epochs = entries.iter().flat_map(|run| (0..run.count).map(|_| run.epoch));
    (previous.sequence.0 + 1..)
        .zip(epochs)
        .map(|(number, epoch)| LogPosition { sequence: Sequence(number), epoch })
}

/// Some of all that a lane holds.
#[derive(Default)]
struct Page {
    /// Bytes of keys and values.
    pairs: Vec<(u32, u32)>,
    /// Keys and values.
    payload: Vec<u8>,
    /// Where the next one begins.
    next: Option<Vec<u8>>,
}

/// Pairs of `content` from key `from` on.
fn page(content: &dyn Snapshot, from: &[u8]) -> Result<Page, KvError> {
    let mut page = Page::default();
    content.scan(from, &KEYS_END, &mut |key, value| {
        if page.payload.len() >= PAGE_BYTES {
            page.next = Some(key.to_vec());
            return ControlFlow::Break(());
        }
        page.pairs.push((key.len() as u32, value.len() as u32));
        page.payload.extend_from_slice(key);
        page.payload.extend_from_slice(value);
        ControlFlow::Continue(())
    })?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_replication::log::EntryRun;
    use smallvec::smallvec;

    fn run(epoch: u64, count: u64) -> EntryRun {
        EntryRun { epoch: Epoch(epoch), count }
    }

    #[test]
    fn entries_are_cut_and_joined_across_epochs() {
        let entries: EntryRuns = smallvec![run(1, 2), run(3, 4)];
        let (first, rest) = split(&entries, 3);
        assert_eq!((first.as_slice(), rest.as_slice()), (&[run(1, 2), run(3, 1)][..], &[run(3, 3)][..]));
        assert_eq!(split(&entries, 6).1.len() + split(&entries, 0).0.len(), 0);
        let mut joined = first;
        join(&mut joined, &rest);
        assert_eq!(joined, entries);
        let previous = LogPosition { sequence: Sequence(9), epoch: Epoch(1) };
        let epochs: Vec<_> = positions(previous, &entries).map(|at| (at.sequence.0, at.epoch.0)).collect();
        assert_eq!(epochs, [(10, 1), (11, 1), (12, 3), (13, 3), (14, 3), (15, 3)]);
    }
}
