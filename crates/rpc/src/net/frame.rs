//! Frames: what travels inside the TLS stream, byte for byte ([docs/formats/wire.md]).
//!
//! A frame is a header of 40 bytes, a message (its *head*), and bulk data (its *payload*). Reading them is total: whatever comes is a
//! frame or an error, and nothing is allocated for a length that is out of bounds.
//!
//! [docs/formats/wire.md]: ../../../../docs/formats/wire.md

use ashlar_types::Epoch;
use ashlar_types::codec::crc32c;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 40;
/// Newest version of what is said in frames; [`Hello`](super::hello::Hello) agrees on one. When it is to be raised says `docs/formats/wire.md`.
pub const PROTOCOL: u16 = 6;
/// Oldest version that is still spoken: that of the release before, so that servers can be replaced one after the other.
pub const PROTOCOL_MIN: u16 = 5;
/// Longest payload, bytes: a chunk.
// LIMIT: 16 MiB, the largest chunk there is.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 20;
/// Longest head of a request, bytes.
// LIMIT: a write with the inode carries 256 KiB at the most.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Longest head of a reply, bytes.
// LIMIT: a cluster map of 10,000 targets and a million chains.
pub const REPLY_BYTES_MAX: usize = 64 << 20;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Caller to server, first: who it is and what it speaks.
    Hello,
    /// Server to caller, second: what will be spoken.
    Welcome,
    /// A call.
    Request,
    /// Its answer.
    Reply,
    /// The server does not answer: the head is a text for a person. With id 0 it is the connection that is refused.
    Refused,
    /// Caller to server, since protocol [`ENDED_SINCE`]: calls whose answers it needs no more although it waits for older ones.
    Ended,
}

/// The protocol from which on a caller says which calls have ended.
pub const ENDED_SINCE: u16 = 4;

impl Kind {
    fn code(self) -> u8 {
        match self {
            Kind::Hello => 1,
            Kind::Welcome => 2,
            Kind::Request => 3,
            Kind::Reply => 4,
            Kind::Refused => 5,
            Kind::Ended => 6,
        }
    }

    fn of(code: u8) -> Option<Kind> {
        [Kind::Hello, Kind::Welcome, Kind::Request, Kind::Reply, Kind::Refused, Kind::Ended]
            .into_iter()
            .find(|kind| kind.code() == code)
    }
}

/// Which state machine a request is for. The number is its form on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// The manager.
    Manager,
    /// Metadata.
    Meta,
    /// Targets.
    Storage,
    /// What every server tells of itself.
    Process,
    /// What copies of a metadata server's log say to each other.
    Copies,
}

impl Service {
    fn code(self) -> u8 {
        match self {
            Service::Manager => 1,
            Service::Meta => 2,
            Service::Storage => 3,
            Service::Process => 4,
            Service::Copies => 5,
        }
    }

    fn of(code: u8) -> Option<Service> {
        [Service::Manager, Service::Meta, Service::Storage, Service::Process, Service::Copies]
            .into_iter()
            .find(|service| service.code() == code)
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub kind: Kind,
    /// For whom; of a frame that is no request, the service that answers.
    pub service: Service,
    /// The reply is to be kept until the caller has it: the call must not be carried out twice.
    pub is_once: bool,
    /// The call may not wait behind others that do: they may be waiting for it.
    pub is_urgent: bool,
    /// Bytes of the head.
    pub head_bytes: u32,
    /// Bytes of the payload.
    pub payload_bytes: u32,
    /// Number of the call on its channel, from 1.
    pub id: u64,
    /// The newest map the sender knows.
    pub epoch: Epoch,
    /// Of a request: the oldest call on the channel whose reply has not come.
    pub lowest: u64,
}

const ONCE: u16 = 1;
const URGENT: u16 = 2;

impl Header {
    /// Of a frame with `head` and nothing else, that is no request and of no call.
    pub fn plain(kind: Kind, service: Service, epoch: Epoch, head: &[u8]) -> Header {
        Header {
            kind,
            service,
            is_once: false,
            is_urgent: false,
            head_bytes: head.len() as u32,
            payload_bytes: 0,
            id: 0,
            epoch,
            lowest: 0,
        }
    }

