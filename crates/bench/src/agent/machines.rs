//! A team as the machines of a workload: what is done on all of them, and what comes of it together.

use super::believe;
use super::message::{Order, Report};
use super::phase_time::phase_time;
use super::team::Team;
use crate::chore::{Answer, Chore};
use crate::crew::Outcome;
use crate::place::Room;
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
        let (threads, count) = (task.threads(), self.len());
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
            if !believe::done(&done) {
                return Err(self.nonsense(at));
            }
            times.push((told[at], done.outcome.time));
            all.outcome = Outcome::together(&[all.outcome, done.outcome]);
            all.cached_part = all.cached_part.max(done.cached_part);
            all.has_dropped &= done.has_dropped;
            let believed = done.load.map(|load| believe::load(load, count).ok_or_else(|| self.nonsense(at)));
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
            Report::Answer(told) => match believe::answer(told).ok_or_else(|| self.nonsense(at))? {
                // By number only: it ends in a report, which names no hosts.
                Answer::Memory(Err(why)) => Ok(Answer::Memory(Err(format!("agent {}: {why}", at + 1)))),
                told => Ok(told),
            },
            other => Err(self.unexpected(at, &other)),
        });
        believed.collect()
    }

    /// What the first of them sees.
    fn room(&self) -> Result<Room, BenchError> {
        let reports = self.ask(&[0], |_| Order::TellRoom)?;
        match reports.first() {
            Some(Report::Room(room)) => Ok(*room),
            Some(other) => Err(self.unexpected(0, other)),
            None => Err(BenchError::Plan("there are no agents".into())),
        }
    }

    fn check_room(&self, bytes: u64, files: u64) -> Result<(), BenchError> {
        let directory = self.state.lock().directory.clone();
        place::check_room(&directory, (bytes, files), self.room()?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::channel::Channel;
    use super::super::coordinator::Coordinator;
    use super::super::message::{Introduction, TaskDone};
    use super::super::tls;
    use super::*;
    use crate::sample::Load;
    use std::net::TcpStream;
    use std::sync::atomic::AtomicBool;

    static GO_ON: AtomicBool = AtomicBool::new(false);

    /// A team of agents with these names and computers, each of which answers whatever it is told with what `answer` says, until the channel ends.
    fn with_team<T>(
        agents: &[(&'static str, &'static str)],
        answer: impl Fn(&str, Order) -> Report + Sync,
        use_it: impl FnOnce(&Team<'_>) -> T,
    ) -> T {
        let coordinator = Coordinator::listen("127.0.0.1:0", "1").unwrap();
        let address = coordinator.address().unwrap();
        let invitation = coordinator.invitation().clone();
        std::thread::scope(|scope| {
            for (name, boot_id) in agents {
                let (answer, invitation) = (&answer, &invitation);
                scope.spawn(move || {
                    let tcp = TcpStream::connect(address).unwrap();
                    let mut channel = Channel::new(tcp, tls::agent(invitation).unwrap().into()).unwrap();
                    channel.compare_versions("1").unwrap().unwrap();
                    let (name, boot_id) = ((*name).to_owned(), (*boot_id).to_owned());
                    let told =
                        Introduction { name: name.clone(), memory_bytes: 1, boot_id, network: 1, machine: 1 };
                    channel.send(&told).unwrap();
                    loop {
                        let report = match channel.take::<Order>() {
                            Ok(Some(Order::Alive)) => continue,
                            Ok(Some(Order::Welcome(_))) => Report::Well,
                            Ok(Some(Order::Stop(_))) | Err(_) => return channel.close(),
                            Ok(Some(order)) => answer(&name, order),
                            Ok(None) => {
                                std::thread::sleep(Duration::from_millis(1));
                                continue;
                            }
                        };
                        if channel.send(&report).is_err() {
                            return;
                        }
                    }
                });
            }
            let team = coordinator.gather(agents.len(), Duration::from_secs(60), &GO_ON, &|_| ()).unwrap();
            use_it(&team)
        })
    }

    fn done(load: Option<Load>) -> Report {
        Report::Done(Box::new(TaskDone { has_dropped: true, load, ..TaskDone::default() }))
    }

    #[test]
    fn loads_come_in_the_order_of_the_agents_names_and_only_if_they_can_be_believed() {
        let of = |name: &str| {
            let seconds = if name == "a" { 1.0 } else { 2.0 };
            Load { seconds, busy: if name == "c" { f64::NAN } else { 0.5 }, ..Load::default() }
        };
        let answer = |name: &str, _| done(Some(of(name)));
        let seconds = with_team(&[("b", "1"), ("a", "1")], answer, |team| {
            let told = team.carry_out(&Task::DropCaches).unwrap();
            told.loads.into_iter().map(|load| load.map(|load| load.seconds)).collect::<Vec<_>>()
        });
        assert_eq!(seconds, [Some(1.0), Some(2.0)]);
        let refused = with_team(&[("c", "1"), ("a", "1")], answer, |team| {
            team.carry_out(&Task::DropCaches).unwrap_err().to_string()
        });
        assert!(refused.contains("agent 2 (c, ") && refused.contains("makes no sense"), "{refused}");
    }

    #[test]
    fn the_memory_of_a_computer_is_measured_once_and_everybody_looks_at_the_file_system() {
        let answer = |name: &str, order| match order {
            Order::Do(Chore::TryDirect) => Report::Answer(Answer::Direct(name != "c")),
            _ => Report::Answer(Answer::Memory(Err(name.into()))),
        };
        let (numbers, told, direct) = with_team(&[("a", "1"), ("b", "1"), ("c", "2")], answer, |team| {
            let told = team.do_chore(&Chore::MeasureMemory { is_in_a_hurry: true }).unwrap();
            (team.computers(), told, team.have_direct().unwrap())
        });
        assert_eq!(numbers, [1, 1, 2]);
        let expected = ["agent 1: a", "agent 3: c"].map(|why| Answer::Memory(Err(why.into())));
        assert_eq!(told, expected, "by their numbers, also where one of a computer was not asked");
        assert!(!direct, "one of them cannot");
    }
}
