//! What messages look like, as text: every structure with its fields, every enumeration with its variants, in the order in which they are encoded. Two
//! such texts tell whether one software understands the other.
//!
//! The codec has no names and no numbers of fields in it, so a field that is added, removed or moved changes what every byte behind it means, and
//! so does a variant that is not added at the end.

use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, SeqAccess, VariantAccess,
    Visitor,
};
use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Write};

/// See the module.
#[derive(Default)]
pub struct Schema {
    types: BTreeMap<String, Form>,
}

enum Form {
    Structure(Vec<String>),
    /// Variants, and how often one was asked for.
    Enumeration(Vec<(&'static str, Option<String>)>, usize),
}

/// How a text differs from an older one.
#[derive(Debug, PartialEq, Eq)]
pub enum Difference {
    /// Not at all.
    None,
    /// In what is new: the older software is understood, and understands what it knows.
    Grown(Vec<String>),
    /// In what there was: what one sends means something else to the other.
    Broken(Vec<String>),
}

/// A type that does not take the values that are tried on it.
#[derive(Debug)]
pub struct Untraceable(String);

impl fmt::Display for Untraceable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for Untraceable {}

impl de::Error for Untraceable {
    fn custom<T: fmt::Display>(text: T) -> Untraceable {
        Untraceable(text.to_string())
    }
}

/// Tries of a type after the last one that brought something new: what is deep inside comes up only now and then.
const TRIES_IN_VAIN: usize = 3000;

impl Schema {
    /// Notes `T` and everything in it.
    ///
    /// # Panics
    /// When a type of it takes none of the values that are tried.
    pub fn add<'de, T: Deserialize<'de>>(&mut self) {
        let mut in_vain = 0;
        while in_vain < TRIES_IN_VAIN {
            let before = self.known();
            let mut out = String::new();
            if let Err(error) = T::deserialize(Tracer { schema: self, out: &mut out }) {
                panic!("{} cannot be traced: {error}", std::any::type_name::<T>());
            }
            in_vain = if self.known() == before { in_vain + 1 } else { 0 };
        }
    }

    fn known(&self) -> usize {
        let of = |form: &Form| match form {
            Form::Structure(_) => 1,
            Form::Enumeration(variants, _) => variants.iter().filter(|(_, form)| form.is_some()).count(),
        };
        self.types.values().map(of).sum()
    }

    /// As text: one type after the other, by name.
    ///
    /// # Panics
    /// When a variant did not come up.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (name, form) in &self.types {
            let name = name.split('|').next().unwrap_or_default();
            // Writing into memory does not fail.
            let _ = match form {
                Form::Structure(fields) => writeln!(out, "struct {name}\n    {}", fields.join("\n    ")),
                Form::Enumeration(variants, _) => {
                    let _ = writeln!(out, "enum {name}");
                    variants.iter().enumerate().try_for_each(|(at, (name, form))| {
                        let form = form.as_deref().expect("every variant was tried");
                        writeln!(out, "    {at} {name}{form}")
                    })
                }
            };
        }
        out
    }
}

/// One value of each variant of `T`, with something plain in every field.
///
/// # Panics
/// When a type of it takes none of the values that are tried.
pub fn samples<'de, T: Deserialize<'de>>() -> Vec<T> {
    let (mut schema, mut seen, mut found) = (Schema::default(), HashSet::new(), Vec::new());
    let mut in_vain = 0;
    while in_vain < TRIES_IN_VAIN {
        let mut unused = String::new();
        let value = T::deserialize(Tracer { schema: &mut schema, out: &mut unused });
        let value = value.unwrap_or_else(|error| panic!("{}: {error}", std::any::type_name::<T>()));
        in_vain += 1;
        if seen.insert(std::mem::discriminant(&value)) {
            found.push(value);
            in_vain = 0;
        }
    }
    found
}

