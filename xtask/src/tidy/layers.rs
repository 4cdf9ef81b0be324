//! A crate may use only crates of lower layers; the layer is `[package.metadata.ashlar] layer` in its manifest.

use super::Finding;
use super::tree::Tree;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let layer_of = |name: &str| tree.crates.iter().find(|info| info.name == name).and_then(|info| info.layer);
    let mut findings = Vec::new();
    for info in &tree.crates {
        let manifest = format!("{}/Cargo.toml", info.directory);
        let Some(layer) = info.layer else {
            findings.push(Finding::new(manifest, "states no layer in [package.metadata.ashlar]"));
            continue;
        };
        // A crate may name itself, to switch on features for its own tests.
        for used in info.uses.iter().filter(|used| **used != info.name) {
            // A crate without a layer is reported at its own manifest.
            if let Some(other) = layer_of(used).filter(|other| *other >= layer) {
                let what = format!(
                    "{} (layer {layer}) uses {used} (layer {other}): only lower layers may be used",
                    info.name
                );
                findings.push(Finding::new(&manifest, what));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::tree::CrateInfo;
    use super::*;

    fn info(name: &str, layer: Option<u64>, uses: &[&str]) -> CrateInfo {
        CrateInfo {
            name: name.into(),
            directory: name.into(),
            layer,
            uses: uses.iter().map(|name| (*name).into()).collect(),
        }
    }

    #[test]
    fn an_edge_upwards_or_sideways_or_a_missing_layer_is_found() {
        let crates = vec![info("low", Some(0), &[]), info("high", Some(3), &["low"])];
        assert_eq!(check(&Tree { crates, ..Tree::default() }), []);
        let crates = vec![
            info("low", Some(0), &["high"]),
            info("high", Some(3), &["twin"]),
            info("twin", Some(3), &[]),
            info("lost", None, &[]),
        ];
        let findings = check(&Tree { crates, ..Tree::default() });
        assert_eq!(findings.len(), 3, "{findings:?}");
        assert!(findings[0].what.contains("low (layer 0) uses high (layer 3)"));
    }
}
