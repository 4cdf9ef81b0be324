//! Random groups, flushes and checkpoints; power fails in the middle of any disk operation, or the process dies. What is
//! left is the state after some group, and not before the last one known to be durable.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ledger;

use ashlar_env::sim::{SimDisk, SimEntropy};
use ashlar_env::{Disk, Entropy, OpenMode};
use ashlar_kv::{KvError, Lane, LaneConfig, MemoryEngine, Urgency};
use ledger::{Ledger, open_sim, small_config};

/// One random step; an error ends this life of the lane.
fn step(lane: &Lane, ledger: &mut Ledger, random: &SimEntropy) -> Result<(), KvError> {
    match random.below(20) {
        0..=13 => {
            let group = ledger.draw_group(random);
            lane.write().commit(group, Urgency::Normal)?;
            ledger.committed = ledger.len();
        }
        14..=15 => {
            let committed = ledger.len();
            lane.flush_all()?;
            ledger.durable = committed;
        }
        16..=17 => lane.tick()?,
        18 => {
            let committed = ledger.len();
            lane.checkpoint_now()?;
            ledger.durable = committed;
        }
        _ => {
            let durable = lane.durable();
            assert!(durable <= lane.appended());
            lane.flush(durable)?;
        }
    }
    Ok(())
}

/// Opens the lane and works until something fails or enough is done. The engine may fail a checkpoint as well.
fn live(
    disk: &SimDisk,
    engine: &MemoryEngine,
    ledger: &mut Ledger,
    random: &SimEntropy,
    context: &str,
) -> Result<(), KvError> {
    let lane = open_sim(disk, engine, small_config(), random.next_u64())?;
    ledger.require_prefix(&lane, context);
    if random.below(4) == 0 {
        engine.fail_next_apply(libc::EIO, random.below(2) == 0);
    }
    for _ in 0..random.below(120) {
        step(&lane, ledger, random)?;
    }
    if random.below(5) == 0 {
        let committed = ledger.len();
        lane.close()?;
        ledger.durable = committed;
    }
    Ok(())
}

fn run_seed(seed: u64) {
    let random = SimEntropy::new(seed);
    let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
    let mut ledger = Ledger::default();
    for life in 0..12 {
        let context = format!("seed {seed}, life {life}");
        let power_fails = random.below(4) > 0;
        if power_fails {
            disk.cut_power_after(random.below(260));
        }
        if let Err(error) = live(&disk, &engine, &mut ledger, &random, &context) {
            let is_expected = matches!(error, KvError::Io { .. } | KvError::Stopped { .. });
            assert!(is_expected, "{error}; {context}");
        }
        if power_fails {
            disk.crash(random.next_u64());
            ledger.committed = 0;
        } else {
            disk.kill_process();
        }
    }
    // A fault may still be planned for the first try.
    let lane = open_sim(&disk, &engine, small_config(), 0);
    let lane = lane.or_else(|_| open_sim(&disk, &engine, small_config(), 0)).unwrap();
    ledger.require_prefix(&lane, &format!("seed {seed}, at the end"));
    let names = disk.list("lane/log").unwrap();
    assert!(names.len() < 40, "old segments pile up: {names:?}");
}

#[test]
fn after_any_crash_the_state_is_a_prefix_with_everything_durable_in_it() {
    for seed in 0..300 {
        run_seed(seed);
    }
}

/// A small disk, of which some is kept back.
fn full_disk_config() -> LaneConfig {
    LaneConfig { reserve_bytes: 32 << 10, ..small_config() }
}

/// Others take what is free, up to `left` bytes.
fn fill(disk: &SimDisk, left: u64) -> Result<(), KvError> {
    let fill = || {
        let file = disk.open("other", OpenMode::CreateOrOpen)?;
        file.allocate(0, file.len()? + disk.space()?.bytes_free.saturating_sub(left))
    };
    fill().map_err(|source| KvError::Io { what: "fill the disk".into(), source })
}

/// How often a checkpoint was wanted when there was no room for it, and how often one was made after that.
#[derive(Default)]
struct Held {
    back: u32,
    then_made: u32,
    is_so: bool,
}

