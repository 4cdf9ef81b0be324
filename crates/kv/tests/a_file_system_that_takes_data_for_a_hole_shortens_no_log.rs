//! What a log has reserved and not written is not read. Should a local file system be wrong about that, nothing is missing all the same.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ledger;

use ashlar_env::sim::SimDisk;
use ashlar_kv::MemoryEngine;
use ledger::{commit, open_sim, put, scan_all, small_config};

#[test]
fn a_log_is_whole_whatever_is_told_to_be_a_hole() {
    // The header, the beginning of a record, the middle of one, one that is longer than what is looked at for sure, and the end.
    for told_from in [0, 100, 4096, 5000, 8192, 12_000, 20_000, 90_000, 200_000] {
        let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
        let lane = open_sim(&disk, &engine, small_config(), 1).unwrap();
        for number in 0..12 {
            commit(&lane, vec![put(&format!("k{number}"), vec![number; 1500])]).unwrap();
        }
        commit(&lane, vec![put("long", vec![7; 150_000])]).unwrap();
        commit(&lane, vec![put("last", "x")]).unwrap();
        let expected = scan_all(&lane).unwrap();
        drop(lane);
        disk.kill_process();
        disk.tell_hole_from(told_from);
        let lane = open_sim(&disk, &engine, small_config(), 2).unwrap();
        assert_eq!(scan_all(&lane).unwrap(), expected, "holes told from {told_from} on");
    }
}
