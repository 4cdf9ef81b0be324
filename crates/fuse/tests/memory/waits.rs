//! Scenarios with blocking locks, for any transport.

use super::Mounted;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::thread::JoinHandleExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

fn flock(file: &File, how: i32) -> Result<(), i32> {
    // SAFETY: flock takes no pointer.
    let result = unsafe { libc::flock(file.as_raw_fd(), how) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error().unwrap()) }
}

pub fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A thread that waits for an exclusive lock on its own open of the file, and gives it back.
fn waiter(path: &Path) -> JoinHandle<Result<(), i32>> {
    let path = path.to_path_buf();
    thread::spawn(move || {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        flock(&file, libc::LOCK_EX)?;
        flock(&file, libc::LOCK_UN)
    })
}

fn held(mounted: &Mounted) -> (std::path::PathBuf, File) {
    // The end of a description is told late, and by an address where another may be by then: a lock must not have a name that had one before.
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let path = mounted.join(&format!("lock-{}", COUNT.fetch_add(1, SeqCst)));
    let holder = File::create(&path).unwrap();
    flock(&holder, libc::LOCK_EX).unwrap();
    (path, holder)
}

pub fn many(mounted: &Mounted, count: usize) {
    let (path, holder) = held(mounted);
    for round in 0..3 {
        let waiters: Vec<_> = (0..count).map(|_| waiter(&path)).collect();
        until("waiting", || mounted.fs.waiting() == count);
        // More waiters than a queue has entries: everything else must go on, from every processor.
        let progress = Arc::new(AtomicUsize::new(0));
        let others: Vec<_> = (0..4)
            .map(|index| {
                let (directory, progress) =
                    (mounted.join(&format!("other-{round}-{index}")), progress.clone());
                thread::spawn(move || {
                    fs::create_dir_all(&directory).unwrap();
                    for file in 0..50 {
                        fs::write(directory.join(file.to_string()), vec![1; 10_000]).unwrap();
                        progress.fetch_add(1, SeqCst);
                    }
                })
            })
            .collect();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!((progress.load(SeqCst), mounted.fs.waiting()), (200, count));
        flock(&holder, libc::LOCK_UN).unwrap();
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap(), Ok(()));
        }
        flock(&holder, libc::LOCK_EX).unwrap();
    }
}

extern "C" fn ignore(_signal: i32) {}

pub fn interrupted(mounted: &Mounted) {
    // SAFETY: a handler that does nothing, without SA_RESTART, so that the call ends with EINTR.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as extern "C" fn(i32) as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    let (path, holder) = held(mounted);
    for _ in 0..20 {
        let waiter = waiter(&path);
        until("waiting", || mounted.fs.waiting() == 1);
        // SAFETY: the thread has not been joined, so its id is valid.
        assert_eq!(unsafe { libc::pthread_kill(waiter.as_pthread_t(), libc::SIGUSR1) }, 0);
        assert_eq!(waiter.join().unwrap(), Err(libc::EINTR));
        assert_eq!(mounted.fs.waiting(), 0);
    }
    assert!(mounted.fs.calls.interrupts.load(SeqCst) >= 20);
    drop(holder);
    assert_eq!(waiter(&path).join().unwrap(), Ok(()), "the lock is free after all");
}

pub fn refused_beyond(mounted: &Mounted, limit: usize) {
    let (path, holder) = held(mounted);
    let waiters: Vec<_> = (0..limit).map(|_| waiter(&path)).collect();
    until("waiting", || mounted.fs.waiting() == limit);
    assert_eq!(waiter(&path).join().unwrap(), Err(libc::ENOLCK));
    flock(&holder, libc::LOCK_UN).unwrap();
    for waiter in waiters {
        assert_eq!(waiter.join().unwrap(), Ok(()));
    }
}

pub fn aborted(mut mounted: Mounted) {
    let (path, holder) = held(&mounted);
    let waiters: Vec<_> = (0..5).map(|_| waiter(&path)).collect();
    until("waiting", || mounted.fs.waiting() == 5);
    mounted.session.abort().unwrap();
    for waiter in waiters {
        assert!(waiter.join().unwrap().is_err());
    }
    mounted.session.join(Duration::from_secs(10)).unwrap();
    assert_eq!(
        fs::metadata(&path).unwrap_err().raw_os_error(),
        Some(libc::ENOTCONN),
        "in use, so still there"
    );
    drop(holder);
    mounted.end_aborted();
}
