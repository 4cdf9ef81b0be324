//! Chunks on a target: slabs, index, checksums, dirty regions, scrub.
