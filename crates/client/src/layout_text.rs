//! Layouts as text, as the extended attribute `ashlar.layout` has them: `key=value` pairs with blanks between.

use crate::call::{Who, unexpected};
use crate::client::Client;
use ashlar_types::message::{MetaReply, MetaRequest, SplitDirectory};
use ashlar_types::{ChainId, ClusterMap, Errno, InodeId, LayoutPolicy, NameHash, TargetChoice};
use std::fmt::Write as _;

/// Name of the attribute.
pub const LAYOUT_ATTRIBUTE: &[u8] = b"ashlar.layout";

impl Client {
    /// The layout settings of a directory, or those of a file with the targets of its chunks.
    ///
    /// # Errors
    /// `EINVAL` for what has no data.
    pub fn layout_text(&self, who: &Who, inode: InodeId) -> Result<String, Errno> {
        let (policy, layout) = self.layout_show(who, inode)?;
        let map = self.map.read().clone();
        let pool =
            map.pools.iter().find(|pool| Some(pool.id) == policy.pool).map_or("?", |pool| pool.name.as_str());
        let chunk_bytes =
            layout.as_ref().map_or(policy.chunk_bytes.unwrap_or(0), |layout| layout.chunk_bytes);
        let stripe_count =
            layout.as_ref().map_or(policy.stripe_count.unwrap_or(0), |layout| layout.chains.len() as u16);
        let mut text = format!(
            "pool={pool} chunk_bytes={chunk_bytes} stripe_count={stripe_count} inline_bytes={} choice={} durability={}",
            policy.inline_bytes.unwrap_or(0),
            choice_name(policy.choice.unwrap_or_default()),
            policy.durability.unwrap_or_default(),
        );
        let copies_of = |chain: &ChainId| map.chain(*chain).map(|chain| chain.copies_wanted());
        let copies = layout.as_ref().and_then(|layout| layout.chains.first()).and_then(copies_of);
        // Writing into a String cannot fail.
        let _ = write!(text, " copies={}", copies.unwrap_or(policy.copies.unwrap_or(1)));
        if let Some(layout) = layout {
            let _ = write!(text, " targets={}", targets_text(&map, &layout.chains));
        } else if let Some(split) = self.slices_shown(who, inode)? {
            let _ = write!(text, " directories={}", policy.directories.unwrap_or_default());
            if !split.slices.is_empty() && !split.is_whole() {
                let share = u128::from(split.border) * 100 / u128::from(NameHash::END.0);
                let _ = write!(text, " split_percent={share}");
            }
            for (key, count) in [("slices", split.slices.len()), ("slices_of_new", usize::from(split.of_new))]
            {
                if count > 0 {
                    let _ = write!(text, " {key}={count}");
                }
            }
        }
        Ok(text)
    }

    /// How a directory is split, and directories that are made in it; `None` for what is no directory.
    fn slices_shown(&self, who: &Who, directory: InodeId) -> Result<Option<SplitDirectory>, Errno> {
        match self.call(who, MetaRequest::Slices { directory }) {
            Ok(MetaReply::Slices(split)) => Ok(Some(split)),
            Ok(other) => Err(unexpected(&other)),
            Err(Errno::ENOTDIR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Changes the settings that `text` names.
    ///
    /// # Errors
    /// `EINVAL` for an unknown key, a value out of range or an unknown pool, `ENODEV` for an unknown shard, `ENOTDIR` for what is about directories alone; as
    /// [`Client::split`].
    pub fn layout_set_text(&self, who: &Who, inode: InodeId, text: &[u8]) -> Result<(), Errno> {
        let text = std::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
        let mut policy = LayoutPolicy::default();
        let mut splits = Vec::new();
        for pair in text.split_whitespace() {
            let (key, value) = pair.split_once('=').ok_or(Errno::EINVAL)?;
            match key {
                "slices" | "slices_of_new" => {
                    let count: u16 = value.parse().map_err(|_| Errno::EINVAL)?;
                    splits.push((count, key == "slices_of_new"));
                }
                _ => self.set_field(&mut policy, key, value)?,
            }
        }
        policy.check()?;
        if policy != LayoutPolicy::default() || splits.is_empty() {
            self.layout_set(who, inode, policy)?;
        }
        splits.into_iter().try_for_each(|(count, of_new)| self.split(who, inode, count, of_new))
    }

    fn set_field(&self, policy: &mut LayoutPolicy, key: &str, value: &str) -> Result<(), Errno> {
        match key {
            "pool" => {
                let map = self.map.read().clone();
                let pool = map.pools.iter().find(|pool| pool.name == value).ok_or(Errno::EINVAL)?;
                policy.pool = Some(pool.id);
            }
            "chunk_bytes" => policy.chunk_bytes = Some(value.parse().map_err(|_| Errno::EINVAL)?),
            "stripe_count" => policy.stripe_count = Some(value.parse().map_err(|_| Errno::EINVAL)?),
            "inline_bytes" => policy.inline_bytes = Some(value.parse().map_err(|_| Errno::EINVAL)?),
            "copies" => policy.copies = Some(value.parse().map_err(|_| Errno::EINVAL)?),
            "choice" => {
                let all = [TargetChoice::RoundRobin, TargetChoice::FreeSpace, TargetChoice::Scatter];
                policy.choice =
                    Some(all.into_iter().find(|&choice| choice_name(choice) == value).ok_or(Errno::EINVAL)?);
            }
            "durability" => {
                policy.durability = Some(value.parse().map_err(|_| Errno::EINVAL)?);
            }
            "directories" => policy.directories = Some(value.parse()?),
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }
}

/// The targets of each chain in turn, the one in front first.
fn targets_text(map: &ClusterMap, chains: &[ChainId]) -> String {
    let of_chain = |chain: &ChainId| {
        let numbers = map.chain(*chain)?.targets.iter().map(|target| target.0.to_string());
        Some(numbers.collect::<Vec<_>>().join("+"))
    };
    chains.iter().map(|chain| of_chain(chain).unwrap_or_else(|| "?".into())).collect::<Vec<_>>().join(",")
}

fn choice_name(choice: TargetChoice) -> &'static str {
    match choice {
        TargetChoice::RoundRobin => "round-robin",
        TargetChoice::FreeSpace => "free-space",
        TargetChoice::Scatter => "scatter",
    }
}
