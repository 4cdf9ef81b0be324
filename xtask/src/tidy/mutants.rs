//! Each deliberate breakage of `crates/sim/mutants` can still be made: what it replaces is found exactly once.

use super::Finding;
use super::tree::{SourceFile, Tree};
use crate::mutants;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let finding = |(file, mutant): (&SourceFile, anyhow::Result<_>)| {
        let error = mutant.err()?;
        Some(Finding::new(&file.path, format!("cannot be made any more: {error:#}")))
    };
    mutants::all(tree).filter_map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<Finding> {
        let mutant =
            "what: it is not\nwhere: crates/x/src/a.rs\nsimulations: system\n--- find\n    is();\n--- put\n";
        let file = |path: &str, text: &str| SourceFile { path: path.into(), text: text.into() };
        let files = vec![file("crates/sim/mutants/is-not.mutant", mutant), file("crates/x/src/a.rs", text)];
        check(&Tree { files, ..Tree::default() })
    }

    #[test]
    fn a_mutant_whose_text_is_gone_or_there_twice_is_found() {
        assert_eq!(findings("fn a() {\n    is();\n}\n"), []);
        assert_eq!(findings("fn a() {}\n").len(), 1);
        assert_eq!(findings("    is();\n    is();\n").len(), 1);
    }
}
