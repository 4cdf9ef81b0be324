//! Every Rust file begins with a `//!` comment that says what is in it.

use super::Finding;
use super::tree::Tree;

/// The longest comment at the head of a file; more belongs into `docs/`.
const HEADER_LINES_MAX: usize = 60;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        let header = file
            .text
            .lines()
            .skip_while(|line| line.starts_with("#!") || line.trim().is_empty())
            .take_while(|line| line.starts_with("//!"))
            .count();
        if header == 0 {
            findings.push(Finding::new(&file.path, "begins without a `//!` comment that says what it is"));
        } else if header > HEADER_LINES_MAX {
            let what = format!("begins with {header} lines of comment; at most {HEADER_LINES_MAX}");
            findings.push(Finding::new(&file.path, what));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::tree::SourceFile;
    use super::*;

    fn findings(text: &str) -> usize {
        let file = SourceFile { path: "crates/x/src/a.rs".into(), text: text.into() };
        check(&Tree { files: vec![file], ..Tree::default() }).len()
    }

    #[test]
    fn a_file_without_a_header_is_found() {
        assert_eq!(findings("//! What it is.\n\nfn main() {}\n"), 0);
        assert_eq!(findings("#![allow(x)]\n//! What it is.\n"), 0);
        assert_eq!(findings("fn main() {}\n//! Too late.\n"), 1);
        assert_eq!(findings(""), 1);
        assert_eq!(findings(&"//! On and on.\n".repeat(61)), 1);
    }
}
