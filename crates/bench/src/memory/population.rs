//! Whether memory modules are where they should be: the rules behind the measurements of balanced and unbalanced configurations
//! (up to 40 % less bandwidth for the same amount of memory). Each processor has the same memory, each of its channels the same, with the
//! same number of modules on each, at most two, and all run as fast as they can.

use super::smbios::{MemoryDevice, SmbiosError, memory_devices};
use serde::Serialize;
use std::collections::BTreeMap;

/// A module that is installed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Module {
    /// The label of its place, as on the board.
    pub place: String,
    /// The processor it belongs to, as far as the labels tell.
    pub processor: Option<String>,
    /// The channel of that processor.
    pub channel: Option<String>,
    /// Bytes.
    pub bytes: u64,
    /// Million transfers per second it can do, 0 if not told.
    pub speed: u32,
    /// And those it is run with.
    pub configured_speed: u32,
}

/// Something to put right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// What is wrong, and what to do.
    pub text: String,
}

/// A place for a module, whether there is one or not.
struct Slot {
    processor: Option<String>,
    channel: Option<String>,
    device: MemoryDevice,
}

/// More modules than this on a channel make it slower.
const PER_CHANNEL_MAX: usize = 2;

/// The modules that the tables name.
///
/// # Errors
/// When the tables are damaged.
pub fn modules(table: &[u8]) -> Result<Vec<Module>, SmbiosError> {
    Ok(slots(table)?.iter().filter_map(module).collect())
}

fn module(slot: &Slot) -> Option<Module> {
    let bytes = slot.device.bytes.filter(|bytes| *bytes > 0)?;
    Some(Module {
        place: slot.device.locator.clone(),
        processor: slot.processor.clone(),
        channel: slot.channel.clone(),
        bytes,
        speed: slot.device.speed,
        configured_speed: slot.device.configured_speed,
    })
}

fn slots(table: &[u8]) -> Result<Vec<Slot>, SmbiosError> {
    let devices = memory_devices(table)?.into_iter().filter(|device| device.is_dram);
    let mut slots: Vec<Slot> = devices
        .map(|device| {
            let (processor, channel) = position(&device.locator, &device.bank);
            Slot { processor, channel, device }
        })
        .collect();
    // A scheme that fits some labels only was not understood.
    if slots.iter().any(|slot| slot.processor.is_none()) {
        slots.iter_mut().for_each(|slot| slot.processor = None);
    }
    if slots.iter().any(|slot| slot.channel.is_none()) {
        slots.iter_mut().for_each(|slot| slot.channel = None);
    }
    Ok(slots)
}

/// Processor and channel of a place by its labels, as makers write them: `A1` (processor A, place 1), `P1-DIMMA1`, `CPU1_DIMM_A1`,
/// `PROC 1 DIMM 3`, `P0_Node0_Channel2_Dimm0`, `NODE 1 CHANNEL 0 DIMM 1`, `DIMM_A1` in a bank `P0 CHANNEL A`.
fn position(locator: &str, bank: &str) -> (Option<String>, Option<String>) {
    let words = words(&format!("{locator} {bank}"));
    let after = |names: &[&str]| {
        words.iter().enumerate().find_map(|(at, word)| {
            let rest = names.iter().find_map(|name| word.strip_prefix(name))?;
            let value = if rest.is_empty() { words.get(at + 1)?.as_str() } else { rest };
            let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
            let is_letter = value.len() == 1 && value.bytes().all(|byte| byte.is_ascii_alphabetic());
            (is_number || is_letter).then(|| value.to_owned())
        })
    };
    let processor = after(&["CPU", "PROC", "SOCKET", "P", "NODE"]);
    let channel = after(&["CHANNEL", "CHAN", "CH"]).or_else(|| {
        // `DIMMA1` or `A1` behind a processor: the letter is the channel.
        let of_word = |word: &String| {
            let word = word.strip_prefix("DIMM").unwrap_or(word);
            let (letter, number) = word.split_at_checked(1)?;
            let fits = letter.bytes().all(|byte| byte.is_ascii_uppercase())
                && !number.is_empty()
                && number.bytes().all(|byte| byte.is_ascii_digit());
            fits.then(|| letter.to_owned())
        };
        processor.as_ref().and_then(|_| words.iter().filter(|word| !word.starts_with('P')).find_map(of_word))
    });
    if processor.is_some() {
        return (processor, channel);
    }
    // Nothing but a letter and a number: the letter is the processor. The channel follows from how many there are: not known here.
    let mut letters = locator.chars();
    let letter = letters.next().filter(char::is_ascii_uppercase);
    let number = letters.as_str();
    let fits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    (letter.filter(|_| fits).map(String::from), None)
}

