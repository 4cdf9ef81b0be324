//! Whether all copies are there, of metadata and of contents, as managers say.

use super::place::Asker;
use anyhow::Result;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// How many there are of what, and how many of these lack a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Redundancy {
    pub chains: usize,
    pub chains_short: usize,
    /// Metadata servers of which there are to be copies.
    pub meta: usize,
    pub meta_short: usize,
}

impl Redundancy {
    pub fn is_full(&self) -> bool {
        self.chains_short == 0 && self.meta_short == 0
    }

    /// What was missing at the worst of both moments.
    pub fn worse(self, other: Redundancy) -> Redundancy {
        Redundancy {
            chains: self.chains.max(other.chains),
            chains_short: self.chains_short.max(other.chains_short),
            meta: self.meta.max(other.meta),
            meta_short: self.meta_short.max(other.meta_short),
        }
    }
}

/// What managers say at the moment.
pub fn look(asker: &Asker) -> Result<Redundancy> {
    let chains = asker.ask(&["chain", "list", "--json"])?;
    Ok(of(&chains, &asker.ask(&["copies", "list", "--json"])?))
}

/// By what `ashlar chain list` and `ashlar copies list` tell.
fn of(chains: &Value, copies: &Value) -> Redundancy {
    let all = |told: &Value| told.as_array().cloned().unwrap_or_default();
    let chains = all(chains);
    let wanted = |group: &Value| group["wanted"].as_u64().unwrap_or(1);
    let groups: Vec<Value> = all(copies).into_iter().filter(|group| wanted(group) > 1).collect();
    let has = |group: &Value| group["copies"].as_array().map_or(0, Vec::len) as u64;
    Redundancy {
        chains: chains.len(),
        chains_short: chains.iter().filter(|chain| chain["is_short"] != false).count(),
        meta: groups.len(),
        meta_short: groups.iter().filter(|group| has(group) < wanted(group)).count(),
    }
}

/// The server that serves most metadata, by name.
pub fn serves_most(asker: &Asker) -> Result<Option<String>> {
    Ok(most(&asker.ask(&["copies", "list", "--json"])?))
}

fn most(copies: &Value) -> Option<String> {
    let mut served: BTreeMap<&str, usize> = BTreeMap::new();
    for group in copies.as_array()? {
        *served.entry(group["serves"]["name"].as_str().unwrap_or_default()).or_default() += 1;
    }
    let (name, _) =
        served.into_iter().filter(|(name, _)| !name.is_empty()).max_by_key(|(_, count)| *count)?;
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_lacks_a_copy_is_counted() {
        let chains = json!([{ "is_short": false }, { "is_short": true }]);
        let on = |names: &[&str]| -> Value { names.iter().map(|name| json!({ "name": name })).collect() };
        let group = |serves: &str, copies: &[&str]| json!({ "wanted": 2, "copies": on(copies), "serves": { "name": serves } });
        let copies = json!([
            group("meta2", &["meta2", "meta1"]),
            group("meta2", &["meta2"]),
            { "wanted": 1, "copies": [], "serves": null },
        ]);
        let found = of(&chains, &copies);
        assert_eq!(found, Redundancy { chains: 2, chains_short: 1, meta: 2, meta_short: 1 });
        assert!(!found.is_full() && of(&json!([]), &json!([])).is_full());
        assert_eq!(most(&copies).as_deref(), Some("meta2"));
        assert_eq!(most(&json!([])), None);
        let worst = found.worse(Redundancy { chains: 2, chains_short: 2, meta: 2, meta_short: 0 });
        assert_eq!((worst.chains_short, worst.meta_short), (2, 1));
    }
}
