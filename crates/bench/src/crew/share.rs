//! Which threads are on which machine.

use serde::{Deserialize, Serialize};

/// A machine's part of the threads of a plan: they are given out to the machines in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Which machine, from 0.
    pub machine: usize,
    /// How many there are, at least 1.
    pub machines: usize,
}

impl Share {
    /// The part of a machine that is alone.
    pub const WHOLE: Share = Share { machine: 0, machines: 1 };

    /// The numbers of this machine's threads, of `threads` in all.
    pub fn threads(self, threads: usize) -> impl Iterator<Item = usize> {
        (self.machine..threads).step_by(self.machines.max(1))
    }

    /// The thread whose files `thread` of `threads` looks at when it must not look at its own: one of the next machine that has threads. On
    /// one machine, the next thread.
    pub fn neighbour(self, thread: usize, threads: usize) -> usize {
        let busy = self.machines.min(threads);
        if busy <= 1 {
            return (thread + 1) % threads.max(1);
        }
        let next = (thread % self.machines + 1) % busy;
        let there = (threads - next).div_ceil(self.machines);
        next + self.machines * (thread / self.machines % there)
    }

    /// Whether the neighbour of every thread is on another machine.
    pub fn has_neighbours_elsewhere(self, threads: usize) -> bool {
        self.machines.min(threads) > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_is_on_exactly_one_machine_and_none_has_two_more_than_another() {
        for machines in 1..6 {
            for threads in 1..20 {
                let each: Vec<Vec<usize>> = (0..machines)
                    .map(|machine| Share { machine, machines }.threads(threads).collect())
                    .collect();
                let mut all = each.concat();
                all.sort_unstable();
                assert_eq!(all, (0..threads).collect::<Vec<_>>());
                let counts = each.iter().map(Vec::len);
                assert!(counts.clone().max().unwrap() - counts.min().unwrap() <= 1);
            }
        }
    }

    #[test]
    fn the_neighbour_is_on_another_machine_and_files_are_looked_at_evenly() {
        for machines in 1..6 {
            for threads in 1..20 {
                let share = Share { machine: 0, machines };
                let mut looks = vec![0; threads];
                for thread in 0..threads {
                    let neighbour = share.neighbour(thread, threads);
                    looks[neighbour] += 1;
                    let is_elsewhere = neighbour % machines != thread % machines;
                    assert_eq!(is_elsewhere, share.has_neighbours_elsewhere(threads), "{thread} {threads}");
                    assert!(threads == 1 || neighbour != thread);
                }
                if threads % machines == 0 {
                    assert!(looks.iter().all(|looks| *looks == 1), "{machines} {threads} {looks:?}");
                }
            }
        }
    }
}