/// How `newer`, a text of [`Schema::text`], differs from `older`.
pub fn difference(older: &str, newer: &str) -> Difference {
    let (before, after) = (blocks(older), blocks(newer));
    let (mut grown, mut broken) = (Vec::new(), Vec::new());
    for (head, lines) in &before {
        let Some(now) = after.get(head) else {
            broken.push(format!("{head} is gone"));
            continue;
        };
        let is_enumeration = head.starts_with("enum ");
        if now.len() < lines.len() || now[..lines.len()] != lines[..] {
            broken.push(format!("{head} has other fields, or variants, than before"));
        } else if now.len() > lines.len() && is_enumeration {
            grown.push(format!("{head} has {} variants more", now.len() - lines.len()));
        } else if now.len() > lines.len() {
            broken.push(format!("{head} has {} fields more", now.len() - lines.len()));
        }
    }
    grown
        .extend(after.keys().filter(|head| !before.contains_key(*head)).map(|head| format!("{head} is new")));
    match (broken.is_empty(), grown.is_empty()) {
        (true, true) => Difference::None,
        (true, false) => Difference::Grown(grown),
        (false, _) => Difference::Broken(broken),
    }
}

/// Panics unless the file `path` has the text of `schema` behind a line with `version`. Says then what is to be done; with `ASHLAR_WRITE_FORMS=1` in the
/// environment it writes a new text, but not one that breaks the old one under the same version.
///
/// # Panics
/// See above.
pub fn require_written_down(schema: &Schema, path: &str, version: &str) {
    let written = std::fs::read_to_string(path).unwrap_or_default();
    let now = schema.text();
    let is_same_version = written.lines().any(|line| line == version);
    let told = match difference(&written, &now) {
        Difference::None if is_same_version => return,
        Difference::None => "the version of the protocol has changed".to_owned(),
        Difference::Grown(what) => format!("messages have grown, which is well: {}", what.join("; ")),
        Difference::Broken(what) => {
            let what = what.join("; ");
            assert!(
                !is_same_version || written.is_empty(),
                "messages mean something else than before, and servers of two versions would not understand each other: {what}. Add what is new as variants at the \
                 end, or raise PROTOCOL and PROTOCOL_MIN (docs/formats/wire.md, \"How messages may change\")"
            );
            format!("the protocol is another one, and so are messages: {what}")
        }
    };
    assert!(
        std::env::var_os("ASHLAR_WRITE_FORMS").is_some(),
        "{told}. Write it down: run this test once more with ASHLAR_WRITE_FORMS=1 in the environment"
    );
    let head = "Every message there is, made by the test that compares it: see wire.md, \"How messages may change\".";
    std::fs::write(path, format!("{head}\n{version}\n\n{now}")).expect("the file can be written");
}

fn blocks(text: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut all: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut head = "";
    for line in text.lines() {
        if line.starts_with("struct ") || line.starts_with("enum ") {
            head = line;
            all.entry(head).or_default();
        } else if line.starts_with("    ") && !head.is_empty() {
            all.entry(head).or_default().push(line);
        }
    }
    all
}

/// Notes what is asked of it, and answers with some value.
struct Tracer<'s> {
    schema: &'s mut Schema,
    out: &'s mut String,
}

macro_rules! plain {
    ($($method:ident => $visit:ident($value:expr), $name:literal;)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Untraceable> {
            self.out.push_str($name);
            visitor.$visit($value)
        })*
    };
}

