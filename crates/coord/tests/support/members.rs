//! etcd as real processes: one or three members, data in a temporary directory, killed when dropped.

use super::certificates::Authority;
use ashlar_coord::Coord;
use ashlar_coord::etcd::{EtcdCoord, EtcdSettings, EtcdTls};
use ashlar_env::Env;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub const KEY: &str = "/ashlar/0123456789abcdef/state";
const READY_WITHIN: Duration = Duration::from_secs(60);

pub struct Member {
    directory: PathBuf,
    arguments: Vec<String>,
    pub endpoint: String,
    child: Option<Child>,
}

impl Member {
    pub fn start(&mut self) {
        let log = File::options().create(true).append(true).open(self.directory.join("log")).unwrap();
        let mut command = Command::new(program());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ETCD_")) {
            command.env_remove(name);
        }
        command.args(&self.arguments).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(command.spawn().unwrap());
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Stopped or not.
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.child.as_ref().unwrap()), signal).unwrap();
    }

    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Its data, to be copied while it does not run.
    pub fn data(&self) -> PathBuf {
        self.directory.join("data")
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

pub struct Etcd {
    pub members: Vec<Member>,
    tls: Option<EtcdTls>,
    pub directory: tempfile::TempDir,
}

/// The etcd to test with.
fn program() -> PathBuf {
    if let Some(given) = std::env::var_os("ASHLAR_ETCD") {
        return given.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("etcd")).find(|file| file.is_file());
    let found = found.or_else(|| Some(PathBuf::from("/usr/bin/etcd")).filter(|file| file.is_file()));
    found.expect(
        "these tests need etcd 3.4 or later: `apt-get install etcd-server`, or name one in ASHLAR_ETCD",
    )
}

fn written(directory: &Path, name: &str, text: &str) -> String {
    let file = directory.join(name);
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

impl Etcd {
    /// Without TLS, and ready.
    pub fn start(members: usize) -> Etcd {
        Etcd::start_with(members, None)
    }

    /// Asking clients for certificates of `authority`, and ready.
    pub fn start_with(count: usize, authority: Option<&Authority>) -> Etcd {
        let etcd = Etcd::spawn(count, authority);
        etcd.wait_until_ready();
        etcd
    }

    /// As [`Etcd::start_with`], and perhaps not ready.
    pub fn spawn(count: usize, authority: Option<&Authority>) -> Etcd {
        let directory = tempfile::tempdir().unwrap();
        let ports = super::ports::free_ports("127.0.0.1", 2 * count);
        let scheme = if authority.is_some() { "https" } else { "http" };
        let peer = |at: usize| format!("m{at}=http://127.0.0.1:{}", ports[count + at]);
        let cluster = (0..count).map(peer).collect::<Vec<_>>().join(",");
        let members = (0..count).map(|at| {
            let place = directory.path().join(format!("m{at}"));
            std::fs::create_dir(&place).unwrap();
            let endpoint = format!("{scheme}://127.0.0.1:{}", ports[at]);
            let peer_url = format!("http://127.0.0.1:{}", ports[count + at]);
            let data = place.join("data").to_str().unwrap().to_owned();
            let mut arguments: Vec<String> = [
                ("--name", format!("m{at}").as_str()),
                ("--data-dir", &data),
                ("--listen-client-urls", &endpoint),
                ("--advertise-client-urls", &endpoint),
                ("--listen-peer-urls", &peer_url),
                ("--initial-advertise-peer-urls", &peer_url),
                ("--initial-cluster", &cluster),
                ("--initial-cluster-state", "new"),
                ("--logger", "zap"),
            ]
            .iter()
            .flat_map(|(name, value)| [(*name).to_owned(), (*value).to_owned()])
            .collect();
            if let Some(authority) = authority {
                let identity = authority.issue(&["127.0.0.1", "localhost"]);
                arguments.extend([
                    format!("--cert-file={}", written(&place, "cert", &identity.certificate_pem)),
                    format!("--key-file={}", written(&place, "key", &identity.key_pem)),
                    format!("--trusted-ca-file={}", written(&place, "ca", &authority.pem)),
                    "--client-cert-auth".to_owned(),
                ]);
            }
            let mut member = Member { directory: place, arguments, endpoint, child: None };
            member.start();
            member
        });
        let members = members.collect();
        let tls = authority.map(|authority| authority.tls(Some(authority.issue(&["client"]))));
        Etcd { members, tls, directory }
    }

    /// Until every running member answers reads, which takes a leader.
    pub fn wait_until_ready(&self) {
        let until = Instant::now() + READY_WITHIN;
        for member in self.members.iter().filter(|member| member.child.is_some()) {
            let coord = self.coord_at(&[&member.endpoint]);
            while let Err(error) = coord.load() {
                let log = std::fs::read_to_string(member.directory.join("log")).unwrap_or_default();
                let end: String = log.lines().rev().take(5).collect::<Vec<_>>().join("\n");
                assert!(Instant::now() < until, "etcd does not start: {error}; the end of its log:\n{end}");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }

    pub fn endpoints(&self) -> Vec<&str> {
        self.members.iter().map(|member| member.endpoint.as_str()).collect()
    }

    /// Somebody who uses all members, beginning with the first.
    pub fn coord(&self) -> EtcdCoord {
        self.coord_at(&self.endpoints())
    }

    pub fn coord_at(&self, endpoints: &[&str]) -> EtcdCoord {
        coord(endpoints, self.tls.clone())
    }

    /// Which member leads. Asks each through a proxyless request of the gateway.
    pub fn leader(&self) -> usize {
        let until = Instant::now() + READY_WITHIN;
        loop {
            let leads = |at: &usize| {
                let status = post(&self.members[*at].endpoint, "/v3/maintenance/status", "{}");
                let (own, leader) = (field(&status, "member_id"), field(&status, "leader"));
                own.is_some() && own == leader
            };
            if let Some(at) = (0..self.members.len()).find(leads) {
                return at;
            }
            assert!(Instant::now() < until, "etcd elects no leader");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

pub fn coord(endpoints: &[&str], tls: Option<EtcdTls>) -> EtcdCoord {
    let endpoints = endpoints.iter().map(|endpoint| (*endpoint).to_owned()).collect();
    EtcdCoord::new(&EtcdSettings { endpoints, key: KEY.to_owned(), tls }, Env::os().entropy).unwrap()
}

/// A request as any other program would make it; the answer's text.
pub fn post(endpoint: &str, path: &str, body: &str) -> serde_json::Value {
    let text =
        ureq::post(format!("{endpoint}{path}")).send(body).unwrap().body_mut().read_to_string().unwrap();
    serde_json::from_str(&text).unwrap()
}

fn field(status: &serde_json::Value, name: &str) -> Option<String> {
    let found = status.get(name).or_else(|| status.get("header")?.get(name))?;
    found.as_str().map(str::to_owned)
}
