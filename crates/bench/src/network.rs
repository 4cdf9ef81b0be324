//! What the network between agents carries: goodput of TCP between every pair and between all of them at the same time, and how long a small
//! message takes there and back.
//!
//! Data goes over plain TCP, which is the ceiling of whatever is built on it. Who may connect is agreed on through the authenticated channel: every
//! connection begins with a token that is good for one flow of one phase. The receiver counts: what arrives in a window of time that begins
//! when connections are up to speed.

mod flow;
mod listen;

pub(crate) use flow::{FlowDone, Transfer};
pub(crate) use listen::Listening;
pub use listen::Ports;

use crate::BenchError;
use crate::agent::{Order, Report, Team, Token, random};
use crate::figure::Spread;
use flow::{Kind, Outgoing};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;

/// LIMIT: streams of one flow.
pub const STREAMS_MAX: u32 = 256;
/// Connections get up to speed, and buckets of shapers empty, before the time begins.
const WARM_UP: Duration = Duration::from_millis(500);

/// From and to, agents from 0.
type Pair = (usize, usize);

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkPlan {
    /// Numbers of streams of each flow, one measurement each.
    pub streams: Vec<u32>,
    /// Seconds of each measurement.
    pub seconds: u64,
    /// How often each is done.
    pub repetitions: u32,
    /// Where agents may be connected to; without it on ports that their systems choose.
    #[serde(default)]
    pub ports: Option<Ports>,
}

/// Who sends at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// One agent to one other.
    OnePair,
    /// One half of the agents to the other, and back.
    Bisection,
    /// Every agent to every other.
    All,
}

impl Pattern {
    /// What flows there are between agents at the same time: round by round, each a list of from and to. `networks` tells for each agent which
    /// network it is in; between two of one there is no link, and only alone do they send each other anything.
    fn rounds(self, networks: &[usize]) -> Vec<Vec<Pair>> {
        let agents = networks.len();
        let pairs = (0..agents).flat_map(|from| (0..agents).map(move |to| (from, to)));
        let pairs = pairs.filter(|(from, to)| from != to);
        let half = agents / 2;
        let flows: Vec<Pair> = match self {
            Pattern::OnePair => return pairs.map(|pair| vec![pair]).collect(),
            Pattern::Bisection => (0..half).flat_map(|at| [(at, at + half), (at + half, at)]).collect(),
            // Two are a bisection already.
            Pattern::All if agents == 2 => Vec::new(),
            Pattern::All => pairs.collect(),
        };
        let flows: Vec<Pair> =
            flows.into_iter().filter(|(from, to)| networks[*from] != networks[*to]).collect();
        if flows.is_empty() { Vec::new() } else { vec![flows] }
    }
}

/// One flow of one repetition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowFigure {
    /// What else went on.
    pub pattern: Pattern,
    /// The agent that sends, from 1.
    pub from: usize,
    /// The agent that receives.
    pub to: usize,
    /// Connections.
    pub streams: u32,
    /// Which time it was done, from 1.
    pub repetition: u32,
    /// Bytes of payload that arrived.
    pub bytes: u64,
    /// In this time.
    pub seconds: f64,
    /// Whether both agents are on one machine and in one network of it: what they send each other passes through no link.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_within_machine: bool,
}

/// How long small messages took there and back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyFigure {
    /// The agent that asks, from 1.
    pub from: usize,
    /// The agent that answers.
    pub to: usize,
    /// Which time it was done, from 1.
    pub repetition: u32,
    /// How many there were, one after the other.
    pub messages: u64,
    /// Microseconds: median.
    pub p50_us: f64,
    /// Not exceeded by 99 %.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// All that was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NetworkFigures {
    /// Goodput.
    pub flows: Vec<FlowFigure>,
    /// Round trips, while nothing else went on.
    pub latencies: Vec<LatencyFigure>,
}

impl FlowFigure {
    /// Payload, bits per second.
    pub fn bits_per_second(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.seconds
    }
}

