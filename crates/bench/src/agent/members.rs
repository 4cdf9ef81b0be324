//! Those who have joined: what they have said, whether they are still there, and how they are stopped.

use super::channel::{Broken, Channel, harmless, wait_for_any};
use super::message::{Introduction, Order, Report};
use crate::BenchError;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often it is looked whether all are gone.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// LIMIT: reports that are taken from one agent before others are looked at.
const TAKEN_MAX: usize = 64;
/// LIMIT: agents stop and remove what they made; who takes longer is left behind.
const STOP_PATIENCE: Duration = Duration::from_secs(30);
/// LIMIT: reports of one agent that nobody has taken yet: two of an order, what it says when it fails, and its last. Each comes from a message of
/// `MESSAGE_BYTES_MAX`, of which it takes [`GROWTH_MAX`] times the bytes in memory at most, and is bounded again before it is kept (`believe`): an agent
/// that means harm costs the coordinator 128 MiB, an honest one some 100 KiB.
const INBOX_MAX: usize = 4;
/// LIMIT: bytes in memory for each byte of a message: lists of entries of which each has little to tell.
#[cfg(test)]
pub(super) const GROWTH_MAX: usize = 32;
/// LIMIT: of a reason an agent tells, characters.
pub(super) const TEXT_MAX: usize = 4000;

/// One agent.
pub(super) struct Member {
    pub name: String,
    pub from: SocketAddr,
    pub introduction: Introduction,
    pub channel: Channel,
    pub inbox: VecDeque<Report>,
    pub is_gone: bool,
}

impl Member {
    /// Somebody who has no number yet.
    pub fn new(introduction: Introduction, from: SocketAddr, channel: Channel) -> Member {
        let name = format!("an agent ({}, {})", introduction.name, from.ip());
        Member { name, from, introduction, channel, inbox: VecDeque::new(), is_gone: false }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes what has come, and says that somebody is here.
    fn tend(&mut self) -> Result<(), Broken> {
        // LIMIT: as many at a time, so that one that never ends is not all that is listened to.
        for _ in 0..TAKEN_MAX {
            let Some(report) = self.channel.take::<Report>()? else { break };
            if matches!(report, Report::Alive) {
                continue;
            }
            if self.inbox.len() == INBOX_MAX {
                return Err(Broken::Malformed("it talks too much"));
            }
            self.inbox.push_back(report);
        }
        self.channel.keep_alive(&Order::Alive)
    }
}

/// All of them, and what goes on.
pub(super) struct State {
    pub members: Vec<Member>,
    /// What the agents are doing, for messages.
    pub during: String,
    pub directory: PathBuf,
    /// Whether agents look at what their machines do while they measure.
    pub is_watched: bool,
    pub is_over: bool,
}

impl State {
    pub fn send(&mut self, at: usize, order: &Order) -> Result<(), BenchError> {
        let during = self.during.clone();
        let Some(member) = self.members.get_mut(at) else { return Ok(()) };
        member.channel.send(order).map_err(|broken| lost(member, &during, &broken))
    }

    pub fn tend(&mut self) -> Result<(), BenchError> {
        for member in &mut self.members {
            if member.is_gone {
                continue;
            }
            let tended = member.tend();
            let is_last = member.inbox.iter().any(|report| matches!(report, Report::Failed(_)));
            if let (true, Some(Report::Failed(text))) = (is_last, member.inbox.back()) {
                // The others are not waited for: they may be waiting for this one.
                let text = harmless(text, TEXT_MAX);
                return Err(BenchError::Elsewhere { name: member.name.clone(), text });
            }
            match tended {
                Ok(()) => {}
                // It has said its last word.
                Err(Broken::Closed) if !member.inbox.is_empty() => member.is_gone = true,
                Err(broken) => {
                    member.is_gone = true;
                    return Err(lost(member, &self.during, &broken));
                }
            }
        }
        Ok(())
    }

    /// Whether nobody is waited for who has gone after an earlier word.
    pub fn check_presence(&self, who: &[usize]) -> Result<(), BenchError> {
        let mut asked = who.iter().map(|at| &self.members[*at]);
        let gone = asked.find(|member| member.is_gone && member.inbox.is_empty());
        gone.map_or(Ok(()), |member| Err(lost(member, &self.during, &Broken::Closed)))
    }

    /// Says to all that somebody is here. Who does not take it is found by whoever asks next.
    pub fn keep_alive(&mut self) {
        for member in self.members.iter_mut().filter(|member| !member.is_gone) {
            let _ = member.channel.keep_alive(&Order::Alive);
        }
    }

    /// Stops all that are there and waits until they are gone.
    pub fn stop(&mut self, text: &str) {
        for member in &mut self.members {
            // Who does not hear it is gone, or will notice that nobody is here.
            member.is_gone |= member.channel.send(&Order::Stop(text.to_owned())).is_err();
        }
        let deadline = Instant::now() + STOP_PATIENCE;
        while Instant::now() < deadline {
            for member in &mut self.members {
                member.inbox.clear();
                let is_gone = match member.tend() {
                    Err(Broken::Silent) => false,
                    tended => tended.is_err(),
                };
                member.is_gone |= is_gone;
            }
            let fds: Vec<BorrowedFd<'_>> = self
                .members
                .iter()
                .filter(|member| !member.is_gone)
                .map(|member| member.channel.as_fd())
                .collect();
            if fds.is_empty() || wait_for_any(&fds, LOOK_EVERY).is_err() {
                return;
            }
        }
    }
}

fn lost(member: &Member, during: &str, broken: &Broken) -> BenchError {
    BenchError::Lost { name: member.name.clone(), during: during.to_owned(), text: broken.to_string() }
}
