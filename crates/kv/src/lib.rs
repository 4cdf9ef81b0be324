//! Ordered-KV transactions: log, overlay, checkpoints, the embedded engine.
