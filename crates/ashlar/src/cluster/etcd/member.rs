//! A member on this machine: its directory, its configuration file, its program.

use anyhow::{Context, Result, bail};
use ashlar_env::Env;
use ashlar_manager::EtcdAuthority;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const DIRECTORY: &str = "etcd";
const CONFIGURATION: &str = "etcd.conf.yml";
/// Where the program is on most systems that have it.
const PLACES: [&str; 3] = ["/usr/bin", "/usr/local/bin", "/usr/sbin"];

/// See the module.
pub struct Member {
    directory: PathBuf,
}

/// Where a member is, and whom it starts with.
pub struct Place {
    pub name: String,
    /// For clients: the managers.
    pub listen: SocketAddr,
    /// For the other members.
    pub peers: SocketAddr,
    /// Of the file system: members of two never mix.
    pub token: String,
}

impl Place {
    pub fn client_url(&self) -> String {
        format!("https://{}", self.listen)
    }

    pub fn peer_url(&self) -> String {
        format!("https://{}", self.peers)
    }
}

impl Member {
    /// That of the manager's directory `state`.
    pub fn of(state: &Path) -> Result<Member> {
        let state = state.canonicalize().with_context(|| format!("cannot use {}", state.display()))?;
        Ok(Member { directory: state.join(DIRECTORY) })
    }

    /// Its configuration file.
    pub fn configuration(&self) -> PathBuf {
        self.directory.join(CONFIGURATION)
    }

    /// Whether it was set up.
    pub fn exists(&self) -> bool {
        self.configuration().exists()
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// Refuses to join with the data of a member that was: etcd would take it for that one.
    pub fn require_no_data(&self) -> Result<()> {
        if self.data().exists() {
            bail!(
                "{} has the data of a member that this machine was before: remove {} first",
                self.data().display(),
                self.directory.display()
            );
        }
        Ok(())
    }

    /// Removes what an attempt to set it up has left, of which nobody knows.
    pub fn clear(&self) -> Result<()> {
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", self.directory.display()))
            }
            _ => Ok(()),
        }
    }

    /// Writes certificate and configuration; `initial` are all members with the URLs at which others reach them, this one included, and `is_new` tells
    /// whether they begin together.
    pub fn write(
        &self,
        authority: &EtcdAuthority,
        place: &Place,
        (initial, is_new): (&[(String, String)], bool),
        env: &Env,
    ) -> Result<()> {
        self.renew(authority, &place.name, &[place.listen.ip(), place.peers.ip()], env)?;
        let initial: Vec<String> = initial.iter().map(|(name, url)| format!("{name}={url}")).collect();
        let text = self.text(place, &initial.join(","), if is_new { "new" } else { "existing" });
        // ORDER: last, because it is what makes the directory one of a member.
        self.put(CONFIGURATION, &text)
    }

    /// Gives it a new certificate.
    pub fn renew(
        &self,
        authority: &EtcdAuthority,
        name: &str,
        addresses: &[IpAddr],
        env: &Env,
    ) -> Result<()> {
        let mut made = fs::DirBuilder::new();
        made.recursive(true).mode(0o700);
        made.create(&self.directory).with_context(|| format!("cannot make {}", self.directory.display()))?;
        let mut all = addresses.to_vec();
        all.extend([IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)]);
        let (certificate, key) = authority.issue(name, &all, env.clock.now())?;
        self.put("authority.pem", &authority.certificate)?;
        self.put("key.pem", &key)?;
        self.put("certificate.pem", &certificate)
    }

    /// Where it listens and what it is called, from its configuration file.
    pub fn place(&self) -> Result<(String, Vec<IpAddr>)> {
        let path = self.configuration();
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let value = |key: &str| {
            let of_line = |line: &str| line.strip_prefix(key)?.strip_prefix(": ").map(unquoted);
            text.lines().find_map(of_line).with_context(|| format!("{} has no `{key}`", path.display()))
        };
        let mut addresses = Vec::new();
        for key in ["listen-client-urls", "listen-peer-urls"] {
            for url in value(key)?.split(',') {
                let address = url.trim_start_matches("https://").parse::<SocketAddr>();
                addresses.push(address.with_context(|| format!("{}: `{url}`", path.display()))?.ip());
            }
        }
        Ok((value("name")?, addresses))
    }

    fn text(&self, place: &Place, initial: &str, state: &str) -> String {
        let at = |name: &str| quoted(&self.directory.join(name).display().to_string());
        let (client, peer) = (quoted(&place.client_url()), quoted(&place.peer_url()));
        let security = format!(
            "  cert-file: {}\n  key-file: {}\n  trusted-ca-file: {}\n  client-cert-auth: true\n",
            at("certificate.pem"),
            at("key.pem"),
            at("authority.pem"),
        );
        format!(
            "# A member of the etcd of an Ashlar file system; `ashlar etcd run` starts it.\n\
             name: {name}\n\
             data-dir: {data}\n\
             listen-client-urls: {client}\n\
             advertise-client-urls: {client}\n\
             listen-peer-urls: {peer}\n\
             initial-advertise-peer-urls: {peer}\n\
             initial-cluster: {initial}\n\
             initial-cluster-token: {token}\n\
             initial-cluster-state: {state}\n\
             logger: zap\n\
             # Managers speak with the gateway, which etcd 3.4 has off unless it is named.\n\
             enable-grpc-gateway: true\n\
             # Every change leaves the value before it; those are dropped after an hour.\n\
             auto-compaction-mode: periodic\n\
             auto-compaction-retention: \"1h\"\n\
             client-transport-security:\n{security}\
             peer-transport-security:\n{security}",
            name = quoted(&place.name),
            data = quoted(&self.data().display().to_string()),
            initial = quoted(initial),
            token = quoted(&place.token),
        )
    }

    fn put(&self, name: &str, text: &str) -> Result<()> {
        let (new, path) = (self.directory.join(format!("{name}.new")), self.directory.join(name));
        let store = || -> std::io::Result<()> {
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            fs::File::open(&self.directory)?.sync_all()
        };
        store().with_context(|| format!("cannot write {}", path.display()))
    }
}

/// A string of YAML that stands for itself.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn unquoted(text: &str) -> String {
    text.trim().trim_matches('"').replace("\\\"", "\"").replace("\\\\", "\\")
}

/// The etcd that is installed, or the one that was named.
///
/// # Errors
/// Where to get one.
pub fn find_program(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(named) = named {
        if !named.is_file() {
            bail!("{} is not there: name the program etcd with --program", named.display());
        }
        return Ok(named.to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(PLACES.iter().map(PathBuf::from));
    folders.map(|folder| folder.join("etcd")).find(|file| file.is_file()).context(
        "etcd is not installed: install it (on Debian `apt-get install etcd-server`, without having its own service run), or name the program with --program",
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let member = Member::of(dir.path()).unwrap();
        assert!(!member.exists());
        let env = Env::os();
        let authority = EtcdAuthority::draw(env.clock.now()).unwrap();
        let place = Place {
            name: "a \"b\" \\c".into(),
            listen: "10.0.0.1:2379".parse().unwrap(),
            peers: "[fd00::1]:2380".parse().unwrap(),
            token: "token".into(),
        };
        member.write(&authority, &place, (&[("x".into(), "https://y".into())], true), &env).unwrap();
        let (name, addresses) = member.place().unwrap();
        assert_eq!(name, place.name);
        assert_eq!(addresses, [place.listen.ip(), place.peers.ip()]);
        member.clear().unwrap();
        assert!(!member.exists());
    }
}
