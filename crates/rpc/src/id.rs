//! Request IDs.
//!
//! The schemas (ACP v1 and MCP, `RequestId`) allow null, 64-bit integers and strings. Null cannot
//! be told from "no usable id", and parsers read fractions and larger numbers differently, so those
//! are refused.

use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// The ID of a request. A number and a string of the same digits differ.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Id {
    /// A 64-bit integer.
    Number(i64),
    /// A string.
    Text(String),
}

impl Id {
    /// Maximum length of a string ID in bytes.
    const MAX_TEXT: usize = 1024;

    /// Parses the JSON text of an ID; `None` if it is not usable.
    pub fn parse(raw: &RawValue) -> Option<Self> {
        let text = raw.get();
        if text.starts_with('"') {
            let text: String = serde_json::from_str(text).ok()?;
            return (text.len() <= Self::MAX_TEXT).then_some(Self::Text(text));
        }
        let number: i64 = text.parse().ok()?;
        // Some peers return `-0` as `0`, others as `-0`.
        (number.to_string() == text).then_some(Self::Number(number))
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_i64(*number),
            Self::Text(text) => serializer.serialize_str(text),
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> Option<Id> {
        Id::parse(&RawValue::from_string(text.to_owned()).unwrap())
    }

    #[test]
    fn only_integers_and_strings_are_ids() {
        assert_eq!(id("0"), Some(Id::Number(0)));
        assert_eq!(id("-7"), Some(Id::Number(-7)));
        assert_eq!(id("9223372036854775807"), Some(Id::Number(i64::MAX)));
        assert_eq!(id(r#""a\u0062""#), Some(Id::Text("ab".into())));
        assert_ne!(id("1"), id(r#""1""#));
        let long = format!("\"{}\"", "x".repeat(1025));
        for bad in ["null", "true", "1.0", "1e3", "-0", "9223372036854775808", "[1]", "{}", &long] {
            assert_eq!(id(bad), None, "{bad}");
        }
    }
}
