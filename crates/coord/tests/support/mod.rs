//! Real etcd members on the loopback device, their certificates, and a proxy in front of one.

pub mod certificates;
pub mod members;
pub mod ports;
pub mod proxy;
