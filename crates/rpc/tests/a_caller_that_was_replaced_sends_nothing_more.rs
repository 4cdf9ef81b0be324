//! Goal: a metadata server that another machine may have taken the place of says nothing more to anybody. Method: servers over TLS, and a caller that may send for as long as the test says.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_rpc::net::{Call, NetError, Service, Watch};
use ashlar_types::Role;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use support::two_servers::Hung;
use support::{Authority, Echo, any_port, link, new_caller, serve, soon};

fn call(head: &[u8]) -> Call<'_> {
    let (service, payload) = (Service::Storage, &[][..]);
    Call { service, head, payload, is_once: false, may_repeat: true, is_urgent: false }
}

#[test]
fn it_sends_no_call_and_none_once_more() {
    let authority = Authority::new(1);
    let may_send = Arc::new(AtomicBool::new(true));
    let asked = may_send.clone();
    let caller = new_caller(authority.issue(7, &[Role::Meta]), Role::Meta);
    let caller = Arc::new(caller.guarded(Arc::new(move || asked.load(SeqCst))));
    let hung = Arc::new(Hung::default());
    let (first, address) = serve(authority.issue(1, &[Role::Storage]), hung.clone(), any_port());
    let link = link(&caller, address);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let watch = Watch::default();
            (link.call_watched(&call(b"x"), soon(), &watch).map(drop), watch.was_sent())
        });
        while hung.0.lock().is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        may_send.store(false, SeqCst);
        // On a connection that there is.
        let watch = Watch::default();
        let outcome = link.call_watched(&call(b"x"), soon(), &watch).map(drop);
        assert!(matches!(outcome, Err(NetError::Elsewhere)) && !watch.was_sent(), "{outcome:?}");
        let outcome = link.park(&call(b"x"), soon()).map(drop);
        assert!(matches!(outcome, Err(NetError::Elsewhere)), "{outcome:?}");
        // What it has sent is waited for, and not sent again.
        assert!(!waiting.is_finished() && hung.0.lock().len() == 1);
        drop(first);
        let echo = Arc::new(Echo::default());
        let (_second, _) = serve(authority.issue(1, &[Role::Storage]), echo.clone(), address);
        let (outcome, was_sent) = waiting.join().unwrap();
        assert!(matches!(outcome, Err(NetError::Elsewhere)) && was_sent, "{outcome:?}");
        assert_eq!(echo.served.load(SeqCst), 0);
        // It has found that nobody took its place.
        may_send.store(true, SeqCst);
        assert_eq!(link.call(&call(b"x"), soon()).unwrap().head(), b"x");
    });
}
