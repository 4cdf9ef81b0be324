//! Malformed encodings for tests of decoders and of what acts on what they decoded: [`mutated`] encodes a value with some of its fields
//! changed, so that most of what it makes decodes, and says something that nobody would say.
//!
//! [`map_of_shards`] is a map of a cluster to plan with.
//!
//! Behind the feature `testing`.

mod map;
pub mod schema;

pub use map::{map_in_domains, map_of_shards};

use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};
use std::fmt;

/// Bytes that a changed byte string may have.
const BYTES_MAX: u64 = 6000;

/// The encoding of `value` ([`crate::codec`]) with one or two fields changed: numbers to edges of their type and of blocks, variants to others,
/// byte strings in length or content, lengths of lists alone. One in eight is cut short besides. `random` draws a number below its
/// argument.
pub fn mutated<T: Serialize>(value: &T, mut random: impl FnMut(u64) -> u64) -> Vec<u8> {
    let fields = {
        let mut count = Encoder { out: Vec::new(), field: 0, changed: [None; 2], random: &mut random };
        write(value, &mut count);
        count.field
    };
    let mut pick = || (fields > 0).then(|| random(fields));
    let changed = [pick(), pick()];
    let second = random(2) == 0;
    let changed = [changed[0], changed[1].filter(|_| second)];
    let mut encoder = Encoder { out: Vec::new(), field: 0, changed, random: &mut random };
    write(value, &mut encoder);
    let mut out = encoder.out;
    if random(8) == 0 {
        out.truncate(random(out.len() as u64 + 1) as usize);
    }
    out
}

fn write<T: Serialize, R: FnMut(u64) -> u64>(value: &T, encoder: &mut Encoder<'_, R>) {
    // INVARIANT: no type of this crate fails to be serialized.
    value.serialize(encoder).expect("values of this crate can be encoded");
}

/// Never made: writing into memory does not fail.
#[derive(Debug)]
struct Never;

impl fmt::Display for Never {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("writing into memory failed")
    }
}

impl std::error::Error for Never {}

impl serde::ser::Error for Never {
    fn custom<T: fmt::Display>(_message: T) -> Never {
        Never
    }
}

/// Encodes as postcard does, but for the fields it changes.
struct Encoder<'r, R> {
    out: Vec<u8>,
    /// Number of the next field.
    field: u64,
    changed: [Option<u64>; 2],
    random: &'r mut R,
}

impl<R: FnMut(u64) -> u64> Encoder<'_, R> {
    fn is_changed(&mut self) -> bool {
        let field = self.field;
        self.field += 1;
        self.changed.contains(&Some(field))
    }

    fn draw(&mut self, below: u64) -> u64 {
        (self.random)(below)
    }

    fn varint(&mut self, mut value: u128) {
        while value > 0x7f {
            self.out.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.out.push(value as u8);
    }

    /// A number of so many bits, or another one in its place.
    fn number(&mut self, value: u128, bits: u32) -> u128 {
        if !self.is_changed() {
            return value;
        }
        let max = u128::MAX >> (128 - bits);
        let edges = [
            0,
            1,
            2,
            255,
            4095,
            4096,
            4097,
            65_536,
            1 << 31,
            1 << 32,
            1 << 63,
            max,
            max - 1,
            max / 2,
            max / 2 + 1,
        ];
        let choice = self.draw(edges.len() as u64 + 4) as usize;
        let other = match edges.get(choice) {
            Some(edge) => *edge,
            None if choice.is_multiple_of(2) => value.wrapping_add(1),
            None => value.wrapping_sub(1),
        };
        other & max
    }

    fn unsigned(&mut self, value: u128, bits: u32) {
        let value = self.number(value, bits);
        self.varint(value);
    }

    fn signed(&mut self, value: i128, bits: u32) {
        let zigzag = ((value << 1) ^ (value >> 127)) as u128;
        self.unsigned(zigzag, bits);
    }

    fn length(&mut self, len: usize) {
        self.unsigned(len as u128, 32);
    }

    fn variant(&mut self, index: u32) {
        let is_near = self.draw(3) > 0;
        let index = match self.is_changed() {
            true if is_near => (index + self.draw(8) as u32).saturating_sub(4),
            true => self.draw(80) as u32,
            false => index,
        };
        self.varint(index.into());
    }

    fn byte_string(&mut self, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        if self.is_changed() {
            match self.draw(5) {
                0 => bytes.clear(),
                1 => bytes = vec![self.draw(256) as u8; self.draw(BYTES_MAX) as usize],
                2 => bytes.truncate(self.draw(bytes.len() as u64 + 1) as usize),
                3 => bytes.push(self.draw(256) as u8),
                _ => {
                    let at = self.draw(bytes.len().max(1) as u64) as usize;
                    let other = self.draw(256) as u8;
                    bytes.get_mut(at..=at).into_iter().flatten().for_each(|byte| *byte = other);
                }
            }
        }
        self.varint(bytes.len() as u128);
        self.out.extend_from_slice(&bytes);
    }
}

