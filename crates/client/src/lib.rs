//! The client library: sessions, leases, striping, bounded waits.
