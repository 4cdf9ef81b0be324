//! Mounting a client on a directory.

use super::mount_facts::MountFacts;
use super::mount_root::MountRoot;
use super::mount_turn::MountTurn;
use crate::cli::FuseTransport;
use crate::guard::Guard;
use crate::keeper::table::Table;
use crate::keeper::{self, Keeper};
use anyhow::{Context, Result, bail};
use ashlar_client::{Adopted, Client, ClientConfig, Handle, Remains, WAIT_MIN};
use ashlar_env::Env;
use ashlar_fuse::adaptor::{Adaptor, AdaptorOptions, ProcCredentials};
use ashlar_fuse::{
    Features, KernelMask, MountOptions, RequestCounts, Session, TransportChoice, UnmountOutcome,
    connection_at,
};
use ashlar_rpc::{MetaCalls, StorageCalls};
use ashlar_types::{ClusterMap, DescriptionId, Errno, NodeId};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// How far the kernel reads ahead, bytes, where content comes over a network: as many requests of 1 MiB are under way then. With one the next chunk would be
/// asked for when the last one is here.
const READAHEAD_FAR: u32 = 4 << 20;

/// LIMIT: longest wait for the requests under way when a mount ends.
const END_MAX: Duration = Duration::from_secs(20);
/// For how much longer than a server is waited for others are waited for who wait for it: they have begun earlier.
const WAIT_MORE: Duration = Duration::from_secs(5);
/// For how long each of them is waited for when another process is to go on with a mount: recalls that are being answered, requests under way, and reports. Servers wait for answers to recalls for no longer
/// than five seconds.
const REST_MAX: Duration = Duration::from_secs(1);
/// For how long all reports together are waited for.
const LAST_MAX: Duration = Duration::from_secs(2);
/// For how long the keeper and the guard of the program before are waited for.
const REAP_MAX: Duration = Duration::from_millis(200);
/// LIMIT: longest wait for the kernel's end of a mount that nobody here uses. In another mount name space it may live on.
const QUIET_END_MAX: Duration = Duration::from_secs(1);
/// LIMIT: longest wait for the kernel to write back what programs have stored into mappings, before they are cut off.
const WRITE_BACK_MAX: Duration = Duration::from_secs(20);

/// Threads that answer the kernel on a mount that shares its file system with others.
// LIMIT: so many requests of one mount may wait for leases of other sessions at once.
const SHARED_THREADS: NonZeroUsize = NonZeroUsize::new(32).expect("not zero");
/// The same per io_uring queue (one queue per processor).
const SHARED_RING_THREADS: NonZeroUsize = NonZeroUsize::new(32).expect("not zero");

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountConfig {
    /// The source shown in the mount table.
    pub source: String,
    /// Let other users in.
    pub allow_other: bool,
    /// Refuse changes.
    pub read_only: bool,
    /// Let set-id programs take effect.
    pub allow_set_id: bool,
    /// Let device nodes be opened.
    pub allow_devices: bool,
    /// How requests come from the kernel.
    pub transport: FuseTransport,
    /// What of the kernel to do without.
    pub mask: KernelMask,
    /// Whether this is the only session there will be.
    pub is_sole_session: bool,
    /// After how long without a server a call fails, where servers are others than this process.
    pub error_after: Option<Duration>,
    /// The directory that is shown, where one was named.
    pub subdirectory: Option<String>,
    /// For how long the mount is kept for the next process should this one end without unmounting; nothing: it is given up at once.
    pub keep: Option<Duration>,
    /// Where requests of the kernel are counted.
    pub requests: Arc<RequestCounts>,
}

/// A mount and the client behind it.
pub struct Mounted {
    /// Where.
    pub mountpoint: PathBuf,
    client: Arc<Client>,
    session: Session,
    guard: Arc<Guard>,
    turn: Option<MountTurn>,
    /// What is open, where the mount is kept.
    table: Option<Arc<Table>>,
    /// Goes last: until then the mount is kept.
    keeper: Option<Keeper>,
}

/// What another process has left of a mount and its session.
#[derive(Debug)]
pub struct Inherited {
    /// What the client needs.
    pub remains: Remains,
    /// What is open, by the numbers of the kernel.
    pub descriptions: BTreeMap<u64, DescriptionId>,
}

