//! The suites that run on a mount, one file per family.

pub mod bench;
pub mod cluster;
pub mod etcd;
pub mod masked_kernel;
pub mod model;
pub mod mutants;
pub mod posix;
pub mod real_work;
pub mod simulate;
pub mod stress;
pub mod torture;
pub mod upgrade;

use anyhow::bail;

use crate::repository::Repository;

/// The short form that `cargo xtask test` runs: minutes, not hours.
///
/// # Errors
/// The first suite that fails.
pub fn short(repository: &Repository) -> anyhow::Result<()> {
    posix::run(repository, &posix::Arguments::default())?;
    torture::Limits::short().run(repository)?;
    torture::Differential::short().run(repository)?;
    torture::Fsx::short().run(repository)?;
    torture::KillCycles::short().run(repository)?;
    torture::Full::short().run(repository)?;
    torture::Racer::short().run(repository)?;
    torture::Share::short().run(repository)?;
    cluster::short(repository)?;
    println!("\nonce more with nothing that came after Linux 5.4:");
    posix::run(repository, &posix::Arguments::on_oldest_kernel())?;
    torture::Racer::short_on_oldest_kernel().run(repository)?;
    torture::Share::short_on_oldest_kernel().run(repository)
}

/// Counts the parts of a suite and prints the line `N passed, N failed` at its end.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    passed: u64,
    failed: u64,
}

impl Tally {
    /// Notes how one part ended.
    pub(crate) fn note(&mut self, part: &str, result: anyhow::Result<()>) {
        match result {
            Ok(()) => {
                println!("{part}: passed");
                self.passed += 1;
            }
            Err(error) => {
                println!("{part}: FAILED: {error:#}");
                self.failed += 1;
            }
        }
    }

    /// Prints the line.
    ///
    /// # Errors
    /// When a part failed.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        println!("{} passed, {} failed", self.passed, self.failed);
        if self.failed > 0 {
            bail!("{} parts failed", self.failed);
        }
        Ok(())
    }
}