macro_rules! numbers {
    ($($method:ident $type:ident $write:ident $bits:literal),*) => {$(
        fn $method(self, value: $type) -> Result<(), Never> {
            self.$write(value.into(), $bits);
            Ok(())
        }
    )*};
}

macro_rules! parts {
    ($($trait:ident $method:ident),*) => {$(
        impl<R: FnMut(u64) -> u64> $trait for &mut Encoder<'_, R> {
            type Ok = ();
            type Error = Never;
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Never> {
                value.serialize(&mut **self)
            }
            fn end(self) -> Result<(), Never> {
                Ok(())
            }
        }
    )*};
}

macro_rules! named_parts {
    ($($trait:ident),*) => {$(
        impl<R: FnMut(u64) -> u64> $trait for &mut Encoder<'_, R> {
            type Ok = ();
            type Error = Never;
            fn serialize_field<T: Serialize + ?Sized>(&mut self, _: &'static str, value: &T) -> Result<(), Never> {
                value.serialize(&mut **self)
            }
            fn end(self) -> Result<(), Never> {
                Ok(())
            }
        }
    )*};
}

parts!(SerializeSeq serialize_element, SerializeTuple serialize_element);
parts!(SerializeTupleStruct serialize_field, SerializeTupleVariant serialize_field);
named_parts!(SerializeStruct, SerializeStructVariant);

impl<R: FnMut(u64) -> u64> SerializeMap for &mut Encoder<'_, R> {
    type Ok = ();
    type Error = Never;
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Never> {
        key.serialize(&mut **self)
    }
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Never> {
        value.serialize(&mut **self)
    }
    fn end(self) -> Result<(), Never> {
        Ok(())
    }
}

