//! One record as a search sees it: every field that it could ask for, borrowed
//! from the line where the line holds it as it is.
//!
//! Building an `AuditRecord` costs several times as much, and a search throws
//! nearly all of them away.

use std::{borrow::Cow, fmt};

use portcullis_audit::{LineError, Link};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, Visitor},
};
use serde_json::value::RawValue;

use crate::model::is_hidden_character;

/// A record; the fields are those of FORMAT.md, section 4. All texts are
/// untrusted.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[expect(missing_docs, reason = "FORMAT.md says what the fields are")]
pub struct Row<'a> {
    pub seq: u64,
    #[serde(borrow)]
    kind: Option<Text<'a>>,
    #[serde(borrow)]
    t: Option<Text<'a>>,
    #[serde(borrow)]
    boot: Option<Text<'a>>,
    #[serde(borrow)]
    session: Option<Text<'a>>,
    #[serde(borrow)]
    agent: Option<Text<'a>>,
    #[serde(borrow)]
    user: Option<Text<'a>>,
    #[serde(borrow)]
    door: Option<Text<'a>>,
    #[serde(borrow)]
    op: Option<Text<'a>>,
    #[serde(borrow)]
    path: Option<Text<'a>>,
    #[serde(borrow)]
    resolved: Option<Text<'a>>,
    #[serde(borrow)]
    to: Option<Text<'a>>,
    #[serde(borrow)]
    decision: Option<Text<'a>>,
    pub would_deny: Option<bool>,
    #[serde(borrow)]
    rule: Option<Text<'a>>,
    #[serde(borrow)]
    policy: Option<Text<'a>>,
    #[serde(borrow)]
    policy_sha256: Option<Text<'a>>,
    pub line: Option<u64>,
    #[serde(borrow)]
    reason: Option<Text<'a>>,
    pub bytes: Option<u64>,
    #[serde(borrow)]
    before: Option<Text<'a>>,
    #[serde(borrow)]
    after: Option<Text<'a>>,
    #[serde(borrow)]
    backup: Option<Text<'a>>,
    #[serde(borrow)]
    source: Option<Text<'a>>,
    #[serde(borrow)]
    pub findings: Option<&'a RawValue>,
    #[serde(borrow)]
    pub counts: Option<&'a RawValue>,
    #[serde(borrow)]
    pub facts: Option<&'a RawValue>,
    pub of: Option<u64>,
    #[serde(borrow)]
    result: Option<Text<'a>>,
}

macro_rules! texts {
    ($($name:ident),*) => {
        $(
            #[doc = concat!("The field `", stringify!($name), "`.")]
            pub fn $name(&self) -> Option<&str> {
                self.$name.as_ref().map(|text| &*text.0)
            }
        )*
    };
}

impl<'a> Row<'a> {
    /// Reads a line without its newline.
    ///
    /// # Errors
    /// When it is no record.
    pub fn parse(line: &'a [u8]) -> Result<Self, LineError> {
        // A row passes over what it does not know, and much that is no record.
        Link::parse(line)?;
        serde_json::from_slice(line).map_err(|error| LineError::Json { column: error.column() })
    }

    /// What the record says.
    pub fn kind(&self) -> &str {
        self.kind.as_ref().map_or("", |text| &text.0)
    }

    /// When, RFC 3339 in UTC with microseconds.
    pub fn t(&self) -> &str {
        self.t.as_ref().map_or("", |text| &text.0)
    }

    texts!(
        boot,
        session,
        agent,
        user,
        door,
        op,
        path,
        resolved,
        to,
        decision,
        rule,
        policy,
        policy_sha256,
        reason,
        before,
        after,
        backup,
        source,
        result
    );

    /// The path that it is really about: the canonical one where links made it
    /// another.
    pub fn object(&self) -> Option<&str> {
        self.resolved().or_else(|| self.path())
    }
}

/// A text, borrowed where it holds no escapes.
#[derive(Debug, Default)]
struct Text<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Borrowing;
        impl<'de> Visitor<'de> for Borrowing {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Text<'de>, E> {
                // A record's longest line bounds every text in it.
                if text.len() > portcullis_audit::MAX_LINE {
                    return Err(E::custom("too long"));
                }
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        json.deserialize_str(Borrowing).map_err(D::Error::custom)
    }
}

/// JSON of the same value in which no character hides or steers: what JSON lets
/// stand in texts though a terminal obeys it is written as `\uXXXX`.
pub fn visible_json(line: &str) -> Cow<'_, str> {
    use fmt::Write as _;
    if !line.chars().any(is_hidden_character) {
        return Cow::Borrowed(line);
    }
    let mut out = String::with_capacity(line.len() + 64);
    for c in line.chars() {
        if is_hidden_character(c) && !c.is_ascii_whitespace() {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a `String` cannot fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borrows_what_needs_no_unescaping() {
        let line = format!(
            r#"{{"v":1,"seq":3,"kind":"decision","t":"2026-11-21T08:00:00.000000Z","path":"a/b","agent":"x\ny","facts":{{"a":1}},"new":[1],"of":2,"nonce":"{:032}","prev":"{:064}"}}"#,
            0, 0
        );
        let row = Row::parse(line.as_bytes()).unwrap();
        assert_eq!(
            (row.seq, row.kind(), row.path(), row.of),
            (3, "decision", Some("a/b"), Some(2))
        );
        assert_eq!(row.agent(), Some("x\ny"));
        assert!(matches!(row.path, Some(Text(Cow::Borrowed(_)))));
        assert_eq!(row.facts.unwrap().get(), "{\"a\":1}");
    }

    #[test]
    fn says_what_is_no_record() {
        for wrong in ["", "{}", "[]", r#"{"v":1,"seq":-1}"#, r#"{"v":1,"seq":1,"seq":1}"#] {
            assert!(Row::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
        let line = r#"{"v":0,"seq":1,"kind":"stop","t":"2026-11-21T08:00:00.000000Z"}"#;
        assert_eq!(Row::parse(line.as_bytes()).unwrap_err(), LineError::Version { found: 0 });
        assert_eq!(Row::parse(br#"{"v":2}"#).unwrap_err(), LineError::Version { found: 2 });
    }

    #[test]
    fn json_hides_nothing() {
        let line = "{\"path\":\"a\u{202e}b\u{e0041}\u{7f}\\n\"}";
        let shown = visible_json(line);
        assert_eq!(shown, "{\"path\":\"a\\u202eb\\udb40\\udc41\\u007f\\n\"}");
        let same = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(same(&shown), same(line));
    }
}
