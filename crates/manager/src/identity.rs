//! The identity of a file system and its secrets.

use crate::ManagerError;
use ashlar_coord::local_file::newer_format;
use ashlar_env::{Disk, Env, OpenMode, replace_file};
use ashlar_types::ClusterId;
use ashlar_types::codec::{self, crc32c};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// File of the manager's directory that holds [`Secrets`].
pub const SECRETS_FILE: &str = "secrets";
const MAGIC: &[u8; 8] = b"ASHLSEC1";

/// What the services need to know of who they are.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The file system.
    pub cluster: ClusterId,
    /// Key of the directory name hash.
    pub name_hash_key: [u8; 16],
}

/// What must not leave the manager's directory. File `secrets`: magic `ASHLSEC1`, CRC-32C u32 little-endian of the rest, encoding.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secrets {
    /// The file system.
    pub cluster: ClusterId,
    /// Key of the directory name hash.
    pub name_hash_key: [u8; 16],
    /// Certificate of the built-in authority, PEM.
    pub ca_certificate_pem: String,
    /// Private key of the built-in authority, PEM.
    pub ca_key_pem: String,
}

impl Secrets {
    pub(crate) fn identity(&self) -> Identity {
        Identity { cluster: self.cluster, name_hash_key: self.name_hash_key }
    }
}

// No secret in a log: neither type prints more than which file system it is of.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.cluster)
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.cluster)
    }
}

/// Draws a new identity with its certificate authority (ECDSA P-256).
pub(crate) fn draw(env: &Env) -> Result<(Identity, Secrets), ManagerError> {
    let (mut cluster, mut name_hash_key) = ([0; 16], [0; 16]);
    env.entropy.fill(&mut cluster);
    env.entropy.fill(&mut name_hash_key);
    let cluster = ClusterId(cluster);
    let invalid =
        |error: rcgen::Error| ManagerError::Invalid(format!("cannot make a certificate authority: {error}"));
    let key = rcgen::KeyPair::generate().map_err(invalid)?;
    let params = authority_params(cluster)?;
    let certificate = params.self_signed(&key).map_err(invalid)?;
    let secrets = Secrets {
        cluster,
        name_hash_key,
        ca_certificate_pem: certificate.pem(),
        ca_key_pem: key.serialize_pem(),
    };
    Ok((secrets.identity(), secrets))
}

/// What the certificate of the authority of `cluster` says; the same whenever it is asked for, because what it signs names it so.
pub(crate) fn authority_params(cluster: ClusterId) -> Result<rcgen::CertificateParams, ManagerError> {
    let invalid =
        |error: rcgen::Error| ManagerError::Invalid(format!("cannot make a certificate authority: {error}"));
    let mut params = rcgen::CertificateParams::new(Vec::new()).map_err(invalid)?;
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
    params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign, rcgen::KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(rcgen::DnType::CommonName, format!("Ashlar {cluster}"));
    Ok(params)
}

fn path(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

/// Stores secrets durably; files of the state are readable by their owner only.
pub(crate) fn store_secrets(
    disk: &Arc<dyn Disk>,
    directory: &str,
    secrets: &Secrets,
) -> Result<(), ManagerError> {
    let target = path(directory, SECRETS_FILE);
    let body = codec::encode(secrets);
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&crc32c(0, &body).to_le_bytes());
    bytes.extend_from_slice(&body);
    replace_file(&**disk, &target, &bytes)
        .map_err(|source| ManagerError::Io { what: format!("storing {}", disk.describe(&target)), source })
}

/// Stores secrets that another manager gave, for a manager that is to be in `directory` of `disk`.
///
/// # Errors
/// [`ManagerError::Invalid`] when they are none, or of another file system than `cluster`.
pub fn take_secrets(
    disk: &Arc<dyn Disk>,
    directory: &str,
    cluster: ClusterId,
    given: &[u8],
) -> Result<(), ManagerError> {
    let secrets: Secrets = codec::decode(given, "secrets")
        .map_err(|_| ManagerError::Invalid("the manager gave something else than its secrets".into()))?;
    if secrets.cluster != cluster {
        return Err(ManagerError::Invalid(format!("the manager gave secrets of {}", secrets.cluster)));
    }
    store_secrets(disk, directory, &secrets)
}

/// Loads what [`store_secrets`] stored.
pub(crate) fn load_secrets(disk: &Arc<dyn Disk>, directory: &str) -> Result<Secrets, ManagerError> {
    let target = path(directory, SECRETS_FILE);
    let load = || {
        let file = disk.open(&target, OpenMode::Read)?;
        // LIMIT: keys and one certificate take about 2 KiB.
        let mut bytes = vec![0; file.len()?.min(64 << 10) as usize];
        let got = file.read_at(0, &mut bytes)?;
        bytes.truncate(got);
        Ok(bytes)
    };
    let bytes: Vec<u8> = load().map_err(|source: std::io::Error| ManagerError::Io {
        what: format!("reading {} (restore it with `ashlar restore`)", disk.describe(&target)),
        source,
    })?;
    let damaged = || {
        ManagerError::Invalid(format!(
            "{} is damaged; restore it with `ashlar restore`",
            disk.describe(&target)
        ))
    };
    let (head, body) = bytes.split_at_checked(12).ok_or_else(damaged)?;
    if let Some(what) = newer_format(&disk.describe(&target), head, MAGIC) {
        return Err(ManagerError::Invalid(what));
    }
    if &head[..8] != MAGIC || head[8..] != crc32c(0, body).to_le_bytes() {
        return Err(damaged());
    }
    codec::decode(body, "secrets").map_err(|_| damaged())
}
