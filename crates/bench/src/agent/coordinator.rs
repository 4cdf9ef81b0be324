//! Waiting for agents: each shows that it has the secret before anything else it says is looked at.

use super::channel::{Broken, Channel, harmless};
use super::invitation::{Invitation, random};
use super::members::Member;
use super::message::{AGENTS_MAX, Introduction, Order, Report};
use super::team::Team;
use super::tls::{self, Key};
use crate::BenchError;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// LIMIT: connections that have not proven themselves yet; more are closed at once. Each lasts as long as a handshake may.
const STRANGERS_MAX: usize = 64;
/// How often it is looked whether somebody wants the wait to end.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// LIMIT: of a host's name, characters.
const NAME_MAX: usize = 64;

/// Somewhere that agents can join.
pub struct Coordinator {
    listener: TcpListener,
    invitation: Invitation,
    config: Arc<rustls::ServerConfig>,
    version: String,
}

/// What came of a connection: an agent, or why it is none, and from where.
type Arrival = (SocketAddr, Result<(Channel, Introduction), String>);

impl Coordinator {
    /// Listens on `address`, with a key and a secret that are drawn now. `version` is this program's, which has to be the agents'.
    ///
    /// # Errors
    /// [`BenchError::Refused`] when it cannot listen there.
    pub fn listen(address: &str, version: &str) -> Result<Coordinator, BenchError> {
        let cannot =
            |error: io::Error| BenchError::Refused(format!("cannot listen for agents on {address}: {error}"));
        let listener = TcpListener::bind(address).map_err(cannot)?;
        listener.set_nonblocking(true).map_err(cannot)?;
        let key = Key::from_seed(&random()?)?;
        let invitation = Invitation::draw(key.public())?;
        let config = tls::coordinator(&key, &invitation)?;
        Ok(Coordinator { listener, invitation, config, version: version.to_owned() })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// [`BenchError::Refused`] if the system does not tell.
    pub fn address(&self) -> Result<SocketAddr, BenchError> {
        let told = self.listener.local_addr();
        told.map_err(|error| BenchError::Refused(format!("cannot find out where agents can join: {error}")))
    }

    /// What agents have to be given.
    pub fn invitation(&self) -> &Invitation {
        &self.invitation
    }

    /// Waits until `count` agents have joined, `patience` at most; then the secret is used up, and nobody listens any more. `tell` hears who
    /// joined, and who could not.
    ///
    /// # Errors
    /// [`BenchError::Refused`] when not all of them came, [`BenchError::Lost`] when one went, [`BenchError::Stopped`] when somebody sets
    /// `cancel`.
    pub fn gather<'a>(
        self,
        count: usize,
        patience: Duration,
        cancel: &'a AtomicBool,
        tell: &dyn Fn(&str),
    ) -> Result<Team<'a>, BenchError> {
        if !(1..=AGENTS_MAX).contains(&count) {
            return Err(BenchError::Plan(format!("{count} agents are none or too many: 1 to {AGENTS_MAX}")));
        }
        let deadline = Instant::now() + patience;
        let strangers = Arc::new(AtomicUsize::new(0));
        let (arrive, arrivals) = channel();
        let mut team = Team::new(cancel);
        while team.len() < count {
            if cancel.load(Relaxed) {
                return Err(BenchError::Stopped);
            }
            if Instant::now() > deadline {
                let text = format!(
                    "{} of {count} agents have joined within {} seconds; start the others, or wait longer with --wait",
                    team.len(),
                    patience.as_secs()
                );
                return Err(BenchError::Refused(text));
            }
            while let Ok((tcp, from)) = self.listener.accept() {
                self.meet(tcp, from, &strangers, &arrive);
            }
            seat(&mut team, &arrivals, count, tell);
            team.tend()?;
            team.wait_with(self.listener.as_fd(), LOOK_EVERY)?;
        }
        drop(self.listener);
        turn_away(arrivals);
        team.number();
        team.welcome()?;
        Ok(team)
    }

    /// Has a thread of its own find out who it is.
    fn meet(&self, tcp: TcpStream, from: SocketAddr, strangers: &Arc<AtomicUsize>, arrive: &Sender<Arrival>) {
        if strangers.load(Relaxed) >= STRANGERS_MAX {
            return;
        }
        strangers.fetch_add(1, Relaxed);
        let (config, version) = (self.config.clone(), self.version.clone());
        let (strangers, arrive) = (strangers.clone(), arrive.clone());
        let (counted, told) = (strangers.clone(), arrive.clone());
        let meeting = move || {
            let met = introduce(tcp, &config, &version);
            strangers.fetch_sub(1, Relaxed);
            // Nobody waits any more when all have come.
            let _ = arrive.send((from, met));
        };
        if let Err(error) = std::thread::Builder::new().spawn(meeting) {
            counted.fetch_sub(1, Relaxed);
            let why = format!(
                "no thread can be started for it here: {error}; let this user have more (ulimit -u, TasksMax= of its service)"
            );
            // The other end is with whoever waits.
            let _ = told.send((from, Err(why)));
        }
    }
}

/// Proves both to each other, compares versions, and takes the introduction.
fn introduce(
    tcp: TcpStream,
    config: &Arc<rustls::ServerConfig>,
    version: &str,
) -> Result<(Channel, Introduction), String> {
    let tls = tls::accepted(config).map_err(|error| error.to_string())?;
    let mut channel = Channel::new(tcp, tls.into()).map_err(|broken| match broken {
        Broken::Tls(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented) => {
            "it does not have the secret of this run".to_owned()
        }
        Broken::Tls(rustls::Error::AlertReceived(_)) => "it has the secret of another run".to_owned(),
        other => format!("it is no agent of this run: {other}"),
    })?;
    let versions = channel.compare_versions(version).map_err(|broken| broken.to_string())?;
    if let Err(there) = versions {
        return Err(format!(
            "it is ashlar {there}, and this is ashlar {version}: start the same version on every machine"
        ));
    }
    let bytes = channel.receive_bytes().map_err(|broken| broken.to_string())?;
    let told: Introduction =
        postcard::from_bytes(&bytes).map_err(|_| "it does not say who it is".to_owned())?;
    let mut name = harmless(&told.name, NAME_MAX);
    name.retain(|sign| sign.is_ascii_alphanumeric() || matches!(sign, '.' | '-' | '_'));
    Ok((channel, Introduction { name, boot_id: harmless(&told.boot_id, NAME_MAX), ..told }))
}

/// Gives those who have arrived their place.
fn seat(team: &mut Team<'_>, arrivals: &Receiver<Arrival>, count: usize, tell: &dyn Fn(&str)) {
    while team.len() < count
        && let Ok((from, met)) = arrivals.try_recv()
    {
        match met {
            Ok((channel, introduction)) => {
                let member = Member::new(introduction, from, channel);
                tell(&format!("{} has joined, {} of {count}", member.name(), team.len() + 1));
                team.add(member);
            }
            Err(why) => tell(&format!("turned away {from}: {why}")),
        }
    }
}

/// Whoever has the secret and came too late is told so, as long as somebody is there to do it.
fn turn_away(arrivals: Receiver<Arrival>) {
    let telling = move || {
        while let Ok((_, met)) = arrivals.recv() {
            if let Ok((mut channel, _)) = met {
                let text = "all agents of this run have joined already: its secret is used up";
                // It goes either way.
                let _ = channel.send(&Order::Stop(text.into()));
                let _: Result<Option<Report>, Broken> = channel.take();
                channel.close();
            }
        }
    };
    // Where no thread can be started they only see that the connection ends.
    let _ = std::thread::Builder::new().spawn(telling);
}
