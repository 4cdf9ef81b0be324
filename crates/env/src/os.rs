//! The operating system as the environment.
