//! Records as views of their lines, and the reasons why a line is not a record.
//!
//! Only [`RecordView::parse`] decides this: verifier, gateway, repair, searches, undo and exports
//! all call it.

mod parse;

use std::{borrow::Cow, collections::BTreeMap};

use serde_json::Value;

use crate::{AuditRecord, Draft, Hash, Kind, VERSION, time::Time};

/// The maximum of characters of a command as a subject.
const MAX_COMMAND: usize = 120;

/// One record; FORMAT.md, section 4, defines the fields. Texts are borrowed from the line if it has
/// them without escapes, and are untrusted.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordView<'a> {
    /// Index in the chain.
    pub seq: u64,
    /// The kind.
    pub kind: Kind,
    kind_name: Cow<'a, str>,
    /// The time.
    pub t: Time,
    boot: Option<Cow<'a, str>>,
    session: Option<Cow<'a, str>>,
    agent: Option<Cow<'a, str>>,
    user: Option<Cow<'a, str>>,
    transport: Option<Cow<'a, str>>,
    op: Option<Cow<'a, str>>,
    path: Option<Cow<'a, str>>,
    resolved: Option<Cow<'a, str>>,
    to: Option<Cow<'a, str>>,
    temp: Option<Cow<'a, str>>,
    decision: Option<Cow<'a, str>>,
    /// True if the policy denies it in observe mode.
    pub would_deny: Option<bool>,
    rule: Option<Cow<'a, str>>,
    policy: Option<Cow<'a, str>>,
    policy_sha256: Option<Cow<'a, str>>,
    /// The rule's line in the policy's file.
    pub line: Option<u64>,
    reason: Option<Cow<'a, str>>,
    /// Bytes disclosed or stored.
    pub bytes: Option<u64>,
    /// SHA-256 of the content before.
    pub before: Option<Hash>,
    /// SHA-256 of the content after.
    pub after: Option<Hash>,
    backup: Option<Cow<'a, str>>,
    source: Option<Cow<'a, str>>,
    /// Secrets found.
    pub findings: Option<Vec<Value>>,
    /// Named numbers.
    pub counts: Option<BTreeMap<String, u64>>,
    /// Named facts.
    pub facts: Option<BTreeMap<String, Value>>,
    /// The intent that the record refers to.
    pub of: Option<u64>,
    result: Option<Cow<'a, str>>,
    nonce: Cow<'a, str>,
    /// Leaf hash of the record before.
    pub prev: Hash,
}

macro_rules! texts {
    ($($name:ident),*) => {
        $(
            #[doc = concat!("The field `", stringify!($name), "`.")]
            pub fn $name(&self) -> Option<&str> {
                self.$name.as_deref()
            }
        )*
    };
}

impl RecordView<'_> {
    texts!(
        boot,
        session,
        agent,
        user,
        transport,
        op,
        path,
        resolved,
        to,
        decision,
        rule,
        policy,
        policy_sha256,
        reason,
        backup,
        source,
        result
    );

    /// Returns the name of the kind, also of one that this version does not know.
    pub fn kind_name(&self) -> &str {
        &self.kind_name
    }

    /// Returns the canonical path: `resolved` if links made it a different one, else `path`.
    pub fn canonical_path(&self) -> Option<&str> {
        self.resolved().or_else(|| self.path())
    }

    /// Returns the subject of the record: the path, `HOST:PORT` of a connection, or the beginning
    /// of a command's words.
    pub fn subject(&self) -> Option<Cow<'_, str>> {
        self.target().or_else(|| {
            let words = self.facts.as_ref()?.get("command")?.as_array()?;
            let mut words: Vec<_> = words.iter().filter_map(Value::as_str).collect();
            if self.facts.as_ref()?.contains_key("argumentsLeftOut") {
                words.push("…");
            }
            let mut line = words.join(" ");
            if let Some((end, _)) = line.char_indices().nth(MAX_COMMAND) {
                line.truncate(end);
                line.push('…');
            }
            Some(line.into())
        })
    }

    /// Returns the path or, for a connection, `HOST:PORT`.
    pub fn target(&self) -> Option<Cow<'_, str>> {
        self.path().map(Cow::Borrowed).or_else(|| {
            let port = self.facts.as_ref()?.get("port")?.as_u64()?;
            let host = self.fact("host").filter(|_| self.op() == Some("connect"))?;
            Some(match host.contains(':') {
                true => format!("[{host}]:{port}").into(),
                false => format!("{host}:{port}").into(),
            })
        })
    }

    /// Returns a fact that is a text.
    pub fn fact(&self, name: &str) -> Option<&str> {
        self.facts.as_ref()?.get(name)?.as_str()
    }

    /// Copies the record into owned texts.
    pub fn into_record(self) -> AuditRecord {
        let owned = |text: Option<Cow<'_, str>>| text.map(Cow::into_owned);
        AuditRecord {
            v: VERSION,
            seq: self.seq,
            kind: self.kind,
            t: self.t.as_str().to_owned(),
            draft: Draft {
                boot: owned(self.boot),
                session: owned(self.session),
                agent: owned(self.agent),
                user: owned(self.user),
                transport: owned(self.transport),
                op: owned(self.op),
                path: owned(self.path),
                resolved: owned(self.resolved),
                to: owned(self.to),
                temp: owned(self.temp),
                decision: owned(self.decision),
                would_deny: self.would_deny,
                rule: owned(self.rule),
                policy: owned(self.policy),
                policy_sha256: owned(self.policy_sha256),
                line: self.line,
                reason: owned(self.reason),
                bytes: self.bytes,
                before: self.before,
                after: self.after,
                backup: owned(self.backup),
                source: owned(self.source),
                findings: self.findings,
                counts: self.counts,
                facts: self.facts,
                of: self.of,
                result: owned(self.result),
            },
            nonce: self.nonce.into_owned(),
            prev: self.prev,
        }
    }
}

