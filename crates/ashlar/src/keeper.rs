//! A process beside a mount that keeps it should the mount's process end without having unmounted: for a while it holds the kernel's device and the table of
//! what is open, and gives both to the next `ashlar mount` of that mount point. Programs wait meanwhile. If nobody comes, the kernel gives the mount up.
//!
//! It is started by the mount's process once it has mounted, has device and table as descriptors 3 and 4, and learns of the end as a guard does (see `guard.rs`). Then
//! it listens at a socket in the abstract name space that has the connection's number in its name, and serves whoever has its own user id.

pub mod table;

use crate::guard::{hold_back_end, signals_of_end};
use anyhow::{Context, Result, bail};
use ashlar_fuse::{Connection, Kept, abort_connection};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg, sockopt::socket_peercred,
};
use std::ffi::OsStr;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use table::Table;

/// The name it is started by.
const PROGRAM: &str = "ashlar-keeper";
/// Descriptors of the keeper.
const DEVICE: RawFd = 3;
const TABLE: RawFd = 4;
/// LIMIT: for how long somebody who has connected may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// LIMIT: for how long a keeper is looked for that has not noticed the end yet.
const LOOK_MAX: Duration = Duration::from_secs(2);
const TURN: Duration = Duration::from_millis(50);

/// The side of the mount's process.
pub struct Keeper {
    process: Option<(Child, ChildStdin)>,
}

impl Keeper {
    /// Has the mount with this `connection` kept for `keep` after the end of this process. To be called on the main thread, which the keeper watches.
    ///
    /// # Errors
    /// When no process can be started.
    pub fn start(connection: Connection, device: &OwnedFd, table: &Table, keep: Duration) -> Result<Keeper> {
        let (device, memory) = (device.as_raw_fd(), table.memory().as_raw_fd());
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0(PROGRAM)
            .arg(connection.0.to_string())
            .arg(keep.as_secs().to_string())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // SAFETY: fcntl, dup2, prctl, sigprocmask, setsid and signal are async-signal-safe, and take no pointer to anything of ours.
        unsafe {
            command.pre_exec(move || {
                for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                    libc::signal(signal, libc::SIG_IGN);
                }
                // Above both places first: one of the two may be where the other is to be.
                let (device, memory) =
                    (libc::fcntl(device, libc::F_DUPFD, 10), libc::fcntl(memory, libc::F_DUPFD, 10));
                let is_good = device >= 0
                    && memory >= 0
                    && libc::dup2(device, DEVICE) == DEVICE
                    && libc::dup2(memory, TABLE) == TABLE
                    && libc::close(device) == 0
                    && libc::close(memory) == 0
                    // It outlives the process, and what its group is told.
                    && libc::setsid() >= 0
                    && hold_back_end()
                    && libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGUSR1) == 0;
                if is_good { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            });
        }
        let mut child = command.spawn().context("cannot start a process that keeps the mount")?;
        let stdin = child.stdin.take().context("the keeper has no standard input")?;
        Ok(Keeper { process: Some((child, stdin)) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some((mut child, mut stdin)) = self.process.take() {
            // The mount has ended in good order: there is nothing to keep.
            let _ = stdin.write_all(b"end\n");
            drop(stdin);
            let _ = child.wait();
        }
    }
}

/// What the next process gets.
pub struct Left {
    /// The mount.
    pub kept: Kept,
    /// What is open through it.
    pub table: Table,
    keeper: UnixStream,
}

impl Left {
    /// Its parts; the mount is kept until the last one is said.
    pub fn divide(self) -> (Kept, Table, Taken) {
        (self.kept, self.table, Taken(self.keeper))
    }
}

/// That the mount is served again.
pub struct Taken(UnixStream);

impl Taken {
    /// Says so; until then it is kept.
    ///
    /// # Errors
    /// When the keeper has ended.
    pub fn say(mut self) -> Result<()> {
        self.0.write_all(b"k").context("the process that kept the mount has ended")
    }
}

fn place(connection: Connection) -> Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("ashlar-keeper-{}", connection.0)).context("no name for a socket")
}

