//! Black-box test programs that run against any mounted directory.
