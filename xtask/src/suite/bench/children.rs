//! Processes that end with whoever has started them.

use std::process::{Child, Command};

use anyhow::Context;

use crate::shell;

/// They are killed when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Children(pub(super) Vec<Child>);

impl Children {
    /// Starts one more.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn start(&mut self, command: &mut Command) -> anyhow::Result<()> {
        self.0.push(command.spawn().with_context(|| format!("start {}", shell::show(command)))?);
        Ok(())
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that has ended already cannot be killed.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
