//! Where managers keep the state of the file system: in a file, for one manager, or in etcd, for several.
//!
//! The file `store.json` of the manager's directory says that it is in etcd, with endpoints, key, and the paths of certificates. Without it the
//! state is in the directory itself.

use crate::cli::EtcdPlace;
use anyhow::{Context, Result, bail};
use ashlar_coord::Coord;
use ashlar_coord::etcd::{EtcdCoord, EtcdIdentity, EtcdMembership, EtcdSettings, EtcdTls};
use ashlar_coord::local_file::{LocalFile, STATE_FILE};
use ashlar_env::{Disk, Env, OpenMode, replace_file};
use ashlar_manager::events::{self, EventLog};
use ashlar_manager::{EtcdAuthority, Manager};
use ashlar_types::ClusterId;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const STORE_FILE: &str = "store.json";
/// Where the event log is that is not in etcd.
const EVENTS_DIRECTORY: &str = "events";
/// Where the state in a file is put that has been moved to etcd.
const MOVED_FILE: &str = "cluster-state.moved";
/// LIMIT: bytes of `store.json`.
const STORE_BYTES_MAX: u64 = 64 << 10;

/// What `store.json` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EtcdStore {
    /// Client URLs of the members.
    etcd: Vec<String>,
    /// The key of the state.
    key: String,
    /// Certificate of etcd's authority, PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    authority: Option<PathBuf>,
    /// Certificate and private key of managers as clients of etcd, PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    certificate: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    private_key: Option<PathBuf>,
    /// Of an etcd that was set up for this file system alone (`ashlar etcd`): its authority, of which managers make certificates for themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    own: Option<EtcdAuthority>,
}

impl EtcdStore {
    /// What the command line says, if it names an etcd; the state of `cluster` has a key of its own there.
    ///
    /// # Errors
    /// When what goes together is not all there, or paths are not absolute.
    pub fn given(place: &EtcdPlace, cluster: ClusterId) -> Result<Option<EtcdStore>> {
        let paths = [&place.etcd_ca, &place.etcd_certificate, &place.etcd_key];
        if place.etcd.is_empty() {
            if paths.iter().any(|path| path.is_some()) {
                bail!("certificates for etcd are of no use without --etcd URL");
            }
            return Ok(None);
        }
        if let Some(path) = paths.into_iter().flatten().find(|path| path.is_relative()) {
            bail!("{} is not an absolute path: other managers look for the same file", path.display());
        }
        Ok(Some(EtcdStore {
            etcd: place.etcd.clone(),
            key: format!("/ashlar/{cluster}/state"),
            authority: place.etcd_ca.clone(),
            certificate: place.etcd_certificate.clone(),
            private_key: place.etcd_key.clone(),
            own: None,
        }))
    }

    /// An etcd that was set up for `cluster` alone, with its first member at `url`.
    pub fn of_own(authority: EtcdAuthority, cluster: ClusterId, url: String) -> EtcdStore {
        EtcdStore {
            etcd: vec![url],
            key: format!("/ashlar/{cluster}/state"),
            authority: None,
            certificate: None,
            private_key: None,
            own: Some(authority),
        }
    }

    /// The authority of an etcd that was set up for this file system alone; `None` if a site runs it.
    pub fn own_authority(&self) -> Option<&EtcdAuthority> {
        self.own.as_ref()
    }

    /// Notes where clients reach the members, if that is another place than before; tells whether it is.
    pub fn set_endpoints(&mut self, endpoints: &[String]) -> bool {
        let is_new = self.etcd != endpoints;
        self.etcd = endpoints.to_vec();
        is_new
    }

    /// What `store.json` of `disk` says, if it is there.
    ///
    /// # Errors
    /// When it cannot be read or is damaged.
    pub fn load(disk: &Arc<dyn Disk>) -> Result<Option<EtcdStore>> {
        let shown = disk.describe(STORE_FILE);
        let file = match disk.open(STORE_FILE, OpenMode::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot open {shown}")),
        };
        let mut bytes = vec![0; file.len()?.min(STORE_BYTES_MAX) as usize];
        let got = file.read_at(0, &mut bytes).with_context(|| format!("cannot read {shown}"))?;
        EtcdStore::parse(std::str::from_utf8(&bytes[..got]).unwrap_or_default())
            .with_context(|| format!("{shown} is damaged"))
            .map(Some)
    }

