//! POSIX metadata as KV transactions, one verb per file.
