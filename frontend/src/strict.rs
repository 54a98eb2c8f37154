//! Strict JSON: what every parser on either side reads the same way.
//!
//! Two programs that read one line differently are how a forbidden method
//! slips past a filter. So a line is refused, whole, when it is not UTF-8,
//! repeats a key in any object at any depth, holds a lone surrogate or a
//! number out of range, nests deeper than 127 levels, or has carriage returns
//! that some reader takes for line ends. Gives no value: [`super::wire`] reads.

use std::{borrow::Cow, cell::Cell, collections::HashSet, fmt};

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::error::Category;

/// Most keys in one line, nested ones included: bounds the memory that looking
/// for repeated ones takes.
const MAX_KEYS: usize = 262_144;
/// Most elements of arrays in one line, nested ones included. Whoever reads them into
/// memory needs 16 bytes and more for each of the two that it takes on the line; numbers
/// from a tool in what an agent tells its client are still far from as many.
const MAX_ELEMENTS: usize = 1 << 20;

/// Why a line is not strict JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Loose {
    #[error("the line is not UTF-8")]
    Utf8,
    #[error("the line starts with a byte order mark")]
    ByteOrderMark,
    #[error("the line contains a bare carriage return")]
    CarriageReturn,
    #[error("the line is not JSON")]
    Syntax,
    #[error("the line has half of a surrogate pair, a number out of range or too many levels")]
    Value,
    #[error("the line repeats a key or has too many of them")]
    Keys,
    #[error("the line has too many array elements")]
    Elements,
}

/// Checks one line and gives it as text.
pub(super) fn check(line: &[u8]) -> Result<&str, Loose> {
    // `\r\n` is a line end to everybody.
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.contains(&b'\r') {
        // What is no text at all is told first.
        return Err(std::str::from_utf8(line).map_or(Loose::Utf8, |_| Loose::CarriageReturn));
    }
    check_body(line)
}

/// The same of what came as a whole, in which lines end as they like.
pub(super) fn check_body(body: &[u8]) -> Result<&str, Loose> {
    let text = std::str::from_utf8(body).map_err(|_| Loose::Utf8)?;
    if text.starts_with('\u{feff}') {
        return Err(Loose::ByteOrderMark);
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    let (keys, elements) = (Cell::new(0), Cell::new(0));
    let walk = Walk { keys: &keys, elements: &elements };
    walk.deserialize(&mut reader).map_err(|error| match error.classify() {
        Category::Data if elements.get() > MAX_ELEMENTS => Loose::Elements,
        Category::Data => Loose::Keys,
        Category::Syntax | Category::Eof | Category::Io => not_read(text),
    })?;
    reader.end().map_err(|_| Loose::Syntax)?;
    Ok(text)
}

/// Why a text was not read: the grammar allows more than any reader takes.
fn not_read(text: &str) -> Loose {
    let grammar = serde_json::from_str::<IgnoredAny>(text);
    grammar.map_or(Loose::Syntax, |_| Loose::Value)
}

/// Whether a text that is JSON is an object: what reads the fields of one reads
/// an array as well, by position.
pub(super) fn is_object(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

/// Walks over a value, keeping nothing but the keys of the objects it is in.
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

/// Reads a key, unescaped, without copying it where it has no escapes.
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
    fn refuses_what_two_parsers_could_read_differently() {
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        let cases: [(&[u8], Loose); 17] = [
            (b"\xff{}", Loose::Utf8),
            (b"{\"a\":\"\xed\xa0\x80\"}", Loose::Utf8),
            (b"\xef\xbb\xbf{}", Loose::ByteOrderMark),
            (b"{\"a\":1,\r\"b\":2}", Loose::CarriageReturn),
            (b"{}\r\r", Loose::CarriageReturn),
            (b"", Loose::Syntax),
            (b"{\"a\":NaN}", Loose::Syntax),
            (b"{\"a\":Infinity}", Loose::Syntax),
            (b"{\"a\":1e999}", Loose::Value),
            (b"{\"a\":01}", Loose::Syntax),
            (b"{\"a\":\"\\ud800\"}", Loose::Value),
            (b"{\"a\":1}{\"b\":2}", Loose::Syntax),
            (b"{\"a\":1,}", Loose::Syntax),
            (b"{'a':1}", Loose::Syntax),
            (deep.as_bytes(), Loose::Value),
            (b"{\"a\":1,\"\\u0061\":2}", Loose::Keys),
            (b"{\"x\":[{\"y\":{\"a\":1,\"b\":0,\"a\":2}}]}", Loose::Keys),
        ];
        for (line, expected) in cases {
            assert_eq!(check(line), Err(expected), "{}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn a_line_of_keys_only_stays_within_the_bound() {
        let keys: Vec<_> = (0..=MAX_KEYS).map(|n| format!("\"{n}\":0")).collect();
        assert_eq!(check(format!("{{{}}}", keys.join(",")).as_bytes()), Err(Loose::Keys));
    }

    #[test]
    fn a_line_of_elements_only_stays_within_the_bound() {
        let most = format!("[{}0]", "0,".repeat(MAX_ELEMENTS - 1));
        assert_eq!(check(most.as_bytes()), Ok(most.as_str()));
        for line in [
            format!("{{\"path\":[{}0]}}", "0,".repeat(MAX_ELEMENTS)),
            format!("[{}[]]", "[[],0],".repeat(MAX_ELEMENTS / 2)),
        ] {
            assert_eq!(check(line.as_bytes()), Err(Loose::Elements));
        }
    }

    #[test]
    fn accepts_what_is_plain() {
        for line in ["{}", " {\"a\": [1, -2.5e3, null, true, \"\\ud83d\\ude00\"]} ", "{}\r"] {
            assert!(check(line.as_bytes()).is_ok(), "{line}");
        }
    }

    proptest! {
        #[test]
        fn whatever_serde_writes_is_strict(keys in prop::collection::hash_set(any::<String>(), 0..8)) {
            let object: serde_json::Map<_, _> =
                keys.into_iter().map(|k| (k.clone(), serde_json::Value::from(k))).collect();
            let line = serde_json::to_vec(&serde_json::json!({"o": object})).unwrap();
            prop_assert!(check(&line).is_ok());
        }

        #[test]
        fn never_panics(line in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = check(&line);
        }
    }
}
