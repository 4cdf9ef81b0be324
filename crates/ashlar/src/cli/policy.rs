//! Arguments that say what a machine may do as a client.

use ashlar_types::policy::{Anonymous, IdMap, IdRange, Outside, Squash};
use ashlar_types::{NodePolicy, PATH_BYTES_MAX};
use clap::{Args, ValueEnum};

/// Which users become the anonymous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SquashChoice {
    /// User 0 and group 0. Capabilities count for nobody.
    Root,
    /// All users. Capabilities count for nobody.
    All,
    /// No user: root of the machine is root of the file system.
    None,
}

/// What becomes of users and groups outside of all ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutsideChoice {
    /// Their calls fail with EACCES.
    Refuse,
    /// They become the anonymous user or group.
    Squash,
}

/// An item of a list of ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapItem {
    /// A range.
    Range(IdRange),
    /// There are to be no ranges.
    None,
}

/// What a machine is to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubtreeChoice {
    /// Everything.
    Whole,
    /// What is below this path.
    Path(String),
}

/// What a machine may do as a client. What is not named stays as it is.
#[derive(Clone, Debug, Default, Args)]
pub struct PolicyArgs {
    /// Which users of the machine become the anonymous user. For a new machine: root, or none if it may be admin.
    #[arg(long, value_enum, value_name = "WHO")]
    pub squash: Option<SquashChoice>,
    /// Who the anonymous user is, and the group. For a new machine: 65534:65534.
    #[arg(long, value_name = "UID:GID")]
    pub anonymous: Option<Anonymous>,
    /// The users of the machine that may use the file system, and who they are there: 1000-1999=5000 makes 1000 user 5000, 1001 user 5001 and so on; 1000-1999
    /// leaves them who they are. Several with commas between them, up to 16; `none` for no ranges: all are who they are.
    #[arg(long, value_name = "RANGES", value_delimiter = ',', value_parser = parse_item)]
    pub map_uid: Vec<MapItem>,
    /// The same for groups.
    #[arg(long, value_name = "RANGES", value_delimiter = ',', value_parser = parse_item)]
    pub map_gid: Vec<MapItem>,
    /// What becomes of users and groups that no range has. For a new machine: refuse.
    #[arg(long, value_enum, value_name = "WHAT")]
    pub outside: Option<OutsideChoice>,
    /// Let the machine change nothing; `--read-only=false` lets it again.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub read_only: Option<bool>,
    /// The directory that is all the machine sees, as the root of what it mounts: a path from the root of the file system. `none` or `/`: it sees
    /// everything.
    #[arg(long, value_name = "PATH", value_parser = parse_subtree)]
    pub subtree: Option<SubtreeChoice>,
}

impl PolicyArgs {
    /// Whether anything is named.
    pub fn is_empty(&self) -> bool {
        self.squash.is_none()
            && self.anonymous.is_none()
            && self.map_uid.is_empty()
            && self.map_gid.is_empty()
            && self.outside.is_none()
            && self.read_only.is_none()
            && self.subtree.is_none()
    }

    /// `policy` with what is named, but for the subtree, which has to be found first.
    pub fn applied_to(&self, mut policy: NodePolicy) -> NodePolicy {
        if let Some(squash) = self.squash {
            policy.squash = match squash {
                SquashChoice::Root => Squash::Root,
                SquashChoice::All => Squash::All,
                SquashChoice::None => Squash::Nobody,
            };
        }
        if let Some(outside) = self.outside {
            policy.outside = match outside {
                OutsideChoice::Refuse => Outside::Refuse,
                OutsideChoice::Squash => Outside::Squash,
            };
        }
        policy.anonymous = self.anonymous.unwrap_or(policy.anonymous);
        policy.read_only = self.read_only.unwrap_or(policy.read_only);
        for (items, map) in [(&self.map_uid, &mut policy.uids), (&self.map_gid, &mut policy.gids)] {
            if !items.is_empty() {
                *map = IdMap(items.iter().filter_map(|item| item.range()).collect());
            }
        }
        policy
    }
}

impl MapItem {
    fn range(self) -> Option<IdRange> {
        match self {
            MapItem::Range(range) => Some(range),
            MapItem::None => None,
        }
    }
}

fn parse_subtree(text: &str) -> Result<SubtreeChoice, String> {
    let is_whole = text == "none" || !text.is_empty() && text.bytes().all(|byte| byte == b'/');
    match text {
        _ if is_whole => Ok(SubtreeChoice::Whole),
        _ if !text.starts_with('/') => Err(format!(
            "`{}` is no path from the root of the file system: begin with `/`, such as /projects/one, or say `none`",
            text.escape_debug()
        )),
        _ if text.split('/').any(|part| part == "..") => {
            Err("a path with `..` in it is not taken".to_owned())
        }
        _ if text.len() > PATH_BYTES_MAX => Err(format!("a path has {PATH_BYTES_MAX} bytes at the most")),
        _ => Ok(SubtreeChoice::Path(text.trim_end_matches('/').to_owned())),
    }
}

fn parse_item(text: &str) -> Result<MapItem, String> {
    if text == "none" { Ok(MapItem::None) } else { text.parse().map(MapItem::Range) }
}
