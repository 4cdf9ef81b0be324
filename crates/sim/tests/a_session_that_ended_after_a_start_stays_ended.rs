//! Goal: a mount that was silent after a metadata server was started anew, and had not told yet what it has, is told that its session has ended there, however it comes back. Method: the production service and what
//! serves it, over a simulated disk and with a clock that is set; a session with a file without a name is there, the service is started anew, and nothing is heard of the mount for 25 s.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_meta::MetaService;
use ashlar_rpc::serve::MetaEndpoint;
use ashlar_rpc::wire::{MetaAnswer, MetaCall};
use ashlar_rpc::{Hosted, SessionHosts};
use ashlar_types::message::{MetaReply, MetaRequest};
use ashlar_types::node::SessionOwner;
use ashlar_types::{Credentials, DescriptionId, Errno, InodeId, OpId, SessionId};
use std::sync::Arc;
use std::time::Duration;
use support::restarted::{MOUNT, Machine, ask_as};

fn ask(endpoint: &MetaEndpoint, call: MetaCall<'_>) -> MetaAnswer {
    ask_as(MOUNT, endpoint, call)
}

/// A mount has a file without a name open, and the service is started anew.
fn started_anew() -> (Machine, SessionId, Arc<MetaService>, MetaEndpoint) {
    let machine = Machine::new();
    let (meta, endpoint) = machine.start();
    let MetaAnswer::Session(session, _) = ask(&endpoint, MetaCall::Open(None)) else { panic!("no session") };
    let (parent, handle) = (InodeId::ROOT, DescriptionId(1));
    let request = MetaRequest::Tmpfile { parent, mode: 0o644, umask: 0, handle };
    let op = OpId { session, sequence: 2 };
    let call = MetaCall::Call { op, creds: Credentials::root(), slot: Some(0), request };
    let opened = ask(&endpoint, call);
    assert!(matches!(opened, MetaAnswer::Opened(MetaReply::Opened { .. }, ..)), "{opened:?}");
    meta.prepare_stop();
    meta.stop().unwrap();
    drop((meta, endpoint));
    let (meta, endpoint) = machine.start();
    assert_eq!(endpoint.sessions(), 1, "it is waited for");
    (machine, session, meta, endpoint)
}

#[test]
fn a_mount_that_was_silent_after_a_start_is_told_that_its_session_has_ended() {
    let (machine, session, _meta, endpoint) = started_anew();
    machine.clock.advance(Duration::from_secs(25));
    endpoint.tidy();
    assert_eq!(endpoint.sessions(), 0, "nothing was heard of it");
    // Its file is gone. Who would go on with the session would never hear of that.
    let again = ask(&endpoint, MetaCall::Open(Some(session)));
    assert!(matches!(again, MetaAnswer::Failed(Errno::ENOTCONN)), "{again:?}");
    let owner = SessionOwner { node: MOUNT, instance: [MOUNT.0 as u8; 16] };
    assert!(
        matches!(endpoint.host(session, owner), Hosted::Ended),
        "nor does it come with a shard from another server"
    );
}

#[test]
fn a_mount_that_comes_in_time_goes_on_with_its_session() {
    let (machine, session, _meta, endpoint) = started_anew();
    machine.clock.advance(Duration::from_secs(15));
    endpoint.tidy();
    let again = ask(&endpoint, MetaCall::Open(Some(session)));
    assert!(matches!(again, MetaAnswer::MustReclaim(_)), "{again:?}");
}
