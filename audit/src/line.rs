//! What the chain needs to know of a line, and whether it is a record at all: the only
//! place that decides this. Verifier, gate, repair and searches all ask
//! [`Link::parse`].
//!
//! Reads the members it needs and only checks the syntax and type of the rest;
//! building every field costs several times the hash.

mod plain;

use std::{borrow::Cow, collections::BTreeSet, fmt, str::FromStr};

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::error::Category;

use crate::{Hash, Kind, VERSION, json::Json, time::Time};

/// The members of a record that chain it to others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link<'a> {
    /// Place in the chain.
    pub seq: u64,
    /// What the record says.
    pub kind: Kind,
    /// When.
    pub t: Time,
    /// The gate process's lifetime that wrote it.
    pub boot: Option<Cow<'a, str>>,
    /// Hash of the policy in force; any text.
    pub policy: Option<Cow<'a, str>>,
    /// The intent that the record answers.
    pub of: Option<u64>,
    /// Leaf hash of the record before.
    pub prev: Hash,
}

/// Why a line is no record of this format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// Not UTF-8.
    #[error("the line is not UTF-8")]
    NotUtf8,
    /// Not an object from the first to the last byte.
    #[error("the line is not exactly one JSON object")]
    NotObject,
    /// Not JSON.
    #[error("the line is not valid JSON at byte {column}")]
    Json {
        /// The byte of the line, counted from 1.
        column: usize,
    },
    /// The same key twice.
    #[error("the key {key:?} stands twice in the line")]
    DuplicateKey {
        /// The key; untrusted text.
        key: String,
    },
    /// A field that every record has is not there.
    #[error("the field `{field}` is missing")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// A field has a value that it cannot have.
    #[error("the field `{field}` has a wrong type or form")]
    Type {
        /// The field.
        field: &'static str,
    },
    /// A later version of the format.
    #[error("format version {found} is not supported")]
    Version {
        /// The version.
        found: u64,
    },
}

impl<'a> Link<'a> {
    /// Reads a line without its newline.
    ///
    /// # Errors
    ///
    /// When it is no record of this format, see [`LineError`].
    pub fn parse(line: &'a [u8]) -> Result<Self, LineError> {
        plain::parse(line).map_or_else(|| Self::parse_any(line), Ok)
    }

    /// The same of a line in any spelling.
    fn parse_any(line: &'a [u8]) -> Result<Self, LineError> {
        let text = str::from_utf8(line).map_err(|_utf8| LineError::NotUtf8)?;
        if !(text.starts_with('{') && text.ends_with('}')) {
            return Err(LineError::NotObject);
        }
        let mut reading = Reading::default();
        let mut json = serde_json::Deserializer::from_str(text);
        if let Err(error) = reading.deserialize(&mut json).and_then(|()| json.end()) {
            return Err(match (reading.fault, error.classify()) {
                (Some(fault), _) => fault,
                (None, Category::Data) => LineError::Type { field: reading.field },
                (None, _) => LineError::Json { column: error.column() },
            });
        }
        reading.finish()
    }
}

/// What has been read so far, and where.
#[derive(Default)]
struct Reading<'de> {
    field: &'static str,
    fault: Option<LineError>,
    seen: u64,
    unknown: BTreeSet<Cow<'de, str>>,
    v: Option<u64>,
    seq: Option<u64>,
    kind: Option<Kind>,
    t: Option<Time>,
    boot: Option<Cow<'de, str>>,
    policy: Option<Cow<'de, str>>,
    of: Option<u64>,
    nonce: bool,
    prev: Option<Hash>,
}

