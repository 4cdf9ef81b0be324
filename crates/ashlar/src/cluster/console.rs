//! `ashlar console`: shows the file system to its administrators on a web page.

use super::announce;
use super::member::{Member, stop_flag, until_told_to_stop};
use super::node_directory::NodeDirectory;
use crate::admin::{is_trusted, peer_uid};
use crate::cli::ConsoleArgs;
use crate::metrics::Metrics;
use crate::node::open_files;
use crate::terminal::say;
use anyhow::{Context, Result, bail};
use ashlar_console::web::{Gate, TlsConfig, TlsSource, Web};
use ashlar_console::{Cluster, Watch};
use ashlar_env::Tasks;
use ashlar_rpc::net::{TlsIdentity, for_browsers};
use ashlar_types::Role;
use parking_lot::{Mutex, RwLock};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For how long a certificate of a file is used before it is read again: somebody else renews it.
const READ_AGAIN: Duration = Duration::from_secs(60);
/// LIMIT: for how long one who wants to log in, or the console, is waited for.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// LIMIT: of the answer, bytes.
const ANSWER_BYTES_MAX: u64 = 4096;
/// Time to rest when nobody can be heard on the socket.
const PAUSE: Duration = Duration::from_millis(200);

pub fn run(args: &ConsoleArgs) -> Result<()> {
    let is_told = stop_flag()?;
    open_files::allow_as_many_as_permitted();
    let directory = NodeDirectory::new(&args.node.node);
    let member = Member::start(directory.clone(), Role::Console)?;
    let tls = tls_source(args, &member)?;
    // Before anybody connects: a file that cannot be used is told of now.
    tls().map_err(|error| anyhow::anyhow!(error)).context("cannot serve browsers")?;
    let listeners: Vec<TcpListener> = args.listen.iter().map(listen).collect::<Result<_>>()?;
    let metrics = Metrics::new("console");
    metrics.add_map(member.map());
    metrics.add_certificate(member.identity.clone());
    let _shown = metrics.serve(&args.metrics)?;
    let cluster = Cluster {
        name: member.name.name.clone(),
        map: member.map(),
        managers: member.managers.clone(),
        routes: member.routes(),
        env: member.env.clone(),
    };
    let watch = Watch::start(cluster).context("cannot start a thread")?;
    let gate = Arc::new(Gate::new(member.env.entropy.clone()));
    let web = Web::start(listeners, tls, watch.clone(), gate.clone(), env!("CARGO_PKG_VERSION"))
        .context("cannot serve browsers")?;
    let links = links(args, web.addresses());
    let socket = Socket::open(&directory.console_socket(), &*member.env.tasks, gate, links)?;
    let _looks = member.keep_certificate()?;
    announce::serving(Role::Console, web.addresses());
    until_told_to_stop(&is_told, || true);
    announce::notify("STOPPING=1");
    drop(socket);
    watch.stop();
    drop(web);
    Ok(())
}

fn listen(address: &SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address)
        .with_context(|| format!("cannot listen at {address}: name an address of this machine with --listen, and a port that is free"))
}

/// What links for logging in begin with.
fn links(args: &ConsoleArgs, addresses: &[SocketAddr]) -> Vec<String> {
    if let Some(url) = &args.url {
        return vec![url.clone()];
    }
    let link = |address: &SocketAddr| match address.ip().is_unspecified() {
        true => {
            format!("https://{}:{}", rustix::system::uname().nodename().to_string_lossy(), address.port())
        }
        false => format!("https://{address}"),
    };
    addresses.iter().map(link).collect()
}

/// The certificate for browsers: that of the files that were named, or this machine's own, each as it is at the time.
fn tls_source(args: &ConsoleArgs, member: &Member) -> Result<Box<TlsSource>> {
    let Some((certificate, key)) = args.tls_cert.clone().zip(args.tls_key.clone()) else {
        return Ok(own_certificate(member.identity.clone()));
    };
    type Kept = Option<(Instant, TlsConfig)>;
    let kept: Mutex<Kept> = Mutex::default();
    Ok(Box::new(move || {
        let mut kept = kept.lock();
        if let Some((since, config)) = &*kept
            && since.elapsed() < READ_AGAIN
        {
            return Ok(config.clone());
        }
        let config = match (read_certificate(&certificate, &key), &*kept) {
            (Ok(config), _) => config,
            // One that is just being replaced.
            (Err(error), Some((_, before))) => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "the certificate for browsers cannot be read; the one before stays in use"
                );
                before.clone()
            }
            (Err(error), None) => return Err(format!("{error:#}")),
        };
        *kept = Some((Instant::now(), config.clone()));
        Ok(config)
    }))
}

