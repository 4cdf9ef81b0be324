//! The crates of layer 3 decide from their inputs alone: they name no file, socket or clock (invariant 3 of the design).

use super::Finding;
use super::tree::Tree;

const LAYER: u64 = 3;
const BANNED: &[&str] = &["std::fs", "std::net", "SystemTime", "Instant", "tokio"];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust_files_of_layer(LAYER).filter(|file| {
        !file.is_test() && !file.path.contains("/benches/") && !file.path.contains("/examples/")
    }) {
        for (number, line) in file.production_lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            for word in BANNED.iter().filter(|word| names(code, word)) {
                let place = format!("{}:{}", file.path, number + 1);
                let what =
                    format!("names {word}; layer {LAYER} gets the outside world as a parameter (crate env)");
                findings.push(Finding::new(place, what));
            }
        }
    }
    findings
}

/// Whether `code` has `word` by itself, not as a part of a longer identifier.
fn names(code: &str, word: &str) -> bool {
    let part_of_identifier = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back().is_some_and(part_of_identifier);
        let after = code[at + word.len()..].chars().next().is_some_and(part_of_identifier);
        !before && !after
    })
}

#[cfg(test)]
mod tests {
    use super::super::tree::{CrateInfo, SourceFile};
    use super::*;

    fn findings(layer: u64, path: &str, text: &str) -> usize {
        let info = CrateInfo {
            name: "ashlar-core".into(),
            directory: "crates/core".into(),
            layer: Some(layer),
            uses: Vec::new(),
        };
        let file = SourceFile { path: path.into(), text: text.into() };
        check(&Tree { files: vec![file], crates: vec![info] }).len()
    }

    #[test]
    fn a_clock_or_file_in_layer_three_is_found() {
        let source = "crates/core/src/a.rs";
        assert_eq!(findings(3, source, "let now = Instant::now();\n"), 1);
        assert_eq!(findings(3, source, "use std::fs::File;\n"), 1);
        assert_eq!(findings(3, source, "// an Instant in a comment\nstruct InstantReply;\n"), 0);
        assert_eq!(findings(3, source, "#[cfg(test)]\nuse std::fs;\n"), 0);
        assert_eq!(findings(3, "crates/core/tests/a.rs", "use std::fs;\n"), 0);
        assert_eq!(findings(3, "crates/core/examples/a.rs", "use std::fs;\n"), 0);
        assert_eq!(findings(4, source, "use std::fs;\n"), 0);
    }
}
