//! The fields by which records are counted, and the columns of tables.

use std::{borrow::Cow, fmt, str::FromStr};

use super::Row;

macro_rules! fields {
    ($($variant:ident $name:literal $doc:literal,)*) => {
        /// A field of a record, or something that follows from one.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Field {
            $(#[doc = $doc] $variant,)*
        }

        impl Field {
            /// Every field, in the order of the format.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name in records and on the command line.
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
    Boot "boot" "The gate process's lifetime.",
    Session "session" "The session that asked.",
    Agent "agent" "The agent's name.",
    User "user" "The system's user for whom the gate runs.",
    Door "door" "How the request came.",
    Op "op" "The operation.",
    Path "path" "The path as asked for.",
    Resolved "resolved" "The canonical path, where links made it another.",
    To "to" "The new path of a rename.",
    Decision "decision" "`allow` or `deny`.",
    WouldDeny "wouldDeny" "Observe mode: it would have been denied.",
    Rule "rule" "The deciding rule.",
    Policy "policy" "The policy file that holds the rule.",
    PolicySha256 "policySha256" "The policy in force.",
    Line "line" "The rule's line.",
    Reason "reason" "Why, in words.",
    Bytes "bytes" "Bytes disclosed or stored.",
    Before "before" "SHA-256 of the content before.",
    After "after" "SHA-256 of the content after.",
    Backup "backup" "The backup of what was replaced.",
    Source "source" "`editor` where content came from or went to a buffer.",
    Of "of" "The intent that the record answers.",
    Result "result" "How it ended.",
}

impl Field {
    /// The field's value in a record.
    pub fn of<'r>(self, row: &'r Row<'_>) -> Option<Cow<'r, str>> {
        let text = |text: Option<&'r str>| text.map(Cow::Borrowed);
        let number = |number: Option<u64>| number.map(|number| Cow::Owned(number.to_string()));
        match self {
            Self::Seq => number(Some(row.seq)),
            Self::Kind => text(Some(row.kind())),
            Self::Time => text(Some(row.t())),
            Self::Day => text(row.t().get(..10)),
            Self::Hour => text(row.t().get(..13)),
            Self::Boot => text(row.boot()),
            Self::Session => text(row.session()),
            Self::Agent => text(row.agent()),
            Self::User => text(row.user()),
            Self::Door => text(row.door()),
            Self::Op => text(row.op()),
            Self::Path => text(row.path()),
            Self::Resolved => text(row.resolved()),
            Self::To => text(row.to()),
            Self::Decision => text(row.decision()),
            Self::WouldDeny => text(row.would_deny.map(|yes| if yes { "true" } else { "false" })),
            Self::Rule => text(row.rule()),
            Self::Policy => text(row.policy()),
            Self::PolicySha256 => text(row.policy_sha256()),
            Self::Line => number(row.line),
            Self::Reason => text(row.reason()),
            Self::Bytes => number(row.bytes),
            Self::Before => text(row.before()),
            Self::After => text(row.after()),
            Self::Backup => text(row.backup()),
            Self::Source => text(row.source()),
            Self::Of => number(row.of),
            Self::Result => text(row.result()),
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A text names no [`Field`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no such field; the fields are {}", names())]
pub struct UnknownField;

fn names() -> String {
    Field::ALL.iter().map(|field| field.as_str()).collect::<Vec<_>>().join(", ")
}

impl FromStr for Field {
    type Err = UnknownField;

    fn from_str(text: &str) -> Result<Self, UnknownField> {
        // `time` is what a person calls `t`.
        let name = if text == "time" { "t" } else { text };
        Self::ALL.iter().copied().find(|field| field.as_str() == name).ok_or(UnknownField)
    }
}
