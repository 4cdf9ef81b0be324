//! From an empty directory to a serving mount. Each step that fails takes back the ones before it.

use super::further::Further;
use super::{Session, Workers};
use crate::deferral::Deferred;
use crate::errno::Errno;
use crate::filesystem::Filesystem;
use crate::mount::{Mount, MountError};
use crate::negotiation::{Negotiated, NegotiationError, Terms};
use crate::notify::Notifier;
use crate::options::{MountOptions, TransportChoice};
use crate::protocol::{Dialect, Features, Message, Opcode, wire};
use crate::reply::fixed;
use crate::service::Service;
use crate::transport::device::{Device, DeviceWorker};
use crate::transport::mailbox::Mailboxes;
use crate::transport::region::page_size;
use crate::transport::ring::{Crew, CrewPlan, Rollcall};
use crate::transport::standby::Standby;
use crate::transport::{Transport, cpu};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;
use zerocopy::IntoBytes;

/// LIMIT: how long the kernel may take to send INIT after mount(2); it sends it at once.
const INIT_TIMEOUT: Duration = Duration::from_secs(10);

/// `FUSE_MIN_READ_BUFFER`: the kernel refuses to be read with less.
const INIT_BUFFER_LEN: usize = 8192;

/// Replies of up to this size (an extended attribute's largest value, twice) fit in any case.
const PAYLOAD_LEN_MIN: usize = 128 << 10;

/// Why a mount was not established.
enum Setback {
    Final(MountError),
    /// The rings failed after the kernel had been promised them: a new mount without them is needed.
    Ring(io::Error),
}

impl<E: Into<MountError>> From<E> for Setback {
    fn from(error: E) -> Self {
        Self::Final(error.into())
    }
}

/// Unmounts unless the mount was kept, or was there before.
pub(super) struct Undo(Option<Mount>, bool);

impl Undo {
    /// Of a mount that is to stay whatever happens.
    pub(super) fn of_nothing(mount: Mount) -> Undo {
        Undo(Some(mount), false)
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some(mount) = self.0.take().filter(|_| self.1)
            && let Err(error) = mount.unmount()
        {
            tracing::error!(%error, "a mount that failed to start stays");
        }
    }
}

/// What every worker calls as it ends.
pub(super) type OnEnd = Arc<dyn Fn(io::Result<()>) + Send + Sync>;

/// A mount after INIT.
pub(super) struct Established<F> {
    undo: Undo,
    device: Arc<Device>,
    terms: Terms,
    service: Arc<Service<F>>,
    crew: Option<(Crew, Transport)>,
    payload_len: usize,
    workers: Arc<OnceLock<Arc<Workers>>>,
    on_end: OnEnd,
}

pub(super) fn mount<F: Filesystem>(
    fs: Arc<F>,
    mountpoint: &Path,
    options: &MountOptions,
) -> Result<Session, MountError> {
    let established = match establish(&fs, mountpoint, options) {
        Ok(established) => established,
        Err(Setback::Final(error)) => return Err(error),
        Err(Setback::Ring(error)) => {
            tracing::warn!(%error, "FUSE over io_uring failed to start; mounting again with /dev/fuse");
            let options = MountOptions { transport: TransportChoice::Device, ..options.clone() };
            establish(&fs, mountpoint, &options).map_err(|setback| match setback {
                Setback::Final(error) => error,
                Setback::Ring(error) => MountError::Start(error),
            })?
        }
    };
    start(established, options)
}

