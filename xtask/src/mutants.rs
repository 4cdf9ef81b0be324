//! Deliberate breakages of the protocols, one place each, which the simulations must notice (`crates/sim/mutants`, one file per breakage). Here is how such a file is read, and how it is applied;
//! `suite/mutants.rs` runs them.
//!
//! ```text
//! what: a change is answered although the target behind has not made it
//! where: crates/replication/src/chain/replica.rs
//! simulations: chunk-copies
//! survives: why nothing notices it, if that is so
//! --- find
//! the text, which is there exactly once
//! --- put
//! what is to be there instead
//! ```

use anyhow::{Context, bail};

use crate::tidy::tree::{SourceFile, Tree};

/// Where the files are.
pub const DIRECTORY: &str = "crates/sim/mutants/";
const ENDING: &str = ".mutant";
/// Begin the two texts.
const FIND: &str = "--- find";
const PUT: &str = "--- put";
/// What may be simulated.
const SIMULATIONS: [&str; 5] = ["system", "sweep", "servers", "chunk-copies", "metadata-copies"];

/// A breakage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// What its file is called, without the ending.
    pub name: String,
    /// What it breaks, in words.
    pub what: String,
    /// The file that is changed.
    pub path: String,
    /// The simulations that are to notice it, the one that does so first in front.
    pub simulations: Vec<String>,
    /// Why no simulation notices it, if that is known.
    pub survives: Option<String>,
    find: String,
    put: String,
}

/// Whether a file of the repository is one of a breakage.
fn is_mutant(path: &str) -> bool {
    path.starts_with(DIRECTORY) && path.ends_with(ENDING)
}

impl Mutant {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// When it has not that form.
    pub fn parse(path: &str, text: &str) -> anyhow::Result<Mutant> {
        let name = path.strip_prefix(DIRECTORY).and_then(|name| name.strip_suffix(ENDING));
        let (head, rest) = text.split_once(&format!("{FIND}\n")).context("has no text to find")?;
        let (find, put) = rest.split_once(&format!("{PUT}\n")).context("has no text to put")?;
        let optional = |name: &str| {
            let line = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            line.map(str::to_owned)
        };
        let field = |name: &str| optional(name).with_context(|| format!("does not say `{name}`"));
        let simulations: Vec<String> = field("simulations")?.split(", ").map(str::to_owned).collect();
        if let Some(unknown) = simulations.iter().find(|name| !SIMULATIONS.contains(&name.as_str())) {
            bail!("names a simulation that there is not: {unknown}");
        }
        Ok(Mutant {
            name: name.context("is elsewhere")?.to_owned(),
            what: field("what")?,
            path: field("where")?,
            simulations,
            survives: optional("survives"),
            find: find.to_owned(),
            put: put.to_owned(),
        })
    }

    /// `text` with the breakage in it.
    ///
    /// # Errors
    /// When what is to be found is not there exactly once.
    pub fn apply(&self, text: &str) -> anyhow::Result<String> {
        match text.matches(&self.find).count() {
            1 if self.find != self.put => Ok(text.replacen(&self.find, &self.put, 1)),
            1 => bail!("changes nothing"),
            found => bail!("its text is {found} times in {}, not once", self.path),
        }
    }
}

/// All of a repository, each with the file that has it; an error says why one cannot be made.
pub fn all(tree: &Tree) -> impl Iterator<Item = (&SourceFile, anyhow::Result<Mutant>)> {
    let files = tree.files.iter().filter(|file| is_mutant(&file.path));
    files.map(|file| {
        let mutant = Mutant::parse(&file.path, &file.text).and_then(|mutant| {
            mutant.apply(tree.text(&mutant.path))?;
            Ok(mutant)
        });
        (file, mutant)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "crates/sim/mutants/early-answer.mutant";
    const TEXT: &str = "what: too early\nwhere: a.rs\nsimulations: chunk-copies, system\n--- find\n    a\n--- put\n    b\n    c\n";

    #[test]
    fn a_mutant_is_read_and_applied_where_its_text_is_once() {
        let mutant = Mutant::parse(PATH, TEXT).unwrap();
        assert_eq!((mutant.name.as_str(), mutant.path.as_str()), ("early-answer", "a.rs"));
        assert_eq!(mutant.simulations, ["chunk-copies", "system"]);
        assert_eq!(mutant.survives, None);
        let known = TEXT.replace("--- find", "survives: nobody looks\n--- find");
        assert_eq!(Mutant::parse(PATH, &known).unwrap().survives.as_deref(), Some("nobody looks"));
        assert_eq!(mutant.apply("x\n    a\ny\n").unwrap(), "x\n    b\n    c\ny\n");
        assert!(mutant.apply("x\n").unwrap_err().to_string().contains("0 times"));
        assert!(mutant.apply("    a\n    a\n").unwrap_err().to_string().contains("2 times"));
    }

    #[test]
    fn what_is_missing_or_unknown_is_an_error() {
        for (from, to) in
            [("what: ", "why: "), ("--- put\n", ""), ("--- find\n", ""), ("chunk-copies", "chunks")]
        {
            assert!(Mutant::parse(PATH, &TEXT.replace(from, to)).is_err(), "{from}");
        }
        assert!(Mutant::parse("elsewhere/a.mutant", TEXT).is_err());
        let same = Mutant::parse(PATH, &TEXT.replace("    b\n    c\n", "    a\n")).unwrap();
        assert!(same.apply("    a\n").is_err());
    }
}
