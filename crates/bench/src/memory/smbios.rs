//! The tables of the firmware (DMTF DSP0134, "System Management BIOS Reference Specification" 3.7), as far as memory modules go.
//!
//! ```text
//!   table     = structure*                      ended by one of type 127, or by the end
//!   structure = type u8, length u8, handle u16, body (length - 4 bytes), string*, NUL
//!   string    = bytes, NUL                      numbered from 1; a structure without strings has two NULs
//! ```

use std::fs;
use std::path::Path;

/// Where Linux shows the tables, to root.
pub const TABLE_PATH: &str = "/sys/firmware/dmi/tables/DMI";

// LIMIT: real tables have some ten thousand bytes.
const TABLE_BYTES_MAX: u64 = 1 << 20;
const MEMORY_DEVICE: u8 = 17;
const END_OF_TABLE: u8 = 127;
const HEADER_BYTES: usize = 4;

/// Why the tables were not read.
#[derive(Debug, thiserror::Error)]
pub enum SmbiosError {
    /// The firmware, or the machine that plays it, has none.
    #[error("this machine shows no firmware tables ({TABLE_PATH} is missing)")]
    Missing,
    /// Only root may read them.
    #[error("{TABLE_PATH} is for root to read")]
    Denied,
    /// Another error.
    #[error("read {TABLE_PATH}: {0}")]
    Read(std::io::Error),
    /// The bytes are no such tables.
    #[error("the firmware tables are damaged at byte {at}: {what}")]
    Damaged {
        /// Offset in bytes.
        at: usize,
        /// What is wrong there.
        what: &'static str,
    },
}

/// One structure of type 17, "Memory Device": a place for a module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MemoryDevice {
    /// Bytes of the module, 0 without one; `None` when the firmware does not know.
    pub(super) bytes: Option<u64>,
    /// The place by its label on the board.
    pub(super) locator: String,
    /// The bank by its label.
    pub(super) bank: String,
    /// Million transfers per second the module can do; 0 when not told.
    pub(super) speed: u32,
    /// And those it is run with.
    pub(super) configured_speed: u32,
    /// Ranks; 0 when not told.
    pub(super) ranks: u8,
    /// Whether it holds the machine's memory: a module of DRAM, not flash or a persistent one.
    pub(super) is_dram: bool,
}

/// Reads the tables of this machine.
///
/// # Errors
/// When there are none, or not for the caller.
pub fn read_table() -> Result<Vec<u8>, SmbiosError> {
    read_from(Path::new(TABLE_PATH))
}

fn read_from(path: &Path) -> Result<Vec<u8>, SmbiosError> {
    let length = fs::metadata(path).map_err(read_error)?.len();
    if length > TABLE_BYTES_MAX {
        return Err(SmbiosError::Damaged { at: 0, what: "longer than any firmware's" });
    }
    fs::read(path).map_err(read_error)
}

fn read_error(error: std::io::Error) -> SmbiosError {
    match error.kind() {
        std::io::ErrorKind::NotFound => SmbiosError::Missing,
        std::io::ErrorKind::PermissionDenied => SmbiosError::Denied,
        _ => SmbiosError::Read(error),
    }
}

/// All places for memory modules, in the order of the table.
pub(super) fn memory_devices(table: &[u8]) -> Result<Vec<MemoryDevice>, SmbiosError> {
    let mut devices = Vec::new();
    let mut at = 0;
    while at < table.len() {
        let damaged = |what| SmbiosError::Damaged { at, what };
        let [kind, length, _, _] = table[at..].first_chunk().ok_or(damaged("half a header"))?;
        let length = usize::from(*length);
        if length < HEADER_BYTES {
            return Err(damaged("a structure shorter than its header"));
        }
        let body = table.get(at..at + length).ok_or(damaged("a structure beyond the end"))?;
        let rest = &table[at + length..];
        let strings =
            rest.windows(2).position(|pair| pair == [0, 0]).ok_or(damaged("strings without an end"))?;
        match *kind {
            MEMORY_DEVICE => devices.push(memory_device(body, &rest[..strings])),
            END_OF_TABLE => break,
            _ => {}
        }
        at += length + strings + 2;
    }
    Ok(devices)
}

/// Fields that an older version of the specification has not got read as 0.
fn memory_device(body: &[u8], strings: &[u8]) -> MemoryDevice {
    let byte = |at: usize| body.get(at).copied().unwrap_or(0);
    let word = |at: usize| u16::from_le_bytes([byte(at), byte(at + 1)]);
    let dword = |at: usize| u32::from(word(at)) | u32::from(word(at + 2)) << 16;
    let text = |number: u8| {
        let string = strings.split(|byte| *byte == 0).nth(usize::from(number).wrapping_sub(1));
        String::from_utf8_lossy(string.unwrap_or_default()).trim().to_owned()
    };
    let bytes = match word(0x0C) {
        0xFFFF => None,
        0x7FFF => Some(u64::from(dword(0x1C) & 0x7FFF_FFFF) << 20),
        kib if kib & 0x8000 != 0 => Some(u64::from(kib & 0x7FFF) << 10),
        mib => Some(u64::from(mib) << 20),
    };
    // 0xFFFF stands for a speed that needs the longer field of version 3.3.
    let speed = |short: u16, long: u32| if short == 0xFFFF { long } else { u32::from(short) };
    // Memory technology (3.2): 3 is DRAM, 0 to 2 not told; 4 and above are NVDIMMs and persistent memory.
    let is_dram = byte(0x28) <= 3;
    MemoryDevice {
        bytes,
        locator: text(byte(0x10)),
        bank: text(byte(0x11)),
        speed: speed(word(0x15), dword(0x54)),
        configured_speed: speed(word(0x20), dword(0x58)),
        ranks: byte(0x1B) & 0x0F,
        is_dram,
    }
}

