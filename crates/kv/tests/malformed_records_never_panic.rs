//! Ten thousand records with damaged structure and a right checksum: decoding answers, it never panics, and never takes
//! more memory than the record is long.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ledger;

use ashlar_env::sim::{SimDisk, SimEntropy};
use ashlar_env::{Disk, Entropy, OpenMode};
use ashlar_kv::format::{
    LogIdentity, RECORD_HEADER_BYTES, RecordBuffer, RecordHeader, SEGMENT_HEADER_BYTES, body_bytes,
    decode_frames,
};
use ashlar_kv::{KvError, MemoryEngine};
use ashlar_types::codec::crc32c;
use bytes::Bytes;
use ledger::{CLUSTER, Ledger, commit, get, open_sim, put, small_config};

const IDENTITY: LogIdentity = LogIdentity { cluster: CLUSTER, lane: 7 };

/// A record as it is on disk.
fn encode(frames: &[ashlar_kv::Frame]) -> Vec<u8> {
    let header = RecordHeader {
        body_bytes: body_bytes(frames) as u32,
        position: 4242,
        flushed: 17,
        nonce: 99,
        frames: frames.len() as u32,
    };
    let sequences: Vec<u64> = (1..=frames.len() as u64).collect();
    let mut buffer = RecordBuffer::default();
    buffer.encode(IDENTITY.seed(), &header, frames, &sequences);
    let record = buffer.parts().concat();
    assert_eq!(record.len(), header.record_bytes());
    record
}

/// Makes the checksum right for whatever the record says now, if it says a length that is there.
fn reseal(record: &mut [u8]) {
    let body = u32::from_le_bytes(record[4..8].try_into().unwrap()) as usize;
    let Some(end) = body.checked_add(RECORD_HEADER_BYTES).filter(|end| *end <= record.len()) else { return };
    let crc = crc32c(crc32c(IDENTITY.seed(), &record[..36]), &record[RECORD_HEADER_BYTES..end]);
    record[36..40].copy_from_slice(&crc.to_le_bytes());
}

/// Numbers that lengths and counts are likely to be mishandled at.
fn edge(random: &SimEntropy) -> u64 {
    let edges = [
        0,
        1,
        2,
        0x7F,
        0xFF,
        0x100,
        0xFFFF,
        0x1_0000,
        1 << 20,
        (1 << 20) + 1,
        0x7FFF_FFFF,
        0xFFFF_FFFE,
        0xFFFF_FFFF,
    ];
    edges[random.below(edges.len() as u64) as usize]
}

fn mutate(record: &mut Vec<u8>, random: &SimEntropy) {
    for _ in 0..=random.below(3) {
        let at = random.below(record.len() as u64 - 4) as usize;
        match random.below(5) {
            0 => record[at] = random.next_u64() as u8,
            1 => record[at..at + 4].copy_from_slice(&(edge(random) as u32).to_le_bytes()),
            2 => record[at..at + 2].copy_from_slice(&(edge(random) as u16).to_le_bytes()),
            // Fields of the head: length and frame count.
            3 => {
                let field = [4, 32][random.below(2) as usize];
                let value = u32::from_le_bytes(record[field..field + 4].try_into().unwrap());
                let value = value.wrapping_add(random.below(9) as u32).wrapping_sub(4);
                record[field..field + 4].copy_from_slice(&value.to_le_bytes());
            }
            _ => {
                let to = at + random.below((record.len() - at) as u64) as usize;
                let piece = record[at..to].to_vec();
                let target =
                    RECORD_HEADER_BYTES + random.below((record.len() - RECORD_HEADER_BYTES) as u64) as usize;
                record.splice(target..target, piece.into_iter().take(64));
            }
        }
    }
}

#[test]
fn ten_thousand_mutated_records_are_answered() {
    let random = SimEntropy::new(7);
    let mut ledger = Ledger::default();
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..10_000 {
        let mut record = encode(&ledger.draw_group(&random));
        mutate(&mut record, &random);
        reseal(&mut record);
        let Some((header, body)) = RecordHeader::check(&record, IDENTITY.seed()) else {
            refused += 1;
            continue;
        };
        match decode_frames(&Bytes::copy_from_slice(body), header.frames) {
            Some(frames) => {
                accepted += 1;
                // What decodes says what it says: encoding it again gives the same body, but for ignored bytes.
                let frames: Vec<_> = frames.into_iter().map(|logged| logged.frame).collect();
                assert_eq!(body_bytes(&frames), body.len());
            }
            None => refused += 1,
        }
    }
    assert!(
        accepted > 500 && refused > 2000,
        "{accepted} accepted, {refused} refused: mutations are one-sided"
    );
}

#[test]
fn a_log_of_mutated_records_opens_or_names_the_damage() {
    let random = SimEntropy::new(11);
    for round in 0..300 {
        let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
        let lane = open_sim(&disk, &engine, small_config(), 1).unwrap();
        for number in 0..5 {
            commit(&lane, vec![put(&format!("k{number}"), vec![number; 40])]).unwrap();
        }
        drop(lane);
        disk.kill_process();
        let file = disk.open("lane/log/0000000000000000.log", OpenMode::ReadWrite).unwrap();
        let mut head = [0; RECORD_HEADER_BYTES];
        file.read_at(SEGMENT_HEADER_BYTES as u64, &mut head).unwrap();
        let body = u32::from_le_bytes(head[4..8].try_into().unwrap()) as usize;
        let mut record = vec![0; (RECORD_HEADER_BYTES + body).next_multiple_of(8)];
        file.read_at(SEGMENT_HEADER_BYTES as u64, &mut record).unwrap();
        let intact = record.clone();
        mutate(&mut record, &random);
        record.truncate(intact.len());
        reseal(&mut record);
        file.write_at(SEGMENT_HEADER_BYTES as u64, &record).unwrap();
        drop(file);
        match open_sim(&disk, &engine, small_config(), 2) {
            // Nothing was flushed, so the end of the log may be here; what is there reads without trouble.
            Ok(lane) => drop(get(&lane, "k0")),
            Err(KvError::Corrupt { .. }) => {}
            Err(error) => panic!("{error} in round {round}"),
        }
    }
}
