//! What a call costs that a server answers without doing anything: the round trip that every call to it costs, by the same threads, connections and keys.
//!
//! `round_trip IDENTITY-DIRECTORY ADDRESS:PORT COUNT [PAUSE-MICROSECONDS]`, for a metadata server; `cargo xtask bench cluster-latency` runs it beside a mount. Prints the time of
//! each call in nanoseconds, a line each.
#![allow(clippy::unwrap_used, reason = "a program for developers")]

use ashlar_env::Env;
use ashlar_rpc::net::{Call, Caller, Epochs, Link, Service, TlsIdentity, Wanted};
use ashlar_rpc::wire::MetaCall;
use ashlar_types::codec::encode;
use ashlar_types::{Role, SessionId};
use parking_lot::RwLock;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Calls before the first that is timed.
const WARM_UP: usize = 100;

fn main() {
    let mut words = std::env::args().skip(1);
    let identity = PathBuf::from(words.next().expect("the directory of an identity"));
    let address = words.next().expect("the address of a metadata server").parse().unwrap();
    let count: usize = words.next().expect("how many calls").parse().unwrap();
    let pause = Duration::from_micros(words.next().map_or(0, |pause| pause.parse().unwrap()));
    let read = |file: &str| fs::read_to_string(identity.join(file)).unwrap();
    let identity =
        TlsIdentity::from_pem(&read("certificate.pem"), &read("key.pem"), &read("authority.pem")).unwrap();
    let mut instance = [0; 16];
    Env::os().entropy.fill(&mut instance);
    let identity = Arc::new(RwLock::new(Arc::new(identity)));
    let caller = Arc::new(Caller::new(identity, Role::Client, instance, Arc::new(Epochs::default())));
    let addresses = Box::new(move || (vec![address], Vec::new()));
    let link = Link::new(caller, Wanted { role: Role::Meta, node: None }, addresses, 1);
    // There is no such session, which is all that is looked at.
    let head = encode(&MetaCall::Close(SessionId(u64::MAX >> 1)));
    let call = Call {
        service: Service::Meta,
        head: &head,
        payload: &[],
        is_once: false,
        may_repeat: true,
        is_urgent: false,
    };
    for number in 0..WARM_UP + count {
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        let begun = Instant::now();
        link.call(&call, begun + Duration::from_secs(10)).unwrap();
        if number >= WARM_UP {
            println!("{}", begun.elapsed().as_nanos());
        }
    }
}
