//! Every example in `docs/formats/namespace.md` is what this software writes, and reads back.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

use ashlar_kv::Key;
use ashlar_namespace::key::{self, NameHash};
use ashlar_namespace::record::{Account, Garbage, Wide, month};
use ashlar_namespace::{Bucket, BucketEntry, FileData, Inode, Kind};
use ashlar_types::{
    ChainId, DirectoryChoice, FileLayout, FileType, FilesetId, InodeId, LayoutPolicy, Name, SessionId,
    ShardId, Start, Starts, TargetStarts, Timespec, codec,
};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;

/// The examples of the document: name, key, value; in lines `name: key = value` of hexadecimal digits.
fn examples() -> BTreeMap<String, (Vec<u8>, Vec<u8>)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/formats/namespace.md");
    let text = std::fs::read_to_string(path).unwrap();
    let unhex = |text: &str| -> Vec<u8> {
        let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
        digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    };
    let mut examples = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("ex ")) {
        let (name, rest) = line[3..].split_once(": ").expect("name: key = value");
        let (key, value) = rest.split_once('=').expect("key = value");
        examples.insert(name.to_owned(), (unhex(key), unhex(value)));
    }
    examples
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn file() -> InodeId {
    InodeId::new(ShardId(5), 0x1234).unwrap()
}

fn layout() -> FileLayout {
    FileLayout {
        generation: 2,
        chunk_bytes: 1 << 20,
        chains: [ChainId(7), ChainId(300)].into_iter().collect(),
    }
}

fn inode(mode: u32, kind: Kind) -> Inode {
    let mut inode = Inode::new(mode, 1000, 100, FilesetId(0), Timespec::new(1_700_000_000, 5), kind);
    inode.ctime = Timespec::new(-1, 999_999_999);
    inode
}

/// What the document shows, in its order.
fn shown() -> Vec<(&'static str, Key, Vec<u8>)> {
    let policy = LayoutPolicy::root_default();
    let root = Kind::Directory { parent: InodeId::ROOT, policy };
    let mut directory = inode(0o040_755, root);
    (directory.nlink, directory.size) = (3, 2);
    let mut inline = inode(0o100_644, Kind::Regular(FileData::Inline { policy, generation: 1 }));
    (inline.size, inline.blocks, inline.has_xattrs) = (5, 1, true);
    let acl = Bytes::from_static(&[2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255]);
    inline.acl_access = Some(acl);
    let mut chunked = inode(0o100_600, Kind::Regular(FileData::Chunks { layout: layout(), policy }));
    (chunked.size, chunked.blocks) = (3 << 20, 6144);
    let mut link = inode(0o120_777, Kind::Symlink);
    link.size = 3;
    let mut device = inode(0o020_600, Kind::Special);
    device.rdev = 0x105;
    let slices = vec![file(), InodeId::new(ShardId(6), 7).unwrap()];
    let wide = Kind::WideDirectory { parent: InodeId::ROOT, policy, wide: Wide { slices, slices_of_new: 0 } };
    let mut split = inode(0o040_755, wide);
    split.nlink = 2;
    let of_it = Kind::Slice { of: InodeId(0x10), index: 1, count: 2, policy, slices_of_new: 0 };
    let mut slice = inode(0o040_755, of_it);
    (slice.nlink, slice.size) = (2, 1);
    let directories = Some(DirectoryChoice::Pinned(ShardId(7)));
    let pinned = LayoutPolicy { directories, ..policy };
    let mut pinned = inode(0o040_755, Kind::Directory { parent: InodeId::ROOT, policy: pinned });
    pinned.nlink = 2;
    let entry =
        BucketEntry { collision: 0, file_type: FileType::Regular, inode: file(), name: b"hello"[..].into() };
    let hash = NameHash::of(Name::new(b"hello").unwrap(), &[0; 16]);
    let account = Account { inodes: 2, bytes: 1000, blocks: 2 };
    let account_key =
        key::account(ShardId(5), FilesetId(0), 1000, 100, month(Timespec::new(1_700_000_000, 0)));
    let (fourth, fifth) = (Start { number: 4, tag: 0x44 }, Start { number: 5, tag: 0x55 });
    let mut targets: Vec<TargetStarts> =
        [[0xa1; 16], [0xa2; 16]].map(|uuid| TargetStarts { uuid, last: fourth, joining: None }).into();
    targets[1].joining = Some(fifth);
    vec![
        ("starts", key::starts(), codec::encode(&Starts { last: fifth, targets })),
        ("account", account_key, codec::encode(&account)),
        ("body", key::body(file(), 0), b"bytes".to_vec()),
        ("counter", key::counter(ShardId(5)), codec::encode(&0x1234_u64)),
        (
            "bucket",
            key::bucket(InodeId::ROOT, hash),
            codec::encode(&Bucket { entries: [entry].into_iter().collect() }),
        ),
        ("garbage", key::garbage(file(), 2), codec::encode(&Garbage { layout: layout(), keep_bytes: 4096 })),
        ("directory", key::inode(InodeId::ROOT), codec::encode(&directory)),
        ("inline file", key::inode(file()), codec::encode(&inline)),
        ("chunked file", key::inode(file()), codec::encode(&chunked)),
        ("symbolic link", key::inode(file()), codec::encode(&link)),
        ("device", key::inode(file()), codec::encode(&device)),
        ("split directory", key::inode(InodeId(0x10)), codec::encode(&split)),
        ("slice", key::inode(InodeId::new(ShardId(6), 7).unwrap()), codec::encode(&slice)),
        ("pinned directory", key::inode(InodeId(0x11)), codec::encode(&pinned)),
        ("link target", key::link_target(file()), b"../".to_vec()),
        ("orphan", key::orphan(file(), SessionId(9)), vec![]),
        ("writer", key::writer_of(file(), SessionId(9)), vec![]),
        ("xattr", key::xattr(file(), b"user.a"), b"1".to_vec()),
    ]
}

#[test]
fn the_examples_are_what_is_written() {
    let examples = examples();
    let mut wanted = String::new();
    let mut is_right = true;
    for (name, key, value) in shown() {
        is_right &= examples.get(name) == Some(&(key.to_vec(), value.clone()));
        wanted.push_str(&format!("ex {name}: {} = {}\n", hex(&key), hex(&value)));
    }
    assert!(is_right, "the document should say:\n{wanted}");
    assert_eq!(examples.len(), shown().len(), "an example that nothing checks");
}

fn reads<T: DeserializeOwned + Serialize>(examples: &BTreeMap<String, (Vec<u8>, Vec<u8>)>, name: &str) {
    let value = &examples[name].1;
    let decoded: T = codec::decode(value, "example").unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(codec::encode(&decoded), *value, "{name}");
}

#[test]
fn the_examples_are_read_back() {
    let examples = examples();
    let inodes = [
        "directory",
        "inline file",
        "chunked file",
        "symbolic link",
        "device",
        "split directory",
        "slice",
        "pinned directory",
    ];
    for name in inodes {
        reads::<Inode>(&examples, name);
    }
    reads::<Starts>(&examples, "starts");
    reads::<Account>(&examples, "account");
    reads::<Bucket>(&examples, "bucket");
    reads::<Garbage>(&examples, "garbage");
    reads::<u64>(&examples, "counter");
    let (bucket_key, _) = &examples["bucket"];
    assert_eq!(key::inode_of(bucket_key), Some(InodeId::ROOT));
    let hash = NameHash::of(Name::new(b"hello").unwrap(), &[0; 16]);
    assert_eq!(key::bucket_hash(bucket_key), Some(hash));
}
