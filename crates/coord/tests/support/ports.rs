//! Ports that servers of a test keep, also while they are down. They are below those that the kernel gives to connections (from 32768 on, see `ip_local_port_range` in `ip(7)`), of which one would take
//! the place of a server that is started again; and no two test programs that run beside each other have the same.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

const FIRST: u16 = 10_240;
const END: u16 = 32_768;

/// Ports that one program takes at a time, the first of which it listens at for as long as it runs, which keeps others away.
const BLOCK: u16 = 64;

struct Taken {
    guards: Vec<TcpListener>,
    next: u16,
}

static TAKEN: Mutex<Taken> = Mutex::new(Taken { guards: Vec::new(), next: 0 });

impl Taken {
    fn next(&mut self) -> u16 {
        if self.next.is_multiple_of(BLOCK) {
            // By process, so that most find a free block at once.
            let blocks = (END - FIRST) / BLOCK;
            let from = std::process::id() as u16 % blocks;
            let starts = (0..blocks).map(|at| FIRST + (from + at) % blocks * BLOCK);
            let mut free = starts
                .filter_map(|start| Some((TcpListener::bind((Ipv4Addr::LOCALHOST, start)).ok()?, start)));
            let (guard, start) = free.next().expect("every block of ports is taken");
            self.guards.push(guard);
            self.next = start + 1;
        }
        self.next += 1;
        self.next - 1
    }
}

/// So many ports in a row that nobody listens at on `host`, an address of this machine; no two calls have the same.
pub fn free_ports(host: &str, count: usize) -> Vec<u16> {
    assert!(count < usize::from(BLOCK), "more in a row than a block has: {count}");
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut ports = Vec::new();
    while ports.len() < count {
        let port = taken.next();
        let is_free = TcpListener::bind((host, port)).is_ok();
        if !is_free || ports.last().is_some_and(|last| last + 1 != port) {
            ports.clear();
        }
        ports.extend(is_free.then_some(port));
    }
    ports
}