/// As [`step`], while others fill the disk and empty it.
fn step_on_a_full_disk(
    (disk, lane): (&SimDisk, &Lane),
    ledger: &mut Ledger,
    held: &mut Held,
    random: &SimEntropy,
) -> Result<(), KvError> {
    match random.below(24) {
        0 => fill(disk, random.below(40 << 10)),
        1 => fill(disk, 0),
        2 => disk.remove("other").or_else(|error| {
            let is_gone = error.kind() == std::io::ErrorKind::NotFound;
            if is_gone { Ok(()) } else { Err(KvError::Io { what: "empty the disk".into(), source: error }) }
        }),
        3..=15 => {
            let group = ledger.draw_group(random);
            let urgency = if random.below(3) > 0 { Urgency::FreesSpace } else { Urgency::Normal };
            match lane.write().commit(group, urgency) {
                Ok(_) => ledger.committed = ledger.len(),
                Err(KvError::NoSpace { .. }) => ledger.take_back(),
                Err(error) => return Err(error),
            }
            Ok(())
        }
        16..=18 => {
            let committed = ledger.len();
            match lane.checkpoint_now() {
                Ok(()) => {
                    ledger.durable = committed;
                    held.then_made += u32::from(std::mem::take(&mut held.is_so));
                }
                Err(KvError::NoSpace { .. }) => {
                    assert_eq!(lane.stopped(), None);
                    held.back += 1;
                    held.is_so = true;
                }
                Err(error) => return Err(error),
            }
            Ok(())
        }
        19..=21 => lane.tick(),
        _ => {
            let committed = ledger.len();
            lane.flush_all()?;
            ledger.durable = committed;
            Ok(())
        }
    }
}

fn live_on_a_full_disk(
    (disk, engine): (&SimDisk, &MemoryEngine),
    ledger: &mut Ledger,
    held: &mut Held,
    random: &SimEntropy,
    context: &str,
) -> Result<(), KvError> {
    let lane = open_sim(disk, engine, full_disk_config(), random.next_u64())?;
    ledger.require_prefix(&lane, context);
    held.is_so = false;
    for _ in 0..random.below(160) {
        step_on_a_full_disk((disk, &lane), ledger, held, random)?;
    }
    if random.below(4) == 0 {
        engine.fail_next_apply(libc::ENOSPC, random.below(2) == 0);
    }
    if random.below(3) == 0 {
        let committed = ledger.len();
        lane.close()?;
        ledger.durable = committed;
    }
    Ok(())
}

#[test]
fn after_any_crash_on_a_full_disk_the_state_is_such_a_prefix_too() {
    let mut held = Held::default();
    for seed in 0..200 {
        let random = SimEntropy::new(seed);
        let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
        disk.set_capacity(192 << 10);
        let mut ledger = Ledger::default();
        for life in 0..10 {
            let context = format!("seed {seed}, life {life}");
            let power_fails = random.below(4) > 0;
            if power_fails {
                disk.cut_power_after(random.below(400));
            }
            if let Err(error) =
                live_on_a_full_disk((&disk, &engine), &mut ledger, &mut held, &random, &context)
            {
                let is_expected =
                    matches!(error, KvError::Io { .. } | KvError::Stopped { .. } | KvError::NoSpace { .. });
                assert!(is_expected, "{error}; {context}");
            }
            if power_fails {
                disk.crash(random.next_u64());
                ledger.committed = 0;
            } else {
                disk.kill_process();
            }
        }
        if disk.open("other", OpenMode::Read).is_ok() {
            disk.remove("other").unwrap();
        }
        // A fault may still be planned for the first try.
        let lane = open_sim(&disk, &engine, full_disk_config(), 0);
        let lane = lane.or_else(|_| open_sim(&disk, &engine, full_disk_config(), 0)).unwrap();
        ledger.require_prefix(&lane, &format!("seed {seed}, at the end"));
    }
    assert!(held.back > 100 && held.then_made > 50, "{} held back, {} made then", held.back, held.then_made);
}

/// Not random: one short history, cut at every single disk operation, each with several crash outcomes.
#[test]
fn a_power_cut_at_every_operation_of_a_short_history_is_survived() {
    for cut in 0..400 {
        let mut was_cut = false;
        for outcome in 0..4 {
            let random = SimEntropy::new(42);
            let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
            let mut ledger = Ledger::default();
            disk.cut_power_after(cut);
            let history = |ledger: &mut Ledger| -> Result<(), KvError> {
                let lane = open_sim(&disk, &engine, small_config(), 1)?;
                for round in 0..60 {
                    let group = ledger.draw_group(&random);
                    lane.write().commit(group, Urgency::Normal)?;
                    if round % 7 == 3 {
                        lane.flush_all()?;
                        ledger.durable = ledger.len();
                    }
                    if round % 20 == 15 {
                        lane.tick()?;
                        lane.tick()?;
                    }
                }
                lane.close()
            };
            was_cut |= history(&mut ledger).is_err();
            disk.crash(outcome);
            let lane = open_sim(&disk, &engine, small_config(), 2).unwrap();
            ledger.require_prefix(&lane, &format!("cut at operation {cut}, outcome {outcome}"));
        }
        if !was_cut {
            assert!(cut > 60, "the history is too short to mean anything: {cut} operations");
            return;
        }
    }
    panic!("the history is longer than 400 operations");
}