impl<'de> Deserializer<'de> for Tracer<'_> {
    type Error = Untraceable;

    plain! {
        deserialize_bool => visit_bool(false), "bool";
        deserialize_i8 => visit_i8(1), "i8";
        deserialize_i16 => visit_i16(1), "i16";
        deserialize_i32 => visit_i32(1), "i32";
        deserialize_i64 => visit_i64(1), "i64";
        deserialize_u8 => visit_u8(1), "u8";
        deserialize_u16 => visit_u16(1), "u16";
        deserialize_u32 => visit_u32(1), "u32";
        deserialize_u64 => visit_u64(1), "u64";
        deserialize_u128 => visit_u128(1), "u128";
        deserialize_f32 => visit_f32(1.0), "f32";
        deserialize_f64 => visit_f64(1.0), "f64";
        deserialize_char => visit_char('a'), "char";
        deserialize_str => visit_borrowed_str("a"), "text";
        deserialize_string => visit_borrowed_str("a"), "text";
        deserialize_bytes => visit_borrowed_bytes(b"a"), "bytes";
        deserialize_byte_buf => visit_borrowed_bytes(b"a"), "bytes";
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Untraceable> {
        self.out.push_str("nothing");
        visitor.visit_unit()
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Untraceable> {
        Err(de::Error::custom("it wants to know what there is, which the codec cannot tell"))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Untraceable> {
        self.out.push_str("option of ");
        visitor.visit_some(self)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Untraceable> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Untraceable> {
        let _ = write!(self.out, "{name}:");
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Untraceable> {
        self.out.push_str("sequence of ");
        visitor.visit_seq(Elements { schema: self.schema, out: self.out, left: 1, names: &[], told: None })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Untraceable> {
        let mut told = Vec::new();
        let all =
            Elements { schema: self.schema, out: self.out, left: len, names: &[], told: Some(&mut told) };
        let value = visitor.visit_seq(all)?;
        let is_uniform = told.len() > 2 && told.windows(2).all(|two| two[0] == two[1]);
        match (is_uniform, told.first()) {
            (true, Some(first)) => {
                let _ = write!(self.out, "{} times {first}", told.len());
            }
            _ => {
                let _ = write!(self.out, "({})", told.join(", "));
            }
        }
        Ok(value)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Untraceable> {
        let _ = write!(self.out, "{name}:");
        self.deserialize_tuple(len, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Untraceable> {
        Err(de::Error::custom("maps are in no message"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Untraceable> {
        self.out.push_str(name);
        let mut told = Vec::new();
        let mut unused = String::new();
        let all = Elements {
            schema: &mut *self.schema,
            out: &mut unused,
            left: fields.len(),
            names: fields,
            told: Some(&mut told),
        };
        let value = visitor.visit_seq(all)?;
        let key = format!("{name}|{}", fields.join(","));
        if let Some(Form::Structure(known)) = self.schema.types.get(&key)
            && *known != told
        {
            return Err(de::Error::custom(format!("there are two types called {name}")));
        }
        self.schema.types.insert(key, Form::Structure(told));
        Ok(value)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Untraceable> {
        if name == "Result" {
            // There are many of that name. What went well is told; what did not is an error number in all of them.
            let mut told = String::new();
            let value = visitor.visit_enum(Variant { schema: self.schema, out: &mut told, at: 0 })?;
            let _ = write!(self.out, "result of{told}");
            return Ok(value);
        }
        self.out.push_str(name);
        let key = format!("{name}|{}", variants.join(","));
        let empty = || Form::Enumeration(variants.iter().map(|name| (*name, None)).collect(), 0);
        let form = self.schema.types.entry(key.clone()).or_insert_with(empty);
        let Form::Enumeration(known, turn) = form else {
            return Err(de::Error::custom("two types of one name"));
        };
        // One that was not tried yet; if all were, one after the other, because of what may be in them.
        *turn += 1;
        let at = known.iter().position(|(_, form)| form.is_none()).unwrap_or(*turn % known.len());
        let mut told = String::new();
        let value = visitor.visit_enum(Variant { schema: &mut *self.schema, out: &mut told, at })?;
        if let Some(Form::Enumeration(known, _)) = self.schema.types.get_mut(&key)
            && *known[at].1.get_or_insert(told.clone()) != told
        {
            return Err(de::Error::custom(format!("there are two types called {name}")));
        }
        Ok(value)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Untraceable> {
        Err(de::Error::custom("names of fields are in no message"))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Untraceable> {
        Err(de::Error::custom("nothing in a message is skipped"))
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// The elements of a sequence, or the fields of a structure.
struct Elements<'s> {
    schema: &'s mut Schema,
    out: &'s mut String,
    left: usize,
    names: &'static [&'static str],
    /// Where each is noted; without, all go to `out`.
    told: Option<&'s mut Vec<String>>,
}

impl<'de> SeqAccess<'de> for Elements<'_> {
    type Error = Untraceable;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Untraceable> {
        if self.left == 0 {
            return Ok(None);
        }
        let at = self.names.len() - self.left.min(self.names.len());
        self.left -= 1;
        let Some(told) = self.told.as_deref_mut() else {
            return seed.deserialize(Tracer { schema: &mut *self.schema, out: &mut *self.out }).map(Some);
        };
        let mut one = String::new();
        let value = seed.deserialize(Tracer { schema: &mut *self.schema, out: &mut one })?;
        told.push(match self.names.get(at) {
            Some(name) => format!("{name}: {one}"),
            None => one,
        });
        Ok(Some(value))
    }
}

/// One variant.
struct Variant<'s> {
    schema: &'s mut Schema,
    out: &'s mut String,
    at: usize,
}

impl<'de, 's> EnumAccess<'de> for Variant<'s> {
    type Error = Untraceable;
    type Variant = Variant<'s>;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Untraceable> {
        let at = u32::try_from(self.at).map_err(de::Error::custom)?;
        let number: de::value::U32Deserializer<Untraceable> = at.into_deserializer();
        Ok((seed.deserialize(number)?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_> {
    type Error = Untraceable;

    fn unit_variant(self) -> Result<(), Untraceable> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Untraceable> {
        self.out.push(' ');
        seed.deserialize(Tracer { schema: self.schema, out: self.out })
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Untraceable> {
        self.out.push(' ');
        Tracer { schema: self.schema, out: self.out }.deserialize_tuple(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Untraceable> {
        let mut told = Vec::new();
        let mut unused = String::new();
        let all = Elements {
            schema: self.schema,
            out: &mut unused,
            left: fields.len(),
            names: fields,
            told: Some(&mut told),
        };
        let value = visitor.visit_seq(all)?;
        let _ = write!(self.out, " {{ {} }}", told.join(", "));
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize)]
    #[allow(dead_code, reason = "only its form counts")]
    struct Inner<'a> {
        name: &'a str,
        uuid: [u8; 16],
    }

    #[derive(Deserialize)]
    #[allow(dead_code, reason = "only its form counts")]
    enum Outer<'a> {
        Nothing,
        One(u64),
        Two(u8, Vec<Option<i64>>),
        Many {
            #[serde(borrow)]
            inner: Inner<'a>,
            flag: bool,
        },
        Perhaps(Result<u8, u16>),
    }

    const TEXT: &str = "struct Inner\n    name: text\n    uuid: 16 times u8\nenum Outer\n    0 Nothing\n    1 One u64\n    2 Two (u8, sequence of option of i64)\n    3 Many { inner: Inner, flag: bool }\n    4 Perhaps result of u8\n";

    #[test]
    fn every_variant_and_field_is_told() {
        let mut schema = Schema::default();
        schema.add::<Outer<'_>>();
        assert_eq!(schema.text(), TEXT);
    }

    #[test]
    fn a_variant_at_the_end_is_growth_and_everything_else_breaks() {
        let changed = |from: &str, to: &str| difference(TEXT, &TEXT.replace(from, to));
        assert_eq!(difference(TEXT, TEXT), Difference::None);
        let end = "result of u8\n";
        assert!(matches!(changed(end, "result of u8\n    5 New\n"), Difference::Grown(_)));
        assert!(matches!(
            changed("struct Inner", "struct Fresh\n    a: u8\nstruct Inner"),
            Difference::Grown(_)
        ));
        for (from, to) in [
            ("    1 One u64\n", "    1 New\n    2 One u64\n"),
            ("One u64", "One u32"),
            ("    name: text\n", "    name: text\n    more: u8\n"),
            ("    uuid: 16 times u8\n", "    uuid: 16 times u8\n    more: u8\n"),
            ("    uuid: 16 times u8\n", ""),
            (", flag: bool", ""),
            ("    3 Many { inner: Inner, flag: bool }\n", ""),
            ("result of u8", "result of u16"),
        ] {
            assert!(matches!(changed(from, to), Difference::Broken(_)), "{from:?} to {to:?}");
        }
    }
}
