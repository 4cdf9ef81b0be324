//! Connections whose callers have not said who they are.

use super::connection::Connection;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// So many at a time.
// LIMIT: of a server. With one more the oldest of the address that has the most is ended: strangers are in each other's way, and hardly in that of others.
pub(super) const ANONYMOUS_MAX: usize = 256;
/// For how long a caller may not say who it is.
const GREETING_MAX: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Default)]
pub(super) struct Anonymous {
    /// The oldest first. Some may have said by now who they are.
    connections: Mutex<Vec<(IpAddr, Weak<Connection>)>>,
}

impl Anonymous {
    /// Adds one; tells the one that is to be ended in its favour, if there are too many.
    pub fn add(&self, address: IpAddr, connection: &Arc<Connection>) -> Option<Arc<Connection>> {
        let mut connections = self.connections.lock();
        let mut victim = None;
        if connections.len() >= ANONYMOUS_MAX {
            connections.retain(|(_, weak)| weak.upgrade().is_some_and(|one| one.is_anonymous()));
        }
        if connections.len() >= ANONYMOUS_MAX
            && let Some(at) = oldest_of_busiest(connections.iter().map(|(address, _)| *address))
        {
            victim = connections.remove(at).1.upgrade();
        }
        connections.push((address, Arc::downgrade(connection)));
        victim
    }

    /// Takes those out that have had time enough, and tells them.
    pub fn take_late(&self, now: Instant) -> Vec<Arc<Connection>> {
        let mut late = Vec::new();
        self.connections.lock().retain(|(_, weak)| {
            let Some(one) = weak.upgrade().filter(|one| one.is_anonymous()) else { return false };
            let is_late = now.duration_since(one.since) > GREETING_MAX;
            if is_late {
                late.push(one);
            }
            !is_late
        });
        late
    }
}

/// The place of the first one of the address that comes most often.
fn oldest_of_busiest(addresses: impl Iterator<Item = IpAddr>) -> Option<usize> {
    let mut seen: FxHashMap<IpAddr, (usize, usize)> = FxHashMap::default();
    for (at, address) in addresses.enumerate() {
        seen.entry(address).or_insert((0, at)).0 += 1;
    }
    // Of two that come equally often, the one that was there first.
    seen.into_values().max_by_key(|&(count, first)| (count, std::cmp::Reverse(first))).map(|(_, first)| first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_the_most_gives_way_first() {
        let address = |last: u8| IpAddr::from([10, 0, 0, last]);
        assert_eq!(oldest_of_busiest([1, 2, 2, 1, 2, 3].map(address).into_iter()), Some(1));
        assert_eq!(oldest_of_busiest([1, 2].map(address).into_iter()), Some(0));
        assert_eq!(oldest_of_busiest(std::iter::empty()), None);
    }
}
