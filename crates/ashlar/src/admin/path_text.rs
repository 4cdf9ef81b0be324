//! Paths in JSON: text, or the bytes as numbers where they are no text, so that nothing is lost.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Form {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<&Path> for Form {
    fn from(path: &Path) -> Form {
        match path.to_str() {
            Some(text) => Form::Text(text.to_owned()),
            None => Form::Bytes(path.as_os_str().as_bytes().to_owned()),
        }
    }
}

impl From<Form> for PathBuf {
    fn from(form: Form) -> PathBuf {
        match form {
            Form::Text(text) => PathBuf::from(text),
            Form::Bytes(bytes) => PathBuf::from(OsString::from_vec(bytes)),
        }
    }
}

/// One path.
pub mod one {
    use super::{Deserialize, Deserializer, Form, Path, PathBuf, Serialize, Serializer};

    pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        Form::from(path).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        Form::deserialize(deserializer).map(PathBuf::from)
    }
}

/// Several paths.
pub mod many {
    use super::{Deserialize, Deserializer, Form, PathBuf, Serializer};

    pub fn serialize<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(paths.iter().map(|path| Form::from(path.as_path())))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
        Ok(Vec::<Form>::deserialize(deserializer)?.into_iter().map(PathBuf::from).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Both {
        #[serde(with = "one")]
        one: PathBuf,
        #[serde(with = "many")]
        many: Vec<PathBuf>,
    }

    #[test]
    fn a_path_that_is_no_text_comes_back_as_it_was() {
        let odd = PathBuf::from(OsString::from_vec(b"/mnt/\xff".to_vec()));
        let both = Both { one: odd.clone(), many: vec!["/mnt/a".into(), odd] };
        let json = serde_json::to_string(&both).unwrap();
        assert!(json.contains("\"/mnt/a\"") && json.contains("255"), "{json}");
        assert_eq!(serde_json::from_str::<Both>(&json).unwrap(), both);
    }
}