/// Reasons why a line is not a record of this format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// It is not UTF-8.
    #[error("the line is not UTF-8")]
    NotUtf8,
    /// It is not an object from the first to the last byte.
    #[error("the line is not exactly one JSON object")]
    NotObject,
    /// It is not JSON.
    #[error("the line is not valid JSON at byte {column}")]
    Json {
        /// The position in the line in bytes, counted from 1.
        column: usize,
    },
    /// It contains a key twice.
    #[error("the key {key:?} stands twice in the line")]
    DuplicateKey {
        /// The key; untrusted text.
        key: String,
    },
    /// A mandatory field is missing.
    #[error("the field `{field}` is missing")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// A field has an invalid value.
    #[error("the field `{field}` has a wrong type or form")]
    Type {
        /// The field.
        field: &'static str,
    },
    /// It has a later version of the format.
    #[error("format version {found} is not supported")]
    Version {
        /// The version.
        found: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    fn line(members: &str) -> String {
        format!(
            r#"{{"v":1,"seq":4,"kind":"stop","t":"2026-11-21T08:00:00.000000Z",{members}"nonce":"{}","prev":"{}"}}"#,
            "0".repeat(32),
            Hash::ZERO
        )
    }

    fn fault(line: &str) -> String {
        RecordView::parse(line.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn the_subject_of_a_command_is_the_beginning_of_its_words() {
        let subject = |members: &str| {
            let text = line(members);
            RecordView::parse(text.as_bytes()).unwrap().subject().map(Cow::into_owned)
        };
        let of = |facts: &str| subject(&format!(r#""facts":{{{facts}}},"#));
        assert_eq!(of(r#""command":["echo","a b"]"#).as_deref(), Some("echo a b"));
        let cut = r#""argumentsLeftOut":2,"command":["echo"]"#;
        assert_eq!(of(cut).as_deref(), Some("echo …"));
        let long = of(&format!(r#""command":["{}"]"#, "ä".repeat(500))).unwrap();
        assert_eq!((long.chars().count(), long.chars().last()), (MAX_COMMAND + 1, Some('…')));
        assert_eq!(of(r#""command":7"#), None);
        let path = r#""path":"a","facts":{"command":["echo"]},"#;
        assert_eq!(subject(path).as_deref(), Some("a"));
    }

    #[test]
    fn reads_what_links() {
        let text = line(r#""boot":"b\u0041","future":[{"a":1,"a":2}],"of":3,"#);
        let record = RecordView::parse(text.as_bytes()).unwrap();
        assert_eq!((record.seq, record.kind, record.of), (4, Kind::Stop, Some(3)));
        assert_eq!(record.boot(), Some("bA"));
        assert_eq!(
            RecordView::parse(line("").replace("stop", "new").as_bytes()).unwrap().kind,
            Kind::Unknown
        );
    }

    /// Every line that the chain accepts the reader of records accepts, too, and no other.
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
            // The record is the first of 127 levels, an object or array around the value the
            // second.
            (&nested(125), true),
            (&nested(126), false),
            (&objects(125), true),
            (&objects(126), false),
            (&nested(100_000), false),
            // Readers that keep the first of two members see this, and those that keep the last do not.
            (&format!(r#"{{"a":{},"a":0}}"#, nested(124)), true),
            (&format!(r#"{{"a":{},"a":0}}"#, nested(125)), false),
        ] {
            for around in [
                format!(r#""facts":{{"a":{value}}},"#),
                format!(r#""findings":[{value}],"#),
                format!(r#""new":[{value}],"#),
            ] {
                let text = line(&around);
                assert_eq!(RecordView::parse(text.as_bytes()).is_ok(), right, "{around}");
                assert_eq!(AuditRecord::parse(text.as_bytes()).is_ok(), right, "{around}");
            }
        }
        for wrong in ["-0", "1e0", "18446744073709551616", "true"] {
            let text = line(&format!(r#""counts":{{"a":{wrong}}},"#));
            assert!(RecordView::parse(text.as_bytes()).is_err(), "{wrong}");
        }
    }

    /// `serde_json` may have the feature `raw_value`, as it has here.
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

    /// A comparison of each key with all others would take a minute.
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
        assert_eq!(RecordView::parse(b"{\"v\":1,\"x\":\"\xff\"}"), Err(LineError::NotUtf8));
    }
}
