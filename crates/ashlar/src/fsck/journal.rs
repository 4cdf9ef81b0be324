//! The journal of an engine: a file that never holds anything, and without which an engine is not opened.

use super::problem::{Class, Ledger, Problem};
use anyhow::{Context, Result};
use ashlar_kv::{FjallEngine, KvError};
use std::path::Path;

/// Tells that the engine in `path` has lost its journal, if that is all it lost, and makes it anew if the ledger is repairing.
///
/// # Errors
/// When that cannot be found out, or the file cannot be made. What else is wrong with the engine shows when it is opened.
pub fn put_back_journal(path: &Path, class: Class, ledger: &mut Ledger) -> Result<()> {
    let journal = match FjallEngine::missing_journal(path) {
        Ok(Some(journal)) => journal,
        Ok(None) | Err(KvError::Corrupt { .. }) => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("cannot look at {}", path.display())),
    };
    if ledger.is_repairing {
        FjallEngine::put_back_journal(path)
            .with_context(|| format!("cannot make {} anew", journal.display()))?;
    }
    ledger.add(Problem {
        class,
        inode: None,
        name: None,
        what: format!("{} is missing", journal.display()),
        remedy: "make it anew: it is always empty".to_owned(),
        state: ledger.state_after(true),
    });
    Ok(())
}
