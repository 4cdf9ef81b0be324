//! What a mount does with content: it writes, cuts, reserves and deletes files of its own on chains that move, and reads those of all mounts.
//!
//! Whom it asks, and what it makes of an answer, is as in `crates/rpc/src/remote/storage.rs`.

use super::mount::Mount;
use super::storage::Call;
use super::{CHAINS, Site};
use ashlar_env::Entropy;
use ashlar_env::sim::SimEntropy;
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{ChainId, ChunkId, Errno, InodeId, LayoutPolicy, OfChains, TargetId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const CHUNK_BYTES: u32 = LayoutPolicy::CHUNK_BYTES_MIN;
/// Files of a mount, chunks of a file, and chains that those are on in turn.
const FILES: u64 = 3;
const CHUNKS: u64 = 4;
const STRIPES: u64 = 2;
/// What is written is below that, and what is read on the way.
const USED_BYTES: u32 = 24 << 10;
/// A call that is not answered for so long is a failure: servers are away for less.
const CALL_MAX: Duration = Duration::from_secs(240);
/// Changes of a mount at the most while something goes wrong.
const CHANGES_MAX: usize = 300;

/// A file of one mount.
#[derive(Clone, Copy, Debug)]
struct File {
    inode: InodeId,
    generation: u32,
    first_chain: u64,
}

impl File {
    fn chunk(&self, index: u64) -> ChunkId {
        ChunkId { inode: self.inode, generation: self.generation, index }
    }

    fn chain(&self, index: u64) -> ChainId {
        ChainId(((self.first_chain + index % STRIPES) % CHAINS) as u32)
    }
}

/// See the module.
pub(super) struct Fill {
    mount: Arc<Mount>,
    dice: SimEntropy,
    files: Vec<File>,
}

/// A failure is noted: whoever is told that goes no further.
struct Failed;

impl Fill {
    pub fn new(mount: Arc<Mount>) -> Fill {
        let dice = SimEntropy::new(mount.site.dice.below(u64::MAX));
        let files = (0..FILES).map(|number| File {
            inode: InodeId(1000 * (mount.number as u64 + 1) + number),
            generation: 1,
            first_chain: dice.below(CHAINS),
        });
        let files: Vec<File> = files.collect();
        let fill = Fill { mount, dice, files };
        fill.files.iter().for_each(|file| fill.begin(file));
        fill
    }

    fn site(&self) -> &Arc<Site> {
        &self.mount.site
    }

    fn fail(&self, what: &str) -> Failed {
        self.site().fail(format!("mount {}: {what}", self.mount.number));
        Failed
    }

    fn begin(&self, file: &File) {
        (0..CHUNKS).for_each(|index| self.site().content.begin(file.chunk(index), file.chain(index)));
    }

    /// Works for as long as something goes wrong, and for as long as the plan says.
    pub fn work(&mut self) {
        let plan = self.site().plan.clone();
        for change in 0.. {
            let is_enough = change >= plan.changes && !self.site().has_more_troubles.load(SeqCst);
            if is_enough || change >= CHANGES_MAX || self.site().has_failed() {
                return;
            }
            self.site().sleep_ms(self.dice.below(plan.change_pause_ms));
            if self.step().is_err() {
                return;
            }
        }
    }

    fn step(&mut self) -> Result<(), Failed> {
        let at = self.dice.below(FILES) as usize;
        let (file, index) = (self.files[at], self.dice.below(CHUNKS));
        match self.dice.below(40) {
            0..16 => self.write(&file, index),
            16..18 => self.truncate(&file, index),
            18..20 => self.punch(&file, index),
            20 => self.allocate(&file, index),
            21..24 => self.sync(file.chunk(index), file.chain(index)),
            24 => self.delete(at),
            25..30 => self.read(file.chunk(index), file.chain(index), USED_BYTES),
            _ => match self.site().content.some(|count| self.dice.below(count)) {
                Some((chunk, chain)) => self.read(chunk, chain, USED_BYTES),
                None => Ok(()),
            },
        }
    }

    /// One call to a target: `None` when nobody has answered.
    fn ask(&self, request: StorageRequest, data: &[u8]) -> Option<(Result<StorageReply, Errno>, Vec<u8>)> {
        let site = self.site();
        let server = site.storage_of(request.target())?;
        let after_ms = if self.dice.below(8) == 0 { self.dice.below(6) } else { 0 };
        let call = Call { request, data: data.to_vec(), from: None, after_ms };
        let answer = server.ask(site, call, &|| true)?;
        if answer.epoch > self.mount.map.read().epoch {
            self.mount.await_map(answer.epoch);
        }
        Some((answer.reply, answer.read))
    }

    /// What is between two tries of a call since `begun`.
    fn wait(&self, request: &StorageRequest, begun: Duration) -> Result<(), Failed> {
        if self.site().now() > begun + CALL_MAX {
            return Err(self.fail(&format!("nobody answers {request:?}")));
        }
        self.site().sleep_ms(1 + self.dice.below(15));
        Ok(())
    }

    /// A call about a chain, to whoever has it, and to who has it then, until it is answered.
    fn call(
        &self,
        chain: ChainId,
        request: &StorageRequest,
        data: &[u8],
    ) -> Result<(StorageReply, Vec<u8>), Failed> {
        let begun = self.site().now();
        self.site().scheduler.note(&|| format!("{chain} -> {request:?}"));
        loop {
            let head = self.mount.map.read().head(chain).unwrap_or_default();
            match self.ask(request.clone().at(head), data) {
                Some((Ok(reply), read)) => {
                    self.site().scheduler.note(&|| format!("{chain} at {head} <- {reply:?}"));
                    return Ok((reply, read));
                }
                // It has gone; or its server ends.
                Some((Err(Errno::EREMCHG | Errno::EIO | Errno::ENODEV), _)) | None => {}
                Some((Err(errno), _)) => {
                    return Err(self.fail(&format!("{request:?} is answered {errno:?}")));
                }
            }
            self.wait(request, begun)?;
        }
    }

    /// Changes a chunk, of which it is known before what there is of it.
    fn change(
        &self,
        (file, index): (&File, u64),
        request: &StorageRequest,
        data: &[u8],
        change: impl FnOnce(&mut crate::content::Content),
    ) -> Result<(), Failed> {
        let (chunk, chain) = (file.chunk(index), file.chain(index));
        if self.site().content.look(chunk).is_some_and(|begun| begun.is_in_doubt()) {
            self.sync(chunk, chain)?;
        }
        self.site().content.change(chunk, change);
        self.call(chain, request, data)?;
        self.site().content.answered(chunk);
        Ok(())
    }

    fn range(&self) -> (u32, u32) {
        let offset = self.dice.below(u64::from(USED_BYTES) - 1) as u32;
        let longest = [200, 5000, 20_000][self.dice.below(3) as usize];
        (offset, (1 + self.dice.below(longest) as u32).min(USED_BYTES - offset))
    }

    fn write(&self, file: &File, index: u64) -> Result<(), Failed> {
        let ((offset, len), fill) = (self.range(), self.dice.next_u64().to_le_bytes());
        let data: Vec<u8> = (0..len as usize).map(|byte| fill[byte % 7] ^ byte as u8).collect();
        let (target, chunk, chain) = (TargetId(0), file.chunk(index), file.chain(index));
        let sums = Vec::new();
        let request = StorageRequest::Write { target, chunk, chain, chunk_bytes: CHUNK_BYTES, offset, sums };
        self.change((file, index), &request, &data, |content| content.write(u64::from(offset), &data))
    }

    fn truncate(&self, file: &File, index: u64) -> Result<(), Failed> {
        let (target, chunk, chain) = (TargetId(0), file.chunk(index), file.chain(index));
        let len = self.range().0;
        let request = StorageRequest::Truncate { target, chunk, chain, chunk_bytes: CHUNK_BYTES, len };
        self.change((file, index), &request, &[], |content| content.set_size(u64::from(len)))
    }

    fn punch(&self, file: &File, index: u64) -> Result<(), Failed> {
        let (target, chunk, chain) = (TargetId(0), file.chunk(index), file.chain(index));
        let (offset, len) = self.range();
        let request = StorageRequest::Punch { target, chunk, chain, chunk_bytes: CHUNK_BYTES, offset, len };
        self.change((file, index), &request, &[], |content| content.zero(u64::from(offset), u64::from(len)))
    }

    fn allocate(&self, file: &File, index: u64) -> Result<(), Failed> {
        let (target, chunk, chain) = (TargetId(0), file.chunk(index), file.chain(index));
        let (offset, len) = self.range();
        let request =
            StorageRequest::Allocate { target, chunk, chain, chunk_bytes: CHUNK_BYTES, offset, len };
        self.change((file, index), &request, &[], |_| ())
    }

    /// What is in a chunk.
    fn content(&self, chunk: ChunkId, chain: ChainId, len: u32) -> Result<Vec<u8>, Failed> {
        let (target, offset, want_sums) = (TargetId(0), 0, false);
        let chunk_bytes = CHUNK_BYTES;
        let request = StorageRequest::Read { target, chunk, chain, chunk_bytes, offset, len, want_sums };
        self.call(chain, &request, &[]).map(|(_, read)| read)
    }

    fn read(&self, chunk: ChunkId, chain: ChainId, len: u32) -> Result<(), Failed> {
        let Some(begun) = self.site().content.look(chunk) else { return Ok(()) };
        let found = self.content(chunk, chain, len)?;
        self.site().checked.fetch_add(1, SeqCst);
        self.site().content.check(chunk, begun, &found).map_err(|why| self.fail(&why))
    }

    /// Makes a chunk durable, and looks what there is of it if nobody knows.
    fn sync(&self, chunk: ChunkId, chain: ChainId) -> Result<(), Failed> {
        let content = &self.site().content;
        loop {
            let Some(begun) = content.look(chunk) else { return Ok(()) };
            let chains = OfChains::Only([chain].into_iter().collect());
            self.call(chain, &StorageRequest::Sync { target: TargetId(0), chains }, &[])?;
            if content.synced(chunk, begun) {
                return Ok(());
            }
            let found = self.content(chunk, chain, USED_BYTES)?;
            content.check(chunk, begun, &found).map_err(|why| self.fail(&why))?;
            if content.settle(chunk, begun, &found) {
                return Ok(());
            }
        }
    }

    /// Empties a file: its chunks are deleted, durably, and what comes next is of another generation.
    fn delete(&mut self, at: usize) -> Result<(), Failed> {
        let file = self.files[at];
        let content = &self.site().content;
        let cuts = || -> u64 { (0..CHUNKS).map(|index| content.cuts(file.chunk(index))).sum() };
        // What there is of it nobody looks at from now on; but power cuts are counted by it.
        (0..CHUNKS).for_each(|index| content.is_going(file.chunk(index)));
        loop {
            let before = cuts();
            self.delete_chunks(&file)?;
            for index in 0..STRIPES {
                let chains = OfChains::Only([file.chain(index)].into_iter().collect());
                self.call(file.chain(index), &StorageRequest::Sync { target: TargetId(0), chains }, &[])?;
            }
            if cuts() == before {
                break;
            }
        }
        (0..CHUNKS).for_each(|index| content.forget(file.chunk(index)));
        self.files[at].generation += 1;
        self.begin(&self.files[at]);
        Ok(())
    }

    /// Has whoever has chains of a file delete what is in them, all chains of one target at once.
    fn delete_chunks(&self, file: &File) -> Result<(), Failed> {
        let begun = self.site().now();
        let mut left: Vec<ChainId> = (0..STRIPES).map(|index| file.chain(index)).collect();
        while let Some(&first) = left.first() {
            let map = self.mount.map.read().clone();
            let mut by_target: BTreeMap<TargetId, Vec<ChainId>> = BTreeMap::new();
            for chain in &left {
                by_target.entry(map.head(*chain).unwrap_or_default()).or_default().push(*chain);
            }
            let target = map.head(first).unwrap_or_default();
            let meant = by_target.remove(&target).unwrap_or_default();
            let chains = OfChains::Only(meant.iter().copied().collect());
            let (inode, generation, from_index) = (file.inode, file.generation, 0);
            let request = StorageRequest::DeleteGeneration { target, inode, generation, chains, from_index };
            self.site().scheduler.note(&|| format!("-> {request:?}"));
            match self.ask(request.clone(), &[]) {
                Some((Ok(StorageReply::Deleted { is_done, .. }), _)) => {
                    if is_done {
                        left.retain(|chain| !meant.contains(chain));
                    }
                }
                Some((Err(Errno::EREMCHG | Errno::EIO | Errno::ENODEV), _)) | None => {
                    self.wait(&request, begun)?;
                }
                Some((other, _)) => return Err(self.fail(&format!("{request:?} is answered {other:?}"))),
            }
        }
        Ok(())
    }

    /// Looks at everything it has.
    pub fn check_everything(&self) {
        for file in &self.files {
            for index in 0..CHUNKS {
                if self.read(file.chunk(index), file.chain(index), CHUNK_BYTES).is_err() {
                    return;
                }
            }
        }
    }
}
