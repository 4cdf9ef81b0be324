//! An older kernel, emulated by what the mount is told to do without: `--mask-features`, handed on to `ashlar up`.

use std::process::Command;

/// The option of the suites that can run so.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct MaskedKernel {
    /// Do without what came after a Linux release (5.4, 5.10, 5.15, 6.1, 6.6 or 6.12), or without FUSE features by name,
    /// separated by commas.
    #[arg(long, value_name = "LIST")]
    mask_features: Option<String>,
}

impl MaskedKernel {
    /// The oldest kernel supported.
    #[must_use]
    pub fn oldest() -> Self {
        Self { mask_features: Some("5.4".to_owned()) }
    }

    /// What is masked, if anything is.
    #[must_use]
    pub fn list(&self) -> Option<&str> {
        self.mask_features.as_deref()
    }

    /// Adds it to an `ashlar-torture` command that starts a server.
    pub fn pass_to_server(&self, command: &mut Command) {
        if let Some(list) = self.list() {
            command.arg(format!("--up-arg=--mask-features={list}"));
        }
    }

    /// Whether `O_TMPFILE` is masked: FUSE has it from Linux 6.1 on.
    #[must_use]
    pub fn lacks_tmpfile(&self) -> bool {
        self.is_any_of(&["5.4", "5.10", "5.15"])
    }

    /// Whether shared mappings of files that another mount writes are refused: FUSE maps what is read past its cache from Linux 6.6 on.
    #[must_use]
    pub fn lacks_shared_mappings(&self) -> bool {
        self.is_any_of(&["5.4", "5.10", "5.15", "6.1"])
    }

    fn is_any_of(&self, lacking: &[&str]) -> bool {
        let mut words = self.list().unwrap_or_default().split(',').map(str::trim);
        words.any(|word| lacking.contains(&word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_release_lacks_is_known() {
        let masked = |list: &str| MaskedKernel { mask_features: Some(list.to_owned()) };
        assert!(MaskedKernel::oldest().lacks_tmpfile() && masked("POSIX_LOCKS, 5.15").lacks_tmpfile());
        assert!(masked("6.1").lacks_shared_mappings() && !masked("6.6").lacks_shared_mappings());
        assert!(!masked("6.1").lacks_tmpfile() && !MaskedKernel::default().lacks_tmpfile());
    }

    #[test]
    fn only_a_mask_is_passed_on() {
        let args = |masked: &MaskedKernel| {
            let mut command = Command::new("x");
            masked.pass_to_server(&mut command);
            command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(args(&MaskedKernel::oldest()), ["--up-arg=--mask-features=5.4"]);
        assert!(args(&MaskedKernel::default()).is_empty());
    }
}
