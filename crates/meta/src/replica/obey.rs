//! Does what the machine wants done, as far as nobody has to wait for it.

use super::{Core, Replica};
use ashlar_replication::log::{Command, Message};
use ashlar_replication::membership::{self, Change};
use ashlar_types::{Epoch, NodeId};

/// Messages that wait to be sent to one copy.
// LIMIT: of an outbox; the machine sends again what was dropped.
const OUTBOX_MAX: usize = 4096;

impl Replica {
    /// Carries out commands that need no disk. What is left in `out` needs it, in order.
    pub(super) fn obey(&self, core: &mut Core, out: &mut Vec<Command<NodeId>>) {
        let mut has_committed = false;
        out.retain(|command| {
            match command {
                Command::Member(command) => self.obey_member(core, command),
                Command::Send { to, message } => core.post(*to, message),
                Command::Acknowledge { .. } | Command::Commit { .. } => has_committed = true,
                Command::Truncate { .. }
                | Command::Discard
                | Command::Append { .. }
                | Command::Install { .. } => {
                    return true;
                }
            }
            false
        });
        if has_committed {
            self.release(core);
        }
    }

    /// Lets answers go whose changes are committed.
    pub(super) fn release(&self, core: &mut Core) {
        let now = self.config.env.clock.monotonic();
        if core.machine.member().may_acknowledge(now) {
            core.held.release(core.machine.committed().0, now);
        }
        self.flushed.notify_all();
        // Those that wait for it are not woken by each change.
        let standing = Some(core.standing().essence());
        if core.announced != standing {
            core.announced = standing;
            self.turned.notify_all();
        }
    }

    pub(super) fn propose(&self, core: &mut Core, expected: Epoch, change: Change<NodeId>) {
        core.proposal = Some((expected, change));
        self.proposer.notify_all();
    }

    fn obey_member(&self, core: &mut Core, command: &membership::Command<NodeId>) {
        match command {
            membership::Command::Beacon { to, epoch, sent_at } => {
                if let Some(peer) = core.peer(*to) {
                    peer.beacon = Some((*epoch, *sent_at));
                    peer.caller.notify_all();
                }
            }
            // It is asked for again with each heartbeat, and as soon as that is durable there.
            membership::Command::Propose { expected, change: Change::Promote(node) }
                if !core.may_be_in_sync(*node, *expected) => {}
            membership::Command::Propose { expected, change } => self.propose(core, *expected, *change),
            membership::Command::Refresh => {
                core.wants_refresh = true;
                self.proposer.notify_all();
            }
            // A lease is granted in the answer to whoever asks; a membership is stored by whoever has it learned.
            membership::Command::Grant { .. } | membership::Command::Store(_) => {}
        }
    }
}

impl Core {
    /// Has `message` sent to `to`.
    fn post(&mut self, to: NodeId, message: &Message) {
        let Some(peer) = self.peer(to) else { return };
        if peer.outbox.len() >= OUTBOX_MAX {
            peer.outbox.clear();
            peer.must_resend = true;
        } else {
            peer.outbox.push_back(message.clone());
        }
        peer.sender.notify_all();
    }
}