impl<R: FnMut(u64) -> u64> Serializer for &mut Encoder<'_, R> {
    type Ok = ();
    type Error = Never;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    fn is_human_readable(&self) -> bool {
        false
    }

    fn serialize_bool(self, value: bool) -> Result<(), Never> {
        let byte = if self.is_changed() { self.draw(3) as u8 } else { value.into() };
        self.out.push(byte);
        Ok(())
    }

    fn serialize_u8(self, value: u8) -> Result<(), Never> {
        let byte = self.number(value.into(), 8) as u8;
        self.out.push(byte);
        Ok(())
    }

    fn serialize_i8(self, value: i8) -> Result<(), Never> {
        self.serialize_u8(value as u8)
    }

    numbers!(serialize_u16 u16 unsigned 16, serialize_u32 u32 unsigned 32, serialize_u64 u64 unsigned 64);
    numbers!(serialize_u128 u128 unsigned 128, serialize_i16 i16 signed 16, serialize_i32 i32 signed 32);
    numbers!(serialize_i64 i64 signed 64);

    fn serialize_f32(self, value: f32) -> Result<(), Never> {
        self.out.extend_from_slice(&value.to_le_bytes());
        Ok(())
    }

    fn serialize_f64(self, value: f64) -> Result<(), Never> {
        self.out.extend_from_slice(&value.to_le_bytes());
        Ok(())
    }

    fn serialize_char(self, value: char) -> Result<(), Never> {
        self.byte_string(value.to_string().as_bytes());
        Ok(())
    }

    fn serialize_str(self, value: &str) -> Result<(), Never> {
        self.byte_string(value.as_bytes());
        Ok(())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), Never> {
        self.byte_string(value);
        Ok(())
    }

    fn serialize_none(self) -> Result<(), Never> {
        self.serialize_bool(false)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Never> {
        self.serialize_bool(true)?;
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Never> {
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Never> {
        Ok(())
    }

    fn serialize_unit_variant(self, _: &'static str, index: u32, _: &'static str) -> Result<(), Never> {
        self.variant(index);
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Never> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        value: &T,
    ) -> Result<(), Never> {
        self.variant(index);
        value.serialize(self)
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Self, Never> {
        self.length(len.ok_or(Never)?);
        Ok(self)
    }

    fn serialize_tuple(self, _: usize) -> Result<Self, Never> {
        Ok(self)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self, Never> {
        Ok(self)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self, Never> {
        self.variant(index);
        Ok(self)
    }

    fn serialize_map(self, len: Option<usize>) -> Result<Self, Never> {
        self.length(len.ok_or(Never)?);
        Ok(self)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, Never> {
        Ok(self)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self, Never> {
        self.variant(index);
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;
    use crate::message::{LeaseSet, StorageRequest};
    use crate::{ChunkId, FileLayout, InodeId, LayoutPolicy, TargetId, Timespec};

    /// Encodes without a change.
    fn plain<T: Serialize>(value: &T) -> Vec<u8> {
        let mut random = |_| 0;
        let mut encoder = Encoder { out: Vec::new(), field: 0, changed: [None; 2], random: &mut random };
        write(value, &mut encoder);
        encoder.out
    }

    #[test]
    fn without_a_change_it_encodes_as_the_codec_does() {
        let chunk = ChunkId { inode: InodeId(1 << 60), generation: u32::MAX, index: 300 };
        let request = StorageRequest::Punch {
            target: TargetId(7),
            chunk,
            chain: crate::ChainId(3),
            chunk_bytes: 1 << 20,
            offset: 0,
            len: 4096,
        };
        assert_eq!(plain(&request), codec::encode(&request));
        let times = (Timespec::new(-5, 999_999_999), i64::MIN, i64::MAX, i16::MIN, u128::MAX, true, 'x');
        assert_eq!(plain(&times), codec::encode(&times));
        let policy = LayoutPolicy { chunk_bytes: Some(65_536), ..LayoutPolicy::default() };
        assert_eq!(plain(&policy), codec::encode(&policy));
        let lists = (vec![LeaseSet(3), LeaseSet(200)], Some("text"), None::<FileLayout>, [1u8, 2, 3]);
        assert_eq!(plain(&lists), codec::encode(&lists));
    }

    #[test]
    fn most_of_what_it_makes_decodes_and_is_something_else() {
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below.max(1)
        };
        let chunk = ChunkId { inode: InodeId(9), generation: 1, index: 3 };
        let request = StorageRequest::Punch {
            target: TargetId(7),
            chunk,
            chain: crate::ChainId(3),
            chunk_bytes: 1 << 20,
            offset: 0,
            len: 4096,
        };
        let (mut decoded, mut others) = (0, 0);
        for _ in 0..1000 {
            if let Ok(made) = codec::decode::<StorageRequest>(&mutated(&request, &mut random), "request") {
                decoded += 1;
                others += u32::from(made != request);
            }
        }
        assert!(decoded > 600 && others > 500, "{decoded} decoded, {others} others");
    }
}
