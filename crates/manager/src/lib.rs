//! The manager: cluster identity, map, targets.