/// The fields in their order, each with what its value is.
const FIELDS: [(&str, Shape); 33] = [
    ("v", Shape::Number),
    ("seq", Shape::Number),
    ("kind", Shape::Text),
    ("t", Shape::Text),
    ("boot", Shape::Text),
    ("session", Shape::Text),
    ("agent", Shape::Text),
    ("user", Shape::Text),
    ("door", Shape::Text),
    ("op", Shape::Text),
    ("path", Shape::Text),
    ("resolved", Shape::Text),
    ("to", Shape::Text),
    ("temp", Shape::Text),
    ("decision", Shape::Text),
    ("wouldDeny", Shape::Truth),
    ("rule", Shape::Text),
    ("policy", Shape::Text),
    ("policySha256", Shape::Text),
    ("line", Shape::Number),
    ("reason", Shape::Text),
    ("bytes", Shape::Number),
    ("before", Shape::Hash),
    ("after", Shape::Hash),
    ("backup", Shape::Text),
    ("source", Shape::Text),
    ("findings", Shape::Array),
    ("counts", Shape::Numbers),
    ("facts", Shape::Object),
    ("of", Shape::Number),
    ("result", Shape::Text),
    ("nonce", Shape::Text),
    ("prev", Shape::Hash),
];

/// What a field's value is.
#[derive(Clone, Copy)]
enum Shape {
    Text,
    Number,
    Truth,
    Hash,
    Array,
    Object,
    Numbers,
}

impl<'de> Reading<'de> {
    fn fail<E: serde::de::Error>(&mut self, fault: LineError) -> E {
        self.fault = Some(fault);
        E::custom("")
    }

    /// Reads the value of the field at `index`.
    fn value<A: MapAccess<'de>>(&mut self, index: usize, map: &mut A) -> Result<(), A::Error> {
        let Some(&(name, shape)) = FIELDS.get(index) else { return Err(A::Error::custom("")) };
        self.field = name;
        match name {
            "v" => self.v = Some(map.next_value()?),
            "seq" => self.seq = Some(map.next_value()?),
            "of" => self.of = Some(map.next_value()?),
            "kind" => self.kind = Some(Kind::from_word(&map.next_value::<Key<'_>>()?.0)),
            "boot" => self.boot = Some(map.next_value::<Key<'de>>()?.0),
            "policySha256" => self.policy = Some(map.next_value::<Key<'de>>()?.0),
            "prev" => self.prev = Some(map.next_value::<Parsed<Hash>>()?.0),
            "t" => {
                let text = map.next_value::<Key<'_>>()?.0;
                let Some(time) = Time::new(text.as_bytes()) else {
                    return Err(self.fail(LineError::Type { field: name }));
                };
                self.t = Some(time);
            }
            "nonce" => {
                let nonce = map.next_value::<Key<'_>>()?.0;
                let digit = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
                if nonce.len() != 32 || !nonce.bytes().all(digit) {
                    return Err(self.fail(LineError::Type { field: name }));
                }
                self.nonce = true;
            }
            _ => match shape {
                Shape::Text => map.next_value::<Parsed<Any>>().map(drop)?,
                Shape::Number => map.next_value::<u64>().map(drop)?,
                Shape::Truth => map.next_value::<bool>().map(drop)?,
                Shape::Hash => map.next_value::<Parsed<Hash>>().map(drop)?,
                Shape::Array => map.next_value::<Vec<Json>>().map(drop)?,
                Shape::Object => map.next_value::<Members<Json>>().map(drop)?,
                Shape::Numbers => map.next_value::<Members<u64>>().map(drop)?,
            },
        }
        Ok(())
    }

    fn finish(self) -> Result<Link<'de>, LineError> {
        let missing = |field| LineError::Missing { field };
        match self.v {
            None => return Err(missing("v")),
            Some(VERSION) => {}
            Some(found) => return Err(LineError::Version { found }),
        }
        if !self.nonce {
            return Err(missing("nonce"));
        }
        let kind = self.kind.ok_or(missing("kind"))?;
        if kind == Kind::Outcome && self.of.is_none() {
            return Err(missing("of"));
        }
        Ok(Link {
            seq: self.seq.ok_or(missing("seq"))?,
            kind,
            t: self.t.ok_or(missing("t"))?,
            boot: self.boot,
            policy: self.policy,
            of: self.of,
            prev: self.prev.ok_or(missing("prev"))?,
        })
    }
}

impl<'de> DeserializeSeed<'de> for &mut Reading<'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut Reading<'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a record")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        // Writers keep the order of the fields, so the next key is nearly
        // always a little further in the table.
        let mut from = 0;
        while let Some(Key(key)) = map.next_key::<Key<'de>>()? {
            let find = |(name, _): &(&str, Shape)| *name == key;
            let index = (FIELDS.iter().skip(from).position(find).map(|index| index + from))
                .or_else(|| FIELDS.iter().position(find));
            let again = match index {
                Some(index) => self.seen & 1 << index != 0,
                None => self.unknown.contains(&key),
            };
            if again {
                return Err(self.fail(LineError::DuplicateKey { key: key.into_owned() }));
            }
            if let Some(index) = index {
                self.seen |= 1 << index;
                from = index + 1;
                self.value(index, &mut map)?;
            } else {
                self.unknown.insert(key);
                map.next_value::<Json>()?;
            }
        }
        Ok(())
    }
}

