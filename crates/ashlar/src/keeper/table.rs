//! What is open through a mount, in memory that outlives the process: written at each open and close without a system call, and read by the next process.
//!
//! The memory is a file without a name (`memfd_create(2)`): a header of one page, then entries of seven words: the number under which the kernel knows the
//! description (0: free), the inode, flags, and the proof that a metadata server has let the machine open it, which the next process shows. The memory is this user's alone. Words are those of this machine; a build with another layout refuses it by its version.

use anyhow::{Context, Result, bail};
use ashlar_client::{Adopted, Handle, OpenFlags};
use ashlar_fuse::adaptor::HandleLog;
use ashlar_types::{DescriptionId, InodeId, OpenProof};
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};

/// `ASHLKEEP` and the version of the layout.
const MAGIC: u64 = u64::from_be_bytes(*b"ASHLKP02");
const HEADER_BYTES: usize = 4096;
const ENTRY_WORDS: usize = 7;
/// Words of a proof, the last ones of an entry.
const PROOF_AT: usize = 3;
const PROOF_WORDS: usize = 4;
/// Open descriptions that are remembered; those beyond it cannot be used after the next process has taken over (EBADF).
// LIMIT: 56 bytes each, 28 MiB, of which only what was used takes memory.
const ENTRIES_MAX: usize = 1 << 19;
const BYTES: usize = HEADER_BYTES + ENTRIES_MAX * ENTRY_WORDS * 8;
/// Words of the header: magic, then what was agreed with the kernel.
const TERMS_AT: usize = 1;

const READ: u64 = 1;
const WRITE: u64 = 1 << 1;
const APPEND: u64 = 1 << 2;
const SYNC: u64 = 1 << 3;
const EXEC: u64 = 1 << 4;
const NO_ATIME: u64 = 1 << 5;
const SHARED: u64 = 1 << 6;
const DIRECTORY: u64 = 1 << 7;
const LOCKED: u64 = 1 << 8;
const PROVEN: u64 = 1 << 9;
const PROVEN_WRITE: u64 = 1 << 10;

/// See the module.
#[derive(Debug)]
pub struct Table {
    memory: OwnedFd,
    words: *const AtomicU64,
    slots: Mutex<Slots>,
}

// SAFETY: the words are atomic, and mapped until the table is dropped.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

#[derive(Debug, Default)]
struct Slots {
    of: HashMap<u64, usize>,
    /// By which metadata knows them; of this process alone.
    descriptions: HashMap<u64, DescriptionId>,
    free: Vec<usize>,
    next: usize,
}

