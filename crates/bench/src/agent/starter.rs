//! Where the threads of an agent wait until the coordinator has heard that those of all agents are ready.

use super::message::Report;
use crate::BenchError;
use crate::crew::Barrier;
use parking_lot::{Condvar, Mutex};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

/// What the thread that talks to the coordinator and the one that works have in common.
pub(super) struct Starter {
    reports: Sender<Report>,
    bell: UnixStream,
    gate: Mutex<Gate>,
    changed: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    Shut,
    Open(Instant),
    GivenUp,
}

/// The end of the thread that talks.
pub(super) struct Reports {
    reports: Receiver<Report>,
    bell: UnixStream,
}

impl Starter {
    pub fn new() -> std::io::Result<(Starter, Reports)> {
        let (sender, receiver) = channel();
        let (ring, hear) = UnixStream::pair()?;
        ring.set_nonblocking(true)?;
        hear.set_nonblocking(true)?;
        let starter =
            Starter { reports: sender, bell: ring, gate: Mutex::new(Gate::Shut), changed: Condvar::new() };
        Ok((starter, Reports { reports: receiver, bell: hear }))
    }

    /// Hands a report to the thread that talks.
    pub fn report(&self, report: Report) {
        // Nobody listens any more when the session has ended. A bell that is full rings already.
        let _ = self.reports.send(report);
        let _ = (&self.bell).write(&[1]);
    }

    /// The coordinator says go.
    pub fn open(&self) {
        let mut gate = self.gate.lock();
        if *gate == Gate::Shut {
            *gate = Gate::Open(Instant::now());
        }
        self.changed.notify_all();
    }

    /// It will not say it any more.
    pub fn give_up(&self) {
        *self.gate.lock() = Gate::GivenUp;
        self.changed.notify_all();
    }
}

impl Barrier for Starter {
    fn pass(&self) -> Result<Instant, BenchError> {
        self.report(Report::Ready);
        let mut gate = self.gate.lock();
        loop {
            match *gate {
                Gate::Open(released) => {
                    *gate = Gate::Shut;
                    return Ok(released);
                }
                Gate::GivenUp => return Err(BenchError::Stopped),
                // LIMIT: the thread that talks gives up when the coordinator is silent.
                Gate::Shut => self.changed.wait(&mut gate),
            }
        }
    }
}

impl Reports {
    /// What there is to tell, without waiting.
    pub fn take(&self) -> Option<Report> {
        let mut rung = [0; 64];
        while (&self.bell).read(&mut rung).is_ok_and(|rung| rung > 0) {}
        self.reports.try_recv().ok()
    }
}

impl AsFd for Reports {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_ready_waits_until_told_to_go_or_that_nobody_will() {
        let (starter, reports) = Starter::new().unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| starter.pass());
            while !matches!(reports.take(), Some(Report::Ready)) {}
            let before = Instant::now();
            starter.open();
            assert!(waiting.join().unwrap().unwrap() >= before);
            let waiting = scope.spawn(|| starter.pass());
            while !matches!(reports.take(), Some(Report::Ready)) {}
            starter.give_up();
            assert!(matches!(waiting.join().unwrap(), Err(BenchError::Stopped)));
        });
    }
}
