//! The agents of a run, as the coordinator leads them.

use super::channel::{harmless, wait_for_any};
use super::invitation::random;
use super::keeper::Keeper;
use super::members::{Member, State, TEXT_MAX};
use super::message::{Clean, Order, Prepare, Report};
use crate::chore::{Answer, Chore};
use crate::crew::Share;
use crate::inventory::{AgentMachine, Inventory};
use crate::task::Machines;
use crate::{BenchError, mark};
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How often it is looked whether somebody wants the run to end.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What is told of an agent beside its figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AgentTold {
    /// Number, host name and address, as in messages.
    pub name: String,
    /// The host's name.
    pub host: String,
    /// The address it came from.
    pub address: String,
    /// Memory of its machine, bytes.
    pub memory_bytes: u64,
}

/// All agents of a run. They are stopped, and remove what they made, when this goes.
pub struct Team<'a> {
    pub(super) state: Arc<Mutex<State>>,
    /// From the moment on that all have joined.
    keeper: Option<Keeper>,
    cancel: &'a AtomicBool,
}

/// Draws what the directory of a run is called: 16 hexadecimal digits behind `ashlar-bench.`, of which nobody else has the same.
///
/// # Errors
/// [`BenchError::Refused`] when the system has no random numbers.
pub fn draw_run() -> Result<String, BenchError> {
    Ok(random::<8>()?.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl<'a> Team<'a> {
    pub(super) fn new(cancel: &'a AtomicBool) -> Team<'a> {
        let during = "waiting for the other agents".to_owned();
        let (members, directory) = (Vec::new(), PathBuf::new());
        let state = State { members, during, directory, is_watched: false, is_over: false };
        Team { state: Arc::new(Mutex::new(state)), keeper: None, cancel }
    }

    pub(super) fn len(&self) -> usize {
        self.state.lock().members.len()
    }

    pub(super) fn add(&mut self, member: Member) {
        self.state.lock().members.push(member);
    }

    /// Waits until one of them says something, or `listener` has something to take, `time_max` at most.
    pub(super) fn wait_with(&self, listener: BorrowedFd<'_>, time_max: Duration) -> Result<(), BenchError> {
        let state = self.state.lock();
        let members = state.members.iter().map(|member| member.channel.as_fd());
        let fds: Vec<BorrowedFd<'_>> = [listener].into_iter().chain(members).collect();
        wait_for_any(&fds, time_max)
    }

    pub(super) fn tend(&self) -> Result<(), BenchError> {
        self.state.lock().tend()
    }

    /// Gives each a number, by the names of their machines: the same machines have the same numbers in every run, in whatever order they came.
    pub(super) fn number(&mut self) {
        let members = &mut self.state.lock().members;
        members
            .sort_by_cached_key(|member| (place_of(&member.introduction.name), member.introduction.machine));
        for (at, member) in members.iter_mut().enumerate() {
            member.name = format!("agent {} ({}, {})", at + 1, member.introduction.name, member.from.ip());
        }
    }

    /// Tells each its number. From now on they hear that somebody is there whatever is done with the team, or not.
    pub(super) fn welcome(&mut self) -> Result<(), BenchError> {
        let cannot = |error| BenchError::Refused(format!("cannot start a thread to lead agents: {error}"));
        self.keeper = Some(Keeper::start(&self.state).map_err(cannot)?);
        let machines = self.len();
        self.ask_all(|machine| Order::Welcome(Share { machine, machines }))?.iter().enumerate().try_for_each(
            |(at, report)| match report {
                Report::Well => Ok(()),
                other => Err(self.unexpected(at, other)),
            },
        )
    }

    /// Who they are.
    pub fn told(&self) -> Vec<AgentTold> {
        let told = |member: &Member| AgentTold {
            name: member.name.clone(),
            host: member.introduction.name.clone(),
            address: member.from.ip().to_string(),
            memory_bytes: member.introduction.memory_bytes,
        };
        self.state.lock().members.iter().map(told).collect()
    }

    /// Memory of all their machines, bytes; that of a machine with several agents counts once.
    pub fn memory_bytes(&self) -> u64 {
        let state = self.state.lock();
        let machines: HashMap<&str, u64> = (state.members.iter())
            .map(|member| (member.introduction.boot_id.as_str(), member.introduction.memory_bytes))
            .collect();
        machines.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes))
    }

    /// For each agent a number of its machine that is the same in every run and tells nothing else about it.
    pub fn machine_numbers(&self) -> Vec<u64> {
        self.state.lock().members.iter().map(|member| member.introduction.machine).collect()
    }

    /// For each agent the computer that it is on, from 1: agents of one computer have the same.
    pub fn computers(&self) -> Vec<usize> {
        let state = self.state.lock();
        let mut known: Vec<&str> = Vec::new();
        let number = |member| {
            let Member { introduction, .. }: &Member = member;
            known.iter().position(|id| *id == introduction.boot_id).unwrap_or_else(|| {
                known.push(&introduction.boot_id);
                known.len() - 1
            }) + 1
        };
        state.members.iter().map(number).collect()
    }

    /// For each agent the network that it is in, from 1: agents of one machine and one network name space of it have the same. What they send each
    /// other passes through no link.
    pub fn networks(&self) -> Vec<usize> {
        let state = self.state.lock();
        let mut known: Vec<(&str, u64)> = Vec::new();
        let number = |member| {
            let Member { introduction, .. }: &Member = member;
            let id = (introduction.boot_id.as_str(), introduction.network);
            // Who does not know its network is taken for somebody with one of its own.
            let at = known.iter().position(|one| *one == id && id.1 != 0);
            known.push(id);
            at.map_or(known.len(), |at| at + 1)
        };
        state.members.iter().map(number).collect()
    }

    /// What their machines are, and what the first of them sees at `directory`.
    ///
    /// # Errors
    /// [`BenchError::Elsewhere`] with what an agent says: it was not started for the directory.
    pub fn describe(&self, directory: &Path) -> Result<(Inventory, Vec<AgentMachine>), BenchError> {
        let answers = self.do_chore(&Chore::Describe(directory.to_owned()))?;
        let mut machines = Vec::new();
        let mut first = None;
        for (at, (answer, computer)) in answers.into_iter().zip(self.computers()).enumerate() {
            let Answer::Machine(told) = answer else { return Err(self.nonsense(at)) };
            machines.push(AgentMachine::of(computer, &told));
            first.get_or_insert(*told);
        }
        first.map(|first| (first, machines)).ok_or_else(|| BenchError::Plan("there are no agents".into()))
    }

    /// Has the first of them remove what earlier parts of an interrupted run have left below `directory`: of these runs, as [`Team::prepare_as`] was
    /// told them, and only what has their marks. What is no run's name is passed over.
    ///
    /// # Errors
    /// [`BenchError::Elsewhere`] with what the agent says.
    pub fn clean(&self, directory: &Path, left: &[String]) -> Result<(), BenchError> {
        let runs: Vec<String> = left.iter().filter(|run| mark::is_run(run)).cloned().collect();
        if runs.is_empty() {
            return Ok(());
        }
        self.say_during("removing what an interrupted run has left");
        let order = |_| Order::Clean(Clean { directory: directory.to_owned(), runs: runs.clone() });
        match self.ask(&[0], order)?.first() {
            Some(Report::Well) => Ok(()),
            Some(other) => Err(self.unexpected(0, other)),
            None => Err(BenchError::Plan("there are no agents".into())),
        }
    }

    /// From now on agents look at what their machines do while they measure.
    pub fn watch(&self) {
        self.state.lock().is_watched = true;
    }

    /// Has the first of them make a directory below `directory`, and all of them find it.
    ///
    /// # Errors
    /// [`BenchError::Elsewhere`] with what an agent says: it was not started for the directory, or does not see the same one.
    pub fn prepare(&self, directory: &Path, beside_others: bool) -> Result<(), BenchError> {
        self.prepare_as(&draw_run()?, directory, beside_others)
    }

    /// The same with a name that [`draw_run`] has drawn.
    ///
    /// # Errors
    /// As [`Team::prepare`].
    pub fn prepare_as(&self, run: &str, directory: &Path, beside_others: bool) -> Result<(), BenchError> {
        {
            let mut state = self.state.lock();
            state.directory = directory.to_owned();
            state.during = "making the directory".into();
        }
        let token = random()?;
        let order = |makes: bool| {
            let (directory, run) = (directory.to_owned(), run.to_owned());
            Order::Prepare(Prepare { directory, run, token, makes, beside_others })
        };
        self.ask(&[0], |_| order(true))?;
        let others: Vec<usize> = (1..self.len()).collect();
        self.ask(&others, |_| order(false))?;
        Ok(())
    }

    /// Ends it in good order.
    ///
    /// # Errors
    /// What is noticed on the way: agents that were lost, files that could not be removed.
    pub fn finish(self) -> Result<(), BenchError> {
        self.state.lock().during = "removing what was made".into();
        let count = self.len();
        // ORDER: the first removes the directory when the others do nothing in it any more.
        for who in [(1..count).collect(), vec![0]] {
            self.ask(&who, |_| Order::End)?;
            let mut state = self.state.lock();
            who.iter().for_each(|at| state.members[*at].is_gone = true);
        }
        self.state.lock().is_over = true;
        Ok(())
    }

    /// Ends it otherwise: all stop and remove what they made, and hear why. Waits for them, 30 seconds at most.
    pub fn abandon(self, why: &str) {
        let mut state = self.state.lock();
        state.stop(&format!("the run has failed: {why}"));
        state.is_over = true;
    }

    pub(crate) fn say_during(&self, during: &str) {
        during.clone_into(&mut self.state.lock().during);
    }

    /// Gives each its order, and takes one report of each.
    pub(crate) fn ask_all(&self, order: impl Fn(usize) -> Order) -> Result<Vec<Report>, BenchError> {
        let all: Vec<usize> = (0..self.len()).collect();
        self.ask(&all, order)
    }

    pub(super) fn ask(
        &self,
        who: &[usize],
        order: impl Fn(usize) -> Order,
    ) -> Result<Vec<Report>, BenchError> {
        for &at in who {
            self.state.lock().send(at, &order(at))?;
        }
        self.answers(who)
    }

    /// Takes one report of each.
    fn answers(&self, who: &[usize]) -> Result<Vec<Report>, BenchError> {
        let mut state = self.state.lock();
        loop {
            if self.cancel.load(Relaxed) {
                return Err(BenchError::Stopped);
            }
            state.tend()?;
            state.check_presence(who)?;
            if who.iter().all(|at| !state.members[*at].inbox.is_empty()) {
                return Ok(who.iter().filter_map(|at| state.members[*at].inbox.pop_front()).collect());
            }
            // Who has gone would always have something to read.
            let here = state.members.iter().filter(|member| !member.is_gone);
            let fds: Vec<BorrowedFd<'_>> = here.map(|member| member.channel.as_fd()).collect();
            wait_for_any(&fds, LOOK_EVERY)?;
        }
    }

    /// After [`Team::ask_all`] with what is to be begun by all at the same time: lets go when all are ready, and takes what came of it. The
    /// moments are those at which each was told to go, from the first.
    pub(crate) fn let_go(&self, ready: &[Report]) -> Result<(Vec<Report>, Vec<Duration>), BenchError> {
        if let Some(at) = ready.iter().position(|report| !matches!(report, Report::Ready)) {
            return Err(self.unexpected(at, &ready[at]));
        }
        let begin = Instant::now();
        let mut told = Vec::with_capacity(ready.len());
        for at in 0..ready.len() {
            told.push(begin.elapsed());
            self.state.lock().send(at, &Order::Go)?;
        }
        let all: Vec<usize> = (0..ready.len()).collect();
        Ok((self.answers(&all)?, told))
    }

    pub(crate) fn unexpected(&self, at: usize, report: &Report) -> BenchError {
        match report {
            Report::Failed(text) => {
                BenchError::Elsewhere { name: self.name(at), text: harmless(text, TEXT_MAX) }
            }
            _ => self.nonsense(at),
        }
    }

    pub(super) fn nonsense(&self, at: usize) -> BenchError {
        BenchError::Elsewhere { name: self.name(at), text: "it answered what makes no sense".into() }
    }

    fn name(&self, at: usize) -> String {
        self.state.lock().members.get(at).map_or_else(String::new, |member| member.name.clone())
    }
}

/// Where a host's name stands among others: by the number at the end of its first part, so that node2 comes before node10.
fn place_of(name: &str) -> (String, u64, String) {
    let first = name.split('.').next().unwrap_or(name);
    let stem = first.trim_end_matches(|sign: char| sign.is_ascii_digit());
    // Without a number, or with one that is too long, by name only.
    (stem.to_owned(), first[stem.len()..].parse().unwrap_or(0), name.to_owned())
}

impl Drop for Team<'_> {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        if !state.is_over {
            state.stop("the run has ended before its time");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::channel::{Channel, SILENCE_MAX};
    use super::super::coordinator::Coordinator;
    use super::super::message::Introduction;
    use super::super::serve::Agent;
    use super::super::tls;
    use super::*;
    use std::net::TcpStream;

    static GO_ON: AtomicBool = AtomicBool::new(false);

    #[test]
    fn hosts_are_in_the_order_in_which_people_count_them() {
        let mut names = ["node10", "node2.example.org", "disk", "node", "node1", "node2"];
        names.sort_by_cached_key(|name| place_of(name));
        assert_eq!(names, ["disk", "node", "node1", "node2", "node2.example.org", "node10"]);
    }

    /// `use_it` with a team of one real agent that may use `directory` and ends when somebody sets `cancel`; and how the agent has ended.
    fn with_agent<T>(
        directory: &Path,
        cancel: &AtomicBool,
        use_it: impl FnOnce(Team<'_>) -> T,
    ) -> (T, Result<(), BenchError>) {
        let coordinator = Coordinator::listen("127.0.0.1:0", "1").unwrap();
        let address = coordinator.address().unwrap().to_string();
        let (invitation, directories) = (coordinator.invitation().clone(), [directory.to_owned()]);
        let agent = Agent {
            coordinator: &address,
            invitation: &invitation,
            directories: &directories,
            address: None,
            version: "1",
            cancel,
            tell: &|_| (),
        };
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| agent.serve());
            let told = use_it(coordinator.gather(1, Duration::from_secs(60), &GO_ON, &|_| ()).unwrap());
            (told, serving.join().unwrap())
        })
    }

    #[test]
    fn agents_stay_while_the_coordinator_is_busy_with_something_else() {
        let root = tempfile::tempdir().unwrap();
        let (told, ended) = with_agent(root.path(), &GO_ON, |team| {
            team.prepare(root.path(), false).unwrap();
            std::thread::sleep(SILENCE_MAX + Duration::from_secs(1));
            let told = team.room();
            team.finish().unwrap();
            told
        });
        assert!(told.is_ok() && ended.is_ok(), "{told:?} {ended:?}");
    }

    #[test]
    fn an_agent_has_one_directory_and_leaves_none() {
        let root = tempfile::tempdir().unwrap();
        let (told, ended) = with_agent(root.path(), &GO_ON, |team| {
            team.prepare(root.path(), false).unwrap();
            team.prepare(root.path(), true).unwrap_err().to_string()
        });
        assert!(told.contains("agent 1") && told.contains("measures in a directory already"), "{told}");
        assert!(ended.is_err());
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_agent_that_is_interrupted_while_it_measures_memory_says_so_and_is_not_lost() {
        let (root, cancel) = (tempfile::tempdir().unwrap(), AtomicBool::new(false));
        let (told, ended) = with_agent(root.path(), &cancel, |team| {
            team.prepare(root.path(), false).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(500));
                    cancel.store(true, Relaxed);
                });
                team.do_chore(&Chore::MeasureMemory { is_in_a_hurry: false })
            })
        });
        let Err(BenchError::Elsewhere { name, text }) = &told else { panic!("{told:?}") };
        assert!(name.starts_with("agent 1") && text == "it was stopped by its user", "{name}: {text}");
        assert!(matches!(ended, Err(BenchError::Stopped)), "{ended:?}");
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_agent_that_goes_right_after_its_answer_is_not_waited_for() {
        let coordinator = Coordinator::listen("127.0.0.1:0", "1").unwrap();
        let address = coordinator.address().unwrap();
        let invitation = coordinator.invitation().clone();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let tcp = TcpStream::connect(address).unwrap();
                let mut channel = Channel::new(tcp, tls::agent(&invitation).unwrap().into()).unwrap();
                channel.compare_versions("1").unwrap().unwrap();
                let introduction = Introduction {
                    name: "x".into(),
                    memory_bytes: 1,
                    boot_id: "1".into(),
                    network: 1,
                    machine: 1,
                };
                channel.send(&introduction).unwrap();
                while channel.take::<Order>().unwrap().is_none() {}
                channel.send(&Report::Well).unwrap();
                channel.close();
            });
            let team = coordinator.gather(1, Duration::from_secs(60), &GO_ON, &|_| ()).unwrap();
            let asked = team.room();
            assert!(
                matches!(&asked, Err(BenchError::Lost { name, .. }) if name.contains("agent 1")),
                "{asked:?}"
            );
        });
    }
}