/// Makes tables for tests, field by field as the specification has them.
#[cfg(test)]
pub(super) mod table {
    use super::{END_OF_TABLE, MEMORY_DEVICE};

    /// A place with a module of `mib`, 0 for none; both speeds in million transfers per second.
    pub(crate) fn device(locator: &str, bank: &str, mib: u32, speeds: (u16, u16), ranks: u8) -> Vec<u8> {
        let mut body = vec![0u8; 0x5C];
        (body[0], body[1]) = (MEMORY_DEVICE, 0x5C);
        let short = if mib < 0x7FFF { mib as u16 } else { 0x7FFF };
        body[0x0C..0x0E].copy_from_slice(&short.to_le_bytes());
        if mib >= 0x7FFF {
            body[0x1C..0x20].copy_from_slice(&mib.to_le_bytes());
        }
        body[0x15..0x17].copy_from_slice(&speeds.0.to_le_bytes());
        body[0x1B] = ranks;
        body[0x20..0x22].copy_from_slice(&speeds.1.to_le_bytes());
        body[0x28] = 3;
        let mut strings = Vec::new();
        // A string cannot be empty: its number is 0 then.
        for (at, text) in [(0x10, locator), (0x11, bank)].into_iter().filter(|(_, text)| !text.is_empty()) {
            body[at] = strings.len() as u8 + 1;
            strings.push(text);
        }
        strings.iter().for_each(|text| body.extend([text.as_bytes(), &[0]].concat()));
        body.extend(vec![0; if strings.is_empty() { 2 } else { 1 }]);
        body
    }

    /// A structure that is none of our business, and the end.
    pub(crate) fn of(devices: &[Vec<u8>]) -> Vec<u8> {
        let mut table = vec![1, 8, 0, 0, 1, 0, 0, 0];
        table.extend(b"a maker\0\0");
        table.extend(devices.concat());
        table.extend([END_OF_TABLE, 4, 0, 0, 0, 0]);
        table.extend([0xFF; 16]);
        table
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.
mod tests {
    use super::*;

    #[test]
    fn places_with_and_without_modules_are_read() {
        let devices = [
            table::device("A1", "BANK 0", 4096, (1600, 1333), 2),
            table::device("A2", "BANK 1", 0, (0, 0), 0),
            table::device("P1-DIMMA1", "P0_Node0", 65_536, (4800, 4400), 1),
        ];
        let found = memory_devices(&table::of(&devices)).unwrap();
        assert_eq!(found.len(), 3);
        let first = MemoryDevice {
            bytes: Some(4 << 30),
            locator: "A1".into(),
            bank: "BANK 0".into(),
            speed: 1600,
            configured_speed: 1333,
            ranks: 2,
            is_dram: true,
        };
        assert_eq!(found[0], first);
        assert_eq!(found[1].bytes, Some(0));
        assert_eq!(found[2].bytes, Some(64 << 30), "beyond 32 GiB the size has a field of its own");
    }

    #[test]
    fn an_older_and_shorter_structure_and_odd_sizes_are_read() {
        let mut device = table::device("DIMM0", "", 0, (0, 0), 0);
        device[0x0C..0x0E].copy_from_slice(&(0x8000u16 | 512).to_le_bytes());
        // Version 2.1 ends behind the memory type.
        let mut old = device[..0x15].to_vec();
        old[1] = 0x15;
        old.extend(b"DIMM0\0\0");
        let found = memory_devices(&table::of(&[old])).unwrap();
        assert_eq!((found[0].bytes, found[0].speed, found[0].is_dram), (Some(512 << 10), 0, true));
        assert_eq!((found[0].locator.as_str(), found[0].bank.as_str()), ("DIMM0", ""));
        device[0x0C..0x0E].copy_from_slice(&[0xFF, 0xFF]);
        device[0x28] = 4;
        let found = memory_devices(&table::of(&[device])).unwrap();
        assert_eq!((found[0].bytes, found[0].is_dram), (None, false));
    }

    #[test]
    fn damaged_tables_are_an_error_and_never_a_panic() {
        let good = table::of(&[table::device("A1", "B", 1024, (1600, 1600), 1)]);
        for cut in 0..good.len() {
            let _ = memory_devices(&good[..cut]);
        }
        for at in 0..good.len() {
            for value in [0, 1, 3, 0x7F, 0xFF] {
                let mut bad = good.clone();
                bad[at] = value;
                let _ = memory_devices(&bad);
            }
        }
        assert!(matches!(memory_devices(&[17, 3, 0, 0, 0, 0]), Err(SmbiosError::Damaged { at: 0, .. })));
        assert!(matches!(memory_devices(&good[..40]), Err(SmbiosError::Damaged { .. })));
        assert!(memory_devices(&[]).unwrap().is_empty());
    }

    #[test]
    fn tables_that_are_missing_are_told_from_damaged_ones() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(read_from(&dir.path().join("DMI")), Err(SmbiosError::Missing)));
    }
}
