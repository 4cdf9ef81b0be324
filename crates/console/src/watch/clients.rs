//! What clients do, as the servers together tell it.

use super::history::Ring;
use super::sample::Traffic;
use std::collections::BTreeMap;

/// LIMIT: clients with a history, 21 KiB each; of those that come later only the figures of the moment are kept.
const HISTORIES_MAX: usize = 512;
/// LIMIT: clients that are kept.
const CLIENTS_MAX: usize = 16_384;

/// A client over time.
#[derive(Clone, Debug, Default)]
pub struct Client {
    /// Calls per second.
    pub calls: Ring,
    /// Content read, bytes per second.
    pub read: Ring,
    /// Content written, bytes per second.
    pub written: Ring,
}

/// See the module.
#[derive(Default)]
pub(super) struct Clients {
    now: BTreeMap<String, Traffic>,
    histories: BTreeMap<String, Client>,
}

impl Clients {
    /// What they do at this moment. Those that no server knows any more are forgotten.
    pub fn note(&mut self, now: &BTreeMap<String, Traffic>) {
        self.now = now.iter().take(CLIENTS_MAX).map(|(name, traffic)| (name.clone(), *traffic)).collect();
        for name in now.keys() {
            if self.histories.len() < HISTORIES_MAX && !self.histories.contains_key(name) {
                self.histories.insert(name.clone(), Client::default());
            }
        }
        for (name, history) in &mut self.histories {
            let traffic = now.get(name);
            history.calls.push(traffic.map(|traffic| traffic.calls));
            history.read.push(traffic.map(|traffic| traffic.read));
            history.written.push(traffic.map(|traffic| traffic.written));
        }
        // Room for others: one that has had no figure in all the time that is kept.
        self.histories.retain(|_, history| history.calls.has_any());
    }

    pub fn now(&self) -> Vec<(String, Traffic)> {
        self.now.iter().map(|(name, traffic)| (name.clone(), *traffic)).collect()
    }

    pub fn find(&self, name: &str) -> Option<Client> {
        self.histories.get(name).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_beyond_the_bound_have_no_history_and_are_shown_all_the_same() {
        let mut clients = Clients::default();
        let all: BTreeMap<String, Traffic> = (0..HISTORIES_MAX + 9)
            .map(|at| (format!("{at:05}"), Traffic { calls: 1.0, ..Traffic::default() }))
            .collect();
        clients.note(&all);
        assert_eq!((clients.now().len(), clients.histories.len()), (HISTORIES_MAX + 9, HISTORIES_MAX));
        assert!(clients.find("00000").is_some() && clients.find("00520").is_none());
        clients.note(&BTreeMap::new());
        assert_eq!((clients.now().len(), clients.histories.len()), (0, HISTORIES_MAX));
    }
}
