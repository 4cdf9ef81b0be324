//! The characterization method of storage papers as software: measure a system the same way every time, and say where its limit is.
//!
//! What is here so far are ceilings of the machine itself:
//!
//! | module | measures |
//! |---|---|
//! | [`memory`] | what the memory of each NUMA node moves (STREAM), and whether its modules are placed well |

pub mod memory;
