//! The ashlar binary: wiring and commands.
fn main() {}
