//! A function with a stack of its own that stops in the middle and goes on later, all on one thread.
//!
//! Production code blocks: a call waits for a recall with its frames on the stack. To simulate several such callers on one
//! thread, each gets a stack, and `swapcontext(3)` changes between them where the simulation says so and nowhere else.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;

/// Bytes of a stack; pages that are not touched cost nothing.
const STACK_BYTES: usize = 2 << 20;
/// Bytes below it that may not be touched, so that an overflow is a fault and not damage.
const GUARD_BYTES: usize = 16 << 10;
/// Stacks kept for the next coroutine of the thread.
// LIMIT: a run has about this many coroutines alive.
const STACKS_KEPT: usize = 64;

struct Stack(*mut libc::c_void);

thread_local! {
    static FREE: Cell<Vec<Stack>> = const { Cell::new(Vec::new()) };
    /// The coroutine that runs; null on the thread's own stack.
    static CURRENT: Cell<*mut Inner> = const { Cell::new(ptr::null_mut()) };
}

impl Stack {
    fn take() -> Stack {
        let mut free = FREE.take();
        let kept = free.pop();
        FREE.set(free);
        kept.unwrap_or_else(Stack::map)
    }

    fn map() -> Stack {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: a fresh anonymous mapping; nothing else is affected.
        let base = unsafe { libc::mmap(ptr::null_mut(), STACK_BYTES, protection, flags, -1, 0) };
        assert!(base != libc::MAP_FAILED, "no memory for a stack: {}", std::io::Error::last_os_error());
        // SAFETY: the lowest pages of the mapping just made.
        let guarded = unsafe { libc::mprotect(base, GUARD_BYTES, libc::PROT_NONE) };
        assert!(guarded == 0, "cannot guard a stack: {}", std::io::Error::last_os_error());
        Stack(base)
    }

    fn give_back(self) {
        let mut free = FREE.take();
        if free.len() < STACKS_KEPT {
            free.push(self);
        } else {
            // SAFETY: nothing runs on it any more; the mapping is this one's own.
            unsafe { libc::munmap(self.0, STACK_BYTES) };
        }
        FREE.set(free);
    }
}

struct Inner {
    own: MaybeUninit<libc::ucontext_t>,
    resumer: MaybeUninit<libc::ucontext_t>,
    start: Option<Box<dyn FnOnce()>>,
    is_done: bool,
}

/// See the module. Dropped before its end, it leaks what is on its stack; whoever wants a clean end lets it unwind.
pub struct Coroutine {
    inner: Box<Inner>,
    stack: Option<Stack>,
    thread: std::thread::ThreadId,
}

// SAFETY: what is inside is only ever touched on the thread that made it, which `resume` checks.
unsafe impl Send for Coroutine {}

extern "C" fn enter() {
    let inner = CURRENT.get();
    // SAFETY: `resume` has set CURRENT to its own live `Inner` before it switched here, and keeps it until this returns to it.
    let start = unsafe { (*inner).start.take() };
    if let Some(start) = start {
        start();
    }
    // SAFETY: as above; a coroutine that has ended is never resumed, so the switch does not come back.
    unsafe {
        (*inner).is_done = true;
        let (own, resumer) = ((*inner).own.as_mut_ptr(), (*inner).resumer.as_ptr());
        libc::swapcontext(own, resumer);
    }
    std::process::abort();
}

impl Coroutine {
    /// One that will run `start`, which must not unwind.
    pub fn new(start: Box<dyn FnOnce() + Send>) -> Coroutine {
        let stack = Stack::take();
        let mut inner = Box::new(Inner {
            own: MaybeUninit::zeroed(),
            resumer: MaybeUninit::zeroed(),
            start: Some(start),
            is_done: false,
        });
        let own = inner.own.as_mut_ptr();
        // SAFETY: `own` is zeroed memory that getcontext fills; the stack lives until the coroutine has ended or is leaked with it.
        unsafe {
            let got = libc::getcontext(own);
            assert!(got == 0, "getcontext: {}", std::io::Error::last_os_error());
            (*own).uc_stack.ss_sp = stack.0;
            (*own).uc_stack.ss_size = STACK_BYTES;
            (*own).uc_link = ptr::null_mut();
            libc::makecontext(own, enter, 0);
        }
        Coroutine { inner, stack: Some(stack), thread: std::thread::current().id() }
    }

    /// Runs it until it suspends or ends; tells whether it has ended. Only from the thread's own stack.
    pub fn resume(&mut self) -> bool {
        assert!(CURRENT.get().is_null(), "a coroutine cannot resume another");
        assert!(self.thread == std::thread::current().id() && !self.inner.is_done, "cannot be resumed here");
        let inner: *mut Inner = &mut *self.inner;
        CURRENT.set(inner);
        // SAFETY: `own` holds a context made by makecontext or saved by `suspend`; `inner` is boxed and does not move.
        let switched = unsafe { libc::swapcontext((*inner).resumer.as_mut_ptr(), (*inner).own.as_ptr()) };
        assert!(switched == 0, "swapcontext: {}", std::io::Error::last_os_error());
        CURRENT.set(ptr::null_mut());
        // SAFETY: as above; read through the pointer, because the other stack has changed it.
        let is_done = unsafe { (*inner).is_done };
        if is_done && let Some(stack) = self.stack.take() {
            stack.give_back();
        }
        is_done
    }
}

/// Whether the caller runs in a coroutine.
pub fn is_inside() -> bool {
    !CURRENT.get().is_null()
}

/// Stops the running coroutine until it is resumed.
pub fn suspend() {
    let inner = CURRENT.get();
    assert!(!inner.is_null(), "only a coroutine can be suspended");
    // SAFETY: CURRENT is the running coroutine's, which `resume` keeps alive; `resumer` was saved when it was resumed.
    let switched = unsafe { libc::swapcontext((*inner).own.as_mut_ptr(), (*inner).resumer.as_ptr()) };
    assert!(switched == 0, "swapcontext: {}", std::io::Error::last_os_error());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    #[test]
    fn coroutines_take_turns_and_keep_their_frames() {
        let log = Arc::new(AtomicU32::new(0));
        let mut both: Vec<Coroutine> = (1..=2)
            .map(|digit| {
                let log = Arc::clone(&log);
                Coroutine::new(Box::new(move || {
                    for _ in 0..2 {
                        log.store(log.load(SeqCst) * 10 + digit, SeqCst);
                        suspend();
                    }
                }))
            })
            .collect();
        let ends: Vec<bool> = (0..6).map(|turn| both[turn % 2].resume()).collect();
        assert_eq!(log.load(SeqCst), 1212);
        assert_eq!(ends, [false, false, false, false, true, true]);
        assert!(!is_inside());
    }

    #[test]
    fn a_panic_unwinds_inside_a_coroutine() {
        let caught = Arc::new(AtomicU32::new(0));
        let theirs = Arc::clone(&caught);
        let mut coroutine = Coroutine::new(Box::new(move || {
            let payload = std::panic::catch_unwind(|| std::panic::resume_unwind(Box::new(7_u32)));
            let payload = payload.err().and_then(|payload| payload.downcast::<u32>().ok());
            theirs.store(payload.map_or(0, |value| *value), SeqCst);
        }));
        assert!(coroutine.resume());
        assert_eq!(caught.load(SeqCst), 7);
    }
}
