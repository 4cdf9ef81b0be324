//! What agents tell of their machines, before it is kept: texts with a longest length and without what controls a terminal, lists with a longest
//! length, numbers that are numbers. All of it ends in a report.

use super::channel::harmless;
use super::message::TaskDone;
use crate::chore::Answer;
use crate::crew::Outcome;
use crate::inventory::{Inventory, PlaceFacts, Software};
use crate::sample::Load;
use std::time::Duration;

/// LIMIT: of a name, as of a disk or a setting, characters.
const NAME_MAX: usize = 100;
/// LIMIT: of a longer text, as the options of a mount, characters.
const TEXT_MAX: usize = 2000;
/// LIMIT: disks, interfaces, NUMA nodes or settings of a machine; those beyond are not kept.
const LIST_MAX: usize = 512;
/// LIMIT: disks whose load is kept of a machine, and interfaces, those that did most: so many at most, and of all machines of a phase so many, but
/// some of each. Machines with containers have interfaces by the thousand, and every phase is kept.
const LOADS_MAX: usize = 64;
const LOADS_OF_ALL_MAX: usize = 2048;
const LOADS_MIN: usize = 2;
/// LIMIT: of a rate or a time: what is more is no measurement.
const NUMBER_MAX: f64 = 1e18;
/// LIMIT: of one phase on one machine: time, bytes, operations.
const TIME_MAX: Duration = Duration::from_secs(366 * 86_400);
const BYTES_MAX: u64 = 1 << 52;
const OPERATIONS_MAX: u64 = 1 << 48;
/// LIMIT: bits per second of a link; one that is slower is a mistake, and would be taken for what limits all.
const LINK_BITS_MIN: u64 = 1_000_000;
/// LIMIT: processors, cores or packages of a machine.
const PROCESSORS_MAX: usize = 1 << 20;

/// An answer as it can be kept; nothing if it tells what cannot be.
pub(super) fn answer(told: Answer) -> Option<Answer> {
    Some(match told {
        Answer::Machine(told) => Answer::Machine(Box::new(inventory(*told)?)),
        Answer::Direct(does) => Answer::Direct(does),
        Answer::Memory(Ok(told)) if is_amount(told.copy) && is_amount(told.triad) => Answer::Memory(Ok(told)),
        Answer::Memory(Ok(_)) => return None,
        Answer::Memory(Err(why)) => Answer::Memory(Err(harmless(&why, TEXT_MAX))),
    })
}

/// Whether what a machine says that it has done can be: sums of what all machines say stay numbers.
pub(super) fn done(told: &TaskDone) -> bool {
    let Outcome { tally, time } = &told.outcome;
    *time < TIME_MAX
        && tally.bytes() < BYTES_MAX
        && tally.operations() < OPERATIONS_MAX
        && (0.0..=1.0).contains(&told.cached_part)
}

/// What one of `machines` did, as it can be kept; nothing if it tells what cannot be.
pub(super) fn load(mut told: Load, machines: usize) -> Option<Load> {
    let parts = [told.busy, told.busiest, told.iowait, told.steal];
    let mut amounts = vec![told.seconds];
    amounts.extend(told.interfaces.iter().flat_map(|one| [one.received, one.sent]));
    amounts.extend(told.devices.iter().flat_map(|one| [one.busy, one.read, one.written]));
    let is_part = |part: f64| (0.0..=1.0).contains(&part);
    if !parts.into_iter().all(is_part)
        || !amounts.into_iter().all(is_amount)
        || told.processors > PROCESSORS_MAX
        || told.seconds <= 0.0
    {
        return None;
    }
    for one in &mut told.interfaces {
        one.link_bits = one.link_bits.filter(|bits| *bits >= LINK_BITS_MIN);
    }
    // Those that did most are the ones that may limit. The sort is stable: what is kept stays in its order if all of it is.
    let loads_max = (LOADS_OF_ALL_MAX / machines.max(1)).clamp(LOADS_MIN, LOADS_MAX);
    if told.interfaces.len() > loads_max {
        told.interfaces
            .sort_by(|one, other| (other.received + other.sent).total_cmp(&(one.received + one.sent)));
        told.interfaces.truncate(loads_max);
    }
    if told.devices.len() > loads_max {
        told.devices.sort_by(|one, other| other.busy.total_cmp(&one.busy));
        told.devices.truncate(loads_max);
    }
    for one in &mut told.interfaces {
        one.name = harmless(&one.name, NAME_MAX);
        [&mut one.received, &mut one.sent].into_iter().for_each(round);
    }
    for one in &mut told.devices {
        one.name = harmless(&one.name, NAME_MAX);
        [&mut one.busy, &mut one.read, &mut one.written].into_iter().for_each(round);
    }
    let Load { seconds, busy, busiest, iowait, steal, .. } = &mut told;
    [seconds, busy, busiest, iowait, steal].into_iter().for_each(round);
    Some(told)
}

