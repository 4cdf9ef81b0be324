//! The bytes of a backup: a header, then frames chained by their checksums, the last of which says how many there were.

use anyhow::{Context, Result, bail};
use ashlar_types::ClusterId;
use ashlar_types::codec::crc32c;
use std::io::{Read, Write};

const MAGIC: &[u8; 8] = b"ASHLBKUP";
/// The format of a backup of a single machine.
const VERSION: u16 = 1;
/// The format of a part of a backup of many servers: the newest one this software knows.
const VERSION_OF_PART: u16 = 2;
/// Bytes of the header.
const HEADER_BYTES: usize = 40;
/// Bytes before a frame's payload.
const FRAME_HEADER_BYTES: usize = 12;
/// Longest payload of a frame, bytes.
// LIMIT: a state file of 64 MiB and its header is the longest.
const PAYLOAD_BYTES_MAX: u32 = (64 << 20) + 4096;

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The bytes of the file `cluster-state`.
    ClusterState,
    /// The bytes of the file `secrets`.
    Secrets,
    /// Pairs of the metadata, by ascending key over the whole backup.
    Pairs,
    /// What a part says of itself and of the others (`part.rs`).
    Part,
    /// The number of pairs, u64; the last frame.
    End,
}

impl Kind {
    fn number(self) -> u8 {
        match self {
            Kind::ClusterState => 1,
            Kind::Secrets => 2,
            Kind::Pairs => 3,
            Kind::Part => 4,
            Kind::End => 255,
        }
    }

    fn of(number: u8) -> Option<Kind> {
        [Kind::ClusterState, Kind::Secrets, Kind::Pairs, Kind::Part, Kind::End]
            .into_iter()
            .find(|kind| kind.number() == number)
    }
}

/// What a backup says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The file system.
    pub cluster: ClusterId,
    /// When it was made, seconds since 1970.
    pub made_at: i64,
    /// It is a part of a backup of many servers.
    pub is_part: bool,
}

impl Header {
    fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        let version = if self.is_part { VERSION_OF_PART } else { VERSION };
        out.extend_from_slice(&version.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&self.cluster.0);
        out.extend_from_slice(&self.made_at.to_le_bytes());
        let crc = crc32c(0, &out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header> {
        let (body, crc) = bytes.split_at(HEADER_BYTES - 4);
        if &body[..8] != MAGIC {
            bail!("it is not a backup of an Ashlar file system");
        }
        if crc32c(0, body).to_le_bytes() != crc {
            bail!("the checksum of its header is wrong");
        }
        let version = u16::from_le_bytes([body[8], body[9]]);
        if version > VERSION_OF_PART {
            bail!("it has format {version}, this software knows formats up to {VERSION_OF_PART}");
        }
        let cluster = ClusterId(body[12..28].try_into().context("it is short")?);
        let made_at = i64::from_le_bytes(body[28..36].try_into().context("it is short")?);
        Ok(Header { cluster, made_at, is_part: version == VERSION_OF_PART })
    }
}

/// Writes a backup, frame by frame.
pub struct Writer<W: Write> {
    out: W,
    /// Checksum of the last frame: the next one's begins with it.
    chain: u32,
}

impl<W: Write> Writer<W> {
    /// Begins a backup.
    ///
    /// # Errors
    /// As write(2).
    pub fn new(mut out: W, header: &Header) -> std::io::Result<Writer<W>> {
        let bytes = header.encode();
        out.write_all(&bytes)?;
        Ok(Writer { out, chain: crc32c(0, &bytes) })
    }

    /// Adds a frame.
    ///
    /// # Errors
    /// As write(2); `InvalidInput` for a payload that is too long.
    pub fn frame(&mut self, kind: Kind, payload: &[u8]) -> std::io::Result<()> {
        let len = u32::try_from(payload.len()).ok().filter(|len| *len <= PAYLOAD_BYTES_MAX);
        let len = len.ok_or(std::io::ErrorKind::InvalidInput)?;
        let mut head = vec![kind.number(), 0, 0, 0];
        head.extend_from_slice(&len.to_le_bytes());
        self.chain = crc32c(crc32c(self.chain, &head), payload);
        head.extend_from_slice(&self.chain.to_le_bytes());
        self.out.write_all(&head)?;
        self.out.write_all(payload)
    }

    /// Gives the output back.
    pub fn into_inner(self) -> W {
        self.out
    }
}

/// Reads a backup, frame by frame.
pub struct Reader<R: Read> {
    input: R,
    chain: u32,
    /// What the backup says of itself.
    pub header: Header,
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// When it is not a backup, is damaged, or of a newer format.
    pub fn new(mut input: R) -> Result<Reader<R>> {
        let mut bytes = [0; HEADER_BYTES];
        input.read_exact(&mut bytes).context("it is shorter than a header")?;
        let header = Header::decode(&bytes)?;
        Ok(Reader { input, chain: crc32c(0, &bytes), header })
    }