/// The services of a file system, wherever they are.
pub struct Site {
    /// Metadata.
    pub meta: Arc<dyn MetaCalls>,
    /// Targets.
    pub storage: Arc<dyn StorageCalls>,
    /// The map, kept current.
    pub map: Arc<RwLock<Arc<ClusterMap>>>,
    /// Clocks and threads.
    pub env: Env,
    /// Whether content crosses a network.
    pub checks_payload: bool,
    /// The machine, by the number that it has in the map.
    pub node: NodeId,
    /// What of it is shown; nothing: all.
    pub root: Option<Arc<MountRoot>>,
    /// What another process has left.
    pub inherited: Option<Inherited>,
}

/// Opens a session with the services and mounts it.
///
/// # Errors
/// When the mount point cannot be used; the text says why and what to do.
pub fn mount(site: Site, mountpoint: &Path, config: &MountConfig, guard: &Arc<Guard>) -> Result<Mounted> {
    let facts = Arc::new(MountFacts::new(&site, config));
    let inherited = site.inherited;
    let client_config = ClientConfig {
        meta: site.meta,
        storage: site.storage,
        map: site.map,
        env: site.env,
        credentials: Arc::new(ProcCredentials),
        checks_payload: site.checks_payload,
        // Over a network a mount may be cut off; inside a process it ends with the services.
        comes_back: site.checks_payload,
        wait_max: config.error_after.unwrap_or_default().max(WAIT_MIN) + WAIT_MORE,
    };
    let no_session = "cannot open a session with the metadata service";
    let refused = |errno: Errno| {
        match errno {
        Errno::EOPNOTSUPP => anyhow::Error::new(errno).context("a metadata server is of an earlier version that knows of no mounts with --durability sync: upgrade it, or mount without"),
        _ => anyhow::Error::new(errno),
    }
    };
    let remains = inherited.as_ref().map(|inherited| &inherited.remains);
    let client = Client::connect_after(client_config, remains).map_err(refused).context(no_session)?;
    let inherited = inherited.filter(|inherited| inherited.remains.session == client.session());
    if inherited.is_none() {
        client.begin_answering().context(no_session)?;
    }
    // A session that goes on is for whoever comes next if this process cannot.
    let end_session = |client: &Client| {
        if inherited.is_none() {
            end_session(client)
        }
    };
    let root = site.root;
    if inherited.is_none()
        && let Some(Err(error)) = root.as_ref().map(|root| root.find(&client))
    {
        end_session(&client);
        return Err(error);
    }
    let options = mount_options(config, client.is_close_to_open());
    let made = match config.keep {
        Some(keep) => {
            let adaptor = adaptor(&client, config, root, &facts);
            kept_or_new(&client, mountpoint, adaptor, (&options, keep), inherited.as_ref())
        }
        None => {
            let adaptor = adaptor(&client, config, root, &facts);
            let turn = MountTurn::wait(mountpoint);
            let session = Session::mount(adaptor, mountpoint, &options);
            session.map(|session| (session, Some(turn), None, None)).map_err(Into::into)
        }
    };
    let (session, turn, table, keeper) = match made {
        Ok(made) => made,
        Err(error) => {
            end_session(&client);
            return Err(error).context(format!("cannot mount on {}", mountpoint.display()));
        }
    };
    facts.set_transport(session.transport_in_use());
    if let Some(hint) = session.transport_hint() {
        tracing::info!("{hint}");
    }
    if keeper.is_none() {
        guard.note_mounted(session.connection());
    }
    Ok(Mounted {
        mountpoint: mountpoint.to_owned(),
        client,
        session,
        guard: guard.clone(),
        turn,
        table,
        keeper,
    })
}

