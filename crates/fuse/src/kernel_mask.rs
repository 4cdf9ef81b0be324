//! What of the running kernel to do without, so that one machine can show what a mount does on an older one.
//!
//! A mask hides what the kernel offers before it is negotiated, and answers "unknown" to requests the older kernel would not
//! have sent. What it cannot hide is behaviour without a name in the protocol: it replaces no run on the older kernel.

use crate::protocol::{Features, Opcode};
use std::str::FromStr;

/// Features and protocol version to do without; see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelMask {
    /// Treated as not offered.
    pub features: Features,
    /// The newest minor version of the protocol that the kernel is believed to speak.
    pub minor_max: u32,
}

impl KernelMask {
    /// The kernel as it is.
    pub const NONE: Self = Self { features: Features::EMPTY, minor_max: u32::MAX };

    /// Linux releases (those with long support), the minor version each speaks, and how many feature bits it knows: bits are
    /// given out in order.
    const LINUX: &[(&str, u32, u32)] = &[
        ("5.4", 31, 26),
        ("5.10", 32, 28),
        ("5.15", 34, 30),
        ("6.1", 37, 34),
        ("6.6", 39, 37),
        ("6.12", 41, 41),
    ];

    /// Hides everything that came after a Linux release, such as `5.4`; `None` for a release that is not in the list.
    pub fn of_linux(release: &str) -> Option<Self> {
        let (_, minor_max, bits) = *Self::LINUX.iter().find(|(name, ..)| *name == release)?;
        Some(Self { features: Features::from_bits(u64::MAX << bits), minor_max })
    }

    /// Hides what either hides.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { features: self.features | other.features, minor_max: self.minor_max.min(other.minor_max) }
    }
}

impl Default for KernelMask {
    fn default() -> Self {
        Self::NONE
    }
}

/// Linux releases and names of features, separated by commas: `5.4`, or `6.6,POSIX_LOCKS`.
impl FromStr for KernelMask {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',').map(str::trim).filter(|word| !word.is_empty()).try_fold(Self::NONE, |mask, word| {
            let feature = || Features::from_name(&word.to_ascii_uppercase());
            let only = |features| Self { features, ..Self::NONE };
            let one = Self::of_linux(word).or_else(|| feature().map(only)).ok_or_else(|| {
                let releases: Vec<&str> = Self::LINUX.iter().map(|(name, ..)| *name).collect();
                format!(
                    "`{word}` is neither a Linux release in this list ({}) nor the name of a FUSE feature such as POSIX_LOCKS",
                    releases.join(", ")
                )
            })?;
            Ok(mask.and(one))
        })
    }
}

impl Opcode {
    /// The minor version that brought this operation, if that was after the oldest one supported.
    const fn minor_first(self) -> u32 {
        match self {
            Self::Syncfs => 34,
            Self::Tmpfile => 37,
            Self::Statx => 39,
            Self::CopyFileRange64 => 45,
            _ => 0,
        }
    }

    /// Whether a kernel that speaks `minor` knows this operation.
    pub(crate) const fn is_known_to(self, minor: u32) -> bool {
        self.minor_first() <= minor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_hides_what_came_after_it() {
        let old = KernelMask::of_linux("5.4").unwrap();
        assert_eq!(old.minor_max, crate::protocol::MINOR_OLDEST);
        assert!(
            old.features
                .contains(Features::HANDLE_KILLPRIV_V2 | Features::INIT_EXT | Features::OVER_IO_URING)
        );
        assert_eq!(old.features & (Features::EXPLICIT_INVAL_DATA | Features::MAX_PAGES), Features::EMPTY);
        let newer = KernelMask::of_linux("6.6").unwrap();
        assert_eq!(newer.features & Features::DIRECT_IO_ALLOW_MMAP, Features::EMPTY);
        assert!(newer.features.contains(Features::PASSTHROUGH));
        for pair in KernelMask::LINUX.windows(2) {
            let [(_, older_minor, older_bits), (_, minor, bits)] = pair else { unreachable!() };
            assert!(older_minor < minor && older_bits < bits, "{pair:?}");
        }
    }

    #[test]
    fn a_list_hides_all_that_is_in_it() {
        let mask: KernelMask = "6.12, posix_locks".parse().unwrap();
        assert_eq!(mask.minor_max, 41);
        assert!(mask.features.contains(Features::POSIX_LOCKS | Features::OVER_IO_URING));
        assert_eq!("".parse(), Ok(KernelMask::NONE));
        assert!("5.5".parse::<KernelMask>().unwrap_err().contains("5.4, 5.10"));
        assert!("FAST".parse::<KernelMask>().is_err());
    }

    #[test]
    fn an_older_kernel_does_not_know_newer_operations() {
        assert!(!Opcode::Statx.is_known_to(37) && Opcode::Statx.is_known_to(39));
        assert!(Opcode::Tmpfile.is_known_to(37) && Opcode::Lookup.is_known_to(31));
        assert!(Opcode::ALL.iter().all(|opcode| opcode.is_known_to(45)));
    }
}
