//! Answers that are kept with what a call has changed, so that a call which is sent again after the service was started anew is carried
//! out once. Only sessions over the network ask for that; a call inside one process is not sent again.
//!
//! What is kept has no leases: those of before a start are gone.

use crate::MetaService;
use crate::call::{Creation, InDirectory, Opening};
use ashlar_kv::{Snapshot, WriteSet};
use ashlar_namespace::record::KeptReply;
use ashlar_namespace::{Txn, TxnOutcome, key, verb};
use ashlar_rpc::Caller;
use ashlar_types::message::{DataGrant, LeaseSet, MetaReply, MetaRequest, OpenReply};
use ashlar_types::{Attr, Errno, InodeId, LayoutPolicy, ShardId, codec};

/// What a transaction has decided, as its caller is told when it asks again.
pub(crate) trait Told {
    /// The answer, without leases.
    fn told(&self) -> MetaReply;
}

fn of_attr(attr: Attr) -> MetaReply {
    MetaReply::Attr { attr, leases: LeaseSet::NONE }
}

fn of_open(open: &verb::OpenReply, created: bool) -> MetaReply {
    let data = match &open.data {
        // Whoever asks again reads it, if he wants it.
        DataGrant::Inline { .. } => DataGrant::Inline { body: None },
        chunks => chunks.clone(),
    };
    let open = OpenReply {
        attr: open.attr.clone(),
        data,
        inline_bytes: open.inline_bytes,
        leases: LeaseSet::NONE,
        recall_mark: 0,
        // Nobody knows who else has it open.
        is_shared: true,
        kept_read: false,
        durability: open.durability,
        proof: None,
    };
    MetaReply::Opened { open, created }
}

impl Told for verb::SplitProgress {
    fn told(&self) -> MetaReply {
        MetaReply::Done
    }
}

impl Told for crate::split::Begun {
    fn told(&self) -> MetaReply {
        MetaReply::Done
    }
}

impl Told for Attr {
    fn told(&self) -> MetaReply {
        of_attr(self.clone())
    }
}

impl Told for Option<Attr> {
    fn told(&self) -> MetaReply {
        MetaReply::Removed { last: self.clone(), leases: LeaseSet::NONE }
    }
}

impl Told for (verb::OpenReply, bool) {
    fn told(&self) -> MetaReply {
        of_open(&self.0, self.1)
    }
}

impl Told for Creation {
    fn told(&self) -> MetaReply {
        match self {
            Creation::Here(open, created) => of_open(open, *created),
            Creation::Elsewhere(inode) => MetaReply::Elsewhere { inode: *inode, leases: LeaseSet::NONE },
        }
    }
}

impl<R: Told> Told for InDirectory<R> {
    fn told(&self) -> MetaReply {
        self.reply.told()
    }
}

impl Told for Opening {
    fn told(&self) -> MetaReply {
        of_open(&self.open, false)
    }
}

/// With the generation of the chunks, and whether a cut of them was noted before.
impl Told for (verb::SetattrReply, Option<(u32, bool)>) {
    fn told(&self) -> MetaReply {
        of_attr(self.0.attr.clone())
    }
}

impl Told for verb::WriteReply {
    fn told(&self) -> MetaReply {
        match self {
            verb::WriteReply::Written { attr, offset } => {
                MetaReply::WrittenInline { attr: attr.clone(), offset: *offset }
            }
            verb::WriteReply::NeedsChunks | verb::WriteReply::InChunks { .. } => MetaReply::NeedsChunks,
        }
    }
}

impl Told for verb::Proposal {
    fn told(&self) -> MetaReply {
        MetaReply::Layout { layout: self.layout.clone(), is_bound: self.is_bound }
    }
}

macro_rules! told_by_attr {
    ($($reply:ty),*) => {
        $(impl Told for $reply {
            fn told(&self) -> MetaReply {
                of_attr(self.attr.clone())
            }
        })*
    };
}

told_by_attr!(verb::MkdirReply, verb::MknodReply, verb::SymlinkReply, verb::LinkReply);

/// Of what the service does by itself nobody is told anything; of the rest, that it is done.
macro_rules! told_as_done {
    ($($reply:ty),*) => {
        $(impl Told for $reply {
            fn told(&self) -> MetaReply {
                MetaReply::Done
            }
        })*
    };
}

told_as_done!((), bool, InodeId, LayoutPolicy, verb::ReapReply, verb::BeginWriteReply);

impl MetaService {
    /// Adds the answer to what a call has changed, if its session is to find it again.
    pub(crate) fn keep_reply(&self, caller: Caller<'_>, reply: &impl Told, outcome: &mut TxnOutcome) {
        let Some(slot) = caller.slot.filter(|_| !outcome.writes.is_empty()) else { return };
        let kept = KeptReply { sequence: caller.op.sequence, reply: reply.told() };
        let (kept_key, kept) = (key::reply(caller.op.session, slot), Some(codec::encode(&kept).into()));
        // Write sets are in the order of shards, and each in that of its keys.
        match outcome.writes.first_mut() {
            Some((ShardId(0), writes)) => {
                let at = writes.0.partition_point(|(key, _)| *key < kept_key);
                writes.0.insert(at, (kept_key, kept));
            }
            _ => outcome.writes.insert(0, (ShardId(0), WriteSet(vec![(kept_key, kept)]))),
        }
    }

    /// The answer to a call that was carried out before the service was started.
    ///
    /// # Errors
    /// `EIO` when it cannot be read.
    pub(crate) fn kept_reply(
        &self,
        caller: Caller<'_>,
        request: &MetaRequest<'_>,
    ) -> Result<Option<MetaReply>, Errno> {
        let Some(slot) = caller.slot else { return Ok(None) };
        let session = caller.op.session;
        let reader = self.lane.read();
        let snapshot: &dyn Snapshot = &reader;
        let kept: Option<KeptReply> = Txn::new(snapshot)
            .get_record(&key::reply(session, slot), "kept answer")
            .map_err(|error| self.answer(&error))?;
        let Some(kept) = kept.filter(|kept| kept.sequence == caller.op.sequence) else { return Ok(None) };
        drop(reader);
        let handle = match request {
            MetaRequest::Create { handle, write, .. } | MetaRequest::Open { handle, write, .. } => {
                Some((*handle, *write))
            }
            MetaRequest::Tmpfile { handle, .. } => Some((*handle, true)),
            _ => None,
        };
        if let (Some(handle), MetaReply::Opened { open, .. }) = (handle, &kept.reply) {
            let leases = self.leases.lock();
            let mut opens = self.opens.lock();
            if leases.has_session(session) {
                opens.reopen(session, open.attr.inode, handle);
                if open.attr.nlink == 0 {
                    opens.note_orphan(open.attr.inode);
                }
            }
        }
        Ok(Some(kept.reply))
    }
}
