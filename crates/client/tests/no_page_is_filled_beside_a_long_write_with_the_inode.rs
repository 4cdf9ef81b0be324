//! Goal: a page that is asked for while a write past the kernel's cache is on its way to metadata is filled after it, however long that takes: filled from before it, and
//! stored into, it would undo the write. Only once somebody waits for a lease of the file does the request go on, because that may be waiting for
//! its page. Method: metadata that keeps a write for as long as a test wants.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{Client, Handle, Left, OpenFlags, Taken, Who, WriteFlags, Written};
use ashlar_types::message::MetaRequest;
use std::sync::Arc;
use std::thread::{Scope, ScopedJoinHandle, sleep};
use std::time::Duration;
use support::{Gate, LockedPages, World, make, read, write};

const PAGE_BYTES: u64 = 4096;

/// Much longer than a request for pages is ever held back, by the clock of the file system.
const LONG: Duration = Duration::from_secs(2);

/// Longer than a request for pages waits for a write that does not end.
const LONGER_THAN_ANY_REQUEST_WAITS: Duration = Duration::from_secs(60);

struct Begun<'s> {
    write: ScopedJoinHandle<'s, Written>,
    fill: ScopedJoinHandle<'s, Vec<u8>>,
}

struct Setting {
    world: World,
    gate: Arc<Gate>,
    page: Arc<LockedPages>,
    client: Arc<Client>,
    file: Arc<Handle>,
}

impl Setting {
    /// A file with its inode, which a mount has open.
    fn new() -> Setting {
        let world = World::new(64 << 20);
        let gate = Gate::new(&world, |request| matches!(request, MetaRequest::WriteInline { .. }));
        let client = world.client_over(gate.clone());
        let page = Arc::new(LockedPages::default());
        client.set_kernel_cache(page.clone());
        let file = make(&client, "f").unwrap();
        write(&client, &file, 0, b"before").unwrap();
        gate.shut();
        Setting { world, gate, page, client, file }
    }

    /// Begins a write that is to be durable and that metadata keeps, and then a request for its page, which tells what it is filled with.
    fn begin<'s>(&'s self, threads: &'s Scope<'s, '_>) -> Begun<'s> {
        let flags = WriteFlags { is_past_cache: true, is_sync: true, ..WriteFlags::default() };
        let write = threads
            .spawn(move || self.client.write_as(&Who::system(), &self.file, 0, b"behind", flags).unwrap());
        self.gate.await_waiter();
        let fill = threads.spawn(|| {
            let _locked = self.page.0.lock();
            self.client.begin_pages(&self.file.file, 0, PAGE_BYTES).unwrap();
            read(&self.client, &self.file, 6)
        });
        // What others ask for from now on finds the page locked, however late the thread runs.
        while self.page.0.try_lock().is_some() && !fill.is_finished() {
            sleep(Duration::from_millis(1));
        }
        Begun { write, fill }
    }

    /// Lets time go by, and the threads run.
    fn pass(&self, time: Duration) {
        const STEPS: u32 = 100;
        for _ in 0..STEPS {
            self.world.clock.advance(time / STEPS);
            sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn it_waits_for_the_end_of_the_write() {
    let setting = Setting::new();
    std::thread::scope(|threads| {
        let begun = setting.begin(threads);
        setting.pass(LONG);
        let is_filled = begun.fill.is_finished();
        setting.gate.open();
        assert!(!is_filled, "from before the write");
        assert_eq!(begun.fill.join().unwrap(), b"behind");
    });
}

#[test]
fn it_goes_on_once_another_session_waits_for_a_lease() {
    let setting = Setting::new();
    read(&setting.client, &setting.file, 6);
    let other = setting.world.client();
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    let theirs = other.open(&Who::system(), setting.file.file.inode, flags).unwrap().handle;
    std::thread::scope(|threads| {
        let begun = setting.begin(threads);
        // It needs what the first one has cached, of which a page is locked.
        let written = threads.spawn(|| write(&other, &theirs, 0, b"theirs").unwrap());
        setting.pass(LONG);
        let has_ended = || (begun.fill.is_finished(), written.is_finished());
        // The threads may be slow to run: whoever begins to wait only now waits by this clock. Far less passes than the write may take.
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while has_ended() != (true, true) && std::time::Instant::now() < until {
            setting.world.clock.advance(Duration::from_millis(1));
            sleep(Duration::from_millis(5));
        }
        let has_ended = has_ended();
        setting.gate.open();
        assert_eq!(has_ended, (true, true), "they wait for each other");
    });
}

#[test]
fn where_it_was_filled_all_the_same_it_is_dropped_even_if_the_write_cannot_be_made_durable() {
    let setting = Setting::new();
    std::thread::scope(|threads| {
        let begun = setting.begin(threads);
        setting.pass(LONGER_THAN_ANY_REQUEST_WAITS);
        // It looks at the clock again when something happens to the file.
        read(&setting.client, &setting.file, 6);
        assert_eq!(begun.fill.join().unwrap(), b"before");
        setting.gate.open();
        // Both are the caller's to do: were it synced here, the page would stay if that failed.
        let left = Left { drop_pages: true, sync: true };
        assert_eq!(begun.write.join().unwrap(), Written::Done(Taken { offset: 0, bytes: 6 }, left));
    });
}
