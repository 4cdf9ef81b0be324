//! Goal: a program reads what it has just written, also where the page was read in from before the write, a recall has it dropped, and the thread that is to do that gets no processor. Method: a
//! kernel in small that drops a page when it is told to.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{Dropping, KernelCache, OpenFlags, Who};
use ashlar_types::InodeId;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use support::{KIB64, World, content, eventually, make, write};

const PAGE: u64 = 4096;

/// A thread that is to drop the page, and does not run.
#[derive(Debug, Default)]
struct Starved {
    is_done: Mutex<bool>,
    done: Condvar,
    waits: AtomicU64,
}

impl Dropping for Starved {
    fn wait(&self, at_most: Duration) -> bool {
        self.waits.fetch_add(1, SeqCst);
        let mut is_done = self.is_done.lock();
        if !*is_done {
            self.done.wait_for(&mut is_done, at_most);
        }
        *is_done
    }
    fn is_blocked(&self) -> bool {
        false
    }
}

#[derive(Default)]
struct Kernel(Mutex<Vec<Arc<Starved>>>);

impl Kernel {
    /// Whether somebody waits for the last one of `count` such threads.
    fn is_waited_for(&self, count: usize) -> bool {
        let threads = self.0.lock();
        threads.len() == count && threads[count - 1].waits.load(SeqCst) > 0
    }
}

impl KernelCache for Kernel {
    fn drop_attributes(&self, _: InodeId) {}
    fn drop_content(&self, _: InodeId) {}
    fn drop_range(&self, _: InodeId, _: u64, _: u64) {}
    fn begin_to_drop(&self, _: InodeId, _: u64, _: u64) -> Arc<dyn Dropping> {
        let thread = Arc::new(Starved::default());
        self.0.lock().push(thread.clone());
        thread
    }
    fn drop_entries(&self, _: InodeId) {}
}

#[test]
fn a_write_is_answered_when_its_page_has_gone() {
    let world = World::new(64 << 20);
    let other = world.client();
    let others = make(&other, "f").unwrap();
    write(&other, &others, 0, &content(1, 3 * KIB64)).unwrap();
    let (client, kernel) = (world.client(), Arc::new(Kernel::default()));
    client.set_kernel_cache(kernel.clone());
    client.set_frees_filled_pages();
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    let file = client.open(&Who::system(), others.file.inode, flags).unwrap().handle;
    client.fill_pages(&file, 0, &mut [0; PAGE as usize]).unwrap();
    let through = client.begin_through_pages(&file, (0, 8), Some((0, PAGE)), false);
    let is_answered = &AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| write(&other, &others, 0, b"new").unwrap());
        eventually(|| kernel.is_waited_for(1));
        let to_drop = through.end();
        threads.spawn({
            let (kernel, file) = (kernel.clone(), &file.file);
            move || {
                to_drop.carry_out(&*kernel, file);
                is_answered.store(true, SeqCst);
            }
        });
        std::thread::sleep(Duration::from_millis(50));
        let is_early = is_answered.load(SeqCst);
        for thread in &*kernel.0.lock() {
            *thread.is_done.lock() = true;
            thread.done.notify_all();
        }
        eventually(|| is_answered.load(SeqCst));
        assert!(!is_early, "the page may still be read as it was before the write");
    });
}
