//! Goal: whatever bytes arrive, parsing gives an operation or a refusal. Method: valid requests of every opcode, then bytes
//! flipped, lengths cut, counts set to extremes; iterators of the result are run to their end. The seed is fixed.

use ashlar_fuse::protocol::{Dialect, Malformed, Message, Opcode, Operation};

/// xorshift64: enough to choose mutations, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// A request with a plausible argument, two names, and room for data.
fn request(opcode: Opcode, random: &mut Random) -> Vec<u8> {
    let mut argument = vec![0u8; 8 * (1 + random.below(14))];
    for word in argument.chunks_exact_mut(4) {
        let value = [0, 1, 2, 8, 64][random.below(5)];
        word.copy_from_slice(&u32::to_ne_bytes(value));
    }
    let mut body = [&argument[..], b"name\0other\0", &[7; 200]].concat();
    let extensions = random.below(3);
    if extensions > 0 {
        let groups = [24u32, 32, 3, 100, 200, 300].map(u32::to_ne_bytes).concat();
        body.extend_from_slice(&groups);
    }
    let len = (40 + body.len()) as u32;
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&len.to_ne_bytes());
    bytes.extend_from_slice(&(opcode as u32).to_ne_bytes());
    bytes.extend_from_slice(&[1; 28]);
    bytes.extend_from_slice(&(if extensions > 0 { 3u16 } else { 0 }).to_ne_bytes());
    bytes.extend_from_slice(&[0; 2]);
    bytes.extend_from_slice(&body);
    bytes
}

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..random.below(4) {
        let at = random.below(bytes.len());
        match random.below(5) {
            0 => bytes[at] = random.next() as u8,
            1 => bytes.truncate(at),
            2 => bytes.iter_mut().skip(at).take(4).for_each(|byte| *byte = 0xff),
            3 => bytes.insert(at, 0),
            _ => bytes.iter_mut().skip(at).for_each(|byte| *byte = byte.wrapping_add(1)),
        }
        if bytes.is_empty() {
            return;
        }
    }
    // Half of the time make the length right again, so that what is behind it is reached.
    if random.below(2) == 0 && bytes.len() >= 4 {
        let len = (bytes.len() as u32).to_ne_bytes();
        bytes[..4].copy_from_slice(&len);
    }
}

const NEWEST: Dialect = Dialect { minor: 45, setxattr_ext: false };

fn parse(bytes: &[u8], dialect: Dialect) -> Result<(), Malformed> {
    let message = Message::new(bytes)?;
    let parts = message.parts(dialect)?;
    let (request, operation) = parts.operation(&message)?;
    assert!(request.extensions.groups().count() <= bytes.len());
    assert!(request.extensions.contexts().count() <= bytes.len());
    if let Operation::Forget(forgets) = operation {
        assert_eq!(forgets.iter().count(), forgets.len());
    }
    Ok(())
}

#[test]
fn a_hundred_thousand_requests() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut understood, mut refused) = (0, 0);
    for index in 0..100_000 {
        let opcode = Opcode::ALL[index % Opcode::ALL.len()];
        let mut bytes = request(opcode, &mut random);
        mutate(&mut bytes, &mut random);
        match parse(&bytes, Dialect { minor: 45, setxattr_ext: index % 2 == 0 }) {
            Ok(()) => understood += 1,
            Err(_) => refused += 1,
        }
    }
    assert!(understood > 20_000 && refused > 20_000, "{understood} understood, {refused} refused");
}

#[test]
fn every_cut_of_every_request_is_refused_or_understood() {
    let mut random = Random(42);
    for opcode in Opcode::ALL {
        let whole = request(*opcode, &mut random);
        for len in 0..whole.len() {
            let mut bytes = whole[..len].to_vec();
            assert!(parse(&bytes, NEWEST).is_err(), "{opcode:?} cut to {len}: the length is wrong");
            if len >= 4 {
                bytes[..4].copy_from_slice(&(len as u32).to_ne_bytes());
            }
            let _ = parse(&bytes, NEWEST);
        }
    }
}

#[test]
fn an_operation_newer_than_the_version_agreed_on_is_unknown() {
    let old = Dialect { minor: 31, ..NEWEST };
    let bytes = request(Opcode::Statx, &mut Random(1));
    assert_eq!(parse(&bytes, NEWEST), Ok(()));
    assert_eq!(parse(&bytes, old), Err(Malformed::UnknownOpcode(Opcode::Statx as u32)));
}

#[test]
fn an_unknown_opcode_is_told_apart() {
    let mut bytes = request(Opcode::Lookup, &mut Random(1));
    bytes[4..8].copy_from_slice(&4096u32.to_ne_bytes());
    assert_eq!(parse(&bytes, NEWEST), Err(Malformed::UnknownOpcode(4096)));
}
