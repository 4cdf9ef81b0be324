//! A second process beside a server: should the server be killed, it makes the kernel give up the server's mounts.
//!
//! A thread that drops pages of a file waits in the kernel for a page that a read or write has, and that for the server. Killed at that
//! moment, the server cannot end: the thread keeps the connection open, so the kernel goes on waiting for its answer, and so do all who use
//! the mount, and whoever wants the server's locks. Somebody else has to end the connection.
//!
//! The guard is told of each mount through its standard input. The kernel sends it a signal when the main thread of the server has ended, also
//! when others have not (`PR_SET_PDEATHSIG` in prctl(2)). It ends with the server; without it everything works but that.

use ashlar_fuse::{Connection, ConnectionEnd};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::SIGUSR1;
use signal_hook::iterator::Signals;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The name it is started by.
const PROGRAM: &str = "ashlar-guard";

/// The server's side.
pub struct Guard {
    process: Option<(Child, Mutex<ChildStdin>)>,
}

impl Guard {
    /// Starts it. To be called on the main thread: the guard watches the thread that calls this. That there is none is logged, and nothing else
    /// changes.
    pub fn start() -> Guard {
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0(PROGRAM)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // SAFETY: prctl, sigprocmask and signal are async-signal-safe, and take no pointer to anything of ours.
        unsafe {
            command.pre_exec(|| {
                // It ends with the server, and not by what ends the server.
                for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                    libc::signal(signal, libc::SIG_IGN);
                }
                if hold_back_end() && libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGUSR1) == 0 {
                    Ok(())
                } else {
                    Err(std::io::Error::last_os_error())
                }
            });
        }
        let started = command.spawn().and_then(|mut child| {
            let stdin = child.stdin.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
            Ok((child, Mutex::new(stdin)))
        });
        if let Err(error) = &started {
            tracing::warn!(%error, "no guard: should this server be killed, `ashlar umount` may be needed");
        }
        Guard { process: started.ok() }
    }

    /// From now on the mount with this connection is given up should the server be killed.
    pub fn note_mounted(&self, connection: Connection) {
        self.tell(&format!("+{}\n", connection.0));
    }

    /// The mount is gone, and its number may be that of another soon.
    pub fn note_ended(&self, connection: Connection) {
        self.tell(&format!("-{}\n", connection.0));
    }

    fn tell(&self, line: &str) {
        if let Some((_, stdin)) = &self.process
            && let Err(error) = stdin.lock().write_all(line.as_bytes())
        {
            tracing::info!(%error, "the guard has ended");
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some((mut child, stdin)) = self.process.take() {
            // Its standard input ends, and so does it.
            drop(stdin);
            let _ = child.wait();
        }
    }
}

/// Has the signal that tells of the server's end wait until this process is ready for it ([`signals_of_end`]), also over an exec: the server may be killed before, and
/// the signal would end whoever has not said yet what it is to do. Async-signal-safe.
pub fn hold_back_end() -> bool {
    // SAFETY: the set is a plain value that sigemptyset makes, and nothing is asked about the mask before.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set) == 0
            && libc::sigaddset(&raw mut set, libc::SIGUSR1) == 0
            && libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) == 0
    }
}

/// The signal that tells of the server's end, one that was held back too. To be called before there are threads.
///
/// # Errors
/// When signals cannot be taken.
pub fn signals_of_end() -> std::io::Result<Signals> {
    let signals = Signals::new([SIGUSR1])?;
    // ORDER: let through once somebody takes it.
    // SAFETY: as above.
    let is_let_through = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set) == 0
            && libc::sigaddset(&raw mut set, libc::SIGUSR1) == 0
            && libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) == 0
    };
    if is_let_through { Ok(signals) } else { Err(std::io::Error::last_os_error()) }
}

/// Whether this program was started as a guard.
pub fn is_asked_for(program: Option<&OsStr>) -> bool {
    program == Some(OsStr::new(PROGRAM))
}

/// LIMIT: for how long what the server has said is read after its end.
const READ_MAX: Duration = Duration::from_secs(1);
/// What a line takes at the most from the pipe to its place here.
const LINE_MAX: Duration = Duration::from_millis(10);

/// Waits until the other thread has read all that there is in the pipe.
fn wait_until_read() {
    let give_up = Instant::now() + READ_MAX;
    let stdin = std::io::stdin();
    loop {
        let mut looked_at = [PollFd::new(&stdin, PollFlags::IN)];
        // At its end a pipe can be read, too, with an event of its own.
        let is_empty = poll(&mut looked_at, Some(&Timespec::default())).is_ok()
            && !looked_at[0].revents().contains(PollFlags::IN);
        std::thread::sleep(LINE_MAX);
        if is_empty || Instant::now() >= give_up {
            return;
        }
    }
}

/// The guard's side: waits for the server's end.
pub fn run() -> ExitCode {
    let guarded: Arc<Mutex<BTreeMap<u32, ConnectionEnd>>> = Arc::default();
    let Ok(mut signals) = signals_of_end() else { return ExitCode::FAILURE };
    let all = guarded.clone();
    let watch = move || {
        if signals.forever().next().is_some() {
            // ORDER: what the server had said before its end is read first; a mount that is not known would not be given up.
            wait_until_read();
            // There is nobody to tell what does not work.
            all.lock().values().for_each(|connection| drop(connection.end()));
            std::process::exit(0);
        }
    };
    if std::thread::Builder::new().name("watch".into()).spawn(watch).is_err() {
        return ExitCode::FAILURE;
    }
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let Some(number) = line.get(1..).and_then(|number| number.parse().ok()) else { continue };
        if line.starts_with('+') {
            // While it is there: once it is over, somebody else's mount may have its number, also before this process gets to it.
            ConnectionEnd::of(Connection(number))
                .into_iter()
                .for_each(|end| drop(guarded.lock().insert(number, end)));
        } else {
            guarded.lock().remove(&number);
        }
    }
    // The server has closed everything, the connections, too.
    ExitCode::SUCCESS
}