/// A text, borrowed where it holds no escapes.
struct Key<'de>(Cow<'de, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Key<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(text.to_owned())))
            }
        }
        json.deserialize_str(Text)
    }
}

/// A text that is a `T`.
struct Parsed<T>(T);

impl<'de, T: FromStr> Deserialize<'de> for Parsed<T> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Text<T>(std::marker::PhantomData<T>);
        impl<T: FromStr> Visitor<'_> for Text<T> {
            type Value = Parsed<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Parsed<T>, E> {
                text.parse().map(Parsed).map_err(|_form| E::custom("wrong form"))
            }
        }
        json.deserialize_str(Text(std::marker::PhantomData))
    }
}

/// Any text at all.
struct Any;

impl FromStr for Any {
    type Err = std::convert::Infallible;

    fn from_str(_text: &str) -> Result<Self, Self::Err> {
        Ok(Self)
    }
}

/// An object whose values are all `T`, not kept.
struct Members<T>(std::marker::PhantomData<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Members<T> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Object<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Object<T> {
            type Value = Members<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<T>, A::Error> {
                while map.next_entry::<Parsed<Any>, T>()?.is_some() {}
                Ok(Members(std::marker::PhantomData))
            }
        }
        json.deserialize_map(Object(std::marker::PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AuditRecord;

    fn line(members: &str) -> String {
        format!(
            r#"{{"v":1,"seq":4,"kind":"stop","t":"2026-11-21T08:00:00.000000Z",{members}"nonce":"{}","prev":"{}"}}"#,
            "0".repeat(32),
            Hash::ZERO
        )
    }

    fn fault(line: &str) -> String {
        Link::parse(line.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn reads_what_links() {
        let text = line(r#""boot":"b\u0041","future":[{"a":1,"a":2}],"of":3,"#);
        let link = Link::parse(text.as_bytes()).unwrap();
        assert_eq!((link.seq, link.kind, link.of), (4, Kind::Stop, Some(3)));
        assert_eq!(link.boot.as_deref(), Some("bA"));
        assert_eq!(
            Link::parse(line("").replace("stop", "new").as_bytes()).unwrap().kind,
            Kind::Unknown
        );
    }

    /// What the chain takes for a record, the reader of records takes for one.
    #[test]
    fn a_line_is_a_record_to_every_reader_or_to_none() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let objects = |depth: usize| format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth));
        let long = "1".repeat(308);
        for (value, right) in [
            (r#""\ud83d\ude00""#, true),
            (r#""\ud83d""#, false),
            (r#""\ude00""#, false),
            (r#""\ud83d\ud83d\ude00""#, false),
            (r#"{"\udfff":1}"#, false),
            ("-0", true),
            ("1e308", true),
            ("-1e309", false),
            ("1e999", false),
            ("0e999", true),
            ("1e-999", true),
            ("18446744073709551616", true),
            (&long, true),
            (&format!("9{long}"), false),
            // The record is the first of 127, an object or array around the
            // value the second.
            (&nested(125), true),
            (&nested(126), false),
            (&objects(125), true),
            (&objects(126), false),
            (&nested(100_000), false),
        ] {
            for around in [
                format!(r#""facts":{{"a":{value}}},"#),
                format!(r#""findings":[{value}],"#),
                format!(r#""new":[{value}],"#),
            ] {
                let text = line(&around);
                assert_eq!(Link::parse(text.as_bytes()).is_ok(), right, "{around}");
                assert_eq!(AuditRecord::parse(text.as_bytes()).is_ok(), right, "{around}");
            }
        }
        for wrong in ["-0", "1e0", "18446744073709551616", "true"] {
            let text = line(&format!(r#""counts":{{"a":{wrong}}},"#));
            assert!(Link::parse(text.as_bytes()).is_err(), "{wrong}");
        }
    }

    /// Where `serde_json` has the feature `raw_value`, as it has here.
    #[test]
    fn a_key_of_the_parser_is_a_key_like_others() {
        let key = "$serde_json::private::RawValue";
        for value in [r#""7""#, r#""no JSON""#, "7"] {
            let object = format!(r#"{{"{key}":{value}}}"#);
            let members = format!(r#""findings":[{object}],"facts":{{"a":[{object}]}},"#);
            let record = AuditRecord::parse(line(&members).as_bytes()).unwrap();
            let (findings, facts) = (record.draft.findings.unwrap(), record.draft.facts.unwrap());
            assert_eq!(findings[0].to_string(), object);
            assert_eq!(facts["a"][0].to_string(), object);
        }
    }

    /// A search through all keys for each one would take a minute.
    #[test]
    fn a_line_of_nothing_but_keys_is_read_at_once() {
        let members: String = (0..100_000).map(|key| format!("\"{key}\":1,")).collect();
        assert!(AuditRecord::parse(line(&members).as_bytes()).is_ok());
        assert_eq!(
            fault(&line(&format!("{members}\"7\":1,"))),
            "the key \"7\" stands twice in the line"
        );
    }

    #[test]
    fn says_why_a_line_is_no_record() {
        assert_eq!(fault("[]"), "the line is not exactly one JSON object");
        assert_eq!(fault(" {}"), "the line is not exactly one JSON object");
        assert_eq!(fault(&format!("{}\r", line(""))), "the line is not exactly one JSON object");
        assert_eq!(fault("{} {}"), "the line is not valid JSON at byte 4");
        assert_eq!(fault(r#"{"v":01}"#), "the line is not valid JSON at byte 7");
        assert_eq!(fault("{}"), "the field `v` is missing");
        assert_eq!(fault(r#"{"v":2}"#), "format version 2 is not supported");
        assert_eq!(fault(&line(r#""seq":4,"#)), "the key \"seq\" stands twice in the line");
        assert_eq!(fault(&line(r#""s\u0065q":4,"#)), "the key \"seq\" stands twice in the line");
        assert_eq!(fault(&line(r#""x":4,"\u0078":5,"#)), "the key \"x\" stands twice in the line");
        assert_eq!(
            fault(&line("\"a\u{202e}\":1,\"a\\u202e\":1,")),
            "the key \"a\\u{202e}\" stands twice in the line"
        );
        for wrong in [
            r#""bytes":-1,"#,
            r#""bytes":1.0,"#,
            r#""before":"00","#,
            r#""path":7,"#,
            r#""findings":{},"#,
            r#""facts":[],"#,
            r#""counts":{"a":"b"},"#,
            r#""wouldDeny":1,"#,
        ] {
            let field = wrong.split('"').nth(1).unwrap();
            assert_eq!(
                fault(&line(wrong)),
                format!("the field `{field}` has a wrong type or form")
            );
        }
        assert_eq!(
            fault(&line("").replace("T08", " 08")),
            "the field `t` has a wrong type or form"
        );
        assert_eq!(fault(&line("").replace("stop", "outcome")), "the field `of` is missing");
        assert_eq!(Link::parse(b"{\"v\":1,\"x\":\"\xff\"}"), Err(LineError::NotUtf8));
    }
}
