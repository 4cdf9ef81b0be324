//! What the reader makes of tables that real machines have (`data/firmware-tables.txt` tells where they are from).

use super::{advise, modules};

/// The table of the machine whose name begins like this.
fn table(name: &str) -> Vec<u8> {
    let text = include_str!("../../data/firmware-tables.txt");
    let start = text.find(&format!("\n[{name}")).unwrap();
    let lines = text[start + 1..].lines().skip(1).take_while(|line| !line.is_empty());
    let digits: Vec<u8> = lines.flat_map(str::bytes).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn advice(name: &str) -> Vec<String> {
    advise(&table(name)).unwrap().into_iter().map(|advice| advice.text).collect()
}

/// Modules, GiB of all, and speeds of the first: what it can do and what it is run with.
fn summary(name: &str) -> (usize, u64, u32, u32) {
    let modules = modules(&table(name)).unwrap();
    let gib = modules.iter().map(|module| module.bytes).sum::<u64>() >> 30;
    (modules.len(), gib, modules[0].speed, modules[0].configured_speed)
}

/// Processors and channels that have modules.
fn places(name: &str) -> (Vec<String>, Vec<String>) {
    let modules = modules(&table(name)).unwrap();
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names.dedup();
        names
    };
    (
        sorted(modules.iter().filter_map(|module| module.processor.clone()).collect()),
        sorted(modules.iter().filter_map(|module| module.channel.clone()).collect()),
    )
}

#[test]
fn a_balanced_board_with_two_channels_needs_no_advice() {
    assert_eq!(summary("ASRock"), (2, 64, 2400, 2400));
    assert_eq!(places("ASRock"), (vec!["0".to_owned()], vec!["A".to_owned(), "B".to_owned()]));
    assert!(advice("ASRock").is_empty());
}

#[test]
fn a_processor_without_memory_is_told_and_so_are_slow_modules() {
    assert_eq!(summary("Dell"), (2, 32, 2400, 1866));
    let told = advice("Dell");
    let [processors, speed] = told.as_slice() else { panic!("{told:?}") };
    let wanted = "processor B has 0 GiB of memory and processor A has 32 GiB: give every processor the same";
    assert_eq!(processors, wanted);
    assert!(
        speed.starts_with("2 of 2 modules run slower than they can (A3 at 1866 instead of 2400 MT/s)"),
        "{speed}"
    );
}

#[test]
fn modules_of_many_makers_in_even_places_need_no_advice() {
    assert_eq!(summary("SuperMicro SYS"), (16, 64, 1333, 1333));
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(places("SuperMicro SYS"), (names(&["1", "2"]), names(&["0", "1", "2", "3"])));
    assert!(advice("SuperMicro SYS").is_empty());
}

#[test]
fn an_old_table_without_configured_speeds_is_read() {
    assert_eq!(summary("SuperMicro, four"), (32, 128, 667, 0));
    assert_eq!(places("SuperMicro, four").0, ["1", "2", "3", "4"]);
    assert!(advice("SuperMicro, four").is_empty());
}

#[test]
fn a_small_machine_whose_labels_name_no_processor_gets_no_advice_about_them() {
    assert_eq!(summary("Beelink"), (1, 16, 5600, 4800));
    let told = advice("Beelink");
    let [speed] = told.as_slice() else { panic!("{told:?}") };
    assert!(speed.starts_with("1 of 1 modules run slower"), "{speed}");
}

#[test]
fn a_recorded_table_that_is_cut_anywhere_is_an_error_or_shorter_and_never_a_panic() {
    for name in ["ASRock", "Beelink", "Dell", "SuperMicro SYS", "SuperMicro, four"] {
        let whole = table(name);
        let count = modules(&whole).unwrap().len();
        for cut in 0..whole.len() {
            assert!(
                modules(&whole[..cut]).is_ok_and(|found| found.len() <= count)
                    || advise(&whole[..cut]).is_err()
            );
        }
    }
}
