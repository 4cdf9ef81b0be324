//! The ceiling of any FUSE file system on this machine: an in-memory server with null data behind this crate.
//!
//! Other benchmarks mount it beside Ashlar with the same settings and compare. It runs until it is unmounted.
//!
//! ```text
//! ceiling --mnt DIR [--transport auto|device] [--threads N] [--clone] [--depth N] [--ring-threads N] [--forget-delay MS]
//!         [--entry-lifetime S] [--attr-lifetime S] [--no-flush] [--no-open] [--no-opendir] [--no-create]
//!         [--direct] [--keep-cache] [--parallel-direct-writes] [--no-readdirplus] [--readdirplus-auto]
//!         [--private] [--default-permissions] [--max-write BYTES] [--readahead BYTES] [--background N]
//! ```

#[path = "null_fs.rs"]
mod null_fs;

use ashlar_fuse::{Features, MountOptions, OpenReplyFlags, Session, TransportChoice};
use null_fs::{Behaviour, NullFs};
use std::error::Error;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::time::Duration;

/// `--name value` and `--flag` arguments; each is taken out when asked for, so that what is left is unknown.
struct Arguments(Vec<String>);

impl Arguments {
    fn flag(&mut self, name: &str) -> bool {
        let index = self.0.iter().position(|argument| argument == name);
        index.map(|index| self.0.remove(index)).is_some()
    }

    fn value<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, String> {
        let Some(index) = self.0.iter().position(|argument| argument == name) else { return Ok(None) };
        if index + 1 >= self.0.len() {
            return Err(format!("{name} needs a value"));
        }
        let value = self.0.remove(index + 1);
        self.0.remove(index);
        value.parse().map(Some).map_err(|_| format!("{name}: cannot read {value:?}"))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let mut arguments = Arguments(std::env::args().skip(1).collect());
    let mountpoint: String = arguments.value("--mnt")?.ok_or("--mnt DIR is needed")?;
    let mut options = options(&mut arguments)?;
    let behaviour = behaviour(&mut arguments)?;
    options.features |= Features::when(Features::NO_OPEN_SUPPORT, behaviour.no_open);
    options.features |= Features::when(Features::NO_OPENDIR_SUPPORT, behaviour.no_opendir);
    if let Some(unknown) = arguments.0.first() {
        return Err(format!("unknown argument {unknown}").into());
    }
    let session = Session::mount(NullFs::new(behaviour), &mountpoint, &options)?;
    eprintln!("mounted {} ({})", session.mountpoint().display(), session.transport_in_use());
    if let Some(hint) = session.transport_hint() {
        eprintln!("{hint}");
    }
    session.run();
    Ok(())
}

fn behaviour(arguments: &mut Arguments) -> Result<Behaviour, String> {
    let lifetime = |seconds: Option<f64>| {
        Duration::try_from_secs_f64(seconds.unwrap_or(0.0)).map_err(|error| format!("lifetime: {error}"))
    };
    let mut behaviour = Behaviour {
        entry_lifetime: lifetime(arguments.value("--entry-lifetime")?)?,
        attr_lifetime: lifetime(arguments.value("--attr-lifetime")?)?,
        no_flush: arguments.flag("--no-flush"),
        no_open: arguments.flag("--no-open"),
        no_opendir: arguments.flag("--no-opendir"),
        no_create: arguments.flag("--no-create"),
        open_flags: OpenReplyFlags::EMPTY,
    };
    let flags = &mut behaviour.open_flags;
    *flags |= OpenReplyFlags::when(OpenReplyFlags::NOFLUSH, behaviour.no_flush);
    *flags |= OpenReplyFlags::when(OpenReplyFlags::DIRECT_IO, arguments.flag("--direct"));
    *flags |= OpenReplyFlags::when(OpenReplyFlags::KEEP_CACHE, arguments.flag("--keep-cache"));
    let parallel = arguments.flag("--parallel-direct-writes");
    *flags |= OpenReplyFlags::when(OpenReplyFlags::PARALLEL_DIRECT_WRITES, parallel);
    Ok(behaviour)
}

fn options(arguments: &mut Arguments) -> Result<MountOptions, String> {
    let default = MountOptions::default();
    let mut features = Features::ASYNC_READ
        | Features::BIG_WRITES
        | Features::MAX_PAGES
        | Features::PARALLEL_DIROPS
        | Features::ASYNC_DIO
        | Features::ABORT_ERROR;
    features |= Features::when(Features::DO_READDIRPLUS, !arguments.flag("--no-readdirplus"));
    features |= Features::when(Features::READDIRPLUS_AUTO, arguments.flag("--readdirplus-auto"));
    let transport = match arguments.value::<String>("--transport")?.as_deref() {
        None | Some("auto") => TransportChoice::Auto,
        Some("device") => TransportChoice::Device,
        Some(other) => return Err(format!("unknown transport {other}")),
    };
    let background = arguments.value("--background")?.unwrap_or(default.max_background);
    Ok(MountOptions {
        source: "ceiling".into(),
        subtype: "ceiling".into(),
        allow_other: !arguments.flag("--private"),
        default_permissions: arguments.flag("--default-permissions"),
        features,
        transport,
        threads: arguments.value("--threads")?.and_then(NonZeroUsize::new),
        clone_device: arguments.flag("--clone").then_some(true),
        ring_depth: arguments.value("--depth")?.unwrap_or(default.ring_depth),
        threads_per_ring: arguments.value("--ring-threads")?.unwrap_or(default.threads_per_ring),
        forget_delay: arguments.value("--forget-delay")?.map_or(default.forget_delay, Duration::from_millis),
        max_write: arguments.value("--max-write")?.unwrap_or(default.max_write),
        max_readahead: arguments.value("--readahead")?.unwrap_or(128 << 10),
        max_background: background,
        congestion_threshold: background / 4 * 3,
        ..default
    })
}