/// What the kernel is told of the mount.
fn mount_options(config: &MountConfig, is_close_to_open: bool) -> MountOptions {
    let defaults = MountOptions::default();
    MountOptions {
        source: config.source.clone(),
        // Permissions are checked by the kernel as well, which knows all of a caller's groups and capabilities.
        default_permissions: true,
        allow_other: config.allow_other,
        read_only: config.read_only,
        max_readahead: if config.error_after.is_some() { READAHEAD_FAR } else { defaults.max_readahead },
        allow_set_id: config.allow_set_id,
        allow_devices: config.allow_devices,
        features: features(is_close_to_open),
        mask: config.mask,
        transport: match config.transport {
            // What comes through rings, or through several devices, ends with the process that has them.
            FuseTransport::Auto if config.keep.is_none() => TransportChoice::Auto,
            FuseTransport::Auto | FuseTransport::Device => TransportChoice::Device,
        },
        clone_device: config.keep.map(|_| false),
        // With other sessions a request may wait for a recall, and the kernel may need further requests answered before that
        // recall is: threads that wait must not be the only ones. Alone, more threads than processors only cost.
        threads: (!config.is_sole_session).then_some(SHARED_THREADS),
        ring_depth: if config.is_sole_session {
            defaults.ring_depth
        } else {
            SHARED_RING_THREADS.get() as u16
        },
        threads_per_ring: if config.is_sole_session { NonZeroUsize::MIN } else { SHARED_RING_THREADS },
        ..defaults
    }
}

fn end_session(client: &Client) {
    if let Err(errno) = client.disconnect() {
        tracing::warn!(%errno, "could not end the session of a mount that failed");
    }
}

fn adaptor(
    client: &Arc<Client>,
    config: &MountConfig,
    root: Option<Arc<MountRoot>>,
    facts: &Arc<MountFacts>,
) -> Adaptor {
    let adaptor = Adaptor::new(client.clone(), AdaptorOptions { is_sole_session: config.is_sole_session });
    let adaptor = adaptor.counted_by(config.requests.clone());
    let facts = facts.clone();
    let adaptor = adaptor.described_by(Arc::new(move |client, uid| facts.text(client, uid)));
    match root {
        Some(root) => adaptor.rooted_at(Arc::new(move || root.now())),
        None => adaptor,
    }
}

type Made = (Session, Option<MountTurn>, Option<Arc<Table>>, Option<Keeper>);

/// Goes on with the mount that another process has left at `mountpoint`, or makes one whose open files are noted.
fn kept_or_new(
    client: &Arc<Client>,
    mountpoint: &Path,
    adaptor: Adaptor,
    (options, keep): (&MountOptions, Duration),
    inherited: Option<&Inherited>,
) -> Result<Made> {
    let left = match connection_at(mountpoint, "fuse.ashlar").context("cannot read the mount table")? {
        Some(connection) => keeper::ask(connection)?,
        None => None,
    };
    let Some(left) = left else {
        if inherited.is_some() {
            bail!("the mount with whose session this process was to go on is not there any more");
        }
        let table = Arc::new(Table::new()?);
        let turn = MountTurn::wait(mountpoint);
        let session = Session::mount(adaptor.with_log(table.clone(), Vec::new()), mountpoint, options)?;
        let keeper = have_kept(&session, &table, keep)?;
        return Ok((session, Some(turn), Some(table), keeper));
    };
    let open = left.table.all();
    let handles = match inherited {
        Some(inherited) => {
            tracing::info!(files = open.len(), mount = %mountpoint.display(), "going on with a mount and its session");
            take_up(client, &open, inherited)?
        }
        None => {
            tracing::warn!(files = open.len(), mount = %mountpoint.display(), "going on with a mount whose process has ended");
            let descriptions: Vec<_> = open.iter().map(|(_, adopted)| *adopted).collect();
            client.adopt(&descriptions).context("cannot open again what programs have open")?
        }
    };
    let (kept, table, taken) = left.divide();
    let table = Arc::new(table);
    let adopted: Vec<_> = open.iter().map(|(fh, _)| *fh).zip(handles).collect();
    adopted.iter().for_each(|(fh, handle)| table.note_description(*fh, handle.description()));
    let path = std::path::absolute(mountpoint)?;
    let session = Session::resume(adaptor.with_log(table.clone(), adopted), &path, kept, options)?;
    if let Err(error) = begin_serving(client, inherited) {
        // Whoever kept it does so still, if it is not unmounted.
        std::mem::forget(session);
        return Err(error);
    }
    let keeper = have_kept(&session, &table, keep).unwrap_or_else(|error| {
        tracing::error!("nobody keeps this mount from now on: {error:#}");
        None
    });
    // ORDER: after somebody else keeps it.
    if let Err(error) = taken.say() {
        tracing::warn!("{error:#}");
    }
    if inherited.is_some() {
        reap_children_of_before();
    }
    Ok((session, None, Some(table), keeper))
}