fn establish<F: Filesystem>(
    fs: &Arc<F>,
    mountpoint: &Path,
    options: &MountOptions,
) -> Result<Established<F>, Setback> {
    let (mount, device) = Mount::make(mountpoint, options)?;
    let undo = Undo(Some(mount.clone()), true);
    let device = Arc::new(device);
    let mut buffer = vec![0; INIT_BUFFER_LEN];
    let (unique, argument) = read_init(&device, &mut buffer)?;
    let page = page_size();
    let mut terms = Terms::negotiate(argument, options, page as u32, pages_limit())?;
    let payload_len =
        (terms.max_write as usize).max(usize::from(terms.max_pages) * page).max(PAYLOAD_LEN_MIN);
    let service = service(fs, &terms, options);
    let workers = Arc::new(OnceLock::new());
    let mailboxes = Arc::new(Mailboxes::default());
    let leave = on_leave(fs, &workers);
    let on_end = on_end(&leave, &mailboxes, mount);
    let mut crew = None;
    if terms.features.contains(Features::OVER_IO_URING) {
        let slot = Arc::clone(&workers);
        let join = Arc::new(move || slot.get().is_some_and(|workers| workers.join()));
        let rollcall = Rollcall { join, leave, on_end: Arc::clone(&on_end), mailboxes };
        match assemble_crew(&service, &device, options, payload_len, &rollcall) {
            Ok(assembled) => crew = Some(assembled),
            Err(error) => {
                tracing::warn!(%error, "FUSE over io_uring cannot be used here; using /dev/fuse");
                terms.features = terms.features.without(Features::OVER_IO_URING);
            }
        }
    }
    let reply = terms.reply(options);
    let header = fixed::header(unique, Ok(()), size_of_val(&reply));
    device
        .write_parts([header.as_bytes(), reply.as_bytes()])
        .map_err(|errno| MountError::Start(errno.into()))?;
    if let Some((crew, _)) = &crew {
        // ORDER: after the reply to INIT; the kernel refuses entries before it.
        crew.register().map_err(Setback::Ring)?;
    }
    Ok(Established { undo, device, terms, service, crew, payload_len, workers, on_end })
}

