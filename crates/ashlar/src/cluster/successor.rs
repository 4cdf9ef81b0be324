//! The process of a mount that is kept gives way to one of the program that is installed by now, on SIGUSR2: for an upgrade, or to begin with other settings. Programs that use the mount notice
//! nothing but a moment of waiting: the next process goes on with the session, so leases, open files and locks stay what they are.
//!
//! It is the same process for whoever has started it: execve(2). What the next program has to know is in a file without a name, of which it is told by the environment. It gets the mount itself from
//! the keeper (`keeper.rs`), as after a kill; if it fails before that, the keeper has it for whoever comes then.

use crate::node::{MountRoot, Mounted};
use crate::program::ended_within;
use anyhow::{Context, Error, Result, bail};
use ashlar_client::Remains;
use ashlar_rpc::net::Caller;
use ashlar_rpc::remote::{LeftSession, RemoteMeta};
use ashlar_types::codec::{decode, encode};
use ashlar_types::{DescriptionId, InodeId};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use std::convert::Infallible;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Where the next program finds what is left, as the number of a descriptor.
const VARIABLE: &str = "ASHLAR_MOUNT_LEFT";
/// The form of it.
const MAGIC: &[u8; 8] = b"ASHLGO01";
/// The form with what an fsync has to know behind the rest, whose length stands before it. It is used where there is something to know: earlier programs do not take it.
const MAGIC_2: &[u8; 8] = b"ASHLGO02";
/// The same with what it has to know of metadata behind that, as that behind the rest.
const MAGIC_3: &[u8; 8] = b"ASHLGO03";
// LIMIT: half a million descriptors, and as many locks, take less.
const BYTES_MAX: u64 = 256 << 20;
/// Channels that other threads may make before the program is replaced.
const CHANNELS_SPARE: u32 = 1 << 16;
/// For how long the next program may take to say its version.
const VERSION_MAX: Duration = Duration::from_secs(10);
/// Attempts to find a moment at which nothing is under way, and the time between two.
const ATTEMPTS: u32 = 20;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(250);

/// What is left.
#[derive(Debug, Serialize, Deserialize)]
pub struct Left {
    /// Which process it is for servers, and the first channel that was not used.
    pub instance: [u8; 16],
    pub first_channel: u32,
    pub session: LeftSession,
    pub remains: Remains,
    /// The directory that is shown, if a path was named.
    pub root: Option<InodeId>,
    /// By the numbers of the kernel.
    pub descriptions: Vec<(u64, DescriptionId)>,
}

impl Left {
    /// What the process before has left, if this one is to go on with it. To be called once, before anything else is opened.
    ///
    /// # Errors
    /// When it cannot be read. It is no use then.
    pub fn taken() -> Result<Option<Left>> {
        let Some(number) = std::env::var_os(VARIABLE) else { return Ok(None) };
        let number = number.to_str().and_then(|number| number.parse().ok());
        let number: i32 = number.with_context(|| format!("{VARIABLE} is no descriptor"))?;
        // SAFETY: whoever set the variable left it open for this program, which has nothing else open yet above the standard ones.
        let memory = unsafe { OwnedFd::from_raw_fd(number) };
        fcntl_setfd(&memory, FdFlags::CLOEXEC).with_context(|| format!("{VARIABLE} is no descriptor"))?;
        let mut memory = File::from(memory);
        let mut bytes = Vec::new();
        memory.seek(SeekFrom::Start(0))?;
        memory.take(BYTES_MAX).read_to_end(&mut bytes)?;
        Left::from_bytes(&bytes).map(Some)
    }

    fn from_bytes(bytes: &[u8]) -> Result<Left> {
        let what = "what the process before has left";
        let (magic, rest) = bytes.split_at_checked(MAGIC.len()).unwrap_or_default();
        if magic == MAGIC {
            return decode(rest, what).map_err(Error::new);
        }
        if magic != MAGIC_2 && magic != MAGIC_3 {
            bail!("{what} is of another version");
        }
        let (left, rest) = first_part(rest).with_context(|| format!("{what} is cut off"))?;
        let mut left: Left = decode(left, what).map_err(Error::new)?;
        if magic == MAGIC_2 {
            left.remains.unsynced = decode(rest, what).map_err(Error::new)?;
            return Ok(left);
        }
        let (unsynced, rest) = first_part(rest).with_context(|| format!("{what} is cut off"))?;
        left.remains.unsynced = decode(unsynced, what).map_err(Error::new)?;
        left.remains.unsynced_meta = decode(rest, what).map_err(Error::new)?;
        Ok(left)
    }

