//! Fields by which records are counted, and columns of tables.

use std::{borrow::Cow, fmt, str::FromStr};

use portcullis_audit::{Hash, RecordView};

use crate::policy::nearest;

macro_rules! fields {
    ($($variant:ident $name:literal $doc:literal,)*) => {
        /// A field of a record, or a value derived from one.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Field {
            $(#[doc = $doc] $variant,)*
        }

        impl Field {
            /// All fields, in the order of the format.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the name in records and on the command line.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

fields! {
    Seq "seq" "The record's number.",
    Kind "kind" "What the record says.",
    Time "t" "When.",
    Day "day" "The day of `t`, in UTC.",
    Hour "hour" "The hour of `t`, in UTC.",
    Boot "boot" "The gateway process's lifetime.",
    Session "session" "The session that asked.",
    Agent "agent" "The agent's name.",
    User "user" "The system's user for whom the gateway runs.",
    Transport "transport" "How the request came.",
    Op "op" "The operation.",
    Path "path" "The path as asked for; of a connection the host and port.",
    Resolved "resolved" "The canonical path, where links made it another.",
    To "to" "The new path of a rename.",
    Decision "decision" "`allow` or `deny`.",
    WouldDeny "wouldDeny" "Observe mode: it would have been denied.",
    Rule "rule" "The deciding rule.",
    Policy "policy" "The policy file that holds the rule.",
    PolicySha256 "policySha256" "The policy in force.",
    Line "line" "The rule's line.",
    Reason "reason" "Why, in words.",
    Bytes "bytes" "Bytes disclosed or stored; of a connection that ended, those of both directions.",
    Before "before" "SHA-256 of the content before.",
    After "after" "SHA-256 of the content after.",
    Backup "backup" "The backup of what was replaced.",
    Source "source" "`editor` where content came from or went to a buffer.",
    Of "of" "The intent whose result the record has.",
    Result "result" "How it ended.",
}

impl Field {
    /// Returns the field's value in a record.
    pub fn of<'r>(self, record: &'r RecordView<'_>) -> Option<Cow<'r, str>> {
        let text = |text: Option<&'r str>| text.map(Cow::Borrowed);
        let number = |number: Option<u64>| number.map(|number| Cow::Owned(number.to_string()));
        let hash = |hash: Option<Hash>| hash.map(|hash| Cow::Owned(hash.to_string()));
        match self {
            Self::Seq => number(Some(record.seq)),
            Self::Kind => text(Some(record.kind_name())),
            Self::Time => text(Some(record.t.as_str())),
            Self::Day => text(record.t.as_str().get(..10)),
            Self::Hour => text(record.t.as_str().get(..13)),
            Self::Boot => text(record.boot()),
            Self::Session => text(record.session()),
            Self::Agent => text(record.agent()),
            Self::User => text(record.user()),
            Self::Transport => text(record.transport()),
            Self::Op => text(record.op()),
            Self::Path => record.subject(),
            Self::Resolved => text(record.resolved()),
            Self::To => text(record.to()),
            Self::Decision => text(record.decision()),
            Self::WouldDeny => {
                text(record.would_deny.map(|yes| if yes { "true" } else { "false" }))
            }
            Self::Rule => text(record.rule()),
            Self::Policy => text(record.policy()),
            Self::PolicySha256 => text(record.policy_sha256()),
            Self::Line => number(record.line),
            Self::Reason => text(record.reason()),
            Self::Bytes => number(bytes(record)),
            Self::Before => hash(record.before),
            Self::After => hash(record.after),
            Self::Backup => text(record.backup()),
            Self::Source => text(record.source()),
            Self::Of => number(record.of),
            Self::Result => text(record.result()),
        }
    }
}

/// Returns the number of bytes disclosed or stored, or of a connection that has ended those of both
/// directions.
pub(crate) fn bytes(record: &RecordView<'_>) -> Option<u64> {
    record.bytes.or_else(|| {
        let counts = record.counts.as_ref()?;
        Some(counts.get("bytesOut")?.saturating_add(*counts.get("bytesIn")?))
    })
}

/// Returns the decision of a record in one word: `observed` if the policy denies and observe mode
/// allowed it.
pub fn verdict<'r>(record: &'r RecordView<'_>) -> Option<&'r str> {
    if record.would_deny == Some(true) { Some("observed") } else { record.decision() }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The text is not the name of a [`Field`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no such field{}; the fields are {}", similar(.0), names())]
pub struct UnknownField(String);

fn similar(text: &str) -> String {
    let near = nearest(text, Field::ALL.iter().map(|field| field.as_str()));
    near.map(|near| format!(", did you mean `{near}`?")).unwrap_or_default()
}

fn names() -> String {
    Field::ALL.iter().map(|field| field.as_str()).collect::<Vec<_>>().join(", ")
}

impl FromStr for Field {
    type Err = UnknownField;

    fn from_str(text: &str) -> Result<Self, UnknownField> {
        // `time` is accepted for `t`.
        let name = if text == "time" { "t" } else { text };
        let found = Self::ALL.iter().copied().find(|field| field.as_str() == name);
        found.ok_or_else(|| UnknownField(text.to_owned()))
    }
}