/// Reads the kernel's first message; its id and argument.
fn read_init<'a>(device: &Device, buffer: &'a mut [u8]) -> Result<(u64, &'a [u8]), MountError> {
    let mut poll = libc::pollfd { fd: device.raw(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `poll` is one pollfd.
    let ready = unsafe { libc::poll(&mut poll, 1, INIT_TIMEOUT.as_millis() as libc::c_int) };
    if ready < 1 {
        return Err(MountError::NoInit(INIT_TIMEOUT.as_secs()));
    }
    let len = device.read(buffer).map_err(|errno| MountError::Start(errno.into()))?;
    let not_init = |_| NegotiationError::NotInit;
    let message = Message::new(buffer.get(..len).unwrap_or_default()).map_err(not_init)?;
    if Opcode::from_raw(message.header.opcode) != Some(Opcode::Init) {
        return Err(NegotiationError::NotInit.into());
    }
    let argument = buffer.get(size_of::<wire::InHeader>()..len).unwrap_or_default();
    Ok((message.header.unique, argument))
}

/// What the kernel clamps `max_pages` to; 256 where it cannot be set (before Linux 6.13).
fn pages_limit() -> u32 {
    const LIMIT_CLASSIC: u32 = 256;
    let text = std::fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(LIMIT_CLASSIC)
}

fn assemble_crew<F: Filesystem>(
    service: &Arc<Service<F>>,
    device: &Arc<Device>,
    options: &MountOptions,
    payload_len: usize,
    rollcall: &Rollcall,
) -> io::Result<(Crew, Transport)> {
    let depth = (usize::from(options.ring_depth), options.threads_per_ring.get());
    let (online, allowed) = (cpu::online()?, cpu::allowed());
    // The kernel gives requests that it holds back in a processor's queue out again only if something is asked on that processor: who may not run there
    // cannot see to it that unlocking gets through.
    if let Some(barred) = online.iter().find(|cpu| !allowed.contains(cpu)) {
        let why = format!("this process may not run on processor {barred} (taskset, cpuset or CPUAffinity=)");
        return Err(io::Error::other(why));
    }
    let plan = CrewPlan::new(cpu::possible_count()?, &online, &allowed, depth, payload_len);
    let crew = Crew::assemble(&plan, service, device, rollcall)?;
    Ok((crew, Transport::Ring { queues: plan.queues, depth: plan.depth }))
}

/// Counts a worker as gone, and ends the file system with the last one.
fn on_leave<F: Filesystem>(
    fs: &Arc<F>,
    workers: &Arc<OnceLock<Arc<Workers>>>,
) -> Arc<dyn Fn() + Send + Sync> {
    let (fs, workers) = (Arc::clone(fs), Arc::clone(workers));
    Arc::new(move || {
        if let Some(workers) = workers.get() {
            workers.leave(|| {
                if catch_unwind(AssertUnwindSafe(|| fs.destroy())).is_err() {
                    tracing::error!("Filesystem::destroy panicked");
                }
            });
        }
    })
}

/// Logs how a worker ended that has served, and makes the kernel give the mount up if it was by a failure (nobody would serve it any more). Otherwise the
/// mount has ended, and those who would not notice are told.
fn on_end(leave: &Arc<dyn Fn() + Send + Sync>, mailboxes: &Arc<Mailboxes>, mount: Mount) -> OnEnd {
    let (leave, mailboxes) = (Arc::clone(leave), Arc::clone(mailboxes));
    Arc::new(move |result| {
        if let Err(error) = result {
            tracing::error!(%error, mount = %mount.path.display(), "a FUSE worker failed; giving the mount up");
            if let Err(error) = mount.abort() {
                tracing::error!(%error, "cannot abort the FUSE connection");
            }
        }
        mailboxes.close();
        leave();
    })
}

/// A mount that was established by another process, without rings.
pub(super) fn serve<F: Filesystem>(
    fs: Arc<F>,
    undo: Undo,
    device: Arc<Device>,
    terms: Terms,
    options: &MountOptions,
) -> Established<F> {
    let page = page_size();
    let payload_len =
        (terms.max_write as usize).max(usize::from(terms.max_pages) * page).max(PAYLOAD_LEN_MIN);
    let service = service(&fs, &terms, options);
    let workers = Arc::new(OnceLock::new());
    let mailboxes = Arc::new(Mailboxes::default());
    let leave = on_leave(&fs, &workers);
    let mount = undo.0.clone();
    let on_end: OnEnd = match mount {
        Some(mount) => on_end(&leave, &mailboxes, mount),
        None => Arc::new(move |_| leave()),
    };
    Established { undo, device, terms, service, crew: None, payload_len, workers, on_end }
}

fn service<F: Filesystem>(fs: &Arc<F>, terms: &Terms, options: &MountOptions) -> Arc<Service<F>> {
    Arc::new(Service {
        fs: Arc::clone(fs),
        dialect: Dialect {
            minor: terms.kernel_minor,
            setxattr_ext: terms.features.contains(Features::SETXATTR_EXT),
        },
        deferred: Arc::new(Deferred::new(options.deferred_max, usize::from(options.max_background / 2))),
    })
}

pub(super) fn start<F: Filesystem>(
    established: Established<F>,
    options: &MountOptions,
) -> Result<Session, MountError> {
    start_after(established, options, |_| {})
}

/// As [`start`], once `first` is done.
pub(super) fn start_after<F: Filesystem>(
    established: Established<F>,
    options: &MountOptions,
    first: impl FnOnce(&Notifier),
) -> Result<Session, MountError> {
    let Established { mut undo, device, terms, service, crew, payload_len, workers: slot, on_end } =
        established;
    let devices = if crew.is_some() { vec![Arc::clone(&device)] } else { devices(&device, options) };
    let is_cloned = devices.iter().any(|other| !Arc::ptr_eq(other, &device));
    let ring = crew.as_ref().map(|(_, transport)| *transport);
    let negotiated = Negotiated {
        kernel_minor: terms.kernel_minor,
        offered: terms.offered,
        features: terms.features,
        max_write: terms.max_write,
        max_pages: terms.max_pages,
        max_readahead: terms.max_readahead,
        transport: ring.unwrap_or(Transport::Device { threads: devices.len(), is_cloned }),
    };
    let notifier = Notifier::new(&device, &negotiated);
    // ORDER: init before any worker serves; requests wait in the kernel meanwhile.
    let init = catch_unwind(AssertUnwindSafe(|| service.fs.init(&negotiated, &notifier)));
    init.unwrap_or(Err(Errno::EIO)).map_err(MountError::Filesystem)?;
    first(&notifier);
    let deferred = Arc::clone(&service.deferred);
    let resting = Arc::downgrade(&service);
    let is_at_rest = Box::new(move || resting.upgrade().is_none_or(|service| service.fs.is_at_rest()));
    let forget_delay = ring.map(|_| options.forget_delay);
    let standby = Arc::new(Standby::default());
    let further = Further {
        service: Arc::clone(&service),
        // With rings there is next to nothing to read from the device.
        devices: if ring.is_some() { Vec::new() } else { devices.iter().map(Arc::downgrade).collect() },
        payload_len,
        on_end: Arc::clone(&on_end),
        standby: Arc::clone(&standby),
    };
    let device_workers = devices
        .into_iter()
        .map(|device| {
            DeviceWorker::new(Arc::clone(&service), device, payload_len, forget_delay, standby.seat(false))
        })
        .collect::<io::Result<Vec<_>>>()
        .map_err(MountError::Start)?;
    let count = device_workers.len() + crew.as_ref().map_or(0, |(crew, _)| crew.thread_count());
    let workers = Arc::new(Workers::new(count));
    // The slot is new and set only here.
    let _ = slot.set(Arc::clone(&workers));
    let mut threads = Vec::with_capacity(count);
    for (index, worker) in device_workers.into_iter().enumerate() {
        threads.push(spawn(format!("fuse-dev-{index}"), worker, &on_end).map_err(MountError::Start)?);
    }
    if let Some((crew, _)) = crew {
        threads.extend(crew.serve().map_err(MountError::Start)?);
    }
    threads.push(further.look_after(&workers).map_err(MountError::Start)?);
    let mount = undo.0.take().ok_or_else(|| MountError::Start(io::Error::other("no mount")))?;
    raise_readahead(&mount, &negotiated);
    tracing::info!(mount = %mount.path.display(), transport = %negotiated.transport, features = ?negotiated.features, "mounted");
    Ok(Session {
        mount,
        negotiated,
        notifier,
        device: Some(device),
        workers,
        deferred,
        is_at_rest,
        threads,
        is_unmounted: false,
    })
}

/// A device for each thread: clones, or the same one.
fn devices(device: &Arc<Device>, options: &MountOptions) -> Vec<Arc<Device>> {
    let count = options.threads.map_or_else(|| cpu::allowed().len(), std::num::NonZeroUsize::get);
    let mut devices = vec![Arc::clone(device)];
    let wants_clones = options.clone_device.unwrap_or(count > 2);
    while devices.len() < count {
        let another = if wants_clones { device.clone_device().map(Arc::new) } else { Ok(Arc::clone(device)) };
        devices.push(another.unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot clone the FUSE device; threads share one");
            Arc::clone(device)
        }));
    }
    devices
}

