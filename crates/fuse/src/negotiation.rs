//! INIT: what the kernel offers, what the mount asks for, what both agree on. Pure; the session does the I/O.
//!
//! The oldest kernel supported is Linux 5.4 (protocol 7.31). Everything newer is used where it is offered and done without
//! where it is not: no feature bit is required.

use crate::options::{MountOptions, TransportChoice};
use crate::protocol::{Features, MAJOR, MINOR_NEWEST, MINOR_OLDEST, wire};
use crate::transport::Transport;
use zerocopy::FromBytes;

/// Pages per request where `MAX_PAGES` was not granted.
const PAGES_MAX_CLASSIC: u32 = 32;

/// What kernel and mount agreed on.
#[derive(Clone, Debug)]
pub struct Negotiated {
    /// Protocol minor version the kernel speaks (45 is Linux 6.18) and the mount did not mask.
    pub kernel_minor: u32,
    /// Features the kernel offered and the mount did not mask.
    pub offered: Features,
    /// Features in force.
    pub features: Features,
    /// Largest WRITE in bytes.
    pub max_write: u32,
    /// Largest request in pages; READs are no larger.
    pub max_pages: u16,
    /// Read-ahead in bytes the kernel was told.
    pub max_readahead: u32,
    /// The transport in use.
    pub transport: Transport,
}

/// Why the negotiation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NegotiationError {
    /// Not the first message of this protocol.
    #[error("the kernel's first message is not a FUSE INIT of protocol 7")]
    NotInit,
    /// Before Linux 5.4.
    #[error("the kernel speaks FUSE protocol 7.{0}; 7.{MINOR_OLDEST} (Linux 5.4) or later is needed")]
    KernelTooOld(u32),
}

/// The two sides of an INIT.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) kernel_minor: u32,
    pub(crate) offered: Features,
    pub(crate) features: Features,
    pub(crate) max_write: u32,
    pub(crate) max_pages: u16,
    pub(crate) max_readahead: u32,
}

impl Terms {
    /// Reads the kernel's `argument` and decides. `page_size` and `pages_limit` (fs.fuse.max_pages_limit) are the host's.
    pub(crate) fn negotiate(
        argument: &[u8],
        options: &MountOptions,
        page_size: u32,
        pages_limit: u32,
    ) -> Result<Self, NegotiationError> {
        let (base, _) =
            wire::InitInCompat::read_from_prefix(argument).map_err(|_| NegotiationError::NotInit)?;
        if base.major != MAJOR {
            return Err(NegotiationError::NotInit);
        }
        if base.minor < MINOR_OLDEST {
            return Err(NegotiationError::KernelTooOld(base.minor));
        }
        let mut offered = Features::from_bits(u64::from(base.flags));
        if let Ok((full, _)) = wire::InitIn::read_from_prefix(argument)
            && offered.contains(Features::INIT_EXT)
        {
            offered |= Features::from_bits(u64::from(full.flags2) << 32);
        }
        offered = offered.without(options.mask.features);
        if !offered.contains(Features::INIT_EXT) {
            offered = Features::from_bits(offered.bits() & u64::from(u32::MAX));
        }
        let features = agreed(offered, options);
        let pages_max = if features.contains(Features::MAX_PAGES) {
            pages_limit.clamp(1, u32::from(u16::MAX))
        } else {
            PAGES_MAX_CLASSIC
        };
        let max_pages = (options.max_write / page_size).clamp(1, pages_max);
        Ok(Self {
            kernel_minor: base.minor.min(options.mask.minor_max.max(MINOR_OLDEST)),
            offered,
            features,
            max_write: max_pages * page_size,
            max_pages: max_pages as u16,
            max_readahead: options.max_readahead,
        })
    }

    /// The reply to INIT.
    pub(crate) fn reply(&self, options: &MountOptions) -> wire::InitOut {
        let bits = self.features.bits();
        let timeout =
            options.request_timeout.map_or(0, |timeout| timeout.as_secs().clamp(1, u64::from(u16::MAX)));
        let has = |feature| self.features.contains(feature);
        wire::InitOut {
            major: MAJOR,
            minor: self.kernel_minor.min(MINOR_NEWEST),
            max_readahead: self.max_readahead,
            flags: bits as u32,
            flags2: (bits >> 32) as u32,
            max_background: options.max_background,
            congestion_threshold: options.congestion_threshold,
            max_write: self.max_write,
            time_gran: options.time_granularity_ns,
            max_pages: self.max_pages,
            max_stack_depth: if has(Features::PASSTHROUGH) { options.stack_depth_max } else { 0 },
            request_timeout: if has(Features::REQUEST_TIMEOUT) { timeout as u16 } else { 0 },
            ..Default::default()
        }
    }
}

