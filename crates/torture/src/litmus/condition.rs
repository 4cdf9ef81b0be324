//! What may not come out: `r1=old & r2!=r3`. A side is the result of that name, or else the word itself.

use std::collections::BTreeMap;

use anyhow::{Context, bail};

/// Results by name.
pub type Registers = BTreeMap<String, String>;

/// A conjunction of comparisons.
#[derive(Clone, Debug)]
pub struct Condition {
    terms: Vec<Term>,
}

#[derive(Clone, Debug)]
struct Term {
    left: String,
    is_equal: bool,
    right: String,
}

impl Condition {
    /// Reads a condition.
    ///
    /// # Errors
    /// When a term has no `=` or `!=`.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let terms = text.split('&').map(|term| {
            let (left, is_equal, right) = match term.split_once("!=") {
                Some((left, right)) => (left, false, right),
                None => {
                    let (left, right) =
                        term.split_once('=').with_context(|| format!("`{term}` compares nothing"))?;
                    (left, true, right)
                }
            };
            Ok(Term { left: left.trim().to_owned(), is_equal, right: right.trim().to_owned() })
        });
        Ok(Self { terms: terms.collect::<anyhow::Result<_>>()? })
    }

    /// Whether these results meet it.
    ///
    /// # Errors
    /// When a left side is the name of no result.
    pub fn holds(&self, registers: &Registers) -> anyhow::Result<bool> {
        for term in &self.terms {
            let Some(left) = registers.get(&term.left) else {
                bail!("no statement keeps a result under `{}`", term.left);
            };
            let right = registers.get(&term.right).unwrap_or(&term.right);
            if (left == right) != term.is_equal {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_holds_when_all_its_terms_do() {
        let registers: Registers =
            [("r1", "ok"), ("r2", "ENOENT"), ("r3", "ok")].map(|(k, v)| (k.into(), v.into())).into();
        let holds = |text: &str| Condition::parse(text).and_then(|condition| condition.holds(&registers));
        assert!(holds("r1=ok & r2=ENOENT").expect("known"));
        assert!(!holds("r1=ok & r2=ok").expect("known"));
        assert!(holds("r1=r3 & r1!=r2").expect("known"));
        assert!(holds("r9=ok").is_err() && Condition::parse("r1").is_err());
    }
}