    /// The next frame.
    ///
    /// # Errors
    /// When it is damaged, cut off, or not the one that was written behind the last one.
    pub fn frame(&mut self) -> Result<(Kind, Vec<u8>)> {
        let mut head = [0; FRAME_HEADER_BYTES];
        self.input.read_exact(&mut head).context("it is cut off")?;
        let [kind, _, _, _, a, b, c, d, ..] = head;
        let len = u32::from_le_bytes([a, b, c, d]);
        if len > PAYLOAD_BYTES_MAX {
            bail!("a frame is damaged");
        }
        let mut payload = Vec::new();
        // Grows with what is there, so that a damaged length allocates nothing.
        (&mut self.input).take(u64::from(len)).read_to_end(&mut payload).context("cannot read it")?;
        if payload.len() != len as usize {
            bail!("it is cut off");
        }
        self.chain = crc32c(crc32c(self.chain, &head[..8]), &payload);
        if self.chain.to_le_bytes() != head[8..] {
            bail!("a frame is damaged or missing");
        }
        let kind = Kind::of(kind).context("a frame is of a kind this software does not know")?;
        Ok((kind, payload))
    }

    /// Whether nothing is behind the last frame.
    ///
    /// # Errors
    /// As read(2).
    pub fn is_at_end(&mut self) -> std::io::Result<bool> {
        Ok(self.input.read(&mut [0])? == 0)
    }
}

/// Appends a pair to a payload: length of the key u16, key, length of the value u32, value.
pub fn encode_pair(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    // Keys and values are within the limits of the key-value layer, far below these types'.
    out.extend_from_slice(&(key.len() as u16).to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(&(value.len() as u32).to_le_bytes());
    out.extend_from_slice(value);
}

/// The first pair of `payload`, and the rest; `None` when it is malformed.
pub fn decode_pair(payload: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (len, rest) = payload.split_first_chunk::<2>()?;
    let (key, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
    let (len, rest) = rest.split_first_chunk::<4>()?;
    let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    Some((key, value, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header { cluster: ClusterId([7; 16]), made_at: 1_700_000_000, is_part: false };

    fn sample() -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), &HEADER).unwrap();
        let mut pairs = Vec::new();
        encode_pair(b"key", b"value", &mut pairs);
        writer.frame(Kind::Secrets, b"secret").unwrap();
        writer.frame(Kind::Pairs, &pairs).unwrap();
        writer.frame(Kind::Pairs, &pairs).unwrap();
        writer.frame(Kind::End, &2u64.to_le_bytes()).unwrap();
        writer.into_inner()
    }

    fn read(bytes: &[u8]) -> Result<Vec<(Kind, Vec<u8>)>> {
        let mut reader = Reader::new(bytes)?;
        let mut frames = Vec::new();
        while frames.last().is_none_or(|(kind, _)| *kind != Kind::End) {
            frames.push(reader.frame()?);
        }
        if !reader.is_at_end()? {
            bail!("excess");
        }
        Ok(frames)
    }

    #[test]
    fn frames_come_back_and_pairs_too() {
        let frames = read(&sample()).unwrap();
        let kinds: Vec<Kind> = frames.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [Kind::Secrets, Kind::Pairs, Kind::Pairs, Kind::End]);
        assert_eq!(decode_pair(&frames[1].1), Some((b"key".as_slice(), b"value".as_slice(), b"".as_slice())));
        assert_eq!(decode_pair(&frames[1].1[..6]), None);
    }

    #[test]
    fn every_flip_cut_and_missing_frame_is_noticed() {
        let good = sample();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x20;
            assert!(read(&bad).is_err(), "flip at {at}");
            assert!(read(&good[..at]).is_err(), "cut at {at}");
        }
        let frame = FRAME_HEADER_BYTES + 14;
        let first = HEADER_BYTES + FRAME_HEADER_BYTES + 6;
        let without_one = [&good[..first], &good[first + frame..]].concat();
        assert!(read(&without_one).is_err(), "a frame is missing");
    }

    #[test]
    fn the_document_has_the_bytes_of_a_backup() {
        let document = include_str!("../../../../docs/formats/backup.md");
        let hex: String = sample().iter().map(|byte| format!("{byte:02x}")).collect();
        let shown: String = document
            .lines()
            .filter_map(|line| line.strip_prefix("ex "))
            .flat_map(|line| line.chars().filter(|c| !c.is_whitespace()))
            .collect();
        assert_eq!(shown, hex);
    }
}
