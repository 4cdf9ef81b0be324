//! The example bytes of docs/formats/log.md are what the code writes, and read back as what the document says.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ashlar_kv::format::{
    LogIdentity, RecordBuffer, RecordHeader, SEGMENT_HEADER_BYTES, SegmentHeader, body_bytes, decode_frames,
};
use ashlar_kv::{Frame, Key, WriteSet};
use ashlar_types::{ClusterId, Epoch, OpId, SessionId, ShardId};
use bytes::Bytes;

const DOCUMENT: &str = include_str!("../../../docs/formats/log.md");

/// The bytes of the hex dump under the heading `title`: lines of an offset, a colon, and bytes.
fn dump(title: &str) -> Vec<u8> {
    let section = DOCUMENT.split_once(&format!("### {title}")).expect("the heading is there").1;
    let block = section.split("```").nth(1).expect("a dump is there");
    let mut bytes = Vec::new();
    for line in block.lines().filter(|line| line.contains(": ")) {
        let (offset, rest) = line.split_once(": ").unwrap();
        assert_eq!(usize::from_str_radix(offset.trim(), 16).unwrap(), bytes.len(), "offset of {line:?}");
        let digits: String = rest.chars().take_while(|c| *c != '|').filter(|c| !c.is_whitespace()).collect();
        bytes.extend(
            (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()),
        );
    }
    bytes
}

fn identity() -> LogIdentity {
    let cluster = ClusterId(*b"\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f");
    LogIdentity { cluster, lane: 2 }
}

fn header() -> SegmentHeader {
    SegmentHeader {
        identity: identity(),
        first: 0x1000,
        nonce: 0x0123_4567_89AB_CDEF,
        file_bytes: Some(64 << 20),
    }
}

fn frames() -> Vec<Frame> {
    let key = |name: &[u8]| Key::from_slice(&[&[0, 5], name].concat());
    vec![Frame {
        shard: ShardId(5),
        epoch: Epoch(3),
        op: OpId { session: SessionId(0x77), sequence: 12 },
        verb: 9,
        writes: WriteSet(vec![(key(b"gone"), None), (key(b"name"), Some(Bytes::from_static(b"value")))]),
        reply: Bytes::from_static(b"ok"),
    }]
}

fn record_header(frames: &[Frame]) -> RecordHeader {
    RecordHeader {
        body_bytes: body_bytes(frames) as u32,
        position: 0x1000,
        flushed: 0x0F00,
        nonce: header().nonce,
        frames: 1,
    }
}

#[test]
fn the_segment_header_of_the_document_is_the_one_written() {
    let written = header().encode();
    assert_eq!(written.len(), SEGMENT_HEADER_BYTES);
    let shown = dump("Example: segment header");
    assert_eq!(written[..shown.len()], shown);
    assert!(written[shown.len()..].iter().all(|byte| *byte == 0));
    assert_eq!(SegmentHeader::decode(&shown), Ok(header()));
    let early = SegmentHeader { file_bytes: None, ..header() };
    assert_eq!(SegmentHeader::decode(&early.encode()), Ok(early));
}

#[test]
fn the_record_of_the_document_is_the_one_written_and_decodes() {
    let frames = frames();
    let header = record_header(&frames);
    let mut buffer = RecordBuffer::default();
    buffer.encode(identity().seed(), &header, &frames, &[41]);
    let shown = dump("Example: record");
    assert_eq!(buffer.as_slice().unwrap(), shown);
    let (found, body) = RecordHeader::check(&shown, identity().seed()).unwrap();
    assert_eq!(found, header);
    let decoded = decode_frames(&Bytes::copy_from_slice(body), found.frames).unwrap();
    assert_eq!((decoded[0].sequence, &decoded[0].frame), (41, &frames[0]));
}

#[test]
fn another_lane_position_or_nonce_does_not_pass() {
    let shown = dump("Example: record");
    assert!(RecordHeader::check(&shown, LogIdentity { lane: 3, ..identity() }.seed()).is_none());
    for byte in (0..shown.len()).filter(|byte| *byte < 40 + usize::from(shown[4])) {
        let mut changed = shown.clone();
        changed[byte] ^= 1;
        assert!(RecordHeader::check(&changed, identity().seed()).is_none(), "byte {byte}");
    }
}

/// Prints the dumps for the document: `cargo test -p ashlar-kv --test the_log_format_document_is_true -- --ignored --nocapture`.
#[test]
#[ignore = "prints; checks nothing"]
fn print_the_dumps() {
    let frames = frames();
    let mut buffer = RecordBuffer::default();
    buffer.encode(identity().seed(), &record_header(&frames), &frames, &[41]);
    for bytes in [&header().encode()[..64], buffer.as_slice().unwrap()] {
        for (line, part) in bytes.chunks(8).enumerate() {
            let digits: Vec<String> = part.iter().map(|byte| format!("{byte:02x}")).collect();
            println!("{:04x}: {}", line * 8, digits.join(" "));
        }
        println!();
    }
}
