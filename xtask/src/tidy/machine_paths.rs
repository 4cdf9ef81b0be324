//! Nothing in the repository depends on one machine: no path of a particular checkout, scratch or home directory.

use super::Finding;
use super::tree::Tree;

/// In two pieces, so that this file does not break its own rule.
const BANNED: &[(&str, &str)] = &[("/wo", "rk/"), ("/var/", "tmp"), ("/ho", "me/"), ("/ro", "ot/")];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        for (number, line) in file.text.lines().enumerate() {
            for (first, second) in BANNED {
                let path = format!("{first}{second}");
                if is_absolute(line, &path) {
                    let place = format!("{}:{}", file.path, number + 1);
                    findings
                        .push(Finding::new(place, format!("names {path}, which other machines do not have")));
                }
            }
        }
    }
    findings
}

/// Whether `path` occurs at the start of a path, not in the middle of a relative one.
fn is_absolute(line: &str, path: &str) -> bool {
    let continues =
        |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '}' | ')' | '/' | '*' | '~');
    line.match_indices(path).any(|(at, _)| !line[..at].chars().next_back().is_some_and(continues))
}

#[cfg(test)]
mod tests {
    use super::super::tree::SourceFile;
    use super::*;

    fn findings(text: &str) -> usize {
        let file = SourceFile { path: "docs/a.md".into(), text: text.into() };
        check(&Tree { files: vec![file], ..Tree::default() }).len()
    }

    #[test]
    fn absolute_paths_of_one_machine_are_found() {
        let path = |(first, second): &(&str, &str)| format!("see {first}{second}x\n");
        for banned in BANNED {
            assert_eq!(findings(&path(banned)), 1, "{banned:?}");
        }
        assert_eq!(findings("target/work/x, $HOME/work/x, frame-work/ and /srv/data\n"), 0);
    }
}
