//! Model of membership and leases: replicas with clocks of their own rates, beacons and grants that are lost, late and repeated,
//! removals, promotions, departures, crashes, power cuts, pauses (a replica takes no step while time passes), an operator who says that others never come back, rightly or not, and readings
//! of old maps.
//!
//! Properties, in every state: at most one replica may acknowledge; whoever may serve reads is in sync at every later epoch at which
//! another may; memberships follow each other as [`Store::violation`] says.

use crate::explorer::Model;
use crate::network::{Network, Request, Store};
use ashlar_replication::membership::{
    Change, Command, Commands, Content, IS_ANYBODY_THERE, LeaseTerms, Member, Proposer, Stored,
};
use ashlar_types::membership::Membership;
use ashlar_types::{Epoch, NodeId};
use std::time::Duration;

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A primary acknowledges without looking at its leases.
    LeaseUnchecked,
    /// A granter's grace is as long as the lease, though clocks differ.
    GraceTooShort,
    /// A manager overwrites the map without comparing.
    WriteWithoutCompare,
    /// A restarted replica goes on at the epoch it stopped in.
    RestartAtSameEpoch,
    /// A replica grants leases to a peer whose removal it has asked for.
    GrantAfterRemoval,
    /// A replica does without the lease of one that is catching up.
    JoinerLeaseAssumed,
    /// A replica acts at an epoch it has not stored.
    EpochNotStored,
    /// The operator's request to remove a replica in sync is carried out, though nobody has waited for its leases.
    RemovalWithoutGrace,
}

/// Bounds of an exploration.
#[derive(Clone, Debug)]
pub struct MembershipModel {
    /// Replicas in sync at first.
    pub in_sync: u32,
    /// Replicas that can be admitted.
    pub spare: u32,
    /// A lease, in units of a clock; the grace is twice that.
    pub lease: u32,
    /// Units of real time.
    pub time_max: u8,
    /// A clock advances by 1 or by 2 in each unit of real time: chosen anew in each if set, else once per replica.
    pub rates_vary: bool,
    /// Changes of the membership.
    pub changes_max: u64,
    /// Crashes, each with the loss of what was not stored.
    pub crashes_max: u8,
    /// Power cuts, after each of which a replica lacks something that it had reported.
    pub power_cuts_max: u8,
    /// Whether replicas may leave by themselves.
    pub departures: bool,
    /// What is broken on purpose.
    pub broken: Option<Broken>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Replica {
    /// `None` while it is down.
    member: Option<Member<NodeId>>,
    stored: Option<Stored<NodeId>>,
    clock: u8,
    rate: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Message {
    is_grant: bool,
    from: NodeId,
    to: NodeId,
    epoch: Epoch,
    sent_at: Duration,
}

/// See [`MembershipModel`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    replicas: Vec<Replica>,
    network: Network<Message>,
    store: Store,
    time: u8,
    crashes: u8,
    power_cuts: u8,
    /// The operator has said that somebody never comes back.
    is_given_up: bool,
}

/// A step.
#[derive(Clone, Debug)]
pub enum Action {
    /// Real time passes; the clocks of the replicas advance by so much.
    Pass(Vec<u8>),
    /// A replica looks at its clock.
    Tick(NodeId),
    /// A message arrives.
    Deliver(usize),
    /// A replica reads the map, maybe an old one.
    Learn(NodeId, Epoch),
    /// A manager carries a request out.
    CarryOut(Request),
    /// A replica asks for the promotion of another.
    Promote(NodeId, NodeId),
    /// A replica leaves.
    Leave(NodeId),
    /// A replica stops; what was not stored is lost.
    Crash(NodeId),
    /// A replica stops, and lacks something afterwards.
    PowerCut(NodeId),
    /// It starts again.
    Restart(NodeId),
    /// The operator says to one that waits for another that this one never comes back.
    GiveUp(NodeId, NodeId),
}

/// One unit of a clock.
const UNIT: Duration = Duration::from_secs(1);

impl MembershipModel {
    /// Two replicas within small bounds.
    pub fn small() -> MembershipModel {
        MembershipModel {
            in_sync: 2,
            spare: 0,
            lease: 1,
            time_max: 3,
            rates_vary: false,
            changes_max: 2,
            crashes_max: 1,
            power_cuts_max: 0,
            departures: false,
            broken: None,
        }
    }