/// Asks whoever keeps the mount with this connection for it. Nothing if nobody does.
///
/// # Errors
/// When what he gives cannot be used.
pub fn ask(connection: Connection) -> Result<Option<Left>> {
    let (place, deadline) = (place(connection)?, Instant::now() + LOOK_MAX);
    let mut stream = loop {
        match UnixStream::connect_addr(&place) {
            Ok(stream) => break stream,
            Err(_) if Instant::now() < deadline => std::thread::sleep(TURN),
            Err(_) => return Ok(None),
        }
    };
    if !is_own_user(&stream) {
        bail!("somebody else listens where the keeper of the mount should");
    }
    stream.set_read_timeout(Some(ANSWER_MAX)).context("cannot set a bound")?;
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received =
        recvmsg(&stream, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
            .context("the process that keeps the mount does not answer")?;
    let mut given: Vec<OwnedFd> = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            given.extend(descriptors);
        }
    }
    let (Some(memory), Some(device), 1) = (given.pop(), given.pop(), received.bytes) else {
        // It may be of another version; it ends when nobody takes the mount.
        let _ = stream.write_all(b"n");
        bail!("the process that keeps the mount gives something else");
    };
    let table = Table::open(memory)?;
    let kept = Kept { device, terms: table.terms() };
    Ok(Some(Left { kept, table, keeper: stream }))
}

fn is_own_user(stream: &UnixStream) -> bool {
    socket_peercred(stream).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

/// Whether this program was started as a keeper.
pub fn is_asked_for(program: Option<&OsStr>) -> bool {
    program == Some(OsStr::new(PROGRAM))
}

/// The keeper's side: waits for the end of the mount's process, and then for the next one.
pub fn run(mut args: impl Iterator<Item = String>) -> ExitCode {
    let number = |text: Option<String>| text.and_then(|text| text.parse::<u32>().ok());
    let (Some(connection), Some(seconds)) = (number(args.next()), number(args.next())) else {
        return ExitCode::FAILURE;
    };
    // SAFETY: whoever started this put them there for it, and nothing else of this process has them.
    let (device, memory) = unsafe { (OwnedFd::from_raw_fd(DEVICE), OwnedFd::from_raw_fd(TABLE)) };
    for descriptor in [&device, &memory] {
        // It starts nothing that should have them.
        let _ = fcntl_setfd(descriptor, FdFlags::CLOEXEC);
    }
    if has_ended_well() {
        return ExitCode::SUCCESS;
    }
    let connection = Connection(connection);
    let give_up = Instant::now() + Duration::from_secs(seconds.into());
    if !hand_over(connection, (&device, &memory), give_up) {
        // There is nobody to tell if that does not work.
        let _ = abort_connection(connection);
    }
    ExitCode::SUCCESS
}

/// Waits for the end of the mount's process; tells whether it had unmounted.
fn has_ended_well() -> bool {
    let (sender, ends) = mpsc::channel();
    let Ok(mut signals) = signals_of_end() else { return false };
    let died = sender.clone();
    let watch = move || {
        if signals.forever().next().is_some() {
            // Nobody listens any more if the other end came first.
            let _ = died.send(false);
        }
    };
    let listen = move || {
        let mut said = String::new();
        let is_whole = std::io::stdin().lock().read_to_string(&mut said).is_ok();
        let _ = sender.send(is_whole && said == "end\n");
    };
    let started = [
        std::thread::Builder::new().name("watch".into()).spawn(watch),
        std::thread::Builder::new().name("listen".into()).spawn(listen),
    ];
    started.iter().all(Result::is_ok) && ends.recv().unwrap_or(false)
}

/// Gives the mount to whoever asks before `give_up`; tells whether somebody has taken it.
fn hand_over(connection: Connection, (device, memory): (&OwnedFd, &OwnedFd), give_up: Instant) -> bool {
    let listener =
        place(connection).and_then(|place| UnixListener::bind_addr(&place).context("cannot listen"));
    let Ok(listener) = listener else { return false };
    if listener.set_nonblocking(true).is_err() {
        return false;
    }
    while Instant::now() < give_up {
        if is_gone(device) {
            // It was unmounted; its number may be that of another mount by now.
            return true;
        }
        match listener.accept() {
            Ok((stream, _)) => {
                if is_own_user(&stream) && is_taken(stream, device, memory) {
                    return true;
                }
            }
            Err(_) => std::thread::sleep(TURN),
        }
    }
    false
}

/// Whether the mount of `device` is no more.
fn is_gone(device: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(device, PollFlags::empty())];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut asked, Some(&now)).is_ok_and(|count| count > 0)
        && asked[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

fn is_taken(mut stream: UnixStream, device: &OwnedFd, memory: &OwnedFd) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let given = [device.as_fd(), memory.as_fd()];
    if !ancillary.push(SendAncillaryMessage::ScmRights(&given)) {
        return false;
    }
    if sendmsg(&stream, &[IoSlice::new(b"f")], &mut ancillary, SendFlags::empty()).is_err() {
        return false;
    }
    // Until it serves it is not the next one: should it end before that, there may be another. LIMIT: its files are waited for, up to a minute each way.
    let mut answer = [0];
    stream.set_nonblocking(false).is_ok()
        && stream.set_read_timeout(Some(Duration::from_secs(180))).is_ok()
        && stream.read_exact(&mut answer).is_ok()
        && answer == *b"k"
}
