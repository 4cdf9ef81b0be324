//! Goal: clients that write one file past the page cache do not wait for each other, and everybody sees length and content as if they had.
//! Method: two or more clients of one file system in this process, metadata calls counted; others that stat, read, cut, append and die meanwhile.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{Client, Dropping, Handle, KernelCache, OpenFlags, Who, WriteFlags, Written};
use ashlar_env::Clock as _;
use ashlar_rpc::{Caller, MetaCalls, SessionEvents, SessionGrant};
use ashlar_types::message::{MetaReply, MetaRequest, SetAttr, TimeSet};
use ashlar_types::{Errno, InodeId, Name, SessionId, Timespec};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use support::{Dropped, KIB64, World, content, eventually, read, write};

const WRITE: OpenFlags = OpenFlags {
    read: false,
    write: true,
    append: false,
    truncate: false,
    sync: false,
    exec: false,
    no_atime: false,
    past_cache: false,
};
const BOTH: OpenFlags = OpenFlags { read: true, ..WRITE };
const READ: OpenFlags = OpenFlags { read: true, write: false, ..WRITE };

/// Metadata that counts calls.
struct Counted(Arc<dyn MetaCalls>, AtomicU64);

impl MetaCalls for Counted {
    fn open_session(&self, events: Arc<dyn SessionEvents>) -> Result<SessionGrant, Errno> {
        self.0.open_session(events)
    }
    fn close_session(&self, session: SessionId) {
        self.0.close_session(session);
    }
    fn call(&self, caller: Caller<'_>, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        self.1.fetch_add(1, SeqCst);
        self.0.call(caller, request)
    }
}

/// Metadata that counts who asks to be the only writer.
struct CountedAlone(Arc<dyn MetaCalls>, AtomicU64);

impl MetaCalls for CountedAlone {
    fn open_session(&self, events: Arc<dyn SessionEvents>) -> Result<SessionGrant, Errno> {
        self.0.open_session(events)
    }
    fn close_session(&self, session: SessionId) {
        self.0.close_session(session);
    }
    fn call(&self, caller: Caller<'_>, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        self.1.fetch_add(u64::from(matches!(request, MetaRequest::AcquireData { write: true, .. })), SeqCst);
        self.0.call(caller, request)
    }
}

fn create(client: &Client, name: &str) -> Arc<Handle> {
    let place = (InodeId::ROOT, Name::new(name.as_bytes()).unwrap());
    client.create(&Who::system(), place, (0o644, 0), true, WRITE).unwrap().handle
}

fn open(client: &Client, inode: InodeId, flags: OpenFlags) -> Arc<Handle> {
    client.open(&Who::system(), inode, flags).unwrap().handle
}

/// A write(2) past the page cache.
fn put(client: &Client, file: &Handle, offset: u64, data: &[u8]) -> Result<(), Errno> {
    let flags = WriteFlags { is_past_cache: true, ..WriteFlags::default() };
    match client.write_as(&Who::system(), file, offset, data, flags)? {
        Written::Done(taken, _) => assert_eq!(taken.bytes, data.len()),
        Written::MeetsPages => panic!("nobody has read the file"),
    }
    Ok(())
}

fn size(client: &Client, inode: InodeId) -> u64 {
    client.getattr(&Who::system(), inode).unwrap().attr.size
}

fn blocks(client: &Client, inode: InodeId) -> u64 {
    client.getattr(&Who::system(), inode).unwrap().attr.blocks
}

const PAGE: u64 = 4096;

/// The pages that the kernel has of one file, filled as the kernel fills them.
#[derive(Default)]
struct Cached(Mutex<BTreeMap<u64, Vec<u8>>>);

impl KernelCache for Cached {
    fn drop_attributes(&self, _: InodeId) {}
    fn drop_content(&self, _: InodeId) {
        self.0.lock().clear();
    }
    fn drop_range(&self, _: InodeId, offset: u64, bytes: u64) {
        self.0.lock().retain(|page, _| *page < offset / PAGE || page * PAGE >= offset + bytes);
    }
    fn begin_to_drop(&self, inode: InodeId, offset: u64, bytes: u64) -> Arc<dyn Dropping> {
        self.drop_range(inode, offset, bytes);
        Arc::new(Dropped)
    }
    fn drop_entries(&self, _: InodeId) {}
}

