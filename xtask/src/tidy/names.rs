//! Modules are called after the one thing they hold. A drawer for everything is no module.

use super::Finding;
use super::tree::Tree;

const BANNED: &[&str] = &["util", "utils", "common", "helper", "helpers", "misc"];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        let stem_or_folder = file.path.trim_end_matches(".rs").split('/').find(|part| BANNED.contains(part));
        if let Some(name) = stem_or_folder {
            findings.push(Finding::new(&file.path, format!("`{name}` says nothing about what is inside")));
        }
        for (number, line) in file.text.lines().enumerate() {
            let name = line.trim().strip_suffix(" {").and_then(|head| head.rsplit("mod ").next());
            let inline = line.trim_start().starts_with("mod ") || line.trim_start().starts_with("pub mod ");
            if let Some(name) = name.filter(|name| inline && BANNED.contains(name)) {
                let place = format!("{}:{}", file.path, number + 1);
                findings.push(Finding::new(place, format!("`{name}` says nothing about what is inside")));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::tree::SourceFile;
    use super::*;

    fn findings(path: &str, text: &str) -> usize {
        let file = SourceFile { path: path.into(), text: text.into() };
        check(&Tree { files: vec![file], ..Tree::default() }).len()
    }

    #[test]
    fn drawers_are_found_as_files_folders_and_inline_modules() {
        assert_eq!(findings("crates/x/src/rename.rs", "mod tests {\n"), 0);
        assert_eq!(findings("crates/x/src/utils.rs", ""), 1);
        assert_eq!(findings("crates/x/tests/common/mod.rs", ""), 1);
        assert_eq!(findings("crates/x/src/a.rs", "mod helpers {\n}\n"), 1);
    }
}
