//! Calls between roles: in-process transport, deadlines, forced codec.
