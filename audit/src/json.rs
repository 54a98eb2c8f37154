//! JSON values of a line, unchanged.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// A value of any type. Unlike `IgnoredAny` it stores the value, so that everything that another
/// reader could not parse is refused: half a surrogate pair, a number past the largest double,
/// deeper nesting than the parser's limit. Unlike `Value` it gives no key a special meaning: with
/// `raw_value`, a feature that any crate of a program can enable, `serde_json` has such a key.
pub(crate) struct Json {
    pub(crate) value: Value,
    /// The levels of objects and arrays as written: also those of a member that a later one of the
    /// same key replaces, which another reader may count.
    pub(crate) depth: usize,
}

impl From<Value> for Json {
    fn from(value: Value) -> Self {
        Self { value, depth: 0 }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Json;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E>(self) -> Result<Json, E> {
                Ok(Value::Null.into())
            }

            fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
                Ok(Value::from(value).into())
            }

            fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
                Ok(Value::from(value).into())
            }

            fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
                Ok(Value::from(value).into())
            }

            fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
                Ok(Value::from(value).into())
            }

            fn visit_str<E>(self, text: &str) -> Result<Json, E> {
                Ok(Value::from(text).into())
            }

            fn visit_string<E>(self, text: String) -> Result<Json, E> {
                Ok(Value::from(text).into())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Json, A::Error> {
                let (mut array, mut below) = (Vec::new(), 0);
                while let Some(Json { value, depth }) = from.next_element()? {
                    below = below.max(depth);
                    array.push(value);
                }
                Ok(Json { value: Value::Array(array), depth: below + 1 })
            }

            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Json, A::Error> {
                let (mut object, mut below) = (Map::new(), 0);
                while let Some((key, Json { value, depth })) = from.next_entry()? {
                    below = below.max(depth);
                    object.insert(key, value);
                }
                Ok(Json { value: Value::Object(object), depth: below + 1 })
            }
        }
        json.deserialize_any(Any)
    }
}