    /// The header as it travels before `head`.
    pub fn encode(&self, head: &[u8]) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[0] = self.kind.code();
        out[1] = self.service.code();
        let flags = if self.is_once { ONCE } else { 0 } | if self.is_urgent { URGENT } else { 0 };
        out[2..4].copy_from_slice(&flags.to_le_bytes());
        out[4..8].copy_from_slice(&self.head_bytes.to_le_bytes());
        out[8..12].copy_from_slice(&self.payload_bytes.to_le_bytes());
        out[16..24].copy_from_slice(&self.id.to_le_bytes());
        out[24..32].copy_from_slice(&self.epoch.0.to_le_bytes());
        out[32..40].copy_from_slice(&self.lowest.to_le_bytes());
        let sum = checksum(&out, head);
        out[12..16].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads a header; the checksum is checked with the head ([`Header::check`]).
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn decode(bytes: &[u8; HEADER_BYTES], head_bytes_max: usize) -> Result<Header, &'static str> {
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let flags = u16::from_le_bytes([bytes[2], bytes[3]]);
        let header = Header {
            kind: Kind::of(bytes[0]).ok_or("a frame of an unknown kind")?,
            service: Service::of(bytes[1]).ok_or("a frame for an unknown service")?,
            is_once: flags & ONCE != 0,
            is_urgent: flags & URGENT != 0,
            head_bytes: u32_at(4),
            payload_bytes: u32_at(8),
            id: u64_at(16),
            epoch: Epoch(u64_at(24)),
            lowest: u64_at(32),
        };
        if flags & !(ONCE | URGENT) != 0 {
            return Err("a frame with unknown flags");
        }
        if header.head_bytes as usize > head_bytes_max {
            return Err("a message that is too long");
        }
        if header.payload_bytes as usize > PAYLOAD_BYTES_MAX {
            return Err("a payload that is too long");
        }
        Ok(header)
    }

    /// Whether `head` is what was sent behind the header `bytes`.
    pub fn check(bytes: &[u8; HEADER_BYTES], head: &[u8]) -> bool {
        bytes[12..16] == checksum(bytes, head).to_le_bytes()
    }

    fn body_bytes(&self) -> usize {
        self.head_bytes as usize + self.payload_bytes as usize
    }
}

/// CRC-32C of a header but for the checksum, and of the head.
fn checksum(header: &[u8; HEADER_BYTES], head: &[u8]) -> u32 {
    crc32c(crc32c(crc32c(0, &header[..12]), &header[16..]), head)
}

/// A frame that has come.
#[derive(Debug)]
pub struct Frame {
    /// Its header.
    pub header: Header,
    body: Vec<u8>,
}

impl Frame {
    /// The message.
    pub fn head(&self) -> &[u8] {
        self.body.get(..self.header.head_bytes as usize).unwrap_or_default()
    }

    /// The bulk data.
    pub fn payload(&self) -> &[u8] {
        self.body.get(self.header.head_bytes as usize..).unwrap_or_default()
    }

    /// Bytes it takes in memory.
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + self.body.len()
    }
}

/// Puts frames together from what comes in pieces.
pub struct Assembler {
    head_bytes_max: usize,
    raw: [u8; HEADER_BYTES],
    header: Option<Header>,
    body: Vec<u8>,
    got: usize,
}

impl Assembler {
    /// One that takes heads of up to `head_bytes_max` bytes.
    pub fn new(head_bytes_max: usize) -> Assembler {
        Assembler { head_bytes_max, raw: [0; HEADER_BYTES], header: None, body: Vec::new(), got: 0 }
    }

    /// Whether nothing of a frame has come.
    pub fn is_at_border(&self) -> bool {
        self.header.is_none() && self.got == 0
    }

    /// Where the next bytes of the stream belong; never empty.
    pub fn room(&mut self) -> &mut [u8] {
        match self.header {
            None => &mut self.raw[self.got..],
            Some(_) => &mut self.body[self.got..],
        }
    }