/// What is asked for, offered and consistent.
fn agreed(offered: Features, options: &MountOptions) -> Features {
    let mut asked = options.features.without(Features::OVER_IO_URING);
    asked |= Features::when(Features::OVER_IO_URING, options.transport == TransportChoice::Auto);
    asked |= Features::when(Features::REQUEST_TIMEOUT, options.request_timeout.is_some());
    asked |= Features::INIT_EXT;
    let mut agreed = asked & offered;
    if agreed.contains(Features::EXPLICIT_INVAL_DATA) {
        // The kernel takes explicit over automatic; saying so here keeps `Negotiated::features` true.
        agreed = agreed.without(Features::AUTO_INVAL_DATA);
    }
    if !agreed.contains(Features::DO_READDIRPLUS) {
        agreed = agreed.without(Features::READDIRPLUS_AUTO);
    }
    if agreed.contains(Features::HANDLE_KILLPRIV_V2) {
        agreed = agreed.without(Features::HANDLE_KILLPRIV);
    }
    if agreed.contains(Features::WRITEBACK_CACHE) || options.stack_depth_max == 0 {
        agreed = agreed.without(Features::PASSTHROUGH);
    }
    agreed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_mask::KernelMask;
    use zerocopy::IntoBytes;

    fn offer(minor: u32, features: Features) -> wire::InitIn {
        let bits = features.bits();
        let (flags, flags2) = (bits as u32, (bits >> 32) as u32);
        wire::InitIn { major: 7, minor, max_readahead: 131_072, flags, flags2, ..Default::default() }
    }

    fn terms(offer: &wire::InitIn, options: &MountOptions) -> Terms {
        Terms::negotiate(offer.as_bytes(), options, 4096, 256).unwrap()
    }

    #[test]
    fn the_oldest_kernel_gets_what_it_offers_and_no_second_word() {
        let old =
            Features::ASYNC_READ | Features::BIG_WRITES | Features::PARALLEL_DIROPS | Features::ASYNC_DIO;
        let init = offer(31, old | Features::HAS_EXPIRE_ONLY);
        let terms = Terms::negotiate(&init.as_bytes()[..16], &MountOptions::default(), 4096, 256).unwrap();
        assert_eq!(terms.features, old);
        assert_eq!((terms.max_write, terms.max_pages), (131_072, 32));
        let out = terms.reply(&MountOptions::default());
        assert_eq!((out.minor, out.flags2), (31, 0));
    }

    #[test]
    fn a_mask_makes_a_new_kernel_old() {
        let all = Features::from_bits(u64::MAX);
        let mask = KernelMask { features: Features::INIT_EXT, minor_max: 36 };
        let options = MountOptions { mask, ..Default::default() };
        let terms = terms(&offer(45, all), &options);
        assert_eq!(terms.reply(&options).minor, 36, "the kernel is told, and sends what that version sends");
        assert_eq!(terms.features.bits() >> 32, 0);
        assert!(!terms.features.contains(Features::OVER_IO_URING));
        assert!(terms.features.contains(Features::MAX_PAGES));
    }

    #[test]
    fn contradictions_are_settled_before_the_kernel_sees_them() {
        let all = Features::from_bits(u64::MAX);
        let features = MountOptions::FEATURES_DEFAULT
            | Features::EXPLICIT_INVAL_DATA
            | Features::PASSTHROUGH
            | Features::WRITEBACK_CACHE;
        let mask = KernelMask { features: Features::DO_READDIRPLUS, ..KernelMask::NONE };
        let options = MountOptions { features, mask, ..Default::default() };
        let agreed = terms(&offer(45, all), &options).features;
        for gone in [Features::AUTO_INVAL_DATA, Features::READDIRPLUS_AUTO, Features::PASSTHROUGH] {
            assert!(!agreed.contains(gone), "{gone:?}");
        }
        assert!(!agreed.contains(Features::ALLOW_IDMAP), "never asked for, never granted");
    }

    #[test]
    fn what_is_no_init_of_a_known_kernel_is_refused() {
        let negotiate = |init: &wire::InitIn, len: usize| {
            Terms::negotiate(&init.as_bytes()[..len], &MountOptions::default(), 4096, 256).map(|_| ())
        };
        assert_eq!(negotiate(&offer(45, Features::EMPTY), 15), Err(NegotiationError::NotInit));
        assert_eq!(negotiate(&offer(28, Features::EMPTY), 16), Err(NegotiationError::KernelTooOld(28)));
        let other = wire::InitIn { major: 8, ..offer(0, Features::EMPTY) };
        assert_eq!(negotiate(&other, 64), Err(NegotiationError::NotInit));
    }
}
