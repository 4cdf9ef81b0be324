//! What a test program prints at its end: the plain line `N passed, N failed` that callers read, and before it one
//! paragraph per failure with the seed and the command that runs it again.

use std::fmt;

/// The sum of one program's checks.
#[derive(Debug, Default)]
pub struct Report {
    passed: u64,
    failures: Vec<String>,
    failed: u64,
}

/// LIMIT: failures whose text is kept; more are only counted.
const FAILURES_KEPT_MAX: usize = 50;

impl Report {
    /// An empty report.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts one check that held.
    pub fn pass(&mut self) {
        self.passed += 1;
    }

    /// Counts `count` checks that held.
    pub fn pass_many(&mut self, count: u64) {
        self.passed += count;
    }

    /// Counts one check that did not hold; `what` says what was expected and what was seen.
    pub fn fail(&mut self, what: impl Into<String>) {
        self.failed += 1;
        if self.failures.len() < FAILURES_KEPT_MAX {
            self.failures.push(what.into());
        }
    }

    /// Counts `condition`; `what` is evaluated only when it does not hold.
    pub fn check(&mut self, condition: bool, what: impl FnOnce() -> String) {
        if condition {
            self.pass();
        } else {
            self.fail(what());
        }
    }

    /// Adds the counts and failures of `other`.
    pub fn absorb(&mut self, other: Report) {
        self.passed += other.passed;
        let kept = other.failures.len() as u64;
        for failure in other.failures {
            self.fail(failure);
        }
        self.failed += other.failed - kept;
    }

    /// How many checks did not hold.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed
    }

    /// How many checks held.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.passed
    }

    /// The text of the failures kept.
    #[must_use]
    pub fn failures(&self) -> &[String] {
        &self.failures
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for failure in &self.failures {
            writeln!(f, "FAILED: {failure}")?;
        }
        let hidden = self.failed - self.failures.len() as u64;
        if hidden > 0 {
            writeln!(f, "... and {hidden} more")?;
        }
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_counts_every_check() {
        let mut report = Report::new();
        report.pass_many(2);
        report.check(true, || unreachable!());
        for n in 0..60 {
            report.fail(format!("number {n}"));
        }
        let text = report.to_string();
        assert!(text.contains("FAILED: number 49") && !text.contains("number 50"));
        assert!(text.ends_with("... and 10 more\n3 passed, 60 failed"), "{text}");
        let mut sum = Report::new();
        sum.absorb(report);
        assert_eq!((sum.passed(), sum.failed()), (3, 60));
    }
}
