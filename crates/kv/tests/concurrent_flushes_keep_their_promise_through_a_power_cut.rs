//! Many threads commit and flush while background threads checkpoint; power fails at some operation. Whatever a flush had
//! acknowledged is there afterwards.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ledger;

use ashlar_env::sim::SimDisk;
use ashlar_kv::{Background, LaneConfig, MemoryEngine};
use bytes::Bytes;
use ledger::{commit, frame, key, open_sim, scan_all, small_config};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const THREADS: u16 = 4;

fn config() -> LaneConfig {
    LaneConfig {
        background: Background::Threads,
        flush_interval: Duration::from_millis(4),
        segment_bytes: 24 << 10,
        overlay_bytes_max: 48 << 10,
        ..small_config()
    }
}

#[test]
fn what_a_flush_acknowledged_survives() {
    let mut lives_cut = 0;
    for seed in 0..60 {
        let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
        let lane = open_sim(&disk, &engine, config(), seed).unwrap();
        disk.cut_power_after(20 + seed * 17);
        let acknowledged: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (lane, acknowledged) = (&lane, &acknowledged[usize::from(thread)]);
                scope.spawn(move || {
                    for number in 1..400_u64 {
                        let mut value = number.to_string().into_bytes();
                        value.resize(200, b' ');
                        let writes = vec![(key(thread, &format!("{number:04}")), Some(Bytes::from(value)))];
                        let Ok(position) = commit(lane, vec![frame(thread, number, writes)]) else { return };
                        if number % 3 == 0 {
                            if lane.flush(position).is_err() {
                                return;
                            }
                            acknowledged.store(number, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        lives_cut += usize::from(disk.is_power_off());
        drop(lane);
        disk.crash(seed);
        let lane = open_sim(&disk, &engine, config(), seed + 1).unwrap();
        let pairs = scan_all(&lane).unwrap();
        for thread in 0..THREADS {
            let number = |key: &[u8]| std::str::from_utf8(&key[2..]).unwrap().parse::<u64>().unwrap();
            let mine =
                pairs.keys().filter(|key| key.starts_with(&thread.to_be_bytes())).map(|key| number(key));
            let kept: Vec<u64> = mine.collect();
            let acknowledged = acknowledged[usize::from(thread)].load(Ordering::Relaxed);
            assert!(
                kept.len() as u64 >= acknowledged,
                "{} of {acknowledged} are left, seed {seed}",
                kept.len()
            );
            assert_eq!(kept, (1..=kept.len() as u64).collect::<Vec<_>>(), "not a prefix, seed {seed}");
        }
    }
    assert!(lives_cut > 40, "power failed in {lives_cut} of 60 lives only");
}
