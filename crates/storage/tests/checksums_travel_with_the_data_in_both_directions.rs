//! Goal: checksums travel with the data. A payload that is not what its sender made the checksums of changes nothing: no chunk, no block, no record of the index, not
//! one write to the disk. Method: requests whose payload was damaged, on chunks that are there and on others, on a disk that counts.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

use ashlar_chunkstore::{ChunkStore, Config, TargetIdentity, TargetUuid};
use ashlar_env::Env;
use ashlar_env::sim::SimDisk;
use ashlar_kv::MemoryEngine;
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_storage::StorageService;
use ashlar_types::block_sum::seal;
use ashlar_types::codec::crc32c;
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{ChainId, ChunkId, ClusterId, Errno, InodeId, TargetId, Timespec};
use std::sync::Arc;

const TARGET: TargetId = TargetId(3);
const CHUNK_BYTES: u32 = 64 << 10;
const BLOCK: usize = 4096;

fn service(disk: &SimDisk) -> StorageService {
    let identity = TargetIdentity {
        cluster: ClusterId(*b"cluster-of-tests"),
        target: TARGET,
        uuid: TargetUuid(*b"target-of-tests!"),
    };
    ChunkStore::format(disk, &identity).unwrap();
    let (env, _) = Env::simulated(1, Timespec::new(1, 0));
    let engine = || Ok(Box::new(MemoryEngine::new()) as Box<dyn ashlar_kv::Engine>);
    let (store, _) =
        ChunkStore::open(Arc::new(disk.clone()), engine, &env, &identity, Config::small()).unwrap();
    let service = StorageService::new();
    service.add_target(TARGET, Arc::new(store));
    service
}

/// The request for a write of `data`, with checksums of its whole blocks.
fn request(index: u64, offset: u32, data: &[u8]) -> StorageRequest {
    let skip = (BLOCK - offset as usize % BLOCK) % BLOCK;
    let sums = data[skip..].chunks_exact(BLOCK).map(|block| seal(crc32c(0, block))).collect();
    let chunk = ChunkId { inode: InodeId(7), generation: 1, index };
    StorageRequest::Write { target: TARGET, chunk, chain: ChainId(0), chunk_bytes: CHUNK_BYTES, offset, sums }
}

fn content(service: &StorageService, index: u64) -> Vec<u8> {
    let mut out = vec![0xee; CHUNK_BYTES as usize];
    let chunk = ChunkId { inode: InodeId(7), generation: 1, index };
    let request = StorageRequest::Read {
        target: TARGET,
        chunk,
        chain: ChainId(0),
        chunk_bytes: CHUNK_BYTES,
        offset: 0,
        len: CHUNK_BYTES,
        want_sums: false,
    };
    service.call(&request, Payload::Read(&mut out)).unwrap();
    out
}

#[test]
fn a_payload_damaged_on_the_way_is_refused_before_anything_is_written() {
    let disk = SimDisk::new();
    let service = service(&disk);
    let old = vec![0x11; CHUNK_BYTES as usize];
    service.call(&request(0, 0, &old), Payload::Write(&old)).unwrap();
    let before = disk.counts();
    let data: Vec<u8> = (0..5 * BLOCK).map(|at| (at / 3) as u8).collect();
    // Chunk 0 is there, chunk 1 is not; at the border of a block and off it.
    for (index, offset) in [(0, 0), (0, 100), (1, 0), (1, 100), (0, 8192)] {
        let whole = request(index, offset, &data);
        let skip = (BLOCK - offset as usize % BLOCK) % BLOCK;
        let StorageRequest::Write { sums, .. } = &whole else { unreachable!() };
        for block in 0..sums.len() {
            for at in [0, 1777, BLOCK - 1] {
                let mut damaged = data.clone();
                damaged[skip + block * BLOCK + at] ^= 0x40;
                let refused = service.call(&whole, Payload::Write(&damaged));
                assert_eq!(refused, Err(Errno::EIO), "chunk {index} offset {offset} block {block}");
            }
        }
        let lost = service.call(&whole, Payload::Write(&data[..data.len() - BLOCK]));
        assert_eq!(lost, Err(Errno::EINVAL), "a block did not arrive");
    }
    assert_eq!((disk.counts().writes, disk.counts().syncs), (before.writes, before.syncs));
    assert!(content(&service, 0) == old);
    assert!(content(&service, 1).iter().all(|byte| *byte == 0));
    let written = service.call(&request(1, 100, &data), Payload::Write(&data)).unwrap();
    assert!(matches!(written, StorageReply::Written(_)));
    assert!(content(&service, 1)[100..][..data.len()] == data);
}

#[test]
fn a_read_carries_the_checksums_of_the_blocks_the_reader_gets_whole() {
    let service = service(&SimDisk::new());
    let data: Vec<u8> = (0..5 * BLOCK + 100).map(|at| (at / 5) as u8).collect();
    service.call(&request(0, 4096, &data), Payload::Write(&data)).unwrap();
    let mut chunk_content = vec![0; CHUNK_BYTES as usize];
    chunk_content[4096..][..data.len()].copy_from_slice(&data);
    let chunk = |index| ChunkId { inode: InodeId(7), generation: 1, index };
    for (index, offset, len) in [
        (0, 0, 65_536),
        (0, 0, 4096),
        (0, 1, 4096),
        (0, 100, 10),
        (0, 4000, 200),
        (0, 4095, 4098),
        (0, 8192, 9000),
        (1, 10, 9000),
    ] {
        let mut out = vec![0xee; len];
        let request = StorageRequest::Read {
            target: TARGET,
            chunk: chunk(index),
            chain: ChainId(0),
            chunk_bytes: CHUNK_BYTES,
            offset,
            len: len as u32,
            want_sums: true,
        };
        let reply = service.call(&request, Payload::Read(&mut out)).unwrap();
        let at = offset as usize;
        let expected = if index == 0 { chunk_content[at..at + len].to_vec() } else { vec![0; len] };
        assert!(out == expected, "{offset} {len}");
        let skip = (BLOCK - at % BLOCK) % BLOCK;
        let sums: Vec<u32> = out
            .get(skip..)
            .unwrap_or_default()
            .chunks_exact(BLOCK)
            .map(|block| seal(crc32c(0, block)))
            .collect();
        assert_eq!(reply, StorageReply::Read { sums }, "{offset} {len}");
    }
}