/// To five digits: all of the others are noise, and take most of the room in a report of hundreds of machines.
fn round(number: &mut f64) {
    // What was written as a number can be read as one.
    *number = format!("{number:.4e}").parse().unwrap_or(*number);
}

fn is_amount(number: f64) -> bool {
    (0.0..NUMBER_MAX).contains(&number)
}

fn inventory(told: Inventory) -> Option<Inventory> {
    let Inventory { mut hardware, mut software, place } = told;
    let counts = [hardware.processors, hardware.cores, hardware.sockets];
    if counts.into_iter().any(|count| count > PROCESSORS_MAX) {
        return None;
    }
    hardware.nodes.truncate(LIST_MAX);
    hardware.disks.truncate(LIST_MAX);
    hardware.interfaces.truncate(LIST_MAX);
    software.tools.truncate(LIST_MAX);
    software.settings.truncate(LIST_MAX);
    let name = |text: &mut String| *text = harmless(text, NAME_MAX);
    name(&mut hardware.model);
    for disk in &mut hardware.disks {
        [&mut disk.name, &mut disk.model, &mut disk.scheduler].into_iter().for_each(name);
    }
    hardware
        .interfaces
        .iter_mut()
        .for_each(|one| [&mut one.name, &mut one.driver].into_iter().for_each(name));
    let Software { kernel, distribution, tools, settings } = &mut software;
    [kernel, distribution].into_iter().for_each(name);
    tools.iter_mut().chain(settings).for_each(|(one, value)| [one, value].into_iter().for_each(name));
    let place = PlaceFacts {
        file_system: harmless(&place.file_system, NAME_MAX),
        source: harmless(&place.source, NAME_MAX),
        options: harmless(&place.options, TEXT_MAX),
        ..place
    };
    Some(Inventory { hardware, software, place })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ceiling::MemoryCeiling;
    use crate::crew::Tally;
    use crate::sample::{DeviceLoad, InterfaceLoad};
    use std::path::Path;

    #[test]
    fn texts_are_bounded_and_control_no_terminal() {
        let mut told = Inventory::collect(Path::new("/"), &[]);
        let honest = told.clone();
        assert_eq!(answer(Answer::Machine(Box::new(told.clone()))), Some(Answer::Machine(Box::new(honest))));
        told.hardware.model = format!("\u{1b}[2J{}", "x".repeat(100_000));
        told.place.options = "y\n".repeat(100_000);
        told.software.settings = vec![("z".repeat(1000), "\u{7}".into())];
        let Some(Answer::Machine(kept)) = answer(Answer::Machine(Box::new(told.clone()))) else {
            panic!("no")
        };
        assert_eq!((kept.hardware.model.len(), kept.place.options.len()), (NAME_MAX, TEXT_MAX));
        assert!(kept.hardware.model.starts_with(" [2J") && !kept.place.options.contains('\n'));
        assert_eq!(kept.software.settings, [("z".repeat(NAME_MAX), " ".into())]);
        told.software.settings = vec![Default::default(); LIST_MAX + 1];
        let Some(Answer::Machine(kept)) = answer(Answer::Machine(Box::new(told.clone()))) else {
            panic!("no")
        };
        assert_eq!(kept.software.settings.len(), LIST_MAX);
        told.hardware.processors = usize::MAX;
        assert_eq!(answer(Answer::Machine(Box::new(told))), None);
        let why = Answer::Memory(Err("a\rb".into()));
        assert_eq!(answer(why), Some(Answer::Memory(Err("a b".into()))));
    }

    #[test]
    fn what_is_no_number_is_not_kept() {
        let right = Load {
            seconds: 1.0,
            busy: 0.5,
            busiest: 1.0,
            interfaces: vec![InterfaceLoad {
                name: "eth0".into(),
                received: 1e9,
                sent: 0.0,
                link_bits: Some(10_000_000_000),
            }],
            devices: vec![DeviceLoad { name: "sda".into(), busy: 1.0, read: 0.0, written: 5.0 }],
            ..Load::default()
        };
        assert_eq!(load(right.clone(), 1), Some(right.clone()));
        let mut slow = right.clone();
        slow.interfaces[0].link_bits = Some(1);
        assert_eq!(load(slow, 1).map(|load| load.interfaces[0].link_bits), Some(None), "it would limit all");
        assert_eq!(load(Load { seconds: 0.0, ..right.clone() }, 1), None);
        let mut many = right.clone();
        many.devices = (0..2000)
            .map(|at| DeviceLoad {
                name: at.to_string(),
                busy: f64::from(at) / 2000.0,
                read: 0.0,
                written: 0.0,
            })
            .collect();
        let kept = load(many.clone(), 1).map(|load| (load.devices.len(), load.devices[0].name.clone()));
        assert_eq!(kept, Some((LOADS_MAX, "1999".into())), "those that did most");
        let of = |machines| load(many.clone(), machines).map(|load| load.devices.len());
        assert_eq!((of(64), of(512), of(1024)), (Some(32), Some(4), Some(2)), "less of each of many");
        let exact = Load { busy: 0.123_456_789, seconds: 1_234.567_89, ..right.clone() };
        assert_eq!(load(exact, 1).map(|load| (load.busy, load.seconds)), Some((0.12346, 1234.6)));
        for wrong in [f64::NAN, f64::INFINITY, -1.0, 1e30] {
            assert_eq!(load(Load { busy: wrong, ..right.clone() }, 1), None);
            assert_eq!(load(Load { seconds: wrong, ..right.clone() }, 1), None);
            let mut one = right.clone();
            one.devices[0].read = wrong;
            assert_eq!(load(one, 1), None);
            let mut one = right.clone();
            one.interfaces[0].sent = wrong;
            assert_eq!(load(one, 1), None);
            let memory = MemoryCeiling { copy: wrong, triad: 1.0, is_beyond_caches: true };
            assert_eq!(answer(Answer::Memory(Ok(memory))), None);
        }
        let memory = Answer::Memory(Ok(MemoryCeiling { copy: 1e10, triad: 1e10, is_beyond_caches: true }));
        assert_eq!(answer(memory.clone()), Some(memory));
    }

    #[test]
    fn what_nobody_can_have_done_is_not_added_up() {
        let outcome = |bytes, time| {
            let mut tally = Tally::default();
            tally.add(Duration::from_millis(1), bytes);
            Outcome { tally, time }
        };
        let second = Duration::from_secs(1);
        let told = |outcome, cached_part| done(&TaskDone { outcome, cached_part, ..TaskDone::default() });
        assert!(told(outcome(1 << 40, second), 1.0));
        for (bytes, time, cached_part) in [
            (u64::MAX, second, 0.0),
            (1, Duration::MAX, 0.0),
            (1, second, f64::NAN),
            (1, second, f64::INFINITY),
            (1, second, -0.5),
        ] {
            assert!(!told(outcome(bytes, time), cached_part), "{bytes} {time:?} {cached_part}");
        }
    }
}
