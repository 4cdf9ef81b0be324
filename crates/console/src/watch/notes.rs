//! What the console itself has noticed: servers that stopped answering it, and that answer again. Managers notice by themselves which do not tell them that they are there.

use super::server::Server;
use ashlar_types::{NodeId, Role, Timespec};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// LIMIT: of what is kept.
const NOTES_MAX: usize = 256;

/// Something that was noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// From 1, in their order.
    pub number: u64,
    /// When.
    pub at: Timespec,
    /// The machine.
    pub node: NodeId,
    /// What it is.
    pub role: Role,
    /// It does not answer any more; else it does again.
    pub is_away: bool,
    /// Why, as far as that is known.
    pub text: String,
}

/// See the module.
#[derive(Default)]
pub(super) struct Notes {
    all: VecDeque<Note>,
    count: u64,
    /// How each server was when it was looked at last.
    was_away: BTreeMap<(NodeId, Role), bool>,
}

impl Notes {
    /// Compares how servers are with how they were.
    pub fn look(&mut self, servers: &[Arc<Server>], now: Timespec) {
        let mut is_away = BTreeMap::new();
        for server in servers {
            let key = (server.node, server.role);
            is_away.insert(key, server.is_away());
        }
        for server in servers {
            let key = (server.node, server.role);
            // One that was never away has nothing to come back from.
            if is_away[&key] != self.was_away.get(&key).copied().unwrap_or_default() {
                self.add(key, is_away[&key], server.seen().trouble, now);
            }
        }
        self.was_away = is_away;
    }

    fn add(&mut self, (node, role): (NodeId, Role), is_away: bool, text: String, at: Timespec) {
        if self.all.len() == NOTES_MAX {
            self.all.pop_front();
        }
        self.count += 1;
        self.all.push_back(Note { number: self.count, at, node, role, is_away, text });
    }

    /// The oldest first.
    pub fn all(&self) -> Vec<Note> {
        self.all.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_notes_are_kept_than_may_be() {
        let mut notes = Notes::default();
        for turn in 0..2 * NOTES_MAX {
            notes.add((NodeId(1), Role::Meta), turn % 2 == 0, String::new(), Timespec::default());
        }
        let all = notes.all();
        assert_eq!((all.len(), all[NOTES_MAX - 1].number), (NOTES_MAX, 2 * NOTES_MAX as u64));
    }
}
