//! What goes on behind calls: decisions are told, and asked for where they were not, also after a start.

use super::coordinate::DECIDED;
use super::message::{Answer, PreparedRecord, Say};
use super::participate::PREPARED;
use super::{Machine, MetaService};
use ashlar_env::Signal;
use ashlar_kv::{Key, KvError, Position, Snapshot};
use ashlar_namespace::{ShardChange, key};
use ashlar_replication::transaction::{
    Command, Message, Part, Participants, Record, TransactionId, Transactions,
};
use ashlar_types::codec::decode;
use ashlar_types::{Errno, NodeId, SessionId, ShardId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Messages that wait for one server.
// LIMIT: of a courier; what has no room is said again by `resume`.
const QUEUE_MAX: usize = 4096;
/// For how long a server may take to answer a message.
const TELL_MAX: Duration = Duration::from_secs(2);
/// For how long a courier waits for messages before it looks whether the service is there still.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// Something to be said, when the log is durable up to `after`.
struct Letter {
    from: ShardId,
    to: ShardId,
    message: Message<Key, ShardChange>,
    after: Option<Position>,
}

/// Messages on their way to one server, and the thread that brings them.
struct Courier {
    letters: Mutex<VecDeque<Letter>>,
    ready: Signal,
}

/// A courier per server: one that does not answer holds up nobody else.
#[derive(Default)]
pub(crate) struct Couriers {
    service: OnceLock<Weak<MetaService>>,
    // LIMIT: one per metadata server.
    by_node: Mutex<FxHashMap<NodeId, Arc<Courier>>>,
}

impl Couriers {
    /// The service that they work for.
    pub(super) fn service(&self) -> Option<Weak<MetaService>> {
        self.service.get().cloned()
    }
}

impl MetaService {
    /// Has couriers work for this service.
    pub(crate) fn employ_couriers(self: &Arc<Self>) {
        let _ = self.across.couriers.service.set(Arc::downgrade(self));
    }

    /// Has what the machine of `from` wants said to others be said, once the log is durable up to `after`.
    pub(super) fn send_later(
        &self,
        from: ShardId,
        commands: Vec<Command<Key, ShardChange>>,
        after: Option<Position>,
    ) {
        for command in commands {
            let Command::Send { to, message } = command else { continue };
            let Some(node) = self.map.read().primary(to) else { continue };
            let Some(courier) = self.courier(node) else { continue };
            let mut letters = courier.letters.lock();
            if letters.len() < QUEUE_MAX {
                letters.push_back(Letter { from, to, message, after });
                courier.ready.notify_one();
            }
        }
    }

    fn courier(&self, node: NodeId) -> Option<Arc<Courier>> {
        let mut couriers = self.across.couriers.by_node.lock();
        if let Some(courier) = couriers.get(&node) {
            return Some(courier.clone());
        }
        let courier = Arc::new(Courier { letters: Mutex::default(), ready: self.env.tasks.signal() });
        let (service, own) = (self.across.couriers.service.get()?.clone(), courier.clone());
        let run = Box::new(move || own.work(&service));
        if let Err(error) = self.env.tasks.spawn("ashlar-courier", run) {
            tracing::error!(%error, "no thread can be started to tell other metadata servers what was decided; trying again");
            return None;
        }
        couriers.insert(node, courier.clone());
        Some(courier)
    }

    fn deliver_letter(&self, letter: Letter) -> Result<(), Errno> {
        let Letter { from, to, message, after } = letter;
        if let Some(position) = after {
            // ORDER: see the module.
            self.lane.flush(position).map_err(|error| self.answer(&error.into()))?;
        }
        let answers = if self.is_here(to) {
            let _inside = self.enter(to)?;
            self.hear_transaction(to, from, message)?
        } else {
            let say = Say::Transaction { session: SessionId(0), shard: to, from, message };
            match self.say(to, &say, TELL_MAX)? {
                Answer::Messages(messages) => messages,
                Answer::Failed(errno) => return Err(errno),
                _ => return Ok(()),
            }
        };
        // A shard that has gone since finds it out where it is, by its records.
        let Ok(_inside) = self.enter(from) else { return Ok(()) };
        for answer in answers {
            let next = self.hear_transaction(from, to, answer)?;
            let commands = next.into_iter().map(|message| Command::Send { to, message }).collect();
            self.send_later(from, commands, None);
        }
        Ok(())
    }

    /// Says once more what was not answered, and asks what was not told. To be called every second or so.
    pub fn resume_across(&self) {
        self.forget_idle_backup();
        let mut wanted: Vec<(ShardId, Vec<Command<Key, ShardChange>>)> = Vec::new();
        {
            let machines = self.across.machines.lock();
            for (shard, machine) in machines.by_shard.iter().filter(|(_, machine)| !machine.is_idle()) {
                let mut out = Vec::new();
                machine.resume(&mut out);
                wanted.push((*shard, out));
            }
        }
        // ORDER: looked up after the machines were asked, whose decisions were in the log before they knew of them.
        let logged = self.lane.appended();
        for (shard, commands) in wanted {
            self.send_later(shard, commands, Some(logged));
        }
    }

    /// Finds what was under way when the service ended.
    ///
    /// # Errors
    /// `EIO` when the store cannot answer, or has records that are damaged.
    pub(crate) fn find_transactions(&self) -> Result<(), Errno> {
        let (here, _) = self.shards_here();
        let mut found: FxHashMap<ShardId, Vec<Record<Key, ShardChange>>> = FxHashMap::default();
        for shard in here.iter() {
            let records = self.records_of(shard).map_err(|error| self.answer(&error.into()))?;
            if !records.is_empty() {
                tracing::info!(%shard, count = records.len(), "operations across servers were under way");
                found.insert(shard, records);
            }
        }
        self.across.with(|machines| {
            for (shard, records) in found {
                let machine: Machine = Transactions::recover(shard, machines.era, &records);
                machines.by_shard.insert(shard, machine);
            }
        });
        Ok(())
    }

    /// Begins a machine's life here, of a shard that has come.
    ///
    /// # Errors
    /// `EIO` when the store cannot answer, or has records that are damaged.
    pub(super) fn take_machine(&self, shard: ShardId, life: u64) -> Result<(), Errno> {
        let records = self.records_of(shard).map_err(|error| self.answer(&error.into()))?;
        self.across.with(|machines| {
            machines.lives.insert(shard, life);
            machines.by_shard.insert(shard, Transactions::recover(shard, life, &records));
        });
        Ok(())
    }

    fn records_of(&self, shard: ShardId) -> Result<Vec<Record<Key, ShardChange>>, KvError> {
        let (from, to) = key::table_range(shard, b'T');
        let (mut records, mut damaged) = (Vec::new(), None);
        let reader = self.lane.read();
        reader.scan(&from, &to, &mut |record_key, value| {
            let record = read_record(record_key, value);
            match record {
                Some(record) => records.push(record),
                None => damaged = Some(format!("the record of a transaction in {shard}")),
            }
            ControlFlow::Continue(())
        })?;
        damaged.map_or(Ok(records), |what| Err(KvError::Corrupt { what }))
    }
}

/// Whether what is under a key can be used: all but records of transactions is looked at when it is needed.
pub(super) fn is_readable(found: &[u8], value: Option<&[u8]>) -> bool {
    found.get(2) != Some(&b'T') || value.is_none_or(|value| read_record(found, value).is_some())
}

fn read_record(record_key: &[u8], value: &[u8]) -> Option<Record<Key, ShardChange>> {
    let (kind, id) = key::transaction_of(record_key)?;
    let id = TransactionId { coordinator: id.0, era: id.1, number: id.2 };
    match kind {
        PREPARED => {
            let PreparedRecord { ticket, part } = decode(value, "prepared part").ok()?;
            Some(Record::Prepared { id, ticket, part: Part { keys: part.locks(), writes: part } })
        }
        DECIDED => {
            let participants: Participants = decode(value, "decision").ok()?;
            Some(Record::Decided { id, participants, writes: ShardChange::default() })
        }
        _ => None,
    }
}

impl Courier {
    fn work(&self, service: &Weak<MetaService>) {
        loop {
            let letter = {
                let mut letters = self.letters.lock();
                if letters.is_empty() {
                    self.ready.wait_for(&mut letters, IDLE_MAX);
                }
                letters.pop_front()
            };
            let Some(service) = service.upgrade().filter(|service| !service.is_ending()) else { return };
            if let Some(letter) = letter
                && let Err(errno) = service.deliver_letter(letter)
            {
                tracing::debug!(%errno, "another metadata server could not be told; trying again");
            }
        }
    }
}
