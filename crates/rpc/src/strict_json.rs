//! Strict JSON: the subset of JSON that every parser reads the same way.
//!
//! A forbidden method passes a filter if two programs read one line differently. So a line is
//! refused if it is not UTF-8, repeats a key in any object at any depth, has a lone surrogate or a
//! number out of range, nests deeper than 127 levels, or has carriage returns that some readers
//! take for line ends. The check returns the text; [`Message`](super::Message) parses it.

use std::{borrow::Cow, cell::Cell, collections::HashSet, fmt};

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::error::Category;

/// Maximum number of keys in one line, nested ones included. It bounds the memory for finding
/// repeated ones.
const MAX_KEYS: usize = 262_144;
/// Maximum number of elements of arrays in one line, nested ones included. A reader that leaves them
/// as text needs at least 16 bytes of memory for each, which takes two bytes on the line. Arrays of
/// numbers in a tool's output are far smaller. A reader that builds values of them needs more, and
/// bounds that ([`parsed_size`](crate::parsed_size)).
const MAX_ELEMENTS: usize = 1 << 20;

/// Reasons why a text is not strict JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// It is not UTF-8.
    #[error("the line is not UTF-8")]
    Utf8,
    /// It has a byte order mark.
    #[error("the line starts with a byte order mark")]
    ByteOrderMark,
    /// It has a carriage return that is not a line end.
    #[error("the line contains a bare carriage return")]
    CarriageReturn,
    /// It is not JSON.
    #[error("the line is not JSON")]
    Syntax,
    /// It is JSON that many parsers refuse.
    #[error("the line has half of a surrogate pair, a number out of range or too many levels")]
    Value,
    /// It has a repeated key, or too many keys.
    #[error("the line repeats a key or has too many of them")]
    Keys,
    /// It has too many array elements.
    #[error("the line has too many array elements")]
    Elements,
}

/// Checks one line and returns its text.
///
/// # Errors
/// If it is not strict JSON.
pub fn check_line(line: &[u8]) -> Result<&str, JsonError> {
    // `\r\n` is a line end for all readers.
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.contains(&b'\r') {
        // An encoding error is reported first.
        return Err(
            std::str::from_utf8(line).map_or(JsonError::Utf8, |_| JsonError::CarriageReturn)
        );
    }
    check_text(line)
}

/// Checks a complete document, which may have line ends of any kind.
///
/// # Errors
/// If it is not strict JSON.
pub(crate) fn check_text(body: &[u8]) -> Result<&str, JsonError> {
    let text = std::str::from_utf8(body).map_err(|_| JsonError::Utf8)?;
    if text.starts_with('\u{feff}') {
        return Err(JsonError::ByteOrderMark);
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    let (keys, elements) = (Cell::new(0), Cell::new(0));
    let walk = Walk { keys: &keys, elements: &elements };
    walk.deserialize(&mut reader).map_err(|error| match error.classify() {
        Category::Data if elements.get() > MAX_ELEMENTS => JsonError::Elements,
        Category::Data => JsonError::Keys,
        Category::Syntax | Category::Eof | Category::Io => not_read(text),
    })?;
    reader.end().map_err(|_| JsonError::Syntax)?;
    Ok(text)
}

/// Returns the reason why a text was not parsed: the grammar allows more than parsers accept.
fn not_read(text: &str) -> JsonError {
    let grammar = serde_json::from_str::<IgnoredAny>(text);
    grammar.map_or(JsonError::Syntax, |_| JsonError::Value)
}

/// True if a JSON text is an object. Readers of fields also accept an array, by position.
pub fn is_object(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

/// A walk over a value, which stores only the keys of the enclosing objects.
#[derive(Clone, Copy)]
struct Walk<'c> {
    keys: &'c Cell<usize>,
    elements: &'c Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(self)?.is_some() {
            self.elements.set(self.elements.get() + 1);
            if self.elements.get() > MAX_ELEMENTS {
                return Err(A::Error::custom("too many elements"));
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let mut seen: HashSet<Cow<'de, str>> = HashSet::new();
        while let Some(key) = members.next_key_seed(Key)? {
            self.keys.set(self.keys.get() + 1);
            if self.keys.get() > MAX_KEYS || !seen.insert(key) {
                return Err(A::Error::custom("repeated key or too many"));
            }
            members.next_value_seed(self)?;
        }
        Ok(())
    }
}

/// Reads an unescaped key, without copying it if it has no escapes.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(key))
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(key.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn refuses_lines_that_two_parsers_may_read_differently() {
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        let cases: [(&[u8], JsonError); 17] = [
            (b"\xff{}", JsonError::Utf8),
            (b"{\"a\":\"\xed\xa0\x80\"}", JsonError::Utf8),
            (b"\xef\xbb\xbf{}", JsonError::ByteOrderMark),
            (b"{\"a\":1,\r\"b\":2}", JsonError::CarriageReturn),
            (b"{}\r\r", JsonError::CarriageReturn),
            (b"", JsonError::Syntax),
            (b"{\"a\":NaN}", JsonError::Syntax),
            (b"{\"a\":Infinity}", JsonError::Syntax),
            (b"{\"a\":1e999}", JsonError::Value),
            (b"{\"a\":01}", JsonError::Syntax),
            (b"{\"a\":\"\\ud800\"}", JsonError::Value),
            (b"{\"a\":1}{\"b\":2}", JsonError::Syntax),
            (b"{\"a\":1,}", JsonError::Syntax),
            (b"{'a':1}", JsonError::Syntax),
            (deep.as_bytes(), JsonError::Value),
            (b"{\"a\":1,\"\\u0061\":2}", JsonError::Keys),
            (b"{\"x\":[{\"y\":{\"a\":1,\"b\":0,\"a\":2}}]}", JsonError::Keys),
        ];
        for (line, expected) in cases {
            assert_eq!(check_line(line), Err(expected), "{}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn a_line_of_keys_only_stays_within_the_bound() {
        let keys: Vec<_> = (0..=MAX_KEYS).map(|n| format!("\"{n}\":0")).collect();
        assert_eq!(check_line(format!("{{{}}}", keys.join(",")).as_bytes()), Err(JsonError::Keys));
    }

    #[test]
    fn a_line_of_elements_only_stays_within_the_bound() {
        let most = format!("[{}0]", "0,".repeat(MAX_ELEMENTS - 1));
        assert_eq!(check_line(most.as_bytes()), Ok(most.as_str()));
        for line in [
            format!("{{\"path\":[{}0]}}", "0,".repeat(MAX_ELEMENTS)),
            format!("[{}[]]", "[[],0],".repeat(MAX_ELEMENTS / 2)),
        ] {
            assert_eq!(check_line(line.as_bytes()), Err(JsonError::Elements));
        }
    }

    #[test]
    fn accepts_plain_json() {
        for line in ["{}", " {\"a\": [1, -2.5e3, null, true, \"\\ud83d\\ude00\"]} ", "{}\r"] {
            assert!(check_line(line.as_bytes()).is_ok(), "{line}");
        }
    }

    proptest! {
        #[test]
        fn serde_writes_strict_json(keys in prop::collection::hash_set(any::<String>(), 0..8)) {
            let object: serde_json::Map<_, _> =
                keys.into_iter().map(|k| (k.clone(), serde_json::Value::from(k))).collect();
            let line = serde_json::to_vec(&serde_json::json!({"o": object})).unwrap();
            prop_assert!(check_line(&line).is_ok());
        }

        #[test]
        fn never_panics(line in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = check_line(&line);
        }
    }
}