/// Upper-case words of letters and digits.
fn words(text: &str) -> Vec<String> {
    text.to_ascii_uppercase()
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// What should be put right; empty when the rules hold or the tables tell nothing that they apply to.
///
/// # Errors
/// When the tables are damaged.
pub fn advise(table: &[u8]) -> Result<Vec<Advice>, SmbiosError> {
    let slots = slots(table)?;
    let installed: Vec<Module> = slots.iter().filter_map(module).collect();
    let mut found = Vec::new();
    let mut say = |text: String| found.push(Advice { text });
    compare_processors(&slots, &installed, &mut say);
    compare_channels(&slots, &installed, &mut say);
    let slow: Vec<&Module> = installed
        .iter()
        .filter(|module| module.configured_speed > 0 && module.configured_speed < module.speed)
        .collect();
    if let Some(first) = slow.first() {
        say(format!(
            "{} of {} modules run slower than they can ({} at {} instead of {} MT/s): fewer modules per channel, or another setting of the firmware, may help",
            slow.len(),
            installed.len(),
            first.place,
            first.configured_speed,
            first.speed
        ));
    }
    let mut speeds: Vec<u32> =
        installed.iter().map(|module| module.speed).filter(|speed| *speed > 0).collect();
    speeds.sort_unstable();
    speeds.dedup();
    if let [slowest, .., fastest] = speeds[..] {
        say(format!("modules of {slowest} and {fastest} MT/s are mixed: all run as the slowest"));
    }
    Ok(found)
}

/// Bytes per processor, those without modules included.
fn compare_processors(slots: &[Slot], installed: &[Module], say: &mut impl FnMut(String)) {
    let mut totals: BTreeMap<&str, (u64, usize)> =
        slots.iter().filter_map(|slot| Some((slot.processor.as_deref()?, (0, 0)))).collect();
    for module in installed {
        if let Some(total) = module.processor.as_deref().and_then(|name| totals.get_mut(name)) {
            *total = (total.0 + module.bytes, total.1 + 1);
        }
    }
    let Some((least, most)) = extremes(&totals, |total| total.0) else { return };
    if totals[least].0 != totals[most].0 {
        say(format!(
            "processor {least} has {} of memory and processor {most} has {}: give every processor the same",
            gib(totals[least].0),
            gib(totals[most].0)
        ));
    } else if let Some((fewest, most)) = extremes(&totals, |total| total.1)
        && totals[fewest].1 != totals[most].1
    {
        say(format!(
            "processor {fewest} has {} modules and processor {most} has {} for the same memory: give every processor the same modules",
            totals[fewest].1, totals[most].1
        ));
    }
}

/// Bytes and modules per channel of each processor.
fn compare_channels(slots: &[Slot], installed: &[Module], say: &mut impl FnMut(String)) {
    let mut processors: BTreeMap<&str, BTreeMap<&str, (u64, usize)>> = BTreeMap::new();
    for slot in slots {
        if let (Some(processor), Some(channel)) = (&slot.processor, &slot.channel) {
            processors.entry(processor).or_default().entry(channel).or_default();
        }
    }
    for module in installed {
        let (Some(processor), Some(channel)) = (&module.processor, &module.channel) else { continue };
        if let Some(total) =
            processors.get_mut(processor.as_str()).and_then(|of| of.get_mut(channel.as_str()))
        {
            *total = (total.0 + module.bytes, total.1 + 1);
        }
    }
    for (processor, channels) in &processors {
        let Some((least, most)) = extremes(channels, |total| total.0) else { continue };
        if channels[most].0 == 0 {
            continue;
        }
        if channels[least].0 != channels[most].0 {
            say(format!(
                "channel {least} of processor {processor} has {} and channel {most} has {}: put the same on every channel",
                gib(channels[least].0),
                gib(channels[most].0)
            ));
        }
        if let Some((channel, total)) = channels.iter().find(|(_, total)| total.1 > PER_CHANNEL_MAX) {
            say(format!(
                "channel {channel} of processor {processor} has {} modules: with more than {PER_CHANNEL_MAX} it runs slower; fewer and larger ones are faster",
                total.1
            ));
        }
    }
}

/// The keys with the least and the greatest figure, the first of equals.
fn extremes<'a, T, K: Ord>(
    of: &BTreeMap<&'a str, T>,
    figure: impl Fn(&T) -> K,
) -> Option<(&'a str, &'a str)> {
    let least = of.iter().min_by_key(|(_, value)| figure(value))?.0;
    let most = of.iter().rev().max_by_key(|(_, value)| figure(value))?.0;
    Some((least, most))
}