    /// Reads what [`EtcdStore::text`] wrote.
    ///
    /// # Errors
    /// When it is something else.
    pub fn parse(text: &str) -> Result<EtcdStore> {
        serde_json::from_str(text).context("it does not say where the state of the file system is")
    }

    /// The content of `store.json`.
    pub fn text(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)?)
    }

    /// Writes `store.json`, durably.
    pub fn save(&self, disk: &Arc<dyn Disk>) -> Result<()> {
        replace_file(&**disk, STORE_FILE, self.text()?.as_bytes())
            .with_context(|| format!("cannot write {}", disk.describe(STORE_FILE)))
    }

    /// The state; members whose version may answer with an old one are told of once.
    ///
    /// # Errors
    /// When a certificate cannot be read, or a setting cannot be used.
    pub fn open(&self, env: &Env) -> Result<EtcdCoord> {
        let settings =
            EtcdSettings { endpoints: self.etcd.clone(), key: self.key.clone(), tls: self.tls(env)? };
        Ok(EtcdCoord::new(&settings, env.entropy.clone())?)
    }

    fn tls(&self, env: &Env) -> Result<Option<EtcdTls>> {
        if let Some(own) = &self.own {
            // Made anew with every start, so that none grows old.
            let (certificate_pem, key_pem) = own.issue("manager", &[], env.clock.now())?;
            let identity = Some(EtcdIdentity { certificate_pem, key_pem });
            return Ok(Some(EtcdTls { authority_pem: own.certificate.clone(), identity }));
        }
        let Some(authority) = &self.authority else { return Ok(None) };
        let read = |path: &Path| {
            std::fs::read_to_string(path).with_context(|| {
                format!("cannot read {}, which managers need to speak with etcd", path.display())
            })
        };
        let identity = match (&self.certificate, &self.private_key) {
            (Some(certificate), Some(key)) => {
                Some(EtcdIdentity { certificate_pem: read(certificate)?, key_pem: read(key)? })
            }
            (None, None) => None,
            _ => bail!("a certificate for etcd needs its private key, and the other way round"),
        };
        Ok(Some(EtcdTls { authority_pem: read(authority)?, identity }))
    }

    /// What all keys of the file system begin with.
    fn root(&self) -> &str {
        self.key.strip_suffix("/state").unwrap_or(&self.key)
    }

    /// Warns of members that may answer with an old value, which costs time and no more.
    pub fn warn_of_versions(&self, coord: &EtcdCoord) {
        for (endpoint, status) in coord.members() {
            match status {
                Ok(status) if status.may_read_stale() => tracing::warn!(
                    endpoint,
                    version = status.version,
                    "this etcd may answer with an old state after it was paused (its issue 20418): changes are safe, but upgrade it"
                ),
                Ok(_) => {}
                Err(error) => tracing::warn!(endpoint, %error, "a member of etcd does not answer"),
            }
        }
    }

    /// Moves the state in the file of `disk` to this etcd. May be interrupted at any point, and begun anew.
    ///
    /// # Errors
    /// When there is another state at the key already.
    pub fn take_over(&self, disk: &Arc<dyn Disk>, env: &Env) -> Result<()> {
        let (revision, value) = LocalFile::new(disk.clone(), "").load()?;
        if revision == 0 {
            bail!("{} is not there: there is nothing to move", disk.describe(STATE_FILE));
        }
        let coord = self.open(env)?;
        let (found, there) = coord.load()?;
        if found == 0 {
            coord.compare_and_set(0, &value)?;
        } else if there != value {
            bail!("{} is in use in that etcd already, with another state", self.key);
        }
        self.take_over_events(disk, &coord)?;
        // ORDER: from here on the state in etcd is the one; the file is put away afterwards.
        self.save(disk)?;
        disk.rename(STATE_FILE, MOVED_FILE).and_then(|()| disk.sync_dir("")).with_context(|| {
            format!("the state is in etcd now, but {} could not be put away", disk.describe(STATE_FILE))
        })
    }
}