    /// A grace of twice the lease, for clocks of which one may run twice as fast as another.
    fn terms(&self) -> LeaseTerms {
        let is_broken = self.broken == Some(Broken::GraceTooShort);
        let terms = LeaseTerms {
            heartbeat: UNIT,
            lease: self.lease * UNIT,
            grace: if is_broken { self.lease * UNIT } else { 2 * self.lease * UNIT },
            clock_rate_error_ppm: 333_333,
        };
        assert!(is_broken || terms.is_safe());
        terms
    }

    fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.in_sync + self.spare).map(NodeId)
    }

    /// Carries out what the member of `id` wants.
    fn run(&self, state: &mut State, id: NodeId, mut commands: Commands<NodeId>) {
        let mut at = 0;
        while let Some(command) = commands.get(at).cloned() {
            at += 1;
            match command {
                // Storing is one step with learning: a member that waits for it heeds nothing, so nothing comes between.
                Command::Store(stored) => {
                    let replica = &mut state.replicas[id.0 as usize];
                    let epoch = stored.membership.epoch;
                    if self.broken != Some(Broken::EpochNotStored) || replica.stored.is_none() {
                        replica.stored = Some(stored);
                    }
                    replica.member.as_mut().expect("it runs").stored(epoch);
                }
                Command::Beacon { to, epoch, sent_at } => {
                    let member = state.replicas[id.0 as usize].member.as_mut().expect("it runs");
                    if self.broken == Some(Broken::JoinerLeaseAssumed) && !member.membership().is_in_sync(to)
                    {
                        member.granted(to, epoch, sent_at, &mut commands);
                    }
                    state.network.send(Message { is_grant: false, from: id, to, epoch, sent_at });
                }
                Command::Grant { to, epoch, sent_at } => {
                    state.network.send(Message { is_grant: true, from: id, to, epoch, sent_at });
                }
                Command::Propose { expected, change } => {
                    state.store.ask(Request { expected, by: Proposer::Replica(id), change });
                }
                // Reading the map is a step that can be taken at any time.
                Command::Refresh => {}
            }
        }
    }

    fn deliver(&self, state: &mut State, message: Message) {
        let replica = &mut state.replicas[message.to.0 as usize];
        let now = UNIT * u32::from(replica.clock);
        let Some(member) = &mut replica.member else { return };
        let mut out = Commands::new();
        if message.is_grant {
            member.granted(message.from, message.epoch, message.sent_at, &mut out);
        } else {
            member.beacon(message.from, message.epoch, message.sent_at, now, &mut out);
            let is_refused = out.is_empty() && member.admits(message.epoch, &mut out);
            if self.broken == Some(Broken::GrantAfterRemoval) && is_refused {
                out.push(Command::Grant { to: message.from, epoch: message.epoch, sent_at: message.sent_at });
            }
        }
        self.run(state, message.to, out);
    }

    fn restart(&self, state: &mut State, id: NodeId) {
        let replica = &mut state.replicas[id.0 as usize];
        let now = UNIT * u32::from(replica.clock);
        let Some(stored) = replica.stored.clone() else { return };
        if self.broken == Some(Broken::RestartAtSameEpoch) {
            let membership = stored.membership;
            let epoch = membership.epoch;
            let mut member = Member::join(id, self.terms(), membership, now, &mut Commands::<NodeId>::new());
            member.stored(epoch);
            replica.member = Some(member);
        } else {
            replica.member = Some(Member::recover(id, self.terms(), stored, now));
        }
    }

    fn learn(&self, state: &mut State, id: NodeId, epoch: Epoch) {
        let found = state.store.history().iter().find(|membership| membership.epoch == epoch);
        let membership = found.expect("actions name what is there").clone();
        let terms = self.terms();
        let replica = &mut state.replicas[id.0 as usize];
        let now = UNIT * u32::from(replica.clock);
        let mut out = Commands::new();
        match &mut replica.member {
            Some(member) => member.learn(&membership, now, &mut out),
            None => replica.member = Some(Member::join(id, terms, membership, now, &mut out)),
        }
        self.run(state, id, out);
    }

    fn may_acknowledge(&self, replica: &Replica) -> bool {
        let now = UNIT * u32::from(replica.clock);
        let is_unchecked = self.broken == Some(Broken::LeaseUnchecked);
        let says = |member: &Member<NodeId>| {
            if is_unchecked { member.is_primary() } else { member.may_acknowledge(now) }
        };
        replica.member.as_ref().is_some_and(says)
    }

    fn operator_requests(&self, state: &State, out: &mut Vec<Action>) {
        let current = state.store.current();
        let mut ask = |change| {
            let request = Request { expected: current.epoch, by: Proposer::Operator, change };
            out.push(Action::CarryOut(request));
        };
        for id in self.ids().filter(|id| !current.is_member(*id) && current.in_sync.len() < 3) {
            if id.0 >= self.in_sync {
                ask(Change::Admit(id));
            }
        }
        if self.broken == Some(Broken::RemovalWithoutGrace) {
            for &id in &current.in_sync[..current.in_sync.len() - 1] {
                // As if the operator spoke for another replica.
                let by = Proposer::Replica(*current.in_sync.last().expect("never empty"));
                let request = Request { expected: current.epoch, by, change: Change::Remove(id) };
                out.push(Action::CarryOut(request));
            }
        }
    }

    fn pass(&self, state: &State, out: &mut Vec<Action>) {
        let rates: Vec<u8> = state.replicas.iter().map(|replica| replica.rate).collect();
        if !self.rates_vary {
            out.push(Action::Pass(rates));
            return;
        }
        for choice in 0..1_u32 << rates.len() {
            out.push(Action::Pass((0..rates.len()).map(|i| 1 + (choice >> i & 1) as u8).collect()));
        }
    }
}

