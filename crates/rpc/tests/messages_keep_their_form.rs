//! Goal: a server can be replaced by one of the next version while everybody else goes on. For that, messages keep their form: the one that is written down in
//! docs/formats/messages.txt, by the rules of docs/formats/wire.md. This test fails when a message has changed, and says whether the change is one that
//! both sides survive.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ashlar_rpc::net::frame::{Header, Kind, PROTOCOL, PROTOCOL_MIN, Service};
use ashlar_rpc::net::hello::{Hello, Welcome};
use ashlar_rpc::wire::{
    Attended, MetaAnswer, MetaCall, ProcessAnswer, ProcessCall, StorageCall, TakenTarget,
};
use ashlar_types::codec::encode;
use ashlar_types::message::{ManagerReply, ManagerRequest, MetaRequest, StorageReply, StorageRequest};
use ashlar_types::testing::schema::{Schema, require_written_down};
use ashlar_types::{
    ChainId, ChunkId, ClusterId, Credentials, Epoch, Errno, InodeId, Name, OpId, Role, SessionId, TargetId,
};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn messages_have_the_form_that_is_written_down() {
    let mut schema = Schema::default();
    schema.add::<Hello>();
    schema.add::<Welcome>();
    schema.add::<ManagerRequest>();
    schema.add::<ManagerReply>();
    schema.add::<MetaCall<'_>>();
    schema.add::<MetaAnswer>();
    schema.add::<StorageCall>();
    schema.add::<Result<StorageReply, Errno>>();
    schema.add::<Result<Attended, Errno>>();
    schema.add::<TakenTarget>();
    schema.add::<ProcessCall>();
    schema.add::<ProcessAnswer>();
    require_written_down(
        &schema,
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/formats/messages.txt"),
        &format!("protocol {PROTOCOL_MIN} to {PROTOCOL}"),
    );
}

/// The codec itself, and what is not encoded by it.
#[test]
fn bytes_are_those_of_before() {
    let hello = Hello {
        protocol_min: 1,
        protocol_max: 2,
        cluster: ClusterId([0x11; 16]),
        role: Role::Client,
        instance: [0x22; 16],
        channel: 300,
        attempt: 1,
    };
    let one = "11".repeat(16);
    let two = "22".repeat(16);
    assert_eq!(hex(&encode(&hello)), format!("0102{one}03{two}ac0201"));
    assert_eq!(hex(&encode(&Welcome { protocol: 1, is_remembered: true })), "0101");
    let head = encode(&ManagerRequest::Map { have: Epoch(7) });
    assert_eq!(hex(&head), "0207");
    let header = Header {
        kind: Kind::Request,
        service: Service::Storage,
        is_once: true,
        is_urgent: true,
        head_bytes: head.len() as u32,
        payload_bytes: 0x0001_0203,
        id: 9,
        epoch: Epoch(0x0102_0304_0506_0708),
        lowest: 8,
    };
    let expected = "03030300020000000302010099fb00cf090000000000000008070605040302010800000000000000";
    assert_eq!(hex(&header.encode(&head)), expected);
    let call = MetaCall::Call {
        op: OpId { session: SessionId(300), sequence: 1 },
        creds: Credentials::root(),
        slot: Some(2),
        request: MetaRequest::Lookup { parent: InodeId(1), name: Name::new(b"name").unwrap() },
    };
    assert_eq!(hex(&encode(&call)), "02ac0201000000ff0101020001046e616d65");
    let read = StorageRequest::Read {
        target: TargetId(1),
        chunk: ChunkId { inode: InodeId(300), generation: 1, index: 2 },
        chain: ChainId(4),
        chunk_bytes: 65_536,
        offset: 0,
        len: 4096,
        want_sums: true,
    };
    assert_eq!(hex(&encode(&read)), "0101ac0201020480800400802001");
}