fn gib(bytes: u64) -> String {
    match bytes % (1 << 30) {
        0 => format!("{} GiB", bytes >> 30),
        _ => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.
mod tests {
    use super::super::smbios::table;
    use super::*;

    /// Two processors with four channels of three places; `mib(processor, channel, place)` is installed there.
    fn blade(mib: impl Fn(usize, usize, usize) -> u32) -> Vec<u8> {
        let mut devices = Vec::new();
        for processor in 0..2 {
            for place in 0..3 {
                for channel in 0..4 {
                    let locator =
                        format!("CPU{}_DIMM_{}{}", processor + 1, ["A", "B", "C", "D"][channel], place + 1);
                    devices.push(table::device(
                        &locator,
                        "",
                        mib(processor, channel, place),
                        (1600, 1600),
                        2,
                    ));
                }
            }
        }
        table::of(&devices)
    }

    fn advice(table: &[u8]) -> String {
        advise(table).unwrap().into_iter().map(|advice| advice.text).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn balanced_configurations_need_no_advice() {
        let sizes: [fn(usize, usize, usize) -> u32; 3] = [
            |_, _, place| if place == 0 { 4096 } else { 0 },
            |_, _, place| if place < 2 { 8192 } else { 0 },
            |_, _, place| [8192, 4096, 0][place],
        ];
        for size in sizes {
            assert_eq!(advice(&blade(size)), "");
        }
    }

    #[test]
    fn three_modules_on_a_channel_and_unequal_processors_and_channels_are_told() {
        let three = advice(&blade(|_, _, _| 4096));
        assert!(three.contains("channel A of processor 1 has 3 modules: with more than 2"), "{three}");
        let processors = advice(&blade(|processor, _, place| if place < 2 - processor { 4096 } else { 0 }));
        assert_eq!(
            processors,
            "processor 2 has 16 GiB of memory and processor 1 has 32 GiB: give every processor the same"
        );
        let channels = advice(&blade(|_, channel, place| if channel < 3 && place == 0 { 8192 } else { 0 }));
        assert!(
            channels.contains(
                "channel D of processor 1 has 0 GiB and channel A has 8 GiB: put the same on every channel"
            ),
            "{channels}"
        );
        assert!(channels.contains("channel D of processor 2"), "{channels}");
    }

    #[test]
    fn the_same_memory_in_other_modules_and_slow_or_mixed_ones_are_told() {
        let other = advice(&blade(|processor, _, place| match (processor, place) {
            (0, 0) => 8192,
            (1, 0 | 1) => 4096,
            _ => 0,
        }));
        assert_eq!(
            other,
            "processor 1 has 4 modules and processor 2 has 8 for the same memory: give every processor the same modules"
        );
        let devices = [
            table::device("P1-DIMMA1", "", 8192, (1600, 1333), 2),
            table::device("P1-DIMMB1", "", 8192, (1333, 1333), 2),
        ];
        let slow = advice(&table::of(&devices));
        assert!(
            slow.contains("1 of 2 modules run slower than they can (P1-DIMMA1 at 1333 instead of 1600 MT/s)"),
            "{slow}"
        );
        assert!(slow.contains("modules of 1333 and 1600 MT/s are mixed"), "{slow}");
    }

    #[test]
    fn places_are_understood_as_makers_label_them() {
        let known = |processor: &str, channel: &str| (Some(processor.to_owned()), Some(channel.to_owned()));
        for (locator, bank, expected) in [
            ("P1-DIMMA1", "P0_Node0_Channel0_Dimm0", known("1", "0")),
            ("P2-DIMMB1", "", known("2", "B")),
            ("CPU1_DIMM_A1", "NODE 1", known("1", "A")),
            ("P0_Node0_Channel2_Dimm0", "", known("0", "2")),
            ("NODE 1 CHANNEL 3 DIMM 1", "", known("1", "3")),
            ("DIMM_A1", "P0 CHANNEL A", known("0", "A")),
            ("PROC 1 DIMM 3", "", (Some("1".to_owned()), None)),
            ("B12", "Not Specified", (Some("B".to_owned()), None)),
            ("DIMM 0", "", (None, None)),
            ("", "", (None, None)),
        ] {
            assert_eq!(position(locator, bank), expected, "{locator} / {bank}");
        }
    }

    #[test]
    fn labels_that_are_not_understood_lead_to_no_wrong_advice() {
        let devices = [
            table::device("DIMM 0", "BANK 0", 8192, (1600, 1600), 2),
            table::device("CPU1_DIMM_A1", "", 4096, (1600, 1600), 2),
        ];
        assert_eq!(advice(&table::of(&devices)), "");
        assert_eq!(modules(&table::of(&devices)).unwrap().len(), 2);
    }
}
