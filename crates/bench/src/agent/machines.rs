//! A team as the machines of a workload: what is done on all of them, and what comes of it together.

use super::believe;
use super::message::{Order, Report};
use super::phase_time::phase_time;
use super::team::Team;
use crate::chore::{Answer, Chore};
use crate::crew::Outcome;
use crate::task::{Done, Machines, Task};
use crate::{BenchError, place};
use std::collections::HashSet;
use std::time::Duration;

impl Machines for Team<'_> {
    fn count(&self) -> usize {
        self.len()
    }

    fn are_apart(&self) -> bool {
        let state = self.state.lock();
        let computers: HashSet<&str> =
            state.members.iter().map(|member| member.introduction.boot_id.as_str()).collect();
        computers.len() == state.members.len()
    }

    fn carry_out(&self, task: &Task) -> Result<Done, BenchError> {
        let threads = task.threads();
        self.say_during(&format!("{} with {threads} threads", task.name()));
        let is_watched = self.state.lock().is_watched;
        let mut reports = self.ask_all(|_| Order::Begin { task: task.clone(), is_watched })?;
        let mut told = vec![Duration::ZERO; reports.len()];
        if task.is_measured() {
            (reports, told) = self.let_go(&reports)?;
        }
        let mut all = Done { has_dropped: true, ..Done::default() };
        let mut times = Vec::new();
        for (at, report) in reports.into_iter().enumerate() {
            let Report::Done(done) = report else { return Err(self.unexpected(at, &report)) };
            times.push((told[at], done.outcome.time));
            all.outcome = Outcome::together(&[all.outcome, done.outcome]);
            all.cached_part = all.cached_part.max(done.cached_part);
            all.has_dropped &= done.has_dropped;
            let load = done.loads.into_iter().next().flatten();
            let believed = load.map(|load| believe::load(load).ok_or_else(|| self.nonsense(at)));
            all.loads.push(believed.transpose()?);
        }
        all.outcome.time = phase_time(&times);
        Ok(all)
    }

    fn do_chore(&self, chore: &Chore) -> Result<Vec<Answer>, BenchError> {
        self.say_during(chore.name());
        let mut who: Vec<usize> = (0..self.len()).collect();
        if matches!(chore, Chore::MeasureMemory { .. }) {
            // Agents of one computer would measure the same memory and disturb each other.
            let computers = self.computers();
            who.retain(|at| !computers[..*at].contains(&computers[*at]));
        }
        let reports = self.ask(&who, |_| Order::Do(chore.clone()))?;
        let believed = who.into_iter().zip(reports).map(|(at, report)| match report {
            Report::Answer(told) => believe::answer(told).ok_or_else(|| self.nonsense(at)),
            other => Err(self.unexpected(at, &other)),
        });
        believed.collect()
    }

    /// What the first of them sees.
    fn free_bytes(&self) -> Result<u64, BenchError> {
        let reports = self.ask(&[0], |_| Order::TellRoom)?;
        match reports.first() {
            Some(Report::Room(bytes)) => Ok(*bytes),
            Some(other) => Err(self.unexpected(0, other)),
            None => Err(BenchError::Plan("there are no agents".into())),
        }
    }

    fn check_room(&self, bytes: u64) -> Result<(), BenchError> {
        let directory = self.state.lock().directory.clone();
        place::check_room(&directory, bytes, self.free_bytes()?)
    }
}
