//! Byte-string paths that print and parse without loss.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A path or name as bytes. Prints readable ASCII as it is and every other byte as `%xx`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BytePath(pub Vec<u8>);

impl BytePath {
    /// The path whose components are `parts`.
    #[must_use]
    pub fn join(parts: &[Vec<u8>]) -> Self {
        Self(parts.join(&b'/'))
    }

    /// The directory that holds this path's last component.
    #[must_use]
    pub fn parent(&self) -> BytePath {
        let trimmed = self.0.strip_suffix(b"/").unwrap_or(&self.0);
        match trimmed.iter().rposition(|byte| *byte == b'/') {
            Some(at) => Self(trimmed[..at].to_vec()),
            None => Self(b".".to_vec()),
        }
    }
}

impl fmt::Display for BytePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in &self.0 {
            if byte.is_ascii_graphic() && *byte != b'%' {
                write!(f, "{}", char::from(*byte))?;
            } else {
                write!(f, "%{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for BytePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A name of 255 bytes would hide the rest of a step; the trace file has it in full.
        let text = self.to_string();
        match text.get(..60) {
            Some(head) if text.len() > 80 => write!(f, "{head:?}...({} bytes)", self.0.len()),
            _ => write!(f, "{text:?}"),
        }
    }
}

impl Serialize for BytePath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_string())
    }
}

impl<'de> Deserialize<'de> for BytePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse(&text).map(Self).ok_or_else(|| D::Error::custom("a path with a malformed %xx escape"))
    }
}

fn parse(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        if *first == b'%' {
            let hex = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(hex, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_survive_the_trace_format() {
        for bytes in [&b"a/b"[..], b"", b"\xff\x80 %/\n", &[b'x'; 255]] {
            let path = BytePath(bytes.to_vec());
            let text = serde_json::to_string(&path).expect("a string");
            assert_eq!(serde_json::from_str::<BytePath>(&text).expect("what was written"), path);
        }
        assert!(serde_json::from_str::<BytePath>("\"%f\"").is_err());
    }

    #[test]
    fn the_parent_of_a_path_is_what_holds_its_last_component() {
        let parent = |path: &str| BytePath(path.as_bytes().to_vec()).parent().to_string();
        assert_eq!(parent("a/b/c"), "a/b");
        assert_eq!(parent("a/b/"), "a");
        assert_eq!(parent("a"), ".");
    }
}