impl Cached {
    /// A write(2) through the cache: the pages that it fills whole are there before the mount hears of it, and parts of others only if these are.
    fn write(&self, client: &Client, file: &Handle, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        let whole = (offset.next_multiple_of(PAGE), end / PAGE * PAGE);
        for page in offset / PAGE..end.div_ceil(PAGE) {
            let (from, to) = (offset.max(page * PAGE), end.min((page + 1) * PAGE));
            let part = &data[(from - offset) as usize..(to - offset) as usize];
            let mut pages = self.0.lock();
            if part.len() as u64 == PAGE {
                pages.insert(page, part.to_vec());
            } else if let Some(bytes) = pages.get_mut(&page) {
                bytes[(from % PAGE) as usize..][..part.len()].copy_from_slice(part);
            }
        }
        if client.goes_beside(file, false) {
            let filled = (whole.0 < whole.1).then_some((whole.0, whole.1 - whole.0));
            let mut taken = None;
            let put = (offset, data);
            let flags = WriteFlags::default();
            client.write_beside(&Who::system(), file, put, flags, filled, |answer, _| taken = Some(answer));
            assert_eq!(taken.unwrap().unwrap().bytes, data.len());
        } else {
            client.begin_pages(&file.file, offset, data.len() as u64).unwrap();
            write(client, file, offset, data).unwrap();
        }
    }

    /// A read(2) through the cache.
    fn read(&self, client: &Client, file: &Handle, offset: u64, len: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for page in offset / PAGE..(offset + len as u64).div_ceil(PAGE) {
            let mut pages = self.0.lock();
            let bytes = pages.entry(page).or_insert_with(|| {
                let mut bytes = vec![0; PAGE as usize];
                client.fill_pages(file, page * PAGE, &mut bytes).unwrap();
                bytes
            });
            out.extend_from_slice(bytes);
        }
        out[(offset % PAGE) as usize..][..len].to_vec()
    }
}

/// A file with chunks that two clients have open, and have begun to write beside each other.
struct Shared {
    world: World,
    counted: Arc<Counted>,
    clients: [Arc<Client>; 2],
    files: [Arc<Handle>; 2],
    inode: InodeId,
}

impl Shared {
    fn new() -> Shared {
        let world = World::new(256 << 20);
        let counted = Arc::new(Counted(world.meta.clone(), AtomicU64::new(0)));
        let clients = [0, 1].map(|_| world.client_over(counted.clone()));
        let first = create(&clients[0], "checkpoint");
        let inode = first.file.inode;
        let files = [first, open(&clients[1], inode, BOTH)];
        // The first is the only writer, the second, which has not heard of chunks, asks for that, the first asks again, and then the second.
        put(&clients[0], &files[0], 0, &content(0, 4 * KIB64)).unwrap();
        put(&clients[1], &files[1], 0, &content(1, 1000)).unwrap();
        put(&clients[0], &files[0], 1000, &content(2, 1000)).unwrap();
        put(&clients[1], &files[1], 0, &content(1, 1000)).unwrap();
        let shared = Shared { world, counted, clients, files, inode };
        // What was asked for to get here is answered by then.
        eventually(|| {
            let before = shared.counted.1.load(SeqCst);
            std::thread::sleep(Duration::from_millis(20));
            shared.counted.1.load(SeqCst) == before
        });
        shared
    }

    /// Writes its part of each record, a client the first half and the other the second.
    fn put(&self, who: usize, record: usize) {
        let offset = (record * 1000 + who * 500) as u64;
        put(&self.clients[who], &self.files[who], offset, &content(record + who, 500)).unwrap();
    }
}

#[test]
fn writes_of_two_clients_in_turn_cost_no_call_to_metadata() {
    let shared = Shared::new();
    let before = shared.counted.1.load(SeqCst);
    for record in 0..400 {
        shared.put(0, record);
        shared.put(1, record);
    }
    assert_eq!(shared.counted.1.load(SeqCst), before);
    let third = shared.world.client();
    assert_eq!(size(&third, shared.inode), 400_000);
    let file = open(&third, shared.inode, READ);
    let all = read(&third, &file, 400_000);
    let expected: Vec<u8> =
        (0..400).flat_map(|at| [content(at, 500), content(at + 1, 500)].concat()).collect();
    assert!(all == expected, "something is not what was written");
}

