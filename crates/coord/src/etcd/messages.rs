//! What goes to the gateway and comes back: JSON of protocol buffers, so that bytes are in base64, numbers of 64 bits are
//! strings, and what is zero or empty is left out.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize};

pub(super) const RANGE: &str = "/v3/kv/range";
pub(super) const TXN: &str = "/v3/kv/txn";
pub(super) const STATUS: &str = "/v3/maintenance/status";

/// The key as etcd holds it.
#[derive(Deserialize, Debug)]
pub(super) struct KeyValue {
    /// Of the last change of this key, as etcd counts.
    #[serde(deserialize_with = "number")]
    pub(super) mod_revision: u64,
    #[serde(default, deserialize_with = "bytes")]
    pub(super) value: Vec<u8>,
}

#[derive(Deserialize, Debug)]
pub(super) struct RangeResponse {
    /// Every answer has one: it tells an absent key from an answer that is not etcd's.
    #[expect(dead_code, reason = "it only has to be there")]
    header: Header,
    #[serde(default)]
    pub(super) kvs: Vec<KeyValue>,
}

#[derive(Deserialize, Debug)]
struct Header {}

#[derive(Deserialize, Debug)]
pub(super) struct TxnResponse {
    #[expect(dead_code, reason = "it only has to be there")]
    header: Header,
    #[serde(default)]
    pub(super) succeeded: bool,
    #[serde(default)]
    responses: Vec<TxnPart>,
}

#[derive(Deserialize, Debug)]
struct TxnPart {
    response_range: Option<RangePart>,
}

/// Inside of a transaction there is not always a header.
#[derive(Deserialize, Debug)]
struct RangePart {
    #[serde(default)]
    kvs: Vec<KeyValue>,
}

impl TxnResponse {
    /// The key as it was found, if the transaction did not succeed.
    pub(super) fn found(self) -> Option<Vec<KeyValue>> {
        self.responses.into_iter().find_map(|part| part.response_range).map(|range| range.kvs)
    }
}

#[derive(Deserialize, Debug)]
#[serde(default)]
#[derive(Default)]
pub(super) struct StatusResponse {
    pub(super) version: String,
    #[serde(rename = "dbSize", deserialize_with = "number")]
    pub(super) db_size: u64,
    #[serde(deserialize_with = "number")]
    pub(super) leader: u64,
}

fn number<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}

fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    STANDARD.decode(String::deserialize(from)?).map_err(serde::de::Error::custom)
}

#[derive(Serialize)]
struct Range<'a> {
    key: &'a str,
}

#[derive(Serialize)]
struct Compare<'a> {
    key: &'a str,
    result: &'static str,
    target: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    mod_revision: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'static str>,
}

#[derive(Serialize)]
struct Put<'a> {
    key: &'a str,
    value: String,
}

#[derive(Serialize)]
struct PutPart<'a> {
    request_put: Put<'a>,
}

#[derive(Serialize)]
struct ReadPart<'a> {
    request_range: Range<'a>,
}

#[derive(Serialize)]
struct Txn<'a> {
    compare: [Compare<'a>; 1],
    success: [PutPart<'a>; 1],
    failure: [ReadPart<'a>; 1],
}

/// For [`RANGE`]: linearizable, as is etcd's rule.
pub(super) fn range(key: &str) -> Result<String, serde_json::Error> {
    serde_json::to_string(&Range { key: &STANDARD.encode(key) })
}

/// For [`TXN`]: puts `bytes` if the key is as it was at `mod_revision` (absent at `None`), and else reads it.
///
/// It may put, so it goes through etcd's log whatever comes of it, and what it reads is not old either.
pub(super) fn txn(key: &str, mod_revision: Option<u64>, bytes: &[u8]) -> Result<String, serde_json::Error> {
    let key = &STANDARD.encode(key);
    let compare = match mod_revision {
        Some(at) => {
            Compare { key, result: "EQUAL", target: "MOD", mod_revision: Some(at.to_string()), version: None }
        }
        None => Compare { key, result: "EQUAL", target: "VERSION", mod_revision: None, version: Some("0") },
    };
    serde_json::to_string(&Txn {
        compare: [compare],
        success: [PutPart { request_put: Put { key, value: STANDARD.encode(bytes) } }],
        failure: [ReadPart { request_range: Range { key } }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_key_is_told_from_an_answer_that_is_not_etcds() {
        let absent: RangeResponse = serde_json::from_str(r#"{"header":{"revision":"1"}}"#).unwrap();
        assert!(absent.kvs.is_empty());
        assert!(serde_json::from_str::<RangeResponse>("{}").is_err());
    }

    #[test]
    fn a_value_of_no_bytes_is_left_out_by_etcd() {
        let text = r#"{"header":{},"kvs":[{"key":"aw==","mod_revision":"7","version":"1"}],"count":"1"}"#;
        let answer: RangeResponse = serde_json::from_str(text).unwrap();
        assert_eq!((answer.kvs[0].mod_revision, answer.kvs[0].value.len()), (7, 0));
    }
}
