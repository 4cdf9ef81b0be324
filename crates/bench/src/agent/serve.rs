//! An agent: what it does for the coordinator that it has joined, until one of them goes.

use super::channel::{Broken, Channel, harmless, wait_for_any};
use super::ground::{self, Ground};
use super::invitation::Invitation;
use super::message::{Clean, Introduction, Order, Prepare, Report, TaskDone};
use super::starter::{Reports, Starter};
use super::tls;
use crate::chore::Chore;
use crate::crew::{Crew, Share};
use crate::network::{Listening, Transfer};
use crate::run::identity::machine_number;
use crate::sample::Sampler;
use crate::task::{Done, Task};
use crate::{BenchError, cache, place};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread::Scope;
use std::time::{Duration, Instant};

/// LIMIT: of reaching the coordinator.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked whether somebody wants the agent to end.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// LIMIT: of the coordinator's hearing why an agent goes.
const LAST_WORD_PATIENCE: Duration = Duration::from_secs(5);
/// LIMIT: threads of one agent.
const THREADS_MAX: usize = 4096;
/// LIMIT: of what is told to the other side as a reason, characters.
const TEXT_MAX: usize = 4000;

/// What an agent is started with.
pub struct Agent<'a> {
    /// The coordinator, as `HOST:PORT`.
    pub coordinator: &'a str,
    /// The secret it has printed.
    pub invitation: &'a Invitation,
    /// Where it may measure; nowhere else does it do anything.
    pub directories: &'a [PathBuf],
    /// The address whose network is measured; without it the one by which it reaches the coordinator.
    pub address: Option<IpAddr>,
    /// This program's version, which has to be the coordinator's.
    pub version: &'a str,
    /// Ends it, when somebody sets it.
    pub cancel: &'a AtomicBool,
    /// Hears what it does, in sentences.
    pub tell: &'a (dyn Fn(&str) + Sync),
}

/// How a session ended.
enum End {
    /// The coordinator has all it wanted.
    Well,
    /// The coordinator says stop, and why.
    Stopped(String),
    /// Nobody is there any more.
    Lost(Broken),
    /// Somebody here wants it to.
    Cancelled,
}