#[test]
fn a_length_is_told_while_several_know_a_part_of_it() {
    let shared = Shared::new();
    let third = shared.world.client();
    for record in 300..340 {
        let who = record % 2;
        shared.put(who, record);
        let end = (record * 1000 + who * 500 + 500) as u64;
        assert_eq!(size(&third, shared.inode), end, "by one who does not write");
        assert_eq!(size(&shared.clients[1 - who], shared.inode), end, "by the other writer");
    }
}

#[test]
fn a_time_of_change_is_that_of_the_newest_write_whoever_tells_it() {
    let shared = Shared::new();
    let third = shared.world.client();
    let mtime = |client: &Client| client.getattr(&Who::system(), shared.inode).unwrap().attr.mtime;
    let (mut newest, now) = (mtime(&third), || shared.world.clock.now());
    for record in 0..20 {
        shared.world.clock.advance(Duration::from_secs(1));
        shared.put(record % 2, record);
        shared.world.clock.advance(Duration::from_secs(1));
        shared.put((record / 2 + 1) % 2, record);
        let told = mtime(&shared.clients[record / 4 % 2]);
        assert!(told == now() && told > newest, "record {record}");
        assert_eq!(mtime(&third), told);
        newest = told;
    }
    // A time that a program has set, and not a write.
    let later = Timespec { secs: newest.secs + 1_000_000, nanos: 0 };
    let changes = SetAttr { mtime: Some(TimeSet::At(later)), ..SetAttr::default() };
    shared.clients[0].setattr(&Who::system(), shared.inode, None, changes).unwrap();
    assert_eq!([mtime(&third), mtime(&shared.clients[0]), mtime(&shared.clients[1])], [later; 3]);
    for who in [0, 1] {
        shared.put(who, 30);
        assert_eq!(mtime(&shared.clients[who]), now(), "by {who}");
    }
}

#[test]
fn a_writer_reads_what_the_other_one_has_appended() {
    let shared = Shared::new();
    shared.put(0, 1000);
    let mut out = vec![0; 2000];
    let got = shared.clients[1].read_past_cache(&shared.files[1], 999_500, &mut out).unwrap();
    assert_eq!(got, 1000, "a hole, and what was written behind it");
    assert!(out[..500].iter().all(|byte| *byte == 0) && out[500..1000] == content(1000, 500));
}

#[test]
fn who_truncates_or_appends_has_the_file_alone() {
    let shared = Shared::new();
    shared.put(0, 500);
    shared.put(1, 600);
    let third = shared.world.client();
    let cut = SetAttr { size: Some(10_000), ..SetAttr::default() };
    third.setattr(&Who::system(), shared.inode, None, cut).unwrap();
    assert_eq!(size(&shared.clients[0], shared.inode), 10_000);
    shared.put(0, 20);
    assert_eq!(size(&third, shared.inode), 20_500, "nothing of before comes back");
    let appender = open(&third, shared.inode, OpenFlags { append: true, ..WRITE });
    for turn in 0..10 {
        shared.put(1, 21 + turn);
        let end = size(&third, shared.inode);
        put(&third, &appender, 0, b"at the end").unwrap();
        assert_eq!(size(&third, shared.inode), end + 10);
        shared.put(0, 21 + turn);
    }
}

#[test]
fn what_a_writer_that_died_has_written_is_counted_once() {
    let shared = Shared::new();
    shared.put(0, 2000);
    shared.put(1, 3000);
    shared.put(1, 1500);
    shared.counted.close_session(shared.clients[1].session());
    shared.put(0, 2500);
    assert_eq!(size(&shared.clients[0], shared.inode), 3_001_000);
    shared.clients[0].release(&shared.files[0]);
    let third = shared.world.client();
    assert_eq!(size(&third, shared.inode), 3_001_000);
    assert_eq!(blocks(&third, shared.inode), shared.world.blocks(shared.inode, 1));
}

#[test]
fn who_caches_pages_gets_its_turn_between_writers_that_do_not_stop() {
    let shared = Shared::new();
    let ends = AtomicBool::new(false);
    let third = shared.world.client();
    let reader = open(&third, shared.inode, READ);
    std::thread::scope(|threads| {
        for who in [0, 1] {
            let (shared, ends) = (&shared, &ends);
            threads.spawn(move || {
                while !ends.load(SeqCst) {
                    shared.put(who, 7);
                }
            });
        }
        for _ in 0..20 {
            assert_eq!(read(&third, &reader, 500).len(), 500);
            write(&shared.clients[0], &shared.files[0], 100, b"through the cache").unwrap();
        }
        ends.store(true, SeqCst);
    });
}