/// Has a worker serve.
///
/// # Errors
/// When no thread can be started.
pub(super) fn spawn<F: Filesystem>(
    name: String,
    worker: DeviceWorker<F>,
    on_end: &OnEnd,
) -> io::Result<JoinHandle<()>> {
    let on_end = Arc::clone(on_end);
    let body = move || {
        let result = catch_unwind(AssertUnwindSafe(|| worker.run()));
        on_end(
            result.map_or_else(|_| Err(io::Error::other("panic")), |result| result.map_err(io::Error::from)),
        );
    };
    std::thread::Builder::new().name(name).spawn(body)
}

/// The kernel starts a mount with 128 KiB of read-ahead and INIT can only lower it; root may raise it for this mount.
fn raise_readahead(mount: &Mount, negotiated: &Negotiated) {
    const READAHEAD_CLASSIC: u32 = 128 << 10;
    if negotiated.max_readahead <= READAHEAD_CLASSIC {
        return;
    }
    let path = format!("/sys/class/bdi/{}:{}/read_ahead_kb", mount.id.major, mount.id.minor);
    if let Err(error) = std::fs::write(path, (negotiated.max_readahead >> 10).to_string()) {
        tracing::debug!(%error, "read-ahead of the mount stays at the kernel's default");
    }
}
