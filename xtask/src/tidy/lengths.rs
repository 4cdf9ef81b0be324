//! Functions have at most 100 lines and files at most 800 lines besides their tests.
//!
//! Relies on rustfmt: a function ends with the first closing brace at the indentation of its `fn`.

use super::Finding;
use super::tree::{SourceFile, Tree};

const FUNCTION_LINES_MAX: usize = 100;
const FILE_LINES_MAX: usize = 800;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        let lines = file.production_lines().count();
        if lines > FILE_LINES_MAX && !file.is_test() {
            let what = format!("has {lines} lines besides tests; at most {FILE_LINES_MAX}");
            findings.push(Finding::new(&file.path, what));
        }
        findings.extend(long_functions(file));
    }
    findings
}

fn long_functions(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut open: Option<(usize, &str, String)> = None;
    for (number, line) in file.text.lines().enumerate() {
        if let Some((indentation, name)) = function_head(line) {
            open = Some((number, indentation, name.to_owned()));
        } else if let Some((start, indentation, name)) = &open
            && line.strip_prefix(*indentation).is_some_and(|rest| rest.trim_end() == "}")
        {
            let lines = number - start + 1;
            if lines > FUNCTION_LINES_MAX {
                let what = format!("function {name} has {lines} lines; at most {FUNCTION_LINES_MAX}");
                findings.push(Finding::new(format!("{}:{}", file.path, start + 1), what));
            }
            open = None;
        }
    }
    findings
}

/// The indentation and name, if the line begins a function.
fn function_head(line: &str) -> Option<(&str, &str)> {
    let code = line.trim_start();
    let indentation = &line[..line.len() - code.len()];
    let before_name = code.find("fn ").filter(|at| {
        code[..*at].split_whitespace().all(|word| {
            matches!(word, "pub" | "const" | "async" | "unsafe" | "extern" | "default")
                || word.starts_with("pub(")
                || word.ends_with(')')
                || word.starts_with('"')
                || word == "in"
        })
    })?;
    let name = code[before_name + 3..].split(['(', '<', ' ']).next()?;
    (!name.is_empty()).then_some((indentation, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: String) -> Vec<Finding> {
        let file = SourceFile { path: "crates/x/src/a.rs".into(), text };
        check(&Tree { files: vec![file], ..Tree::default() })
    }

    fn function(lines: usize) -> String {
        format!("    pub(crate) async fn long<T>() {{\n{}    }}\n", "        x();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_of_101_lines_is_found() {
        assert_eq!(findings(function(100)), []);
        let found = findings(format!("{}{}", function(5), function(101)));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].place, "crates/x/src/a.rs:6");
        assert!(found[0].what.contains("function long has 101 lines"));
    }

    #[test]
    fn a_file_of_801_lines_is_found_but_tests_do_not_count() {
        let line = "// x\n";
        assert_eq!(findings(line.repeat(800)), []);
        assert_eq!(findings(line.repeat(801)).len(), 1);
        assert_eq!(findings(format!("{}#[cfg(test)]\n{}", line.repeat(800), line.repeat(900))), []);
    }
}