/// A client, and its handle of a file.
type Opener = (Arc<Client>, Arc<Handle>);

/// A file that a client has opened through its page cache before anybody else had it open, and another one since.
fn first_through_its_cache() -> (World, Arc<Counted>, Arc<Cached>, [Opener; 2]) {
    let world = World::new(256 << 20);
    let counted = Arc::new(Counted(world.meta.clone(), AtomicU64::new(0)));
    let clients = [0, 1].map(|_| world.client_over(counted.clone()));
    let kernel = Arc::new(Cached::default());
    clients[0].set_kernel_cache(kernel.clone());
    clients[0].set_frees_filled_pages();
    let first = support::make(&clients[0], "first").unwrap();
    assert!(!first.is_shared);
    kernel.write(&clients[0], &first, 0, &content(0, 4 * KIB64));
    let second = open(&clients[1], first.file.inode, BOTH);
    assert!(second.is_shared);
    let [one, other] = clients;
    (world, counted, kernel, [(one, first), (other, second)])
}

#[test]
fn who_was_first_and_writes_through_its_cache_is_in_nobodys_way() {
    let (_world, counted, kernel, [(one, first), (other, second)]) = first_through_its_cache();
    let write_both = |records: std::ops::Range<usize>| {
        for record in records {
            let offset = record as u64 * 20_000;
            kernel.write(&one, &first, offset, &content(record, 10_000));
            put(&other, &second, offset + 10_000, &content(record + 1, 10_000)).unwrap();
        }
    };
    write_both(0..3);
    let before = counted.1.load(SeqCst);
    write_both(3..100);
    assert_eq!(counted.1.load(SeqCst), before, "calls to metadata");
    assert!(kernel.0.lock().is_empty(), "no page stays");
    let all = kernel.read(&one, &first, 0, 2_000_000);
    let expected: Vec<u8> =
        (0..100).flat_map(|at| [content(at, 10_000), content(at + 1, 10_000)].concat()).collect();
    assert!(all == expected, "something is not what was written");
    // Alone again it has a use of its cache.
    other.release(&second);
    for _ in 0..3 {
        kernel.write(&one, &first, 0, &content(5, 8192));
    }
    assert!(kernel.0.lock().contains_key(&0));
}

#[test]
fn its_cache_never_shows_what_somebody_else_has_written_over() {
    let (_world, _counted, kernel, [(one, first), (other, second)]) = first_through_its_cache();
    let mut dice = 12_345_u64;
    let mut expected = content(0, 4 * KIB64);
    for turn in 0..2000 {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (offset, len) = (dice >> 33 & 0x7fff, 1 + (dice >> 50) as usize % 9000);
        let data = content(turn, len);
        let range = offset as usize..offset as usize + len;
        match turn % 5 {
            0 | 1 => kernel.write(&one, &first, offset, &data),
            2 | 3 => put(&other, &second, offset, &data).unwrap(),
            _ => {
                assert!(kernel.read(&one, &first, offset, len) == expected[range], "turn {turn}");
                continue;
            }
        }
        expected[range].copy_from_slice(&data);
    }
}

/// Each would be the only one for as long as its first write takes, one after the other.
#[test]
fn who_begins_with_a_long_write_beside_others_is_not_alone_for_it() {
    let world = World::new(48 << 20);
    let first = world.client();
    let file = create(&first, "checkpoint");
    let counted = Arc::new(CountedAlone(world.meta.clone(), AtomicU64::new(0)));
    let others: Vec<_> = (0..3).map(|_| world.client_over(counted.clone())).collect();
    // Opened while the file is with its inode: that is what each knows of it.
    let files: Vec<_> = others.iter().map(|client| open(client, file.file.inode, WRITE)).collect();
    put(&first, &file, 0, &content(1, 2 * KIB64)).unwrap();
    for (number, (client, file)) in others.iter().zip(&files).enumerate() {
        put(client, file, (2 + 2 * number as u64) * KIB64 as u64, &content(2 + number, 2 * KIB64)).unwrap();
    }
    assert_eq!(counted.1.load(SeqCst), 0, "asked to be alone");
    let all = [1, 2, 3, 4].map(|seed| content(seed, 2 * KIB64)).concat();
    let reader = world.client();
    assert!(read(&reader, &open(&reader, file.file.inode, READ), 9 * KIB64) == all);
}
