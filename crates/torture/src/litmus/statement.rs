//! The statements of a row: `name = verb word word; verb word; ...`.
//!
//! A statement with a name keeps its result under it, and may fail: then the result is the name of the errno. One without a name must succeed.
//! The verbs are in `verb.rs`; `tell N` and `await N` are between clients.

use anyhow::{Context, bail};

/// One call of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Under which name the result is kept.
    pub register: Option<String>,
    /// The verb and what follows it.
    pub words: Vec<String>,
}

impl std::fmt::Display for Statement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(register) = &self.register {
            write!(f, "{register} = ")?;
        }
        f.write_str(&self.words.join(" "))
    }
}

/// Reads the statements of one client.
///
/// # Errors
/// When one has no verb, or a name that is not one word.
pub fn parse(text: &str) -> anyhow::Result<Vec<Statement>> {
    let parts = text.split(';').map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| parse_one(part).with_context(|| format!("the statement `{part}`"))).collect()
}

fn parse_one(text: &str) -> anyhow::Result<Statement> {
    let (register, call) = match text.split_once(" = ") {
        Some((register, call)) => (Some(register.trim().to_owned()), call),
        None => (None, text),
    };
    let words: Vec<String> = call.split_whitespace().map(str::to_owned).collect();
    if words.is_empty() {
        bail!("has no verb");
    }
    if register.as_ref().is_some_and(|name| name.is_empty() || name.contains(char::is_whitespace)) {
        bail!("keeps its result under a name that is not one word");
    }
    Ok(Statement { register, words })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_read_and_shown_again() {
        let text = "put x/f old; r1 = read x/f;";
        let statements = parse(text).expect("readable");
        assert_eq!(statements.len(), 2);
        assert_eq!(statements[1].register.as_deref(), Some("r1"));
        assert_eq!(statements[1].to_string(), "r1 = read x/f");
        assert!(parse("a b = stat x/f").is_err());
        assert!(parse("r1 = ").is_err() || parse("r1 = ").is_ok_and(|all| all[0].register.is_none()));
    }
}
