//! What has to be said before failures happen to a file system that people use.

use anyhow::{Result, bail};

/// Refuses unless this very file system was named.
pub fn require(cluster: &str, given: Option<&str>) -> Result<()> {
    match given {
        Some(given) if given == cluster => Ok(()),
        Some(given) => bail!(
            "--consent {} is not the id of this file system, which is {cluster}: nothing was done. Is it the one that is meant?",
            given.escape_debug()
        ),
        None => bail!(
            "file system {cluster} is no lab: a drill has its servers, disks and links fail, and whoever uses it waits meanwhile. Nothing was done. If that is wanted, and its \
             administrators know, say so with --consent {cluster}; try it in a lab first (`ashlar drill run --make-lab --lab DIR`)"
        ),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_that_is_no_lab_is_named_in_full() {
        let id = "11111111-2222-3333-4444-555555555555";
        assert!(require(id, Some(id)).is_ok());
        let unsaid = require(id, None).unwrap_err().to_string();
        assert!(
            unsaid.contains(&format!("--consent {id}")) && unsaid.contains("Nothing was done"),
            "{unsaid}"
        );
        for wrong in ["", "yes", &id[1..], "11111111-2222-3333-4444-555555555556"] {
            let refused = require(id, Some(wrong)).unwrap_err().to_string();
            assert!(refused.contains("is not the id"), "{refused}");
        }
    }
}