impl EtcdStore {
    /// Copies the event log in `disk` to this etcd, where it is not there yet.
    fn take_over_events(&self, disk: &Arc<dyn Disk>, etcd: &EtcdCoord) -> Result<()> {
        for number in 0..events::SEGMENTS {
            let (_, value) = local_events(disk, number).load()?;
            let coord = self.events_in(etcd, number)?;
            if !value.is_empty() && coord.load()?.0 == 0 {
                coord.compare_and_set(0, &value)?;
            }
        }
        Ok(())
    }

    fn events_in(&self, etcd: &EtcdCoord, number: usize) -> Result<EtcdCoord> {
        Ok(etcd.at(&format!("{}/events/{number:02}", self.root()))?)
    }
}

fn local_events(disk: &Arc<dyn Disk>, number: usize) -> LocalFile {
    LocalFile::named(disk.clone(), EVENTS_DIRECTORY, &format!("{number:02}"), EVENTS_REMEDY)
}

/// Where a manager keeps what it keeps.
pub struct Opened {
    /// The state.
    pub coord: Box<dyn Coord>,
    /// The event log beside it.
    pub events: EventLog,
    /// What to tell other managers of where both are; empty where they cannot use it.
    pub told: String,
    /// The members of an etcd that was set up for this file system.
    pub members: Option<(EtcdStore, EtcdMembership)>,
}

/// What the manager's directory `disk` is about.
///
/// # Errors
/// As [`EtcdStore::open`], and when the directory for the event log cannot be made.
pub fn open(disk: &Arc<dyn Disk>, env: &Env) -> Result<Opened> {
    let Some(store) = EtcdStore::load(disk)? else {
        disk.create_dir(EVENTS_DIRECTORY)
            .with_context(|| format!("cannot make {}", disk.describe(EVENTS_DIRECTORY)))?;
        let segments =
            (0..events::SEGMENTS).map(|number| -> Box<dyn Coord> { Box::new(local_events(disk, number)) });
        return Ok(Opened {
            coord: Box::new(LocalFile::new(disk.clone(), "")),
            events: EventLog::new(segments.collect(), env.clock.clone()),
            told: String::new(),
            members: None,
        });
    };
    let coord = store.open(env)?;
    store.warn_of_versions(&coord);
    let segment =
        |number: usize| -> Result<Box<dyn Coord>> { Ok(Box::new(store.events_in(&coord, number)?)) };
    let segments = (0..events::SEGMENTS).map(segment).collect::<Result<_>>()?;
    let members = store.own.is_some().then(|| (store.clone(), coord.membership()));
    Ok(Opened {
        coord: Box::new(coord),
        events: EventLog::new(segments, env.clock.clone()),
        told: store.text()?,
        members,
    })
}

/// The state of the file system that the manager's directory `disk` is about, and nothing else.
///
/// # Errors
/// As [`EtcdStore::open`].
pub fn state_in(disk: &Arc<dyn Disk>, env: &Env) -> Result<Box<dyn Coord>> {
    match EtcdStore::load(disk)? {
        None => Ok(Box::new(LocalFile::new(disk.clone(), ""))),
        Some(store) => Ok(Box::new(store.open(env)?)),
    }
}

/// What to do about a damaged file of events.
const EVENTS_REMEDY: &str =
    "stop the manager and remove the file: what is lost is a part of the event log, and nothing else";

/// Whether the manager's directory `disk` has the state of a file system, or says where it is.
///
/// # Errors
/// When that cannot be found out.
pub fn is_used(disk: &Arc<dyn Disk>) -> Result<bool> {
    Ok(EtcdStore::load(disk)?.is_some() || Manager::exists(&LocalFile::new(disk.clone(), ""))?)
}

/// Where the state of `cluster` is to be kept: in the etcd of `place`, if it names one, else in `disk`.
///
/// # Errors
/// As [`EtcdStore::given`] and [`EtcdStore::open`].
pub fn given(
    place: &EtcdPlace,
    cluster: ClusterId,
    disk: &Arc<dyn Disk>,
    env: &Env,
) -> Result<(Option<EtcdStore>, Box<dyn Coord>)> {
    match EtcdStore::given(place, cluster)? {
        None => Ok((None, Box::new(LocalFile::new(disk.clone(), "")))),
        Some(store) => {
            let coord = store.open(env)?;
            store.warn_of_versions(&coord);
            Ok((Some(store), Box::new(coord)))
        }
    }
}