fn read_certificate(certificate: &Path, key: &Path) -> Result<TlsConfig> {
    let read =
        |path: &Path| fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    for_browsers(&read(certificate)?, &read(key)?).with_context(|| {
        format!(
            "--tls-cert {} and --tls-key {} are no certificate and its key",
            certificate.display(),
            key.display()
        )
    })
}

fn own_certificate(identity: Arc<RwLock<Arc<TlsIdentity>>>) -> Box<TlsSource> {
    type Kept = Option<(Arc<TlsIdentity>, TlsConfig)>;
    let kept: Mutex<Kept> = Mutex::default();
    Box::new(move || {
        let current = identity.read().clone();
        let mut kept = kept.lock();
        if let Some((of, config)) = &*kept
            && Arc::ptr_eq(of, &current)
        {
            return Ok(config.clone());
        }
        let config = current.for_browsers().map_err(|error| error.to_string())?;
        *kept = Some((current, config.clone()));
        Ok(config)
    })
}

/// Where `ashlar console login` asks; removed when dropped.
struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "cannot remove the socket for logging in");
        }
    }
}

impl Socket {
    fn open(path: &Path, tasks: &dyn Tasks, gate: Arc<Gate>, links: Vec<String>) -> Result<Socket> {
        if UnixStream::connect(path).is_ok() {
            bail!(
                "another console uses this identity, and answers at {}: give this one another with --identity",
                path.display()
            );
        }
        // Of one that was killed.
        match fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", path.display()));
            }
            _ => {}
        }
        let listener =
            UnixListener::bind(path).with_context(|| format!("cannot listen at {}", path.display()))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))
            .with_context(|| format!("cannot protect {}", path.display()))?;
        let serve = move || {
            for stream in listener.incoming() {
                let outcome = stream.context("accept").and_then(|stream| answer(stream, &gate, &links));
                if let Err(error) = outcome {
                    tracing::warn!(
                        error = format!("{error:#}"),
                        "somebody could not be given a link for logging in"
                    );
                    std::thread::sleep(PAUSE);
                }
            }
        };
        tasks.spawn("console-login", Box::new(serve)).context("cannot start a thread")?;
        Ok(Socket(path.to_owned()))
    }
}

/// Gives a link to who may have one.
fn answer(mut stream: UnixStream, gate: &Gate, links: &[String]) -> Result<()> {
    stream.set_write_timeout(Some(ANSWER_MAX))?;
    // The directory is private already; this holds also where somebody has opened it.
    if !is_trusted(peer_uid(&stream)?) {
        bail!("only root and the user who runs the console may log others in");
    }
    let code = gate.new_code();
    for link in links {
        writeln!(stream, "{link}/login#{code}")?;
    }
    Ok(())
}

/// `ashlar console login`
pub fn log_in(args: &ConsoleArgs) -> Result<()> {
    let directory = NodeDirectory::new(&args.node.node);
    directory.load()?;
    let path = directory.console_socket();
    let mut stream = UnixStream::connect(&path).with_context(|| {
        format!(
            "no console answers at {}: is `ashlar console` running on this machine with this identity, and are you root or its user?",
            path.display()
        )
    })?;
    if !is_trusted(peer_uid(&stream)?) {
        bail!("{} belongs to another user", path.display());
    }
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    let mut text = String::new();
    (&mut stream).take(ANSWER_BYTES_MAX).read_to_string(&mut text).context("the console does not answer")?;
    if text.is_empty() {
        bail!("the console gives no link; its log says why");
    }
    text.lines().for_each(say);
    eprintln!("ashlar: it lets one browser in, once, within ten minutes");
    Ok(())
}