impl Agent<'_> {
    /// Joins the coordinator and works for it until it has what it wanted.
    ///
    /// # Errors
    /// [`BenchError::Refused`] when it cannot join, [`BenchError::Version`], [`BenchError::Lost`] when the coordinator is gone,
    /// [`BenchError::Elsewhere`] when it says why the run has failed. What was made is removed in any case.
    pub fn serve(&self) -> Result<(), BenchError> {
        let (mut channel, local) = self.join()?;
        let mut seat = Seat {
            agent: self,
            address: self.address.unwrap_or(local.ip()),
            share: Share::WHOLE,
            ground: Arc::default(),
            during: "waiting for the other agents".into(),
            listening: None,
            sampler: None,
        };
        let end = seat.work(&mut channel);
        let name = || format!("the coordinator {}", self.coordinator);
        let during = std::mem::take(&mut seat.during);
        let mut result = match end {
            Ok(End::Well) => Ok(()),
            Ok(End::Stopped(text)) => Err(BenchError::Elsewhere { name: name(), text }),
            Ok(End::Lost(broken)) => Err(BenchError::Lost { name: name(), during, text: broken.to_string() }),
            Ok(End::Cancelled) => Err(BenchError::Stopped),
            Err(error) => Err(error),
        };
        // After a good end the first removes it, when the others do nothing there any more.
        let removes = seat.share.machine == 0 || result.is_err();
        // The coordinator waits for it, and would take silence for the end of this machine. Whoever is gone does not hear it.
        let mut is_here = || drop(channel.keep_alive(&Report::Alive));
        let ground = seat.ground.get().filter(|_| removes);
        if let Some(ground) = ground.filter(|ground| !ground.remove(&mut is_here)) {
            let text = format!("{} could not be removed: remove it by hand", ground.root().display());
            (self.tell)(&text);
            result = result.and(Err(BenchError::Refused(text)));
        }
        let last = match &result {
            Err(error) => Report::Failed(harmless(&error.to_string(), TEXT_MAX)),
            Ok(()) => Report::Well,
        };
        // Whoever is gone does not hear it.
        let _ = channel.send(&last);
        channel.close();
        result
    }

    fn refused(&self, text: impl std::fmt::Display) -> BenchError {
        BenchError::Refused(format!("cannot join the coordinator {}: {text}", self.coordinator))
    }

    /// Connects; what it is told before both have proven themselves is not looked at.
    fn join(&self) -> Result<(Channel, SocketAddr), BenchError> {
        let is_address =
            self.coordinator.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if !is_address {
            return Err(self.refused("it is named as HOST:PORT, which it has printed"));
        }
        let addresses = self.coordinator.to_socket_addrs().map_err(|error| self.refused(error))?;
        let mut failure = self.refused("it has no address");
        let mut connected = None;
        for address in addresses {
            match TcpStream::connect_timeout(&address, CONNECT_PATIENCE) {
                Ok(tcp) => connected = Some(tcp),
                Err(error) => {
                    failure = self.refused(format!(
                        "{error}; does it still wait for agents? (it takes as many as it was started for, each secret is for one run)"
                    ));
                }
            }
            if connected.is_some() {
                break;
            }
        }
        let tcp = connected.ok_or(failure)?;
        let local = tcp.local_addr().map_err(|error| self.refused(error))?;
        let tls = rustls::Connection::from(tls::agent(self.invitation)?);
        let mut channel = Channel::new(tcp, tls).map_err(|broken| self.not_proven(&broken))?;
        let versions = channel.compare_versions(self.version).map_err(|broken| self.not_proven(&broken))?;
        if let Err(there) = versions {
            let name = format!("the coordinator {}", self.coordinator);
            return Err(BenchError::Version { here: self.version.into(), name, there });
        }
        let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let introduction = Introduction {
            name: hostname.trim().into(),
            memory_bytes: cache::memory_bytes().unwrap_or(0),
            boot_id: boot_id.trim().into(),
            network: std::fs::metadata("/proc/self/ns/net").map_or(0, |found| found.ino()),
            machine: machine_number(),
        };
        channel.send(&introduction).map_err(|broken| self.refused(broken))?;
        Ok((channel, local))
    }

    /// Says which half of the secret was not right.
    fn not_proven(&self, broken: &Broken) -> BenchError {
        match broken {
            Broken::Tls(rustls::Error::InvalidCertificate(_)) => {
                self.refused("it is not the one that printed this secret")
            }
            Broken::Tls(rustls::Error::AlertReceived(_)) => self.refused("it does not take this secret"),
            Broken::Closed => self.refused("it takes no more agents, or not with this secret"),
            other => self.refused(other),
        }
    }
}

/// Says why it goes, and gives the coordinator time to stop the others.
fn say_last(channel: &mut Channel, why: &str) {
    let deadline = Instant::now() + LAST_WORD_PATIENCE;
    let mut is_heard = channel.send(&Report::Failed(harmless(why, TEXT_MAX))).is_err();
    while !is_heard && Instant::now() < deadline {
        is_heard = match channel.take::<Order>() {
            Ok(Some(Order::Stop(_))) | Err(_) => true,
            Ok(Some(_)) => false,
            // What is wrong with waiting is no reason to wait.
            Ok(None) => wait_for_any(&[channel.as_fd()], LOOK_EVERY).is_err(),
        };
    }
}

/// An agent that has joined.
struct Seat<'a> {
    agent: &'a Agent<'a>,
    address: IpAddr,
    share: Share,
    /// The directory of the run, from the moment on that it is made or found; there is one.
    ground: Arc<OnceLock<Ground>>,
    during: String,
    listening: Option<Listening>,
    /// Who watches the machine, from the first task on that is to be watched.
    sampler: Option<Arc<Sampler>>,
}

/// What a thread of its own does, so that the coordinator is heard meanwhile.
enum Work {
    Prepare(Prepare, Vec<PathBuf>, Arc<OnceLock<Ground>>),
    Room(PathBuf),
    Task(Task, PathBuf, Option<Arc<Sampler>>),
    Transfer(Transfer, Option<Listening>),
    Chore(Chore, PathBuf),
    Clean(Clean, Vec<PathBuf>),
}

