//! Every third-party dependency that a manifest names has a line in `docs/dependencies.md` that says why, and every line has
//! a dependency.

use std::collections::BTreeSet;

use super::Finding;
use super::tree::Tree;

const DOCUMENT: &str = "docs/dependencies.md";
/// Crates of the workspace begin with it.
const OWN: &str = "ashlar-";

pub fn check(tree: &Tree) -> Vec<Finding> {
    let text = tree.files.iter().find(|file| file.path == DOCUMENT).map_or("", |file| file.text.as_str());
    let documented: BTreeSet<&str> = text.lines().filter_map(documented_name).collect();
    let mut used = BTreeSet::new();
    let mut findings = Vec::new();
    for manifest in tree.files.iter().filter(|file| file.path.ends_with("/Cargo.toml")) {
        for (number, name) in named_in(&manifest.text) {
            used.insert(name);
            if !documented.contains(name) {
                let what = format!("`{name}` has no line in {DOCUMENT} that says why it is there");
                findings.push(Finding::new(format!("{}:{number}", manifest.path), what));
            }
        }
    }
    for name in documented.difference(&used) {
        findings
            .push(Finding::new(DOCUMENT, format!("no manifest names `{name}` any more; remove its line")));
    }
    findings
}

/// The crate a row of the table is about: its first cell, in backquotes.
fn documented_name(line: &str) -> Option<&str> {
    line.strip_prefix("| `")?.split_once('`').map(|(name, _)| name)
}

/// Third-party dependencies of a manifest with their line numbers: keys of a `dependencies` table of any kind and platform, or
/// tables of their own.
fn named_in(manifest: &str) -> Vec<(usize, &str)> {
    let mut is_inside = false;
    let mut names = Vec::new();
    for (number, line) in (1..).zip(manifest.lines().map(str::trim)) {
        let name = match line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((header, _)) => {
                is_inside = header.ends_with("dependencies");
                header.rsplit_once("dependencies.").map(|(_, name)| name)
            }
            None if is_inside && !line.starts_with('#') => line.find(['.', '=', ' ']).map(|end| &line[..end]),
            None => None,
        };
        names.extend(
            name.filter(|name| name.starts_with(char::is_alphabetic) && !name.starts_with(OWN))
                .map(|name| (number, name)),
        );
    }
    names
}

#[cfg(test)]
mod tests {
    use super::super::tree::SourceFile;
    use super::*;

    fn findings(document: &str, manifest: &str) -> Vec<Finding> {
        let file = |path: &str, text: &str| SourceFile { path: path.into(), text: text.into() };
        let files = vec![file(DOCUMENT, document), file("crates/x/Cargo.toml", manifest)];
        check(&Tree { files, ..Tree::default() })
    }

    const MANIFEST: &str = "[package]\nname = \"x\"\n[dependencies]\nashlar-types.workspace = true\n# why\nserde.workspace = true\n\
        [target.'cfg(unix)'.dev-dependencies]\nlibc = \"0.2\"\n[dependencies.heed]\nversion = \"1\"\n[features]\nfast = []\n";

    #[test]
    fn a_dependency_without_a_line_and_a_line_without_a_dependency_are_found() {
        let whole = "| crate | why |\n| `heed` | a |\n| `libc` | b |\n| `serde` | c |\n";
        assert_eq!(findings(whole, MANIFEST), []);
        let missing = findings("| `heed` | a |\n| `serde` | c |\n", MANIFEST);
        assert_eq!(missing.len(), 1, "{missing:?}");
        assert_eq!(missing[0].place, "crates/x/Cargo.toml:8");
        let surplus = findings(&format!("{whole}| `gone` | d |\n"), MANIFEST);
        assert_eq!(surplus.len(), 1, "{surplus:?}");
        assert!(surplus[0].what.contains("`gone`"));
    }
}
