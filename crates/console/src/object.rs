//! What administrators are shown of a file system, as JSON: the same objects for the commands' `--json` and for the console.
//!
//! Names of fields stay as they are: programs read them.

pub mod away;
pub mod chain;
pub mod event;
pub mod moves;
pub mod node;
pub mod pool;
pub mod rebuild;
pub mod session;
pub mod shard;
pub mod target;
pub mod work;

use serde_json::Value;

/// An object with the fields of another one besides its own.
pub fn with(mut object: Value, more: Value) -> Value {
    if let (Value::Object(fields), Value::Object(more)) = (&mut object, more) {
        fields.extend(more);
    }
    object
}
