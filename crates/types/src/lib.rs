//! Ids, quantities, errno, layouts, cluster map, messages and disk headers; no I/O.
