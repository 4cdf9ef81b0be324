//! FUSE: the kernel protocol, its two transports, and the adaptor to the client library.