impl Model for MembershipModel {
    type State = State;
    type Action = Action;

    fn initial(&self) -> Vec<State> {
        let first = Membership::new(Epoch(1), (0..self.in_sync).map(NodeId));
        let choices = if self.rates_vary { 1 } else { 1 << (self.in_sync + self.spare) };
        let state = |choice: u32| {
            let replica = |id: NodeId| Replica {
                member: None,
                stored: None,
                clock: 0,
                rate: 1 + (choice >> id.0 & 1) as u8,
            };
            let mut state = State {
                replicas: self.ids().map(replica).collect(),
                network: Network::default(),
                store: Store::new(first.clone()),
                time: 0,
                crashes: 0,
                power_cuts: 0,
                is_given_up: false,
            };
            for id in self.ids().take(self.in_sync as usize) {
                self.learn(&mut state, id, Epoch(1));
            }
            state
        };
        (0..choices).map(state).collect()
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        if state.time < self.time_max {
            self.pass(state, out);
        }
        let can_change = state.store.current().epoch.0 <= self.changes_max;
        if can_change {
            out.extend(state.store.requests().iter().map(|request| Action::CarryOut(*request)));
            self.operator_requests(state, out);
        }
        out.extend((0..state.network.messages().len()).map(Action::Deliver));
        for (id, replica) in self.ids().zip(&state.replicas) {
            let Some(member) = &replica.member else {
                if replica.stored.is_some() {
                    out.push(Action::Restart(id));
                } else if state.store.current().is_member(id) {
                    out.push(Action::Learn(id, state.store.current().epoch));
                }
                continue;
            };
            out.push(Action::Tick(id));
            let newer = state.store.history().iter().filter(|known| known.epoch > member.epoch());
            out.extend(newer.map(|known| Action::Learn(id, known.epoch)));
            if state.crashes < self.crashes_max {
                out.push(Action::Crash(id));
            }
            if state.power_cuts < self.power_cuts_max {
                out.push(Action::PowerCut(id));
            }
            let waits_for = member.waits_for(UNIT * u32::from(replica.clock));
            out.extend(waits_for.map(|other| Action::GiveUp(id, other)));
            if can_change && member.is_primary() {
                out.extend(member.membership().catching_up.iter().map(|&other| Action::Promote(id, other)));
            }
            if self.departures && can_change && member.is_active() {
                out.push(Action::Leave(id));
            }
        }
    }

