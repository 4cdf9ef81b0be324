//! Placeholder until the comparison is written.
fn main() {}
