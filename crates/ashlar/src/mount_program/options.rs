//! The options of a mount as /etc/fstab and mount(8) write them.

use anyhow::{Result, bail};
use std::path::PathBuf;

/// Flags of mount(2) by name: set or cleared.
const FLAGS: &[(&str, libc::c_ulong, bool)] = &[
    ("ro", libc::MS_RDONLY, true),
    ("rw", libc::MS_RDONLY, false),
    ("nosuid", libc::MS_NOSUID, true),
    ("suid", libc::MS_NOSUID, false),
    ("nodev", libc::MS_NODEV, true),
    ("dev", libc::MS_NODEV, false),
    ("noexec", libc::MS_NOEXEC, true),
    ("exec", libc::MS_NOEXEC, false),
    ("noatime", libc::MS_NOATIME, true),
    ("atime", libc::MS_NOATIME, false),
    ("nodiratime", libc::MS_NODIRATIME, true),
    ("diratime", libc::MS_NODIRATIME, false),
    ("relatime", libc::MS_RELATIME, true),
    ("norelatime", libc::MS_RELATIME, false),
    ("strictatime", libc::MS_STRICTATIME, true),
    ("nostrictatime", libc::MS_STRICTATIME, false),
];

/// For mount(8), systemd and people; nothing to do for the file system.
const FOR_OTHERS: &[&str] =
    &["defaults", "auto", "noauto", "nofail", "user", "users", "nouser", "group", "owner"];

/// What the kernel shows of a FUSE mount, and mount(8) repeats at a remount. It cannot be changed there.
const SHOWN: &[&str] = &["user_id", "group_id", "default_permissions", "allow_other", "max_read", "blksize"];

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    /// Data directories besides the one in the first field.
    pub(super) data: Vec<PathBuf>,
    /// The metadata directory.
    pub(super) meta: Option<PathBuf>,
    /// Where messages go without systemd.
    pub(super) log_file: Option<PathBuf>,
    /// What to log.
    pub(super) log: Option<String>,
    /// Of a cluster: after how many seconds without a server a call fails; as it was written, for `ashlar mount` to judge.
    pub(super) error_after: Option<String>,
    /// Of a cluster: how coherent; as it was written, too.
    pub(super) coherence: Option<String>,
    /// Of a cluster: how durable changes are; as it was written, too.
    pub(super) durability: Option<String>,
    /// Of a cluster: for how long the mount is kept when its process has ended; as it was written, too.
    pub(super) keep: Option<String>,
    /// Of a cluster: the directory that is shown, by its path from the root.
    pub(super) subdirectory: Option<String>,
    /// It is said to need the network.
    pub(super) needs_network: bool,
    /// `MS_*` of mount(2).
    pub(super) flags: libc::c_ulong,
    /// A mount that is there is changed.
    pub(super) is_remount: bool,
}

impl Options {
    pub(super) fn parse(list: &str) -> Result<Options> {
        let mut options = Options::default();
        for word in list.split(',').filter(|word| !word.is_empty()) {
            let (name, value) =
                word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
            match (name, value) {
                ("remount", None) => options.is_remount = true,
                ("data", Some(dir)) => options.data.push(dir.into()),
                ("meta", Some(dir)) => options.meta = Some(dir.into()),
                ("log", Some(filter)) => options.log = Some(filter.to_owned()),
                ("log_file", Some(file)) => options.log_file = Some(file.into()),
                ("error-after", Some(seconds)) => options.error_after = Some(seconds.to_owned()),
                ("coherence", Some(kind)) => options.coherence = Some(kind.to_owned()),
                ("durability", Some(kind)) => options.durability = Some(kind.to_owned()),
                ("keep", Some(seconds)) => options.keep = Some(seconds.to_owned()),
                ("subdirectory", Some(path)) => options.subdirectory = Some(path.to_owned()),
                ("_netdev", None) => options.needs_network = true,
                _ if FOR_OTHERS.contains(&name) || SHOWN.contains(&name) => {}
                _ if name.starts_with("x-") || name.starts_with("X-") || name == "comment" => {}
                _ => options.set_flag(word)?,
            }
        }
        Ok(options)
    }

    fn set_flag(&mut self, word: &str) -> Result<()> {
        let Some((_, flag, is_set)) = FLAGS.iter().find(|(name, ..)| *name == word) else {
            bail!(
                "unknown option `{word}`; there are data=DIR and meta=DIR on one machine, error-after=SECONDS, coherence=KIND, durability=KIND, keep=SECONDS and subdirectory=PATH for servers, log=FILTER, log_file=FILE, and those of every mount, such as ro"
            );
        };
        // Of the kinds of access times the last one counts.
        let times = libc::MS_NOATIME | libc::MS_RELATIME | libc::MS_STRICTATIME;
        if *is_set && flag & times != 0 {
            self.flags &= !times;
        }
        self.flags = if *is_set { self.flags | flag } else { self.flags & !flag };
        Ok(())
    }

    pub(super) fn has(&self, flag: libc::c_ulong) -> bool {
        self.flags & flag != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_of_two_options_wins() {
        let flags = |list: &str| Options::parse(list).unwrap().flags;
        assert_eq!(flags("rw,nosuid,ro"), libc::MS_RDONLY | libc::MS_NOSUID);
        assert_eq!(flags("ro,rw"), 0);
        assert_eq!(flags("noatime,relatime"), libc::MS_RELATIME);
        assert_eq!(flags("relatime,noatime"), libc::MS_NOATIME);
    }

    #[test]
    fn what_is_for_others_is_left_to_them() {
        let list =
            "defaults,nofail,_netdev,x-systemd.requires-mounts-for=/disk1,remount,user_id=0,allow_other,ro";
        let options = Options::parse(list).unwrap();
        assert!(options.is_remount && options.flags == libc::MS_RDONLY && options.data.is_empty());
        assert!(options.needs_network);
    }

    #[test]
    fn own_options_have_values_and_unknown_ones_are_refused() {
        let options = Options::parse("data=/b,meta=/m,data=/c,log=info,log_file=/l").unwrap();
        assert_eq!(options.data, [PathBuf::from("/b"), PathBuf::from("/c")]);
        assert_eq!((options.meta, options.log_file), (Some("/m".into()), Some("/l".into())));
        assert_eq!(Options::parse("error-after=60").unwrap().error_after.as_deref(), Some("60"));
        let weaker = Options::parse("coherence=close-to-open").unwrap();
        assert_eq!(weaker.coherence.as_deref(), Some("close-to-open"));
        assert_eq!(Options::parse("durability=sync").unwrap().durability.as_deref(), Some("sync"));
        assert_eq!(Options::parse("keep=30").unwrap().keep.as_deref(), Some("30"));
        let part = Options::parse("subdirectory=/a/b").unwrap();
        assert_eq!(part.subdirectory.as_deref(), Some("/a/b"));
        for wrong in
            ["coherence", "datta=/b", "data", "ro=1", "size=5", "error_after=5", "error-after", "_netdev=1"]
        {
            let error = Options::parse(wrong).unwrap_err().to_string();
            assert!(error.contains(wrong) && error.contains("data=DIR"), "{error}");
        }
    }
}
