//! What the first field of /etc/fstab means: data directories of this machine, or an identity directory, by which this machine is a client of
//! servers.

use super::Call;
use anyhow::{Result, bail};
use std::path::Path;

/// In an identity directory.
const NODE_FILE: &str = "node.json";
/// In a data directory.
const TARGET_DIR: &str = "target";

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Everything is here: `ashlar up`.
    OneMachine,
    /// A client of servers: `ashlar mount`.
    Cluster,
}

impl Kind {
    /// Goes by what the directory is; one that is neither (yet) by the options, so that the error is about what was meant.
    pub(super) fn of(call: &Call) -> Result<Kind> {
        let (spec, options) = (Path::new(&call.spec), &call.options);
        let of_one_machine = match (options.data.is_empty(), &options.meta) {
            (false, _) => Some("data="),
            (true, Some(_)) => Some("meta="),
            (true, None) => None,
        };
        let is_identity = spec.join(NODE_FILE).exists();
        let of_servers = options.error_after.as_ref().map(|_| "error-after=");
        let of_servers = of_servers.or(options.coherence.as_ref().map(|_| "coherence="));
        let of_servers = of_servers.or(options.durability.as_ref().map(|_| "durability="));
        let of_servers = of_servers.or(options.keep.as_ref().map(|_| "keep="));
        let of_servers = of_servers.or(options.subdirectory.as_ref().map(|_| "subdirectory="));
        let is_meant = of_servers.is_some()
            || options.needs_network
                && spec.is_absolute()
                && of_one_machine.is_none()
                && !spec.join(TARGET_DIR).exists();
        if !is_identity && !is_meant {
            return Ok(Kind::OneMachine);
        }
        match of_one_machine {
            Some(option) if is_identity => bail!(
                "{} is the identity of a client of servers, and `{option}` is for a file system of this machine alone: leave it out",
                spec.display()
            ),
            Some(option) => bail!(
                "`{option}` is for a file system of this machine alone, `{}` for one of servers: leave one of them out",
                of_servers.unwrap_or("_netdev")
            ),
            None => Ok(Kind::Cluster),
        }
    }

    /// What it is that is started, for errors.
    pub(super) fn program(self) -> &'static str {
        match self {
            Kind::OneMachine => "ashlar up",
            Kind::Cluster => "ashlar mount",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::Options;
    use super::*;

    fn kind(spec: &Path, options: &str) -> Result<Kind> {
        let options = Options::parse(options)?;
        Kind::of(&Call { spec: spec.into(), mountpoint: "/mnt".into(), options, is_fake: false })
    }

    #[test]
    fn the_directory_says_what_is_mounted_and_options_where_it_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let (identity, data) = (dir.path().join("identity"), dir.path().join("data"));
        std::fs::create_dir_all(data.join(TARGET_DIR)).unwrap();
        std::fs::create_dir(&identity).unwrap();
        std::fs::write(identity.join(NODE_FILE), b"").unwrap();
        for (spec, options, expected) in [
            (&identity, "defaults", Kind::Cluster),
            (&data, "defaults", Kind::OneMachine),
            (&data, "_netdev", Kind::OneMachine),
            (&dir.path().join("gone"), "nofail", Kind::OneMachine),
            (&dir.path().join("gone"), "_netdev", Kind::Cluster),
            (&dir.path().join("gone"), "_netdev,data=/disk2", Kind::OneMachine),
            (&dir.path().join("gone"), "error-after=5", Kind::Cluster),
        ] {
            assert_eq!(kind(spec, options).unwrap(), expected, "{} {options}", spec.display());
        }
        assert_eq!(kind(Path::new("none"), "_netdev").unwrap(), Kind::OneMachine);
        for (spec, options, word) in [
            (&identity, "data=/disk2", "`data=`"),
            (&identity, "meta=/disk2", "`meta=`"),
            (&data, "error-after=5,data=/disk2", "leave one of them out"),
        ] {
            let error = kind(spec, options).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