impl Table {
    /// An empty one.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn new() -> Result<Table> {
        let memory = memfd_create("ashlar-open-files", MemfdFlags::CLOEXEC).context("memfd_create")?;
        ftruncate(&memory, BYTES as u64).context("cannot size the table of open files")?;
        Table::map(memory)
    }

    /// Notes what was agreed with the kernel; from now on another process can go by the table.
    pub fn set_terms(&self, terms: &[u64]) {
        terms.iter().enumerate().for_each(|(at, term)| self.word(TERMS_AT + at).store(*term, Release));
        self.word(0).store(MAGIC, Release);
    }

    /// The one in `memory`, which another process has written.
    ///
    /// # Errors
    /// When it is none that this build understands.
    pub fn open(memory: OwnedFd) -> Result<Table> {
        let size = rustix::fs::fstat(&memory).context("fstat")?.st_size;
        if usize::try_from(size).ok() != Some(BYTES) {
            bail!("the table of open files has another size: the process before was of another version");
        }
        let table = Table::map(memory)?;
        if table.word(0).load(Acquire) != MAGIC {
            bail!("the table of open files is of another version");
        }
        let mut slots = table.slots.lock();
        for slot in 0..ENTRIES_MAX {
            match table.entry(slot, 0).load(Acquire) {
                0 => {}
                fh => {
                    slots.of.insert(fh, slot);
                    slots.next = slot + 1;
                }
            }
        }
        let used: std::collections::HashSet<usize> = slots.of.values().copied().collect();
        slots.free = (0..slots.next).filter(|slot| !used.contains(slot)).collect();
        drop(slots);
        Ok(table)
    }

    fn map(memory: OwnedFd) -> Result<Table> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let words = unsafe { mmap(std::ptr::null_mut(), BYTES, access, MapFlags::SHARED, &memory, 0) };
        let words = words.context("cannot map the table of open files")?.cast::<AtomicU64>();
        Ok(Table { memory, words, slots: Mutex::default() })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at < BYTES / 8);
        // SAFETY: within the mapping, which lives as long as this; pages are aligned.
        unsafe { &*self.words.add(at) }
    }

    fn entry(&self, slot: usize, word: usize) -> &AtomicU64 {
        self.word(HEADER_BYTES / 8 + slot * ENTRY_WORDS + word)
    }

    /// What was agreed with the kernel.
    pub fn terms<const N: usize>(&self) -> [u64; N] {
        std::array::from_fn(|at| self.word(TERMS_AT + at).load(Acquire))
    }

    /// What is open: under which number, and what.
    pub fn all(&self) -> Vec<(u64, Adopted)> {
        let slots = self.slots.lock();
        let mut all: Vec<(u64, Adopted)> = slots
            .of
            .iter()
            .map(|(fh, slot)| {
                let (inode, flags) = (self.entry(*slot, 1).load(Acquire), self.entry(*slot, 2).load(Acquire));
                (*fh, Adopted { proof: self.proof(*slot, flags), ..adopted(InodeId(inode), flags) })
            })
            .collect();
        all.sort_by_key(|(fh, _)| *fh);
        all
    }

    /// Notes by which number metadata knows what the kernel knows by `fh`.
    pub fn note_description(&self, fh: u64, description: DescriptionId) {
        self.slots.lock().descriptions.insert(fh, description);
    }

    /// All of those.
    pub fn descriptions(&self) -> Vec<(u64, DescriptionId)> {
        self.slots.lock().descriptions.iter().map(|(fh, description)| (*fh, *description)).collect()
    }

    fn proof(&self, slot: usize, bits: u64) -> Option<OpenProof> {
        let mut mac = [0; 8 * PROOF_WORDS];
        for (at, part) in mac.chunks_exact_mut(8).enumerate() {
            part.copy_from_slice(&self.entry(slot, PROOF_AT + at).load(Acquire).to_ne_bytes());
        }
        (bits & PROVEN != 0).then_some(OpenProof { write: bits & PROVEN_WRITE != 0, mac })
    }

    /// The memory.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: what `map` has mapped; nobody refers to it any more. That it fails changes nothing.
        let _ = unsafe { munmap(self.words.cast_mut().cast(), BYTES) };
    }
}

fn adopted(inode: InodeId, bits: u64) -> Adopted {
    let has = |bit: u64| bits & bit != 0;
    let flags = OpenFlags {
        read: has(READ),
        write: has(WRITE),
        append: has(APPEND),
        truncate: false,
        sync: has(SYNC),
        exec: has(EXEC),
        no_atime: has(NO_ATIME),
        // That the kernel caches no pages for it is noted besides.
        past_cache: false,
    };
    let (is_shared, is_directory, had_lock) = (has(SHARED), has(DIRECTORY), has(LOCKED));
    Adopted { inode, flags, is_shared, is_directory, had_lock, proof: None }
}

fn bits(handle: &Handle, is_directory: bool) -> u64 {
    let flags = handle.flags;
    [
        (flags.read, READ),
        (flags.write, WRITE),
        (flags.append, APPEND),
        (flags.sync, SYNC),
        (flags.exec, EXEC),
        (flags.no_atime, NO_ATIME),
        (handle.is_shared, SHARED),
        (is_directory, DIRECTORY),
    ]
    .into_iter()
    .filter_map(|(is_set, bit)| is_set.then_some(bit))
    .sum()
}

