//! JSON values of a line, unchanged.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// A value of any type. Unlike `IgnoredAny` it stores the value, so that everything that another
/// reader could not parse is refused: half a surrogate pair, a number past the largest double,
/// deeper nesting than the parser's limit. Unlike `Value` it gives no key a special meaning: with
/// `raw_value`, a feature that any crate of a program can enable, `serde_json` has such a key.
pub(crate) struct Json(pub(crate) Value);

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Json;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E>(self) -> Result<Json, E> {
                Ok(Json(Value::Null))
            }

            fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
                Ok(Json(value.into()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
                Ok(Json(value.into()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
                Ok(Json(value.into()))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
                Ok(Json(value.into()))
            }

            fn visit_str<E>(self, text: &str) -> Result<Json, E> {
                Ok(Json(text.into()))
            }

            fn visit_string<E>(self, text: String) -> Result<Json, E> {
                Ok(Json(text.into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Json, A::Error> {
                let mut array = Vec::new();
                while let Some(Json(value)) = from.next_element()? {
                    array.push(value);
                }
                Ok(Json(Value::Array(array)))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Json, A::Error> {
                let mut object = Map::new();
                while let Some((key, Json(value))) = from.next_entry()? {
                    object.insert(key, value);
                }
                Ok(Json(Value::Object(object)))
            }
        }
        json.deserialize_any(Any)
    }
}