/// Answers servers, and has the kernel forget what was from another process.
fn begin_serving(client: &Arc<Client>, inherited: Option<&Inherited>) -> Result<()> {
    let forgetting = client.clone();
    if let Some(inherited) = inherited {
        client.forget_split(&inherited.remains);
        client.begin_answering().context("cannot answer metadata servers")?;
    }
    // Not waited for: it may wait for pages of requests that are served only now.
    std::thread::Builder::new().name("ashlar-forget".into()).spawn(move || forgetting.forget_in_kernel())?;
    Ok(())
}

/// What is open, in the session that goes on.
fn take_up(client: &Client, open: &[(u64, Adopted)], inherited: &Inherited) -> Result<Vec<Arc<Handle>>> {
    let numbered = open.iter().map(|(fh, adopted)| {
        let number = inherited.descriptions.get(fh).copied();
        Ok((number.context("a file is open of which the process before has not told")?, *adopted))
    });
    let numbered: Vec<(DescriptionId, Adopted)> = numbered.collect::<Result<_>>()?;
    client.take_up(&numbered, &inherited.remains).context("cannot go on with what programs have open")
}

/// Keeper and guard of the program that this one has taken the place of are its children, and end now.
fn reap_children_of_before() {
    let (give_up, mut left) = (Instant::now() + REAP_MAX, 2);
    while left > 0 && Instant::now() < give_up {
        match rustix::process::wait(rustix::process::WaitOptions::NOHANG) {
            Ok(Some(_)) => left -= 1,
            Err(rustix::io::Errno::INTR) => {}
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            Err(_) => return,
        }
    }
}

/// Has a process keep the mount, where the kernel can go on with another one.
fn have_kept(session: &Session, table: &Table, keep: Duration) -> Result<Option<Keeper>> {
    let Some(kept) = session.keep().context("cannot duplicate the device")? else {
        tracing::warn!(
            "this kernel cannot give requests out once more (Linux 6.9 can): the mount is given up if its process ends"
        );
        return Ok(None);
    };
    table.set_terms(&kept.terms);
    Keeper::start(session.connection(), &kept.device, table, keep).map(Some)
}

/// What is asked of the kernel. Where nobody says when content has changed, the kernel finds out by the time of change.
fn features(is_close_to_open: bool) -> Features {
    let features = MountOptions::FEATURES_DEFAULT | Features::POSIX_ACL;
    if is_close_to_open { features | Features::AUTO_INVAL_DATA } else { features }
}

impl Mounted {
    /// Serves nobody any more, so that another process can go on with mount and session, for which this tells what it has to know. Events of servers, which are
    /// to be heard no more first (`set_deaf`), come once more then. If something is under way that does not end within moments, everything goes on as before.
    ///
    /// # Errors
    /// Why it goes on.
    pub fn leave(&mut self, set_deaf: &dyn Fn(bool)) -> Result<(Remains, Vec<(u64, DescriptionId)>)> {
        let (Some(table), Some(keeper)) = (&self.table, &mut self.keeper) else {
            bail!("this mount is not kept (--keep), so no other process can go on with it");
        };
        if !keeper.is_there() {
            bail!("the process that keeps the mount has ended, or its socket is gone");
        }
        // Most of it, while programs are served.
        self.client.sync_what_is_there().context("cannot tell servers what was written")?;
        set_deaf(true);
        let left = (|| {
            self.client.await_answers(REST_MAX).context("servers are being answered")?;
            if !self.session.hold(REST_MAX).context("cannot hold requests back")? {
                bail!("requests of programs are under way that take long");
            }
            self.tell_last()
        })();
        match left {
            Ok(remains) => Ok((remains, table.descriptions())),
            Err(error) => {
                self.stay(set_deaf);
                Err(error)
            }
        }
    }