    fn apply(&self, state: &mut State, action: &Action) {
        let mut out = Commands::new();
        match action {
            Action::Pass(rates) => {
                state.time += 1;
                for (replica, rate) in state.replicas.iter_mut().zip(rates) {
                    replica.clock += rate;
                }
            }
            Action::Deliver(at) => self.deliver(state, state.network.messages()[*at]),
            Action::Learn(id, epoch) => self.learn(state, *id, *epoch),
            Action::CarryOut(request) if self.broken == Some(Broken::WriteWithoutCompare) => {
                state.store.carry_out_without_comparing(request);
            }
            Action::CarryOut(request) => state.store.carry_out(request),
            Action::Crash(id) => {
                state.replicas[id.0 as usize].member = None;
                state.crashes += 1;
            }
            Action::PowerCut(id) => {
                let replica = &mut state.replicas[id.0 as usize];
                replica.member = None;
                replica.stored.iter_mut().for_each(|stored| stored.content = Content::Short);
                state.power_cuts += 1;
            }
            Action::GiveUp(id, other) => {
                let member = state.replicas[id.0 as usize].member.as_mut().expect("only of those that run");
                member.give_up(*other);
                state.is_given_up = true;
            }
            Action::Restart(id) => self.restart(state, *id),
            Action::Tick(id) | Action::Promote(id, _) | Action::Leave(id) => {
                let replica = &mut state.replicas[id.0 as usize];
                let now = UNIT * u32::from(replica.clock);
                let member = replica.member.as_mut().expect("only of those that run");
                match action {
                    Action::Promote(_, other) => member.promote(*other, &mut out),
                    Action::Leave(_) => member.leave(&mut out),
                    _ => member.tick(now, &mut out),
                }
                self.run(state, *id, out);
            }
        }
    }

    fn violation(&self, state: &State) -> Option<String> {
        let acknowledging: Vec<_> =
            state.replicas.iter().filter(|replica| self.may_acknowledge(replica)).collect();
        if acknowledging.len() > 1 {
            return Some("two replicas may acknowledge at the same moment".to_owned());
        }
        let serving = state.replicas.iter().filter_map(|replica| {
            let now = UNIT * u32::from(replica.clock);
            replica.member.as_ref().filter(|member| member.may_serve(now))
        });
        let serving: Vec<_> = serving.collect();
        let excludes = |newer: &Member<NodeId>, older: &Member<NodeId>| {
            newer.epoch() > older.epoch() && !newer.membership().is_in_sync(older.id())
        };
        if serving.iter().any(|newer| serving.iter().any(|older| excludes(newer, older))) {
            return Some("a replica that was removed may serve reads beside those that go on".to_owned());
        }
        state.store.violation()
    }

    fn milestones(&self, state: &State, reached: &mut dyn FnMut(&'static str)) {
        let acknowledging = state.replicas.iter().find(|replica| self.may_acknowledge(replica));
        let Some(member) = acknowledging.and_then(|replica| replica.member.as_ref()) else { return };
        reached("somebody may acknowledge");
        if member.id() != NodeId(0) {
            reached("another took over and may acknowledge");
        }
        if member.epoch() < state.store.current().epoch {
            reached("may acknowledge and does not know of the newest epoch");
        }
        if state.is_given_up && member.membership().in_sync.len() == 1 {
            reached("may acknowledge without one that was given up");
        }
        if member.membership().in_sync.len() > self.in_sync as usize {
            reached("may acknowledge with a promoted replica");
        }
    }

    fn canonicalize(&self, state: &mut State) {
        if self.broken != Some(Broken::WriteWithoutCompare) {
            state.store.forget_refused();
        }
        // A replica refuses what is older than the epoch it has stored, also after a restart. Of the messages of one kind between two
        // replicas at one epoch only the newest is kept: it gives its receiver a later end of the lease than the others and
        // differs in nothing else, and an earlier end breaks no property that a later one keeps.
        let replicas = &state.replicas;
        let newest = state.network.clone();
        state.network.retain(|message| {
            let stored = replicas[message.to.0 as usize].stored.as_ref();
            let is_newer = |other: &Message| {
                Message { sent_at: message.sent_at, ..*other } == *message && other.sent_at > message.sent_at
            };
            // Whether anybody is there is asked at no epoch.
            let is_of_now = message.epoch == IS_ANYBODY_THERE
                || stored.is_none_or(|stored| message.epoch >= stored.membership.epoch);
            is_of_now && !newest.messages().iter().any(is_newer)
        });
    }
}
