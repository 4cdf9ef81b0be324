//! A process beside a mount that keeps it should the mount's process end without having unmounted: for a while it holds the kernel's device and the table of
//! what is open, and gives both to the next `ashlar mount` of that mount point. Programs wait meanwhile. If nobody comes, the kernel gives the mount up.
//!
//! It is started by the mount's process once it has mounted, has device, table and a listening socket as descriptors 3 to 5, and learns of the end as a guard does (see
//! `guard.rs`). Then it serves whoever asks at the socket and has its own user id. The socket has the connection's number as its name, is in a directory that is its
//! user's alone, and is there from the beginning: nobody else can be there first.

pub mod table;

use crate::admin::own_socket_directory;
use crate::guard::{hold_back_end, signals_of_end};
use anyhow::{Context, Result, bail};
use ashlar_fuse::{Connection, Kept, abort_connection};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg, sockopt::socket_peercred,
};
use rustix::process::geteuid;
use std::ffi::OsStr;
use std::fs::Permissions;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use table::Table;

/// The name it is started by.
const PROGRAM: &str = "ashlar-keeper";
/// Descriptors of the keeper.
const DEVICE: RawFd = 3;
const TABLE: RawFd = 4;
const LISTENER: RawFd = 5;
/// LIMIT: for how long somebody who has connected may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// LIMIT: for how long a keeper is looked for that has not noticed the end yet.
const LOOK_MAX: Duration = Duration::from_secs(2);
const TURN: Duration = Duration::from_millis(50);

/// The side of the mount's process.
pub struct Keeper {
    process: Option<(Child, ChildStdin)>,
    /// Its socket, as it was made.
    socket: (PathBuf, Option<WhichFile>),
}

impl Keeper {
    /// Has the mount with this `connection` kept for `keep` after the end of this process. To be called on the main thread, which the keeper watches.
    ///
    /// # Errors
    /// When no process can be started.
    pub fn start(connection: Connection, device: &OwnedFd, table: &Table, keep: Duration) -> Result<Keeper> {
        let place = place(connection)?;
        let listener = listen(&place)?;
        let given = [device.as_raw_fd(), table.memory().as_raw_fd(), listener.as_raw_fd()];
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0(PROGRAM)
            .arg(connection.0.to_string())
            .arg(keep.as_secs().to_string())
            .arg(&place)
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
                // Above all places first: one of them may be where another is to be.
                let given = given.map(|descriptor| libc::fcntl(descriptor, libc::F_DUPFD, 10));
                let mut placed = given.iter().zip([DEVICE, TABLE, LISTENER]);
                let is_good = given.iter().all(|&descriptor| descriptor >= 0)
                    && placed.all(|(&from, to)| libc::dup2(from, to) == to)
                    && given.iter().all(|&descriptor| libc::close(descriptor) == 0)
                    // It outlives the process, and what its group is told.
                    && libc::setsid() >= 0
                    && hold_back_end()
                    && libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGUSR1) == 0;
                if is_good { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            });
        }
        let mut child = command.spawn().context("cannot start a process that keeps the mount")?;
        let stdin = child.stdin.take().context("the keeper has no standard input")?;
        let socket = (place.clone(), file_at(&place));
        Ok(Keeper { process: Some((child, stdin)), socket })
    }
}

impl Keeper {
    /// Whether somebody who asks for the mount once this program has ended will get it.
    pub fn is_there(&mut self) -> bool {
        let (place, made) = &self.socket;
        let is_alive = self.process.as_mut().is_some_and(|(child, _)| matches!(child.try_wait(), Ok(None)));
        made.is_some() && file_at(place) == *made && is_alive
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

/// Where the keeper of this mount listens: nobody but its user can make a socket there.
fn place(connection: Connection) -> Result<PathBuf> {
    Ok(own_socket_directory()?.join(format!("{}.keeper", connection.0)))
}

/// What is left of a keeper that was killed goes: nobody else can have a mount of this number while it is there.
fn listen(place: &Path) -> Result<UnixListener> {
    match std::fs::remove_file(place) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {}", place.display()));
        }
        _ => {}
    }
    let cannot = || format!("cannot listen at {}", place.display());
    let listener = UnixListener::bind(place).with_context(cannot)?;
    std::fs::set_permissions(place, Permissions::from_mode(0o600)).with_context(cannot)?;
    Ok(listener)
}

/// Reaches the keeper. One of an earlier version listens in the abstract name space, where anybody can.
fn reach(place: &Path, before: &SocketAddr) -> Option<UnixStream> {
    let reached = UnixStream::connect(place).or_else(|_| UnixStream::connect_addr(before));
    reached.ok().filter(is_of_own_user)
}

fn is_of_own_user(stream: &UnixStream) -> bool {
    socket_peercred(stream).is_ok_and(|peer| peer.uid == geteuid())
}

/// Asks whoever keeps the mount with this connection for it. Nothing if nobody does.
///
/// # Errors
/// When what he gives cannot be used.
pub fn ask(connection: Connection) -> Result<Option<Left>> {
    let (place, deadline) = (place(connection)?, Instant::now() + LOOK_MAX);
    let before = SocketAddr::from_abstract_name(format!("ashlar-keeper-{}", connection.0))?;
    loop {
        if let Some(stream) = reach(&place, &before)
            && let Some(left) = receive(stream)?
        {
            return Ok(Some(left));
        }
        if Instant::now() > deadline {
            return Ok(None);
        }
        std::thread::sleep(TURN);
    }
}

