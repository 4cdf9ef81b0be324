//! What every record begins with: the number of its file and its place in it.

/// Bytes of a stamp.
pub const BYTES: u64 = 16;

/// Puts stamps into `bytes`, which goes to `offset` of file `number`, one every `every` bytes of the file.
pub fn put(bytes: &mut [u8], every: u64, number: u64, offset: u64) {
    for (count, record) in bytes.chunks_mut(every as usize).enumerate() {
        let place = offset + count as u64 * every;
        if let Some(room) = record.get_mut(..BYTES as usize) {
            room.copy_from_slice(&stamp(number, place));
        }
    }
}

/// Looks for the stamps of [`put`]; the first place without one is the error.
pub fn check(bytes: &[u8], every: u64, number: u64, offset: u64) -> Result<(), u64> {
    for (count, record) in bytes.chunks(every as usize).enumerate() {
        let place = offset + count as u64 * every;
        if record.get(..BYTES as usize).is_some_and(|found| found != stamp(number, place)) {
            return Err(place);
        }
    }
    Ok(())
}

fn stamp(number: u64, place: u64) -> [u8; BYTES as usize] {
    let mut bytes = [0; BYTES as usize];
    bytes[..8].copy_from_slice(&(number ^ 0x6173_686c_6172).to_le_bytes());
    bytes[8..].copy_from_slice(&place.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_another_place_or_file_is_found() {
        let mut bytes = vec![7; 96];
        put(&mut bytes, 32, 3, 320);
        assert_eq!(check(&bytes, 32, 3, 320), Ok(()));
        assert_eq!(check(&bytes[32..64], 32, 3, 352), Ok(()), "each has its own");
        assert_eq!(check(&bytes, 32, 3, 352), Err(352));
        assert_eq!(check(&bytes, 32, 4, 320), Err(320));
        bytes[64] ^= 1;
        assert_eq!(check(&bytes, 32, 3, 320), Err(384));
    }
}