    /// Tells servers what is only known here. Not waited for any longer than this takes as a rule: programs wait, and nothing is answered that servers ask.
    fn tell_last(&self) -> Result<Remains> {
        let (client, (done, is_done)) = (self.client.clone(), channel());
        let tell = move || {
            // Nobody listens after the bound.
            let _ = done.send(client.leave(REST_MAX));
        };
        std::thread::Builder::new().name("ashlar-leave".into()).spawn(tell)?;
        let told = is_done.recv_timeout(LAST_MAX).context("servers do not answer in time")?;
        told.context("cannot tell servers what was written last")
    }

    /// Serves again after [`Mounted::leave`].
    pub fn stay(&self, set_deaf: &dyn Fn(bool)) {
        self.session.release();
        set_deaf(false);
    }

    /// Unmounts, waits for requests under way, reports and makes durable what the client holds. Programs that use the mount are named
    /// and cut off: they may keep it in use for days, and what they were told is kept without them.
    ///
    /// # Errors
    /// The first failure; the rest is done all the same.
    pub fn end(mut self) -> Result<()> {
        let (mut unmounted, mut is_served) = (Ok(()), false);
        if !self.has_ended(Duration::ZERO) {
            // It is there, so nobody else's is, and this process is not to be found among those that use it.
            self.turn = None;
        }
        let outcome = self.session.unmount();
        // Whoever mounts there next can no longer be meant by that.
        self.turn = None;
        match outcome {
            Ok(UnmountOutcome::Lazy { message }) => {
                eprintln!(
                    "ashlar: {message}; the mount is taken away from them: what they have written is kept, what they do there from now \
                     on fails with ENOTCONN"
                );
                is_served = !self.cut_off();
            }
            Ok(UnmountOutcome::Clean | UnmountOutcome::AlreadyGone) => {
                if self.session.join(QUIET_END_MAX).is_err() {
                    eprintln!(
                        "ashlar: {} is still in use although it is unmounted, most likely in another mount name space (a container): \
                         it is taken away there, too",
                        self.mountpoint.display()
                    );
                    is_served = !self.cut_off();
                }
            }
            Err(error) => {
                unmounted = Err(error).context("cannot unmount; `ashlar umount` removes what is left");
                is_served = !self.cut_off();
            }
        }
        let joined = match is_served {
            // Without /sys/fs/fuse/connections it serves until this process ends; what is asked after the next step is refused, which waits
            // for the reads and writes under way.
            true => Ok(()),
            false => self.session.join(END_MAX).context(
                "requests under way did not end, most likely because a disk does not answer; the next start puts right what they left",
            ),
        };
        if joined.is_ok() && !is_served {
            self.guard.note_ended(self.session.connection());
        }
        let disconnected = self.client.disconnect().context("could not make everything durable");
        unmounted.and(joined).and(disconnected).with_context(|| self.mountpoint.display().to_string())
    }

    /// Has the kernel write back what it keeps of the mount, and then give it up, so that requests from now on fail; tells whether it has.
    fn cut_off(&self) -> bool {
        let (client, (done, is_done)) = (self.client.clone(), channel());
        let take_back = move || {
            client.take_back_pages();
            // Nobody listens after the bound.
            let _ = done.send(());
        };
        match std::thread::Builder::new().name("ashlar-write-back".into()).spawn(take_back) {
            Ok(_) if is_done.recv_timeout(WRITE_BACK_MAX).is_ok() => {}
            Ok(_) => {
                tracing::error!("not everything that programs stored into mappings could be written back")
            }
            Err(error) => {
                tracing::error!(%error, "no thread for what programs stored into mappings; it may be lost")
            }
        }
        let aborted = self.session.abort();
        if let Err(error) = &aborted {
            tracing::info!(%error, "the kernel cannot be told to give the mount up; it does when this process ends");
        }
        aborted.is_ok()
    }

    /// Waits until the mount has been taken away from outside (`umount`), at most `bound`; tells whether it has.
    pub fn has_ended(&mut self, bound: Duration) -> bool {
        self.session.join(bound).is_ok()
    }
}
