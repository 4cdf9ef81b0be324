//! What a call over the network costs on one machine: latency of small calls, throughput of large ones, over loopback with mutual TLS.
//!
//! `cargo run --release -p ashlar-rpc --example call_cost`
#![allow(clippy::unwrap_used, reason = "an example for developers")]

#[path = "../tests/support/mod.rs"]
mod support;

use ashlar_rpc::net::{Call, Service};
use ashlar_types::Role;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Authority, Echo, any_port, caller, link, serve, soon};

fn main() {
    let authority = Authority::new(1);
    let (_server, address) =
        serve(authority.issue(1, &[Role::Storage]), Arc::new(Echo::default()), any_port());
    let link = link(&caller(authority.issue(2, &[Role::Client]), Role::Client), address);
    for (bytes, seconds) in [(0, 1), (4096, 1), (1 << 20, 2)] {
        for threads in [1, 4] {
            let payload = vec![7; bytes];
            let end = Instant::now() + Duration::from_secs(seconds);
            let calls: u64 = std::thread::scope(|scope| {
                let run = || {
                    let call = Call {
                        service: Service::Storage,
                        head: b"0123456789012345678901234567890123456789",
                        payload: &payload,
                        is_once: false,
                        may_repeat: false,
                        is_urgent: false,
                    };
                    let mut calls = 0;
                    while Instant::now() < end {
                        link.call(&call, soon()).unwrap();
                        calls += 1;
                    }
                    calls
                };
                let all: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
                all.into_iter().map(|one| one.join().unwrap()).sum()
            });
            let per_second = calls as f64 / seconds as f64;
            println!(
                "{bytes:>8} bytes there and back, {threads} threads: {per_second:>9.0} calls/s, {:>7.1} us, {:>6.0} MiB/s each way",
                1e6 / per_second * f64::from(threads),
                per_second * bytes as f64 / f64::from(1 << 20)
            );
        }
    }
}