    fn to_bytes(&self) -> Vec<u8> {
        let (left, unsynced, meta) = (encode(self), &self.remains.unsynced, &self.remains.unsynced_meta);
        let len = |part: &[u8]| (part.len() as u64).to_le_bytes();
        if !meta.is_empty() {
            let unsynced = encode(unsynced);
            let parts = [&len(&left), left.as_slice(), &len(&unsynced), &unsynced, &encode(meta)];
            return [MAGIC_3.as_slice(), &parts.concat()].concat();
        }
        match unsynced.is_empty() {
            true => [MAGIC.as_slice(), &left].concat(),
            false => [MAGIC_2.as_slice(), &len(&left), &left, &encode(unsynced)].concat(),
        }
    }

    /// Has `program` take the place of this process, with the same arguments. Returns if that does not work.
    fn exec(&self, program: &Path, is_told: &AtomicBool) -> Error {
        let memory = (|| {
            let mut memory = File::from(memfd_create("ashlar-left", MemfdFlags::CLOEXEC)?);
            memory.write_all(&self.to_bytes())?;
            // For the next program alone.
            fcntl_setfd(&memory, FdFlags::empty())?;
            Ok::<File, std::io::Error>(memory)
        })();
        let memory = match memory {
            Ok(memory) => memory,
            Err(error) => return Error::new(error).context("cannot keep what the next process needs"),
        };
        let mut next = Command::new(program);
        next.args(std::env::args_os().skip(1)).env(VARIABLE, memory.as_raw_fd().to_string());
        // Somebody may say it twice. The next program takes the signal when it can.
        hold_back(true);
        let error = if is_told.load(Relaxed) { ErrorKind::Interrupted.into() } else { next.exec() };
        hold_back(false);
        // SAFETY: a constant. `exec` has set it to what other programs expect.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        Error::new(error).context(format!("cannot run {}", program.display()))
    }
}

/// A part whose length stands before it, and what is behind it.
fn first_part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<8>()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)
}

/// Gives way to `program`. Tries for some seconds to find a moment at which no request is under way; if there is none, or anything else is in the way, this process goes on.
///
/// # Errors
/// Why it goes on.
pub fn give_way(
    program: &Path,
    (mounted, root): (&mut Mounted, &MountRoot),
    meta: &RemoteMeta,
    caller: &Caller,
    is_told: &AtomicBool,
) -> Result<Infallible> {
    require_runs(program)?;
    let mut attempts = 1;
    let (remains, descriptions) = loop {
        match mounted.leave(&|is_deaf| meta.set_deaf(is_deaf)) {
            Ok(left) => break left,
            _ if is_told.load(Relaxed) => bail!("it is to end"),
            Err(error) if attempts == ATTEMPTS => return Err(error),
            Err(error) => {
                attempts += 1;
                tracing::debug!(%error, "not yet");
                std::thread::sleep(ATTEMPT_PAUSE);
            }
        }
    };
    let session = meta.left_session().filter(|left| left.session == remains.session);
    let error = match session {
        Some(session) => {
            let first_channel = caller.next_channel().saturating_add(CHANNELS_SPARE);
            let (instance, root) = (caller.instance, root.found());
            Left { instance, first_channel, session, remains, root, descriptions }.exec(program, is_told)
        }
        None => Error::msg("the session has just ended"),
    };
    mounted.stay(&|is_deaf| meta.set_deaf(is_deaf));
    Err(error)
}

/// A flag that is raised when this process is to give way.
///
/// # Errors
/// When the signal cannot be taken.
pub fn give_way_flag() -> Result<Arc<AtomicBool>> {
    let is_told = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGUSR2, is_told.clone()).context("cannot take signals")?;
    Ok(is_told)
}

/// Has signals wait that say what to do with the mount, also over execve(2), or come.
pub fn hold_back(is_held_back: bool) {
    let how = if is_held_back { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
    // SAFETY: the set is made before it is used, and neither call keeps the pointer.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in [SIGUSR2, SIGTERM, SIGINT, SIGHUP] {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut());
    }
}

/// Refuses a program that does not run here.
fn require_runs(program: &Path) -> Result<()> {
    let cannot = || format!("{} does not say its version", program.display());
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().with_context(cannot)?;
    match ended_within(&mut child, VERSION_MAX)? {
        Some(true) => Ok(()),
        Some(false) => Err(Error::msg(cannot())),
        None => {
            let _ = child.kill();
            let _ = child.wait();
            bail!("{} within {VERSION_MAX:?}", cannot())
        }
    }
}