    /// Notes that `bytes` bytes were put into [`Assembler::room`]; tells the frame that is whole now.
    ///
    /// # Errors
    /// What is wrong with what has come, in words: nothing behind it can be understood.
    pub fn filled(&mut self, bytes: usize) -> Result<Option<Frame>, &'static str> {
        self.got += bytes;
        let header = match self.header {
            Some(header) => header,
            None if self.got < HEADER_BYTES => return Ok(None),
            None => {
                let header = Header::decode(&self.raw, self.head_bytes_max)?;
                self.header = Some(header);
                // A length is believed as far as its bound: memory for it is taken before the bytes are there.
                self.body = vec![0; header.body_bytes()];
                self.got = 0;
                header
            }
        };
        if self.got < self.body.len() {
            return Ok(None);
        }
        let frame = Frame { header, body: std::mem::take(&mut self.body) };
        (self.header, self.got) = (None, 0);
        if !Header::check(&self.raw, frame.head()) {
            return Err("a message whose checksum does not match");
        }
        Ok(Some(frame))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ashlar_env::Entropy;
    use ashlar_env::sim::SimEntropy;

    fn header(head: &[u8], payload: &[u8]) -> Header {
        Header {
            kind: Kind::Request,
            service: Service::Storage,
            is_once: true,
            is_urgent: false,
            head_bytes: head.len() as u32,
            payload_bytes: payload.len() as u32,
            id: 77,
            epoch: Epoch(9),
            lowest: 70,
        }
    }

    fn feed(assembler: &mut Assembler, mut bytes: &[u8], step: usize) -> Result<Vec<Frame>, &'static str> {
        let mut frames = Vec::new();
        while !bytes.is_empty() {
            let room = assembler.room();
            let len = room.len().min(step).min(bytes.len());
            room[..len].copy_from_slice(&bytes[..len]);
            bytes = &bytes[len..];
            frames.extend(assembler.filled(len)?);
        }
        Ok(frames)
    }

    fn stream() -> Vec<u8> {
        let mut stream = Vec::new();
        for (head, payload) in [(&b"head"[..], &b"payload"[..]), (b"", b""), (b"x", b""), (b"", b"y")] {
            stream.extend_from_slice(&header(head, payload).encode(head));
            stream.extend_from_slice(head);
            stream.extend_from_slice(payload);
        }
        stream
    }

    #[test]
    fn frames_come_out_as_they_went_in_whatever_the_pieces() {
        for step in [1, 3, 40, 41, 1000] {
            let frames = feed(&mut Assembler::new(100), &stream(), step).unwrap();
            assert_eq!(frames.len(), 4, "{step}");
            assert_eq!((frames[0].head(), frames[0].payload()), (&b"head"[..], &b"payload"[..]));
            assert_eq!(frames[0].header, header(b"head", b"payload"));
            assert_eq!((frames[3].head(), frames[3].payload()), (&b""[..], &b"y"[..]));
        }
    }

    #[test]
    fn a_changed_bit_of_header_or_message_is_noticed() {
        let whole = header(b"head", b"").encode(b"head");
        for bit in 0..HEADER_BYTES * 8 {
            let mut bytes = whole.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes.extend_from_slice(b"head");
            let outcome = feed(&mut Assembler::new(100), &bytes, 1000);
            assert!(outcome.is_err() || outcome.is_ok_and(|frames| frames.is_empty()), "bit {bit}");
        }
    }

    #[test]
    fn lengths_out_of_bounds_are_refused_before_anything_is_allocated() {
        let long = Header { head_bytes: 101, ..header(b"", b"") };
        assert!(Header::decode(&long.encode(b""), 100).is_err());
        let long = Header { payload_bytes: PAYLOAD_BYTES_MAX as u32 + 1, ..header(b"", b"") };
        assert!(Header::decode(&long.encode(b""), 100).is_err());
    }

    #[test]
    fn any_bytes_are_frames_or_an_error() {
        let entropy = SimEntropy::new(5);
        for round in 0..10_000u64 {
            let mut bytes = stream();
            for _ in 0..=entropy.next_u64() % 3 {
                let at = (entropy.next_u64() % bytes.len() as u64) as usize;
                bytes[at] = entropy.next_u64() as u8;
            }
            bytes.truncate((entropy.next_u64() % (bytes.len() as u64 + 1)) as usize);
            let mut assembler = Assembler::new(1000);
            let _ = feed(&mut assembler, &bytes, 1 + (round % 50) as usize);
            assert!(assembler.body.len() <= 1000 + PAYLOAD_BYTES_MAX);
        }
    }
}