impl NetworkFigures {
    /// Payload of the same flow over all repetitions, bits per second, in the order they came first: pattern, from, to, streams.
    pub fn summarize(&self) -> Vec<(Pattern, usize, usize, u32, Spread)> {
        let key = |flow: &FlowFigure| (flow.pattern, flow.from, flow.to, flow.streams);
        let mut keys = Vec::new();
        for flow in &self.flows {
            if !keys.contains(&key(flow)) {
                keys.push(key(flow));
            }
        }
        let of = |one: (Pattern, usize, usize, u32)| {
            let same = self.flows.iter().filter(|flow| key(flow) == one);
            let rates: Vec<f64> = same.map(FlowFigure::bits_per_second).collect();
            (one.0, one.1, one.2, one.3, Spread::of(&rates))
        };
        keys.into_iter().map(of).collect()
    }

    /// Payload of all flows of `pattern` with `streams` together, bits per second, over all repetitions.
    pub fn together(&self, pattern: Pattern, streams: u32) -> Option<Spread> {
        let of = |repetition: u32| {
            let same = self.flows.iter().filter(|flow| {
                (flow.pattern, flow.streams, flow.repetition) == (pattern, streams, repetition)
            });
            same.map(FlowFigure::bits_per_second).reduce(|sum, rate| sum + rate)
        };
        let sums: Vec<f64> = (1..).map_while(of).collect();
        (!sums.is_empty()).then(|| Spread::of(&sums))
    }
}

impl NetworkPlan {
    /// Whether it can be done as it is.
    ///
    /// # Errors
    /// [`BenchError::Plan`] with what does not fit together.
    pub fn check(&self) -> Result<(), BenchError> {
        let is_right = self.streams.iter().all(|streams| (1..=STREAMS_MAX).contains(streams));
        if self.streams.is_empty() || !is_right || self.seconds == 0 || self.repetitions == 0 {
            return Err(BenchError::Plan(format!(
                "streams are 1 to {STREAMS_MAX}, seconds and repetitions at least 1"
            )));
        }
        Ok(())
    }

    /// How long all of it takes between agents of which each is in one of `networks`, as [`Team::networks`] tells them.
    pub fn time(&self, networks: &[usize]) -> Duration {
        let patterns = [Pattern::OnePair, Pattern::Bisection, Pattern::All];
        let rounds: usize = patterns.iter().map(|pattern| pattern.rounds(networks).len()).sum();
        let phases = rounds * self.streams.len() + Pattern::OnePair.rounds(networks).len();
        let each = WARM_UP + Duration::from_secs(self.seconds);
        each * u32::try_from(phases).unwrap_or(u32::MAX) * self.repetitions
    }

    /// Measures between all agents of `team`; `tell` hears of what is done, in sentences.
    ///
    /// # Errors
    /// [`BenchError::Plan`]; what agents answer, [`BenchError::Lost`] when one is gone. What was measured before is in `figures`.
    pub fn measure(
        &self,
        team: &Team<'_>,
        figures: &mut NetworkFigures,
        tell: &dyn Fn(&str),
    ) -> Result<(), BenchError> {
        self.check()?;
        let networks = &team.networks();
        if networks.len() < 2 {
            return Err(BenchError::Plan("a network is between two agents at least: --agents 2".into()));
        }
        for repetition in 1..=self.repetitions {
            for round in Pattern::OnePair.rounds(networks) {
                for (flow, done) in self.run(team, Kind::Echo, &round, 1)? {
                    let tally = done.tally.unwrap_or_default();
                    let micros = |part: f64| tally.latency(part).as_secs_f64() * 1e6;
                    figures.latencies.push(LatencyFigure {
                        from: flow.0 + 1,
                        to: flow.1 + 1,
                        repetition,
                        messages: tally.operations(),
                        p50_us: micros(0.5),
                        p99_us: micros(0.99),
                        max_us: micros(1.0),
                    });
                }
            }
            for pattern in [Pattern::OnePair, Pattern::Bisection, Pattern::All] {
                for (round, &streams) in pattern
                    .rounds(networks)
                    .iter()
                    .flat_map(|round| self.streams.iter().map(move |streams| (round, streams)))
                {
                    tell(&format!("{pattern:?}, {} flows of {streams} streams", round.len()));
                    for (flow, done) in self.run(team, Kind::Stream, round, streams)? {
                        figures.flows.push(FlowFigure {
                            pattern,
                            from: flow.0 + 1,
                            to: flow.1 + 1,
                            streams,
                            repetition,
                            bytes: done.bytes,
                            seconds: self.seconds as f64,
                            is_within_machine: networks[flow.0] == networks[flow.1],
                        });
                    }
                }
            }
        }
        Ok(())
    }