/// What the keeper gives; nothing if the mount still has a process.
fn receive(mut stream: UnixStream) -> Result<Option<Left>> {
    stream.set_read_timeout(Some(ANSWER_MAX)).context("cannot set a bound")?;
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received =
        recvmsg(&stream, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
            .context("the process that keeps the mount does not answer")?;
    if received.bytes == 0 {
        return Ok(None);
    }
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

/// Whether this program was started as a keeper.
pub fn is_asked_for(program: Option<&OsStr>) -> bool {
    program == Some(OsStr::new(PROGRAM))
}

/// The keeper's side: waits for the end of the mount's process, and then for the next one.
pub fn run(mut args: impl Iterator<Item = String>) -> ExitCode {
    let number = |text: Option<String>| text.and_then(|text| text.parse::<u32>().ok());
    let (Some(connection), Some(seconds), Some(place)) =
        (number(args.next()), number(args.next()), args.next())
    else {
        return ExitCode::FAILURE;
    };
    let (place, is_own) = (PathBuf::from(&place), file_at(Path::new(&place)));
    // SAFETY: whoever started this put them there for it, and nothing else of this process has them.
    let [device, memory, listener] =
        [DEVICE, TABLE, LISTENER].map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) });
    for descriptor in [&device, &memory, &listener] {
        // It starts nothing that should have them.
        let _ = fcntl_setfd(descriptor, FdFlags::CLOEXEC);
    }
    let connection = Connection(connection);
    let Some(happens) = listening(listener.into()) else { return ExitCode::FAILURE };
    let outcome = if has_ended_well(&happens) {
        Outcome::Gone
    } else {
        let give_up = Instant::now() + Duration::from_secs(seconds.into());
        hand_over(&happens, (&device, &memory), give_up)
    };
    // There is nobody to tell if either does not work. The socket of whoever took the mount is at the same place.
    if outcome != Outcome::Taken && file_at(&place) == is_own {
        let _ = std::fs::remove_file(&place);
    }
    if outcome == Outcome::GivenUp {
        let _ = abort_connection(connection);
    }
    ExitCode::SUCCESS
}

/// Which file is there: numbers of inodes are used again, but not with the same time of making.
type WhichFile = (u64, i64, i64);

fn file_at(place: &Path) -> Option<WhichFile> {
    place.symlink_metadata().ok().map(|found| (found.ino(), found.mtime(), found.mtime_nsec()))
}

/// How it ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// There is no mount any more.
    Gone,
    /// Another process has the mount.
    Taken,
    /// Nobody came.
    GivenUp,
}

/// What a keeper waits for.
enum Happens {
    /// The mount's process has ended, and had unmounted or not.
    Ended { is_unmounted: bool },
    /// Somebody asks for the mount.
    Asked(UnixStream),
}

/// Starts threads that wait for all of it. Nothing if there can be none.
fn listening(listener: UnixListener) -> Option<mpsc::Receiver<Happens>> {
    let mut signals = signals_of_end().ok()?;
    // LIMIT: who asks meanwhile waits in the kernel's queue.
    let (sender, happens) = mpsc::sync_channel(4);
    let (died, asked) = (sender.clone(), sender.clone());
    let watch = move || {
        if signals.forever().next().is_some() {
            // Nobody listens any more if the other end came first; so below.
            let _ = died.send(Happens::Ended { is_unmounted: false });
        }
    };
    let hear = move || {
        let mut said = String::new();
        let is_whole = std::io::stdin().lock().read_to_string(&mut said).is_ok();
        let _ = sender.send(Happens::Ended { is_unmounted: is_whole && said == "end\n" });
    };
    let accept = move || {
        for stream in listener.incoming() {
            match stream.map(|stream| asked.send(Happens::Asked(stream))) {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return,
                // It may be for want of memory or descriptors.
                Err(_) => std::thread::sleep(TURN),
            }
        }
    };
    let named = |name: &str| std::thread::Builder::new().name(name.into());
    named("watch").spawn(watch).ok()?;
    named("hear").spawn(hear).ok()?;
    named("accept").spawn(accept).ok()?;
    Some(happens)
}

/// Waits for the end of the mount's process; tells whether it had unmounted. Who asks before is told by the end of the connection that the mount has a process.
fn has_ended_well(happens: &mpsc::Receiver<Happens>) -> bool {
    loop {
        match happens.recv() {
            Ok(Happens::Ended { is_unmounted }) => return is_unmounted,
            Ok(Happens::Asked(_)) => {}
            Err(_) => return false,
        }
    }
}

/// Gives the mount to whoever asks before `give_up`.
fn hand_over(
    happens: &mpsc::Receiver<Happens>,
    (device, memory): (&OwnedFd, &OwnedFd),
    give_up: Instant,
) -> Outcome {
    while Instant::now() < give_up {
        if is_gone(device) {
            // It was unmounted; its number may be that of another mount by now.
            return Outcome::Gone;
        }
        match happens.recv_timeout(TURN) {
            Ok(Happens::Asked(stream)) if is_of_own_user(&stream) => {
                if is_taken(stream, device, memory) {
                    return Outcome::Taken;
                }
            }
            // The end is told twice. Threads may have ended for want of anything: then the time is still kept.
            Ok(_) | Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => std::thread::sleep(TURN),
        }
    }
    Outcome::GivenUp
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