impl Table {
    fn note(&self, fh: u64, inode: InodeId, bits: u64, proof: Option<OpenProof>) {
        let mut slots = self.slots.lock();
        let slot = match slots.free.pop() {
            Some(slot) => slot,
            None if slots.next < ENTRIES_MAX => {
                slots.next += 1;
                slots.next - 1
            }
            None => return,
        };
        slots.of.insert(fh, slot);
        self.entry(slot, 1).store(inode.0, Release);
        let (mut bits, mac) = (bits, proof.map_or([0; 8 * PROOF_WORDS], |proof| proof.mac));
        if let Some(proof) = proof {
            bits |= PROVEN | if proof.write { PROVEN_WRITE } else { 0 };
        }
        self.entry(slot, 2).store(bits, Release);
        for (at, part) in mac.as_chunks::<8>().0.iter().enumerate() {
            self.entry(slot, PROOF_AT + at).store(u64::from_ne_bytes(*part), Release);
        }
        // ORDER: last. Whoever reads a number reads what belongs to it, also if this process ends here.
        self.entry(slot, 0).store(fh, Release);
    }
}

impl HandleLog for Table {
    fn opened(&self, fh: u64, handle: &Handle, is_directory: bool) {
        self.note_description(fh, handle.description());
        self.note(fh, handle.file.inode, bits(handle, is_directory), handle.file.open_proof());
    }

    fn locked(&self, fh: u64, is_held: bool) {
        let slots = self.slots.lock();
        let Some(slot) = slots.of.get(&fh) else { return };
        let word = self.entry(*slot, 2);
        let before = word.load(Acquire);
        word.store(if is_held { before | LOCKED } else { before & !LOCKED }, Release);
    }

    fn closed(&self, fh: u64) {
        let mut slots = self.slots.lock();
        slots.descriptions.remove(&fh);
        if let Some(slot) = slots.of.remove(&fh) {
            self.entry(slot, 0).store(0, Release);
            slots.free.push(slot);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn the_next_process_reads_what_is_open() {
        let table = Table::new().unwrap();
        table.set_terms(&[1, 2, 3, 4, 5, 6]);
        for fh in 1..=100 {
            table.note(
                fh,
                InodeId(1000 + fh),
                READ | WRITE | if fh == 50 { APPEND | SHARED } else { 0 },
                None,
            );
        }
        (1..=90).filter(|fh| *fh != 50).for_each(|fh| table.closed(fh));
        let proof = |write| Some(OpenProof { write, mac: std::array::from_fn(|at| at as u8) });
        table.note(101, InodeId(7), READ | DIRECTORY, proof(false));
        table.locked(95, true);
        table.locked(96, true);
        table.locked(96, false);
        let next = Table::open(table.memory().try_clone_to_owned().unwrap()).unwrap();
        drop(table);
        assert_eq!(next.terms::<6>(), [1, 2, 3, 4, 5, 6]);
        let all = next.all();
        let numbers: Vec<u64> = all.iter().map(|(fh, _)| *fh).collect();
        assert_eq!(numbers, [50, 91, 92, 93, 94, 95, 96, 97, 98, 99, 100, 101]);
        let one = |fh: u64| all.iter().find(|(number, _)| *number == fh).unwrap().1;
        assert!(one(50).flags.append && one(50).is_shared && !one(91).flags.append);
        assert_eq!((one(95).had_lock, one(96).had_lock), (true, false));
        assert_eq!((one(101).proof, one(95).proof), (proof(false), None));
        assert!(one(101).is_directory && !one(101).flags.write && one(101).inode == InodeId(7));
        // It goes on where the one before was.
        next.closed(50);
        next.note(102, InodeId(8), READ, proof(true));
        let third = Table::open(next.memory().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(third.all().len(), 12);
        let last = third.all().into_iter().find(|(fh, _)| *fh == 102).unwrap().1;
        assert_eq!((last.inode, last.proof), (InodeId(8), proof(true)), "the place of one that had none");
    }

    #[test]
    fn what_is_no_table_is_refused() {
        let memory = memfd_create("other", MemfdFlags::CLOEXEC).unwrap();
        assert!(Table::open(memory.try_clone().unwrap()).is_err());
        ftruncate(&memory, BYTES as u64).unwrap();
        assert!(Table::open(memory).unwrap_err().to_string().contains("another version"));
    }
}