    /// All of `flows` at the same time.
    fn run(
        &self,
        team: &Team<'_>,
        kind: Kind,
        flows: &[Pair],
        streams: u32,
    ) -> Result<Vec<(Pair, FlowDone)>, BenchError> {
        team.say_during("measuring the network");
        let tokens: Vec<Token> = flows.iter().map(|_| random()).collect::<Result<_, _>>()?;
        let all = || flows.iter().zip(&tokens);
        let incoming = |agent: usize| {
            let here = all().filter(move |((_, to), _)| *to == agent);
            let flows = here.map(|(_, token)| (*token, streams)).collect();
            Order::Listen { flows, ports: self.ports }
        };
        let listening = team.ask_all(incoming)?;
        let addresses: Vec<SocketAddr> = (listening.iter().enumerate())
            .map(|(at, report)| match report {
                Report::Listening(address) => Ok(*address),
                other => Err(team.unexpected(at, other)),
            })
            .collect::<Result<_, _>>()?;
        let ready = team.ask_all(|agent| {
            let sends = all().filter(|((from, _), _)| *from == agent);
            let outgoing =
                |((_, to), token): (&Pair, &Token)| Outgoing { to: addresses[*to], token: *token, streams };
            let measured = Duration::from_secs(self.seconds);
            Order::Transfer(Transfer {
                kind,
                sends: sends.map(outgoing).collect(),
                warm_up: WARM_UP,
                measured,
            })
        })?;
        let (reports, _) = team.let_go(&ready)?;
        let mut done = Vec::new();
        for (at, report) in reports.into_iter().enumerate() {
            let Report::Flows(ended) = report else { return Err(team.unexpected(at, &report)) };
            for flow in ended {
                let which = tokens.iter().position(|token| *token == flow.token);
                done.extend(which.map(|which| (flows[which], flow)));
            }
        }
        done.sort_by_key(|(flow, _)| *flow);
        if done.len() != flows.len() {
            return Err(BenchError::Refused("agents did not tell of all flows".into()));
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{Agent, Coordinator};
    use std::sync::atomic::AtomicBool;

    #[test]
    fn every_pair_is_measured_in_both_directions_and_halves_send_to_each_other() {
        assert_eq!(Pattern::OnePair.rounds(&[1, 2, 3]).len(), 6);
        assert!(Pattern::OnePair.rounds(&[1, 2, 3]).iter().all(|round| round.len() == 1));
        assert_eq!(Pattern::Bisection.rounds(&[1, 2, 3, 4, 5]), [[(0, 2), (2, 0), (1, 3), (3, 1)]]);
        assert_eq!(Pattern::All.rounds(&[1, 2, 3])[0].len(), 6);
        assert!(Pattern::All.rounds(&[1, 2]).is_empty());
        let plan = NetworkPlan { streams: vec![1, 4], seconds: 2, repetitions: 3, ports: None };
        assert_eq!(plan.time(&[1, 2]), Duration::from_millis(2500) * 3 * (2 + 2 * (2 + 1)));
    }

    #[test]
    fn agents_of_one_machine_fill_no_link_and_count_for_none() {
        // Agents 1 and 3 are on one machine.
        let networks = [1, 2, 1, 3];
        assert_eq!(Pattern::Bisection.rounds(&networks), [[(1, 3), (3, 1)]]);
        let all = &Pattern::All.rounds(&networks)[0];
        assert!(all.len() == 10 && !all.contains(&(0, 2)) && !all.contains(&(2, 0)), "{all:?}");
        assert_eq!(Pattern::OnePair.rounds(&networks).len(), 12, "alone they show what no link limits");
        assert!(Pattern::Bisection.rounds(&[1, 1]).is_empty() && Pattern::All.rounds(&[1, 1, 1]).is_empty());
    }

    #[test]
    fn flows_are_summed_up_by_pair_and_by_what_went_on_at_the_same_time() {
        let flow = |from: usize, to: usize, repetition: u32, bytes: u64| FlowFigure {
            pattern: Pattern::Bisection,
            from,
            to,
            streams: 1,
            repetition,
            bytes,
            seconds: 2.0,
            is_within_machine: false,
        };
        let flows = vec![flow(1, 2, 1, 100), flow(2, 1, 1, 200), flow(1, 2, 2, 300), flow(2, 1, 2, 400)];
        let figures = NetworkFigures { flows, latencies: Vec::new() };
        let pairs = figures.summarize();
        assert_eq!((pairs.len(), pairs[0].4.mean, pairs[1].4.mean), (2, 800.0, 1200.0));
        let sum = figures.together(Pattern::Bisection, 1).unwrap();
        assert_eq!((sum.least, sum.greatest), (1200.0, 2800.0));
        assert_eq!(figures.together(Pattern::All, 1), None);
    }

    #[test]
    fn a_plan_that_makes_no_sense_is_refused() {
        let plan = |streams: &[u32], seconds| NetworkPlan {
            streams: streams.to_vec(),
            seconds,
            repetitions: 1,
            ports: None,
        };
        assert!(plan(&[1, 256], 1).check().is_ok());
        for (streams, seconds) in [(&[][..], 1), (&[0], 1), (&[257], 1), (&[1], 0)] {
            assert!(plan(streams, seconds).check().is_err());
        }
    }

    #[test]
    fn three_agents_send_to_each_other_at_the_same_time() {
        static GO_ON: AtomicBool = AtomicBool::new(false);
        let coordinator = Coordinator::listen("127.0.0.1:0", "1").unwrap();
        let address = coordinator.address().unwrap().to_string();
        let invitation = coordinator.invitation().clone();
        let serve = || {
            let agent = Agent {
                coordinator: &address,
                invitation: &invitation,
                directories: &[],
                address: None,
                version: "1",
                cancel: &GO_ON,
                tell: &|_| (),
            };
            agent.serve()
        };
        std::thread::scope(|scope| {
            let agents: Vec<_> = (0..3).map(|_| scope.spawn(serve)).collect();
            let team = coordinator.gather(3, Duration::from_secs(60), &GO_ON, &|_| ()).unwrap();
            let plan = NetworkPlan { streams: vec![2], seconds: 1, repetitions: 1, ports: None };
            let flows = &Pattern::All.rounds(&[1, 2, 3])[0];
            let done = plan.run(&team, Kind::Stream, flows, 2).unwrap();
            let told: Vec<Pair> = done.iter().map(|(flow, _)| *flow).collect();
            assert_eq!(told, [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]);
            assert!(done.iter().all(|(_, flow)| flow.bytes > 1 << 20), "{done:?}");
            let ports = Some(Ports { first: 21_000, last: 21_999 });
            let told = team.ask_all(|_| Order::Listen { flows: Vec::new(), ports }).unwrap();
            let mut chosen: Vec<u16> = told
                .iter()
                .map(|report| match report {
                    Report::Listening(address) => address.port(),
                    other => panic!("{other:?}"),
                })
                .collect();
            chosen.dedup();
            assert!(
                chosen.len() == 3 && chosen.iter().all(|port| (21_000..22_000).contains(port)),
                "{chosen:?}"
            );
            assert_eq!(team.networks(), [1, 1, 1]);
            // Directories that no agent was started with.
            let refused = team.prepare(std::path::Path::new("/"), true).unwrap_err().to_string();
            assert!(refused.contains("started for no directory"), "{refused}");
            drop(team);
            for agent in agents {
                let ended = agent.join().unwrap().unwrap_err().to_string();
                assert!(ended.contains("ended before its time"), "{ended}");
            }
        });
    }
}