impl Seat<'_> {
    /// Does what the coordinator says until it ends, and until what was begun has stopped.
    fn work(&mut self, channel: &mut Channel) -> Result<End, BenchError> {
        let cannot = |error: std::io::Error| BenchError::Refused(format!("cannot begin: {error}"));
        let (starter, reports) = Starter::new().map_err(cannot)?;
        let (starter, stop) = (&starter, &AtomicBool::new(false));
        std::thread::scope(|scope| {
            let end = self.follow(
                channel,
                &reports,
                &|seat: &Seat<'_>, work: Work| seat.spawn(scope, (starter, stop), work),
                starter,
            );
            stop.store(true, Relaxed);
            starter.give_up();
            // ORDER: the coordinator hears why before what was begun has ended, which may take long (a call to the file system that hangs), and
            // before files go that others are still reading; what they say of that is not the reason.
            match &end {
                Ok(End::Cancelled) => say_last(channel, "it was stopped by its user"),
                Err(error) => say_last(channel, &error.to_string()),
                Ok(_) => {}
            }
            // LIMIT: what was begun ends with its next call to the file system.
            end
        })
    }

    fn spawn<'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        (starter, stop): (&'scope Starter, &'scope AtomicBool),
        work: Work,
    ) -> Result<(), BenchError> {
        let (crew, machine) =
            (Crew { share: self.share, cancel: stop, barrier: Some(starter) }, self.share.machine);
        let body = move || {
            let carried_out = catch_unwind(AssertUnwindSafe(|| match work {
                Work::Prepare(asked, allowed, place) => Ground::prepare(&asked, &allowed).map(|ground| {
                    // It is empty: this was looked at before the work began, and there is one work at a time.
                    let _ = place.set(ground);
                    Report::Well
                }),
                Work::Room(root) => place::room(&root).map(Report::Room),
                Work::Task(task, root, sampler) => task.carry_out(&root, crew).map(|done| {
                    let watched = sampler.filter(|_| task.is_measured());
                    let load = watched.and_then(|sampler| sampler.last(done.outcome.time));
                    let Done { outcome, cached_part, has_dropped, loads: _ } = done;
                    Report::Done(Box::new(TaskDone { outcome, cached_part, has_dropped, load }))
                }),
                Work::Transfer(transfer, listening) => {
                    transfer.carry_out(listening, starter, stop).map(Report::Flows)
                }
                Work::Chore(chore, root) => chore.carry_out(&root, machine, stop).map(Report::Answer),
                Work::Clean(asked, allowed) => ground::clean(&asked, &allowed).map(|()| Report::Well),
            }));
            // The coordinator waits for a report, whatever comes.
            match carried_out.unwrap_or(Err(BenchError::Panicked)) {
                Ok(report) => starter.report(report),
                Err(BenchError::Stopped) if stop.load(Relaxed) => {}
                Err(error) => starter.report(Report::Failed(harmless(&error.to_string(), TEXT_MAX))),
            }
        };
        let started = std::thread::Builder::new().spawn_scoped(scope, body);
        started.map(drop).map_err(|answer| BenchError::Threads { threads: 1, answer })
    }

    fn follow(
        &mut self,
        channel: &mut Channel,
        reports: &Reports,
        begin: &dyn Fn(&Seat<'_>, Work) -> Result<(), BenchError>,
        starter: &Starter,
    ) -> Result<End, BenchError> {
        let mut is_busy = false;
        loop {
            if self.agent.cancel.load(Relaxed) {
                return Ok(End::Cancelled);
            }
            while let Some(report) = reports.take() {
                is_busy &= matches!(report, Report::Ready);
                if let Err(broken) = channel.send(&report) {
                    return Ok(End::Lost(broken));
                }
            }
            let order = match channel.take::<Order>() {
                Ok(Some(order)) => order,
                Ok(None) => {
                    if let Err(broken) = channel.keep_alive(&Report::Alive) {
                        return Ok(End::Lost(broken));
                    }
                    wait_for_any(&[channel.as_fd(), reports.as_fd()], LOOK_EVERY)?;
                    continue;
                }
                Err(broken) => return Ok(End::Lost(broken)),
            };
            let answer = match order {
                Order::End => return Ok(End::Well),
                Order::Stop(text) => return Ok(End::Stopped(harmless(&text, TEXT_MAX))),
                Order::Go => {
                    starter.open();
                    continue;
                }
                Order::Alive => continue,
                _ if is_busy => Err(BenchError::Refused("it is at work already".into())),
                order @ (Order::Welcome(_) | Order::Listen { .. }) => self.answer(order).map(Some),
                order => self.work_of(order).and_then(|work| {
                    begin(self, work)?;
                    is_busy = true;
                    Ok(None)
                }),
            };
            let answer =
                answer.unwrap_or_else(|error| Some(Report::Failed(harmless(&error.to_string(), TEXT_MAX))));
            if let Some(Err(broken)) = answer.map(|answer| channel.send(&answer)) {
                return Ok(End::Lost(broken));
            }
        }
    }

    /// Orders that are carried out by a thread of their own, so that somebody listens meanwhile.
    fn work_of(&mut self, order: Order) -> Result<Work, BenchError> {
        match order {
            Order::Prepare(_) if self.ground.get().is_some() => {
                Err(BenchError::Refused("it measures in a directory already".into()))
            }
            Order::Prepare(asked) => {
                self.during = "making the directory".into();
                let directory = ground::allowed_directory(&asked.directory, self.agent.directories)?;
                (self.agent.tell)(&format!("measuring in {}", directory.display()));
                Ok(Work::Prepare(asked, self.agent.directories.to_vec(), self.ground.clone()))
            }
            Order::TellRoom => Ok(Work::Room(self.ground()?.root().to_owned())),
            Order::Begin { task, is_watched } => self.task(task, is_watched),
            Order::Transfer(transfer) => {
                self.during = "measuring the network".into();
                Ok(Work::Transfer(transfer, self.listening.take()))
            }
            Order::Do(chore) => {
                self.during = chore.name().into();
                // A machine can be looked at before there is a directory of the run, but only from directories that this agent may use.
                if let Chore::Describe(asked) = &chore {
                    let directory = ground::allowed_directory(asked, self.agent.directories)?;
                    return Ok(Work::Chore(Chore::Describe(directory.clone()), directory));
                }
                Ok(Work::Chore(chore, self.ground()?.root().to_owned()))
            }
            Order::Clean(asked) => {
                self.during = "removing what an interrupted run has left".into();
                Ok(Work::Clean(asked, self.agent.directories.to_vec()))
            }
            _ => Err(nonsense()),
        }
    }

    /// Orders that are carried out at once.
    fn answer(&mut self, order: Order) -> Result<Report, BenchError> {
        match order {
            Order::Welcome(share) if share.machine >= share.machines => Err(nonsense()),
            Order::Welcome(share) => {
                self.share = share;
                (self.agent.tell)(&format!("joined as agent {} of {}", share.machine + 1, share.machines));
                Ok(Report::Well)
            }
            Order::Listen { flows, ports } => {
                let listening = Listening::open(self.address, ports, flows)?;
                let address = listening.address()?;
                self.listening = Some(listening);
                Ok(Report::Listening(address))
            }
            _ => Err(nonsense()),
        }
    }

    fn ground(&self) -> Result<&Ground, BenchError> {
        self.ground.get().ok_or_else(|| BenchError::Refused("no directory was named yet".into()))
    }

    fn task(&mut self, task: Task, is_watched: bool) -> Result<Work, BenchError> {
        let threads = task.threads().div_ceil(self.share.machines);
        if threads > THREADS_MAX {
            let text =
                format!("{threads} threads are too many for one agent, which has {THREADS_MAX} at most");
            return Err(BenchError::Refused(text));
        }
        let root = self.ground()?.root().to_owned();
        self.during = task.name();
        if is_watched && self.sampler.is_none() {
            let cannot = |error| BenchError::Refused(format!("cannot watch the machine: {error}"));
            self.sampler = Some(Arc::new(Sampler::start().map_err(cannot)?));
        }
        Ok(Work::Task(task, root, self.sampler.clone().filter(|_| is_watched)))
    }
}

fn nonsense() -> BenchError {
    BenchError::Refused("it was told what makes no sense now".into())
}
